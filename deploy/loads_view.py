"""What `GET /debug/instance_loads` says, for people: a table of the fleet, or one plain line of it.

An unknown number is shown as `–`, never as 0; a number taken from another instance is marked `~`. Pure: JSON in,
renderables out. No network, no clock.
"""

from collections.abc import Callable, Iterator
from typing import Final

import msgspec
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from deploy.loads import UNKNOWN, InstanceLoad, Loads, LoadsLike, Signal, decode

__all__ = ["Loads", "decode", "plain_line", "render"]

_BAR_CELLS: Final = 10
_BAR_FLOOR_MS: Final = 1000.0  # a full bar is at least a second, so that an idle fleet does not look busy
_LINE_INSTANCES: Final = 8
_STATE_STYLES: Final = {
    "ready": "green",
    "draining": "yellow",
    "unknown": "red",
    "ejected": "red",
    "failing": "red",
    "full": "yellow",
}
_TIER_STYLES: Final = {"measured": "green", "in_flight": "yellow", "round_robin": "red"}
_BUS_STYLES: Final = {"fresh": "green", "stale": "yellow", "blind": "red"}


def render(loads: LoadsLike, previous: LoadsLike | None = None) -> RenderableType:
    """The fleet as a heading and a table; shares are of the choices made since `previous`, else of all."""
    now = _struct(loads)
    before = {} if previous is None else _selected(_struct(previous))
    return Group(_heading(now), _table(now, _shares(now, before)), *_reasons(now))


def plain_line(loads: LoadsLike) -> str:
    """The fleet on one line without colour: tier and bus of each pool, then at most eight instances.

    >>> plain_line({"replica": "a:8000", "strategy": "least_load", "instances": [{"pool": "p", "id": "e1"}]})
    'a:8000 least_load | e1 unknown in flight – backlog – kv – share –'
    """
    now = _struct(loads)
    shares = _shares(now, {})
    parts = [f"{now.replica} {now.strategy}"]
    parts += [f"{name}: {pool.tier or UNKNOWN}, bus {pool.bus.state}" for name, pool in sorted(now.pools.items())]
    shown = _ordered(now)[:_LINE_INSTANCES]
    parts += [_line_of(instance, shares) for instance in shown]
    if len(now.instances) > len(shown):
        parts.append(f"and {len(now.instances) - len(shown)} more")
    return " | ".join(parts)


def number(value: float | None, form: Callable[[float], str] = "{:g}".format, *, is_imputed: bool = False) -> str:
    """A number as text; `–` if unknown, `~` before it if taken from another instance.

    >>> number(None), number(0.0), number(3.0, is_imputed=True)
    ('–', '0', '~3')
    """
    return UNKNOWN if value is None else ("~" if is_imputed else "") + form(value)


def duration(value_ms: float) -> str:
    """Milliseconds as people read them.

    >>> duration(42.4), duration(1234.0), duration(90_000.0)
    ('42 ms', '1.2 s', '90 s')
    """
    if value_ms < 1000:
        return f"{value_ms:.0f} ms"
    return f"{value_ms / 1000:.1f} s" if value_ms < 10_000 else f"{value_ms / 1000:.0f} s"


def bar(value: float, full: float) -> str:
    """A bar of ten cells, filled by value / full in steps of half a cell; anything above 0 shows.

    >>> bar(0.0, 10.0), bar(5.0, 10.0), bar(0.1, 10.0), bar(20.0, 10.0)
    ('          ', '━━━━━     ', '╸         ', '━━━━━━━━━━')
    """
    halves = round(2 * _BAR_CELLS * min(1.0, value / full))
    if value > 0:
        halves = max(1, halves)
    return ("━" * (halves // 2) + "╸" * (halves % 2)).ljust(_BAR_CELLS)


def _struct(loads: LoadsLike) -> Loads:
    return loads if isinstance(loads, Loads) else msgspec.convert(loads, Loads)


def _ordered(loads: Loads) -> list[InstanceLoad]:
    return sorted(loads.instances, key=lambda instance: (instance.pool, instance.id))


def _selected(loads: Loads) -> dict[tuple[str, str], int]:
    return {(instance.pool, instance.id): instance.selected for instance in loads.instances}


def _shares(now: Loads, before: dict[tuple[str, str], int]) -> dict[tuple[str, str], float]:
    """Share of each instance in its pool's choices since before; of all choices if there were none, or it restarted."""
    counts = _selected(now)
    news = {key: count - before.get(key, 0) for key, count in counts.items()}
    if min(news.values(), default=0) >= 0 and any(news.values()):
        counts = news
    totals: dict[str, int] = {}
    for (pool, _), count in counts.items():
        totals[pool] = totals.get(pool, 0) + count
    return {key: count / totals[key[0]] for key, count in counts.items() if totals[key[0]]}


def _heading(loads: Loads) -> Text:
    text = Text.assemble(("replica ", "dim"), loads.replica, ("  strategy ", "dim"), loads.strategy)
    for name, pool in sorted(loads.pools.items()):
        text.append("\npool ", "dim").append(name)
        text.append("  choosing by ", "dim").append(pool.tier or UNKNOWN, _TIER_STYLES.get(pool.tier or "", ""))
        text.append("  bus ", "dim").append(pool.bus.state, _BUS_STYLES.get(pool.bus.state, ""))
        text.append(f" {number(pool.bus.age_ms, duration)}")
    return text


def _table(loads: Loads, shares: dict[tuple[str, str], float]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    has_pools = len({instance.pool for instance in loads.instances}) > 1
    left = [*(["pool"] if has_pools else []), "instance", "state"]
    right = ["age", "in flight", "prepare\nq+run", "ready\nq+run", "prefill", "decode"]
    for column in left:
        table.add_column(column, no_wrap=True)
    for column in right:
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("predicted backlog", no_wrap=True)
    for column in ("kv", "in\ntransit", "score", "share"):
        table.add_column(column, justify="right", no_wrap=True)
    full_ms = max([_BAR_FLOOR_MS, *(_value(i, "predicted_total_backlog_ms") or 0.0 for i in loads.instances)])
    for instance in _ordered(loads):
        cells = _cells(instance, full_ms, shares.get((instance.pool, instance.id)))
        table.add_row(*([escape(instance.pool)] if has_pools else []), *cells)
    return table


def _reasons(loads: Loads) -> Iterator[Text]:
    """What is wrong with an instance's record, a line each: a column for them would squeeze the numbers."""
    for instance in _ordered(loads):
        unbelievable = f"cannot be true: {', '.join(instance.unbelievable)}" if instance.unbelievable else ""
        words = "; ".join(part for part in (instance.reason, instance.held_against, unbelievable) if part)
        if words:
            yield Text.assemble((f"{instance.id}: ", "bold"), (words, "dim"))


def _cells(instance: InstanceLoad, full_ms: float, share: float | None) -> list[str]:
    style = _STATE_STYLES.get(_state(instance), "default")
    backlog_ms = _value(instance, "predicted_total_backlog_ms")
    drawn = bar(backlog_ms or 0.0, full_ms)
    return [
        escape(instance.id),
        f"[{style}]{escape(_state(instance))}[/]",
        number(instance.age_ms, duration),
        _shown(instance, "inflight"),
        f"{_shown(instance, 'prepare_queue_depth')}+{_shown(instance, 'active_prepare')}",
        f"{_shown(instance, 'ready_queue_depth')}+{_shown(instance, 'active_ready')}",
        _shown(instance, "pending_prefill_count"),
        _shown(instance, "active_decode_count"),
        f"[cyan]{drawn}[/] {_shown(instance, 'predicted_total_backlog_ms', duration)}",
        _shown(instance, "kv_usage", "{:.0%}".format),
        number(instance.in_transit_requests),
        number(instance.total, "{:.2f}".format, is_imputed=_is_imputed(instance)),
        number(share, "{:.0%}".format),
    ]


def _line_of(instance: InstanceLoad, shares: dict[tuple[str, str], float]) -> str:
    return (
        f"{instance.id} {_state(instance)} in flight {_shown(instance, 'inflight')}"
        f" backlog {_shown(instance, 'predicted_total_backlog_ms', duration)}"
        f" kv {_shown(instance, 'kv_usage', '{:.0%}'.format)}"
        f" share {number(shares.get((instance.pool, instance.id)), '{:.0%}'.format)}"
    )


def _state(instance: InstanceLoad) -> str:
    """The worst that is known of it."""
    if instance.is_ejected:
        return "ejected"
    return "full" if instance.is_full and instance.state == "ready" else instance.state


def _is_imputed(instance: InstanceLoad) -> bool:
    """Whether its score is made with values of another instance."""
    return any(signal.source == "imputed" for signal in instance.signals.values())


def _number_of(signal: Signal) -> float | None:
    return signal.used if signal.value is None else signal.value


def _value(instance: InstanceLoad, name: str) -> float | None:
    return _number_of(instance.signals.get(name, Signal()))


def _shown(instance: InstanceLoad, name: str, form: Callable[[float], str] = "{:g}".format) -> str:
    signal = instance.signals.get(name, Signal())
    return number(_number_of(signal), form, is_imputed=signal.source == "imputed")
