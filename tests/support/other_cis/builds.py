"""Runs a build of another CI: its jobs in the order of their needs, each as scripts in a real shell.

The CI's module (`buildkite.py`, `gitlab.py`, `circleci.py`) turns the CI's file into a plan of `PlannedJob`s.
"""

import asyncio
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from github_sim.runner.environment import clean_environment
from github_sim.runner.joined_repository import JoinedRepository
from github_sim.runner.process import run_child
from github_sim.runner.runner import Runner
from github_sim.runner.workspace import JobFolders
from github_sim.runner.yaml_text import WorkflowError

PASSED, FAILED, CANCELED, SKIPPED = "passed", "failed", "canceled", "skipped"
ENDED = frozenset({PASSED, FAILED, CANCELED, SKIPPED})
ON_SUCCESS, ON_FAILURE, ALWAYS = "on_success", "on_failure", "always"
Mint = Callable[..., str]
_TEMPORARY = re.compile(r"(?<![\w/.-])/tmp/")


@dataclass(frozen=True)
class Shell:
    """A script of a job; `when` says whether it also runs after another one failed."""

    text: str
    when: str = ON_SUCCESS
    command: tuple[str, ...] = ("bash", "-eo", "pipefail")


Deed = Callable[[JobFolders], None]
"""Something that the CI itself does in a job: a checkout, files kept or fetched."""


@dataclass(frozen=True)
class PlannedJob:
    name: str
    steps: Sequence[Shell | Deed]
    env: Mapping[str, str]
    needs: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Jobs that must have ended, each with the ends that let this one run; any other end skips it."""
    needs_failure: bool = False
    """Runs only if one of its needs failed."""
    mint: Mint | None = None
    """Makes its OIDC tokens; offered to it under a secret, while it runs."""
    tools: Mapping[str, str] = field(default_factory=dict)
    """Programs that its CI puts on the path."""


@dataclass
class JobState:
    state: str = "waiting"
    log: str = ""
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def end(self, state: str) -> None:
        self.state = state
        self.over.set()


@dataclass(frozen=True)
class Project:
    """A CI's project that builds a joined repository; `path` is its address at the CI."""

    ci: str
    path: tuple[str, str]
    joined: JoinedRepository
    token: str


RunningJobs = dict[str, "tuple[Build, PlannedJob]"]
"""Running jobs by the secret that each was given."""


class Build:
    def __init__(
        self, runner: Runner, project: Project, number: int, id: str, running_jobs: RunningJobs
    ) -> None:
        self._runner = runner
        self._running_jobs = running_jobs
        self.joined = project.joined
        self.ci = project.ci
        self.path = project.path
        self.number = number
        self.id = id
        self.env: dict[str, str] = {}
        self.meta: dict[str, str] = {}
        self.jobs: dict[str, JobState] = {}
        self.cancelled = asyncio.Event()
        self.over = asyncio.Event()
        self.kept = runner.folders.new(f"{project.ci}-files")
        """Folder of the files that its jobs keep for each other."""

    @property
    def state(self) -> str:
        found = {job.state for job in self.jobs.values()}
        if not found <= ENDED:
            return "running"
        return next((state for state in (CANCELED, FAILED) if state in found), PASSED)

    def cancel(self) -> None:
        self.cancelled.set()

    def start(self, plan: Sequence[PlannedJob]) -> None:
        """Run the jobs in the background; the runner counts as busy until they have ended."""
        self._runner.unfinished.add(self.over)
        self._runner.sim.spawn(self._run_jobs(plan))

    async def _run_jobs(self, plan: Sequence[PlannedJob]) -> None:
        self.jobs = {job.name: JobState() for job in plan}
        try:
            await asyncio.gather(*(self._run_job(job) for job in plan))
        finally:
            self.over.set()
            self._runner.unfinished.discard(self.over)

    async def _run_job(self, job: PlannedJob) -> None:
        state = self.jobs[job.name]
        await asyncio.gather(*(self.jobs[need].over.wait() for need in job.needs))
        if self.cancelled.is_set():
            state.end(CANCELED)
            return
        ends = {need: self.jobs[need].state for need in job.needs}
        fits = all(end in job.needs[need] for need, end in ends.items())
        if not fits or (job.needs_failure and FAILED not in ends.values()):
            state.end(SKIPPED)
            return
        async with self._runner.job_slots:
            state.state = "running"
            state.end(await self._execute(job, state))

    async def _execute(self, job: PlannedJob, state: JobState) -> str:
        folders = self._runner.folders.new_job_folders()
        secret = secrets.token_urlsafe(24)
        self._running_jobs[secret] = (self, job)
        try:
            return await self._steps(job, state, folders, secret)
        except WorkflowError as problem:
            self._runner.report_problem(f"{self.joined.repository.full_name} {self.ci} {job.name}: {problem}")
            state.log += f"Error: {problem}\n"
            return FAILED
        finally:
            self._running_jobs.pop(secret, None)
            folders.clear()

    async def _steps(self, job: PlannedJob, state: JobState, folders: JobFolders, secret: str) -> str:
        env = self._environment(job, folders, secret)
        failed = False
        for step in job.steps:
            if not isinstance(step, Shell):
                if not failed:
                    step(folders)
                continue
            if (step.when == ON_SUCCESS and failed) or (step.when == ON_FAILURE and not failed):
                continue
            ended = await run_child(
                (*step.command, "-c", _in_job_folders(step.text, folders)),
                cwd=folders.workspace,
                env=env,
                limit_s=self._runner.limit_s,
                cancelled=self.cancelled,
            )
            state.log += ended.output
            if ended.stop_reason == "cancelled":
                return CANCELED
            failed = failed or ended.code != 0 or bool(ended.stop_reason)
        return FAILED if failed else PASSED

    def _environment(self, job: PlannedJob, folders: JobFolders, secret: str) -> dict[str, str]:
        tools = folders.root / "bin"
        tools.mkdir()
        for name, text in job.tools.items():
            (tools / name).write_text(f"#!{self._runner.folders.tools}/python3\n{text}")
            (tools / name).chmod(0o755)
        clean = clean_environment(folders.home, self._runner.folders.tools)
        places = {"JOB_SECRET": secret, "WORKSPACE": str(folders.workspace)}
        own = {name: _in_job_folders(_placed(value, places), folders) for name, value in job.env.items()}
        return {**clean, "PATH": f"{tools}:{clean['PATH']}", **own}


def _placed(value: str, places: Mapping[str, str]) -> str:
    """Replace `{{NAME}}` by values that are known only once the job has its folders."""
    for name, found in places.items():
        value = value.replace("{{" + name + "}}", found)
    return value


def _in_job_folders(text: str, folders: JobFolders) -> str:
    """Replace /tmp by a folder of the job: in a real CI every job has its own /tmp."""
    ours = str(folders.root.parent)

    def moved(found: re.Match[str]) -> str:
        return found[0] if text.startswith(ours, found.start()) else f"{folders.temp}/"

    return _TEMPORARY.sub(moved, text)


def check_out(joined: JoinedRepository) -> Deed:
    return lambda folders: joined.snapshot.check_out(folders.workspace)
