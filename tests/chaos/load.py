"""The load during the faults: pull requests with pushes, closes and merge groups, and downstream CI that reports.

Jobs report like the public reporter: each report is repeated until the relay has accepted it. The ledger holds, for the judge,
what was reported, when, and whether it was acknowledged.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import Any

import httpx

from chaos.installation import CI_DOWNSTREAMS, LABEL
from github_sim.github import GitHub, MergeGroup, PullRequest, WorkflowJob, WorkflowRun
from support.running_relay import UPSTREAM

RETRIED_STATUSES = frozenset({408, 425, 429})
TRIES_FOR_S = 150.0
ENDS = (*["success"] * 17, "failure", "failure", "timed_out")


@dataclass
class SentReport:
    """One report of one attempt of a job."""

    delivery: str
    downstream: str
    run_id: int
    attempt: int
    job: str
    status: str
    conclusion: str | None
    first_sent_at: datetime
    acknowledged: bool = False
    tries: int = 0
    refused: str | None = None


@dataclass
class Load:
    github: GitHub
    chance: Random
    ledger: list[SentReport] = field(default_factory=list)
    groups: list[tuple[MergeGroup, PullRequest]] = field(default_factory=list)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _faults: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._names_by_id = {self.github.repository(name).id: name for name in CI_DOWNSTREAMS}
        self.github.ci.on_started.append(self._begin)

    async def open_pulls(self, storm: "asyncio.Future[None]", every_s: float, most: int) -> None:
        """Open one pull request after another while the storm lasts, at most `most`."""
        pull_tasks: list[asyncio.Task[None]] = []
        while len(pull_tasks) < most and not storm.done():
            pull_tasks.append(asyncio.create_task(self._simulate_pull(Random(self.chance.random()))))
            if len(pull_tasks) % 8 == 0:
                await self.github.push(UPSTREAM, files={"docs/notes.md": f"{len(pull_tasks)}"})
            await asyncio.sleep(every_s * 2 * self.chance.random())
        await asyncio.gather(*pull_tasks)

    @property
    def is_quiet(self) -> bool:
        if self._faults:
            raise self._faults[0]
        return not self._tasks

    async def end(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # People

    async def _simulate_pull(self, chance: Random) -> None:
        labels = [LABEL] if chance.random() < 0.4 else []
        pull = await self.github.open_pr(UPSTREAM, labels=labels, files=[f"src/{chance.randrange(10**6)}.py"])
        for _ in range(chance.choice([0, 1, 1, 2, 3])):
            await asyncio.sleep(chance.choice([0.1, 1, 2, 4, 8]) * chance.random())
            await self.github.push_to_pr(pull)
        await asyncio.sleep(chance.uniform(0.5, 8))
        fate = chance.random()
        if fate < 0.2:
            await self._close(pull, chance)
        elif fate < 0.5:
            await self._enqueue(pull, chance)

    async def _close(self, pull: PullRequest, chance: Random) -> None:
        await self.github.close_pr(pull)
        if chance.random() < 0.4:
            await asyncio.sleep(chance.uniform(0.2, 2))
            await self.github.reopen_pr(pull)

    async def _enqueue(self, pull: PullRequest, chance: Random) -> None:
        group = await self.github.enqueue(pull)
        self.groups.append((group, pull))
        await asyncio.sleep(chance.uniform(0.5, 4))
        # Dequeuing another group would rebuild those behind it, which `groups` would then miss.
        if chance.random() < 0.3 and self.github.merge_queue(UPSTREAM)[-1] is group:
            await self.github.dequeue(group)

    # Downstream CI

    def _begin(self, run: WorkflowRun) -> None:
        if run.repository_id in self._names_by_id:
            self._spawn(self._run(run, Random(self.chance.random())))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            self._faults.append(fault)

    async def _run(self, run: WorkflowRun, chance: Random) -> None:
        current_jobs = [job for job in run.jobs if job.attempt == run.attempt]
        await asyncio.gather(*(self._job(run, job, Random(chance.random())) for job in current_jobs))
        if run.attempt == 1 and run.conclusion != "success" and chance.random() < 0.5:
            await asyncio.sleep(chance.uniform(0.2, 2))
            await self.github.rerun(run, failed_only=True)

    async def _job(self, run: WorkflowRun, job: WorkflowJob, chance: Random) -> None:
        await asyncio.sleep(chance.uniform(0.0, 0.6))
        self.github.ci.start(run, job)
        await self._report_until_taken(run, job, "in_progress", chance)
        await asyncio.sleep(chance.uniform(0.1, 1.5))
        self.github.ci.complete(run, job, chance.choice(ENDS))
        await self._report_until_taken(run, job, "completed", chance)

    async def _report_until_taken(
        self, run: WorkflowRun, job: WorkflowJob, status: str, chance: Random
    ) -> None:
        """Send the report, sometimes twice concurrently, until it is accepted."""
        conclusion = job.conclusion if status == "completed" else None
        name = self._names_by_id[run.repository_id]
        delivery = run.delivery_id or ""
        sent_report = SentReport(
            delivery, name, run.id, run.attempt, job.name, status, conclusion, datetime.now(UTC)
        )
        self.ledger.append(sent_report)
        body = self.github.ci.report_body(run, job, status)
        times = 2 if chance.random() < 0.2 else 1
        await asyncio.gather(
            *(self._report(sent_report, run, job, body, Random(chance.random())) for _ in range(times))
        )

    async def _report(
        self, sent_report: SentReport, run: WorkflowRun, job: WorkflowJob, body: Any, chance: Random
    ) -> None:
        until = asyncio.get_running_loop().time() + TRIES_FOR_S
        pause = 0.2
        while asyncio.get_running_loop().time() < until:
            response = await self._post(run, job, body)
            sent_report.tries += 1
            if response is not None and response.is_success:
                sent_report.acknowledged = (
                    sent_report.acknowledged or response.json().get("status") == sent_report.status
                )
                if not sent_report.acknowledged:
                    sent_report.refused = response.text
                return
            if (
                response is not None
                and response.status_code < 500
                and response.status_code not in RETRIED_STATUSES
            ):
                sent_report.refused = f"{response.status_code} {response.text}"
                return
            await asyncio.sleep(pause * (0.5 + chance.random()))
            pause = min(pause * 2, 3.0)

    async def _post(self, run: WorkflowRun, job: WorkflowJob, body: Any) -> httpx.Response | None:
        try:
            return await self.github.ci.send_report(run, job, body, token=self.github.ci.token(run, job))
        except httpx.TransportError:
            return None
