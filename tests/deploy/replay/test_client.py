import asyncio
import socket
from time import perf_counter

import pytest

from deploy.replay.client import ReplayClient, Target
from tests.deploy.replay.conftest import DONE, ERROR, FINISH, HEAD, LAST, ROLE, USAGE, WORD, chunk, stream_well

BODY = b'{"model":"m"}'


async def outcomes_of(*urls, count=1, timeout_s=10.0, stream=True):
    """Send `count` requests one after the other; return their outcomes."""
    outcomes = []
    client = ReplayClient([Target(url) for url in urls], outcomes.append, timeout_s=timeout_s, stream=stream)
    try:
        for _ in range(count):
            client.start(BODY, due_s=perf_counter())
            await client.drained()
    finally:
        await client.close()
    assert client.in_flight == 0
    return outcomes


async def failure_of(server, **options):
    """The error of one request to a server, and its detail."""
    (outcome,) = await outcomes_of(server.url, **options)
    assert outcome.failure is not None
    return outcome.failure


async def test_healthy_stream_is_measured(server):
    """A good stream has TTFT, TPOT, E2E, the tokens of its usage and the instance that answered."""
    (outcome,) = await outcomes_of(server.url)
    assert outcome.failure is None
    assert 0 < outcome.ttft_s <= outcome.e2e_s
    assert outcome.tpot_s == pytest.approx((outcome.e2e_s - outcome.ttft_s) / 2)
    assert (outcome.prompt_tokens, outcome.output_tokens, outcome.instance) == (7, 3, "e1")
    assert server.bodies == [BODY]


async def test_connection_is_used_again(server):
    """Requests that follow one another share a connection."""
    outcomes = await outcomes_of(server.url, count=5)
    assert [outcome.failure for outcome in outcomes] == [None] * 5
    assert server.connections == 1


async def test_targets_take_turns(server):
    """Two targets get every other request."""
    async with type(server)().listening() as second:
        await outcomes_of(server.url, second.url + "/v1/", count=4)
        assert (len(server.bodies), len(second.bodies)) == (2, 2)


async def test_broken_stream_is_an_error(server):
    """A connection that ends in mid-stream is an error, though content had come."""

    async def break_off(writer, _body, _number):
        writer.write(HEAD + chunk(ROLE) + chunk(WORD))
        writer.close()

    server.answer = break_off
    assert (await failure_of(server)).kind == "broken stream"


async def test_reset_is_an_error(server):
    """A reset before the answer is an error on a fresh connection, with no second try."""

    async def reset(writer, _body, _number):
        writer.transport.abort()

    server.answer = reset
    failure = await failure_of(server)
    assert (failure.kind, failure.detail) == ("broken stream", "no answer began")
    assert len(server.bodies) == 1


async def test_truncated_body_with_a_length_is_an_error(server):
    """A close before the announced length is a broken answer, `Connection: close` or not."""

    async def truncate(writer, _body, _number):
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 9999\r\n\r\n" + ROLE + WORD + FINISH)
        writer.close()

    server.answer = truncate
    assert (await failure_of(server)).kind == "broken stream"


async def test_body_that_ends_with_the_connection_is_whole(server):
    """Without any length the close is the end of the body, as HTTP has it."""

    async def until_close(writer, _body, _number):
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + ROLE + WORD + FINISH + USAGE + DONE)
        writer.close()

    server.answer = until_close
    (outcome,) = await outcomes_of(server.url)
    assert (outcome.failure, outcome.output_tokens) == (None, 3)


async def test_error_event_in_a_good_status_is_an_error(server):
    """A 200 whose stream carries an error and then `[DONE]` is an error."""

    async def err(writer, _body, _number):
        writer.write(HEAD + chunk(ROLE) + chunk(WORD) + chunk(ERROR) + chunk(DONE) + LAST)

    server.answer = err
    failure = await failure_of(server)
    assert (failure.kind, failure.detail) == ("error event", "engine core died")


async def test_stream_without_finish_is_an_error(server):
    """A stream that ends in order, but without a finish_reason, is an error."""

    async def end_early(writer, _body, _number):
        writer.write(HEAD + chunk(ROLE) + chunk(WORD) + chunk(DONE) + LAST)

    server.answer = end_early
    assert (await failure_of(server)).kind == "no finish_reason"


async def test_status_is_the_class_of_the_error(server):
    """Any status but 200 is an error named by it, with the body's beginning on one line."""

    async def busy(writer, _body, _number):
        writer.write(b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 13\r\n\r\nqueue\n   full")

    server.answer = busy
    failure = await failure_of(server)
    assert (failure.kind, failure.detail) == ("status 429", "queue full")


async def test_hanging_server_times_out(server):
    """A request that is not over in time is a timeout that says how far it came."""

    async def hang(writer, _body, _number):
        writer.write(HEAD + chunk(ROLE))
        await asyncio.Event().wait()

    server.answer = hang
    failure = await failure_of(server, timeout_s=0.05)
    assert failure.kind == "timeout"


async def test_nobody_listening_is_a_connect_error():
    """A refused connection is an error of its own class."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        (outcome,) = await outcomes_of(f"http://127.0.0.1:{taken.getsockname()[1]}")
    assert outcome.failure.kind == "connect"


async def test_a_host_that_is_no_name_is_a_connect_error():
    """Names that cannot even be looked up fail at once, as those that nobody knows."""
    (outcome,) = await outcomes_of("http://a..b:1", timeout_s=5.0)
    assert outcome.failure.kind == "connect"


async def test_rubbish_is_a_broken_stream(server):
    """What is not HTTP/1.1 ends the request at once."""

    async def rubbish(writer, _body, _number):
        writer.write(b"\x00\x01\x02 hello\r\n\r\n")

    server.answer = rubbish
    assert (await failure_of(server)).kind == "broken stream"


async def test_idle_connection_closed_meanwhile_is_no_error(server):
    """A keep-alive limit that crosses with the next request is tried again on a fresh connection, once."""

    async def close_on_second(writer, body, number):
        if number == 1:
            writer.transport.abort()
        else:
            await stream_well(writer, body, number)

    server.answer = close_on_second
    outcomes = await outcomes_of(server.url, count=2)
    assert [outcome.failure for outcome in outcomes] == [None, None]
    assert (server.connections, len(server.bodies)) == (2, 3)


async def test_plain_answer_has_no_ttft(server):
    """A plain answer is counted by its usage; its first token is unknown."""

    async def answer(writer, _body, _number):
        body = b'{"choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":4,"completion_tokens":2}}'
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    server.answer = answer
    (outcome,) = await outcomes_of(server.url, stream=False)
    assert (outcome.failure, outcome.ttft_s, outcome.tpot_s, outcome.output_tokens) == (None, None, None, 2)


async def test_close_abandons_what_runs(server):
    """Closing ends connecting and running requests without reporting them, and leaves nothing open."""

    async def hang(_writer, _body, _number):
        await asyncio.Event().wait()

    server.answer = hang
    outcomes = []
    client = ReplayClient([Target(server.url)], outcomes.append, timeout_s=10)
    client.start(BODY, due_s=perf_counter())
    await server.received(1)
    client.start(BODY, due_s=perf_counter())
    await client.close()
    assert outcomes == []
    assert client.in_flight == 2


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://a", "http://", "http://a:99999", "http://a:x"])
def test_bad_target_is_refused(url):
    """What cannot be a server's URL is refused before anything starts."""
    with pytest.raises(ValueError):  # noqa: PT011 - urllib's own messages name the port
        Target(url)
