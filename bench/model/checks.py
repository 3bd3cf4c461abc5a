"""The model against measurements that its constants were not taken from: each must be within 20 %.

Constants come from 1 to 500 targets, 1 to 16 clients and single heads in small worlds. Predicted and measured here: a
webhook with 1,000 targets, callbacks of 32 clients, and the peak hour of a world of 20 backends.
"""

import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import uvloop
from rich.console import Console

from bench.callbacks.fan_out import send_webhook
from bench.github_budget import peak_traffic
from bench.github_budget.peak_hours import run_peak
from bench.github_budget.relay_in_process import log_errors_only
from bench.github_budget.simulated_time import run_simulated
from bench.model.constants import Constants, HeadCalls
from bench.model.measure import measure_constants
from bench.model.measure_store import callback_requests
from bench.model.measured_process import run_measured_relay
from bench.model.simulation import (
    BusiestCalls,
    HeadTraffic,
    simulate_calls,
    simulate_clients,
    simulate_fan_out,
)
from bench.relay_process.github_stub import LATENCY_S
from bench.relay_process.load_client import send_all
from bench.relay_process.processes import wait_for_dispatches, wait_until_idle
from bench.relay_process.relay_setup import RelaySetup, Row

WITHIN = 0.2
TARGETS = 1_000
CLIENTS, CALLBACKS = 32, 4_000
_BACKENDS = 16
_TRIES = 3
_SEEDS = range(25)
_PEAK_HOURS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    what: str
    predicted: float
    measured: float
    unit: str
    judged: bool = True
    """False for an elapsed time on a machine with other work, which only that other work explains."""

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1

    @property
    def holds(self) -> bool:
        return abs(self.error) <= WITHIN or not self.judged

    def row(self) -> Row:
        text = f"{self.predicted:,.3g} {self.unit}, measured {self.measured:,.3g} ({self.error:+.0%})"
        return (
            f"model: {self.what}",
            text,
            f"within {WITHIN:.0%}" if self.judged else "the machine is busy",
            self.holds,
        )


def _is_quiet() -> bool:
    return os.getloadavg()[0] < (os.cpu_count() or 1)


def check_relay(constants: Constants, folder: Path) -> Iterator[Check]:
    """Predict and measure a fan-out to 1,000 targets and 32 clients' callbacks, on SQLite."""
    with run_measured_relay(RelaySetup(folder, TARGETS)) as relay:
        setup = relay.setup
        send_webhook(setup, 1)  # The first webhook mints the tokens, which last an hour.
        wait_for_dispatches(setup, TARGETS)
        wait_until_idle(setup, 5 * TARGETS)
        took, before = [], relay.cpu()
        for number in range(2, 2 + _TRIES):
            setup.request_stub("/reset")
            began, _ = send_webhook(setup, number)
            took.append(wait_for_dispatches(setup, TARGETS) - began)
            time.sleep(1.0)
        cpu = relay.cpu().minus(before, per=_TRIES).relay_s
        simulated = simulate_fan_out(constants.sqlite, TARGETS, LATENCY_S)
        yield Check(
            what=f"a webhook with {TARGETS:,} targets, processor time",
            predicted=simulated.interpreter.busy_s,
            measured=cpu,
            unit="s",
        )
        yield Check(
            what=f"last of {TARGETS:,} targets reached",
            predicted=simulated.last_dispatches[0],
            measured=min(took),
            unit="s",
            judged=_is_quiet(),
        )
    with run_measured_relay(RelaySetup(folder.with_name(f"{folder.name}-callbacks"), _BACKENDS)) as relay:
        for pull in (1, 2):  # The first round is not counted: a new process takes longer.
            requests = callback_requests(relay.setup, pull, CALLBACKS, backends=_BACKENDS)
            before = relay.cpu()
            for part in (requests[: CALLBACKS // 2], requests[CALLBACKS // 2 :]):
                uvloop.run(send_all(relay.setup.relay_port, part, CLIENTS))
            cpu = relay.cpu().minus(before, per=CALLBACKS).relay_s
    simulated = simulate_clients(constants.sqlite, CLIENTS, CALLBACKS)
    # For each processor second: the elapsed time depends on the machine's other work.
    yield Check(
        what=f"callbacks of {CLIENTS} clients, for each processor second",
        predicted=CALLBACKS / simulated.interpreter.busy_s,
        measured=1 / cpu,
        unit="/s",
    )


def predict_peak(calls: HeadCalls, hours: float, *, heads: int, groups: int) -> BusiestCalls:
    """The model of `peak_traffic`, with as many heads and merge groups as there were: the median of several seeds."""
    traffic = HeadTraffic(
        heads_per_hour=heads / hours,
        groups_per_hour=groups / hours,
        groups_at_once=peak_traffic.MOST_GROUPS,
        commands_per_hour=peak_traffic.COMMANDS_AN_HOUR,
        visible=len(peak_traffic.L4),
        visible_more_share=peak_traffic.LABELLED_SHARE * (1 - peak_traffic.PUSHED_SHARE),
        failing_share=peak_traffic.FAILING_SHARE,
    )
    runs = [simulate_calls(traffic, calls, hours, seed) for seed in _SEEDS]
    return BusiestCalls(
        *(
            round(statistics.median(getattr(run, name) for run in runs))
            for name in ("calls", "calls_in_an_hour", "points_in_a_minute")
        )
    )


def check_peak(constants: Constants, folder: Path, hours: float) -> Iterator[Check]:
    """Predict and measure the upstream's calls of `python -m bench --only peak`."""
    log_errors_only()
    folder.mkdir()
    figures = run_simulated(run_peak(folder, hours * 3600))
    predicted = predict_peak(constants.calls, hours, heads=figures.heads, groups=figures.groups)
    yield Check(
        what="peak: calls in the busiest hour",
        predicted=predicted.calls_in_an_hour,
        measured=figures.upstream.most_in_an_hour,
        unit="calls",
    )
    yield Check(
        what="peak: points in the busiest minute",
        predicted=predicted.points_in_a_minute,
        measured=figures.upstream.most_points_in_a_minute,
        unit="points",
    )


def check_rows(constants: Constants, folder: Path, hours: float) -> Iterator[Row]:
    for check in check_relay(constants, folder / "model-relay"):
        yield check.row()
    for check in check_peak(constants, folder / "model-peak", hours):
        yield check.row()


def measure_model(folder: Path, hours: float) -> Iterator[Row]:
    """Measure the constants here, in a short run of this machine, and check the model that follows from them."""
    constants = measure_constants(folder / "model-constants", Console())
    yield from check_rows(constants, folder, min(hours, _PEAK_HOURS))
