"""The benchmark of routing with real processes runs: it must not rot between the times somebody reads its figures."""

import zlib

import pytest

from tests.routing.processes.bounds import verdicts
from tests.routing.processes.figures import ratio, ttft_p99_s
from tests.routing.processes.measuring import Setting, measure
from tests.routing.processes.picture import draw
from tests.routing.processes.plan import Policy, preset
from tests.routing.processes.raster import Canvas
from tests.routing.processes.replaying import Shot
from tests.routing.processes.report import result, table
from tests.routing.processes.wire import Bodies, lengths


@pytest.mark.processes
async def test_a_cell_is_measured_from_the_trace_to_the_picture():
    """Every policy answers every request, and the engines have counted them."""
    (cell,) = preset("smoke")
    setting = Setting(scale=0.2)

    runs = await measure(cell, setting, lambda _: None)
    found = result(cell, runs, setting)

    assert [row.policy for row in found.rows] == list(cell.policies)
    assert all(row.figures.requests == cell.block_requests for row in found.rows)
    assert all(row.figures.failed == row.figures.unfinished == 0 for row in found.rows)
    assert all(sum(run.answered) == cell.block_requests + cell.filling_requests for run in runs)
    assert "predicted_ttft × 2" in table([found])
    assert draw([found]).startswith(b"\x89PNG")


def test_what_a_gateway_reads_of_a_request_does_not_tell_the_length_of_its_answer():
    """It is in a field for the engines, and nowhere as a limit."""
    body = Bodies(0).body(3, 50, 77)

    assert lengths(body).answer_tokens == 77
    assert b"max_" not in body


def test_the_interval_of_a_ratio_is_paired():
    """Twice as slow in every request is exactly twice as slow, however the requests differ."""
    ours = [Shot(number, 0.0, 2.0 * (number + 1), 1.0, 0.0) for number in range(500)]
    other = [Shot(number, 0.0, 1.0 * (number + 1), 1.0, 0.0) for number in range(500)]

    found = ratio(ours, other, ttft_p99_s, draws=50)

    assert (found.low, found.value, found.high) == (2.0, 2.0, 2.0)


def test_a_promise_that_is_broken_is_missed():
    """Four replicas that are half as fast again as one."""
    cell = preset("bounds")[0]
    shots = {
        Policy("predicted_ttft", 1): [Shot(number, 0.0, 0.4, 1.0, 0.0) for number in range(100)],
        Policy("predicted_ttft", 4): [Shot(number, 0.0, 0.6, 1.0, 0.0) for number in range(100)],
    }

    replicas, good_one, good_four = verdicts(cell, shots, scale=1.0)

    assert not replicas.is_met
    assert good_one.is_met
    assert good_four.is_met


def test_a_canvas_becomes_a_png():
    """Its pixels are those that were drawn: a red square in the corner of a white page."""
    canvas = Canvas(4, 2, (255, 255, 255))
    canvas.rectangle(0, 0, 1, 1, (255, 0, 0))

    data = canvas.png()
    at = data.index(b"IDAT")
    size = int.from_bytes(data[at - 4 : at], "big")
    rows = zlib.decompress(data[at + 4 : at + 4 + size])

    assert data[16:24] == (8).to_bytes(4, "big") + (4).to_bytes(4, "big")
    assert rows[:10] == b"\0" + b"\xff\0\0" * 2 + b"\xff" * 3
