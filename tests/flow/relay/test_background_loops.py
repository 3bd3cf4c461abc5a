"""The background loops beside the requests: they start, and the death of one is reported."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

from crcr.deliver.periodic.leader_tasks import UPKEEP
from crcr.deliver.worker import Worker
from crcr.record.outbox.leader_and_workers import LeaderElection
from crcr.wiring.background import BackgroundTasks
from crcr.wiring.core import Seams
from crcr.wiring.services import Services, build
from github_sim.world.faults import Match
from support.clock import settle
from support.running_relay import UPSTREAM, RunningRelay, running_relay

LISTED = "L2: [org/one]"


class Dying:
    """A worker with a bug that nobody foresaw."""

    async def run(self, *_: Any) -> None:
        raise ZeroDivisionError("a bug in the loop itself")


async def test_a_loop_that_dies_stops_the_process_and_is_told(tmp_path: Path) -> None:
    async with running_relay(tmp_path, "L2: [org/one]") as relay:
        services = replace(relay.services, worker=cast("Worker", Dying()))
        company = BackgroundTasks(services, work=True)
        await company.start()
        async with asyncio.timeout(8):
            await services.stopping.wait()
        await company.stop()

        assert [type(each) for each in services.loop_errors] == [ZeroDivisionError]


async def test_a_company_that_is_asked_to_stop_ends_without_a_death(tmp_path: Path) -> None:
    async with running_relay(tmp_path, "L2: [org/one]") as relay:
        company = BackgroundTasks(relay.services, work=True)
        await company.start()
        await company.stop()

        assert relay.services.loop_errors == []


def another_process(relay: RunningRelay) -> Services:
    seams = Seams(
        clock=relay.clock, http=relay._github_http, chance=lambda: 0.5, on_crash=relay.crashes.append
    )
    return build(relay.services.settings, seams)


async def test_of_two_processes_one_leads_and_the_other_does_when_it_stops(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED) as relay:
        first, second = (
            BackgroundTasks(relay.services, work=True),
            BackgroundTasks(another_process(relay), work=True),
        )
        await first.start()
        await second.start()
        assert (first.leader_tasks.leads, second.leader_tasks.leads) == (True, False)
        await first.stop()
        async with asyncio.timeout(8):
            while not second.leader_tasks.leads:
                await relay.clock.pass_time(10)
                await asyncio.sleep(0)
        await second.stop()

        assert relay.rows("SELECT * FROM leaders") == []
        assert relay.services.loop_errors == []


async def test_who_does_not_lead_reads_an_allowlist_that_nobody_has_read(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED) as relay:
        elsewhere = LeaderElection(relay.services.database, "another machine", timedelta(days=1))
        await elsewhere.take(UPKEEP, relay.clock.now())
        relay.rows("DELETE FROM allowlist_versions")
        company = BackgroundTasks(relay.services, work=True)
        await company.start()
        assert (await relay.http.get("/readyz")).status_code == 200
        await company.stop()

        assert [row["version"] for row in relay.rows("SELECT version FROM allowlist_versions")] == [1]


async def test_a_stopping_process_is_not_ready_and_answers_everything_else(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=("org/one",)) as relay:
        relay.services.stopping.set()
        answer = await relay.http.get("/readyz")

        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "stopping")
        assert (await relay.http.get("/healthz")).status_code == 200
        await relay.github.open_pr(UPSTREAM)
        assert relay.github.deliveries()[-1].ok


async def test_what_outlives_its_grace_is_broken_off_and_comes_back_at_once(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=("org/one",)) as relay:
        company = BackgroundTasks(relay.services, work=True, grace_s=0.05)
        await company.start()
        gate = relay.github.faults.hang(on=Match(method="POST", path="*/dispatches"))
        await relay.github.open_pr(UPSTREAM)
        async with asyncio.timeout(8):
            await gate.reached.wait()
        await company.stop()
        gate.release()
        await settle()

        [effect] = relay.rows("SELECT * FROM effects WHERE kind = 'send_dispatch'")
        now = int(relay.clock.now().timestamp() * 1_000_000)
        assert (effect["state"], effect["lease_until"] <= now) == ("claimed", True)
        assert relay.rows("SELECT * FROM leaders") == []
        assert relay.services.loop_errors == []
        successor = another_process(relay)
        await successor.worker.drain()
        await successor.close()
        [dispatch] = relay.rows("SELECT state, unsure FROM dispatches")
        assert dispatch == {"state": "sent", "unsure": 1}
