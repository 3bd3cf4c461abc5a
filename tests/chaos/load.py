"""What goes on while things break: pull requests with pushes, closes and merge groups, and the CI that answers.

Jobs report as the public reporter does: the same report again and again until the relay has taken it. What was
told, when, and whether it was acknowledged stands in the ledger, for the judge.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import Any

import httpx

from chaos.installation import ANSWERING, LABEL
from github_sim.github import GitHub, MergeGroup, PullRequest, WorkflowJob, WorkflowRun
from support.running_relay import UPSTREAM

AGAIN = frozenset({408, 425, 429})
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
        self._answering = {self.github.repository(name).id: name for name in ANSWERING}
        self.github.ci.on_started.append(self._begin)

    async def go_on(self, storm: "asyncio.Future[None]", every_s: float, most: int) -> None:
        """Pull requests begin one after another for as long as the storm lasts, but no more than `most`."""
        lives: list[asyncio.Task[None]] = []
        while len(lives) < most and not storm.done():
            lives.append(asyncio.create_task(self._live(Random(self.chance.random()))))
            if len(lives) % 8 == 0:
                await self.github.push(UPSTREAM, files={"docs/notes.md": f"{len(lives)}"})
            await asyncio.sleep(every_s * 2 * self.chance.random())
        await asyncio.gather(*lives)

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

    async def _live(self, chance: Random) -> None:
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
        # Those behind it would be made again, and the ledger of groups would not hold them.
        if chance.random() < 0.3 and self.github.merge_queue(UPSTREAM)[-1] is group:
            await self.github.dequeue(group)

    # Downstream CI

    def _begin(self, run: WorkflowRun) -> None:
        if run.repository_id in self._answering:
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
        own = [job for job in run.jobs if job.attempt == run.attempt]
        await asyncio.gather(*(self._job(run, job, Random(chance.random())) for job in own))
        if run.attempt == 1 and run.conclusion != "success" and chance.random() < 0.5:
            await asyncio.sleep(chance.uniform(0.2, 2))
            await self.github.rerun(run, failed_only=True)

    async def _job(self, run: WorkflowRun, job: WorkflowJob, chance: Random) -> None:
        await asyncio.sleep(chance.uniform(0.0, 0.6))
        self.github.ci.start(run, job)
        await self._tell(run, job, "in_progress", chance)
        await asyncio.sleep(chance.uniform(0.1, 1.5))
        self.github.ci.complete(run, job, chance.choice(ENDS))
        await self._tell(run, job, "completed", chance)

    async def _tell(self, run: WorkflowRun, job: WorkflowJob, status: str, chance: Random) -> None:
        """Report, now and then twice at once, until it is taken."""
        conclusion = job.conclusion if status == "completed" else None
        name = self._answering[run.repository_id]
        delivery = run.delivery_id or ""
        told = SentReport(
            delivery, name, run.id, run.attempt, job.name, status, conclusion, datetime.now(UTC)
        )
        self.ledger.append(told)
        body = self.github.ci.report_body(run, job, status)
        times = 2 if chance.random() < 0.2 else 1
        await asyncio.gather(
            *(self._report(told, run, job, body, Random(chance.random())) for _ in range(times))
        )

    async def _report(
        self, told: SentReport, run: WorkflowRun, job: WorkflowJob, body: Any, chance: Random
    ) -> None:
        until = asyncio.get_running_loop().time() + TRIES_FOR_S
        pause = 0.2
        while asyncio.get_running_loop().time() < until:
            answer = await self._post(run, job, body)
            told.tries += 1
            if answer is not None and answer.is_success:
                told.acknowledged = told.acknowledged or answer.json().get("status") == told.status
                if not told.acknowledged:
                    told.refused = answer.text
                return
            if answer is not None and answer.status_code < 500 and answer.status_code not in AGAIN:
                told.refused = f"{answer.status_code} {answer.text}"
                return
            await asyncio.sleep(pause * (0.5 + chance.random()))
            pause = min(pause * 2, 3.0)

    async def _post(self, run: WorkflowRun, job: WorkflowJob, body: Any) -> httpx.Response | None:
        try:
            return await self.github.ci.send_report(run, job, body, token=self.github.ci.token(run, job))
        except httpx.TransportError:
            return None
