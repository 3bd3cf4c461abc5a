"""The simulated runner: it executes the workflow file of every run of a joined repository.

`join` gives a repository its files. After that a dispatch, a re-run and a cancel have the effect that they have on
GitHub. Unsupported or wrong files are listed in `problems` and passed to `on_problem`.
"""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from github_sim.runner.environment import github_context
from github_sim.runner.joined_repository import FileWorkflow, JoinedRepository, read_workflows
from github_sim.runner.run import ConcurrencyGroups, RunExecution
from github_sim.runner.workspace import RunnerFolders, Snapshot
from github_sim.world.actions import WorkflowRun
from github_sim.world.records import Json, Repository

if TYPE_CHECKING:
    from github_sim.simulation import Simulation

MOST_JOBS_AT_ONCE = 4
LIMIT_S = 600.0


class Runner:
    def __init__(
        self,
        sim: "Simulation",
        *,
        limit_s: float = LIMIT_S,
        actions: Mapping[str, Path] | None = None,
        on_problem: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.sim = sim
        self.limit_s = limit_s
        self.actions = dict(actions or {})
        """Composite actions by `owner/repo/path`, wherever their folders are."""
        self._folders: RunnerFolders | None = None
        self.groups = ConcurrencyGroups()
        self.job_slots = asyncio.Semaphore(MOST_JOBS_AT_ONCE)
        self.redirects: dict[str, str] = {}
        """Addresses in a job's environment that lead to somewhere in the simulator, as a name server would."""
        self.unfinished: set[asyncio.Event] = set()
        """One event for each run that has not ended, set at its end. An extension adds its own work."""
        self.problems: list[str] = []
        self._on_problem = on_problem
        self._joined: dict[int, JoinedRepository] = {}
        self._plans: dict[int, RunExecution] = {}
        sim.ci.on_started.append(self._take)
        sim.ci.on_cancel.append(self._cancel)
        sim.on_close.append(self._clear)

    @property
    def folders(self) -> RunnerFolders:
        """Its folders, made when they are first needed."""
        if self._folders is None:
            self._folders = RunnerFolders()
        return self._folders

    def _clear(self) -> None:
        if self._folders is not None:
            self._folders.clear()

    def report_problem(self, problem: str) -> None:
        self.problems.append(problem)
        self._on_problem(problem)

    def join(
        self, repository: Repository, folder: Path, *, secrets: Mapping[str, str] | None = None
    ) -> JoinedRepository:
        """Read a repository's files from a folder; joining again reads them again."""
        snapshot = Snapshot(folder, self.folders.new("snapshot"))
        repository.workflows = list(read_workflows(snapshot, self.github))
        commit = self.sim.world.commit(
            repository,
            "Join",
            repository.owner,
            parent=repository.head_sha,
            changes=snapshot.tree(),
        )
        repository.branches[repository.default_branch] = commit.sha
        joined = JoinedRepository(repository, snapshot, dict(secrets or {}))
        self._joined[repository.id] = joined
        return joined

    def redirect_urls(self, env: Mapping[str, str]) -> dict[str, str]:
        return {name: self.redirects.get(value, value) for name, value in env.items()}

    def github(self, run: WorkflowRun) -> Json:
        """The `github` context of a run."""
        return github_context(self.sim, self.sim.world.repositories[run.repository_id], run)

    def _take(self, run: WorkflowRun) -> None:
        joined = self._joined.get(run.repository_id)
        file = run.workflow.file if isinstance(run.workflow, FileWorkflow) else None
        if joined is None or file is None:
            return
        self._plans[run.id] = plan = RunExecution(self, joined, run, file)
        self.unfinished.add(plan.over)
        self.sim.spawn(self._go(run, plan))

    async def _go(self, run: WorkflowRun, plan: RunExecution) -> None:
        try:
            await plan.go()
        finally:
            plan.over.set()
            self.unfinished.discard(plan.over)
            if self._plans.get(run.id) is plan:
                del self._plans[run.id]

    def _cancel(self, run: WorkflowRun) -> bool:
        plan = self._plans.get(run.id)
        if plan is None:
            return False
        plan.cancelled.set()
        return True

    @property
    def busy(self) -> bool:
        return bool(self.unfinished)

    async def settle(self) -> None:
        """Wait until nothing runs any more, neither now nor because of it."""
        while self.busy:
            await asyncio.gather(*(end.wait() for end in tuple(self.unfinished)))
