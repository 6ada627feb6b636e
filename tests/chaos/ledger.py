"""The account of every request, and of every fault: who was hit, what they got, whether they deserved it. Pure.

Times are seconds of one monotonic clock. A request answers for the faults that its life overlaps.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from enum import Enum
from itertools import islice
from statistics import median
from typing import Final

import msgspec

from tests.chaos.answers import Ending
from tests.routing.figures import percentile

#: So many unaffected requests in a row, in the order of sending, are a recovery.
ROW: Final = 20

#: A request is unaffected if it is whole and its answer began within the quiet p99 and this much again, but at least
#: this many seconds: a busy machine is not an effect.
SLOWER: Final = 2.0
SLACK_S: Final = 0.5


class Verdict(Enum):
    """What a request's ending means."""

    ANSWERED = "answered"
    DESERVED = "failed with the error its fault deserves"
    LOST = "lost: failed though nothing had come, or dropped by a replica that nobody had killed"
    BROKEN = "broken after its first event, and told so"
    BROKEN_UNTOLD = "broken after its first event without a word, or with a forged end"
    RUNNING = "not over"


class Call(msgspec.Struct):
    """One request, from its sending to its end."""

    number: int
    is_stream: bool
    asked_tokens: int
    sent_s: float
    first_s: float | None = None
    """When content first came; of a plain answer, when it came."""
    ended_s: float | None = None
    ending: Ending | None = None
    status: int | None = None
    instance: str | None = None
    replica: str = ""
    refused: int = 0
    """How often a replica refused the connection: nothing was sent, and the balancer went elsewhere."""
    dropped_by: list[str] = []
    """Replicas that had it, or may have had it, and gave no response head: the balancer sent it to another one."""
    detail: str = ""

    @property
    def wait_s(self) -> float | None:
        """From sending to first content."""
        return None if self.first_s is None else self.first_s - self.sent_s


class Deserts(msgspec.Struct, frozen=True):
    """What the victims of a fault may get instead of an answer."""

    statuses: frozenset[int] = frozenset()
    """Error statuses of the engine's own that pass."""
    breaks_streams: bool = False
    """Streams that had begun may break, and say so."""
    untold: bool = False
    """Streams may end without an error event: nobody is left to write it, or the engine itself ended them so."""
    drops: bool = False
    """What a replica had without having begun to answer may have to be sent again: it was killed."""


class Span(msgspec.Struct):
    """One occurrence of a fault."""

    fault: str
    deserts: Deserts
    began_s: float
    healed_s: float | None = None
    settled_s: float | None = None
    """When everything was as before: what waited was answered, and the parts saw each other again."""
    in_flight: int = 0
    note: str = ""
    replica: str = ""
    """URL of the replica that was hit, whose requests alone it excuses; empty: a fault of something behind them all."""

    def touches(self, call: Call) -> bool:
        """Whether the request lived while the fault, or its aftermath, did."""
        return self._overlaps(call, self.settled_s)

    def holds(self, call: Call) -> bool:
        """Whether the request lived while the fault itself was there."""
        return self._overlaps(call, self.healed_s)

    def _overlaps(self, call: Call, over_s: float | None) -> bool:
        return self.began_s <= (call.ended_s or math.inf) and call.sent_s <= (over_s or math.inf)


class Ledger:
    """All calls in the order of sending, and all spans in the order of beginning, each settled before the next."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.spans: list[Span] = []
        self._limits_s: tuple[int, dict[bool, float]] = (-1, {})

    def spans_of(self, call: Call) -> list[Span]:
        """The faults that a request lived through."""
        last = bisect_right(self.spans, call.ended_s or math.inf, key=lambda span: span.began_s)
        found = []
        for span in reversed(self.spans[:last]):
            if not span.touches(call):
                break
            found.append(span)
        return found

    def running(self) -> list[Call]:
        """Requests that are not over."""
        return [call for call in self.calls[-2000:] if call.ending is None]

    def deserts(self, call: Call) -> Deserts:
        """What a request may get instead of an answer: what any of the faults it lived through allows.

        A fault of a replica excuses nothing of what another one answered.
        """
        found = [span.deserts for span in self.spans_of(call) if span.replica in ("", call.replica)]
        return Deserts(
            frozenset[int]().union(*(each.statuses for each in found)),
            any(each.breaks_streams for each in found),
            any(each.untold for each in found),
        )

    def is_dropped(self, call: Call) -> bool:
        """Whether a replica had the request and dropped it, though nobody had killed that replica."""
        killed = {span.replica for span in self.spans_of(call) if span.deserts.drops}
        return not killed.issuperset(call.dropped_by)

    def verdict(self, call: Call) -> Verdict:
        """What became of a request."""
        if call.ending is None:
            return Verdict.RUNNING
        if self.is_dropped(call):
            return Verdict.LOST  # that it was sent again is the balancer's merit
        if call.ending is Ending.WHOLE:
            return Verdict.ANSWERED
        deserts = self.deserts(call)
        if call.first_s is None:
            is_deserved = call.ending is Ending.REFUSED and call.status in deserts.statuses
            return Verdict.DESERVED if is_deserved else Verdict.LOST
        if call.ending is Ending.ERROR_EVENT:
            return Verdict.BROKEN
        return Verdict.BROKEN_UNTOLD

    def is_allowed(self, call: Call) -> bool:
        """Whether the faults that a request lived through explain its ending."""
        match self.verdict(call):
            case Verdict.LOST:
                return False
            case Verdict.BROKEN:
                return self.deserts(call).breaks_streams
            case Verdict.BROKEN_UNTOLD:
                deserts = self.deserts(call)
                return deserts.breaks_streams and deserts.untold and call.ending is not Ending.FORGED
        return True

    def quiet_p99_s(self, is_stream: bool) -> float | None:
        """99th percentile of the wait for first content while no fault was near; None before there is one."""
        waits = [
            call.wait_s
            for call in self.calls
            if call.is_stream is is_stream and call.ending is Ending.WHOLE and call.wait_s is not None
            if not self.spans_of(call)
        ]
        return percentile(waits, 0.99) if waits else None

    def limits_s(self) -> dict[bool, float]:
        """How long an unaffected request waits at most, by whether it is a stream; the same for a whole span."""
        spans, limits = self._limits_s
        if spans != len(self.spans):
            limits = {
                kind: math.inf if quiet is None else max(SLOWER * quiet, quiet + SLACK_S)
                for kind in (True, False)
                for quiet in (self.quiet_p99_s(kind),)
            }
            self._limits_s = len(self.spans), limits
        return limits

    def recovery_s(self, since_s: float) -> float | None:
        """From `since_s` to the sending of the first of ROW unaffected requests in a row; None: not yet.

        Who got an error that its fault deserves does not end a row: it passes for the request's own fault.
        """
        limits = self.limits_s()
        in_a_row: list[Call] = []
        first = bisect_left(self.calls, since_s, key=lambda call: call.sent_s)
        for call in islice(self.calls, first, None):
            if not is_unaffected(call, limits) and self.verdict(call) is not Verdict.DESERVED:
                in_a_row.clear()
                continue
            in_a_row.append(call)
            if len(in_a_row) == ROW:
                return in_a_row[0].sent_s - since_s
        return None


def is_unaffected(call: Call, limits_s: dict[bool, float]) -> bool:
    """Whether a request was answered whole, and about as soon as on a quiet day."""
    return call.ending is Ending.WHOLE and call.wait_s is not None and call.wait_s <= limits_s[call.is_stream]


class Row(msgspec.Struct, frozen=True):
    """One line of the table: all occurrences of one fault."""

    fault: str
    times: int
    in_flight: float
    """When it began, mean."""
    requests: int
    """Under way when it began, or sent before all was as before."""
    lost: int
    broken: int
    """After their first event."""
    undue: int
    """Of all these, those that the fault does not explain: broken streams where none may break, or untold ones."""
    slow: int
    """Of those while the fault itself was there, requests that waited longer than on a quiet day."""
    deserved: int
    """Failed with the engine's own error, where the fault is that error."""
    added_p99_s: float | None
    """p99 of the wait for a stream's first content, above that of the quiet moments of the same run."""
    recovery_s: float | None
    """The longest; None: one has not recovered."""
    recovery_median_s: float | None
    note: str = ""


def rows(ledger: Ledger) -> list[Row]:
    """The table, in the order in which the faults first came."""
    calls: dict[str, list[Call]] = {span.fault: [] for span in ledger.spans}
    for call in ledger.calls:
        for name in {span.fault for span in ledger.spans_of(call)}:
            calls[name].append(call)
    quiet_s = ledger.quiet_p99_s(True)
    return [
        _row(ledger, name, [span for span in ledger.spans if span.fault == name], hit, quiet_s)
        for name, hit in calls.items()
    ]


def _row(ledger: Ledger, name: str, spans: Sequence[Span], calls: Sequence[Call], quiet_s: float | None) -> Row:
    held = [call for call in calls if any(span.holds(call) for span in spans)]
    verdicts, limits = [ledger.verdict(call) for call in calls], ledger.limits_s()
    waits = [call.wait_s for call in held if call.is_stream and call.wait_s is not None]
    p99_s = percentile(waits, 0.99) if waits else None
    recoveries = [ledger.recovery_s(span.began_s) for span in spans]
    known = [each for each in recoveries if each is not None]
    return Row(
        fault=name,
        times=len(spans),
        in_flight=sum(span.in_flight for span in spans) / len(spans),
        requests=len(verdicts),
        lost=verdicts.count(Verdict.LOST),
        broken=verdicts.count(Verdict.BROKEN) + verdicts.count(Verdict.BROKEN_UNTOLD),
        undue=sum(not ledger.is_allowed(call) for call in calls),
        slow=sum(call.ending is Ending.WHOLE and not is_unaffected(call, limits) for call in held),
        deserved=verdicts.count(Verdict.DESERVED),
        added_p99_s=None if p99_s is None or quiet_s is None else p99_s - quiet_s,
        recovery_s=max(known) if len(known) == len(spans) else None,
        recovery_median_s=median(known) if known else None,
        note="; ".join(dict.fromkeys(span.note for span in spans if span.note)),
    )
