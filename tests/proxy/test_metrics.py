"""The metrics page of a replica: what it tells of time to first token, of instances and of reservations."""

import asyncio

import msgspec
import pytest

from proxy.app import default_name
from proxy.config import ProxyConfig
from tests.hop.scripted import Asked, Peer, until


def plain(peer: Peer, _: Asked) -> None:
    """A worker that answers at once."""
    peer.answer(b"{}")


async def page(fleet) -> str:
    """The metrics page as it is now."""
    caller = await fleet.callers.ask(f"http://127.0.0.1:{fleet.replica.admin_port}", "/metrics", method="GET")
    return (await caller.answer())[1].decode()


async def test_each_answer_counts_with_the_time_predicted_and_the_time_it_took(fleet):
    """Predicted and real times to first token can be laid over each other: they are of the same requests."""
    await fleet.worker("a", plain, predicted_wait_ms=40, prefill_tokens_per_s=1000.0)
    await fleet.start(strategy="predicted_ttft")

    for _ in range(3):
        assert (await (await fleet.ask()).answer())[0] == 200

    text = await page(fleet)
    assert "forebay_ttft_seconds_count 3.0" in text
    assert "forebay_ttft_predicted_seconds_count 3.0" in text
    assert 'forebay_reservations_total{outcome="made",pool="default"} 3.0' in text


async def test_a_look_at_the_models_is_answered_and_is_no_work(fleet):
    """Both are in the metric of requests; only work is what a replica has answered, on its dashboard and for `up`."""
    await fleet.worker("a", plain)
    await fleet.start()
    assert (await (await fleet.ask()).answer())[0] == 200
    models = await fleet.callers.ask(f"http://127.0.0.1:{fleet.replica.port}", "/v1/models", method="GET")
    assert (await models.answer())[0] == 200
    assert 'forebay_requests_total{status="200"} 2.0' in await page(fleet)
    caller = await fleet.callers.ask(f"http://127.0.0.1:{fleet.replica.admin_port}", "/debug/replica", method="GET")
    assert msgspec.json.decode((await caller.answer())[1])["answers"] == {"200": 1}


async def test_open_requests_are_told_while_there_are_none_too(fleet):
    """Replicas are scaled by it: an idle one that told nothing would keep the number from ever going down."""
    told, may_answer = asyncio.Event(), asyncio.Event()

    async def held(peer: Peer, _: Asked) -> None:
        told.set()
        await may_answer.wait()
        peer.answer(b"{}")

    await fleet.worker("a", held)
    await fleet.start()
    assert "forebay_open_requests 0.0" in await page(fleet)

    caller = await fleet.ask()
    await told.wait()
    assert "forebay_open_requests 1.0" in await page(fleet)

    may_answer.set()
    assert (await caller.answer())[0] == 200
    async with asyncio.timeout(10):
        while "forebay_open_requests 0.0" not in await page(fleet):
            pass


async def test_a_strategy_that_predicts_nothing_counts_no_prediction(fleet):
    """No prediction is no prediction of zero."""
    await fleet.worker("a", plain)
    await fleet.start(strategy="round_robin")

    assert (await (await fleet.ask()).answer())[0] == 200

    text = await page(fleet)
    assert "forebay_ttft_seconds_count 1.0" in text
    assert "forebay_ttft_predicted_seconds_count 0.0" in text


async def test_instances_are_counted_by_state_and_told_with_age_and_what_is_in_transit(fleet):
    """An instance whose record has gone is unknown, and has no age."""
    await fleet.worker("a", plain)
    silent = await fleet.worker("b", plain)
    await silent.publisher._publish._client.delete(silent.publisher._pressure_key)
    await fleet.start()
    await until(lambda: len(fleet.replica.selection.readers["default"].last_view.readings) == 2)

    text = await page(fleet)

    assert 'forebay_instances{state="ready"} 1.0' in text
    assert 'forebay_instances{state="unknown"} 1.0' in text
    assert 'forebay_record_age_seconds{instance="a"}' in text
    assert 'forebay_record_age_seconds{instance="b"}' not in text
    assert 'forebay_in_transit_requests{instance="b"} 0.0' in text


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"host": "10.1.2.3", "port": 8001}, "10.1.2.3:8001"),
        ({"host": "0.0.0.0"}, "some-machine:8000"),
        ({"host": "::"}, "some-machine:8000"),
    ],
)
def test_a_replica_on_all_addresses_is_named_after_its_machine(monkeypatch, options, expected):
    """Replicas in containers all listen on 0.0.0.0:8000, and are told apart all the same."""
    monkeypatch.setattr("proxy.app.socket.gethostname", lambda: "some-machine")

    assert default_name(ProxyConfig(**options)) == expected
