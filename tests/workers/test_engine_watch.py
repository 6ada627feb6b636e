"""What a worker learns of its engine from outside, and what no page of an engine can do to it."""

import logging
from collections.abc import Callable

import pytest

from tests.hop.scripted import Asked, Peer, repeat, until
from tests.workers.conftest import engine_script
from workers.engines import EngineLoad
from workers.timeline import Stage


async def nothing(peer: Peer, _: Asked) -> None:
    """An engine that takes requests and says nothing."""
    await peer.gone()


PAGE = b"vllm:num_requests_running 5.0\nvllm:num_requests_waiting 2.0\nvllm:kv_cache_usage_perc 0.5\n"


async def test_kind_models_and_load_are_learned_and_published(site):
    """The registration names the models; requests that are not ours hold slots."""
    one = await site(nothing, metrics=PAGE)
    watch = one.instance.watch
    await until(lambda: watch.load.running is not None and watch.models)
    assert (watch.adapter.kind, watch.models) == ("vllm", ("tiny",))
    assert watch.load == EngineLoad(running=5, waiting=2, kv_usage=0.5)
    assert one.instance.timeline.foreign == 5
    registration = one.instance._registration()
    assert (registration.kind, registration.models) == ("vllm", ("tiny",))
    record = one.instance._make_record(1, 1)
    assert (record.engine_running, record.engine_waiting, record.kv_usage) == (5, 2, 0.5)


async def test_our_own_requests_are_not_foreign(site):
    """The engine counts ours too: three of its five are somebody else's."""
    one = await site(nothing, metrics=PAGE)
    for count in (1, 2):
        await one.ask()
        await one.reaches(PREFILL=count)
    await until(lambda: one.instance.timeline.foreign == 3)
    assert one.instance.timeline.count(Stage.PREFILL) == 2
    one._callers.close()


async def test_further_answers_of_our_own_requests_are_not_foreign(site):
    """The engine counts answers: of its five three are of one request of ours."""
    one = await site(nothing, metrics=PAGE, slots=8)
    await one.ask(terms=";sequences=3")
    await one.reaches(PREFILL=1)
    await until(lambda: one.instance.timeline.foreign == 2)
    one._callers.close()


async def test_a_page_that_can_no_longer_be_read_makes_the_load_unknown_and_is_said_once(site, serve, caplog):
    """Not zero, and not the last value; the models stay, and the engine is not dead."""

    async def respond(peer: Peer, asked: Asked) -> None:
        if asked.target == "/metrics" and is_broken:
            peer.answer(b"Unauthorized", status="401 Unauthorized")
        elif asked.target == "/metrics":
            peer.answer(PAGE, kind="text/plain")
        else:
            peer.answer(b'{"data":[{"id":"tiny"}]}')

    is_broken = False
    engine = await serve(lambda peer: repeat(peer, respond))
    one = await site(nothing, engine_url=engine.url, scrape_interval_ms=50)
    watch = one.instance.watch
    await until(lambda: watch.load.running == 5)
    with caplog.at_level(logging.INFO):
        is_broken = True
        await until(lambda: watch.load == EngineLoad())
        asked = len(engine.asked)
        await until(lambda: len(engine.asked) >= asked + 3)
        is_broken = False
        await until(lambda: watch.load.running == 5)
    assert one.instance.timeline.foreign == 5
    assert watch.models == ("tiny",)
    said = [record.getMessage() for record in caplog.records if "/metrics" in record.getMessage()]
    assert said == [
        "instance a: /metrics answers 401: what it tells is unknown",
        "instance a: /metrics can be read again",
    ]


@pytest.mark.parametrize(
    "models",
    [
        b"",
        b"not json",
        b"[]",
        b'{"data":{}}',
        b'{"data":[{"id":1}]}',
        b'{"data":[{"id":"\xff"}]}',
        b'{"data":' + b"[" * 100_000,
    ],
)
async def test_a_page_of_models_that_is_none_does_not_stop_the_watch(site, serve, models):
    """The load is read all the same, again and again."""

    def respond(peer: Peer, asked: Asked) -> None:
        peer.answer(PAGE if asked.target == "/metrics" else models)

    engine = await serve(lambda peer: repeat(peer, respond))
    one = await site(nothing, engine_url=engine.url, scrape_interval_ms=50)
    await until(lambda: [asked.target for asked in engine.asked].count("/metrics") >= 3)
    assert one.instance.watch.load.running == 5
    assert one.instance.watch.models == ()
    assert not any(task.done() for task in one.worker.tasks)


async def test_an_engine_that_comes_later_is_recognised_then(site, serve):
    """Until it answers its kind is unknown, and so is its load."""
    engine = await serve(engine_script(nothing, metrics=PAGE))
    port = engine.url
    await engine.close()
    one = await site(nothing, engine_url=port, scrape_interval_ms=50)
    await until(lambda: one.instance.watch.failures >= 2)
    assert one.instance._registration().kind == "unknown"
    assert one.instance.watch.load == EngineLoad()


class Pages:
    """An engine whose pages can be changed: a body, a status line, or `...` for one that does not come."""

    def __init__(self, **pages) -> None:
        self.by_path: dict[str, object] = {"/v1/models": b'{"data":[{"id":"tiny"}]}', **pages}
        self.read: list[str] = []

    def __call__(self, peer: Peer) -> object:
        """Answer on one connection."""
        return repeat(peer, self.respond)

    def respond(self, peer: Peer, asked: Asked) -> object:
        """Answer one request."""
        page = self.by_path.get(asked.target, "404 Not Found")
        self.read.append(asked.target)
        if isinstance(page, bytes):
            peer.answer(page)
        elif isinstance(page, str):
            peer.answer(b"no", status=page)
        else:
            return peer.gone()
        return None

    def count(self, path: str) -> int:
        """How often a page was read."""
        return self.read.count(path)


def messages(caplog) -> list[str]:
    """What was logged as a warning."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


async def told(read: Callable[[], int]) -> None:
    """Wait until a page was read three times more."""
    before = read()
    await until(lambda: read() >= before + 3)


@pytest.mark.parametrize(
    ("page", "line"),
    [
        ("401 Unauthorized", "/metrics answers 401"),
        ("404 Not Found", "/metrics answers 404"),
        ("503 Service Unavailable", "/metrics answers 503"),
        (..., "/metrics cannot be read (too slow)"),
    ],
)
async def test_metrics_that_cannot_be_had_make_the_load_unknown_and_not_the_engine_dead(
    site, serve, monkeypatch, caplog, page, line
):
    """An engine of llama.cpp with a key, or with all its HTTP threads busy: it is known, its load is not, it serves."""
    monkeypatch.setattr("workers.engine_watch.PAGE_TIMEOUT_S", 0.05)
    pages = Pages(**{"/metrics": page, "/v1/models": b'{"data":[{"id":"tiny","owned_by":"llamacpp"}]}'})

    async def answer(peer: Peer, asked: Asked) -> None:
        if asked.method == "POST":
            peer.answer(b'{"choices":[]}')
        elif (answering := pages.respond(peer, asked)) is not None:
            await answering

    engine = await serve(lambda peer: repeat(peer, answer))
    one = await site(nothing, engine_url=engine.url)
    await told(lambda: pages.count("/metrics"))
    assert one.instance.watch.load == EngineLoad()
    assert (one.instance._registration().kind, one.instance._registration().models) == ("llamacpp", ("tiny",))
    assert await (await one.ask(is_stream=False)).answer() == (200, b'{"choices":[]}')
    assert messages(caplog) == [f"instance a: {line}: what it tells is unknown"]


async def test_a_page_without_the_wanted_names_is_unknown_and_said_once(site, serve, caplog):
    """The engine has renamed its gauges: what is left of them is read, and one line names what is missing."""
    pages = Pages(**{"/metrics": b"vllm:num_requests_running 5.0\nvllm:new_name_of_waiting 2.0\n"})
    one = await site(nothing, engine_url=(await serve(pages)).url)
    await told(lambda: pages.count("/metrics"))
    assert one.instance.watch.load == EngineLoad(running=5)
    assert messages(caplog) == ["instance a: /metrics of this vllm says nothing of waiting and kv_usage: unknown"]


async def test_a_named_kind_is_not_doubted(site, serve, caplog):
    """Of two gauges the other engine's are not read, and one line says that nothing was found."""
    pages = Pages(**{"/metrics": PAGE})
    one = await site(nothing, engine_url=(await serve(pages)).url, engine_kind="tgi")
    await told(lambda: pages.count("/metrics"))
    assert (one.instance.watch.adapter.kind, one.instance.watch.load) == ("tgi", EngineLoad())
    assert messages(caplog) == ["instance a: /metrics of this tgi says nothing of running and waiting: unknown"]


async def test_an_engine_named_as_plain_is_not_asked_for_its_load(site, serve):
    """It has none to tell."""
    pages = Pages(**{"/metrics": PAGE})
    one = await site(nothing, engine_url=(await serve(pages)).url, engine_kind="openai")
    await until(lambda: one.instance.watch.models)
    assert pages.count("/metrics") == 0
    assert one.instance.watch.load == EngineLoad()


async def test_an_engine_whose_gauges_come_with_its_first_request_is_recognised_then(site, serve):
    """A fresh TGI has none of them on its page."""
    pages = Pages(**{"/metrics": b""})
    one = await site(nothing, engine_url=(await serve(pages)).url)
    await until(lambda: one.instance.watch.adapter is not None)
    assert one.instance.watch.adapter.kind == "openai"
    pages.by_path["/metrics"] = b"tgi_queue_size 1\ntgi_batch_current_size 2\n"
    await until(lambda: one.instance.watch.load == EngineLoad(running=2, waiting=1))
    assert one.instance._registration().kind == "tgi"


LOADS = "/v1/loads?include=core"
SGLANG = {"/v1/models": b'{"data":[{"id":"tiny","owned_by":"sglang"}]}'}
OLDER = b'[{"dp_rank":0,"num_reqs":5,"num_waiting_reqs":2}]'
NEWER = (
    b'{"loads":[{"dp_rank":0,"num_running_reqs":3,"num_waiting_reqs":2,"token_usage":0.5,"max_total_num_tokens":900}]}'
)
GAUGES = b"sglang:num_running_reqs 3\nsglang:num_queue_reqs 2\nsglang:token_usage 0.5\n"


@pytest.mark.parametrize(
    ("there", "read", "load"),
    [
        ({LOADS: NEWER, "/metrics": GAUGES, "/get_load": OLDER}, LOADS, EngineLoad(3, 2, 0.5, 900)),
        ({"/metrics": GAUGES, "/get_load": OLDER}, "/metrics", EngineLoad(3, 2, 0.5)),
        ({"/get_load": OLDER}, "/get_load", EngineLoad(3, 2)),
    ],
)
async def test_the_best_page_that_a_server_of_sglang_has_is_read(site, serve, there, read, load):
    """Those that it has not are asked for once; from then on only one page is read."""
    pages = Pages(**SGLANG, **there)
    one = await site(nothing, engine_url=(await serve(pages)).url)
    await until(lambda: one.instance.watch.load == load)
    await told(lambda: pages.count(read))
    already = {path: pages.count(path) for path in (LOADS, "/metrics", "/get_load")}
    await told(lambda: pages.count(read))
    assert {path for path in already if pages.count(path) > already[path]} == {read}
    assert one.instance._registration().kind == "sglang"


async def test_a_server_of_sglang_without_any_load_page_is_asked_again(site, serve):
    """It may be started anew with one; until then its load is unknown."""
    pages = Pages(**SGLANG)
    one = await site(nothing, engine_url=(await serve(pages)).url)
    await until(lambda: pages.count("/get_load") >= 2)
    assert one.instance.watch.load == EngineLoad()
    pages.by_path[LOADS] = NEWER
    await until(lambda: one.instance.watch.load == EngineLoad(3, 2, 0.5, 900))


async def test_aliases_are_announced_and_the_engine_is_asked_for_its_own_name(site, serve):
    """A client may say either; of its body nothing but the name is changed, and only where it is an alias."""
    one = await site(nothing, alias=("gpt=tiny", "other=absent"))
    await until(lambda: one.instance.watch.models)
    assert one.instance._registration().models == ("tiny", "gpt")
    await one.ask(b'{ "model": "gpt", "x": [1.0, "gpt"] }')
    await until(lambda: len(one.posts) == 1)
    await one.ask(b'{"model":"tiny"}')
    await until(lambda: len(one.posts) == 2)
    assert [post.body for post in one.posts] == [b'{ "model": "tiny", "x": [1.0, "gpt"] }', b'{"model":"tiny"}']
    one._callers.close()


@pytest.mark.parametrize(("owner", "asks"), [("llamacpp", False), ("vllm", True), ("anybody", True)])
async def test_an_engine_that_tells_its_usage_unasked_is_not_asked(site, serve, owner, asks):
    """Asked for it, llama.cpp would put its timings where the client does not get them."""
    pages = Pages(**{"/v1/models": b'{"data":[{"id":"tiny","owned_by":"%b"}]}' % owner.encode()})
    bodies: list[bytes] = []

    async def answer(peer: Peer, asked: Asked) -> None:
        if asked.method == "POST":
            bodies.append(asked.body)
            peer.answer(b'{"choices":[]}')
        else:
            pages.respond(peer, asked)

    engine = await serve(lambda peer: repeat(peer, answer))
    one = await site(nothing, engine_url=engine.url)
    await until(lambda: one.instance.watch.adapter is not None)
    assert (await (await one.ask(b'{"model":"tiny"}', strips=True)).answer())[0] == 200
    assert (b"include_usage" in bodies[0]) == asks
