"""Nights in the demo: now and then a backend tests a commit on its own schedule, and tells the relay how it went.

Mostly the newest commit of the upstream, sometimes a release's, and sometimes what is no history of the upstream's at
all: a fork's commit, or none. Where to report, a backend knows from what it was dispatched before.
"""

import random
from contextlib import suppress

import httpx

from github_sim.github import GitHub
from github_sim.world.actions import JobSpec, Workflow, WorkflowJob, WorkflowRun
from github_sim.world.records import Json, Repository

NIGHTLY = Workflow(
    name="Nightly",
    path=".github/workflows/nightly.yml",
    listens=("schedule",),
    jobs=(JobSpec("nightly-build", tests=64), JobSpec("nightly-test", matrix=("1", "2"), tests=900)),
)
SHARE = 0.06
"""How many of the moments in which something happens have a night in them."""
_BACKENDS = (
    "novagpu/tensorium-nova",
    "accel-npu/tensorium-npu",
    "quantix/tpu-bridge",
    "riscv-ai/tensorium-riscv",
)
_FAILING = 0.15
_ODD = 0.3


class NightlyRuns:
    """Has a generator of its own, so that the rest of the demo's life goes on as it would without."""

    def __init__(self, github: GitHub, upstream: str, seed: int) -> None:
        self._github = github
        self._upstream = upstream
        self._chance = random.Random(f"{seed} nights")

    async def maybe(self) -> None:
        if self._chance.random() < SHARE:
            await self.one(self._chance.choice(_BACKENDS))

    async def one(self, backend: str) -> None:
        """A whole run of this backend, if it knows where to report."""
        known = self._github.dispatches(backend)
        if not known:
            return
        workflows = self._github.repository(backend).workflows
        if NIGHTLY not in workflows:
            workflows.append(NIGHTLY)
        told = {"event_type": "nightly", "relay": known[-1].client_payload.get("relay", {})}
        run = self._github.start_run(backend, event="schedule", client_payload=told)
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
        failed = int(self._chance.random() < _FAILING)
        self._github.ci.start(run, job)
        self._github.ci.complete(run, job, "failure" if failed else "success")
        tests = {"passed": job.spec.tests - failed, "failed": failed, "skipped": 0, "total": job.spec.tests}
        body = self._github.ci.report_body(run, job, "completed", test_results=tests)
        payload: Json = {"repository": {"full_name": self._upstream}}
        # A relay that cannot be reached misses a night; tomorrow is another one.
        with suppress(httpx.TransportError, LookupError):
            await self._github.report(run, job, body={**body, "delivery_id": commit, "payload": payload})
        await self._github.send_queued_webhooks()
