"""How one request of a replay ended: its times, its tokens, its error. Plain values."""

import msgspec


class Failure(msgspec.Struct, frozen=True):
    """Why a request counts as an error."""

    kind: str
    """Its class: `status N`, `timeout`, `connect`, `broken stream`, `error event`, `no finish_reason`, `bad answer`."""
    detail: str = ""
    """What the server said, shortened to one line."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """A request that is over."""

    lag_s: float
    """How much later than due it was sent, ≥ 0: the client's own fault, never the server's."""
    e2e_s: float
    """From sending to the last byte or the failure."""
    ttft_s: float | None = None
    """From sending to the first event that carries an answer; None: none came, or the answer was plain."""
    tpot_s: float | None = None
    """(E2E − TTFT) / (output tokens − 1); None: fewer than two tokens, or unknown."""
    prompt_tokens: int | None = None
    """By the server's usage; None: it sent none."""
    output_tokens: int | None = None
    """By the server's usage; None: it sent none."""
    bytes_received: int = 0
    """Bytes of the answer's body."""
    instance: str | None = None
    """What the header `x-forebay-instance` named; None: no such header."""
    failure: Failure | None = None
    """None: it was answered in full."""
