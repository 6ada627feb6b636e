import asyncio

import pytest

from tests.processes.fleet import Fleet, Replica, fetch, until
from tests.processes.test_streams import MOMENTS

pytestmark = pytest.mark.processes

CHAT = {"model": "sim", "messages": [{"role": "user", "content": "What runs a turbine?"}], "max_tokens": 6}
STREAM = {**CHAT, "stream": True}
DONE = b"data: [DONE]\n\n"
PATH = "/v1/chat/completions"

#: What an engine does before its first event; of the last three it is only known that time goes by.
EARLY = [
    "refused_in_stream",
    "error_500",
    "shutdown_500",
    "busy_503",
    "loading_503",
    "text_500",
    "object_500",
    "html_502",
    "garbage_bytes",
    "close",
    "refuse",
    "stop_undrained",
    "hang_work",
    "hang_after_headers",
    "hang",
]


#: Faults under which nobody can connect, not even to switch them off, and how long they last.
CLOSED_S = {"refuse": 1.0, "stop_undrained": 1.0}


@pytest.fixture(scope="module")
def running(start_fleet) -> Fleet:
    """Give two instances whose workers are impatient, and two replicas that ask both in turn, well or not."""
    worker = ["--first-event-timeout-s", "0.4", "--silence-timeout-s", "0.4", "--scrape-interval-ms", "100"]
    return start_fleet(engine=["--speed", "20"], worker=worker, replica=["--strategy", "round_robin"])


@pytest.fixture
def fleet(running):
    """Give the fleet with healthy engines that all replicas trust, before and after."""
    yield running
    for engine in running.engines:
        engine.heal()
    running.wait_until_idle()
    running.wait()
    for replica in running.replicas:
        until(lambda replica=replica: is_trusted(replica), f"{replica.name} lets every instance back")


def is_trusted(replica: Replica) -> bool:
    """Send a request and say whether every instance is in rotation, without a failure held against it."""
    assert fetch(f"{replica.url}{PATH}", body=CHAT)[0] == 200
    return sum(each["is_ejected"] for each in replica.loads().values()) == 0 and answered_by(replica) == {"i1", "i2"}


def answered_by(replica: Replica) -> set[str]:
    """Give the instances of the last requests that one has answered."""
    return set([line["instance"] for line in replica.lines() if "instance" in line][-2:])


async def ask(http, fleet: Fleet, body: object, replica: int = 0) -> tuple[int, bytes, str | None]:
    """Status, bytes and instance of an answer."""
    async with http.post(f"{fleet.replicas[replica].url}{PATH}", json=body) as answer:
        return answer.status, await answer.read(), answer.headers.get("x-forebay-instance")


def retries(fleet: Fleet) -> float:
    """Requests that replicas have sent to another instance."""
    return sum(replica.metric("forebay_retries_total") for replica in fleet.replicas)


@pytest.mark.parametrize("kind", EARLY)
async def test_what_fails_before_its_first_event_is_answered_elsewhere(http, fleet, kind):
    """An instance that refuses, breaks, lies or hangs costs no request as long as another one is well."""
    before = retries(fleet)
    fleet.engines[0].fault(kind, **({"seconds": CLOSED_S[kind]} if kind in CLOSED_S else {}))
    answers = await asyncio.gather(
        *(ask(http, fleet, body, replica) for body in (STREAM, CHAT) for replica in (0, 1) for _ in range(3))
    )
    assert [(status, instance) for status, _, instance in answers] == [(200, "i2")] * 12
    assert all(body.endswith(DONE) for _, body, _ in answers[:6])
    assert all(b'"completion_tokens":6' in body for _, body, _ in answers[6:])
    assert retries(fleet) > before


async def to_the_broken(http, fleet: Fleet, body: object) -> bytes:
    """Answer of the first instance: asked until the choice falls on it."""
    for _ in range(20):
        status, content, instance = await ask(http, fleet, body)
        assert status == 200
        if instance == "i1":
            return content
    raise AssertionError("the choice never fell on i1")


@pytest.mark.parametrize("kind", ["reset_mid_stream", "close_mid_stream", "silent_mid_stream"])
async def test_a_stream_that_breaks_ends_with_an_error_event(http, fleet, kind):
    """What had come stays, an error event follows, and nothing is forged: no finish, no [DONE]."""
    fleet.engines[0].fault(kind, after_tokens=3)
    *events, error, end = (await to_the_broken(http, fleet, STREAM)).split(b"\n\n")
    assert end == b""
    assert len(events) >= 3
    assert all(b'"finish_reason":null' in event for event in events)
    assert error.startswith(b'data: {"error":{')
    assert (b"engine_silent" if kind == "silent_mid_stream" else b"engine_broke_off") in error


async def test_an_engine_that_stops_undrained_holds_up_its_own_streams_only(http, fleet):
    """The stream that it leaves in silence ends with an error event; whoever comes meanwhile is answered elsewhere."""
    broken: list[bytes] = []

    async def long_streams() -> None:
        asked = [ask(http, fleet, {**STREAM, "max_tokens": 2000}) for _ in range(2)]
        broken.extend(body for _, body, instance in await asyncio.gather(*asked) if instance == "i1")

    streams = asyncio.create_task(long_streams())
    await asyncio.to_thread(until, lambda: fleet.engines[0].running() > 0, "a stream runs on i1")
    fleet.engines[0].fault("stop_undrained", seconds=3.0)
    answers = await asyncio.gather(*(ask(http, fleet, CHAT, replica) for replica in (0, 1) for _ in range(4)))
    assert [(status, instance) for status, _, instance in answers] == [(200, "i2")] * 8
    await streams
    assert len(broken) == 1
    assert b"engine_silent" in broken[0].split(b"\n\n")[-2]
    assert b'"finish_reason":"' not in broken[0]


async def test_headers_that_come_late_change_nothing(http, fleet):
    """Both instances are asked in turn, and every answer is whole."""
    for engine in fleet.engines:
        engine.fault("late_headers")
    answers = [await ask(http, fleet, STREAM) for _ in range(6)]
    assert {(status, instance) for status, _, instance in answers} == {(200, "i1"), (200, "i2")}
    assert all(body.endswith(DONE) for _, body, _ in answers)


async def test_an_engine_that_goes_on_after_its_client_has_left_is_asked_meanwhile(http, fleet):
    """Plain requests whose clients leave occupy the engines for a second more; nobody else is lost by it."""
    for engine in fleet.engines:
        engine.fault("late_abort")
    left = [asyncio.create_task(ask(http, fleet, {**CHAT, "max_tokens": 2000}, replica)) for replica in (0, 1) * 2]
    await asyncio.to_thread(until, lambda: sum(engine.running() for engine in fleet.engines) == 4, "all run")
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    answers = [await ask(http, fleet, CHAT) for _ in range(4)]
    assert [status for status, _, _ in answers] == [200] * 4


async def test_a_model_that_no_engine_would_refuse_is_unknown_all_the_same(http, fleet):
    """The engines would answer any model; the gateway knows which ones they list."""
    for engine in fleet.engines:
        engine.fault("unchecked")
    asked = {**CHAT, "model": "nobody's"}
    async with http.post(f"{fleet.engines[0].url}{PATH}", json=asked) as direct:
        assert direct.status == 200
    status, body, instance = await ask(http, fleet, asked)
    assert (status, instance) == (404, None)
    assert b"nobody's" in body


@pytest.mark.parametrize("kind", ["error_mid_stream", "garbage_mid_stream", "cut_mid_stream", "no_done"])
async def test_what_an_engine_says_of_its_own_end_passes_byte_for_byte(http, fleet, kind):
    """An error before [DONE], nonsense, an end without [DONE]: the client gets what the engine wrote, and no more."""
    asked = {**STREAM, "stream_options": {"include_usage": False}}
    fleet.engines[0].fault(kind, after_tokens=3)
    through = await to_the_broken(http, fleet, asked)
    async with http.post(f"{fleet.engines[0].url}{PATH}", json=asked) as answer:
        direct = await answer.read()
    ids = [content.split(b'"id":"', 1)[1].split(b'"', 1)[0] for content in (through, direct)]
    through, direct = (
        MOMENTS.sub(b"", content.replace(name, b"")) for content, name in zip((through, direct), ids, strict=True)
    )
    assert through == direct
    assert direct.endswith(DONE) is (kind == "error_mid_stream")


async def test_a_plain_answer_that_breaks_is_answered_elsewhere(http, fleet):
    """Half a plain answer never reaches a client."""
    fleet.engines[0].fault("reset_mid_stream", after_tokens=3)
    answers = [await ask(http, fleet, CHAT) for _ in range(4)]
    assert [(status, instance) for status, _, instance in answers] == [(200, "i2")] * 4


async def test_with_every_engine_refusing_the_engines_own_words_are_the_answer(http, fleet):
    """Where there is no elsewhere the client gets what the engine said, status included."""
    for engine in fleet.engines:
        engine.fault("busy_503")
    status, body, instance = await ask(http, fleet, CHAT)
    assert (status, instance) in {(503, "i1"), (503, "i2")}
    assert b'"code":503' in body


@pytest.mark.parametrize("kind", ["metrics_404", "metrics_401", "no_kv_gauge", "hang_pages"])
async def test_what_an_engine_does_not_tell_costs_no_request(http, fleet, kind):
    """An engine whose pages are gone, or poor, keeps its share of the requests."""
    fleet.engines[0].fault(kind)
    answers = [await ask(http, fleet, CHAT) for _ in range(8)]
    assert {status for status, _, _ in answers} == {200}
    assert {instance for _, _, instance in answers} == {"i1", "i2"}
