"""Measure what webhooks, dispatches, checks and callbacks cost a real `crcr serve`, on SQLite and on PostgreSQL.

Processor time is counted, not elapsed time, so that other work on the machine changes the figures little. A cost with a
fixed and a growing part is measured at several sizes, and a line is fitted through them. None of these sizes is one that
`bench.model.checks` predicts: callbacks of 32 clients, and a webhook with 1,000 targets.
"""

import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvloop

from bench.model.constants import CpuCost, StoreCosts
from bench.model.measured_process import (
    MeasuredRelay,
    create_database,
    postmaster_pid,
    run_measured_relay,
    run_postgres,
)
from bench.relay_process.load_client import post_bytes, send_all, send_steadily
from bench.relay_process.processes import wait_for_dispatches, wait_until_idle
from bench.relay_process.relay_setup import RelaySetup, report_body, signed_webhook

FEW, GATING, MANY = 1, 3, 500
"""Targets of the measured relays; those of the second are all at L4."""
CALLBACKS = {1: 600, 4: 1600, 16: 4800}
"""Callbacks for each number of clients. Processor time is counted in steps of 10 ms."""
_WEBHOOKS = {FEW: 40, GATING: 20, MANY: 8}
_EVERY_S = {FEW: 0.05, GATING: 0.2, MANY: 1.2}
_CHECKS_COLLECT_S = 4.0
"""Checks of backends collect changes for 2 s before they are published."""
_REPORTING = 16
"""Backends that report at the same time: on PostgreSQL each has a lane of its own."""
_RUN = 19_000_000_000

RunRelay = Callable[[int], AbstractContextManager[MeasuredRelay]]


@dataclass(frozen=True, slots=True)
class _Sample:
    cpu: CpuCost
    answer_s: float
    """The fastest one: the others also wait for the machine's other work."""
    calls: float = 0.0


def measure_store(folder: Path, *, on_postgres: bool) -> StoreCosts:
    with _relays(folder, on_postgres=on_postgres) as run:
        with run(FEW) as relay:
            memory_bytes = int(relay.memory_bytes())
            few = _measure_heads(relay)
        with run(GATING) as relay:
            gating = _measure_heads(relay)
        with run(MANY) as relay:
            many = _measure_heads(relay)
            callbacks = {clients: _measure_callbacks(relay, clients) for clients in CALLBACKS}
    webhook, dispatch = fit_line({FEW: few.cpu, MANY: many.cpu})
    callback, commit = fit_line(
        {1 / group_size(clients): sample.cpu for clients, sample in callbacks.items()}
    )
    answer, answer_for_each = fit_line({FEW: CpuCost(few.answer_s), MANY: CpuCost(many.answer_s)})
    return StoreCosts(
        webhook=webhook,
        dispatch=dispatch,
        check_call=_check_call(gating, webhook, dispatch),
        callback=callback,
        commit=commit,
        webhook_answer_s=answer.relay_s,
        dispatch_answer_s=answer_for_each.relay_s,
        callback_answer_s=callbacks[1].answer_s,
        idle_memory_bytes=memory_bytes,
    )


def group_size(clients: int) -> float:
    """How many callbacks share a commit when so many clients send one after the other.

    While one group waits for the disk, the next one collects: each has half of the clients.
    """
    return max(1.0, clients / 2)


def fit_line(costs: dict[float, CpuCost] | dict[int, CpuCost]) -> tuple[CpuCost, CpuCost]:
    """Return the fixed part and the growing part of a cost that was measured at several sizes (least squares)."""
    sizes = [float(size) for size in costs]
    parts = [
        statistics.linear_regression(sizes, values)
        for values in (
            [cost.relay_s for cost in costs.values()],
            [cost.database_s for cost in costs.values()],
        )
    ]
    fixed, growing = (
        [max(0.0, value) for value in values]
        for values in zip(*((part.intercept, part.slope) for part in parts), strict=True)
    )
    return CpuCost(*fixed), CpuCost(*growing)


def _check_call(gating: _Sample, webhook: CpuCost, dispatch: CpuCost) -> CpuCost:
    """What is left of a gated head's cost after its webhook and dispatches, for each of its other calls."""
    calls = gating.calls - GATING
    return CpuCost(
        max(0.0, gating.cpu.relay_s - webhook.relay_s - GATING * dispatch.relay_s) / calls,
        max(0.0, gating.cpu.database_s - webhook.database_s - GATING * dispatch.database_s) / calls,
    )


@contextmanager
def _relays(folder: Path, *, on_postgres: bool) -> Iterator[RunRelay]:
    """Yield a function that runs a relay with so many targets."""
    folder.mkdir()
    if not on_postgres:
        yield lambda targets: run_measured_relay(_setup(folder / f"{targets}", targets))
        return
    with run_postgres() as cluster:
        yield lambda targets: run_measured_relay(
            _setup(folder / f"{targets}", targets, create_database(cluster, f"model_{targets}")),
            database_pid=postmaster_pid(cluster),
        )


def _setup(folder: Path, targets: int, url: str | None = None) -> RelaySetup:
    setup = RelaySetup(folder, targets, url=url)
    if targets == GATING:
        entries = (f"  {name}: {{oncalls: [bench-oncall]}}\n" for name in setup.names())
        setup.allowlist = f"L4:\n{''.join(entries)}"
    return setup


def _measure_heads(relay: MeasuredRelay) -> _Sample:
    """Send webhooks of new pull requests at a steady rate; the first one mints the tokens and is not counted."""
    setup = relay.setup
    targets, number = setup.targets, _WEBHOOKS[setup.targets]
    _send_webhooks(setup, range(1, 2))
    wait_for_dispatches(setup, targets)
    wait_until_idle(setup, 5 * targets)
    time.sleep(_CHECKS_COLLECT_S if targets == GATING else 0.0)
    setup.request_stub("/reset")
    before = relay.cpu()
    answers = _send_webhooks(setup, range(2, 2 + number))
    wait_for_dispatches(setup, targets * number)
    time.sleep(_CHECKS_COLLECT_S if targets == GATING else 0.0)
    after = relay.cpu()
    calls = setup.request_stub("/arrivals")["calls"] / number
    return _Sample(after.minus(before, per=number), min(answers), calls)


def _send_webhooks(setup: RelaySetup, numbers: range) -> list[float]:
    webhooks = [signed_webhook(number) for number in numbers]
    requests = [post_bytes("/github/webhook", body, headers) for body, headers, _ in webhooks]
    answers, statuses = uvloop.run(send_steadily(setup.relay_port, requests, every_s=_EVERY_S[setup.targets]))
    if not set(statuses) <= {200, 202}:
        raise SystemExit(f"not every webhook was accepted: {statuses}")
    return answers


def _measure_callbacks(relay: MeasuredRelay, clients: int) -> _Sample:
    """Open and close jobs of a new pull request, with so many connections that send one report after the other."""
    number = CALLBACKS[clients]
    requests = callback_requests(relay.setup, 1_000 + clients, number, backends=_REPORTING)
    before = relay.cpu()
    latencies: list[float] = []
    for part in (requests[: number // 2], requests[number // 2 :]):
        _, answers, statuses = uvloop.run(send_all(relay.setup.relay_port, part, clients))
        latencies += answers
        if set(statuses) != {200}:
            raise SystemExit(f"not every callback was accepted: {statuses}")
    return _Sample(relay.cpu().minus(before, per=number), min(latencies))


def callback_requests(setup: RelaySetup, pull: int, number: int, *, backends: int) -> list[bytes]:
    """Open a pull request; return the reports that open half as many jobs, then those that close them."""
    setup.request_stub("/reset")
    body, headers, guid = signed_webhook(pull)
    uvloop.run(send_all(setup.relay_port, [post_bytes("/github/webhook", body, headers)], 1))
    wait_for_dispatches(setup, setup.targets)
    time.sleep(0.5)
    payload, half, names = json.loads(body), number // 2, setup.names()[:backends]
    requests = []
    for index in range(2 * half):
        job, status = index % half, "in_progress" if index < half else "completed"
        place = job % len(names)
        run = _RUN + pull * 1_000 + place
        token = setup.token(names[place], run, 60_000 + job)
        report = report_body(guid, payload, run, job, status)
        requests.append(post_bytes("/github/callback", report, {"Authorization": f"Bearer {token}"}))
    return requests
