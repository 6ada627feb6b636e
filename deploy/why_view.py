"""Why one request went where it went: every candidate's terms, for a tired engineer. Pure: JSON in, renderables out."""

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text


class Term(msgspec.Struct, frozen=True):
    """One part of a total: value times weight."""

    value: float
    weight: float
    contribution: float


class InTransit(msgspec.Struct, frozen=True):
    """Reserved at an instance, and in no record at that moment."""

    tokens: int = 0
    requests: int = 0


class Candidate(msgspec.Struct, frozen=True):
    """One of the best candidates of a choice, the best first."""

    id: str
    total: float
    score: float
    terms: dict[str, Term] = {}
    imputed: dict[str, str] = {}
    predicted_ttft_s: float | None = None
    in_transit_seen: InTransit = InTransit()
    in_transit_when_chosen: InTransit | None = None


class Why(msgspec.Struct, frozen=True):
    """One choice with all that went into it."""

    request_id: str
    pool: str
    model: str | None
    prompt_tokens: int
    strategy: str
    tier: str
    chosen: str
    runner_up: str | None
    margin: float | None
    decided_by: str
    predicted_ttft_s: float | None
    real_ttft_s: float | None
    candidates_in_all: int
    candidates: tuple[Candidate, ...]


class Page(msgspec.Struct, frozen=True):
    """Answer of /debug/selections?request_id=ID, newest first; one choice for each time the request was sent."""

    selections: tuple[Why, ...] = ()


def decode(body: bytes) -> Page:
    """The answer's body as structs; raises msgspec.MsgspecError if it is something else."""
    return msgspec.json.decode(body, type=Page)


def render(why: Why, *, attempt: int) -> RenderableType:
    """One choice as a sentence and a table, a line a candidate, a column a term."""
    terms = list(why.candidates[0].terms) if why.candidates else []
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("candidate", no_wrap=True)
    for name in (*terms, "score", "in transit", "predicted TTFT"):
        table.add_column(name, justify="right", no_wrap=True)
    for candidate in why.candidates:
        style = "bold green" if candidate.id == why.chosen else ""
        cells = [_term(candidate.terms.get(name)) for name in terms]
        table.add_row(
            Text(candidate.id, style),
            *cells,
            Text(f"{candidate.score:.4f}", style),
            Text(_in_transit(candidate)),
            Text("–" if candidate.predicted_ttft_s is None else f"{candidate.predicted_ttft_s * 1000:,.0f} ms"),
        )
    notes = [Text(line, "dim") for line in _imputations(why.candidates)]
    left_out = why.candidates_in_all - len(why.candidates)
    if left_out > 0:
        notes.append(Text(f"{left_out} worse candidates are not shown", "dim"))
    return Group(Text(sentence(why, attempt=attempt)), table, *notes)


def sentence(why: Why, *, attempt: int) -> str:
    """The choice in one sentence."""
    by = {"measured": "measured signals", "in_flight": "this replica's own counts", "round_robin": "turn"}[why.tier]
    against = "the only candidate" if why.runner_up is None else f"{why.margin or 0:.4f} ahead of {why.runner_up}"
    where = (
        "chosen on the bus, in one step for all replicas" if why.decided_by == "bus" else "chosen by the replica alone"
    )
    ttft = ""
    if why.predicted_ttft_s is not None:
        ttft = f"; TTFT predicted {why.predicted_ttft_s * 1000:,.0f} ms"
    if why.real_ttft_s is not None:
        ttft += f"{', real' if ttft else '; TTFT real'} {why.real_ttft_s * 1000:,.0f} ms"
    return (
        f"try {attempt}: {why.request_id} ({why.prompt_tokens} prompt tokens, model {why.model or '–'}) went to "
        f"{why.chosen} by {why.strategy} on {by}, {against}; {where}{ttft}"
    )


def _term(term: Term | None) -> Text:
    if term is None:
        return Text("–")
    weighted = "" if term.weight == 1 else f" × {term.weight:g}"
    return Text(f"{term.value:.4g}{weighted}")


def _in_transit(candidate: Candidate) -> str:
    """Tokens in transit: as the replica saw them, and as they were when the choice was made."""
    seen, now = candidate.in_transit_seen, candidate.in_transit_when_chosen
    if now is None or now == seen:
        return f"{seen.tokens}"
    return f"{seen.tokens} → {now.tokens}"


def _imputations(candidates: tuple[Candidate, ...]) -> list[str]:
    lines = []
    for candidate in candidates:
        grouped: dict[str, list[str]] = {}
        for signal, donor in candidate.imputed.items():
            grouped.setdefault(donor, []).append(signal)
        lines += [
            f"{candidate.id} is silent on {', '.join(names)}: taken from {donor}" for donor, names in grouped.items()
        ]
    return lines
