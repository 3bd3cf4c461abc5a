"""The relay as Lambda functions, from the built package: the whole loop, and Lambda's kills, freezes and redeliveries.

Real parts: the package unpacked in an empty folder, Lambda's runtime interface client, PostgreSQL behind a pooler, a substitute for
SQS, Redis, and the simulated GitHub over HTTP. Between the steps the process of a function is killed, frozen and thawed.
"""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

from crcr.decide.checks.completeness import QUIET
from flow.aws.test_dynamodb_stream import an_item
from flow.aws.test_dynamodb_stream import event as stream_batch
from github_sim.github import GitHub, JobSpec, Workflow, WorkflowRun
from github_sim.rest.server import Server, serve
from github_sim.world.records import PullRequest
from support.aws.lambda_runtime import (
    API_GATEWAY,
    FunctionFailed,
    Gateway,
    LambdaFunction,
    build_package,
    schedule_event,
    unpack,
)
from support.aws.sqs_queue import TestQueue, run_queue
from support.replicas import query_rows, query_value, replica_environment, wait_until
from support.running_relay import UPSTREAM
from support.services.postgres import new_database, run_on
from support.services.redis import RedisServer
from support.services.transaction_pooler import TransactionPooler, run_pooler

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

GATING, INFORMING = "owner/gating", "owner/informing"
ALLOWLIST = f"L4:\n  - {GATING}: {{oncalls: [ada]}}\nL2:\n  - {INFORMING}\n"
QUIET_US = QUIET // timedelta(microseconds=1)
FUNCTIONS = ("migrate", "tick", "webhook", "callback", "relay", "worker", "stream")
"""As in the template: `relay` serves the pages and every path without a route."""


@dataclass
class LambdaSetup:
    github: GitHub
    queue: TestQueue
    pooler: TransactionPooler
    redis: RedisServer
    database_url: str
    url: str = ""
    functions: dict[str, LambdaFunction] = field(default_factory=dict)
    pulls: list[PullRequest] = field(default_factory=list)

    def function_for(self, path: str) -> LambdaFunction:
        names = {"/github/webhook": "webhook", "/github/callback": "callback"}
        return self.functions[names.get(path, "relay")]

    async def open_pull(self) -> PullRequest:
        self.pulls.append(await self.github.open_pr(UPSTREAM))
        return self.pulls[-1]

    async def wake_worker(self) -> int:
        """Deliver all messages, as Lambda does; return the number of batches."""
        batches = 0
        while event := await self.queue.receive():
            assert await self.queue.deliver(self.functions["worker"], event) == {"batchItemFailures": []}
            batches += 1
        return batches

    async def run_schedule(self, name: str) -> Any:
        return await self.functions[name].invoke(schedule_event(), timeout_s=60)

    async def get(self, path: str) -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(), timeout=30) as http:
            return await http.get(f"{self.url}{path}", headers={"accept": "text/html"})

    def run_of(self, name: str, pull: PullRequest) -> WorkflowRun:
        """Each pull request starts one run, in order; with more or fewer, one was lost or sent twice."""
        runs = self.github.runs(name)
        assert len(runs) == len(self.pulls)
        return runs[self.pulls.index(pull)]

    async def finish_jobs(self, pull: PullRequest) -> list[int]:
        answers = []
        for name in (GATING, INFORMING):
            run = self.run_of(name, pull)
            answers += [
                await self.github.start_job(run, "build"),
                await self.github.complete_job(run, "build", "success"),
            ]
        return [answer.status_code for answer in answers]

    def pass_quiet_time(self) -> None:
        """Make all runs older, so that the quiet period is over and no other run is expected beside them."""
        run_on(self.database_url, f"UPDATE runs SET first_seen_at = first_seen_at - {QUIET_US}")  # noqa: S608
        run_on(
            self.database_url,
            "UPDATE effects SET due_at = created_at WHERE kind = 'look_up' AND state = 'waiting'",
        )

    async def wait_for_gates(self) -> set[str | None]:
        """Deliver wake-ups until every gate is decided; return the conclusions."""
        await self.wake_worker()
        self.pass_quiet_time()
        async with asyncio.timeout(30):
            while None in (conclusions := self._conclusions()):
                if not await self.wake_worker():
                    await self.run_schedule("worker")
        return conclusions

    def _conclusions(self) -> set[str | None]:
        checks = [self.github.latest_checks(UPSTREAM, pull.head_sha).get("crcr/gate") for pull in self.pulls]
        return {gate.conclusion if gate is not None else None for gate in checks}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_package(tmp_path_factory.mktemp("dist"))


@asynccontextmanager
async def run_lambda_setup(package: Path, folder: Path) -> AsyncIterator[LambdaSetup]:
    redis, database_url = RedisServer.make(), new_database(empty=True)
    code = await asyncio.to_thread(unpack, package, folder)
    async with AsyncExitStack() as stack:
        github = await stack.enter_async_context(GitHub(seed=7))
        await stack.enter_async_context(serve(github))
        github.limits.points_per_minute = 1_000_000
        github.create_repository(UPSTREAM)
        for name in (GATING, INFORMING):
            github.create_repository(name, workflows=[Workflow(jobs=(JobSpec("build"),))])
        queue = await stack.enter_async_context(run_queue())
        pooler = await stack.enter_async_context(run_pooler(database_url))
        setup = LambdaSetup(github, queue, pooler, redis, database_url)
        gateway = Server(Gateway(setup.function_for), "127.0.0.1", 0)
        await gateway.start()
        stack.push_async_callback(gateway.stop)
        setup.url = gateway.url
        github.webhook_url = f"{setup.url}/github/webhook"
        environ = replica_environment(
            folder,
            github,
            pooler.url,
            CRCR_DATABASE_POOLER="transaction",
            CRCR_DATABASE_POOL="4",
            CRCR_REDIS_URL=redis.url,
            CRCR_PUBLIC_URL=setup.url,
            CRCR_WAKEUP_QUEUE_URL=queue.url,
            AWS_ENDPOINT_URL_SQS=queue.gate.url,
        )
        (folder / "allowlist.yml").write_text(ALLOWLIST)
        for name in FUNCTIONS:
            function = LambdaFunction(name, code, environ)
            setup.functions[name] = await stack.enter_async_context(function.running())
        yield setup
        logs = "".join(line for function in setup.functions.values() for line in function.logs)
        assert "Traceback" not in logs, logs
        assert pooler.refused == []
        github.finish()


async def test_the_whole_loop_through_the_package(package: Path, tmp_path: Path) -> None:
    async with run_lambda_setup(package, tmp_path) as setup:
        await start_functions(setup)
        await check_a_pull_request_completes_the_whole_loop(setup)
        await check_a_kill_between_commit_and_wakeup_delays_until_the_schedule(setup)
        await check_a_redelivered_batch_changes_nothing(setup)
        await check_a_worker_without_its_store_returns_all_messages(setup)
        await check_thawed_functions_with_dead_connections_answer_at_once(setup)
        await check_a_worker_out_of_time_hands_over_to_the_next(setup)
        await check_results_of_another_relay_arrive_by_stream(setup)
        assert await setup.wait_for_gates() == {"success"}
        check_nothing_is_lost_or_duplicated(setup)


def processor_s(pid: int) -> float:
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return sum(map(int, after_name[11:13])) / os.sysconf("SC_CLK_TCK")


async def start_functions(setup: LambdaSetup) -> None:
    migrated = await setup.functions["migrate"].invoke({})
    assert (migrated["before"], migrated["after"] > "0017") == (None, True)
    await asyncio.gather(*(setup.functions[name].start() for name in FUNCTIONS[1:]))
    # Processor time is independent of other load on this machine.
    assert processor_s(setup.functions["webhook"].pid) < 1.5
    assert {"refresh", "sweep", "reconcile", "evaluate_levels", "forget"} <= set(
        (await setup.run_schedule("tick"))["ran"]
    )
    # The next run has nothing left to do, except for what is due each minute.
    assert not {"refresh", "forget"} & set((await setup.run_schedule("tick"))["ran"])


async def check_a_pull_request_completes_the_whole_loop(setup: LambdaSetup) -> None:
    pull = await setup.open_pull()
    assert await setup.wake_worker() >= 1
    assert await setup.finish_jobs(pull) == [200] * 4
    assert await setup.wait_for_gates() == {"success"}
    unsigned = await setup.functions["webhook"].invoke(API_GATEWAY)
    assert (unsigned["statusCode"], unsigned["isBase64Encoded"]) == (401, False)
    page = await setup.get(f"/crcr/pr/{pull.number}")
    assert (page.status_code, GATING in page.text, "data-polls" in page.text) == (200, True, True)
    assert "data-events" not in page.text
    assert (await setup.get("/api/v1/events")).status_code == 404
    async with httpx.AsyncClient() as client:  # the route has no trailing slash
        unproved = await client.post(f"{setup.url}/github/callback/", content=b"{}")
    assert unproved.json()["error"]["code"] == "not_authentic"


async def check_a_kill_between_commit_and_wakeup_delays_until_the_schedule(setup: LambdaSetup) -> None:
    await setup.wake_worker()
    before = query_value(setup.database_url, "SELECT count(*) FROM deliveries")
    setup.queue.gate.is_open = False
    opening = asyncio.create_task(setup.open_pull())
    await wait_until(lambda: query_value(setup.database_url, "SELECT count(*) FROM deliveries") > before)
    await setup.functions["webhook"].end()
    await opening
    setup.queue.gate.is_open = True
    pull = setup.pulls[-1]
    assert setup.github.deliveries()[-1].status_code == 502
    assert await setup.queue.waiting() == 0
    await setup.run_schedule("worker")
    assert await setup.finish_jobs(pull) == [200] * 4


async def check_a_redelivered_batch_changes_nothing(setup: LambdaSetup) -> None:
    pull = await setup.open_pull()
    event = await setup.queue.receive()
    assert event is not None
    for _ in range(2):
        assert await setup.functions["worker"].invoke(event) == {"batchItemFailures": []}
    await setup.queue.deliver(setup.functions["worker"], event)
    assert await setup.finish_jobs(pull) == [200] * 4


async def check_a_worker_without_its_store_returns_all_messages(setup: LambdaSetup) -> None:
    pull = await setup.open_pull()
    event = await setup.queue.receive()
    assert event is not None
    setup.pooler.is_down = True
    setup.pooler.drop_clients()
    answer = await setup.queue.deliver(setup.functions["worker"], event)
    assert len(answer["batchItemFailures"]) == len(event["Records"])
    with pytest.raises(FunctionFailed, match="StoreUnavailable"):
        await setup.run_schedule("worker")
    assert (await setup.get("/crcr")).status_code == 503
    setup.pooler.is_down = False
    assert await setup.wake_worker() >= 1
    assert await setup.finish_jobs(pull) == [200] * 4


async def check_thawed_functions_with_dead_connections_answer_at_once(setup: LambdaSetup) -> None:
    frozen = [setup.functions[name] for name in ("webhook", "callback", "worker", "relay")]
    for function in frozen:
        function.freeze()
    assert setup.pooler.drop_clients() >= 4
    setup.redis.drop_clients()
    for function in frozen:
        function.thaw()
    pull = await setup.open_pull()
    assert setup.github.deliveries()[-1].status_code == 202
    assert await setup.wake_worker() >= 1
    assert await setup.finish_jobs(pull) == [200] * 4
    assert (await setup.get("/crcr")).status_code == 200


async def check_a_worker_out_of_time_hands_over_to_the_next(setup: LambdaSetup) -> None:
    await setup.wake_worker()
    pull = await setup.open_pull()
    event = await setup.queue.receive()
    assert event is not None
    await setup.functions["worker"].invoke(event, timeout_s=12)  # too little to begin anything
    assert len(setup.github.runs(GATING)) == len(setup.pulls) - 1
    assert await setup.queue.waiting() >= 2  # its own message, and one for the next worker
    assert await setup.wake_worker() >= 1
    assert await setup.finish_jobs(pull) == [200] * 4


async def check_results_of_another_relay_arrive_by_stream(setup: LambdaSetup) -> None:
    batch = stream_batch(an_item("of-another-relay", downstream_repo=INFORMING))
    for _ in range(2):
        assert await setup.functions["stream"].invoke(batch) == {"batchItemFailures": []}
    rows = query_rows(setup.database_url, "SELECT delivery, conclusion FROM ingested")
    assert [tuple(row.values()) for row in rows] == [("of-another-relay", "failure")]


def check_nothing_is_lost_or_duplicated(setup: LambdaSetup) -> None:
    for name in (GATING, INFORMING):
        assert len({dispatch.delivery_id for dispatch in setup.github.dispatches(name)}) == len(setup.pulls)
        assert len(setup.github.dispatches(name)) == len(setup.pulls)
    jobs = query_rows(setup.database_url, "SELECT state, conclusion FROM jobs")
    assert Counter((row["state"], row["conclusion"]) for row in jobs) == {
        ("completed", "success"): 2 * len(setup.pulls)
    }
    states = query_rows(setup.database_url, "SELECT DISTINCT state FROM effects")
    assert {row["state"] for row in states} <= {"done", "waiting", "cancelled"}
    assert query_value(setup.database_url, "SELECT count(*) FROM leaders WHERE duty LIKE 'present %'") == 0


def test_the_package_is_small_and_its_build_is_reproducible(package: Path, tmp_path: Path) -> None:
    again = build_package(tmp_path)
    assert sha256(again.read_bytes()).digest() == sha256(package.read_bytes()).digest()
    assert package.stat().st_size < 50_000_000
