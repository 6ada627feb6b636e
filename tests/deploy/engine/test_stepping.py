"""Real time, with a clock that stands until it is moved."""

import heapq
import itertools
from collections.abc import Callable

import pytest

from deploy.engine.batching import EngineModel, QueueFull
from deploy.engine.exchange import Choice
from deploy.engine.intake import Api, Asked
from deploy.engine.metrics import Counters
from deploy.engine.prompt import Prompt
from deploy.engine.stepping import StepLoop


class FakeLoop:
    """The three things a step loop asks of an event loop; `lateness_s` is by how much every timer is late."""

    def __init__(self, lateness_s: float = 0.0) -> None:
        self.now = 100.0
        self.lateness_s = lateness_s
        self.timers: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()

    def time(self) -> float:
        """The time that the last timer left."""
        return self.now

    def call_soon(self, callback: Callable[[], None]) -> object:
        """A timer that is due."""
        return self.call_at(self.now, callback)

    def call_at(self, when: float, callback: Callable[[], None]) -> object:
        """A timer."""
        heapq.heappush(self.timers, (when, next(self._count), callback))
        return object()

    def run(self) -> int:
        """Fire timers until none is left; how many there were."""
        fired = 0
        while self.timers:
            when, _, callback = heapq.heappop(self.timers)
            self.now = max(self.now, when + (self.lateness_s if when > self.now else 0.0))
            callback()
            fired += 1
        return fired


class Told:
    """Stands for an exchange; keeps when each token came."""

    def __init__(self, loop: FakeLoop) -> None:
        self.loop = loop
        self.at: list[float] = []

    def emit(self, choice: Choice) -> None:
        """Note the time, and ask for the next token."""
        self.at.append(self.loop.now - 100.0)
        choice.next_emit = choice.tokens + 1


def request(loop: FakeLoop, prompt_tokens: int, max_tokens: int, n: int = 1) -> tuple[Asked, list[Choice], Told]:
    """A request with its choices and what they tell."""
    asked = Asked(
        api=Api.CHAT,
        model="sim",
        prompts=[Prompt(prompt_tokens, b"")],
        offsets=[0],
        n=n,
        max_tokens=max_tokens,
        limit=max_tokens,
        is_stream=True,
        has_usage_chunk=False,
        has_usage_everywhere=False,
    )
    told = Told(loop)
    return asked, [Choice(told, index, 0, max_tokens, 1) for index in range(n)], told


def test_tokens_come_when_their_steps_end():
    """20 ms of prefill, then 8.25 ms a token."""
    loop = FakeLoop()
    steps = StepLoop(EngineModel(), Counters(), loop)
    asked, choices, told = request(loop, 100, 3)
    steps.submit(asked, choices)
    loop.run()
    assert told.at == pytest.approx([0.02, 0.02825, 0.0365])


def test_late_timers_do_not_add_up():
    """Given timers that are 5 ms late each, then the hundredth token is 5 ms late, not 500."""
    loop = FakeLoop(lateness_s=0.005)
    counters = Counters()
    steps = StepLoop(EngineModel(), counters, loop)
    asked, choices, told = request(loop, 100, 100)
    steps.submit(asked, choices)
    loop.run()
    assert told.at[-1] == pytest.approx(0.02 + 99 * 0.00825 + 0.005)
    assert counters.slip_s == 0.0


def test_a_machine_that_is_far_too_late_gives_time_up_and_says_so():
    """Given one stall of two seconds, then the schedule begins anew after it, and the slip is counted."""
    loop = FakeLoop(lateness_s=2.0)
    counters = Counters()
    steps = StepLoop(EngineModel(), counters, loop)
    asked, choices, told = request(loop, 100, 2)
    steps.submit(asked, choices)
    loop.run()
    assert counters.slip_s == pytest.approx(4.0)
    assert told.at == pytest.approx([2.02, 4.02825])


def test_an_idle_engine_sets_no_timer():
    """Before the first and after the last request nothing is scheduled."""
    loop = FakeLoop()
    steps = StepLoop(EngineModel(), Counters(), loop)
    assert loop.timers == []
    asked, choices, _ = request(loop, 10, 5)
    steps.submit(asked, choices)
    assert loop.run() == 1 + 5
    loop.now += 60
    steps.submit(*request(loop, 10, 1)[:2])
    assert loop.run() == 1 + 1


def test_what_arrives_in_one_turn_shares_a_step():
    """Two requests submitted before the loop turns are prefilled together: 8 + 200 × 0.12 ms."""
    loop = FakeLoop()
    steps = StepLoop(EngineModel(), Counters(), loop)
    first, second = request(loop, 100, 1), request(loop, 100, 1)
    for asked, choices, _ in (first, second):
        steps.submit(asked, choices)
    loop.run()
    assert first[2].at == second[2].at == pytest.approx([0.032])


def test_a_request_is_taken_whole_or_not_at_all():
    """Given room for two, when four answers are asked for, then none is queued."""
    loop = FakeLoop()
    counters = Counters()
    steps = StepLoop(EngineModel(max_num_seqs=1, queue_limit=1), counters, loop)
    asked, choices, _ = request(loop, 10, 5, n=4)
    with pytest.raises(QueueFull):
        steps.submit(asked, choices)
    assert steps.batcher.waiting == 0
    assert counters.rejected == 1


def test_counters_follow_the_steps():
    """Prompt tokens at prefill, generated ones as they are produced."""
    loop = FakeLoop()
    counters = Counters()
    steps = StepLoop(EngineModel(), counters, loop)
    steps.submit(*request(loop, 3000, 7)[:2])
    loop.run()
    assert (counters.prompt_tokens, counters.generation_tokens, counters.steps) == (3000, 7, 8)
