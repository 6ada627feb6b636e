"""`predicted_ttft`: the seconds that choosing an instance costs, this request first and the others a little.

    score = wait + in transit + own prefill + KV barrier + decode_weight * own decode + externality_weight * others

wait         until the instance could begin this prefill, as its worker's timeline predicts, aged
in transit   prefill of what replicas have reserved there and no record shows yet
own prefill  fixed + tokens * seconds a token, as the worker has learned them
KV barrier   kv_pressure_weight * k / (1 - k), k with what is in transit counted in
own decode   expected output (the mean of what instances have learned, at most the request's limit) * step time with
             this request added
others       own prefill (of at most 2 048 tokens) * (requests there + 2 * those of them without a first token)
             + requests there * expected output / 2 * what one more sequence adds to a step

The last is the delay it brings to others. Those that decode wait for this prefill once; of a long prompt only a part
counts, or it would always go where few are and slow, and its own first token come last of all. Those without a first
token lose it where it counts: an engine fills the step in which a long prompt ends with the prompt behind it. Then each
step that it shares with another is longer: of two answers that may end at any moment, half of the mean.

The first three are the predicted time to first token. With the two weights at 0 the choice minimises this request's
own TTFT; the larger they are, the more it gives to finishing early and to sparing the others.
"""

from collections.abc import Sequence
from random import Random
from statistics import fmean, median
from typing import Final

from proxy.candidates import Candidate, Evaluation, RequestWork, Slopes, of_terms
from proxy.ladder import Ladder, of_own_counts
from proxy.strategies.settings import CostSettings
from proxy.strategies.terms import known_or_median, kv_barrier_s, kv_barrier_slope_s, prefill_slope_s

_SIGNALS: Final = (
    "predicted_wait_ms",
    "prefill_fixed_ms",
    "prefill_tokens_per_s",
    "decode_step_ms",
    "decode_slope_ms",
    "inflight",
    "pending_prefill_count",
    "kv_usage",
    "kv_capacity_tokens",
)

#: A delay of a request without a first token counts so many times more.
FIRST_TOKEN_FACTOR: Final = 2

#: Share of an answer's steps that it has in common with another one that is there.
SHARED_STEPS: Final = 0.5

#: A mean beyond so many times the median of all is one that something went wrong with.
LARGEST_MEAN_SHARE: Final = 4.0

#: Prompt tokens beyond this add nothing to the delay of others. Simulated (tests/routing, load 0.75, unequal engines):
#: p99 TTFT falls from 1.02 to 0.96 of an all-knowing router's, mean E2E from 0.952 to 0.945.
LONG_PROMPT_TOKENS: Final = 2048

_TERMS: Final = ("wait_s", "in_transit_s", "prefill_s", "kv_barrier_s", "decode_s", "others_s")


class PredictedTTFT:
    """Scores candidates by the cost of placing this request there, seconds."""

    name = "predicted_ttft"

    def __init__(self, settings: CostSettings) -> None:
        self.settings = settings
        self._ladder = Ladder(_SIGNALS)
        self._weights = (1.0, 1.0, 1.0, 1.0, settings.decode_weight, settings.externality_weight)

    def evaluate(self, candidates: Sequence[Candidate], request: RequestWork, rng: Random) -> Evaluation:
        """Score every candidate; what is unknown is resolved by the ladder."""
        resolved = self._ladder.resolve(candidates, rng)
        instances = [candidate.instance for candidate in candidates]
        if resolved.tier != "measured":
            return of_own_counts(self.name, instances, resolved)
        absent = [0.0] * len(candidates)
        columns = dict(zip(resolved.signals, zip(*resolved.rows, strict=True), strict=True))
        column = [columns.get(name, absent) for name in _SIGNALS]
        speeds = known_or_median(column[2], self.settings.default_throughput)
        mean_output = _mean_output_tokens(candidates)
        values, slopes = [], []
        for candidate, speed, row in zip(candidates, speeds, zip(*column, strict=True), strict=True):
            terms, slope = self._cost(candidate, request, mean_output, speed, *row)
            values.append(terms)
            slopes.append(slope)
        return of_terms(
            self.name,
            resolved.tier,
            instances,
            _TERMS,
            self._weights,
            values,
            resolved.imputed,
            slopes=slopes,
            ttft_s=[wait_s + in_transit_s + prefill_s for wait_s, in_transit_s, prefill_s, *_ in values],
        )

    def _cost(
        self,
        candidate: Candidate,
        request: RequestWork,
        mean_output: float,
        speed: float,
        wait_ms: float,
        fixed_ms: float,
        _speed: float,
        step_ms: float,
        slope_ms: float,
        inflight: float,
        pending: float,
        kv_usage: float,
        kv_capacity: float,
    ) -> tuple[tuple[float, ...], Slopes]:
        """Terms of one candidate in the order of _TERMS, and how its total grows with what is in transit."""
        settings = self.settings
        tokens, requests = candidate.in_transit_tokens, candidate.in_transit_requests
        fixed_s, step_slope_s = fixed_ms / 1000, slope_ms / 1000
        token_s = prefill_slope_s(speed, fixed_s)
        prefill_s = fixed_s + request.prompt_tokens * token_s
        delay_s = fixed_s + min(request.prompt_tokens, LONG_PROMPT_TOKENS) * token_s
        output = mean_output if request.output_cap is None else min(mean_output, request.output_cap)
        shared_s = SHARED_STEPS * output * step_slope_s
        k = kv_usage + tokens / kv_capacity if kv_capacity else kv_usage
        barrier_slope = kv_barrier_slope_s(k, weight_s=settings.kv_pressure_weight, clamp=settings.kv_clamp)
        terms = (
            wait_ms / 1000,
            tokens * token_s + requests * fixed_s,
            prefill_s,
            kv_barrier_s(k, weight_s=settings.kv_pressure_weight, clamp=settings.kv_clamp),
            output * (step_ms / 1000 + (1 + requests) * step_slope_s),
            (inflight + requests + FIRST_TOKEN_FACTOR * (pending + requests)) * delay_s
            + (inflight + requests) * shared_s,
        )
        slopes = Slopes(
            per_token=token_s + (barrier_slope / kv_capacity if kv_capacity else 0.0),
            per_request=fixed_s
            + settings.decode_weight * output * step_slope_s
            + settings.externality_weight * ((1 + FIRST_TOKEN_FACTOR) * delay_s + shared_s),
        )
        return terms, slopes


def _mean_output_tokens(candidates: Sequence[Candidate]) -> float:
    """Expected answer of any of them: how long answers are is a matter of the requests, whoever has seen which.

    By its own mean an instance that had a few long ones by chance would be passed over, and so would never see others.
    """
    records = [candidate.pressure.record for candidate in candidates]
    known = [record.mean_output_tokens for record in records if record and record.mean_output_tokens is not None]
    if not known:
        return 0.0
    most = LARGEST_MEAN_SHARE * median(known)
    return fmean([min(value, most) for value in known])
