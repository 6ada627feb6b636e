"""The result for people and for machines: the table, the losses one by one, and what was aimed at. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from tests.chaos.faults import KINDS
from tests.chaos.ledger import Ledger, Row, Verdict, rows
from tests.chaos.stand import TTL_S

#: Recovery is to be within two lives of a record.
RECOVERY_AIM_S: Final = 2 * TTL_S

#: Requests shown one by one to people; machines get all.
SHOWN: Final = 40


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a run has shown."""

    seed: int
    command: str
    requests: int
    verdicts: dict[str, int]
    quiet_p99_s: float | None
    rows: list[Row]
    skipped: dict[str, str]
    faults: list[str]
    """Requests that were lost, are not over, or broke in a way that no fault explains: one line each."""
    left: dict[str, float]
    """Counts of requests under way, anywhere, after the last one had ended: none."""
    lag_s: float
    """Longest delay of a sending by the client: the machine's own."""
    recovery_aim_s: float | None = RECOVERY_AIM_S
    """Longest recovery that is aimed at; None where one fault comes before the last is over: whose would it be?"""

    @property
    def lost(self) -> int:
        """Requests lost."""
        return self.verdicts.get(Verdict.LOST.name, 0)

    @property
    def missed(self) -> list[str]:
        """What was aimed at and not reached, a line each: every request of `faults`, whatever was near it, is one."""
        return [*self.faults, *self.aims_missed]

    @property
    def aims_missed(self) -> list[str]:
        """What was not reached beside single requests."""
        found = []
        for row in self.rows:
            if row.note:
                found.append(f"{row.fault}: {row.note}")
            aim_s = self.recovery_aim_s
            if aim_s is not None and (row.recovery_s is None or row.recovery_s > aim_s):
                shown = "not recovered" if row.recovery_s is None else f"recovered after {row.recovery_s:.1f} s"
                found.append(f"{row.fault}: {shown}, aim {aim_s:g} s")
        found += [f"left at the end: {what} = {count:g}" for what, count in self.left.items()]
        return found


def report(
    ledger: Ledger, *, seed: int, command: str, skipped: dict[str, str], left: dict[str, float], lag_s: float
) -> Report:
    """Account for everything."""
    verdicts = [ledger.verdict(call) for call in ledger.calls]
    faults = []
    for call, verdict in zip(ledger.calls, verdicts, strict=True):
        if not ledger.is_allowed(call) or verdict is Verdict.RUNNING:
            near = ", ".join(span.fault for span in ledger.spans if span.touches(call)) or "no fault"
            ending = call.ending.value if call.ending else "not over"
            kind = "stream" if call.is_stream else "plain"
            dropped = f", dropped by {' and '.join(call.dropped_by)}" if ledger.is_dropped(call) else ""
            faults.append(
                f"{kind} request {call.number} ({near}): {ending}{dropped}, status {call.status}, "
                f"instance {call.instance}, after {(call.ended_s or call.sent_s) - call.sent_s:.2f} s: {call.detail}"
            )
    return Report(
        seed=seed,
        command=command,
        requests=len(ledger.calls),
        verdicts={each.name: verdicts.count(each) for each in Verdict if each in verdicts},
        quiet_p99_s=ledger.quiet_p99_s(True),
        rows=rows(ledger),
        skipped=skipped,
        faults=faults,
        left=left,
        lag_s=lag_s,
    )


def merged(found: Sequence[Row], kinds: Mapping[str, str]) -> list[Row]:
    """Rows of the same kind as one: sums, and the worst of what was measured."""
    names = dict.fromkeys(kinds[row.fault] for row in sorted(found, key=lambda row: list(kinds).index(row.fault)))
    return [_merged(name, [row for row in found if kinds[row.fault] == name]) for name in names]


def _merged(name: str, found: Sequence[Row]) -> Row:
    times, kinds = sum(row.times for row in found), len({row.fault for row in found})
    recoveries = [row.recovery_s for row in found]
    return Row(
        fault=name if kinds == 1 else f"{name} ({kinds} kinds)",
        times=times,
        in_flight=sum(row.in_flight * row.times for row in found) / times,
        requests=sum(row.requests for row in found),
        lost=sum(row.lost for row in found),
        broken=sum(row.broken for row in found),
        undue=sum(row.undue for row in found),
        slow=sum(row.slow for row in found),
        deserved=sum(row.deserved for row in found),
        added_p99_s=max((row.added_p99_s for row in found if row.added_p99_s is not None), default=None),
        recovery_s=None if None in recoveries else max(each for each in recoveries if each is not None),
        recovery_median_s=None,
    )


def table(found: Sequence[Row]) -> str:
    """Rows as Markdown, as they stand in the README."""
    lines = [
        "| fault | times | in flight | requests | lost | broken | slow | added p99 TTFT | recovery, longest |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in found:
        own = f" ({row.deserved} got the engine's own error)" if row.deserved else ""
        broken = f"{row.broken}" + (f" ({row.undue} undue)" if row.undue else "")
        lines.append(
            f"| {row.fault} | {row.times} | {row.in_flight:.0f} | {row.requests}{own} | {row.lost} | {broken} "
            f"| {row.slow} | {_seconds(row.added_p99_s)} | {_seconds(row.recovery_s, 'not seen')} |"
        )
    return "\n".join(lines)


def text(found: Report) -> str:
    """Everything for people."""
    verdicts = "\n".join(f"{count:>8} {Verdict[name].value}" for name, count in found.verdicts.items())
    lines = [f"seed {found.seed}, {found.requests} requests, each accounted for:", verdicts, ""]
    lines += [f"quiet p99 TTFT {_seconds(found.quiet_p99_s)}, client lag at most {found.lag_s * 1000:.0f} ms", ""]
    lines += [table(found.rows), "", table(merged(found.rows, KINDS)), ""]
    lines += [f"SKIPPED {name}: {why}" for name, why in found.skipped.items()]
    lines += [f"FAULT   {line}" for line in found.faults[:SHOWN]]
    lines += [f"FAULT   and {len(found.faults) - SHOWN} more, all in the JSON"] if len(found.faults) > SHOWN else []
    lines += [f"MISSED  {line}" for line in found.aims_missed]
    lines += [] if found.missed else ["every aim reached"]
    return "\n".join(lines)


def _seconds(value: float | None, otherwise: str = "–") -> str:
    return otherwise if value is None else f"{value:.2f} s"
