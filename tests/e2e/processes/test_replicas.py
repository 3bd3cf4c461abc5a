"""Several processes on one database: one of them is the leader, and a rolling restart under load loses nothing."""

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from github_sim.github import GitHub, WorkflowRun
from support.deploy.load_balancer import LoadBalancer, run_load_balancer
from support.process import CrcrProcess, crcr, free_port
from support.replicas import (
    DATABASE_URLS,
    TARGETS,
    github_with_backends,
    query_rows,
    query_value,
    replica_environment,
    wait_until,
)
from support.running_relay import UPSTREAM

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PULLS = 45
ROUNDS = 2
OPEN = "SELECT count(*) FROM effects WHERE state IN ('waiting', 'claimed')"


@pytest.mark.parametrize("database_kind", DATABASE_URLS)
async def test_another_process_becomes_leader_when_the_leader_is_killed(
    tmp_path: Path, database_kind: str
) -> None:
    url = DATABASE_URLS[database_kind](tmp_path)
    async with github_with_backends() as github:
        env = replica_environment(tmp_path, github, url)
        async with (
            crcr("worker", folder=tmp_path, environ=env) as first,
            crcr("worker", folder=tmp_path, environ=env) as second,
        ):
            await first.wait_for_line("crcr is processing")
            await second.wait_for_line("crcr is processing")
            workers = {str(each.process.pid): each for each in (first, second)}
            leader = leader_pid(url)
            assert leader in workers
            assert query_value(url, "SELECT count(*) FROM allowlist_versions") == 1
            await workers[leader].stop(signal.SIGKILL)
            other = next(pid for pid in workers if pid != leader)
            await wait_until(lambda: leader_pid(url) == other)  # at once: it runs on the same machine
            assert await workers[other].stop() == 0
            assert query_value(url, "SELECT count(*) FROM leaders WHERE duty = 'upkeep'") == 0


def leader_pid(url: str) -> str:
    """The process id of the leader."""
    return str(query_value(url, "SELECT holder FROM leaders WHERE duty = 'upkeep'")).split()[1]


@pytest.mark.parametrize("database_kind", DATABASE_URLS)
async def test_two_processes_that_start_concurrently_on_an_empty_database_are_both_ready(
    tmp_path: Path, database_kind: str
) -> None:
    url, ports = DATABASE_URLS[database_kind](tmp_path), (free_port(), free_port())
    async with github_with_backends() as github, AsyncExitStack() as stack:
        env = replica_environment(tmp_path, github, url)
        words = [("serve", "--port", str(port)) for port in ports]
        relays = [
            await stack.enter_async_context(crcr(*each, folder=tmp_path, environ=env)) for each in words
        ]
        await asyncio.gather(*(relay.wait_for_line("crcr is listening on") for relay in relays))
        async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport()) as http:
            ready = [(await http.get(f"http://127.0.0.1:{port}/readyz")).status_code for port in ports]
        assert ready == [200, 200]
        assert await asyncio.gather(*(relay.stop() for relay in relays)) == [0, 0]


@dataclass
class Load:
    """Pull requests and their results, one after the other, as fast as they are accepted."""

    github: GitHub
    opened: int = 0
    told: set[str] = field(default_factory=set)
    """Runs whose result was acknowledged."""
    refusals: Counter[int] = field(default_factory=Counter)

    async def webhooks(self) -> None:
        for _ in range(PULLS):
            await self.github.open_pr(UPSTREAM)
            self.opened += 1
            await asyncio.sleep(0.2)

    async def results(self) -> None:
        """Report for every run that appears; retry a refused report, as the reporter does."""
        while len(self.told) < PULLS * len(TARGETS):
            for name in TARGETS:
                for run in self.github.runs(name):
                    if str(run.id) not in self.told:
                        await self._tell(run)
            await asyncio.sleep(0.05)

    async def _tell(self, run: WorkflowRun) -> None:
        for status in ("in_progress", "completed"):
            job = run.job("build")
            if status == "completed":
                self.github.ci.complete(run, job, "success")
            else:
                self.github.ci.start(run, job)
            while (answer := await self.github.report(run, job, status=status)).status_code != 200:
                self.refusals[answer.status_code] += 1
                assert answer.status_code >= 500, answer.text
                await asyncio.sleep(0.1)
        self.told.add(str(run.id))


@dataclass
class Fleet:
    """Two relays without pages behind a balancer, and a worker; each can be restarted."""

    folder: Path
    env: dict[str, str]
    balancer: LoadBalancer
    stack: AsyncExitStack
    running: dict[str, CrcrProcess] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    async def start(self, name: str) -> None:
        words = ("worker",) if name == "worker" else ("serve", "--role", "intake", "--port", name)
        self.running[name] = await self.stack.enter_async_context(
            crcr(*words, folder=self.folder, environ=self.env)
        )
        await self.running[name].wait_for_line(
            "crcr is processing" if name == "worker" else "crcr is listening on"
        )
        if name != "worker":
            await self.balancer.has_ready(int(name))

    async def stop(self, name: str) -> None:
        process = self.running.pop(name)
        assert await process.stop() == 0
        self.errors += [line for line in (await process.errors()).splitlines() if '"level":"error"' in line]


@asynccontextmanager
async def run_fleet(folder: Path, github: GitHub, url: str) -> AsyncIterator[Fleet]:
    ports = (free_port(), free_port())
    async with run_load_balancer(*ports) as balancer, AsyncExitStack() as stack:
        env = replica_environment(folder, github, url, CRCR_PUBLIC_URL=balancer.url, CRCR_DRAIN_S="1")
        github.webhook_url = f"{balancer.url}/github/webhook"
        fleet = Fleet(folder, env, balancer, stack)
        for name in (*map(str, ports), "worker"):
            await fleet.start(name)
        yield fleet


# The balancer's connections are cut together with their relays, and not all of them get closed.
@pytest.mark.parametrize("database_kind", DATABASE_URLS)
async def test_a_rolling_restart_under_load_loses_and_duplicates_nothing(
    tmp_path: Path, database_kind: str
) -> None:
    url = DATABASE_URLS[database_kind](tmp_path)
    async with github_with_backends() as github, run_fleet(tmp_path, github, url) as fleet:
        load = Load(github)
        under_load = asyncio.gather(load.webhooks(), load.results())
        await wait_until(lambda: load.opened > 2)
        for _ in range(ROUNDS):
            for name in list(fleet.running):
                await fleet.stop(name)
                await fleet.start(name)
        during = load.opened
        await under_load
        await wait_until(lambda: query_value(url, OPEN) == 0)
        for name in list(fleet.running):
            await fleet.stop(name)

        sent = [each for each in github.deliveries() if each.event == "pull_request"]
        arrived = Counter((each.delivery_id, name) for name in TARGETS for each in github.dispatches(name))
        recorded = query_rows(url, "SELECT delivery, downstream, state, conclusion FROM jobs")
        assert during > 10  # otherwise nothing was restarted under load
        assert fleet.errors == []
        assert [each.status for each in sent if not each.ok] == []
        assert load.refusals == Counter()
        assert arrived == Counter({(each.guid, name): 1 for each in sent for name in TARGETS})
        assert Counter((row["delivery"], row["downstream"]) for row in recorded) == arrived
        assert {(row["state"], row["conclusion"]) for row in recorded} == {("completed", "success")}
        assert query_value(url, "SELECT sum(success) FROM hours") == PULLS * len(TARGETS)
        assert query_value(url, "SELECT count(*) FROM dispatches WHERE unsure = 1 OR state <> 'sent'") == 0
        assert query_value(url, "SELECT count(*) FROM leaders WHERE duty = 'upkeep'") == 0
        assert min(fleet.balancer.sent.values()) > 20
