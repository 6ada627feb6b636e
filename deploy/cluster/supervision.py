"""When a part is started, restarted, told to end and killed. Pure: no processes, no asyncio; time is an argument.

One machine a part. Its owner asks `decide` what to do, does it, and tells the machine what happened:

    waiting ──launched──▶ running ──exited──▶ waiting (a pause longer than the last)
       │                     │
       └──stop_requested─────┴──▶ ending ──exited──▶ ended

The pause before restart n of a row is `first_pause_s` · 2ⁿ⁻¹, at most `longest_pause_s`: 0.2, 0.4, 0.8, … 10 s.
A part that ran for `settled_s` begins a new row.
"""

from typing import Literal

import msgspec


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """How patient a supervisor is with a part."""

    first_pause_s: float = 0.2
    longest_pause_s: float = 10.0
    settled_s: float = 10.0
    ending_s: float = 5.0
    """How long a part may take to end after SIGTERM."""

    def pause_s(self, failures: int) -> float:
        """Return the pause before a restart after so many failures in a row.

        >>> [Policy().pause_s(n) for n in (1, 2, 3, 7)]
        [0.2, 0.4, 0.8, 10.0]
        """
        return min(self.longest_pause_s, self.first_pause_s * 2.0 ** min(failures - 1, 64))


class Launch(msgspec.Struct, frozen=True):
    """Start the process now."""


class Terminate(msgspec.Struct, frozen=True):
    """Ask the process to end."""


class Kill(msgspec.Struct, frozen=True):
    """End the process without asking."""


class Sleep(msgspec.Struct, frozen=True):
    """Nothing to do until this time, or until something happens where there is none."""

    until_s: float | None


class Finished(msgspec.Struct, frozen=True):
    """The part has ended for good."""


Decision = Launch | Terminate | Kill | Sleep | Finished

State = Literal["waiting", "running", "ending", "ended"]


class Supervision:
    """What is known of one part: its state, when it is due, how often it has failed.

    `is_repeated` says that exit status 0 is no failure: the part has done its work and begins anew after the first
    pause.
    """

    def __init__(self, policy: Policy, *, is_repeated: bool = False, now_s: float = 0.0) -> None:
        self.policy = policy
        self.is_repeated = is_repeated
        self.state: State = "waiting"
        self.restarts = 0
        self.failures_in_a_row = 0
        self.last_status: int | None = None
        self.due_s = now_s
        self.launched_s = now_s
        self.is_asked_to_end = False
        self.is_killed = False

    def __repr__(self) -> str:
        return f"<Supervision {self.state} restarts={self.restarts} last_status={self.last_status}>"

    def decide(self, now_s: float) -> Decision:
        """Return what is to be done at this time; asking changes nothing."""
        match self.state:
            case "ended":
                return Finished()
            case "waiting":
                return Launch() if now_s >= self.due_s else Sleep(self.due_s)
            case "running":
                return Sleep(None)
            case "ending" if not self.is_asked_to_end:
                return Terminate()
            case "ending" if self.is_killed:
                return Sleep(None)
            case _:
                return Kill() if now_s >= self.due_s else Sleep(self.due_s)

    def launched(self, now_s: float) -> None:
        """The process runs; a part that runs after an unplanned end counts as restarted.

        One that was stopped while it was being launched is now to be ended.
        """
        was_stopped = self.state == "ended"
        self.state = "running"
        self.launched_s = now_s
        self.restarts += self.failures_in_a_row > 0
        if was_stopped:
            self.stop_requested(now_s)

    def exited(self, now_s: float, status: int) -> None:
        """The process is gone, or could not be started."""
        self.last_status = status
        if self.state in {"ending", "ended"}:
            self.state = "ended"
            return
        has_settled = self.state == "running" and now_s - self.launched_s >= self.policy.settled_s
        self.failures_in_a_row = 0 if has_settled else self.failures_in_a_row
        is_done = self.is_repeated and status == 0
        self.failures_in_a_row = 0 if is_done else self.failures_in_a_row + 1
        self.state = "waiting"
        self.due_s = now_s + self.policy.pause_s(max(1, self.failures_in_a_row))

    def stop_requested(self, now_s: float) -> None:
        """The part is no longer wanted; asking again changes nothing."""
        if self.state == "waiting":
            self.state = "ended"
        elif self.state == "running":
            self.state = "ending"
            self.due_s = now_s

    def terminated(self, now_s: float) -> None:
        """The process was asked to end; from now it has `ending_s`."""
        self.is_asked_to_end = True
        self.due_s = now_s + self.policy.ending_s

    def killed(self) -> None:
        """The process was killed; its end is only to be waited for."""
        self.is_killed = True

    def hurried(self, now_s: float) -> None:
        """Nobody wants to wait any longer: what is ending is killed now, and what is being launched once it runs."""
        if self.state in {"ending", "ended"}:
            self.is_asked_to_end = True
            self.due_s = now_s
