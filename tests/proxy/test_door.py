"""Who is let in at the API: keys, limits, and workers that may be dialled."""

import asyncio
import logging

import msgspec
import pytest

from bus.hop.headers import Priority, read_ticket
from bus.key_limits import Limits
from proxy.keys import line_of
from proxy.relay import HELD_ANSWER_BYTES
from tests.hop.scripted import Asked, Peer, head_of, until
from tests.proxy.conftest import BODY, CHAT, Fleet

USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":30,"completion_tokens":10}}\n\n'
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'
STREAM = b'{"model":"tiny","stream":true,"messages":[]}'


def plain(peer: Peer, _: Asked) -> None:
    """A worker that answers, and says what it counted."""
    peer.answer(b'{"usage":{"prompt_tokens":30,"completion_tokens":10}}')


@pytest.fixture
def keys(tmp_path):
    """Give a file of keys to write."""

    def write(priority: Priority = "high", **limits: Limits) -> str:
        path = tmp_path / "keys"
        path.write_text("\n".join(line_of(name, f"secret-{name}", limit, priority) for name, limit in limits.items()))
        return str(path)

    return write


def shows(name: str) -> dict[str, str]:
    """Headers of a client with a key."""
    return {"authorization": f"Bearer secret-{name}"}


async def spent(fleet: Fleet) -> float:
    """Tokens that key a has spent, once its requests have ended."""
    assert fleet.replica is not None
    limiter = fleet.replica._door._limiter
    await until(lambda: not limiter._settling and not limiter._leases)
    return limiter._own._spent.get("a", (0.0,))[0]


def code(body: bytes) -> str:
    """Code of an error in OpenAI's shape."""
    error = msgspec.json.decode(body)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return str(error["code"])


async def test_without_a_key_or_with_a_wrong_one_nothing_is_served(fleet, keys, caplog):
    """401 on every path of the API, no worker sees it, each kind is logged once and all are counted."""
    await fleet.worker("a", plain)
    await fleet.start(api_keys=keys(a=Limits()))
    with caplog.at_level(logging.WARNING, "forebay.proxy"):
        for headers in ({}, {"authorization": "Bearer secret-"}, {"authorization": "Basic secret-a"}):
            for path, method in ((CHAT, "POST"), ("/v1/models", "GET"), ("/nothing", "GET")):
                caller = await fleet.ask(BODY, path=path, method=method, **headers)
                status, body = await caller.answer()
                assert (status, code(body), caller.headers["www-authenticate"]) == (401, "invalid_api_key", "Bearer")
    assert not fleet.workers["a"].asked
    assert fleet.replica._door.refusals == {"no_key": 6, "wrong_key": 3}
    assert len(caplog.records) == 2
    assert "secret-" not in caplog.text
    assert {line.status for line in fleet.lines} == {401}


async def test_with_a_key_a_client_is_served_and_the_key_ends_here(fleet, keys):
    """The log names the key; the worker never sees it."""
    await fleet.worker("a", plain)
    await fleet.start(api_keys=keys(a=Limits()))
    assert (await (await fleet.ask(**shows("a"))).answer())[0] == 200
    assert fleet.lines[-1].key == "a"
    assert "authorization" not in fleet.workers["a"].asked[0].headers


@pytest.mark.parametrize(
    ("wish", "priority"), [({"x_forebay_priority": "high"}, "low"), ({}, "low"), ({"x_forebay_priority": "low"}, "low")]
)
async def test_a_wish_reaches_no_further_than_the_key(fleet, keys, wish, priority):
    """Who may only fill what others leave does not step before them by a header."""
    await fleet.worker("a", plain)
    await fleet.start(api_keys=keys("low", a=Limits()))
    await (await fleet.ask(**shows("a"), **wish)).answer()
    assert read_ticket(fleet.workers["a"].asked[0].headers["x-forebay-reservation"]).priority == priority


async def test_authorization_is_sent_on_where_that_is_configured(fleet):
    """For engines that know the clients themselves."""
    await fleet.worker("a", plain)
    await fleet.start(forward_authorization=True)
    await (await fleet.ask(**shows("a"))).answer()
    assert fleet.workers["a"].asked[0].headers["authorization"] == "Bearer secret-a"


async def test_health_and_ready_need_no_key(fleet, keys):
    """Balancers have none."""
    await fleet.worker("a", plain)
    await fleet.start(api_keys=keys(a=Limits()))
    assert (await fleet.get("/health"))[0] == (await fleet.get("/ready"))[0] == 200


async def test_a_changed_file_is_in_force_without_a_restart(fleet, keys):
    """The new key is good, the old one is not."""
    await fleet.worker("a", plain)
    await fleet.start(api_keys=keys(a=Limits()))
    keys(b=Limits())
    await until(lambda: [key.name for key in fleet.replica._door._file.keys] == ["b"])
    assert await (await fleet.ask(**shows("a"))).head() == 401
    assert await (await fleet.ask(**shows("b"))).head() == 200


async def test_an_emptied_file_lets_nobody_in(fleet, keys):
    """So the last key is revoked."""
    await fleet.worker("a", plain)
    await fleet.start(api_keys=keys(a=Limits()))
    keys()
    await until(lambda: not fleet.replica._door._file.keys)
    assert await (await fleet.ask(**shows("a"))).head() == 401
    assert await (await fleet.ask()).head() == 401


async def test_a_client_above_its_requests_at_once_is_a_429_and_others_are_not(fleet, keys, caplog):
    """Whatever the way a request ends, its place is free then."""
    release = asyncio.Event()

    async def wait(peer: Peer, _: Asked) -> None:
        await release.wait()
        peer.answer(b"{}")

    await fleet.worker("a", wait)
    await fleet.start(api_keys=keys(a=Limits(inflight=2), b=Limits(inflight=2)))
    first, second = [await fleet.ask(**shows("a")) for _ in range(2)]
    await until(lambda: len(fleet.workers["a"].asked) == 2)
    with caplog.at_level(logging.WARNING, "forebay.proxy"):
        for _ in range(3):
            third = await fleet.ask(**shows("a"))
            status, body = await third.answer()
            assert (status, code(body), third.headers["retry-after"]) == (429, "rate_limit_exceeded", "1")
    assert len(caplog.records) == 1
    assert fleet.replica._door.refusals == {"inflight": 3}
    other = await fleet.ask(**shows("b"))
    first.leave()
    await until(lambda: fleet.replica._door._limiter._own.inflight("a") == 1)
    await until(lambda: not fleet.replica._door._limiter._settling)
    third = await fleet.ask(**shows("a"))
    await until(lambda: len(fleet.workers["a"].asked) == 4)
    release.set()
    assert [await caller.head() for caller in (second, other, third)] == [200, 200, 200]


async def test_bodies_that_are_still_to_come_count_as_requests_at_once(fleet, keys):
    """Half a body holds memory as a whole one does; when it has come, or its client has gone, the place is free."""
    await fleet.worker("a", plain)
    await fleet.start(api_keys=keys(a=Limits(inflight=2)))
    half = [await fleet.callers.dial(fleet.url) for _ in range(2)]
    for caller in half:
        caller.say(head_of("POST", CHAT, len(BODY), shows("a")) + BODY[:10])
    await until(lambda: fleet.replica._door._receiving == {"a": 2})
    third = await fleet.ask(**shows("a"))
    status, body = await third.answer()
    assert (status, code(body), third.headers["retry-after"]) == (429, "rate_limit_exceeded", "1")
    half[0].leave()
    await until(lambda: fleet.replica._door._receiving == {"a": 1})
    assert await (await fleet.ask(**shows("a"))).head() == 200
    half[1].say(BODY[10:])
    assert await half[1].head() == 200
    assert not fleet.replica._door._receiving


async def test_tokens_a_minute_are_those_that_the_engine_counted(fleet, keys):
    """An estimate lets a request in; its usage is what it costs, and with no answer it costs nothing."""
    await fleet.worker("a", plain)
    await fleet.start(api_keys=keys(a=Limits(tokens_per_minute=100)))

    async def status(model: str, output_cap: int) -> int:
        body = msgspec.json.encode({"model": model, "max_tokens": output_cap, "messages": []})
        found = await (await fleet.ask(body, **shows("a"))).head()
        await until(lambda: not fleet.replica._door._limiter._leases and not fleet.replica._door._limiter._settling)
        return found

    assert await status("tiny", 95) == 200  # 40 tokens, whatever it might have had
    assert await status("tiny", 95) == 429
    assert await status("other", 40) == 404
    assert await status("tiny", 40) == 200
    assert await status("tiny", 60) == 429


async def test_the_usage_of_a_stream_is_asked_for_and_kept_from_who_did_not(fleet, keys):
    """The client of a key that is limited in tokens sees the stream it has asked for."""

    def stream(peer: Peer, _: Asked) -> None:
        peer.start_stream(EVENT, USAGE, b"data: [DONE]\n\n", b"")

    worker = await fleet.worker("a", stream)
    await fleet.start(api_keys=keys(a=Limits(tokens_per_minute=1000)))
    status, body = await (await fleet.ask(STREAM, **shows("a"))).answer()
    assert (status, body) == (200, EVENT + b"data: [DONE]\n\n")
    assert b'"include_usage":true' in worker.asked[0].body
    assert 39 <= await spent(fleet) <= 40
    asked = STREAM.replace(b"}", b',"stream_options":{"include_usage":true}}')
    assert await (await fleet.ask(asked, **shows("a"))).answer() == (200, EVENT + USAGE + b"data: [DONE]\n\n")


@pytest.mark.parametrize(
    "more",
    [
        b',"stream_options":{"include_usage":false}}',
        b',"stream_options":{"include_usage":true},"stream_options":{"include_usage":false}}',
        b',"stream_options":{}}',
        b',"stream_options":null}',
        b',"stream\\u005foptions":null}',
        b',"stream_options":"none"} ',
    ],
)
@pytest.mark.parametrize("before", [b"", b" \n"])
async def test_nobody_talks_an_engine_out_of_the_usage_of_a_limited_key(fleet, keys, more, before):
    """Whatever a body says of it, the engine reads that it is asked for, and the client does not see the answer."""

    def stream(peer: Peer, asked: Asked) -> None:
        wanted = (msgspec.json.decode(asked.body)["stream_options"] or {}).get("include_usage")
        peer.start_stream(EVENT, *[USAGE] * (wanted is True), b"data: [DONE]\n\n", b"")

    worker = await fleet.worker("a", stream)
    await fleet.start(api_keys=keys(a=Limits(tokens_per_minute=1000)))
    caller = await fleet.ask(before + STREAM.replace(b"}", more), **shows("a"))
    assert await caller.answer() == (200, EVENT + b"data: [DONE]\n\n")
    assert worker.asked[0].body.count(b"stream_options") == 1
    assert 39 <= await spent(fleet) <= 40


PIECE = b'{"choices":["%b"],"usage":{"prompt_tokens":30,"prompt_tokens_details":{},"completion_tokens":70},"id":1}'
LARGE = HELD_ANSWER_BYTES + 100_000


@pytest.mark.parametrize(
    ("answer", "kind", "tokens"),
    [
        (PIECE % (b"x" * LARGE), "application/json", 100),
        (b'{"choices":["%b",{"usage" : {}}]}' % (rb"\"usage\":{}" * (LARGE // 12)), "application/json", LARGE // 4),
        (b"RIFF" + b"\0" * LARGE, "audio/wav", 3),
    ],
    ids=["usage", "no usage", "sound"],
)
async def test_an_answer_too_large_to_be_held_costs_what_it_says_at_its_end(fleet, keys, answer, kind, tokens):
    """Else what its text may have, if it is one."""
    await fleet.worker("a", lambda peer, _: peer.answer(answer, kind=kind))
    await fleet.start(api_keys=keys(a=Limits(tokens_per_minute=1000)))
    assert await (await fleet.ask(**shows("a"))).answer() == (200, answer)
    assert tokens * 0.95 - 12 <= await spent(fleet) <= tokens * 1.05 + 20


@pytest.mark.parametrize("has_end", [True, False], ids=["no usage", "client leaves"])
async def test_what_nobody_counted_costs_what_was_seen(fleet, keys, has_end):
    """An engine that tells no usage, and a client that leaves before it does: neither is a way around the limit."""
    events = 60

    async def stream(peer: Peer, _: Asked) -> None:
        peer.start_stream(*[EVENT] * events)
        if has_end:
            peer.chunk(b"data: [DONE]\n\n")
            peer.chunk(b"")
        await peer.gone()

    await fleet.worker("a", stream)
    await fleet.start(api_keys=keys(a=Limits(tokens_per_minute=1000)))
    caller = await fleet.ask(STREAM.replace(b"}", b',"max_tokens":5}'), **shows("a"))
    if has_end:
        await caller.answer()
    else:
        await caller.head()
        seen = b""
        while len(seen) < len(EVENT) * events:
            seen += await caller.piece()
        caller.leave()
    assert events - 5 <= await spent(fleet) <= events + 20


async def test_while_the_bus_is_silent_a_replica_counts_alone(fleet, keys, caplog):
    """Limits hold as far as one replica knows, nothing fails for them, and it is said once."""
    await fleet.worker("a", plain)
    await fleet.start(api_keys=keys(a=Limits(tokens_per_minute=100)))
    fleet.bus.fall_silent()
    with caplog.at_level(logging.WARNING, "forebay.proxy"):
        statuses = [await (await fleet.ask(**shows("a"))).head() for _ in range(4)]
    assert statuses == [200, 200, 200, 429]
    assert [r.message for r in caplog.records if "counts alone" in r.message] != []
    assert len([r for r in caplog.records if "limits of API keys" in r.message]) == 1
    fleet.bus.speak_again()


async def test_a_registration_that_points_outside_is_no_candidate(fleet, caplog):
    """It is logged once and counted once; the models it claims are not served."""
    forged = await fleet.worker("evil", plain, models=("tiny", "stolen"), inflight=0)
    forged.registration = msgspec.structs.replace(forged.registration, worker_url="http://203.0.113.9:80")
    forged.publisher.announce()
    await forged.publisher.publish_now()
    await fleet.worker("a", plain, inflight=9)
    with caplog.at_level(logging.WARNING, "forebay.proxy"):
        await fleet.start()
        for _ in range(5):
            caller = await fleet.ask()
            assert await caller.head() == 200
            assert caller.headers["x-forebay-instance"] == "a"
        assert await (await fleet.ask(b'{"model":"stolen"}')).head() == 404
        replica = fleet.replica
        await until(lambda: replica._readers[0].reads > 8)
    loads = await fleet.admin("/debug/instance_loads")
    assert [one["id"] for one in loads["instances"]] == ["a"]
    assert len([record for record in caplog.records if "203.0.113.9" in record.message]) == 1
    caller = await fleet.callers.ask(f"http://127.0.0.1:{replica.admin_port}", "/metrics", method="GET")
    assert b"forebay_refused_workers_total 1.0" in (await caller.answer())[1]


async def test_the_admin_pages_may_need_a_key(fleet, tmp_path):
    """All but health and readiness, also where they are served on the API's port."""
    (tmp_path / "admin").write_text("an-admin-key-0815\n")
    await fleet.worker("a", plain)
    await fleet.start(admin_key_file=str(tmp_path / "admin"), debug_on_main_port=True)
    for url in (fleet.url, f"http://127.0.0.1:{fleet.replica.admin_port}"):
        for path, open_to_all in (
            ("/health", True),
            ("/ready", True),
            ("/metrics", False),
            ("/debug/selections", False),
        ):
            for shown, is_right in (("", False), ("Bearer wrong", False), ("Bearer an-admin-key-0815", True)):
                headers = {"authorization": shown} if shown else {}
                caller = await fleet.callers.ask(url, path, method="GET", headers=headers)
                assert await caller.head() == (200 if open_to_all or is_right else 401), (path, shown)


@pytest.mark.parametrize("content", [None, "", "short\n", "has a blank in it\n", "zu kurz wäre es nicht\n"])
async def test_a_secret_that_is_none_stops_the_start(fleet, tmp_path, content):
    """A guard that guards nothing must not look like one."""
    from bus.hop.secrets import SecretUnusable

    if content is not None:
        (tmp_path / "secret").write_text(content)
    for option in ("secret_file", "admin_key_file"):
        with pytest.raises(SecretUnusable, match="secret"):
            await fleet.start(**{option: str(tmp_path / "secret")})


async def test_the_secret_goes_to_workers_and_not_what_a_client_sends_for_it(fleet, tmp_path):
    """With every request, once."""
    (tmp_path / "secret").write_text("proxies-know-this-one\n")
    worker = await fleet.worker("a", plain)
    await fleet.start(secret_file=str(tmp_path / "secret"))
    await (await fleet.ask(**{"x-forebay-secret": "a-guess-of-a-client"})).answer()
    assert [value for name, value in worker.asked[0].pairs if name.lower() == "x-forebay-secret"] == [
        "proxies-know-this-one"
    ]
