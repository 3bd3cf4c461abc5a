"""From a workload and the measured costs to the limits that it meets and to what must be bought.

Operational analysis: a resource's use is rate times cost (the utilisation law), and requests in progress are rate times
duration (Little's law). Both hold whatever the arrivals look like. Waiting times are the simulation's part (`bench.model.simulation`).
"""

import math
from dataclasses import dataclass
from enum import StrEnum

from bench.model.constants import Constants, CpuCost, StoreCosts
from bench.model.simulation import WORKER_SLOTS
from bench.model.workload import Demand, Workload, calls_per_head, demand_of, points_per_head
from crcr.github.http.hour_budget import GITHUB_LIMIT

POINTS_A_MINUTE = 900
CONCURRENT_REQUESTS = 100
"""GitHub does not say whether it counts them for each installation or for the App: counted for the App, the stricter."""
TOKENS_AN_HOUR = GITHUB_LIMIT
"""Calls with the App's own key. GitHub names no number; taken as an installation's."""
KEEP_BODIES_DAYS, KEEP_EFFECTS_DAYS, KEEP_CHANGES_DAYS = 30, 7, 1
CHANGES_PER_CALLBACK = 1.0
_MOST_PROCESSES = 10_000_000


class Store(StrEnum):
    SQLITE = "SQLite"
    POSTGRES = "PostgreSQL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """What is planned with, and the sizes of what can be bought."""

    busy: float = 0.6
    """The share of a processor, of the exclusive lock and of GitHub's limits that is planned with."""
    github_latency_s: float = 0.15
    hour_limit: int = GITHUB_LIMIT
    """An installation's calls in an hour: 5,000 to 12,500, and 15,000 on Enterprise Cloud."""
    database_cores: int = 16
    database_bytes: float = 4e12
    sqlite_bytes: float = 200e9
    """Past this, backups and the move of a file take too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Something that can be used up: the demand in the busiest hour, and what one unit gives."""

    name: str
    unit: str
    """What is needed more of; empty where nothing can be bought."""
    demand: float
    capacity: float
    measure: str
    """What both are counted in."""
    heads_per_hour: float
    """Of one upstream, in the workload."""
    follows_rate: bool = True
    """False for what depends on the number of installations alone."""
    minute_peak: bool = False
    """The demand is that of the busiest minute, which grows more slowly than the rate."""

    @property
    def use(self) -> float:
        return self.demand / self.capacity

    @property
    def units(self) -> int:
        return max(1, math.ceil(self.use - 1e-9))

    @property
    def heads_at_limit(self) -> float:
        """The heads an hour of each upstream at which one unit is used up; 0 where it is used up at any rate."""
        if self.demand == 0 or not self.follows_rate:
            return 0.0 if self.use > 1 else math.inf
        if self.minute_peak:
            heads_in_a_minute = busiest_minute(self.heads_per_hour) / self.use
            return 60 * ((math.sqrt(9 + 4 * heads_in_a_minute) - 3) / 2) ** 2
        return self.heads_per_hour / self.use


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the workload needs."""

    workload: Workload
    demand: Demand
    store: Store
    limits: tuple[Limit, ...]
    """With one unit of each, those that are used up first come first."""
    relay_processes: int
    page_processes: int
    databases: int
    database_cores: int
    apps: int
    disk_bytes: float
    memory_bytes: float

    @property
    def upstreams_per_database(self) -> int:
        return math.ceil(self.workload.upstreams / self.databases)

    @property
    def unreachable(self) -> tuple[Limit, ...]:
        """Limits that are passed and cannot be bought. Past a minute's limit, calls only wait for the next minute."""
        return tuple(
            limit for limit in self.limits if not limit.unit and not limit.minute_peak and limit.use > 1
        )


def make_plan(workload: Workload, constants: Constants, assumptions: Assumptions) -> Plan:
    demand = demand_of(workload, constants.calls)
    disk_bytes = disk_after(workload, constants)
    on_sqlite = processes_for(demand, constants.sqlite, assumptions) <= 1
    store = Store.SQLITE if on_sqlite and disk_bytes <= assumptions.sqlite_bytes else Store.POSTGRES
    costs = constants.sqlite if store is Store.SQLITE else constants.postgres
    processes = processes_for(demand, costs, assumptions)
    page_processes = math.ceil(page_seconds(demand, constants) / assumptions.busy)
    database = _database_limits(
        workload, demand, costs, assumptions, disk_bytes=disk_bytes, processes=processes
    )
    databases = max(limit.units for limit in database) if store is Store.POSTGRES else 1
    apps_limits = _app_limits(workload, demand, assumptions, max(1, math.ceil(processes / databases)))
    relay = Limit(
        name="one relay process: intake and worker",
        unit="processes",
        demand=relay_seconds(demand, costs, 1),
        capacity=assumptions.busy,
        measure="CPU s/s",
        heads_per_hour=workload.heads_per_hour,
    )
    limits = [*_installation_limits(workload, constants, assumptions), relay, *apps_limits, *database]
    return Plan(
        workload=workload,
        demand=demand,
        store=store,
        limits=tuple(sorted(limits, key=lambda limit: limit.heads_at_limit)),
        relay_processes=max(processes, databases),
        page_processes=max(1, page_processes),
        databases=databases,
        database_cores=_database_cores(demand, costs, assumptions, processes),
        apps=max(limit.units for limit in apps_limits),
        disk_bytes=disk_bytes,
        memory_bytes=max(processes, databases, page_processes) * costs.idle_memory_bytes
        + workload.upstreams * workload.readers * constants.readers.stream_bytes,
    )


def busiest_minute(heads_per_hour: float) -> float:
    """Heads in the busiest minute of random arrivals: the mean and three standard deviations (Poisson)."""
    mean = heads_per_hour / 60
    return mean + 3 * math.sqrt(mean)


def callbacks_in_a_group(rate: float, costs: StoreCosts) -> float:
    """How many callbacks share a commit when so many arrive each second: those of the time that one takes."""
    return max(1.0, rate * costs.callback_answer_s)


def relay_seconds(demand: Demand, costs: StoreCosts, processes: int) -> float:
    """Processor seconds each second of one of so many processes, without pages."""
    callback = costs.callback_cost(callbacks_in_a_group(demand.callbacks / processes, costs))
    total = _sum(demand, costs, callback).relay_s
    return total / processes


def processes_for(demand: Demand, costs: StoreCosts, assumptions: Assumptions) -> int:
    """The fewest processes that are each busy for no more than the planned share, and have slots for all calls."""
    in_progress = (demand.dispatches + demand.check_calls) * assumptions.github_latency_s
    low = max(1, math.ceil(in_progress / (WORKER_SLOTS * assumptions.busy)))
    if _is_enough(low, demand, costs, assumptions):
        return low
    high = low
    while not _is_enough(high, demand, costs, assumptions) and high < _MOST_PROCESSES:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        enough = _is_enough(middle, demand, costs, assumptions)
        low, high = (low, middle) if enough else (middle, high)
    return high


def _is_enough(processes: int, demand: Demand, costs: StoreCosts, assumptions: Assumptions) -> bool:
    return relay_seconds(demand, costs, processes) <= assumptions.busy


def _sum(demand: Demand, costs: StoreCosts, callback: CpuCost) -> CpuCost:
    """Processor seconds each second of all intake and worker processes, and of all databases."""
    rated = (
        (demand.webhooks, costs.webhook),
        (demand.dispatches, costs.dispatch),
        (demand.check_calls, costs.check_call),
        (demand.callbacks, callback),
    )
    return CpuCost(
        sum(rate * cost.relay_s for rate, cost in rated), sum(rate * cost.database_s for rate, cost in rated)
    )


def page_seconds(demand: Demand, constants: Constants) -> float:
    """Processor seconds each second of all page processes: pages in equal parts, and events on streams."""
    pages = constants.readers.pages.values()
    rendered_s = sum(page.after_change_s for page in pages) / len(pages)
    unchanged_s = sum(page.unchanged_s for page in pages) / len(pages)
    kept = demand.page_requests - demand.renderings
    events_s = demand.stream_events * constants.readers.stream_event_s
    return demand.renderings * rendered_s + kept * unchanged_s + events_s


def disk_after(workload: Workload, constants: Constants) -> float:
    """Bytes of all upstreams when retention begins to delete as much as is added."""
    rows, heads = constants.rows, workload.upstreams * workload.heads_per_day
    webhooks = heads * (1 + workload.other_webhooks_per_head)
    dispatches = heads * workload.downstreams * workload.dispatches_per_head
    jobs = heads * workload.downstreams * workload.jobs_per_dispatch
    effects = dispatches + heads * calls_per_head(workload, constants.calls)
    changes = 2 * jobs * CHANGES_PER_CALLBACK + 2 * dispatches + webhooks
    kept = workload.keep_days
    return (
        webhooks * (rows.delivery * kept + rows.body * min(kept, KEEP_BODIES_DAYS))
        + dispatches * rows.dispatch * kept
        + jobs * rows.job * kept
        + effects * rows.effect * KEEP_EFFECTS_DAYS
        + changes * rows.change * KEEP_CHANGES_DAYS
    )


def _installation_limits(workload: Workload, constants: Constants, assumptions: Assumptions) -> list[Limit]:
    """GitHub's limits of one installation: they cannot be bought, except the hour's for larger organisations."""
    heads, calls = workload.heads_per_hour, constants.calls
    in_a_minute = busiest_minute(heads)
    sharing = workload.downstreams_per_installation
    visible = min(
        float(workload.visible), sharing
    )  # The installation with the most calls has the visible ones.
    downstream_calls = visible * calls.gating_downstream + (sharing - visible) * calls.reporting_downstream
    sent = workload.followed * workload.dispatches_per_head
    hour, minute = "calls an hour", "points in a minute"
    rows = [
        ("upstream's installation", hour, heads * calls_per_head(workload, calls)),
        ("upstream's installation", minute, in_a_minute * points_per_head(workload, calls)),
        ("a downstream's installation", hour, heads * sent * downstream_calls),
        ("a downstream's installation", minute, in_a_minute * sent * sharing * 5),
    ]
    return [
        Limit(
            name=f"{name}: {measure}",
            unit="",
            demand=demand,
            capacity=assumptions.hour_limit if measure == hour else POINTS_A_MINUTE,
            measure=measure,
            heads_per_hour=heads,
            minute_peak=measure == minute,
        )
        for name, measure, demand in rows
    ]


def _app_limits(
    workload: Workload, demand: Demand, assumptions: Assumptions, processes_of_one: int
) -> list[Limit]:
    in_progress = (demand.dispatches + demand.check_calls) * assumptions.github_latency_s
    rows = [
        (
            "the App: requests at the same time",
            in_progress,
            CONCURRENT_REQUESTS * assumptions.busy,
            "requests",
        ),
        (
            "the App: tokens for installations",
            workload.installations * processes_of_one,
            TOKENS_AN_HOUR * assumptions.busy,
            "calls an hour",
        ),
    ]
    return [
        Limit(
            name=name,
            unit="Apps",
            demand=needed,
            capacity=capacity,
            measure=measure,
            heads_per_hour=workload.heads_per_hour,
            follows_rate=measure == "requests",
        )
        for name, needed, capacity, measure in rows
    ]


def exclusive_seconds(workload: Workload, demand: Demand, costs: StoreCosts) -> float:
    """Seconds each second in which a webhook is recorded: on PostgreSQL no other write of the database runs then."""
    rows_s = workload.downstreams * workload.dispatches_per_head * costs.dispatch_answer_s
    return demand.webhooks * costs.webhook_answer_s + demand.heads * rows_s


def _database_limits(
    workload: Workload,
    demand: Demand,
    costs: StoreCosts,
    assumptions: Assumptions,
    *,
    disk_bytes: float,
    processes: int,
) -> list[Limit]:
    callback = costs.callback_cost(callbacks_in_a_group(demand.callbacks / processes, costs))
    rows = [
        (
            "one database: webhooks one at a time",
            exclusive_seconds(workload, demand, costs),
            assumptions.busy,
            "s/s",
        ),
        (
            "one database: processor",
            _sum(demand, costs, callback).database_s,
            assumptions.database_cores * assumptions.busy,
            "CPU s/s",
        ),
        ("one database: disk", disk_bytes, assumptions.database_bytes, "bytes"),
    ]
    return [
        Limit(
            name=name,
            unit="databases",
            demand=needed,
            capacity=capacity,
            measure=measure,
            heads_per_hour=workload.heads_per_hour,
        )
        for name, needed, capacity, measure in rows
    ]


def _database_cores(demand: Demand, costs: StoreCosts, assumptions: Assumptions, processes: int) -> int:
    callback = costs.callback_cost(callbacks_in_a_group(demand.callbacks / processes, costs))
    return math.ceil(_sum(demand, costs, callback).database_s / assumptions.busy)
