"""The timeline: what holds whatever happens, in whatever order."""

import math

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.workers.test_timeline import known_speeds, record_of
from workers.timeline import Request, Stage, Work

#: The six counts that are published; each accepted request is in exactly one of them.
COUNTS = (
    "prepare_queue_depth",
    "active_prepare",
    "ready_queue_depth",
    "active_ready",
    "pending_prefill_count",
    "active_decode_count",
)


TIMES = st.sampled_from([0.0, 0.001, 0.003, 0.05, 0.5, 3.0, 40.0, 5000.0])


class AnyOrder(RuleBasedStateMachine):
    """Requests come, move and leave in any order, twice and late, while time passes and others use the engine."""

    def __init__(self) -> None:
        super().__init__()
        self.timeline = known_speeds(slots=3)
        self.now = 1000.0
        self.live: dict[str, tuple[Request, Stage]] = {}
        self.gone: list[Request] = []
        self.names = 0

    @rule(
        tokens=st.sampled_from([1, 100, 1024, 10**12]),
        cap=st.sampled_from([None, 0, 1, 500]),
        is_stream=st.booleans(),
        sequences=st.sampled_from([1, 1, 2, 3, 100]),
    )
    def accept(self, tokens: int, cap: int | None, is_stream: bool, sequences: int) -> None:
        """A request comes."""
        self.names += 1
        request = self.timeline.accept(str(self.names), Work(tokens, cap, is_stream, sequences), self.now)
        assert request.places == min(sequences, 3)
        assert 0 <= request.predicted_ttft_s < math.inf
        self.live[request.id] = (request, Stage.PREPARE_QUEUE)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), stage=st.sampled_from(Stage))
    def advance(self, data: st.DataObject, stage: Stage) -> None:
        """A message says that a request has reached a stage: the next, one further on, or one long behind it."""
        name = data.draw(st.sampled_from(sorted(self.live)))
        request, reached = self.live[name]
        self.timeline.advance(request, stage, self.now)
        assert request.stage >= max(reached, stage)
        self.live[name] = (request, request.stage)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), tokens=st.sampled_from([None, 0, 1, 2, 300]), is_success=st.booleans())
    def finish(self, data: st.DataObject, tokens: int | None, is_success: bool) -> None:
        """A request ends, fails or is cancelled, wherever it is."""
        request, _ = self.live.pop(data.draw(st.sampled_from(sorted(self.live))))
        assert self.timeline.finish(request, self.now, output_tokens=tokens, is_success=is_success)
        self.gone.append(request)

    @precondition(lambda self: self.gone)
    @rule(data=st.data(), stage=st.sampled_from(Stage))
    def late(self, data: st.DataObject, stage: Stage) -> None:
        """Messages about a request that is gone."""
        request = data.draw(st.sampled_from(self.gone))
        self.timeline.advance(request, stage, self.now)
        assert not self.timeline.finish(request, self.now, output_tokens=7)

    @rule(by_s=TIMES)
    def pass_time(self, by_s: float) -> None:
        """Time passes."""
        self.now += by_s

    @rule(requests=st.integers(0, 5))
    def others(self, requests: int) -> None:
        """The engine reports requests that are not ours."""
        self.timeline.foreign = requests

    @invariant()
    def every_request_is_in_exactly_one_count(self) -> None:
        """The six published counts are exact, never negative, and their sum is what is in flight."""
        record = record_of(self.timeline, self.now)
        assert record is not None
        counts = [getattr(record, name) for name in COUNTS]
        assert min(counts) >= 0
        assert sum(counts) == record.inflight == len(self.timeline) == len(self.live)
        stages = [request.stage for request, _ in self.live.values()]
        assert counts == [stages.count(stage) for stage in Stage]

    @invariant()
    def the_plan_is_finite_and_work_never_reads_zero(self) -> None:
        """Durations are at least 0 and finite; where there is work, there is time left."""
        plan = self.timeline.plan(self.now)
        times = (
            plan.wait_s,
            plan.total_backlog_s,
            plan.next_slot_ready_s,
            plan.prefill_free_s,
            plan.prefill_backlog_s,
            plan.decode_backlog_s,
        )
        assert all(0 <= seconds < math.inf for seconds in times)
        stages = [request.stage for request, _ in self.live.values()]
        if any(stage < Stage.DECODE for stage in stages):
            assert min(plan.prefill_free_s, plan.prefill_backlog_s, plan.wait_s) > 0
            assert plan.queued_tokens >= sum(stage < Stage.DECODE for stage in stages)
        else:
            assert plan.queued_tokens == 0
        if Stage.DECODE in stages:
            assert plan.decode_backlog_s > 0
        places = sum(request.places for request, _ in self.live.values())
        assert self.timeline.places == places
        if places + self.timeline.foreign >= self.timeline.slots:
            assert min(plan.next_slot_ready_s, plan.total_backlog_s) > 0
            record = record_of(self.timeline, self.now)
            assert record is not None
            assert record.predicted_total_backlog_ms >= 1
        else:
            assert plan.next_slot_ready_s == 0

    def teardown(self) -> None:
        """When all have left nothing remains."""
        self.timeline.foreign = 0
        for request, _ in self.live.values():
            assert self.timeline.finish(request, self.now, is_success=False)
        assert [self.timeline.count(stage) for stage in Stage] == [0] * 6
        assert (len(self.timeline), self.timeline.on_engine, self.timeline.waiting) == (0, 0, 0)
        assert (self.timeline.places, self.timeline.sequences_on_engine) == (0, 0)
        plan = self.timeline.plan(self.now)
        assert (plan.wait_s, plan.total_backlog_s, plan.queued_tokens) == (0, 0, 0)


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
