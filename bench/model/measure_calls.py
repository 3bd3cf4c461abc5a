"""Count the calls to GitHub for heads, merge groups and commands: the real relay and the simulated GitHub, in simulated time.

Small worlds with one head at a time; `bench.model.checks` compares the model that follows from them with the peak hour of
a world of 20 backends (`bench.github_budget.peak_traffic`). The counts are the same on every machine.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

from bench.github_budget.relay_in_process import SimulatedRelay, log_errors_only, run_simulated_relay
from bench.github_budget.simulated_time import run_simulated
from bench.model.constants import HeadCalls
from crcr.demo.run import simulated_settings
from github_sim.ci.autoplay import WorkflowAutoplay
from github_sim.github import Behaviour, GitHub, JobSpec, PullRequest, Workflow

UPSTREAM = "model/upstream"
REPORTING = "reporting/backend"
JOBS = ("build", "test 1", "test 2")
HEADS = 2
_ONE, _SEVERAL = 1, 4
_UNTIL_OVER_S = 1_500
_UNTIL_ANSWERED_S = 30
_MAINTAINER = "maintainer"
_READS = {"GET", "HEAD"}


@dataclass(frozen=True, slots=True)
class _Count:
    """Calls on each installation, and how many of those on the upstream's are writes."""

    upstream: float
    upstream_writes: float
    gating: float
    reporting: float

    def minus(self, other: "_Count", *, per: int = 1) -> "_Count":
        return _Count(
            (self.upstream - other.upstream) / per,
            (self.upstream_writes - other.upstream_writes) / per,
            (self.gating - other.gating) / per,
            (self.reporting - other.reporting) / per,
        )


@dataclass(frozen=True, slots=True)
class _Story:
    """The counts of what happens in one world."""

    head: _Count
    command: _Count
    group: _Count


def measure_calls(folder: Path) -> HeadCalls:
    log_errors_only()
    stories: dict[tuple[int, bool], _Story] = {}
    for gating, failing in ((_ONE, False), (_SEVERAL, False), (_ONE, True)):
        run_folder = folder / f"{gating}-{failing}"
        run_folder.mkdir(parents=True)
        stories[gating, failing] = run_simulated(_count_story(run_folder, gating, failing=failing))
    one, several, failed = stories[_ONE, False], stories[_SEVERAL, False], stories[_ONE, True]
    backend = several.head.minus(one.head, per=_SEVERAL - _ONE)
    gate, more = one.head.minus(backend), failed.head.minus(one.head)
    return HeadCalls(
        gate=gate.upstream,
        gate_writes=gate.upstream_writes,
        backend=backend.upstream,
        backend_writes=backend.upstream_writes,
        failing_backend=more.upstream,
        failing_backend_writes=more.upstream_writes,
        group=one.group.upstream - one.head.upstream,
        command=one.command.upstream,
        command_writes=one.command.upstream_writes,
        gating_downstream=several.head.gating,
        reporting_downstream=several.head.reporting,
    )


async def _count_story(folder: Path, gating: int, *, failing: bool) -> _Story:
    """A few pull requests, a command, and a merge group for the last pull request, one after the other."""
    names = [f"gating{number}/backend" for number in range(gating)]
    async with run_simulated_relay(
        folder,
        seed=1,
        make_world=partial(_make_world, names=names),
        settings_for=partial(simulated_settings, upstream=UPSTREAM),
    ) as relay:
        player = WorkflowAutoplay(relay.github)

        def draw_fate(pull: PullRequest) -> None:
            if failing:
                player.failing_jobs[pull.head_sha] = frozenset((names[0], job) for job in JOBS[1:])

        await _open_pull(relay, draw_fate)  # The first one mints the tokens, which last an hour.
        marks = [_count(relay, names[0])]
        for _ in range(HEADS):
            pull = await _open_pull(relay, draw_fate)
        marks.append(_count(relay, names[0]))
        await relay.github.comment_pr(pull, "/crcr status", author=_MAINTAINER)
        await asyncio.sleep(_UNTIL_ANSWERED_S)
        marks.append(_count(relay, names[0]))
        if not failing:
            await relay.github.enqueue(pull)
            await asyncio.sleep(_UNTIL_OVER_S)
        marks.append(_count(relay, names[0]))
        relay.check()
    heads, command, group = (after.minus(before) for before, after in pairwise(marks))
    return _Story(heads.minus(_Count(0, 0, 0, 0), per=HEADS), command, group)


def _make_world(github: GitHub, names: list[str]) -> None:
    entries = [f"  {name}: {{oncalls: [model-oncall], paths: ['src/**']}}" for name in names]
    lines = ["L2:", f"  - {REPORTING}", "L4:", *entries, ""]
    github.create_repository(UPSTREAM, files={".github/crcr-allowlist.yml": "\n".join(lines)})
    github.require_checks(UPSTREAM, ["crcr/gate"])
    github.set_permission(UPSTREAM, _MAINTAINER, "maintain")
    for name in (*names, REPORTING):
        github.create_repository(name, workflows=[_workflow()], sends_run_webhooks=name in names)


def _workflow() -> Workflow:
    return Workflow(
        name="Upstream CI",
        path=".github/workflows/upstream-ci.yml",
        jobs=[JobSpec(job, duration_s=(60.0, 480.0), tests=10) for job in JOBS],
        automatic=True,
        behaviour=Behaviour(queue_s=(5.0, 60.0), fail_rate=0.0),
    )


async def _open_pull(relay: SimulatedRelay, draw_fate: Callable[[PullRequest], None]) -> PullRequest:
    """Open a pull request and wait until its jobs have ended and its checks are published."""
    pull = await relay.github.open_pr(
        UPSTREAM,
        title="A change",
        author=_MAINTAINER,
        author_association="MEMBER",
        files=["src/kernels/reduce.cpp"],
        before_webhook=draw_fate,
    )
    await asyncio.sleep(_UNTIL_OVER_S)
    return pull


def _count(relay: SimulatedRelay, gating: str) -> _Count:
    """The calls so far."""
    upstream, *downstreams = (
        relay.github.call_counts.for_installation(relay.installation_of(name))
        for name in (UPSTREAM, gating, REPORTING)
    )
    writes = sum(number for (method, _), number in upstream.routes.items() if method not in _READS)
    return _Count(upstream.calls, writes, *(counts.calls for counts in downstreams))
