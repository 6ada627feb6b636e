"""The picture for people in a hurry: p99 TTFT of every policy, a dot for each number of replicas, fleets side by side.

Opaque and light, so that it reads on light and on dark pages alike. What it shows is the table's.
"""

import math
from collections.abc import Sequence
from typing import Final

from tests.routing.processes.plan import LABELS, YARDSTICKS, Policy
from tests.routing.processes.raster import Canvas, Colour, text_width
from tests.routing.processes.report import Result

_PAPER: Final = (250, 250, 248)
_INK: Final = (40, 44, 52)
_FAINT: Final = (222, 223, 224)
_GREY: Final = (120, 124, 130)

#: A colour for each number of replicas, light to dark; what there is only one of is grey.
_SHADES: Final[dict[int, Colour]] = {1: (134, 188, 232), 2: (74, 144, 210), 4: (24, 96, 170), 8: (8, 48, 107)}

_ORDER: Final = (
    "all_knowing",
    "predicted_ttft",
    "expected_wait",
    "least_load",
    "fewest_all",
    "fewest_own",
    "round_robin",
    "direct",
)

_ROW: Final = 36
_TOP: Final = 92
_LEFT: Final = 300
_PANEL: Final = 400
_GAP: Final = 64


def draw(results: Sequence[Result]) -> bytes:
    """Draw the first load and trace that is there, as a PNG."""
    first = results[0].cell
    shown = [found for found in results if (found.cell.load, found.cell.trace) == (first.load, first.trace)]
    names = [name for name in _ORDER if any(row.policy.name == name for found in shown for row in found.rows)]
    width = _LEFT + len(shown) * (_PANEL + _GAP)
    canvas = Canvas(width, _TOP + len(names) * _ROW + 64, _PAPER)
    title = f"p99 time to first token, 8 engines at {first.load} % load, Azure {first.trace} trace"
    canvas.text(20, 16, title, _INK, size=2)
    _legend(canvas, [row.policy for found in shown for row in found.rows])
    for index, name in enumerate(names):
        label = LABELS.get(name, name) + ("" if name in YARDSTICKS else " (Forebay)")
        canvas.text(_LEFT - 16, _TOP + index * _ROW + 11, label, _INK, size=1.5, anchor=1.0)
    low, high = _range(shown)
    for place, found in enumerate(shown):
        _panel(canvas, _LEFT + place * (_PANEL + _GAP), found, names, low, high)
    return canvas.png()


def _legend(canvas: Canvas, policies: Sequence[Policy]) -> None:
    x = 20.0
    there = sorted({policy.replicas for policy in policies if YARDSTICKS.get(policy.name, True)})
    entries = [(f"{count} replica{'s' * (count > 1)}", _SHADES.get(count, _INK)) for count in there]
    for text, colour in [*entries, ("one, sees all", _GREY)]:
        canvas.disc(x + 6, 54, 6, colour)
        canvas.text(x + 18, 48, text, _INK, size=1.5)
        x += 18 + text_width(text, 1.5) + 24


def _range(results: Sequence[Result]) -> tuple[float, float]:
    """Ends of the axis in milliseconds: whole steps of 1, 2, 5 around everything."""
    values = [row.figures.ttft_p99_ms for found in results for row in found.rows]
    return max(tick for tick in _ticks() if tick <= min(values)), min(tick for tick in _ticks() if tick >= max(values))


def _ticks() -> list[float]:
    return [digit * 10.0**power for power in range(7) for digit in (1, 2, 5)]


def _panel(canvas: Canvas, left: float, found: Result, names: Sequence[str], low: float, high: float) -> None:
    def at(value_ms: float) -> float:
        return left + _PANEL * math.log(value_ms / low) / max(1e-9, math.log(high / low))

    bottom = _TOP + len(names) * _ROW
    canvas.text(left + _PANEL / 2, _TOP - 20, f"{found.cell.fleet} engines", _INK, size=1.5, anchor=0.5)
    for tick in (tick for tick in _ticks() if low <= tick <= high):
        canvas.rectangle(at(tick) - 0.5, _TOP, 1, len(names) * _ROW, _FAINT)
        text = f"{tick / 1000:g} s" if tick >= 1000 else f"{tick:.0f} ms"
        canvas.text(at(tick), bottom + 8, text, _GREY, size=1, anchor=0.5)
    for index, name in enumerate(names):
        y = _TOP + (index + 0.5) * _ROW
        rows = [row for row in found.rows if row.policy.name == name]
        spots = [at(row.figures.ttft_p99_ms) for row in rows]
        if spots:
            canvas.rectangle(min(spots), y - 1, max(spots) - min(spots), 2, _GREY)
        for row, x in sorted(zip(rows, spots, strict=True), key=lambda pair: pair[0].policy.replicas):
            colour = _SHADES.get(row.policy.replicas, _INK) if YARDSTICKS.get(name, True) else _GREY
            canvas.disc(x, y, 7.5, _PAPER)
            canvas.disc(x, y, 6.5, colour)
        if spots:
            _value(canvas, left, max(spots), y, max(row.figures.ttft_p99_ms for row in rows))


def _value(canvas: Canvas, left: float, x: float, y: float, value_ms: float) -> None:
    """Write a number beside its dot, on the side where there is room."""
    text = f"{value_ms / 1000:.2f} s" if value_ms < 10_000 else f"{value_ms / 1000:.0f} s"
    has_room = x < left + _PANEL - 60
    canvas.text(x + 14 if has_room else x - 14, y - 4, text, _INK, size=1, anchor=0.0 if has_room else 1.0)
