"""The benchmark's pieces run, with tiny counts: it must not rot between the times somebody reads its figures."""

import asyncio
from collections.abc import Iterator

import msgspec
import pytest

from tests.bench import plain, scale, selecting, streams, usage
from tests.bench.figures import Aim, Figure, table, verdict
from tests.bench.plan import QUICK
from tests.bench.prediction import LEARNING, errors_of
from tests.bench.stand import Stand, stand

TINY = msgspec.structs.replace(QUICK, repeat=1, seconds=0.2, stream_seconds=0.2, flood_chunks=20, choices=3)


@pytest.fixture(scope="module")
def everything() -> Iterator[Stand]:
    """Start the whole stand once."""
    with stand() as running:
        yield running


@pytest.mark.processes
@pytest.mark.parametrize("part", [usage.memory, plain.measure, streams.measure, usage.bus])
async def test_a_part_measures_the_relays_beside_the_yardstick(everything, part):
    """Every figure has a value a repetition, and as many of the yardstick where it has one."""
    figures = await part(everything, TINY)

    assert figures
    assert all(figure.ours for figure in figures)
    assert all(len(figure.ours) == len(figure.yardstick) for figure in figures if figure.yardstick)


@pytest.mark.processes
async def test_a_selection_is_timed_with_its_round_trips():
    """The whole choice takes longer than its scoring."""
    whole, _, *scoring = await selecting.measure(TINY, sizes=(10,))

    assert whole.ours[0] > max(figure.ours[0] for figure in scoring)


def test_a_typical_record_is_at_most_128_bytes():
    """All signals known, values of a loaded instance."""
    (figure,) = selecting.record_sizes()

    assert max(figure.ours) <= 128


def test_an_aim_is_held_against_the_median_of_the_pairs_ratios():
    """Two good pairs of three meet the aim, though the medians of the two sides would not."""
    figure = Figure(part="p", name="n", unit="ms", ours=[10, 1.2, 2.4], yardstick=[1, 1, 2], aim=Aim(1.3))

    assert figure.is_met
    assert verdict(figure) == "≤ 1.3 × ✓"
    assert "1.20 [1.20–10]" in table([figure])


def test_the_first_predictions_do_not_count():
    """The worker learns from them."""
    wrong, right = {"predicted_ttft_s": 9.0, "real_ttft_s": 1.0}, {"predicted_ttft_s": 1.5, "real_ttft_s": 1.0}

    assert errors_of([wrong] * LEARNING + [right]) == [0.5]


@pytest.mark.processes
def test_both_tables_of_the_scale_have_a_row(capfd):
    """Replicas, workers and one selection in parts, for a pool of two."""
    scale.with_server(lambda url: scale.measure_fleet(url, 2, replicas=1, rate=20, seconds=0.5))
    scale.with_server(lambda url: asyncio.run(scale.measure_parts(url, 2)))

    rows = [line.split() for line in capfd.readouterr().out.splitlines()]
    assert [row[0] for row in rows] == ["2", "2"]
    assert all(float(number.rstrip("%")) >= 0 for row in rows for number in row)
