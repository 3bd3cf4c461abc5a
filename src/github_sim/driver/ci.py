"""Driver methods of downstream CI: start a job, complete it, report, re-run, cancel.

`start_job` and `complete_job` change the job and report it in one call. `report` sends any body with any token, for
reports that must be refused. For a repository with `sends_run_webhooks`, the `workflow_run` and `workflow_job` webhooks
are sent too: before the report of a start, and after the report of an end.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from github_sim.bodies import webhooks
from github_sim.oidc.github_actions import HostileToken, hostile_token
from github_sim.simulation import Simulation
from github_sim.world.actions import WorkflowJob, WorkflowRun
from github_sim.world.records import Json, RepositoryDispatch, WebhookDelivery


class CiDriver(Simulation):
    def dispatches(self, full_name: str | None = None) -> list[RepositoryDispatch]:
        """Accepted dispatches, oldest first, of one repository or of all."""
        if full_name is None:
            return list(self.world.dispatches)
        repository_id = self.world.repository(full_name).id
        return [dispatch for dispatch in self.world.dispatches if dispatch.repository_id == repository_id]

    def runs(self, full_name: str) -> list[WorkflowRun]:
        return list(self.world.runs_of(self.world.repository(full_name)))

    def start_run(
        self,
        full_name: str,
        *,
        event: str = "schedule",
        event_type: str = "",
        client_payload: Json | None = None,
        ref: str | None = None,
    ) -> WorkflowRun:
        """A run that no dispatch made (a nightly one, or a second of the same delivery), of the default branch or `ref`.

        This and other steps that cannot wait leave their news to the next act, or to `send_queued_webhooks()`.
        """
        repository = self.world.repository(full_name)
        return self.ci.start_runs(repository, event, event_type, client_payload or {}, ref=ref)[0]

    async def send_dispatch(self, full_name: str, event_type: str, client_payload: Json) -> list[WorkflowRun]:
        """Somebody who may write to the repository sends it a dispatch, with a token of their own."""
        repository = self.world.repository(full_name)
        self.world.dispatches.append(
            RepositoryDispatch(
                repository_id=repository.id,
                event_type=event_type,
                client_payload=client_payload,
                received_at=self.clock.now(),
                installation_id=None,
                size_bytes=len(json.dumps(client_payload)),
            )
        )
        runs = self.ci.start_runs(repository, "repository_dispatch", event_type, client_payload)
        await self.send_queued_webhooks()
        return runs

    async def start_job(self, run: WorkflowRun, name: str, **workflow: Any) -> httpx.Response:
        job = run.job(name)
        self.ci.start(run, job)
        await self.send_queued_webhooks()
        return await self.report(run, job, status="in_progress", **workflow)

    async def complete_job(
        self,
        run: WorkflowRun,
        name: str,
        conclusion: str | None = "success",
        *,
        tests: Mapping[str, int] | None = None,
        failed_tests: Sequence[Mapping[str, str]] | None = None,
        **workflow: Any,
    ) -> httpx.Response:
        job = run.job(name)
        self.ci.complete(run, job, conclusion)
        more: Json = dict(workflow)
        if tests is not None:
            more["test_results"] = dict(tests)
        if failed_tests is not None:
            more["failed_tests"] = [dict(test) for test in failed_tests]
        try:
            return await self.report(run, job, status="completed", **more)
        finally:
            await self.send_queued_webhooks()

    async def report(
        self,
        run: WorkflowRun,
        job: WorkflowJob | str,
        *,
        status: str = "in_progress",
        body: Mapping[str, Any] | bytes | None = None,
        token: str | None = None,
        url: str | None = None,
        **workflow: Any,
    ) -> httpx.Response:
        """One POST to the callback. Keywords replace keys of the body's `workflow`; nothing else changes."""
        chosen = run.job(job) if isinstance(job, str) else job
        sent = body if body is not None else self.ci.report_body(run, chosen, status, **workflow)
        bearer = token if token is not None else self.ci.token(run, chosen)
        return await self.ci.send_report(run, chosen, sent, token=bearer, url=url)

    def oidc_token(
        self, run: WorkflowRun, job: WorkflowJob | str, *, audience: str | None = None, **claims: Any
    ) -> str:
        """A signed token of a job; claims can be replaced, None leaves one out."""
        chosen = run.job(job) if isinstance(job, str) else job
        return self.ci.token(run, chosen, audience, **claims)

    def hostile_token(self, kind: HostileToken, run: WorkflowRun, job: WorkflowJob | str) -> str:
        chosen = run.job(job) if isinstance(job, str) else job
        return hostile_token(self.issuer, kind, self.ci.claims(run, chosen), self.clock.now())

    async def rerun(self, run: WorkflowRun, *, failed_only: bool = False) -> WorkflowRun:
        """A person presses re-run: the same run with its next attempt."""
        self.ci.rerun(run, failed_only=failed_only)
        await self.send_queued_webhooks()
        return run

    async def cancel(self, run: WorkflowRun, *, report: bool = True) -> list[httpx.Response]:
        """A person cancels the run; the jobs that had started report it by default."""
        started = [job for job in run.jobs if job.status == "in_progress"]
        self.ci.cancel(run)
        answers = [await self.report(run, job, status="completed") for job in started] if report else []
        await self.send_queued_webhooks()
        return answers

    async def send_run_webhook(self, run: WorkflowRun, action: str) -> WebhookDelivery | None:
        """Send the `workflow_run` webhook of a run: requested, in_progress or completed."""
        webhook = webhooks.workflow_run(self.base_url, self.world, run, action)
        return await self.emit(webhook.event, webhook.body, webhook.repository, webhook.sender)

    async def send_job_webhook(self, run: WorkflowRun, job: WorkflowJob | str) -> WebhookDelivery | None:
        """Send the `workflow_job` webhook of a job in its current state."""
        chosen = run.job(job) if isinstance(job, str) else job
        webhook = webhooks.workflow_job(self.base_url, self.world, run, chosen)
        return await self.emit(webhook.event, webhook.body, webhook.repository, webhook.sender)
