"""An engine that jumps: the batcher's very schedule, without a call for each decode step in which nothing else happens.

Owns the arithmetic of steps; `deploy.engine.batching.Batcher` is the reference, and a test holds the two together. A
run of decode steps is one event, cut at the next step's begin when a request comes that could be admitted. Preemption
is left out: a fleet whose caches overflow is refused, not simulated wrongly. No clock: time is an argument.
"""

import heapq
import math
from collections import deque

from deploy.engine.batching import EngineModel


class Underway:
    """What the engine is doing: one step with prefill in it, or a run of `steps` decode steps."""

    __slots__ = ("begun_s", "completed", "step_s", "steps")

    def __init__(self, begun_s: float, step_s: float, steps: int, completed: list["Sequence"]) -> None:
        self.begun_s = begun_s
        self.step_s = step_s
        self.steps = steps
        self.completed = completed
        """Sequences whose prefill this step completes."""

    @property
    def ends_s(self) -> float:
        """When it is over."""
        return self.begun_s + self.step_s * self.steps

    def steps_begun(self, now: float) -> int:
        """Steps of it that have begun by `now`, at least 1; one that would begin at `now` has not."""
        return max(1, min(self.steps, math.ceil((now - self.begun_s) / self.step_s - 1e-9)))


class Sequence:
    """A request in the engine."""

    __slots__ = ("joined", "key", "output_tokens", "prompt_tokens", "to_prefill")

    def __init__(self, key: int, prompt_tokens: int, output_tokens: int) -> None:
        self.key = key
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.to_prefill = prompt_tokens
        self.joined = 0
        """Value of the engine's step counter when it began to decode."""


class JumpingEngine:
    """One engine; whoever drives it calls `begin` when it is idle and `end` at `ends_s`."""

    def __init__(self, model: EngineModel) -> None:
        self.model = model
        self.underway: Underway | None = None
        self.waiting_tokens = 0
        """Prompt tokens of sequences not admitted yet."""
        self._waiting: deque[Sequence] = deque()
        self._prefilling: Sequence | None = None
        self._decoding: list[tuple[int, int, Sequence]] = []  # heap by the step at which they finish
        self._steps = 0
        self._context_tokens = 0  # of the decoding sequences, at step 0 of the counter

    @property
    def ends_s(self) -> float:
        """When what is under way ends; infinity when the engine is idle."""
        return self.underway.ends_s if self.underway else math.inf

    @property
    def waiting(self) -> int:
        """Sequences not admitted yet."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Sequences in the batch, those that finish in the step under way included."""
        completed = len(self.underway.completed) if self.underway else 0
        return len(self._decoding) + completed + (self._prefilling is not None)

    @property
    def decoding(self) -> int:
        """Sequences that decode in the next step, as far as the engine knows."""
        return len(self._decoding) + (len(self.underway.completed) if self.underway else 0)

    @property
    def unfinished_prefill_tokens(self) -> int:
        """Prompt tokens that no step has taken yet, in the batch and waiting."""
        return self.waiting_tokens + (self._prefilling.to_prefill if self._prefilling else 0)

    def step_left_s(self, now: float) -> float:
        """Seconds until the next step can begin."""
        if self.underway is None:
            return 0.0
        return max(0.0, self.underway.begun_s + self.underway.steps_begun(now) * self.underway.step_s - now)

    def kv_tokens(self, now: float) -> int:
        """Tokens in the KV cache, blocks rounded up by half a block on average."""
        steps = self._steps + (self.underway.steps_begun(now) - 1 if self.underway else 0)
        others = ([self._prefilling] if self._prefilling else []) + (self.underway.completed if self.underway else [])
        half_blocks = self.running * self.model.kv_block_tokens // 2
        decoding = self._context_tokens + len(self._decoding) * steps
        return decoding + half_blocks + sum(sequence.prompt_tokens for sequence in others)

    def submit(self, key: int, prompt_tokens: int, output_tokens: int, now: float) -> None:
        """Queue a request; a run of decode steps ends early for it where it can be admitted."""
        self._waiting.append(Sequence(key, prompt_tokens, output_tokens))
        self.waiting_tokens += prompt_tokens
        underway = self.underway
        if underway is not None and underway.steps > 1 and self.running < self.model.max_num_seqs:
            underway.steps = underway.steps_begun(now)

    def begin(self, now: float) -> bool:
        """Begin the next step or run of steps; False when there is nothing to do."""
        decoding = len(self._decoding)
        prefilled, completed = self._prefill(self.model.token_budget - decoding)
        if prefilled:
            step_s = self.model.step_s(prefill_tokens=prefilled, decoding=decoding)
            self.underway = Underway(now, step_s, 1, completed)
        elif decoding:
            steps = self._decoding[0][0] - self._steps
            self.underway = Underway(now, self.model.step_s(prefill_tokens=0, decoding=decoding), steps, [])
        if self.kv_tokens(now) > self.model.kv_capacity_tokens:
            raise RuntimeError("the KV cache overflows: this engine does not simulate preemption")
        return self.underway is not None

    def end(self) -> tuple[list[int], list[int]]:
        """End what is under way: keys that got their first token, and keys that are finished."""
        assert self.underway is not None
        completed = self.underway.completed
        self._steps += self.underway.steps
        self.underway = None
        finished = []
        while self._decoding and self._decoding[0][0] <= self._steps:
            sequence = heapq.heappop(self._decoding)[2]
            self._context_tokens -= sequence.prompt_tokens + 1 - sequence.joined
            finished.append(sequence.key)
        for sequence in completed:
            if sequence.output_tokens == 1:
                finished.append(sequence.key)
                continue
            sequence.joined = self._steps
            self._context_tokens += sequence.prompt_tokens + 1 - sequence.joined
            heapq.heappush(self._decoding, (self._steps + sequence.output_tokens - 1, sequence.key, sequence))
        return [sequence.key for sequence in completed], finished

    def _prefill(self, budget: int) -> tuple[int, list[Sequence]]:
        """Spend the token budget of a step: tokens prefilled, and the sequences that are through."""
        left, completed = budget, []
        while left:
            if self._prefilling is None:
                if not self._waiting or len(self._decoding) + len(completed) >= self.model.max_num_seqs:
                    break
                self._prefilling = self._waiting.popleft()
                self.waiting_tokens -= self._prefilling.prompt_tokens
            chunk = min(left, self._prefilling.to_prefill)
            left -= chunk
            self._prefilling.to_prefill -= chunk
            if not self._prefilling.to_prefill:
                completed.append(self._prefilling)
                self._prefilling = None
        return budget - left, completed
