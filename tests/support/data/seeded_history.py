"""`SeededHistory`: five weeks of random events and reports, sent to a relay over HTTP.

Reports are repeated, late, contradictory or missing; runs are repeated, cancelled and re-run in part; heads move while
jobs run.
"""

from dataclasses import dataclass, field
from random import Random
from typing import Any

from github_sim.github import JobSpec, PullRequest, Workflow, WorkflowJob, WorkflowRun
from support.running_relay import AUDIENCE, UPSTREAM, RunningRelay

ALPHA, BETA, GATING, PROBE, QUIET = "org/alpha", "org/beta", "org/gating", "org/probe", "org/quiet"
REPORTING = (ALPHA, BETA, GATING, PROBE)
LISTED = (
    f"L1:\n  - org/told\nL2:\n  - {ALPHA}\n  - Org/Beta\n  - {PROBE}: {{expect: {{test: failure}}}}\n"
    f"  - {QUIET}\nL4:\n  - {GATING}: ann\n"
)
EVERYBODY = (*REPORTING, QUIET, "org/told")
WORKFLOWS = [
    Workflow(jobs=(JobSpec("build"), JobSpec("test"), JobSpec("lint"))),
    Workflow(name="More", path=".github/workflows/more.yml", jobs=(JobSpec("test"),)),
]
ENDS = (
    ("success",) * 6 + ("failure",) * 3 + ("cancelled", "skipped", "neutral", "timed_out", "action_required")
)
DAYS = 36


@dataclass
class SeededHistory:
    relay: RunningRelay
    random: Random
    pulls: list[PullRequest] = field(default_factory=list)
    reports: int = 0

    async def send_all(self) -> None:
        for name in REPORTING:
            self.relay.github.repository(name).workflows = list(WORKFLOWS)
        for name in (QUIET, "org/told"):
            self.relay.github.repository(name).workflows = []
        for _ in range(DAYS):
            await self._send_event()
            await self._continue_runs()
            await self.relay.services.sweeper.sweep()
            await self.relay.pass_time(self.random.choice((9, 23, 26)) * 3600)
        await self._send_event()
        await self._continue_runs()

    async def _send_event(self) -> None:
        github, open_ = self.relay.github, [pull for pull in self.pulls if pull.state == "open"]
        match self.random.choice(("open", "open", "head", "head", "head", "close", "push", "push")):
            case "head" if open_:
                await github.push_to_pr(self.random.choice(open_))
            case "close" if open_:
                pull = self.random.choice(open_)
                await github.close_pr(pull)
                if self.random.random() < 0.5:
                    await github.reopen_pr(pull)
            case "push":
                await github.push(UPSTREAM)
            case _:
                self.pulls.append(await github.open_pr(UPSTREAM))
        await self.relay.pass_time(self.random.choice((0, 2, 40)))

    async def _continue_runs(self) -> None:
        """Continue the newest runs of some backends, and some old runs."""
        for name in self.random.sample(REPORTING, 2):
            runs = self.relay.github.runs(name)
            for run in (*runs[-1:], *self.random.sample(runs, min(1, len(runs)))):
                await self._continue_run(run)
        await self.relay.drain()

    async def _continue_run(self, run: WorkflowRun) -> None:
        match self.random.choice(("on", "on", "on", "on", "again", "second", "cancel", "late")):
            case "again":
                await self._jobs(run)
                before = run.jobs
                await self.relay.github.rerun(run, failed_only=self.random.random() < 0.5)
                await self._jobs(run)
                for job in before:  # reports of the attempt before
                    await self._report(run, job, "completed")
            case "second" if run.event == "repository_dispatch":
                name = self.relay.github.world.repositories[run.repository_id].full_name
                told, payload = run.event_type, run.client_payload
                second = self.relay.github.start_run(
                    name, event=run.event, event_type=told, client_payload=payload
                )
                await self._jobs(second)
                await self._jobs(run)
            case "cancel":
                await self._jobs(run, ended=False)
                self.reports += len(await self.relay.github.cancel(run))
            case "late":
                for job in run.jobs:
                    self.relay.github.ci.complete(run, job, self.random.choice(ENDS))
                    await self._report(run, job, "completed")
                    await self._report(run, job, "in_progress", late=True)
                    await self._report(run, job, "completed")
            case _:
                await self._jobs(run)

    async def _jobs(self, run: WorkflowRun, *, ended: bool = True) -> None:
        for job in run.jobs:
            if job.attempt != run.attempt or self.random.random() < 0.1:
                continue
            self.relay.github.ci.start(run, job)
            await self._report(run, job, "in_progress")
            if self.random.random() < 0.15:
                await self._report(run, job, "in_progress")
        self.relay.clock.advance(self.random.choice((0.5, 4, 61, 333, 1_234)))
        for job in run.jobs if ended else ():
            if job.attempt != run.attempt:
                continue
            self.relay.github.ci.complete(run, job, self.random.choice(ENDS))
            if self.random.random() < 0.15:
                continue  # not reported to the relay
            await self._report(run, job, "completed")
            if self.random.random() < 0.15:
                await self._report(run, job, "completed")
            if self.random.random() < 0.15:
                await self._report(run, job, "completed", conclusion=self.random.choice(ENDS))
        await self.relay.github.send_queued_webhooks()

    async def _report(self, run: WorkflowRun, job: WorkflowJob, status: str, **more: Any) -> None:
        attempt = str(job.attempt)
        token = self.relay.github.oidc_token(run, job, audience=AUDIENCE, run_attempt=attempt)
        answer = await self.relay.github.report(
            run, job, status=status, token=token, run_attempt=attempt, **more
        )
        assert answer.status_code in (200, 409), answer.text
        self.reports += 1
