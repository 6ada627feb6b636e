import re

import pytest

from tests.processes.fleet import Fleet

pytestmark = pytest.mark.processes

CHAT = {"model": "sim", "messages": [{"role": "user", "content": "Count to ten – quickly"}], "max_tokens": 12}
COMPLETION = {"model": "sim", "prompt": "One, two", "max_tokens": 12}
RESPONSE = {"model": "sim", "input": "One, two", "max_output_tokens": 12}
USAGE = {"stream_options": {"include_usage": True}}
NO_USAGE = {"stream_options": {"include_usage": False}}

#: What differs from one answer to the next, however it is asked for: the moment, and ids that an engine draws.
MOMENTS = re.compile(rb'"(created|created_at|completed_at)":[0-9.]+|"msg_[0-9a-f]+"')

USAGE_EVENT = re.compile(rb'data: \{[^\n]*"choices":\[\],"usage":[^\n]*\n\n')
FINGERPRINT = re.compile(rb',"system_fingerprint":"[^"]*"')


@pytest.fixture(scope="module")
def fleet(start_fleet) -> Fleet:
    """Give one instance, whose engine can be asked directly too, and one replica."""
    return start_fleet(engines=1, replicas=1, engine=["--speed", "20", "--seed", "11"])


async def both(http, fleet: Fleet, path: str, body: object) -> tuple[tuple, tuple]:
    """Status, content type and bytes of the same request asked of the engine and of the gateway."""
    answers = []
    for origin in (fleet.engines[0].url, fleet.replicas[0].url):
        async with http.post(f"{origin}{path}", json=body, headers={"x-request-id": "same-id"}) as answer:
            content = MOMENTS.sub(b"<moment>", await answer.read())
            answers.append((answer.status, answer.headers["content-type"], content))
    return answers[0], answers[1]


@pytest.mark.parametrize("extra", [USAGE, NO_USAGE], ids=["usage", "no usage"])
@pytest.mark.parametrize(("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION)])
async def test_a_stream_is_the_engines_own_byte_for_byte(http, fleet, path, body, extra):
    """A stream has the engine's bytes, with the usage event exactly where the client asked for it."""
    direct, through = await both(http, fleet, path, {**body, "stream": True, **extra})
    assert through == direct
    assert direct[0] == 200
    assert direct[2].endswith(b"data: [DONE]\n\n")
    assert (b'"choices":[],"usage":{' in direct[2]) is (extra is USAGE)


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize(("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION)])
async def test_the_usage_that_only_the_gateway_asked_for_is_not_seen(http, fleet, path, body, n):
    """Who says nothing of the usage gets the engine's stream without that one event, all other bytes untouched."""
    asked = {**body, "stream": True, "n": n, "max_tokens": 100}
    unasked_direct, through = await both(http, fleet, path, asked)
    with_usage, _ = await both(http, fleet, path, {**asked, **USAGE})
    assert through[2] == USAGE_EVENT.sub(b"", with_usage[2])
    assert through[2].count(b"data: ") > 100 * n
    # vLLM writes its fingerprint into the last event, so it leaves with the event that is taken out.
    assert through[2] == FINGERPRINT.sub(b"", unasked_direct[2])


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT),
        ("/v1/chat/completions", {**CHAT, "n": 3}),
        ("/v1/completions", COMPLETION),
        ("/v1/embeddings", {"model": "sim", "input": ["a", "b"]}),
        ("/v1/responses", RESPONSE),
        ("/v1/responses", {**RESPONSE, "stream": True}),
        ("/v1/chat/completions", {**CHAT, "max_tokens": -1}),
        ("/v1/chat/completions", {**CHAT, "messages": "none"}),
        ("/v1/audio/speech", {"model": "sim"}),
    ],
)
async def test_any_other_answer_is_the_engines_own_byte_for_byte(http, fleet, path, body):
    """Plain answers, typed streams and the engine's own errors reach the client as the engine wrote them."""
    direct, through = await both(http, fleet, path, body)
    assert through == direct
