"""A plan as tables or JSON, with the simulation of one process's share of the busiest hour."""

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

from bench.model.capacity import Assumptions, Limit, Plan, Store
from bench.model.constants import Constants
from bench.model.simulation import Traffic, simulate_traffic
from bench.relay_process.load_client import percentile
from bench.relay_process.relay_setup import Row

_MOST_EVENTS = 200_000
_LONGEST_S, _SHORTEST_S = 600.0, 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedShare:
    """Waiting times at one relay process; None where nothing of the kind happened."""

    seconds: float
    busy: float
    webhook_p99_s: float | None
    callback_p50_s: float | None
    callback_p99_s: float | None
    last_dispatch_p99_s: float | None


def simulate_share(plan: Plan, constants: Constants, assumptions: Assumptions) -> SimulatedShare:
    """Simulate one process with its share of the callbacks, and of the heads with all their targets."""
    costs = constants.sqlite if plan.store is Store.SQLITE else constants.postgres
    heads = plan.demand.heads / plan.relay_processes
    callbacks = plan.demand.callbacks / plan.relay_processes
    targets = round(plan.workload.downstreams * plan.workload.dispatches_per_head)
    events = callbacks + heads * targets * 3
    seconds = min(_LONGEST_S, max(_SHORTEST_S, _MOST_EVENTS / events if events else _LONGEST_S))
    traffic = Traffic(heads=heads, targets=targets, callbacks=callbacks, seconds=seconds)
    relay = simulate_traffic(costs, traffic, assumptions.github_latency_s)

    def at(values: list[float], share: float) -> float | None:
        return percentile(values, share) if values else None

    return SimulatedShare(
        seconds=seconds,
        busy=relay.interpreter.busy_s / max(seconds, relay.loop.now),
        webhook_p99_s=at(relay.webhook_answers, 0.99),
        callback_p50_s=at(relay.callback_answers, 0.5),
        callback_p99_s=at(relay.callback_answers, 0.99),
        last_dispatch_p99_s=at(relay.last_dispatches, 0.99),
    )


def plan_json(plan: Plan, share: SimulatedShare, constants: Constants) -> str:
    limits = [
        {
            **asdict(limit),
            "use": limit.use,
            "heads_at_limit": None if math.isinf(limit.heads_at_limit) else limit.heads_at_limit,
        }
        for limit in plan.limits
    ]
    value = {
        **asdict(plan),
        "limits": limits,
        "first_limit": plan.limits[0].name,
        "upstreams_per_database": plan.upstreams_per_database,
        "unreachable": [limit.name for limit in plan.unreachable],
        "one_process": asdict(share),
        "constants": {
            "measured_at": constants.measured_at,
            "machine": constants.machine,
            "python": constants.python,
        },
    }
    return json.dumps(value, indent=2) + "\n"


def print_plan(plan: Plan, share: SimulatedShare, constants: Constants, console: Console) -> None:
    console.print(_demand_table(plan))
    console.print(_limits_table(plan))
    console.print(_needs_table(plan))
    console.print(_share_table(share))
    for limit in plan.unreachable:
        console.print(f"[bold red]Not reachable:[/] {_too_much(plan, limit)}")
    console.print(
        f"Constants of {constants.measured_at} ({constants.machine}, Python {constants.python}). docs/scale.md explains the tables."
    )


def _too_much(plan: Plan, limit: Limit) -> str:
    return (
        f"{limit.name}: {limit.demand:,.0f} of {limit.capacity:,.0f}."
        f" At most {limit.heads_at_limit:,.3g} heads an hour for each upstream;"
        f" the workload has {plan.workload.heads_per_hour:,.3g}."
    )


def _demand_table(plan: Plan) -> Table:
    workload, demand = plan.workload, plan.demand
    table = Table(
        "in the busiest hour",
        "each second",
        title=f"{workload.upstreams:,} upstreams with {workload.downstreams:,} downstreams each",
    )
    table.columns[1].justify = "right"
    for name, rate in (
        ("heads", demand.heads),
        ("webhooks", demand.webhooks),
        ("dispatches", demand.dispatches),
        ("callbacks", demand.callbacks),
        ("calls for checks", demand.check_calls),
        ("pages rendered", demand.renderings),
        ("pages that were kept", demand.page_requests - demand.renderings),
        ("events on streams", demand.stream_events),
    ):
        table.add_row(name, f"{rate:,.3g}" if rate < 100 else f"{rate:,.0f}")
    return table


def _limits_table(plan: Plan) -> Table:
    table = Table(
        "limit, the first one first",
        "demand",
        "one gives",
        "used",
        "is met at heads/h",
        "needed",
        title="Limits",
    )
    for column in table.columns[1:5]:
        column.justify = "right"
    for limit in plan.limits:
        table.add_row(
            limit.name,
            f"{_number(limit.demand)} {limit.measure}",
            _number(limit.capacity),
            f"{limit.use:.0%}" if limit.use < 100 else f"{limit.use:,.0f}-fold",
            heads_text(limit),
            _remedy(limit),
        )
    return table


def _needs_table(plan: Plan) -> Table:
    table = Table("what", "how much", title="To buy")
    table.columns[1].justify = "right"
    databases = f"{plan.databases:,}, {plan.upstreams_per_database:,} upstreams each"
    for name, text in (
        ("store", str(plan.store)),
        ("relay processes (intake and worker)", f"{plan.relay_processes:,}"),
        ("page processes", f"{plan.page_processes:,}"),
        ("databases", "one file" if plan.store is Store.SQLITE else databases),
        (
            "their cores, all together",
            "none of their own" if plan.store is Store.SQLITE else f"{plan.database_cores:,}",
        ),
        ("GitHub Apps", f"{plan.apps:,}"),
        (f"disk after {plan.workload.keep_days} days", size(plan.disk_bytes)),
        ("memory of all processes and streams", size(plan.memory_bytes)),
    ):
        table.add_row(name, text)
    return table


def _share_table(share: SimulatedShare) -> Table:
    table = Table("one relay process, simulated", "", title=f"{share.seconds:.0f} s of the busiest hour")
    table.columns[1].justify = "right"
    for name, value in (
        ("webhook answered, P99", share.webhook_p99_s),
        ("callback answered, P50", share.callback_p50_s),
        ("callback answered, P99", share.callback_p99_s),
        ("last target of a head reached, P99", share.last_dispatch_p99_s),
    ):
        table.add_row(name, "none in this time" if value is None else _duration(value))
    table.add_row("interpreter busy", f"{share.busy:.0%}")
    return table


def print_checks(rows: Iterable[Row], console: Console) -> int:
    """Print each comparison; return 1 when one is past its bar."""
    table = Table("what", "predicted", "bar", "", title="The model against measurements")
    missed = 0
    for what, text, bar, reached in rows:
        console.print(f"{what}: {text}")
        table.add_row(what, text, bar, "ok" if reached else "missed")
        missed += not reached
    console.print(table)
    return 1 if missed else 0


def _number(value: float) -> str:
    return f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"


def _remedy(limit: Limit) -> str:
    if limit.unit:
        return f"{limit.units:,} {limit.unit}"
    if limit.use <= 1:
        return "ok"
    return "calls wait" if limit.minute_peak else "cannot be bought"


def heads_text(limit: Limit) -> str:
    """The rate at which a limit is met."""
    if math.isinf(limit.heads_at_limit):
        return "never"
    return _number(limit.heads_at_limit) if limit.heads_at_limit else "any rate"


def _duration(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:,.1f} s"


def size(value: float) -> str:
    for unit in ("B", "KB", "MB", "GB", "TB", "PB"):
        if value < 1000 or unit == "PB":
            return f"{value:,.3g} {unit}"
        value /= 1000
    raise AssertionError("unreachable")
