"""The debug pages: why did this request go there? Numbers and ids only, made by the very functions that choose."""

import time
from typing import Any

from bus.record import SIGNALS
from bus.view import Pressure
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


def selections(selection: Selection, limit: int) -> dict[str, Any]:
    """Page of /debug/selections: the last choices, newest first."""
    newest = list(selection.decisions)[::-1][:limit]
    return {"selections": [_decision(decision) for decision in newest]}


def _instance(
    selection: Selection, pool: str, pressure: Pressure, evaluation: Evaluation | None, index: int, now: float
) -> dict[str, Any]:
    registration = pressure.registration
    state = registration.state if pressure.record is None else pressure.record.state
    signals: dict[str, Any] = {}
    for name in SIGNALS:
        signals[name] = {"value": pressure.signal(name), "source": "record", "age_ms": _rounded(pressure.age_ms)}
    if evaluation is not None:
        added = evaluation.contributions(index)
        for name, value, weight, contribution in zip(
            evaluation.terms, evaluation.values[index], evaluation.weights, added, strict=True
        ):
            donor = evaluation.imputed.get(index, {}).get(name)
            signals[name] = {
                "value": pressure.signal(name) if donor is None and evaluation.tier == "measured" else None,
                "used": value,
                "source": evaluation.source(index, name),
                "age_ms": _rounded(pressure.age_ms),
                "weight": weight,
                "contribution": contribution,
                "imputed_from": donor,
            }
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
        "own_inflight": selection.inflight.get(pressure.instance, 0),
        "signals": signals,
        "total": evaluation.totals[index] if evaluation else None,
        "selected": selection.selected.get(pressure.instance, 0),
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
        "strategy": evaluation.strategy,
        "tier": evaluation.tier,
        "chosen": choice.instance,
        "score": evaluation.totals[choice.index],
        "runner_up": None if runner_up is None else evaluation.instances[runner_up],
        "runner_up_score": None if runner_up is None else evaluation.totals[runner_up],
        "margin": choice.margin,
        "imputed": {evaluation.instances[index]: donors for index, donors in evaluation.imputed.items()},
        "candidates": [
            {
                "id": instance,
                "total": evaluation.totals[index],
                "terms": {
                    term: {"value": value, "contribution": contribution}
                    for term, value, contribution in zip(
                        evaluation.terms, evaluation.values[index], evaluation.contributions(index), strict=True
                    )
                },
            }
            for index, instance in enumerate(evaluation.instances)
        ],
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)
