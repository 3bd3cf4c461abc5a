"""A dead or hung worker delays its claims only briefly: the other worker takes them over.

PostgreSQL, one relay without pages, two workers and a steady load of dispatches to some tens of targets. One worker is frozen and
continued, and then the other is killed, each while it holds claims. Times are those at which dispatches reached the simulated
GitHub.
"""

import asyncio
import signal
from collections import Counter
from pathlib import Path

import pytest

from github_sim.github import GitHub, JobSpec, Workflow, WorkflowRun
from github_sim.rest.server import serve
from github_sim.world.faults import Match
from support.process import CrcrProcess, crcr, free_port
from support.replicas import query_rows, query_value, replica_environment, wait_until
from support.running_relay import AUDIENCE, UPSTREAM
from support.services.postgres import new_database

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

GATE, GATING = "crcr/gate", "gating/backend"
TARGETS = (GATING, *(f"owner{number}/backend" for number in range(24)))
ALLOWLIST = (
    "L2:\n"
    + "".join(f"  - {name}\n" for name in TARGETS[1:])
    + f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: [build]}}\n"
)
WORST_WAIT_S = 20.0
FROZEN_S, GONE_S = 22.0, 14.0
OPEN = (
    "SELECT count(*) FROM effects WHERE state IN ('waiting', 'claimed')"
    " AND (kind = 'send_dispatch' OR target = 'checks/gate')"
)


class Load:
    """Pull requests one after the other; the gating backend builds and reports each of them."""

    def __init__(self, github: GitHub) -> None:
        self._github = github
        self._stop = asyncio.Event()
        self._reports: set[asyncio.Task[None]] = set()
        github.ci.on_started.append(self._begin)

    async def go_on(self) -> None:
        while not self._stop.is_set():
            await self._github.open_pr(UPSTREAM)
            await asyncio.sleep(2)
        while self._reports:
            await asyncio.gather(*self._reports)

    @property
    def all_reported(self) -> bool:
        return not self._reports

    def stop(self) -> None:
        self._stop.set()

    def _begin(self, run: WorkflowRun) -> None:
        task = asyncio.create_task(self._report(run))
        self._reports.add(task)
        task.add_done_callback(self._reports.discard)

    async def _report(self, run: WorkflowRun) -> None:
        job = run.job("build")
        for status in ("in_progress", "completed"):
            if status == "completed":
                self._github.ci.complete(run, job, "success")
            else:
                self._github.ci.start(run, job)
            while (answer := await self._github.report(run, job, status=status)).status_code >= 500:
                await asyncio.sleep(0.2)
            assert answer.status_code == 200, answer.text


async def freeze_at_work(worker: CrcrProcess, url: str) -> None:
    """Freeze the worker in the middle of dispatches that it has claimed."""
    mine = f"lease_owner LIKE '% {worker.process.pid} %'"
    held = f"SELECT count(*) FROM effects WHERE state = 'claimed' AND kind = 'send_dispatch' AND {mine}"  # noqa: S608
    async with asyncio.timeout(30):
        while True:
            if await asyncio.to_thread(query_value, url, held):
                worker.process.send_signal(signal.SIGSTOP)
                if await asyncio.to_thread(query_value, url, held):
                    return
                worker.process.send_signal(signal.SIGCONT)
            await asyncio.sleep(0.05)


def waits_s(github: GitHub) -> dict[tuple[str, str], float]:
    """For each webhook and target, the time until its first dispatch."""
    sent = {each.guid: each.delivered_at for each in github.deliveries() if each.event == "pull_request"}
    waits: dict[tuple[str, str], float] = {}
    for name in TARGETS:
        for each in github.dispatches(name):
            took_s = (each.received_at - sent[each.delivery_id or ""]).total_seconds()
            key = (each.delivery_id or "", name)
            waits[key] = min(took_s, waits.get(key, took_s))
    return waits


async def test_fault_72_a_frozen_and_a_killed_worker_delay_no_target_by_more_than_20_s(
    tmp_path: Path,
) -> None:
    url, port = new_database(), free_port()
    async with GitHub(seed=72) as github, serve(github):
        github.ci.audience = AUDIENCE
        github.limits.points_per_minute = github.limits.primary_per_hour = 1_000_000
        github.webhook_url = f"http://127.0.0.1:{port}/github/webhook"
        github.create_repository(UPSTREAM)
        for name in TARGETS:
            github.create_repository(name, workflows=[])
        github.repository(GATING).workflows = [
            Workflow(jobs=(JobSpec("build"),), run_name="CI {delivery_id}")
        ]
        github.faults.latency(0.5, on=Match(method="POST", path="*/dispatches"))
        env = replica_environment(tmp_path, github, url, CRCR_PUBLIC_URL=f"http://127.0.0.1:{port}")
        (tmp_path / "allowlist.yml").write_text(ALLOWLIST)
        async with (
            crcr(
                "serve", "--role", "intake", "--no-worker", "--port", str(port), folder=tmp_path, environ=env
            ) as relay,
            crcr("worker", folder=tmp_path, environ=env) as first,
            crcr("worker", folder=tmp_path, environ=env) as second,
        ):
            await relay.wait_for_line("crcr is listening on")
            await first.wait_for_line("crcr is processing")
            await second.wait_for_line("crcr is processing")
            load = Load(github)
            under_load = asyncio.create_task(load.go_on())

            await freeze_at_work(first, url)
            await asyncio.sleep(FROZEN_S)
            first.process.send_signal(signal.SIGCONT)
            await asyncio.sleep(3)
            await freeze_at_work(second, url)
            await second.stop(signal.SIGKILL)
            await asyncio.sleep(GONE_S)

            load.stop()
            await under_load
            # A dispatch that is sent only now starts a report, and its gate is published after that.
            await wait_until(lambda: load.all_reported and query_value(url, OPEN) == 0)
            assert await first.stop() == 0
            assert await relay.stop() == 0

        waits = waits_s(github)
        heads = {pull.head_sha for pull in github.world.pulls.values()}
        gates = {head: github.latest_checks(UPSTREAM, head).get(GATE) for head in heads}
        arrived = Counter((each.delivery_id, name) for name in TARGETS for each in github.dispatches(name))
        doubled = {key for key, times in arrived.items() if times > 1}
        unsure = {
            (row["delivery"], row["downstream"])
            for row in query_rows(url, "SELECT delivery, downstream FROM dispatches WHERE unsure = 1")
        }
        sent = [each for each in github.deliveries() if each.event == "pull_request"]
        worst = max(waits.values())
        print(f"worst wait {worst:.1f} s of {len(waits)}, {len(unsure)} unsure, {len(doubled)} doubled")  # noqa: T201

        assert [each.status for each in sent if not each.ok] == []
        assert set(waits) == {(each.guid, name) for each in sent for name in TARGETS}, "something was lost"
        assert worst <= WORST_WAIT_S
        assert unsure, "nothing was taken over"
        assert doubled <= unsure
        assert {head: gate and gate.conclusion for head, gate in gates.items()} == dict.fromkeys(
            heads, "success"
        )
        github.finish()
