"""The debug pages: why did this request go there? Numbers and ids only, made by the very functions that choose."""

import time
from itertools import islice
from typing import Any

from bus.record import SIGNALS
from bus.view import Pressure
from proxy.admission import is_full
from proxy.candidates import Evaluation
from proxy.selection import Decision, Selection


def instance_loads(selection: Selection, replica: str) -> dict[str, Any]:
    """Page of /debug/instance_loads: per instance every signal, its age, weight and contribution, and the total."""
    now = time.monotonic()
    pools: dict[str, Any] = {}
    instances: list[dict[str, Any]] = []
    for pool, reader in selection.readers.items():
        view = reader.last_view
        found, evaluation = selection.evaluate_now(view)
        pools[pool] = {
            "tier": evaluation.tier if evaluation else None,
            "bus": {"state": reader.state(now), "age_ms": _rounded(view.age_s(now) * 1000)},
        }
        for index, pressure in enumerate(found):
            instances.append(_instance(selection, pool, pressure, evaluation, index, now))
    return {"replica": replica, "strategy": selection.strategy.name, "pools": pools, "instances": instances}


def selections(selection: Selection, *, limit: int, request_id: str | None = None) -> dict[str, Any]:
    """Page of /debug/selections: the last choices, newest first; with `request_id` those made for one request."""
    newest = (d for d in reversed(selection.decisions) if request_id is None or d.request_id == request_id)
    return {"selections": [_decision(decision) for decision in islice(newest, limit)]}


def _instance(
    selection: Selection, pool: str, pressure: Pressure, evaluation: Evaluation | None, index: int, now: float
) -> dict[str, Any]:
    registration = pressure.registration
    state = registration.state if pressure.record is None else pressure.record.state
    return {
        "pool": pool,
        "id": pressure.instance,
        "state": state if pressure.record is not None else "unknown",
        "models": registration.models,
        "worker_url": registration.worker_url,
        "kind": registration.kind,
        "slots": registration.slots,
        "age_ms": _rounded(pressure.age_ms),
        "reason": pressure.fault,
        "unbelievable": pressure.bad_signals,
        "is_ejected": selection.ejections.is_out(pressure.instance, now),
        "held_against": selection.ejections.held_against(pressure.instance, now),
        "is_full": is_full(pressure),
        "own_inflight": selection.inflight.get(pressure.instance, 0),
        "in_transit_tokens": pressure.in_transit_tokens,
        "in_transit_requests": pressure.in_transit_requests,
        "signals": _signals(pressure, evaluation, index),
        "terms": _terms(evaluation, index) if evaluation else {},
        "total": evaluation.totals[index] if evaluation else None,
        "selected": selection.selected.get(pressure.instance, 0),
    }


def _signals(pressure: Pressure, evaluation: Evaluation | None, index: int) -> dict[str, Any]:
    """Every signal of the record as it is known now; where the score has it as a term, what it was taken for there."""
    donors = evaluation.imputed.get(index, {}) if evaluation else {}
    terms = _terms(evaluation, index) if evaluation else {}
    signals: dict[str, Any] = {}
    for name in SIGNALS:
        signal: dict[str, Any] = {
            "value": pressure.signal(name),
            "source": "record",
            "age_ms": _rounded(pressure.age_ms),
        }
        if name in donors:
            signal |= {"value": None, "source": "imputed", "imputed_from": donors[name]}
        if name in terms and evaluation is not None:
            used = terms[name]
            signal |= {
                "used": used["value"],
                "weight": used["weight"],
                "contribution": used["contribution"],
                "source": evaluation.source(index, name),
            }
        signals[name] = signal
    return signals


def _terms(evaluation: Evaluation, index: int) -> dict[str, dict[str, float]]:
    """What a candidate's total is made of."""
    rows = zip(
        evaluation.terms, evaluation.values[index], evaluation.weights, evaluation.contributions(index), strict=True
    )
    return {
        term: {"value": value, "weight": weight, "contribution": contribution}
        for term, value, weight, contribution in rows
    }


def _decision(decision: Decision) -> dict[str, Any]:
    choice = decision.choice
    evaluation = choice.evaluation
    runner_up = choice.runner_up
    return {
        "request_id": decision.request_id,
        "at": decision.at,
        "pool": decision.pool,
        "model": decision.model,
        "prompt_tokens": decision.work.prompt_tokens,
        "output_cap": decision.work.output_cap,
        "strategy": evaluation.strategy,
        "tier": evaluation.tier,
        "chosen": choice.instance,
        "score": choice.score(choice.index),
        "runner_up": None if runner_up is None else evaluation.instances[runner_up],
        "runner_up_score": None if runner_up is None else choice.score(runner_up),
        "margin": choice.margin,
        "decided_by": "bus" if choice.reserved else "replica",
        "predicted_ttft_s": decision.predicted_ttft_s,
        "real_ttft_s": decision.real_ttft_s,
        "imputed": {evaluation.instances[index]: donors for index, donors in evaluation.imputed.items()},
        "candidates_in_all": len(evaluation.instances),
        "candidates": [_candidate(decision, place, index) for place, index in enumerate(choice.ranking)],
    }


def _candidate(decision: Decision, place: int, index: int) -> dict[str, Any]:
    """One of the best candidates: its score by this replica's view, and by the bus at the moment of choice."""
    choice = decision.choice
    evaluation = choice.evaluation
    seen = decision.in_transit_seen[index]
    now = choice.reserved.sums[place] if choice.reserved and place < len(choice.reserved.sums) else None
    return {
        "id": evaluation.instances[index],
        "total": evaluation.totals[index],
        "score": choice.score(index),
        "terms": _terms(evaluation, index),
        "imputed": evaluation.imputed.get(index, {}),
        "predicted_ttft_s": evaluation.ttft_s[index] if evaluation.ttft_s else None,
        "in_transit_seen": seen,
        "in_transit_when_chosen": now,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)
