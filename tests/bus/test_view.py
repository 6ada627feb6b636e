import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.record import DURATIONS, LARGEST, PressureRecord
from bus.registration import RegistrationEntry
from bus.view import PoolView, Reading, aged_ms, parse_published_us, time_fault
from tests.bus.worker import lately_served, registration

NOW_US = 1_700_000_000_000_000

durations = st.integers(0, LARGEST) | st.floats(0, 1e9)
ages = st.floats(0, 1e9)
heartbeats = st.floats(1, 1e6)


def seen(
    record: PressureRecord | None = None,
    *,
    age_ms: float = 0,
    epoch: int = 7,
    expires_in_s: float = 30,
    state: str = "ready",
    **more,
) -> PoolView:
    """A pool of one instance, read at 100 s of the reader's clock."""
    entry = RegistrationEntry(epoch, NOW_US + int(expires_in_s * 1e6), registration(state=state))
    published_us = more.pop("published_us", NOW_US - int(age_ms * 1000))
    return PoolView("default", NOW_US, 100.0, {"a": Reading("a", entry, record, published_us, **more)}, NOW_US)


def record(**signals) -> PressureRecord:
    """A record of the epoch that is registered."""
    return PressureRecord(epoch=7, sequence=1, **signals)


@pytest.mark.parametrize(
    ("published_ms", "age_ms", "now_ms"),
    [(800, 0, 800), (800, 300, 500), (800, 500, 300), (800, 1400, 300), (200, 300, 0), (0, 300, 0)],
)
def test_a_predicted_duration_shrinks_with_age_up_to_one_heartbeat(published_ms, age_ms, now_ms):
    """A worker that has stopped publishing does not look as if its queue were emptying."""
    assert aged_ms(published_ms, age_ms=age_ms, heartbeat_ms=500) == now_ms


@given(published_ms=durations, age_ms=ages, heartbeat_ms=heartbeats)
def test_an_aged_duration_stays_within_bounds(published_ms, age_ms, heartbeat_ms):
    """It is never negative, never more than published, and loses at most a heartbeat."""
    now_ms = aged_ms(published_ms, age_ms=age_ms, heartbeat_ms=heartbeat_ms)

    assert 0 <= now_ms <= published_ms
    assert now_ms >= published_ms - heartbeat_ms


@given(published_ms=durations, one=ages, other=ages, heartbeat_ms=heartbeats)
def test_an_aged_duration_never_grows_with_age(published_ms, one, other, heartbeat_ms):
    """The older of two readings of one record never says the longer wait."""
    younger, older = sorted((one, other))

    assert aged_ms(published_ms, age_ms=older, heartbeat_ms=heartbeat_ms) <= aged_ms(
        published_ms, age_ms=younger, heartbeat_ms=heartbeat_ms
    )


@pytest.mark.parametrize("name", DURATIONS)
def test_every_predicted_duration_is_aged(name):
    """Of a record 200 ms old, read 100 ms ago, each predicted time has lost 300 ms."""
    (pressure,) = seen(record(**{name: 1000}), age_ms=200).live(100.1)

    assert pressure.age_ms == pytest.approx(300)
    assert pressure.signal(name) == pytest.approx(700)


def test_counts_and_rates_do_not_age():
    """A count is what it was until it is published anew."""
    (pressure,) = seen(record(inflight=9, qps_1m=2.5), age_ms=200).live(101.0)

    assert pressure.signal("inflight") == 9
    assert pressure.signal("qps_1m") == 2.5


def test_unknown_stays_unknown_however_old():
    """A signal that was not measured does not become zero by ageing."""
    (pressure,) = seen(record(), age_ms=200).live(100.5)

    assert pressure.signal("predicted_wait_ms") is None


def test_a_view_ages_into_unknown_exactly_at_the_ttl():
    """1 500 ms after its publishing a record is still known, one microsecond later no longer."""
    view = seen(record(inflight=1), age_ms=1000)

    (still,) = view.live(100.5)
    (gone,) = view.live(100.500_002)

    assert still.record is not None
    assert gone.record is None
    assert gone.fault == "expired"
    assert gone.signal("inflight") is None


@pytest.mark.parametrize(
    ("published_us", "fault"),
    [
        (None, "no publishing time"),
        (0, "expired"),
        (NOW_US - 1_500_001, "expired"),
        (NOW_US, None),
        (NOW_US + 1_500_000, None),
        (NOW_US + 1_500_001, "published in the future"),
        (9_999_999_999_999_999, "published in the future"),
    ],
)
def test_a_record_is_believed_only_if_its_time_can_be(published_us, fault):
    """A record without a time, too old, or from the far future is unknown, and its instance still lives."""
    (pressure,) = seen(record(inflight=1), published_us=published_us).live(100.0)

    assert pressure.fault == fault
    assert (pressure.record is None) == (fault is not None)
    assert time_fault(published_us, server_us=NOW_US, ttl_ms=1500) == fault


@pytest.mark.parametrize(
    "raw", [b"", b"-1", b"+1", b" 1", b"1_0", b"1.5", b"1e9", b"nan", b"inf", b"9" * 17, "١".encode(), b"\xff", None]
)
def test_what_is_no_time_is_none(raw):
    """Only plain digits, as few as a time in microseconds has, are a publishing time."""
    assert parse_published_us(raw) is None


def test_a_time_keeps_its_last_digit():
    """Microseconds are not rounded."""
    assert parse_published_us(b"9007199254740991") == 2**53 - 1


def test_a_record_just_published_by_a_clock_ahead_has_age_zero():
    """A small step back of the server's clock makes no negative age."""
    (pressure,) = seen(record(predicted_wait_ms=400), age_ms=-200).live(100.0)

    assert pressure.age_ms == 0
    assert pressure.signal("predicted_wait_ms") == 400


def test_a_record_of_another_epoch_is_unknown():
    """What another worker said is no word of the one that is registered."""
    (pressure,) = seen(record(inflight=1), epoch=8).live(100.0)

    assert pressure.record is None
    assert pressure.fault == "epoch of another worker"


@pytest.mark.parametrize(
    ("expires_in_s", "state", "is_live"),
    [(30, "ready", True), (30, "draining", True), (30, "gone", False), (0, "ready", False), (-1, "ready", False)],
)
def test_an_instance_lives_while_its_registration_stands(expires_in_s, state, is_live):
    """An expired or withdrawn registration takes the instance out of the pool."""
    view = seen(record(), expires_in_s=expires_in_s, state=state)

    assert bool(view.live(100.0)) == is_live


def test_registrations_do_not_expire_while_nobody_can_renew_them():
    """An hour without the bus leaves every instance in the pool, with nothing known of it."""
    (pressure,) = seen(record(inflight=1)).live(100.0 + 3600)

    assert pressure.record is None
    assert pressure.fault == "expired"


def test_models_of_expired_registrations_are_remembered():
    """What the pool served lately includes what no live instance serves now."""
    view = seen(record(), expires_in_s=-1)

    assert view.live(100.0) == []
    assert lately_served(view) == {"model-a"}


def test_a_view_that_was_never_read_is_empty():
    """Before the first reading there are no instances, and asking is no error."""
    never = PoolView("default", 0, float("-inf"), {}, 0)

    assert never.live(5.0) == []
    assert lately_served(never) == set()


def test_a_clock_behind_the_reading_makes_no_negative_age():
    """The view is as old as zero at least."""
    assert seen(record()).age_s(99.0) == 0


def pool_of(ages_ms: list[float]) -> PoolView:
    """A pool whose records have these ages (TTL 1.5 s); those that are too old for the bus are missing there."""
    entry = RegistrationEntry(7, NOW_US + 30_000_000, registration())
    readings = {}
    for number, age_ms in enumerate(ages_ms):
        is_kept = age_ms <= entry.registration.ttl_ms
        published_us = NOW_US - int(age_ms * 1000)
        readings[str(number)] = Reading(
            str(number), entry, record() if is_kept else None, published_us, None if is_kept else "missing"
        )
    return PoolView("default", NOW_US, 100.0, readings, NOW_US)


@given(st.lists(st.floats(0, 500), min_size=1, max_size=8), st.floats(0, 5000))
def test_workers_that_all_fell_silent_together_are_no_suspects(ages_when_stopped_ms, since_ms):
    """Whenever one looks, though their records do not expire in the same instant."""
    assert pool_of([age_ms + since_ms for age_ms in ages_when_stopped_ms]).silent() == []


@given(st.lists(st.floats(0, 500), min_size=1, max_size=8), st.floats(1501, 1e6))
def test_who_is_silent_while_another_publishes_is_a_suspect(living_ms, silent_ms):
    """However many live."""
    assert [pressure.instance for pressure in pool_of([*living_ms, silent_ms]).silent()] == [str(len(living_ms))]


def test_a_record_that_cannot_be_believed_is_no_silence():
    """Its worker has published: only one that is gone is a reason to ask."""
    view = seen(None, fault="does not decode")
    assert view.silent() == []
