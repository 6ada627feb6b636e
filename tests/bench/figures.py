"""What a benchmark says: figures repeated in pairs, their medians and spreads, aims met or not. No I/O.

Absolute times on a shared machine mean little; what is compared is measured in turns, and each ratio is that of one
pair. The median of the pairs' ratios is what an aim is held against.
"""

from collections.abc import Sequence
from statistics import median
from typing import Literal

import msgspec


class Aim(msgspec.Struct, frozen=True):
    """A limit for a median: of the ratios to the yardstick, or of the figure itself."""

    at_most: float
    of: Literal["ratio", "value"] = "ratio"


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One thing measured several times, beside what it is compared with in the same run."""

    part: str
    name: str
    unit: str
    ours: Sequence[float]
    yardstick: Sequence[float] = ()
    """One value a repetition, paired with `ours`; empty where there is nothing to compare with."""
    aim: Aim | None = None

    @property
    def ratios(self) -> list[float]:
        """Ratio of each pair.

        >>> Figure(part="p", name="n", unit="ms", ours=[2.0, 3.0], yardstick=[1.0, 2.0]).ratios
        [2.0, 1.5]
        """
        if not self.yardstick:
            return []
        return [ours / other for ours, other in zip(self.ours, self.yardstick, strict=True) if other > 0]

    @property
    def is_met(self) -> bool | None:
        """Whether the aim is met; None where there is none."""
        if self.aim is None:
            return None
        values = self.ratios if self.aim.of == "ratio" else self.ours
        return bool(values) and median(values) <= self.aim.at_most


def spread(values: Sequence[float]) -> str:
    """Median with the smallest and largest value.

    >>> spread([3.0, 1.0, 2.0]), spread([128]), spread([])
    ('2.00 [1.00–3.00]', '128', '–')
    """
    if not values:
        return "–"
    middle, low, high = median(values), min(values), max(values)
    return _short(middle) if low == high else f"{_short(middle)} [{_short(low)}–{_short(high)}]"


def _short(value: float) -> str:
    """Three digits or so.

    >>> [_short(value) for value in (0.0234, 1.234, 61.26, 1234.5)]
    ['0.023', '1.23', '61.3', '1234']
    """
    size = abs(value)
    if float(value).is_integer() and size >= 10:
        return f"{value:.0f}"
    digits = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 0.1 else 3
    return f"{value:.{digits}f}"


def verdict(figure: Figure) -> str:
    """What the aim says, with its sign.

    >>> verdict(Figure(part="p", name="n", unit="B", ours=[100], aim=Aim(128, of="value")))
    '≤ 128 ✓'
    """
    if figure.aim is None:
        return ""
    times = " ×" if figure.aim.of == "ratio" else ""
    return f"≤ {figure.aim.at_most:g}{times} {'✓' if figure.is_met else '✗'}"


HEAD = ("figure", "", "Forebay", "yardstick", "ratio", "aim")


def table(figures: Sequence[Figure]) -> str:
    """All figures as a plain text table, a heading a part."""
    rows: list[tuple[str, ...]] = [HEAD]
    part = ""
    for figure in figures:
        if figure.part != part:
            part = figure.part
            rows.append((part, "", "", "", "", ""))
        rows.append(
            (
                "  " + figure.name,
                figure.unit,
                spread(figure.ours),
                spread(figure.yardstick) if figure.yardstick else "",
                spread(figure.ratios) if figure.yardstick else "",
                verdict(figure),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
