"""The scheduler in virtual time: worked numbers, and what holds whatever is asked of it."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from deploy.engine.batching import Batcher, EngineModel, QueueFull, Step


def run(batcher: Batcher[str], steps: int = 10_000) -> tuple[list[Step[str]], float]:
    """Step until nothing is left (or `steps` are done), each step beginning where the last one ended."""
    done: list[Step[str]] = []
    now = 0.0
    while len(done) < steps and (step := batcher.step(now)) is not None:
        done.append(step)
        now += step.duration_s
    return done, now


def small_cache(**settings: object) -> EngineModel:
    """Four blocks of 16 tokens; a request may have 48."""
    return EngineModel(kv_capacity_tokens=64, kv_block_tokens=16, max_model_len=48, **settings)


def test_a_lone_request_takes_its_prefill_and_one_step_a_token():
    """100 prompt and 3 output tokens: 8 + 100 × 0.12 ms, then twice 8 + 0.25 ms."""
    batcher = Batcher[str](EngineModel())
    batcher.submit("a", 100, 3, 0.0)
    steps, now = run(batcher)
    assert [step.duration_s for step in steps] == pytest.approx([0.020, 0.00825, 0.00825])
    assert now == pytest.approx(0.0365)
    assert [step.first for step in steps] == [["a"], [], []]
    assert [step.finished for step in steps] == [[], [], ["a"]]


def test_a_fast_engine_divides_all_its_times():
    """Speed 4 makes 20 ms 5 ms."""
    batcher = Batcher[str](EngineModel(speed=4.0))
    batcher.submit("a", 100, 1, 0.0)
    assert batcher.step(0.0).duration_s == pytest.approx(0.005)


def test_a_long_prompt_is_prefilled_in_chunks_of_the_budget():
    """5 000 tokens are 2 048, 2 048 and 904; the first token comes with the last of them."""
    batcher = Batcher[str](EngineModel())
    batcher.submit("a", 5000, 1, 0.0)
    steps, _ = run(batcher)
    assert [step.prefill_tokens for step in steps] == [2048, 2048, 904]
    assert [step.produced for step in steps] == [[], [], ["a"]]


def test_decoding_goes_before_prefill_and_shares_its_steps():
    """While three decode, a chunk is 2 045 tokens, and each of the three gets its token in that long step."""
    batcher = Batcher[str](EngineModel())
    for key in "abc":
        batcher.submit(key, 10, 50, 0.0)
    batcher.step(0.0)
    batcher.submit("long", 4000, 1, 0.0)
    step = batcher.step(0.1)
    assert step.produced == ["a", "b", "c"]
    assert step.prefill_tokens == 2045
    assert step.duration_s == pytest.approx(0.008 + 2045 * 0.00012 + 3 * 0.00025)


def test_slots_bound_what_runs():
    """With two slots the third request starts when the first one has left."""
    batcher = Batcher[str](EngineModel(max_num_seqs=2))
    for key, tokens in (("a", 2), ("b", 5), ("c", 1)):
        batcher.submit(key, 10, tokens, 0.0)
    steps, _ = run(batcher)
    assert [step.first for step in steps] == [["a", "b"], [], ["c"], [], []]
    assert batcher.running == batcher.waiting == 0


def test_nobody_overtakes_a_head_that_does_not_fit():
    """A small request waits behind a large one that the cache has no room for."""
    batcher = Batcher[str](small_cache())
    batcher.submit("a", 30, 4, 0.0)  # two blocks of four
    batcher.step(0.0)
    batcher.submit("large", 40, 1, 0.0)  # three blocks and one to grow
    batcher.submit("small", 1, 1, 0.0)
    step = batcher.step(0.1)
    assert step.first == []
    assert (batcher.running, batcher.waiting) == (1, 2)
    steps, _ = run(batcher)
    assert [key for step in steps for key in step.first] == ["large", "small"]


def test_the_last_admitted_is_preempted_and_prefilled_again_with_what_it_had_said():
    """Two requests of 16 + 32 tokens in four blocks: the second gives way after 17 tokens and recomputes 33."""
    batcher = Batcher[str](small_cache())
    batcher.submit("a", 16, 32, 0.0)
    batcher.submit("b", 16, 32, 0.0)
    steps, _ = run(batcher)
    assert batcher.preemptions == 1
    assert [index for index, step in enumerate(steps) if step.preempted] == [17]
    assert [step.prefill_tokens for step in steps if step.prefill_tokens] == [32, 33]
    assert [index for index, step in enumerate(steps) if step.finished] == [31, 46]
    assert sum(step.produced.count("b") for step in steps) == 32
    assert [key for step in steps for key in step.first] == ["a", "b"]


def test_a_cache_holds_what_finishes_until_its_step_ends():
    """Blocks and the slot of a finished request are free when the next step begins, not before."""
    batcher = Batcher[str](small_cache())
    batcher.submit("a", 16, 1, 0.0)
    batcher.step(0.0)
    assert (batcher.running, batcher.kv_usage) == (1, 0.25)
    assert batcher.step(0.1) is None
    assert (batcher.running, batcher.kv_usage) == (0, 0.0)


def test_an_abort_frees_blocks_and_slot_at_once_and_only_once():
    """Aborting a running and a waiting request leaves nothing, and aborting again changes nothing."""
    batcher = Batcher[str](small_cache(max_num_seqs=1))
    batcher.submit("running", 16, 9, 0.0)
    batcher.submit("waiting", 16, 9, 0.0)
    batcher.step(0.0)
    assert batcher.abort("running")
    assert batcher.abort("waiting")
    assert not batcher.abort("running")
    assert (batcher.running, batcher.waiting, batcher.kv_usage) == (0, 0, 0.0)


def test_an_abort_in_the_step_that_finishes_it_is_no_error():
    """The request has had its last step, its client leaves before that ends."""
    batcher = Batcher[str](EngineModel())
    batcher.submit("a", 10, 1, 0.0)
    assert batcher.step(0.0).finished == ["a"]
    assert batcher.abort("a")
    assert batcher.step(0.1) is None


def test_the_queue_limit_counts_those_without_a_slot():
    """Two slots and a limit of one take three requests; the fourth is refused and leaves no trace."""
    batcher = Batcher[str](EngineModel(max_num_seqs=2, queue_limit=1))
    for key in "abc":
        batcher.submit(key, 10, 9, 0.0)
    with pytest.raises(QueueFull):
        batcher.submit("d", 10, 9, 0.0)
    assert not batcher.abort("d")
    batcher.step(0.0)
    assert (batcher.running, batcher.waiting) == (2, 1)


def test_waiting_times_are_summed_at_admission():
    """The second of two requests waits for the first one's 20 ms and 8.25 ms."""
    batcher = Batcher[str](EngineModel(max_num_seqs=1))
    batcher.submit("a", 100, 2, 0.0)
    batcher.submit("b", 100, 1, 0.0)
    run(batcher)
    assert batcher.admissions == 2
    assert batcher.queued_s == pytest.approx(0.02825)


def test_the_backlog_is_what_is_left_to_prefill():
    """A chunk done is no backlog any more."""
    batcher = Batcher[str](EngineModel())
    batcher.submit("a", 3000, 5, 0.0)
    batcher.submit("b", 10, 5, 0.0)
    assert batcher.backlog_tokens == 3010
    batcher.step(0.0)
    assert batcher.backlog_tokens == 3010 - 2048


@pytest.mark.parametrize(("prompt", "output"), [(0, 1), (1, 0), (40, 9)])
def test_lengths_the_model_does_not_take_are_errors(prompt, output):
    """Empty prompts, empty answers and more than the context."""
    with pytest.raises(ValueError, match="allowed"):
        Batcher[str](small_cache()).submit("a", prompt, output, 0.0)


def test_a_key_in_use_is_an_error():
    """Two live sequences never share a key."""
    batcher = Batcher[str](EngineModel())
    batcher.submit("a", 1, 1, 0.0)
    with pytest.raises(ValueError, match="in use"):
        batcher.submit("a", 1, 1, 0.0)


@pytest.mark.parametrize("wrong", [{"token_budget": 4}, {"kv_capacity_tokens": 32_768}])
def test_a_model_in_which_requests_could_wait_for_ever_is_refused(wrong):
    """The budget must serve all slots, the cache one request of full length."""
    with pytest.raises(ValueError, match="allowed is"):
        EngineModel(**wrong)


class AnyTraffic(RuleBasedStateMachine):
    """Requests come, leave and are served in any order; every one of them ends exactly once."""

    @initialize(
        slots=st.integers(1, 4),
        budget=st.integers(4, 40),
        blocks=st.integers(5, 12),
        limit=st.sampled_from([0, 0, 3]),
    )
    def start(self, slots: int, budget: int, blocks: int, limit: int) -> None:
        """Any small engine."""
        self.model = EngineModel(
            max_num_seqs=slots,
            token_budget=budget,
            kv_capacity_tokens=blocks * 8,
            kv_block_tokens=8,
            max_model_len=32,
            queue_limit=limit,
        )
        self.batcher = Batcher[int](self.model)
        self.wanted: dict[int, int] = {}
        self.got: dict[int, int] = {}
        self.order: list[int] = []
        self.next_key = 0

    @rule(prompt=st.integers(1, 24), output=st.integers(1, 8))
    def submit(self, prompt: int, output: int) -> None:
        """A request comes, and is taken or refused."""
        key, self.next_key = self.next_key, self.next_key + 1
        try:
            self.batcher.submit(key, prompt, output, 0.0)
        except QueueFull:
            assert self.model.queue_limit
            return
        self.wanted[key] = output
        self.got[key] = 0
        self.order.append(key)

    @precondition(lambda self: self.wanted)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        """The client of a live request leaves."""
        key = data.draw(st.sampled_from(sorted(self.wanted)))
        assert self.batcher.abort(key)
        self.forget(key)

    def forget(self, key: int) -> None:
        """The request has ended."""
        del self.wanted[key], self.got[key]
        if key in self.order:
            self.order.remove(key)

    @rule()
    def step(self) -> None:
        """One step: tokens are counted, first ones come in order, the last ones are announced."""
        step = self.batcher.step(0.0)
        if step is None:
            assert not self.wanted
            return
        decoding = len(step.produced)
        assert step.prefill_tokens + decoding > 0
        assert step.prefill_tokens <= self.model.token_budget
        assert decoding == len(set(step.produced))
        for key in step.produced:
            self.got[key] += 1
        # First tokens come in the order of arrival.
        assert step.first == self.order[: len(step.first)]
        del self.order[: len(step.first)]
        complete = [key for key in step.produced if self.got[key] == self.wanted[key]]
        assert step.finished == complete
        for key in complete:
            self.forget(key)

    @invariant()
    def the_cache_is_never_more_than_full(self) -> None:
        """Blocks held and free add up, slots are bounded, only the last admitted is in prefill."""
        if not hasattr(self, "batcher"):
            return
        held = sum(sequence.blocks for sequence in self.batcher._running)
        assert held + self.batcher._free_blocks == self.model.kv_blocks
        assert self.batcher._free_blocks >= 0
        assert all(sequence.blocks == 0 for sequence in self.batcher._waiting)
        assert self.batcher.running <= self.model.max_num_seqs
        assert not any(sequence.to_prefill for sequence in self.batcher._running[:-1])

    def teardown(self) -> None:
        """Left to itself, the engine serves everybody and ends empty."""
        if not hasattr(self, "batcher"):
            return
        for _ in range(2000):
            if not self.wanted:
                break
            self.step()
        assert not self.wanted
        assert self.batcher.step(0.0) is None
        assert self.batcher.kv_usage == 0.0


AnyTraffic.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAnyTraffic = AnyTraffic.TestCase
