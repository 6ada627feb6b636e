"""Names at the seams: the headers that clients, proxies, workers and engines exchange. No I/O, no clock.

Between proxy and worker:

- `x-forebay-reservation: ID;tokens=N;text=L.S.W;output=M;sequences=S;stream=1;strip=1;priority=P;left=T` says what work
  this request is.
  `tokens` are prompt tokens as the proxy estimates them; `text` the bytes of prompt text by class that they were
  estimated from (bus/tokens.py; absent: they were counted, or there is more than text); `output` the most tokens it may
  produce (absent: not limited); `sequences` the answers asked for (absent: 1); `stream` that an event stream is asked
  for; `strip` that the client did not ask for the usage event: the worker may, and the client must not see it;
  `priority` is high, normal (where absent) or low; `left` the milliseconds in which the request must have been started,
  counted by whoever receives it (absent: no limit), so that no clocks of two hosts are compared.
- `x-forebay-secret` shows that a request comes from a proxy; it ends at the worker.
- `x-forebay-verdict` on an answer: there is no event of it yet, it may be sent elsewhere. `refused`: the engine
  did not take it, or is not there. `broke`: it failed on it, perhaps because of it. Both carry the engine's own status
  and bytes, where it sent any, for the case that there is no elsewhere. `full` and `draining`: the worker did not take
  it, which its record tells too and which says nothing against the engine.

From clients: `x-forebay-priority` and `x-forebay-timeout-ms`. To clients: `x-request-id` and `x-forebay-instance`. All
other `x-forebay-*` of a client are dropped.
"""

from collections.abc import Iterable
from typing import Final, Literal, get_args

import msgspec

from bus.tokens import TextBytes

RESERVATION: Final = "x-forebay-reservation"
SECRET: Final = "x-forebay-secret"  # noqa: S105 - the name of the header
VERDICT: Final = "x-forebay-verdict"
REFUSED: Final = "refused"
BROKE: Final = "broke"
FULL: Final = "full"
DRAINING: Final = "draining"
PRIORITY: Final = "x-forebay-priority"
TIMEOUT_MS: Final = "x-forebay-timeout-ms"
INSTANCE: Final = "x-forebay-instance"
REQUEST_ID: Final = "x-request-id"

RawHeaders = list[tuple[bytes, bytes]]

Priority = Literal["high", "normal", "low"]
PRIORITIES: Final[tuple[Priority, ...]] = get_args(Priority)

#: RFC 9110, 7.6.1: they belong to one connection and end there. `content-length` and `host` are written anew.
HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"content-length",
        b"host",
        b"expect",
    }
)

#: Of a client's headers, never forwarded to an engine: they are between the client and the gateway. Bodies are
#: decompressed where they are read, and answers are not compressed, since they are looked into.
PRIVATE: Final = frozenset({b"authorization", b"cookie", b"accept-encoding", b"content-encoding", REQUEST_ID.encode()})

_OURS: Final = b"x-forebay-"


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """What a proxy tells a worker about the work in a request: the content of `x-forebay-reservation`."""

    reservation: str
    tokens: int
    """Prompt tokens, at least 1."""
    text: TextBytes | None = None
    """Prompt text that `tokens` was estimated from; None: it was not."""
    output: int | None = None
    """Most tokens that may be produced; None: the request sets no limit."""
    sequences: int = 1
    """Answers that run at once on the engine."""
    is_stream: bool = False
    strips_usage: bool = False
    priority: Priority = "normal"
    left_ms: int | None = None
    """Milliseconds from now in which the request must have been started; None: no limit."""


def write_ticket(ticket: Ticket) -> str:
    """Header value of a ticket.

    >>> write_ticket(Ticket(reservation="r1", tokens=120, output=64, is_stream=True))
    'r1;tokens=120;output=64;stream=1'
    """
    parts = [ticket.reservation, f"tokens={ticket.tokens}"]
    if ticket.text is not None:
        parts.append(f"text={ticket.text.letters}.{ticket.text.symbols}.{ticket.text.wide}")
    if ticket.output is not None:
        parts.append(f"output={ticket.output}")
    if ticket.sequences > 1:
        parts.append(f"sequences={ticket.sequences}")
    if ticket.is_stream:
        parts.append("stream=1")
    if ticket.strips_usage:
        parts.append("strip=1")
    if ticket.priority != "normal":
        parts.append(f"priority={ticket.priority}")
    if ticket.left_ms is not None:
        parts.append(f"left={ticket.left_ms}")
    return ";".join(parts)


def read_ticket(value: str) -> Ticket | None:
    """Ticket of a header value; None if it is not one. Parameters it does not know are skipped.

    >>> read_ticket("r1;tokens=120;stream=1").tokens
    120
    >>> read_ticket("r1;tokens=-3") is None
    True
    """
    reservation, *parameters = value.split(";")
    known = dict(part.split("=", 1) for part in parameters if "=" in part)
    tokens, output, sequences = known.get("tokens", ""), known.get("output", "0"), known.get("sequences", "1")
    text = known.get("text", "0.0.0").split(".")
    left = known.get("left", "0")
    counts = (output, left, *text)
    if (
        not reservation
        or len(text) != 3
        or not (is_amount(tokens) and is_amount(sequences) and all(map(_is_count, counts)))
    ):
        return None
    return Ticket(
        reservation=reservation,
        tokens=int(tokens),
        text=TextBytes(*map(int, text)) if "text" in known else None,
        output=int(output) if "output" in known else None,
        sequences=int(sequences),
        is_stream=known.get("stream") == "1",
        strips_usage=known.get("strip") == "1",
        priority=next((name for name in PRIORITIES if name == known.get("priority")), "normal"),
        left_ms=int(left) if "left" in known else None,
    )


def is_amount(text: str) -> bool:
    """Whether `text` is a whole number from 1 to 10**12 in ASCII digits."""
    return _is_count(text) and int(text) >= 1


def _is_count(text: str) -> bool:
    return len(text) <= 13 and text.isascii() and text.isdigit() and int(text) <= 10**12


def forwardable(headers: Iterable[tuple[bytes, bytes]], *, drop: frozenset[bytes] = frozenset()) -> RawHeaders:
    """Headers that may cross a hop: without hop-by-hop ones, those that `connection` names, ours, and `drop`.

    >>> forwardable([(b"Connection", b"x-a"), (b"X-A", b"1"), (b"Accept", b"*/*"), (b"X-Forebay-Why", b"2")])
    [(b'Accept', b'*/*')]
    """
    kept = [(name.lower(), name, value) for name, value in headers]
    named = {token.strip().lower() for lower, _, value in kept if lower == b"connection" for token in value.split(b",")}
    return [
        (name, value)
        for lower, name, value in kept
        if lower not in HOP_BY_HOP and lower not in drop and lower not in named and not lower.startswith(_OURS)
    ]


def header(headers: RawHeaders, name: bytes) -> bytes | None:
    """First value of a header; `name` in lower case.

    >>> header([(b"Content-Type", b"text/plain")], b"content-type")
    b'text/plain'
    """
    for key, value in headers:
        if key.lower() == name:
            return value
    return None
