"""The background loops of the web process: start, stop, leadership, and the report of a crashed loop."""

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


class CrashingWorker:
    """A worker whose loop crashes with an unexpected exception."""

    async def run(self, *_: Any) -> None:
        raise ZeroDivisionError("a bug in the loop itself")


async def test_a_crashed_loop_stops_the_process_and_is_recorded(tmp_path: Path) -> None:
    async with running_relay(tmp_path, "L2: [org/one]") as relay:
        services = replace(relay.services, worker=cast("Worker", CrashingWorker()))
        tasks = BackgroundTasks(services, work=True)
        await tasks.start()
        async with asyncio.timeout(8):
            await services.stopping.wait()
        await tasks.stop()

        assert [type(error) for error in services.loop_errors] == [ZeroDivisionError]


async def test_background_tasks_stop_on_request_without_an_error(tmp_path: Path) -> None:
    async with running_relay(tmp_path, "L2: [org/one]") as relay:
        tasks = BackgroundTasks(relay.services, work=True)
        await tasks.start()
        await tasks.stop()

        assert relay.services.loop_errors == []


def build_second_process(relay: RunningRelay) -> Services:
    seams = Seams(
        clock=relay.clock, http=relay._github_http, chance=lambda: 0.5, on_crash=relay.crashes.append
    )
    return build(relay.services.settings, seams)


async def test_one_of_two_processes_leads_and_the_other_takes_over_when_it_stops(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED) as relay:
        first, second = (
            BackgroundTasks(relay.services, work=True),
            BackgroundTasks(build_second_process(relay), work=True),
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


async def test_a_follower_reads_an_allowlist_that_was_never_read(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED) as relay:
        elsewhere = LeaderElection(relay.services.database, "another machine", timedelta(days=1))
        await elsewhere.take(UPKEEP, relay.clock.now())
        relay.rows("DELETE FROM allowlist_versions")
        tasks = BackgroundTasks(relay.services, work=True)
        await tasks.start()
        assert (await relay.http.get("/readyz")).status_code == 200
        await tasks.stop()

        assert [row["version"] for row in relay.rows("SELECT version FROM allowlist_versions")] == [1]


async def test_a_stopping_process_is_not_ready_but_still_serves_requests(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=("org/one",)) as relay:
        relay.services.stopping.set()
        answer = await relay.http.get("/readyz")

        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "stopping")
        assert (await relay.http.get("/healthz")).status_code == 200
        await relay.github.open_pr(UPSTREAM)
        assert relay.github.deliveries()[-1].ok


async def test_an_effect_running_past_the_grace_period_is_cancelled_and_claimable_at_once(
    tmp_path: Path,
) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=("org/one",)) as relay:
        tasks = BackgroundTasks(relay.services, work=True, grace_s=0.05)
        await tasks.start()
        gate = relay.github.faults.hang(on=Match(method="POST", path="*/dispatches"))
        await relay.github.open_pr(UPSTREAM)
        async with asyncio.timeout(8):
            await gate.reached.wait()
        await tasks.stop()
        gate.release()
        await settle()

        [effect] = relay.rows("SELECT * FROM effects WHERE kind = 'send_dispatch'")
        now = int(relay.clock.now().timestamp() * 1_000_000)
        assert (effect["state"], effect["lease_until"] <= now) == ("claimed", True)
        assert relay.rows("SELECT * FROM leaders") == []
        assert relay.services.loop_errors == []
        successor = build_second_process(relay)
        await successor.worker.drain()
        await successor.close()
        [dispatch] = relay.rows("SELECT state, unsure FROM dispatches")
        assert dispatch == {"state": "sent", "unsure": 1}
