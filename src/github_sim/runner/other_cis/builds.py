"""Builds of other CIs as they go: jobs in the order of their needs, each a few scripts in a real shell.

What each CI's own file means is for its module (`buildkite.py`, `gitlab.py`, `circleci.py`); they all end as a plan
of `PlannedJob`s, and this runs it.
"""

import asyncio
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from github_sim.runner.github.environment import clean_environment
from github_sim.runner.joined_repository import Joined
from github_sim.runner.problems import Problem
from github_sim.runner.process import run_child
from github_sim.runner.workspace import Room

if TYPE_CHECKING:
    from github_sim.runner.runner import Runner

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


Deed = Callable[[Room], None]
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


class Builds:
    """All builds of other CIs, and those of their jobs that run now, by the secret that each was given."""

    def __init__(self) -> None:
        self.all: list[Build] = []
        self.running: dict[str, tuple[Build, PlannedJob]] = {}

    @property
    def open(self) -> "list[Build]":
        return [build for build in self.all if not build.over.is_set()]


class Build:
    def __init__(self, runner: "Runner", joined: Joined, ci: str, number: int, id: str) -> None:
        self._runner = runner
        self.joined = joined
        self.ci = ci
        self.number = number
        self.id = id
        self.place: tuple[str, str] = ("", "")
        """Where at its CI it belongs: organisation and pipeline, or number and path of a project."""
        self.env: dict[str, str] = {}
        self.meta: dict[str, str] = {}
        self.jobs: dict[str, JobState] = {}
        self.cancelled = asyncio.Event()
        self.over = asyncio.Event()
        self.kept = runner.place.new(f"{ci}-files")

    @property
    def state(self) -> str:
        found = {job.state for job in self.jobs.values()}
        if not found <= ENDED:
            return "running"
        return next((state for state in (CANCELED, FAILED) if state in found), PASSED)

    def cancel(self) -> None:
        self.cancelled.set()

    async def go(self, plan: Sequence[PlannedJob]) -> None:
        self.jobs = {job.name: JobState() for job in plan}
        try:
            await asyncio.gather(*(self._job(job) for job in plan))
        finally:
            self.over.set()

    async def _job(self, job: PlannedJob) -> None:
        mine = self.jobs[job.name]
        await asyncio.gather(*(self.jobs[need].over.wait() for need in job.needs))
        if self.cancelled.is_set():
            mine.end(CANCELED)
            return
        ends = {need: self.jobs[need].state for need in job.needs}
        fits = all(end in job.needs[need] for need, end in ends.items())
        if not fits or (job.needs_failure and FAILED not in ends.values()):
            mine.end(SKIPPED)
            return
        async with self._runner.room_for_one:
            mine.state = "running"
            mine.end(await self._run(job, mine))

    async def _run(self, job: PlannedJob, mine: JobState) -> str:
        room = self._runner.place.room()
        secret = secrets.token_urlsafe(24)
        self._runner.builds.running[secret] = (self, job)
        try:
            return await self._steps(job, mine, room, secret)
        except Problem as problem:
            self._runner.tell(f"{self.joined.repository.full_name} {self.ci} {job.name}: {problem}")
            mine.log += f"Error: {problem}\n"
            return FAILED
        finally:
            self._runner.builds.running.pop(secret, None)
            room.clear()

    async def _steps(self, job: PlannedJob, mine: JobState, room: Room, secret: str) -> str:
        env = self._environment(job, room, secret)
        failed = False
        for step in job.steps:
            if not isinstance(step, Shell):
                if not failed:
                    step(room)
                continue
            if (step.when == ON_SUCCESS and failed) or (step.when == ON_FAILURE and not failed):
                continue
            ended = await run_child(
                (*step.command, "-c", _in_room(step.text, room)),
                cwd=room.workspace,
                env=env,
                limit_s=self._runner.limit_s,
                cancelled=self.cancelled,
            )
            mine.log += ended.output
            if ended.why == "cancelled":
                return CANCELED
            failed = failed or ended.code != 0 or bool(ended.why)
        return FAILED if failed else PASSED

    def _environment(self, job: PlannedJob, room: Room, secret: str) -> dict[str, str]:
        tools = room.root / "bin"
        tools.mkdir()
        for name, text in job.tools.items():
            (tools / name).write_text(f"#!{self._runner.place.tools}/python3\n{text}")
            (tools / name).chmod(0o755)
        clean = clean_environment(room.home, self._runner.place.tools)
        places = {"JOB_SECRET": secret, "WORKSPACE": str(room.workspace)}
        own = {name: _in_room(_placed(value, places), room) for name, value in job.env.items()}
        return {**clean, "PATH": f"{tools}:{clean['PATH']}", **own}


def _placed(value: str, places: Mapping[str, str]) -> str:
    """`{{NAME}}` stands for what is known only when the job has a room."""
    for name, found in places.items():
        value = value.replace("{{" + name + "}}", found)
    return value


def _in_room(text: str, room: Room) -> str:
    """Every job of a real CI has a /tmp of its own; here it is a folder of its room."""
    ours = str(room.root.parent)

    def moved(found: re.Match[str]) -> str:
        return found[0] if text.startswith(ours, found.start()) else f"{room.temp}/"

    return _TEMPORARY.sub(moved, text)


def check_out(joined: Joined) -> Deed:
    return lambda room: joined.snapshot.check_out(room.workspace)
