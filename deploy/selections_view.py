"""What `GET /debug/selections` says, for people: the last choices, why they were made, how close they were.

Pure: JSON in, renderables out.
"""

from typing import Any

import msgspec
from rich.table import Table
from rich.text import Text

from deploy.loads_view import number


class Selection(msgspec.Struct, frozen=True):
    """One choice; None is unknown."""

    request_id: str = ""
    pool: str = ""
    model: str | None = None
    chosen: str | None = None
    score: float | None = None
    runner_up: str | None = None
    runner_up_score: float | None = None
    margin: float | None = None
    tier: str = ""
    strategy: str = ""
    imputed: dict[str, Any] = {}


class Selections(msgspec.Struct, frozen=True):
    """The whole answer of `GET /debug/selections`, newest first."""

    selections: tuple[Selection, ...] = ()


def decode(body: bytes) -> Selections:
    """The answer's body as a struct; raises msgspec.MsgspecError if it is something else."""
    return msgspec.json.decode(body, type=Selections)


def render(selections: Selections, *, most: int) -> Table:
    """The newest choices as a table of at most `most` lines."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("last choices", "chosen", "score", "runner-up", "score", "margin", "why"):
        table.add_column(column, justify="right" if column in ("score", "margin") else "left", no_wrap=True)
    for choice in selections.selections[:most]:
        table.add_row(
            Text(choice.request_id[:20]),
            Text(choice.chosen or "–"),
            number(choice.score, "{:.3f}".format),
            Text(choice.runner_up or "–"),
            number(choice.runner_up_score, "{:.3f}".format),
            number(choice.margin, "{:.3f}".format),
            Text(reason(choice)),
        )
    return table


def reason(choice: Selection) -> str:
    """Why the chosen one won, in a few words.

    >>> reason(Selection(chosen="e1", score=2.0, runner_up="e2", margin=1.5, tier="measured", strategy="least_load"))
    'least_load: lowest score by measured signals'
    """
    if choice.tier == "round_robin" or choice.strategy == "round_robin":
        return "round_robin: its turn"
    by = {"measured": "measured signals", "in_flight": "own in-flight counts"}.get(choice.tier, choice.tier)
    won = "only candidate" if choice.runner_up is None else "tied, its turn" if choice.margin == 0 else "lowest score"
    guessed = f", imputed for {', '.join(sorted(choice.imputed))}" if choice.imputed else ""
    return f"{choice.strategy}: {won} by {by}{guessed}"
