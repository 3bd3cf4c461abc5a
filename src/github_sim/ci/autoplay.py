"""Runs automatic workflows for the demo: jobs wait, run, pass, fail, get cancelled, and report.

Random decisions are drawn for each run from its id, so they do not depend on the order of tasks. Delays use the
simulation's sleep, divided by `speed`. A report that fails with 429 or 5xx is repeated, as the real reporter does.
"""

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx

from github_sim.world.actions import WorkflowJob, WorkflowRun
from github_sim.world.records import Json

if TYPE_CHECKING:
    from github_sim.simulation import Simulation

MOST_TRIES = 6
LONGEST_WAIT_S = 30.0
FAILING_TESTS = (
    ("test_ops.TestCommon.test_out_addmm", "test/test_ops.py"),
    ("test_nn.TestConv.test_conv2d_backward", "test/test_nn.py"),
    ("test_autograd.TestGrad.test_checkpoint_reentrant", "test/test_autograd.py"),
    ("test_distributed.TestAllReduce.test_bucketed", "test/test_distributed.py"),
)


@dataclass(frozen=True, slots=True)
class StagedFailure:
    """The failed test that a job reports on a staged commit."""

    name: str
    file: str
    message: str
    duration_s: tuple[float, float] | None = None
    """How long the job runs; None: as always."""


class WorkflowAutoplay:
    """Takes over every automatic run of a simulation from now on."""

    def __init__(self, sim: "Simulation", *, speed: float = 1.0) -> None:
        self._sim = sim
        self._speed = speed
        # Upstream commits that really break things: every backend fails on them, in the same way.
        self.breaking_heads: set[str] = set()
        # Those that pass alone, and break things in the merge queue, together with what landed meanwhile.
        self.clashing_heads: set[str] = set()
        # Jobs that fail on a commit, as names of repository and job.
        self.failing_jobs: dict[str, frozenset[tuple[str, str]]] = {}
        # What fails on a commit, by names of repository and job, and nothing else fails on it.
        self.staged: dict[str, Mapping[tuple[str, str], StagedFailure]] = {}
        # Heads of backends' own pull requests: tested together with them, nothing staged fails.
        self.fixing_heads: set[str] = set()
        sim.ci.on_started.append(self._take)

    def _take(self, run: WorkflowRun) -> None:
        if run.workflow.automatic:
            self._sim.spawn(self._play(run))

    async def _play(self, run: WorkflowRun) -> None:
        action = _event(run).get("action")
        if action == "closed" or run.workflow.behaviour.cancel_on_push:
            await self._cancel_earlier(run)
        if action == "closed":
            for job in run.jobs:
                self._sim.ci.complete(run, job, "skipped")
            await self._sim.send_queued_webhooks()
            return
        chance = random.Random(run.id * 31 + run.attempt)
        waiting = [job for job in run.jobs if job.status == "queued"]
        await asyncio.gather(*(self._play_job(run, job, random.Random(chance.random())) for job in waiting))

    async def _play_job(self, run: WorkflowRun, job: WorkflowJob, chance: random.Random) -> None:
        behaviour = run.workflow.behaviour
        await self._pause(chance.uniform(*behaviour.queue_s))
        if job.status == "completed":
            return
        self._sim.ci.start(run, job)
        await self._sim.send_queued_webhooks()
        await self._report(run, job, "in_progress", {})
        staged = self._staged_failure(run, job)
        duration_s = (staged.duration_s if staged else None) or job.spec.duration_s
        await self._pause(chance.uniform(*duration_s))
        if job.status != "completed":
            failed = self._fails(run, job, chance)
            self._sim.ci.complete(run, job, "failure" if failed else "success")
            await self._report(run, job, "completed", self._results(run, job, chance, failed=failed))
            await self._sim.send_queued_webhooks()

    def _fails(self, run: WorkflowRun, job: WorkflowJob, chance: random.Random) -> bool:
        if job.spec.fails is not None:
            return job.spec.fails
        if self._is_staged(run):
            return self._staged_failure(run, job) is not None
        behaviour = run.workflow.behaviour
        broken = behaviour.broken_after_runs is not None and run.run_number > behaviour.broken_after_runs
        failing_job = (self._sim.world.repositories[run.repository_id].full_name, job.name)
        return (
            broken
            or self._breaks(run)
            or any(failing_job in self.failing_jobs.get(sha, ()) for sha in self._tested_heads(run))
            or chance.random() < behaviour.fail_rate
        )

    def _is_staged(self, run: WorkflowRun) -> bool:
        return any(sha in self.staged for sha in self._tested_heads(run))

    def _staged_failure(self, run: WorkflowRun, job: WorkflowJob) -> StagedFailure | None:
        if _other_head(run) in self.fixing_heads:
            return None
        failing_job = (self._sim.world.repositories[run.repository_id].full_name, job.name)
        found = (self.staged.get(sha, {}).get(failing_job) for sha in self._tested_heads(run))
        return next((failure for failure in found if failure is not None), None)

    def _tested_heads(self, run: WorkflowRun) -> frozenset[str]:
        """The pull request's head, or that of the pull request in a merge group, or the commit that was pushed."""
        pull, group = (_event(run).get(name) for name in ("pull_request", "merge_group"))
        if isinstance(pull, dict):
            return frozenset({str(pull.get("head", {}).get("sha"))})
        if isinstance(group, dict):
            return self._merged_into(group.get("head_sha"))
        pushed = _event(run).get("after")
        return frozenset({pushed}) if isinstance(pushed, str) else frozenset()

    def _breaks(self, run: WorkflowRun) -> bool:
        # A merge group is the merge commit of one pull request. Groups behind it in the queue are not broken by it.
        clashing = self.clashing_heads if "merge_group" in _event(run) else frozenset()
        return bool(self._tested_heads(run) & (self.breaking_heads | clashing))

    def _merged_into(self, group_sha: str | None) -> frozenset[str]:
        waiting = self._sim.world.queue
        return frozenset(group.pull_sha for group in waiting if group.head_sha == group_sha)

    def _results(self, run: WorkflowRun, job: WorkflowJob, chance: random.Random, *, failed: bool) -> Json:
        total = job.spec.tests
        skipped = total // 20
        wrong = chance.sample(FAILING_TESTS, chance.randint(1, 2)) if failed else []
        message = run.workflow.behaviour.failure
        staged = self._staged_failure(run, job)
        if failed and staged is not None:
            wrong, message = [(staged.name, staged.file)], staged.message
        elif self._breaks(run):
            wrong = [FAILING_TESTS[0]]
            message = "RuntimeError: expected scalar type Float but found Half in addmm_out"
        counts = {
            "passed": total - skipped - len(wrong),
            "failed": len(wrong),
            "skipped": skipped,
            "total": total,
        }
        failed_tests = [{"name": name, "file": file, "message": message} for name, file in wrong]
        log = {"log_excerpt": _write_log(job.name, wrong, message, counts)} if wrong else {}
        return {"test_results": counts, "failed_tests": failed_tests, **log}

    async def _cancel_earlier(self, run: WorkflowRun) -> None:
        """A newer push makes the older runs of the same pull request pointless."""
        number = _event(run).get("number")
        repository = self._sim.world.repositories[run.repository_id]
        for other in list(self._sim.world.runs_of(repository)):
            same = other.workflow is run.workflow and _event(other).get("number") == number
            same = same and other.event_type == run.event_type
            if number is None or other is run or not same or other.status == "completed":
                continue
            started = [job for job in other.jobs if job.status == "in_progress"]
            self._sim.ci.cancel(other)
            for job in started:
                await self._report(other, job, "completed", {})
        await self._sim.send_queued_webhooks()

    async def _report(self, run: WorkflowRun, job: WorkflowJob, status: str, more: Json) -> None:
        """Report until the relay accepts it or refuses for good."""
        if run.workflow.behaviour.silent:
            return
        body = self._sim.ci.report_body(run, job, status, **more)
        for attempt in range(MOST_TRIES):
            token = self._sim.ci.token(run, job)
            try:
                answer = await self._sim.ci.send_report(run, job, body, token=token)
            except httpx.TransportError:
                wait: float = 2**attempt
            except LookupError:
                return
            else:
                if answer.status_code != 429 and answer.status_code < 500:
                    return
                wait = _retry_after(answer, 2**attempt)
            await self._sim.sleep(min(wait, LONGEST_WAIT_S))

    async def _pause(self, seconds: float) -> None:
        await self._sim.sleep(seconds / self._speed)


def _event(run: WorkflowRun) -> Json:
    """The upstream event that the run was dispatched for."""
    payload = run.client_payload.get("payload")
    return payload if isinstance(payload, dict) else {}


def _other_head(run: WorkflowRun) -> str | None:
    """The head of the backend's own pull request that a pair is tested with."""
    relay = run.client_payload.get("relay")
    other = relay.get("depends_on") if isinstance(relay, dict) else None
    return str(other.get("head_sha")) if isinstance(other, dict) else None


def _retry_after(answer: httpx.Response, default: float) -> float:
    header = answer.headers.get("retry-after", "")
    return float(header) if header.isdigit() else default


def _write_log(job: str, wrong: Sequence[tuple[str, str]], message: str, counts: Json) -> Json:
    """The excerpt that a reporter would make of the job's log."""
    lines = [
        f"$ pytest -q --junitxml out/{job.partition(' ')[0]}.xml",
        f"collected {counts['total']} items",
        "=================================== FAILURES ===================================",
    ]
    for name, file in wrong:
        lines += [f"{file}: in {name.rpartition('.')[2]}", f"E   {message}"]
    lines += [f"FAILED {file}::{name.rpartition('.')[2]} - {message}" for name, file in wrong]
    return {
        "first_error": f"E   {message}",
        "tail": "\n".join(
            (*lines, f"{len(wrong)} failed, {counts['passed']} passed, {counts['skipped']} skipped")
        ),
    }
