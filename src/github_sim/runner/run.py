"""Execution of one workflow run: its jobs in the order of their needs, conditions, and concurrency groups.

In a concurrency group one run executes and one waits. A new run cancels the waiting one and, with
`cancel-in-progress`, also the executing one. All changes are made on the simulator's records, so the API and webhooks
show them.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from github_sim.runner.environment import token_environment
from github_sim.runner.expressions import StatusFunctions, condition_holds, evaluate, evaluate_text, truthy
from github_sim.runner.job import JobExecution
from github_sim.runner.joined_repository import JoinedRepository, MatrixJob, dispatch_inputs
from github_sim.runner.workflow_file import JobFile, WorkflowFile, may_request_token
from github_sim.runner.yaml_text import WorkflowError, as_mapping, reject_unknown_keys
from github_sim.world.actions import WorkflowJob, WorkflowRun, worst_conclusion
from github_sim.world.records import Json

if TYPE_CHECKING:
    from github_sim.runner.runner import Runner


@dataclass(eq=False)
class QueuedRun:
    """One member of a group; `cancel` ends it."""

    cancel: Callable[[], None]
    started: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class _Group:
    running: QueuedRun | None = None
    waiting: QueuedRun | None = None


class ConcurrencyGroups:
    def __init__(self) -> None:
        self._groups: dict[tuple[int, str], _Group] = {}

    @asynccontextmanager
    async def turn(
        self, key: tuple[int, str] | None, cancel: Callable[[], None], *, cancels: bool
    ) -> AsyncIterator[bool]:
        """Wait for the turn. False: another came, and this one was cancelled before it could begin."""
        if key is None:
            yield True
            return
        group = self._groups.setdefault(key, _Group())
        turn = QueuedRun(cancel)
        self._enter(group, turn, cancels=cancels)
        try:
            await turn.started.wait()
            yield group.running is turn
        finally:
            self._leave(group, turn)

    def _enter(self, group: _Group, turn: QueuedRun, *, cancels: bool) -> None:
        if group.waiting is not None:
            group.waiting.cancel()
            group.waiting.started.set()
            group.waiting = None
        if group.running is None:
            group.running = turn
            turn.started.set()
            return
        group.waiting = turn
        if cancels:
            group.running.cancel()

    def _leave(self, group: _Group, turn: QueuedRun) -> None:
        if group.waiting is turn:
            group.waiting = None
        if group.running is turn:
            group.running, group.waiting = group.waiting, None
            if group.running is not None:
                group.running.started.set()


_GOOD = frozenset({"success"})
_BAD = frozenset({"failure", "timed_out"})


class RunExecution:
    def __init__(
        self, runner: "Runner", joined: JoinedRepository, run: WorkflowRun, file: WorkflowFile
    ) -> None:
        self._runner = runner
        self._sim = runner.sim
        self._joined = joined
        self._run = run
        self._file = file
        self._github = runner.github(run)
        self.cancelled = asyncio.Event()
        self.over = asyncio.Event()
        self._ended = {name: asyncio.Event() for name in file.jobs}

    async def go(self) -> None:
        try:
            key, cancels = self._group(self._file.raw.get("concurrency"), self._contexts())
        except WorkflowError as problem:
            self._runner.report_problem(f"{self._joined.repository.full_name} {self._file.path}: {problem}")
            await self._end_all("failure")
            return
        async with self._runner.groups.turn(key, self.cancelled.set, cancels=cancels) as started:
            if started:
                await asyncio.gather(*(self._job(name) for name in self._file.jobs))
            else:
                await self._end_all("cancelled")

    async def _end_all(self, conclusion: str) -> None:
        for job in self._run.jobs:
            if job.status != "completed":
                self._sim.ci.complete(self._run, job, conclusion)
        await self._sim.send_queued_webhooks()

    def _group(self, concurrency: object, contexts: Json) -> tuple[tuple[int, str] | None, bool]:
        if concurrency is None:
            return None, False
        settings = (
            {"group": concurrency} if isinstance(concurrency, str) else as_mapping(concurrency, "concurrency")
        )
        reject_unknown_keys(settings, frozenset({"group", "cancel-in-progress"}), "concurrency")
        name = evaluate_text(settings.get("group"), contexts)
        cancels = truthy(evaluate(settings.get("cancel-in-progress", False), contexts))
        return (self._joined.repository.id, name.lower()), cancels

    def _contexts(self) -> Json:
        return {"github": self._github, "inputs": dispatch_inputs(self._run), "vars": self._joined.variables}

    async def _job(self, name: str) -> None:
        file = self._file.jobs[name]
        try:
            await asyncio.gather(*(self._ended[need].wait() for need in file.needs))
            await asyncio.gather(*(self._leg(file, job) for job in self._records(name)))
        finally:
            self._ended[name].set()

    def _records(self, name: str) -> list[WorkflowJob]:
        """The jobs of this attempt that one job of the file became; those carried over are done."""
        return [job for job in self._run.jobs if isinstance(job.spec, MatrixJob) and _id(job) == name]

    async def _leg(self, file: JobFile, job: WorkflowJob) -> None:
        if job.status == "completed":
            return
        contexts = {**self._contexts(), "needs": self._needs(file)}
        try:
            should_run = condition_holds(file.raw.get("if"), contexts, self._status_functions(file))
            survives = should_run and condition_holds(
                file.raw.get("if"), contexts, self._status_functions(file, cancelled=True)
            )
        except WorkflowError as problem:
            self._runner.report_problem(
                f"{self._joined.repository.full_name} {self._file.path} {job.name}: {problem}"
            )
            await self._complete(job, "failure")
            return
        if not should_run:
            await self._complete(job, "cancelled" if self.cancelled.is_set() else "skipped")
            return
        await self._run_leg(file, job, contexts, asyncio.Event() if survives else self.cancelled)

    async def _run_leg(
        self, file: JobFile, job: WorkflowJob, contexts: Json, cancelled: asyncio.Event
    ) -> None:
        full = {**contexts, "matrix": dict(_leg(job).values), "strategy": {}}
        async with self._runner.job_slots:
            if cancelled.is_set():
                await self._complete(job, "cancelled")
                return
            self._sim.ci.start(self._run, job)
            await self._sim.send_queued_webhooks()
            await self._complete(job, await self._execute(file, job, full, cancelled))

    async def _execute(
        self, file: JobFile, job: WorkflowJob, contexts: Json, cancelled: asyncio.Event
    ) -> str:
        token = self._sim.request_tokens.issue(self._run, job) if may_request_token(file.permissions) else ""
        token_env = token_environment(self._sim, self._run, job, token) if token else {}
        try:
            running = JobExecution(
                self._runner,
                self._joined,
                self._run,
                job,
                workflow=self._file,
                file=file,
                contexts=contexts,
                cancelled=cancelled,
            )
            try:
                conclusion = await running.execute(token_env)
            finally:
                running.folders.clear()
        except WorkflowError as problem:
            self._runner.report_problem(
                f"{self._joined.repository.full_name} {self._file.path} {job.name}: {problem}"
            )
            conclusion = "failure"
        finally:
            self._sim.request_tokens.revoke(token)
        forgiven = truthy(evaluate(file.raw.get("continue-on-error", False), contexts))
        return "success" if conclusion == "failure" and forgiven else conclusion

    async def _complete(self, job: WorkflowJob, conclusion: str) -> None:
        self._sim.ci.complete(self._run, job, conclusion)
        await self._sim.send_queued_webhooks()

    def _needs(self, file: JobFile) -> Json:
        return {need: {"result": self._result(need), "outputs": self._outputs(need)} for need in file.needs}

    def _result(self, name: str) -> str:
        return worst_conclusion(self._records(name))

    def _outputs(self, name: str) -> Json:
        outputs: Json = {}
        for job in self._records(name):
            outputs.update(job.outputs)
        return outputs

    def _status_functions(self, file: JobFile, *, cancelled: bool | None = None) -> StatusFunctions:
        """Return the status functions of a job, from the jobs that it needs, transitively: a skipped one is no success."""
        results = {self._result(name) for name in self._ancestors(file)}
        is_cancelled = self.cancelled.is_set() if cancelled is None else cancelled
        return StatusFunctions(results <= _GOOD, bool(results & _BAD), is_cancelled)

    def _ancestors(self, file: JobFile) -> set[str]:
        above = set(file.needs)
        for need in file.needs:
            above |= self._ancestors(self._file.jobs[need])
        return above


def _leg(job: WorkflowJob) -> MatrixJob:
    if not isinstance(job.spec, MatrixJob):
        raise TypeError(f"{job.name} comes from no file")
    return job.spec


def _id(job: WorkflowJob) -> str:
    file = _leg(job).file
    return file.id if file else ""
