"""Faults in all parts at once; afterwards nothing is lost, doubled or shown wrongly.

Two relays and two workers on PostgreSQL and Redis, under load. `CRCR_CHAOS_SEED=7` repeats a storm, and
`CRCR_CHAOS_SECONDS=600 .venv/bin/pytest -q -s tests/chaos/test_chaos.py` makes it longer.
"""

import asyncio
import os
import signal
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from random import Random, SystemRandom

import pytest

from chaos.installation import Installation, run_installation
from chaos.judge import Judge, read_tables
from chaos.load import Load
from chaos.storm import Storm

SECONDS = float(os.environ.get("CRCR_CHAOS_SECONDS", "24"))
SETTLES_WITHIN_S = 150.0
HIT_AT_LEAST = {
    "relay killed": 1,
    "worker killed": 1,
    "Redis away": 1,
    "PostgreSQL crashed": 1,
    "PostgreSQL restarted": 1,
}


@pytest.mark.slow
@pytest.mark.timeout(560 + 3 * SECONDS)
async def test_under_faults_in_all_parts_nothing_is_lost_doubled_or_shown_wrongly(tmp_path: Path) -> None:
    seed = int(os.environ.get("CRCR_CHAOS_SEED", SystemRandom().randrange(10**6)))
    print(f"\nCRCR_CHAOS_SEED={seed}", flush=True)  # noqa: T201  to repeat this storm
    times = [time.monotonic()]
    async with run_installation(tmp_path, seed) as installation:
        await installation.until_ready()
        times.append(time.monotonic())
        load, storm = (
            Load(installation.github, Random(f"{seed} load")),
            Storm(installation, Random(f"{seed} storm")),
        )
        try:
            await run_storm(storm, load)
            times.append(time.monotonic())
            judge = await settle(installation, load)
        finally:
            await load.end()
        times.append(time.monotonic())
        await installation.stop()
        installation.github.finish()
        errors = find_errors(judge)
        print(summary_table(seed, times, judge, storm, errors), flush=True)  # noqa: T201  the result of the run
        assert {name: details[:5] for name, details in errors.items() if details} == {}
        assert load.ledger
        assert judge.acknowledged
        assert storm.counts >= Counter(HIT_AT_LEAST)  # otherwise too few faults were injected


async def run_storm(storm: Storm, load: Load) -> None:
    faults_task = asyncio.create_task(storm.inject_faults(SECONDS))
    try:
        await load.open_pulls(faults_task, every_s=2.0, most=int(SECONDS * 0.6))
        await faults_task
    finally:
        faults_task.cancel()
    await storm.recover()


async def settle(installation: Installation, load: Load) -> Judge:
    """Restart the workers in turn, recover missed webhooks, and wait until all due effects are done."""
    for worker in installation.workers:
        worker.send(signal.SIGTERM, back_after_s=0.1)
        await installation.until_ready(worker)
    code, out, errors = await installation.command("reconcile", "--json")
    assert code == 0, (out, errors)
    until = time.monotonic() + SETTLES_WITHIN_S + SECONDS
    while True:
        judge = Judge(installation, load, await read_tables(installation))
        if load.is_quiet and not judge.rows["open"] and not judge.gates_wrong():
            return judge
        if time.monotonic() > until:
            return judge
        await asyncio.sleep(0.5)  # real processes work in real time


def find_errors(judge: Judge) -> dict[str, list[str]]:
    return {
        "acknowledged events lost": judge.events_lost(),
        "missed events not recovered": judge.events_missed(),
        "dispatched twice, unknown": judge.doubled_unmarked(),
        "dispatched, unrecorded": judge.dispatched_unrecorded(),
        "results lost": judge.results_lost(),
        "results applied twice": judge.results_doubled(),
        "reports refused": judge.refused(),
        "reports never taken": judge.never_taken(),
        "gate states wrong": judge.gates_wrong(),
        "gates opened wrongly": judge.opened_wrongly(),
        "effects left open": [str(row) for row in judge.rows["open"]],
        "effects given up": [str(row) for row in judge.rows["parked"]],
        "crashes": judge.crashes(),
    }


def summary_table(
    seed: int, times: list[float], judge: Judge, storm: Storm, errors: dict[str, list[str]]
) -> str:
    load, log = judge.load, judge.webhooks
    acknowledged = sum(item.guid in judge.acknowledged for item in log)
    facts = {
        "seed": seed,
        "seconds": "start {:.0f}, storm {:.0f}, settling {:.0f}".format(*(b - a for a, b in pairwise(times))),
        "webhooks": f"{len(log)}, {acknowledged} acknowledged",
        "dispatches": f"{sum(judge.arrived.values())}, {sum(n > 1 for n in judge.arrived.values())} twice",
        "reports": f"{len(load.ledger)}, in {sum(item.tries for item in load.ledger)} tries",
        **{name: len(details) for name, details in errors.items()},
    }
    fault_counts = ", ".join(f"{name} {count}" for name, count in sorted(storm.counts.items()))
    return "\n".join(
        [*(f"  {name:<28} {value}" for name, value in facts.items()), f"  storm: {fault_counts}"]
    )
