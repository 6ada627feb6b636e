"""Every fault of the table, seen from the client's end of the connection."""

import asyncio
import contextlib
import json
import re
from urllib.parse import urlsplit

import aiohttp
import pytest

from deploy.engine.batching import EngineModel
from deploy.engine.config import EngineConfig
from deploy.engine.faults import FAULTS, FaultOrder, FaultSwitch, Scope, Stage, parse_fault

from .conftest import FROZEN, Watch, chat, events_of

CHAT = "/v1/chat/completions"
CANNED = [kind for kind, fault in FAULTS.items() if fault.answer is not None and fault.scope is not Scope.METRICS]


class RawRequest:
    """One request over a bare connection, so that every byte and the manner of the end can be seen."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self._writer = writer

    @classmethod
    async def post(cls, url: str, body: dict[str, object]) -> "RawRequest":
        """Connect and send a chat request."""
        target = urlsplit(url)
        reader, writer = await asyncio.open_connection(target.hostname, target.port)
        data = json.dumps(body).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nhost: engine\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
        return cls(reader, writer)

    async def stream(self) -> bytes:
        """A whole stream, without waiting for the end of a connection that is kept."""
        try:
            return await self.reader.readuntil(b"\r\n0\r\n\r\n")
        finally:
            self._writer.close()

    async def rest(self) -> tuple[bytes, bool]:
        """All bytes until the end, and whether the end was a reset."""
        received = b""
        try:
            while data := await self.reader.read(65536):
                received += data
        except ConnectionResetError:
            return received, True
        finally:
            self._writer.close()
        return received, False


def tokens_in(received: bytes) -> int:
    """Tokens of the events with content, four letters each."""
    return sum(len(text) // 4 for text in re.findall(rb'"delta":{"content":"([^"]*)"', received))


@pytest.mark.parametrize("kind", CANNED)
@pytest.mark.parametrize("is_stream", [False, True])
async def test_canned_answers_come_as_they_stand_in_the_table(kind, is_stream, start_engine, client):
    """Status, type and body, for plain requests and streams; then the engine is well again."""
    engine = await start_engine()
    await engine.set_fault(FaultOrder(kind, count=1))
    answer = FAULTS[kind].answer
    async with client.post(engine.url + CHAT, json=chat(stream=is_stream)) as response:
        assert response.status == answer.status
        assert response.headers["content-type"] == answer.content_type
        assert await response.read() == answer.body
    async with client.post(engine.url + CHAT, json=chat(stream=is_stream)) as response:
        assert response.status == 200


async def test_a_rate_limit_says_when_to_come_again(start_engine, client):
    """The 429 carries Retry-After."""
    engine = await start_engine(fault="rate_limit_429")
    async with client.post(engine.url + CHAT, json=chat()) as response:
        assert response.headers["retry-after"] == "2"


@pytest.mark.parametrize("body", [chat(), chat(stream=True)])
async def test_close_resets_before_a_byte(body, start_engine):
    """The request is read, the connection reset."""
    engine = await start_engine(fault="close")
    assert await (await RawRequest.post(engine.url, body)).rest() == (b"", True)


async def test_garbage_bytes_are_not_http(start_engine):
    """Something comes, and it is no status line."""
    engine = await start_engine(fault="garbage_bytes")
    received, _ = await (await RawRequest.post(engine.url, chat())).rest()
    assert received
    assert not received.startswith(b"HTTP")


@pytest.mark.parametrize(("kind", "is_healthy"), [("hang", False), ("hang_work", True), ("hang_after_headers", True)])
async def test_hanging_gives_no_byte_while_health_may_be_well(kind, is_healthy, start_engine, client):
    """A plain request hears nothing until the engine stops; /health tells the kinds apart."""
    engine = await start_engine(fault=kind)
    request = await RawRequest.post(engine.url, chat())
    if is_healthy:
        async with client.get(engine.url + "/health") as response:
            assert response.status == 200
    else:
        health = asyncio.create_task(client.get(engine.url + "/health"))
        async with client.get(engine.url + "/fault") as response:
            assert (await response.json())["kind"] == kind
        assert not health.done()
        health.cancel()
    await engine.stop()
    assert (await request.rest())[0] == b""


async def test_a_stream_may_hang_after_its_headers(start_engine):
    """The headers of a 200 come, then nothing until the engine stops."""
    engine = await start_engine(fault="hang_after_headers")
    request = await RawRequest.post(engine.url, chat(stream=True))
    head = await request.reader.readuntil(b"\r\n\r\n")
    assert b" 200 " in head
    await engine.stop()
    assert (await request.rest())[0] == b""


async def test_a_refusal_in_the_stream_is_200_error_done(start_engine, client):
    """An error event with code 503 and [DONE]; a plain request is a real 503."""
    engine = await start_engine(fault="refused_in_stream")
    async with client.post(engine.url + CHAT, json=chat(stream=True)) as response:
        assert response.status == 200
        error, done = events_of(await response.read())
    assert json.loads(error)["error"]["code"] == 503
    assert done == b"[DONE]"
    async with client.post(engine.url + CHAT, json=chat()) as response:
        assert response.status == 503


@pytest.mark.parametrize("tokens_per_chunk", [1, 8])
@pytest.mark.parametrize(("kind", "is_reset"), [("reset_mid_stream", True), ("close_mid_stream", False)])
async def test_a_stream_may_break_after_exactly_k_tokens(kind, is_reset, tokens_per_chunk, start_engine):
    """Three tokens of ten are told, then the connection is gone, and the engine has dropped the sequence."""
    engine = await start_engine(tokens_per_chunk=tokens_per_chunk)
    watch = Watch(engine)
    await engine.set_fault(FaultOrder(kind, after_tokens=3))
    received, was_reset = await (await RawRequest.post(engine.url, chat(10, stream=True))).rest()
    await watch.dropped.wait()
    assert was_reset == is_reset
    assert tokens_in(received) == 3 or is_reset  # a reset may overtake bytes that were on their way
    assert tokens_in(received) <= 3
    assert b"[DONE]" not in received
    assert not received.endswith(b"0\r\n\r\n")
    assert engine.steps.batcher.running == 0


async def test_a_silent_stream_has_neither_bytes_nor_an_end(start_engine):
    """After two tokens only the end of the engine ends the connection."""
    engine = await start_engine()
    watch = Watch(engine)
    await engine.set_fault(FaultOrder("silent_mid_stream", after_tokens=2))
    request = await RawRequest.post(engine.url, chat(10, stream=True))
    await watch.dropped.wait()
    assert not request.reader.at_eof()
    await engine.stop()
    received, _ = await request.rest()
    assert tokens_in(received) <= 2
    assert b'finish_reason":"' not in received


@pytest.mark.parametrize(
    ("kind", "ending"),
    [
        ("error_mid_stream", [500, b"[DONE]"]),
        ("garbage_mid_stream", [b'{"id":"chatcm\xff']),
        ("cut_mid_stream", []),
    ],
)
async def test_a_stream_may_end_well_formed_and_be_wrong(kind, ending, start_engine, client):
    """Role and two tokens, then the fault's own ending inside a body that HTTP finds complete."""
    engine = await start_engine()
    await engine.set_fault(FaultOrder(kind, after_tokens=2))
    async with client.post(engine.url + CHAT, json=chat(10, stream=True)) as response:
        events = events_of(await response.read())
    told = [json.loads(event)["error"]["code"] if b'"error"' in event else event for event in events[3:]]
    assert told == ending
    assert all(b'"finish_reason":null' in event for event in events[:3])


@pytest.mark.parametrize("kind", ["error_mid_stream", "garbage_mid_stream", "cut_mid_stream"])
async def test_faults_in_mid_stream_break_plain_answers_too(kind, start_engine, client):
    """A plain request is a 500, or a 200 whose JSON stops."""
    engine = await start_engine()
    await engine.set_fault(FaultOrder(kind, after_tokens=2))
    async with client.post(engine.url + CHAT, json=chat(10)) as response:
        body = await response.read()
        if response.status == 200:
            with pytest.raises(json.JSONDecodeError):
                json.loads(body)
        else:
            assert json.loads(body)["error"]["code"] == response.status == 500


async def test_a_plain_request_may_be_reset_under_way(start_engine):
    """No byte, and a reset."""
    engine = await start_engine(fault="reset_mid_stream,after_tokens=2")
    assert await (await RawRequest.post(engine.url, chat(10))).rest() == (b"", True)


async def test_no_done_leaves_out_the_last_event_only(start_engine, client):
    """The finish comes, [DONE] does not, and the body is complete."""
    engine = await start_engine(fault="no_done")
    async with client.post(engine.url + CHAT, json=chat(3, stream=True)) as response:
        events = events_of(await response.read())
    assert b'"finish_reason":"length"' in events[-1]


async def test_close_after_stream_ends_a_connection_that_was_to_stay(start_engine):
    """The whole stream, no `connection: close`, and then the end of the connection."""
    engine = await start_engine(fault="close_after_stream")
    received, was_reset = await (await RawRequest.post(engine.url, chat(3, stream=True))).rest()
    assert received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert b"connection: close" not in received.lower()
    assert not was_reset


async def test_refuse_closes_the_port_until_it_is_switched_off(start_engine, client):
    """Nobody can connect, open connections are reset, and then the same port answers again."""
    engine = await start_engine()
    async with client.post(engine.url + "/fault", json={"kind": "refuse"}) as response:
        assert response.status == 200
    async with aiohttp.ClientSession() as other:
        with pytest.raises(aiohttp.ClientConnectorError):
            await other.get(engine.url + "/health")
    await engine.set_fault(None)
    async with aiohttp.ClientSession() as other, other.get(engine.url + "/health") as response:
        assert response.status == 200


async def test_an_engine_that_stops_undrained_falls_silent_and_takes_nobody(start_engine):
    """The port is closed and a running stream gets no byte, no end; when the engine is back, it is reset."""
    engine = await start_engine(batching=EngineModel(speed=0.5, max_model_len=2048))
    request = await RawRequest.post(engine.url, chat(1000, stream=True))
    await request.reader.readuntil(b"data: ")
    await engine.set_fault(FaultOrder("stop_undrained"))
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", int(engine.url.rpartition(":")[2]))
    steps = engine.counters.steps
    async with asyncio.timeout(5):
        with contextlib.suppress(TimeoutError):
            while await asyncio.wait_for(request.reader.read(65_536), 0.3):
                pass  # what was on its way
    assert engine.counters.steps == steps
    assert not request.reader.at_eof()
    await engine.set_fault(None)
    async with asyncio.timeout(5):
        _, was_reset = await request.rest()
    assert was_reset
    again = await RawRequest.post(engine.url, chat(3, stream=True))
    async with asyncio.timeout(5):
        assert tokens_in(await again.stream()) == 3


async def test_a_fault_may_end_by_itself(start_engine):
    """`seconds` is the life of a fault, so that a closed port opens again."""
    engine = await start_engine()
    opened = asyncio.Event()
    listen = engine._listen

    async def watched_listen() -> None:
        await listen()
        opened.set()

    engine._listen = watched_listen
    await engine.set_fault(FaultOrder("refuse", seconds=0.01))
    async with asyncio.timeout(5):
        await opened.wait()
    assert engine.fault is None


async def test_metrics_may_be_missing_or_nonsense_while_work_goes_on(start_engine, client):
    """404, 401 and HTML on /metrics; chats are answered."""
    engine = await start_engine()
    for kind, status in (("metrics_404", 404), ("metrics_401", 401), ("metrics_garbage", 200)):
        await engine.set_fault(FaultOrder(kind))
        async with client.get(engine.url + "/metrics") as response:
            assert response.status == status
            assert b"vllm:" not in await response.read()
        async with client.post(engine.url + CHAT, json=chat()) as response:
            assert response.status == 200


async def test_slow_metrics_are_metrics_all_the_same(start_engine, client):
    """After the delay the page is whole."""
    engine = await start_engine()
    await engine.set_fault(FaultOrder("slow_metrics", delay_s=0.001))
    async with client.get(engine.url + "/metrics") as response:
        assert "vllm:num_requests_running" in await response.text()


async def test_metrics_may_know_nothing_of_the_kv_cache(start_engine, client):
    """Every other line is there."""
    engine = await start_engine()
    pages = []
    for order in (None, FaultOrder("no_kv_gauge")):
        await engine.set_fault(order)
        async with client.get(engine.url + "/metrics") as response:
            pages.append((await response.text()).splitlines())
    left_out = [line for line in pages[0] if "kv_cache_usage_perc" in line]
    assert len(left_out) == 3
    assert [line for line in pages[0] if line not in left_out] == pages[1]


@pytest.mark.parametrize("path", ["/health", "/metrics", "/v1/models"])
async def test_pages_may_hang_while_work_goes_on(path, start_engine, client):
    """The page gets no byte, and a chat is answered meanwhile."""
    engine = await start_engine(fault="hang_pages")
    page = asyncio.create_task(client.get(engine.url + path))
    async with client.post(engine.url + CHAT, json=chat()) as response:
        assert response.status == 200
        await response.read()
    assert not page.done()
    page.cancel()


@pytest.mark.parametrize(
    ("body", "tokens"), [({"model": "nobody's"}, 8), ({"model": "tiny", "max_tokens": 0}, 1), ({}, 8)]
)
async def test_an_engine_may_check_nothing(body, tokens, start_engine, client):
    """An unknown model is answered by the only one, a limit of no tokens with one."""
    engine = await start_engine(fault="unchecked")
    async with client.post(engine.url + CHAT, json={**chat(), **body}) as response:
        assert response.status == 200
        answer = await response.json()
    assert answer["model"] == "tiny"
    assert answer["usage"]["completion_tokens"] == tokens


async def test_headers_may_wait_for_the_first_token(start_engine, client):
    """No byte while the slot is another's, though a healthy engine has sent its headers; then the whole stream."""
    engine = await start_engine(batching=EngineModel(max_num_seqs=1, speed=50.0, max_model_len=2048))
    async with client.post(engine.url + CHAT, json=chat(2000, stream=True)) as running:
        async with client.post(engine.url + CHAT, json=chat(stream=True)) as healthy:
            assert healthy.status == 200
        await engine.set_fault(FaultOrder("late_headers"))
        watch = Watch(engine)
        late = await RawRequest.post(engine.url, chat(8, stream=True))
        await watch.submitted.wait()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(late.reader.readuntil(b"\r\n\r\n"), 0.2)
        running.close()
    async with asyncio.timeout(5):
        received = await late.stream()
    assert tokens_in(received) == 8
    assert received.count(b"data: [DONE]") == 1


async def test_a_full_engine_whose_headers_are_late_refuses_with_a_status(start_engine, client):
    """503, since no 200 has left."""
    engine = await start_engine(batching=EngineModel(max_num_seqs=1, queue_limit=1, speed=0.001), fault="late_headers")
    asked = [asyncio.create_task(client.post(engine.url + CHAT, json=chat(stream=True))) for _ in range(3)]
    done, waiting = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED, timeout=5)
    assert [task.result().status for task in done] == [503]
    for task in waiting:
        task.cancel()


async def test_a_client_that_left_may_be_noticed_late(start_engine, client):
    """The sequence of a plain request runs on for a second after its connection has ended."""
    engine = await start_engine(batching=FROZEN, fault="late_abort")
    watch = Watch(engine)
    began_s = asyncio.get_running_loop().time()
    request = asyncio.create_task(client.post(engine.url + CHAT, json=chat()))
    await watch.submitted.wait()
    request.cancel()
    async with asyncio.timeout(5):
        await watch.dropped.wait()
    assert asyncio.get_running_loop().time() - began_s >= 1.0
    assert engine.steps.batcher.running + engine.steps.batcher.waiting == 0


async def test_faults_are_switched_over_http(start_engine, client):
    """Set, shown, counted down, cleared, and refused when unknown."""
    engine = await start_engine()
    url = engine.url + "/fault"
    async with client.post(url, json={"kind": "error_500", "count": 2}) as response:
        assert (await response.json())["count"] == 2
    statuses = []
    for _ in range(3):
        async with client.post(engine.url + CHAT, json=chat()) as response:
            statuses.append(response.status)
    assert statuses == [500, 500, 200]
    async with client.post(url, json={"kind": "hang"}), client.delete(url), client.get(url) as response:
        assert await response.json() is None
    async with client.post(url, json={"kind": "nonsense"}) as response:
        assert response.status == 400
        assert "allowed are refuse" in (await response.json())["detail"]


def test_a_count_is_used_up_by_the_requests_in_scope():
    """A fault of work spares /health and the metrics, and they use nothing up."""
    switch = FaultSwitch(FaultOrder("hang_work", count=1))
    assert switch.take("GET", "/health") is None
    assert switch.take("GET", "/v1/models") is None
    assert switch.take("POST", "/v1/responses").kind == "hang_work"
    assert switch.take("POST", "/v1/responses") is None


def test_nothing_keeps_the_way_back_shut():
    """Whatever hangs, /fault answers."""
    assert FaultSwitch(FaultOrder("hang")).take("DELETE", "/fault") is None


@pytest.mark.parametrize("text", ["nonsense", "hang,count=0", "hang,count=x", "hang,color=red"])
def test_a_wrong_fault_is_refused_before_the_engine_starts(text):
    """Unknown kinds and settings, and counts below one."""
    with pytest.raises(ValueError, match=r"fault is|Expected|unknown field"):
        EngineConfig(fault=text)


def test_every_row_can_be_ordered_by_name():
    """Table and parser agree, and a fault on arrival without a canned answer is one that is carried out."""
    for kind, fault in FAULTS.items():
        assert parse_fault(kind).fault is fault
    carried_out = {kind for kind, fault in FAULTS.items() if fault.stage is Stage.ARRIVAL and fault.answer is None}
    assert carried_out == {"close", "hang", "hang_work", "garbage_bytes", "slow_metrics", "hang_pages"}
