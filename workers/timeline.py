"""The prediction timeline of one instance: where every accepted request is, and when the engine will be free.

It knows the requests that the worker's own queues no longer show: those that the engine has taken and not answered.
Model of the engine: `slots` answers run at once, and a request for several takes as many slots, or all; prefill is one
server that they share; decode runs in all slots together. Real events correct it: each one re-plans all that is still
to come from that moment.

Time is an argument, in seconds on any monotonic clock. No I/O, no asyncio.
"""

import heapq
from enum import IntEnum
from typing import Final

import msgspec

from workers.calibration import Calibration
from workers.decode_samples import DecodeSamples, Mark
from workers.estimates import RunningMean, expected_ends, remaining_output
from workers.prefill_samples import Piece, PrefillSamples
from workers.trust import Trust

#: What is overdue is expected to take this share of the longer of its plan and its time so far: never zero, and the
#: longer it hangs the longer it is expected to hang.
OVERDUE_SHARE: Final = 0.1


class Stage(IntEnum):
    """Where a request is; each accepted one is in exactly one stage, and each stage is one published count."""

    PREPARE_QUEUE = 0
    PREPARING = 1
    READY_QUEUE = 2
    DISPATCHING = 3
    PREFILL = 4
    """On the engine, no first token yet."""
    DECODE = 5


class Work(msgspec.Struct, frozen=True):
    """What a request asks of an engine."""

    prompt_tokens: int
    output_cap: int | None = None
    """Most tokens it may produce; 0 for an embedding, None where the request sets no limit."""
    is_stream: bool = True
    """Whether its first token will be seen; a plain answer comes in one piece at its end."""
    sequences: int = 1
    """Answers that it is: they are decoded beside each other."""


class Request(msgspec.Struct):
    """One accepted request on its way; owned by the timeline."""

    id: str
    work: Work
    stage: Stage
    accepted_s: float
    predicted_ttft_s: float | None
    """Seconds from acceptance to the first token, as predicted at acceptance; None: nothing could be predicted."""
    places: int = 1
    """Slots that it holds while it runs."""
    dispatched_s: float = 0.0
    decode: Mark | None = None
    """The begin of its decode; None before its first token."""
    prefill_begun_s: float = 0.0
    """When it had the prefill server for itself, once that is known."""
    piece: Piece | None = None
    """The prefill that its first token ended."""


class Plan(msgspec.Struct, frozen=True):
    """When the engine will be free, seconds from the moment of planning."""

    next_slot_ready_s: float
    """Until a request that arrives now could have a slot, all waiting ones served before it."""
    prefill_free_s: float
    """Until the prefill of everything accepted is done."""
    prefill_backlog_s: float
    """Sum of all prefill still to do."""
    decode_backlog_s: float
    """Sum of all decode still to do, divided by the slots it runs in."""
    queued_tokens: int
    """Prompt tokens still to prefill."""
    has_free_slot: bool

    @property
    def wait_s(self) -> float:
        """Until the prefill of a request that arrives now would start: a slot is free and so is the prefill server."""
        return max(self.next_slot_ready_s, self.prefill_free_s)

    @property
    def total_backlog_s(self) -> float:
        """With a free slot the prefill line; with all slots busy the wait for a slot."""
        return self.prefill_free_s if self.has_free_slot else self.next_slot_ready_s


class Timeline:
    """All accepted requests of one instance, and the plan made of them.

    `foreign` is how many requests the engine runs beyond ours; they hold slots.
    """

    def __init__(self, *, slots: int, calibration: Calibration, output_tokens: RunningMean) -> None:
        self.slots = slots
        self.foreign = 0
        self.calibration = calibration
        self.output_tokens = output_tokens
        self._requests: dict[str, Request] = {}
        self._counts = [0] * len(Stage)
        self._places = [0] * len(Stage)
        self._line: dict[str, Request] = {}  # PREFILL stage, in the order of dispatch
        self._head_since_s = 0.0  # since when the first of the line has had the prefill server for itself
        self._prefills = PrefillSamples(calibration.learn_prefill)
        self._decodes = DecodeSamples(calibration)
        self._trust = Trust()

    # -- what is there

    def __len__(self) -> int:
        """Accepted and not finished."""
        return len(self._requests)

    def __contains__(self, request_id: str) -> bool:
        """Whether a request of this id is accepted and not finished."""
        return request_id in self._requests

    def count(self, stage: Stage) -> int:
        """Requests in `stage`."""
        return self._counts[stage]

    @property
    def places(self) -> int:
        """Slots that all accepted requests hold or will hold."""
        return sum(self._places)

    @property
    def on_engine(self) -> int:
        """Slots that what the engine has holds: as many answers run there as there can."""
        return self._places[Stage.PREFILL] + self._places[Stage.DECODE]

    @property
    def sequences_on_engine(self) -> int:
        """Answers of all that the engine has, also those that wait there since their request has more than fit."""
        return sum(request.work.sequences for request in self._requests.values() if request.stage >= Stage.PREFILL)

    def is_guess(self, now: float) -> bool:
        """Whether nothing has confirmed for long what is known of the engine's speed, and nothing runs there."""
        return not self._requests and self._trust.is_over(now)

    @property
    def waiting(self) -> int:
        """Requests that wait in the worker for a slot, prepared or not."""
        return self._counts[Stage.PREPARE_QUEUE] + self._counts[Stage.PREPARING] + self._counts[Stage.READY_QUEUE]

    # -- what happens

    def accept(self, request_id: str, work: Work, now: float, *, predicts: bool = True) -> Request:
        """Take a request into the timeline and predict its time to first token. Raises KeyError for a known id."""
        if request_id in self._requests:
            raise KeyError(request_id)
        self._elapse(now)
        ttft_s = self.plan(now).wait_s + self.calibration.prefill_s(work.prompt_tokens) if predicts else None
        places = min(work.sequences, self.slots)
        request = Request(request_id, work, Stage.PREPARE_QUEUE, now, ttft_s, places)
        self._requests[request_id] = request
        self._enter(request, Stage.PREPARE_QUEUE)
        return request

    def advance(self, request: Request, stage: Stage, now: float) -> None:
        """Move a request on to a later stage; an earlier or the same one, or a finished request, changes nothing."""
        if self._requests.get(request.id) is not request:
            return
        self._assume_first_tokens(now)
        if stage <= request.stage:
            return
        self._elapse(now)
        if request.stage is Stage.PREFILL:
            self._leave_line(request, now, got_first_token=stage is Stage.DECODE)
        self._leave(request)
        self._enter(request, stage)
        if stage is Stage.PREFILL:
            request.dispatched_s = now
            if not self._line:
                self._head_since_s = now
            self._line[request.id] = request
        elif stage is Stage.DECODE:
            request.decode = self._decodes.begin(now)

    def finish(
        self,
        request: Request,
        now: float,
        *,
        output_tokens: int | None = None,
        prefilled_tokens: int | None = None,
        is_success: bool = True,
    ) -> bool:
        """Remove a request on any way out: end, failure or cancel. False if it was gone already.

        A success teaches: the decode step if the output tokens are known, and for an answer that came in one piece the
        whole. `prefilled_tokens` are the prompt tokens that no cache held, where the engine has told.
        """
        if self._requests.get(request.id) is not request:  # gone, and its id may belong to another by now
            return False
        self._assume_first_tokens(now)
        self._elapse(now)
        del self._requests[request.id]
        tokens = request.work.prompt_tokens if prefilled_tokens is None else prefilled_tokens
        try:
            self._learn(request, now, output_tokens, tokens, is_success=is_success)
        finally:
            if request.stage is Stage.PREFILL:
                self._leave_line(request, now, got_first_token=False)
            self._leave(request)
        return True

    # -- what will be

    def plan(self, now: float) -> Plan:
        """Play forward everything accepted, from `now`."""
        self._assume_first_tokens(now)
        expected, calibration = self.output_tokens.value, self.calibration
        step_s = calibration.interrupted_step_s(min(max(self.places, 1), self.slots))
        ends: list[tuple[float, int]] = []  # of what runs, each with the slots that it holds
        decode_s = prefill_s = 0.0
        for request in self._requests.values():
            if request.decode is not None:
                produced = (now - request.decode.at_s) / step_s
                left_s = remaining_output(expected, produced, request.work.output_cap) * step_s
                ends.append((now + left_s, request.places))
                decode_s += left_s * request.places
        ends += [(now + expected * step_s, 1)] * self.foreign
        tokens = 0
        free_s = now
        is_head = True
        for request in self._line.values():
            whole_s = calibration.prefill_s(request.work.prompt_tokens)
            left_s = _remaining(whole_s, now - self._head_since_s) if is_head else whole_s
            tokens += max(1, round(request.work.prompt_tokens * min(left_s / whole_s, 1.0)))
            is_head = False
            free_s += left_s
            prefill_s += left_s
            answer_s = self._answer_s(request.work, step_s)
            decode_s += answer_s * request.places
            ends.append((free_s + answer_s, request.places))
        ends.sort()  # which is a heap too
        lefts = expected_ends([end_s - now for end_s, _ in ends])
        ends = [(now + left_s, places) for left_s, (_, places) in zip(lefts, ends, strict=True)]
        held = sum(places for _, places in ends)
        slot_s = now
        for request in self._requests.values():
            if request.stage < Stage.PREFILL:
                while held > self.slots - request.places:
                    slot_s, places = heapq.heappop(ends)
                    free_s = max(free_s, slot_s)
                    held -= places
                own_s = calibration.prefill_s(request.work.prompt_tokens)
                tokens += request.work.prompt_tokens
                free_s += own_s
                prefill_s += own_s
                answer_s = self._answer_s(request.work, step_s)
                decode_s += answer_s * request.places
                heapq.heappush(ends, (free_s + answer_s, request.places))
                held += request.places
        while held >= self.slots:  # the earliest end that leaves a slot empty
            slot_s, places = heapq.heappop(ends)
            held -= places
        return Plan(
            next_slot_ready_s=slot_s - now,
            prefill_free_s=free_s - now,
            prefill_backlog_s=prefill_s,
            decode_backlog_s=decode_s / self.slots,
            queued_tokens=tokens,
            has_free_slot=self.places + self.foreign < self.slots,
        )

    def _answer_s(self, work: Work, step_s: float) -> float:
        """Expected decode time of an answer that has not begun."""
        if work.output_cap == 0:
            return 0.0
        return remaining_output(self.output_tokens.value, 0, work.output_cap) * step_s

    def _assume_first_tokens(self, now: float) -> None:
        """Move plain requests on to decode when their prefill should be done: they show nothing before their end."""
        while self._line:
            head = next(iter(self._line.values()))
            done_s = self._head_since_s + self.calibration.prefill_s(head.work.prompt_tokens)
            if head.work.is_stream or done_s > now:
                return
            head.prefill_begun_s = self._head_since_s
            del self._line[head.id]
            self._head_since_s = done_s
            self._elapse(done_s)
            self._leave(head)
            self._enter(head, Stage.DECODE)
            head.decode = self._decodes.begin(done_s)

    def _enter(self, request: Request, stage: Stage) -> None:
        request.stage = stage
        self._counts[stage] += 1
        self._places[stage] += request.places

    def _leave(self, request: Request) -> None:
        self._counts[request.stage] -= 1
        self._places[request.stage] -= request.places

    # -- learning

    def _leave_line(self, request: Request, now: float, *, got_first_token: bool) -> None:
        """Take a request out of the prefill line; a first token shows how long the prefill took."""
        was_head = next(iter(self._line.values())) is request
        del self._line[request.id]
        if got_first_token:
            request.piece = self._prefills.first_token(
                dispatched_s=request.dispatched_s, alone_since_s=self._head_since_s, now=now, is_head=was_head
            )
        elif was_head:
            self._prefills.head_left()
        if was_head:
            self._head_since_s = now

    def _learn(
        self, request: Request, now: float, output_tokens: int | None, prefilled_tokens: int, *, is_success: bool
    ) -> None:
        """Learn what an end tells; whatever sample it brings is one more reason to believe what is known."""
        calibration = self.calibration
        samples, paces_s = calibration.samples, calibration.paces_s
        if self._trust.is_over(now):
            calibration.doubt()
        if request.piece is not None:
            self._prefills.settle(request.piece, prefilled_tokens)
        if is_success:
            self._learn_from_end(request, now, output_tokens, prefilled_tokens)
        if calibration.samples > samples:
            self._trust.renew(paces_s, calibration.paces_s, now)

    def _learn_from_end(self, request: Request, now: float, output_tokens: int | None, prefilled_tokens: int) -> None:
        if output_tokens is not None and request.work.output_cap != 0:
            self.output_tokens.learn(output_tokens)
        if not request.work.is_stream:
            if request.stage >= Stage.PREFILL and output_tokens is not None:
                self._learn_from_plain_answer(request, now, output_tokens, prefilled_tokens)
        elif request.decode is not None and output_tokens is not None:
            self._decodes.end(request.decode, now, output_tokens)

    def _learn_from_plain_answer(self, request: Request, now: float, output_tokens: int, prefilled_tokens: int) -> None:
        begun_s = request.prefill_begun_s or max(request.dispatched_s, self._head_since_s)
        self.calibration.learn_whole_answer(prefilled_tokens, output_tokens, max(self.on_engine, 1), now - begun_s)

    def _elapse(self, now: float) -> None:
        self._decodes.elapse(now, decoding=self._places[Stage.DECODE], is_prefilling=bool(self._line))


def _remaining(whole_s: float, elapsed_s: float) -> float:
    """Time left of work planned to take `whole_s` that has had `elapsed_s`; re-predicted, never zero, when overdue.

    >>> round(_remaining(1.0, 0.4), 3), round(_remaining(1.0, 1.0), 3), round(_remaining(1.0, 30.0), 3)
    (0.6, 0.1, 3.0)
    """
    return max(whole_s - elapsed_s, OVERDUE_SHARE * max(whole_s, elapsed_s))
