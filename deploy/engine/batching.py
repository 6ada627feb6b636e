"""Continuous batching with chunked prefill, as vLLM does it: which sequence gets which tokens in which step.

Pure: no asyncio, no clock, no HTTP. Time is an argument, a step says how long it takes, and whoever drives the
batcher (the server in real time, a test or a simulation in virtual time) decides when the next one begins.

The rules, in the order a step applies them:

1. What the step before finished leaves, and its KV blocks are free.
2. Every sequence that is past its prefill decodes one token. One that needs a block when none is left takes it from
   the sequence admitted last, which goes back to the head of the waiting queue and will be prefilled again, its own
   tokens so far included (recompute).
3. What is left of the token budget goes to prefill, first come, first served: the chunk under way, then the head of
   the waiting queue, admitted when a slot is free and its context plus one block fits. Nobody overtakes the head,
   and nothing is admitted in a step that preempted.
"""

from collections import deque
from collections.abc import Hashable
from typing import Annotated, Generic, TypeVar

import msgspec
from msgspec import Meta

Key = TypeVar("Key", bound=Hashable)


class QueueFull(Exception):
    """The waiting queue is at its limit; the request was not taken."""


class EngineModel(msgspec.Struct, frozen=True, kw_only=True):
    """How fast an engine is and how much it holds.

    step = (step_base_ms + prefill tokens × prefill_ms_per_token + decoding sequences × decode_ms_per_seq) / speed

    >>> EngineModel().step_s(prefill_tokens=0, decoding=4)
    0.009
    """

    max_num_seqs: Annotated[int, Meta(ge=1, le=4096, description="Sequences that run at once.")] = 16
    token_budget: Annotated[int, Meta(ge=1, le=1_000_000, description="Tokens a step may process, decode first.")] = (
        2048
    )
    step_base_ms: Annotated[float, Meta(gt=0, le=60_000, description="Fixed time of a step, ms.")] = 8.0
    prefill_ms_per_token: Annotated[float, Meta(ge=0, le=1000, description="Time per prefilled token, ms.")] = 0.12
    decode_ms_per_seq: Annotated[float, Meta(ge=0, le=1000, description="Time per decoding sequence and step, ms.")] = (
        0.25
    )
    kv_capacity_tokens: Annotated[int, Meta(ge=2, le=1_000_000_000, description="Tokens the KV cache holds.")] = 200_000
    kv_block_tokens: Annotated[int, Meta(ge=1, le=4096, description="Tokens of a KV block.")] = 16
    speed: Annotated[float, Meta(gt=0, le=1000, description="All step times are divided by this.")] = 1.0
    max_model_len: Annotated[int, Meta(ge=2, le=10_000_000, description="Most tokens of a prompt and its answer.")] = (
        32_768
    )
    queue_limit: Annotated[
        int, Meta(ge=0, le=1_000_000, description="Requests that may wait for a slot (--max-num-queued-reqs); 0: any.")
    ] = 0

    def __post_init__(self) -> None:
        """Refuse a model in which a single request could wait for ever."""
        if self.token_budget < self.max_num_seqs:
            raise ValueError(
                f"token_budget is {self.token_budget}, allowed is max_num_seqs ({self.max_num_seqs}) or more: "
                "every running sequence decodes one token a step"
            )
        needed_tokens = (_blocks(self.max_model_len, self.kv_block_tokens) + 1) * self.kv_block_tokens
        if self.kv_blocks * self.kv_block_tokens < needed_tokens:
            raise ValueError(
                f"kv_capacity_tokens is {self.kv_capacity_tokens}, allowed is {needed_tokens} or more: "
                f"one request of max_model_len ({self.max_model_len}) and a block must fit"
            )

    @property
    def kv_blocks(self) -> int:
        """Whole blocks of the KV cache."""
        return self.kv_capacity_tokens // self.kv_block_tokens

    def step_s(self, *, prefill_tokens: int, decoding: int) -> float:
        """Duration of a step in seconds."""
        work_ms = prefill_tokens * self.prefill_ms_per_token + decoding * self.decode_ms_per_seq
        return (self.step_base_ms + work_ms) / self.speed / 1000


class Step(msgspec.Struct, Generic[Key], frozen=True, kw_only=True):
    """What one step does; its tokens exist when it ends, `duration_s` after it began."""

    duration_s: float
    produced: list[Key]  # each gets exactly one token
    first: list[Key]  # those of them whose very first token this is
    finished: list[Key]  # those of them whose last token this is
    prefill_tokens: int
    preempted: int


class _Sequence(Generic[Key]):
    """A request's way through the engine; `context_tokens` is its prompt and what it has produced."""

    __slots__ = ("blocks", "context_tokens", "is_new", "key", "left", "room_tokens", "to_prefill", "waits_since_s")

    def __init__(self, key: Key, prompt_tokens: int, max_tokens: int, now: float) -> None:
        self.key = key
        self.context_tokens = prompt_tokens
        self.to_prefill = prompt_tokens
        self.left = max_tokens
        self.blocks = 0
        self.room_tokens = 0
        self.is_new = True
        self.waits_since_s: float | None = now  # until its first admission


def _blocks(tokens: int, block_tokens: int) -> int:
    return -(-tokens // block_tokens)


class Batcher(Generic[Key]):
    """The scheduler of one engine. A key stands for one sequence and comes back in the steps that serve it.

    >>> batcher = Batcher[str](EngineModel())
    >>> batcher.submit("a", prompt_tokens=100, max_tokens=2, now=0.0)
    >>> batcher.step(0.0).duration_s  # 8 ms + 100 tokens × 0.12 ms
    0.02
    >>> batcher.step(0.02).finished
    ['a']
    >>> batcher.step(0.03) is None
    True
    """

    def __init__(self, model: EngineModel) -> None:
        self.model = model
        self.preemptions = 0  # since the start
        self.admissions = 0  # sequences admitted for the first time
        self.queued_s = 0.0  # the time those had waited, summed
        self._free_blocks = model.kv_blocks
        self._waiting: deque[_Sequence[Key]] = deque()
        self._running: list[_Sequence[Key]] = []  # in order of admission; only the last may still be in prefill
        self._sequences: dict[Key, _Sequence[Key]] = {}
        self._has_finished = False

    def __repr__(self) -> str:
        return f"<Batcher running={self.running} waiting={self.waiting} kv={self.kv_usage:.3f}>"

    @property
    def running(self) -> int:
        """Sequences in the batch, those that finish in the step under way included."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Sequences not admitted yet, and preempted ones."""
        return len(self._waiting)

    @property
    def kv_usage(self) -> float:
        """Share of the KV blocks in use, in [0, 1]."""
        return 1.0 - self._free_blocks / self.model.kv_blocks

    @property
    def backlog_tokens(self) -> int:
        """Prompt tokens still to prefill, running and waiting. Costs O(waiting)."""
        tail = self._running[-1].to_prefill if self._running else 0
        return tail + sum(sequence.to_prefill for sequence in self._waiting)

    def submit(self, key: Key, prompt_tokens: int, max_tokens: int, now: float) -> None:
        """Queue a request for `max_tokens` (≥ 1) tokens after a prompt of `prompt_tokens` (≥ 1).

        Raises QueueFull at the queue's limit, ValueError for a key in use or a length the model does not take.
        """
        if key in self._sequences:
            raise ValueError(f"key {key!r} is in use")
        if prompt_tokens < 1 or max_tokens < 1 or prompt_tokens + max_tokens > self.model.max_model_len:
            raise ValueError(
                f"{prompt_tokens} prompt and {max_tokens} output tokens: "
                f"allowed are 1 or more of each, {self.model.max_model_len} in all"
            )
        limit = self.model.queue_limit
        # A slot that is free takes its request at the next step: such a request does not count as queued.
        if limit and len(self._waiting) >= limit + max(0, self.model.max_num_seqs - len(self._running)):
            raise QueueFull
        sequence = _Sequence(key, prompt_tokens, max_tokens, now)
        self._sequences[key] = sequence
        self._waiting.append(sequence)

    def abort(self, key: Key) -> bool:
        """Drop a sequence at once, with its KV blocks; False if there is none (finished or aborted before)."""
        sequence = self._sequences.pop(key, None)
        if sequence is None:
            return False
        self._free_blocks += sequence.blocks
        # Only running sequences hold blocks: prompts have at least one token.
        (self._running if sequence.blocks else self._waiting).remove(sequence)
        return True

    def step(self, now: float) -> Step[Key] | None:
        """Begin the next step at `now` (seconds, any clock); None when there is nothing to do. Costs O(running)."""
        if self._has_finished:
            self._retire()
        produced: list[Key] = []
        first: list[Key] = []
        finished: list[Key] = []
        preemptions_before = self.preemptions
        self._decode(produced, finished)
        decoding = len(produced)
        preempted = self.preemptions - preemptions_before
        prefill_tokens = self._prefill(self.model.token_budget - decoding, now, produced, first, finished, preempted)
        if not decoding and not prefill_tokens:
            return None
        self._has_finished = bool(finished)
        return Step(
            duration_s=self.model.step_s(prefill_tokens=prefill_tokens, decoding=decoding),
            produced=produced,
            first=first,
            finished=finished,
            prefill_tokens=prefill_tokens,
            preempted=preempted,
        )

    def _retire(self) -> None:
        for sequence in self._running:
            if not sequence.left:
                self._free_blocks += sequence.blocks
                del self._sequences[sequence.key]
        self._running = [sequence for sequence in self._running if sequence.left]
        self._has_finished = False

    def _decode(self, produced: list[Key], finished: list[Key]) -> None:
        running = self._running
        index = 0
        while index < len(running):  # preemption shortens it from the end
            sequence = running[index]
            index += 1
            if sequence.to_prefill:
                continue
            if sequence.context_tokens > sequence.room_tokens and not self._grow(sequence):
                continue
            sequence.context_tokens += 1
            sequence.left -= 1
            produced.append(sequence.key)
            if not sequence.left:
                finished.append(sequence.key)

    def _grow(self, sequence: _Sequence[Key]) -> bool:
        """Give the sequence one more block; False if it had to give up its own."""
        while not self._free_blocks:
            victim = self._running.pop()
            self._free_blocks += victim.blocks
            victim.blocks = victim.room_tokens = 0
            victim.to_prefill = victim.context_tokens
            self._waiting.appendleft(victim)
            self.preemptions += 1
            if victim is sequence:
                return False
        self._take_blocks(sequence, 1)
        return True

    def _take_blocks(self, sequence: _Sequence[Key], blocks: int) -> None:
        self._free_blocks -= blocks
        sequence.blocks += blocks
        sequence.room_tokens += blocks * self.model.kv_block_tokens

    def _prefill(
        self, budget: int, now: float, produced: list[Key], first: list[Key], finished: list[Key], preempted: int
    ) -> int:
        """Spend the budget on prompts; the number of tokens that were prefilled."""
        left = budget
        while left:
            if self._running and self._running[-1].to_prefill:
                sequence = self._running[-1]
            elif preempted or (admitted := self._admit(now)) is None:
                break
            else:
                sequence = admitted
            chunk = min(left, sequence.to_prefill)
            left -= chunk
            sequence.to_prefill -= chunk
            if sequence.to_prefill:
                break
            sequence.context_tokens += 1
            sequence.left -= 1
            produced.append(sequence.key)
            if sequence.is_new:
                sequence.is_new = False
                first.append(sequence.key)
            if not sequence.left:
                finished.append(sequence.key)
        return budget - left

    def _admit(self, now: float) -> _Sequence[Key] | None:
        if not self._waiting or len(self._running) >= self.model.max_num_seqs:
            return None
        sequence = self._waiting[0]
        blocks = _blocks(sequence.context_tokens, self.model.kv_block_tokens)
        if self._free_blocks < blocks + 1:
            return None
        self._waiting.popleft()
        self._running.append(sequence)
        self._take_blocks(sequence, blocks)
        if sequence.waits_since_s is not None:
            self.admissions += 1
            # A step that a late timer begins carries its scheduled time, which may be before an arrival.
            self.queued_s += max(0.0, now - sequence.waits_since_s)
            sequence.waits_since_s = None
        return sequence
