"""Simulated traffic on the demo's upstream: an opening that shows each feature once, then random actions.

One action every few seconds at speed 1, so that the relay stays within GitHub's rate limits. Old records are dropped, so
that a demo can run for days.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress

import httpx

from crcr.demo.in_tree_ci import InTreeCi
from crcr.demo.opening_failures import FLAKY, NEW, ON_PULLS, PAIRED, PUSHES
from crcr.demo.upstream_activity import FILES, UpstreamActivity
from crcr.demo.world import AUTHORS, BREAKING_LABEL, COMPILER_FILE, GATING, NPU_LABEL, UPSTREAM, demo_world
from github_sim.ci.autoplay import WorkflowAutoplay
from github_sim.github import GitHub
from github_sim.simulation import Sleep
from github_sim.world.actions import JobSpec, Workflow, WorkflowJob, WorkflowRun
from github_sim.world.records import Json, PullRequest, Repository

__all__ = ["BELONGS", "BLOCKED", "FLAKED", "LABELLED", "UPSTREAM", "demo_world", "run_traffic"]

LABELLED, BLOCKED, FLAKED, BELONGS = 1, 2, 4, 5
"""Numbers of the first pull requests, for links to them."""
PAUSE_S = (3.5, 6.5)
OPENING_PAUSE_S = (1.5, 2.5)
MOST_WAITS = 10
KEPT_RECORDS = 500
_NOTE = (
    "Backends that register a vectorised lowering get the strides as a tuple instead of a list from now on. Adapt\n"
    "`register_lowering` before the next release; the old form raises a `TypeError`."
)


async def run_traffic(
    github: GitHub,
    upstream: str,
    *,
    seed: int,
    speed: float,
    stop: asyncio.Event,
    sleep: Sleep = asyncio.sleep,
) -> None:
    """Simulate traffic on `upstream` until `stop` is set."""
    chance = random.Random(seed)
    activity = UpstreamActivity(github, upstream, chance, WorkflowAutoplay(github, speed=speed))
    nights = NightlyRuns(github, upstream, seed)
    in_tree = InTreeCi(github, upstream, seed, activity.inside_pushes)
    opening = _Opening(activity)
    await opening.begin()
    while not stop.is_set():
        pause_s = PAUSE_S if opening.is_over else OPENING_PAUSE_S
        await _pause(chance.uniform(*pause_s) / speed, stop, sleep)
        if not stop.is_set():
            await activity.settle()
            await (activity.act_randomly() if opening.is_over else opening.go_on())
            await nights.run_sometimes()
            await in_tree.step()
            github.drop_old_records(KEPT_RECORDS)


async def _pause(seconds: float, stop: asyncio.Event, sleep: Sleep) -> None:
    """Sleep until the time is over or `stop` is set."""
    waits = [asyncio.ensure_future(sleep(seconds)), asyncio.ensure_future(stop.wait())]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
        with suppress(asyncio.CancelledError):
            await wait


class _Opening:
    """Five pull requests: checks by label, a blocking gate, a waiver, the merge queue, verdicts, an announced breakage, a pair of changes.

    The commits that they are built on are pushed before, so that their failures have a history to be judged by. One push has
    several commits, of which one breaks a backend: a bisection finds it after two minutes.
    """

    def __init__(self, activity: UpstreamActivity) -> None:
        self._activity = activity
        self._acts: list[Callable[[], Awaitable[bool]]] = []
        self._waits = 0
        self._kept: list[PullRequest] = []

    @property
    def is_over(self) -> bool:
        return not self._acts

    async def begin(self) -> None:
        activity = self._activity
        for commits in PUSHES:
            await activity.push_base(commits)
        labelled = await activity.open(
            "[sparse] Support bf16 in scatter_add",
            FILES[1:2],
            labels=[NPU_LABEL],
            by=AUTHORS[0],
            failures=ON_PULLS,
        )
        blocked = await activity.open(
            "[nn] Fix dtype promotion in addmm", FILES[:1], by=AUTHORS[1], failures={**ON_PULLS, **NEW}
        )
        draft = await activity.open(
            "[optim] Move guards out of the hot loop",
            FILES[2:3],
            draft=True,
            by=AUTHORS[2],
            failures=ON_PULLS,
        )
        flaked = await activity.open(
            "[inductor] Check strides before vectorising",
            [COMPILER_FILE],
            labels=[BREAKING_LABEL],
            by=AUTHORS[3],
            failures={**ON_PULLS, **FLAKY},
            downstream_note=_NOTE,
        )
        paired = await activity.open_pair(
            "[aten] Dispatch out variants to backends",
            FILES[:1],
            failures={**ON_PULLS, **PAIRED},
            other=GATING[0],
        )
        activity.staged, self._kept = [labelled, blocked, draft, flaked, paired], [flaked, paired]
        self._acts = [
            lambda: activity.ask(blocked),
            lambda: activity.waive_in_vain(blocked),
            lambda: activity.waive_rightly(blocked),
            lambda: activity.acknowledge(flaked),
            lambda: activity.make_ready(draft),
            lambda: activity.merge(blocked),
            lambda: activity.merge(labelled),
            activity.tag_release,
        ]

    async def go_on(self) -> None:
        """Do the next action if it is possible now; skip it after too many attempts."""
        acted = await self._acts[0]()
        self._waits = 0 if acted else self._waits + 1
        if acted or self._waits > MOST_WAITS:
            self._acts.pop(0)
            self._waits = 0
        if self.is_over:
            self._activity.staged = self._kept


NIGHTLY = Workflow(
    name="Nightly",
    path=".github/workflows/nightly.yml",
    listens=("schedule",),
    jobs=(JobSpec("nightly-build", tests=64), JobSpec("nightly-test", matrix=("1", "2"), tests=900)),
)
SHARE = 0.06
"""Share of the actions that include a nightly run."""
NIGHTLY_BACKENDS = (
    "novagpu/tensorium-nova",
    "accel-npu/tensorium-npu",
    "quantix/tpu-bridge",
    "riscv-ai/tensorium-riscv",
)
NIGHTLY_FAILING = 0.15
NIGHTLY_FAILURE: Json = {
    "name": "test_memory.TestLongRun.test_peak_after_1000_steps",
    "file": "test/test_memory.py",
    "message": "OutOfMemoryError: tried to allocate 2.50 GiB; 1.12 GiB is free",
}
_LINKER_LOG: Json = {
    "first_error": "ld.lld: error: undefined symbol: at::native::addmm_out",
    "tail": "[1482/1490] Linking CXX shared library lib/libtensorium_nightly.so\n"
    "ld.lld: error: undefined symbol: at::native::addmm_out\n"
    ">>> referenced by Linear.cpp:88\nninja: build stopped: subcommand failed.",
}
"""A build that fails before its tests: it lists none, and its log says why."""
_ODD = 0.3


class NightlyRuns:
    """Nightly runs of the backends. Has its own random generator, so that the rest of the demo stays the same."""

    def __init__(self, github: GitHub, upstream: str, seed: int) -> None:
        self._github = github
        self._upstream = upstream
        self._chance = random.Random(f"{seed} nights")

    async def run_sometimes(self) -> None:
        if self._chance.random() < SHARE:
            await self.one(self._chance.choice(NIGHTLY_BACKENDS))

    async def one(self, backend: str) -> None:
        """Run a nightly of this backend, if it knows where to report."""
        dispatches = self._github.dispatches(backend)
        if not dispatches:
            return
        workflows = self._github.repository(backend).workflows
        if NIGHTLY not in workflows:
            workflows.append(NIGHTLY)
        payload = {"event_type": "nightly", "relay": dispatches[-1].client_payload.get("relay", {})}
        run = self._github.start_run(backend, event="schedule", client_payload=payload)
        commit = self._commit(self._github.repository(self._upstream))
        for job in run.jobs:
            await self._finish(run, job, commit)

    def _commit(self, upstream: Repository) -> str | None:
        if self._chance.random() >= _ODD:
            return upstream.head_sha
        releases = [sha for branch, sha in upstream.branches.items() if branch.startswith("release/")]
        pulls = [pull.head_sha for pull in self._github.world.pulls.values()]
        return self._chance.choice([*releases[:1], *pulls[-1:], None])

    async def _finish(self, run: WorkflowRun, job: WorkflowJob, commit: str | None) -> None:
        failed = int(self._chance.random() < NIGHTLY_FAILING)
        self._github.ci.start(run, job)
        self._github.ci.complete(run, job, "failure" if failed else "success")
        body = self._github.ci.report_body(run, job, "completed", **_nightly_result(job, failed))
        payload: Json = {"repository": {"full_name": self._upstream}}
        # An unreachable relay misses this nightly report.
        with suppress(httpx.TransportError, LookupError):
            await self._github.report(run, job, body={**body, "delivery_id": commit, "payload": payload})
        await self._github.send_queued_webhooks()


def _nightly_result(job: WorkflowJob, failed: int) -> Json:
    if failed and job.name == "nightly-build":
        return {"log_excerpt": _LINKER_LOG}
    tests = {"passed": job.spec.tests - failed, "failed": failed, "skipped": 0, "total": job.spec.tests}
    return {"test_results": tests, "failed_tests": [NIGHTLY_FAILURE] if failed else []}
