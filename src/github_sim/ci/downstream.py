"""Workflow runs and jobs that a dispatch starts, and their reports to the relay's callback.

A run changes only by its jobs. A test steps the jobs, or `autoplay.py` does for automatic workflows. Reports carry an
OIDC token of the run and job and echo the dispatch, as the public reporter does. For a repository with
`sends_run_webhooks`, each change is queued until `Simulation.send_queued_webhooks`.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import httpx

from github_sim.bodies import webhooks
from github_sim.bodies.actions import run_page
from github_sim.clock import stamp_or_none
from github_sim.oidc.github_actions import GitHubIssuer
from github_sim.world.actions import Workflow, WorkflowJob, WorkflowRun
from github_sim.world.records import CallbackAnswer, Json, Repository
from github_sim.world.world import World


class DownstreamCi:
    def __init__(
        self,
        world: World,
        issuer: GitHubIssuer,
        client: Callable[[], httpx.AsyncClient],
        callback_log: list[CallbackAnswer],
    ) -> None:
        self._world = world
        self._issuer = issuer
        self._client = client
        self._log = callback_log
        self.audience = "crcr"
        self.callback_url: str | None = None
        self.on_started: list[Callable[[WorkflowRun], None]] = []
        # Called first when a run is cancelled; true: it ends the jobs itself.
        self.on_cancel: list[Callable[[WorkflowRun], bool]] = []
        self.queued_webhooks: list[webhooks.QueuedWebhook] = []

    def start_runs(
        self,
        repository: Repository,
        event: str,
        event_type: str,
        client_payload: Json,
        *,
        ref: str | None = None,
    ) -> list[WorkflowRun]:
        """One run for each workflow that listens; none at all is no error, as on GitHub."""
        listening = [
            workflow for workflow in repository.workflows if workflow.is_triggered_by(event, event_type)
        ]
        runs = [
            self._start(repository, workflow, event, event_type, client_payload) for workflow in listening
        ]
        for run in runs:
            run.ref = ref or run.ref
        return runs

    def _start(
        self, repository: Repository, workflow: Workflow, event: str, event_type: str, client_payload: Json
    ) -> WorkflowRun:
        run = WorkflowRun(
            id=self._world.next_id("run"),
            repository_id=repository.id,
            workflow=workflow,
            workflow_id=self._world.workflow_id(repository.id, workflow.path),
            run_number=repository.next_run_number,
            event=event,
            event_type=event_type,
            head_sha=repository.head_sha,
            created_at=self._world.now(),
            actor="crcr-simulated[bot]" if event == "repository_dispatch" else repository.owner.login,
            client_payload=client_payload,
            ref=f"refs/heads/{repository.default_branch}",
        )
        repository.next_run_number += 1
        run.attempts[1] = [self._job(name, spec, 1) for name, spec in workflow.plan_jobs(run)]
        self._world.runs[run.id] = run
        self._queue_run_webhook(run, "requested")
        self._queue_job_webhooks(run, run.jobs)
        self._notify_started(run)
        return run

    def _job(self, name: str, spec: Any, attempt: int) -> WorkflowJob:
        return WorkflowJob(self._world.next_id("check_run"), name, spec, attempt, self._world.now())

    def rerun(self, run: WorkflowRun, *, failed_only: bool = False) -> None:
        """A new attempt with new jobs; with `failed_only` the others are carried over as they were."""
        attempt = run.attempt + 1
        run.attempts[attempt] = [
            job
            if failed_only and job.conclusion in {"success", "skipped", "neutral"}
            else self._job(job.name, job.spec, attempt)
            for job in run.jobs
        ]
        run.attempt = attempt
        run.updated_at = self._world.now()
        # GitHub does not say `requested` again for a re-run.
        self._queue_job_webhooks(run, [job for job in run.jobs if job.attempt == attempt])
        self._notify_started(run)

    def _notify_started(self, run: WorkflowRun) -> None:
        for listener in self.on_started:
            listener(run)

    def cancel(self, run: WorkflowRun) -> list[WorkflowJob]:
        """Cancel what is not yet completed; returns those jobs."""
        waiting = [job for job in run.jobs if job.status != "completed"]
        if any(takes(run) for takes in self.on_cancel):
            return waiting
        for job in waiting:
            self.complete(run, job, "cancelled")
        return waiting

    def start(self, run: WorkflowRun, job: WorkflowJob) -> None:
        first = run.status == "queued"
        job.status, job.started_at = "in_progress", self._world.now()
        run.updated_at = job.started_at
        if first:
            self._queue_run_webhook(run, "in_progress")
        self._queue_job_webhooks(run, [job])

    def complete(self, run: WorkflowRun, job: WorkflowJob, conclusion: str | None) -> None:
        job.status, job.conclusion, job.completed_at = "completed", conclusion, self._world.now()
        run.updated_at = job.completed_at
        self._queue_job_webhooks(run, [job])
        if run.status == "completed":
            self._queue_run_webhook(run, "completed")

    def _queue_run_webhook(self, run: WorkflowRun, action: str) -> None:
        if self._world.repositories[run.repository_id].sends_run_webhooks:
            self.queued_webhooks.append(
                webhooks.workflow_run(self._issuer.base_url, self._world, run, action)
            )

    def _queue_job_webhooks(self, run: WorkflowRun, jobs: Iterable[WorkflowJob]) -> None:
        if self._world.repositories[run.repository_id].sends_run_webhooks:
            self.queued_webhooks += [
                webhooks.workflow_job(self._issuer.base_url, self._world, run, job) for job in jobs
            ]

    def token(self, run: WorkflowRun, job: WorkflowJob, audience: str | None = None, **claims: Any) -> str:
        """The job's OIDC token; claims can be replaced, and None removes one."""
        return self._issuer.sign(self.claims(run, job, audience, **claims))

    def claims(self, run: WorkflowRun, job: WorkflowJob, audience: str | None = None, **changes: Any) -> Json:
        repository = self._world.repositories[run.repository_id]
        relay_audience = _relay(run).get("audience")
        chosen_audience = audience or (relay_audience if isinstance(relay_audience, str) else self.audience)
        full = {**self._issuer.claims(repository, run, job, chosen_audience), **changes}
        return {name: value for name, value in full.items() if value is not None}

    def report_body(self, run: WorkflowRun, job: WorkflowJob, status: str, **workflow: Any) -> Json:
        """A callback's body; keywords replace or add keys of its `workflow` part."""
        repository = self._world.repositories[run.repository_id]
        own = {
            "schema_version": "1",
            "status": status,
            "conclusion": job.conclusion if status == "completed" else None,
            "name": run.workflow.name,
            "url": run_page(self._issuer.base_url, repository, run),
            "run_id": str(run.id),
            "run_attempt": str(run.attempt),
            "job_name": job.name,
            "check_run_id": str(job.id),
            "started_at": stamp_or_none(job.started_at),
            "completed_at": stamp_or_none(job.completed_at),
        }
        return {
            "event_type": run.client_payload.get("event_type", run.event_type),
            "delivery_id": run.delivery_id,
            "payload": run.client_payload.get("payload", {}),
            "workflow": {**own, **workflow},
        }

    async def send_report(
        self,
        run: WorkflowRun,
        job: WorkflowJob,
        body: Mapping[str, Any] | bytes,
        *,
        token: str,
        url: str | None = None,
    ) -> httpx.Response:
        """One POST to the relay; the answer is added to the callback log."""
        target = url or _relay(run).get("callback_url") or self.callback_url
        if not target:
            raise LookupError(f"run {run.id} was not told where to report")
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        sent: Any = {"content": body} if isinstance(body, bytes) else {"json": body}
        status = "" if isinstance(body, bytes) else str(body.get("workflow", {}).get("status", ""))
        try:
            answer = await self._client().post(str(target), headers=headers, **sent)
        except httpx.TransportError:
            self._note(run, job, status, 0, "no_answer")
            raise
        self._note(run, job, status, answer.status_code, _code(answer))
        return answer

    def _note(self, run: WorkflowRun, job: WorkflowJob, report: str, status: int, code: str | None) -> None:
        name = self._world.repositories[run.repository_id].full_name
        at = self._world.now()
        self._log.append(CallbackAnswer(name, run.id, run.attempt, job.name, report, status, code, at))


def _relay(run: WorkflowRun) -> Json:
    relay = run.client_payload.get("relay")
    return relay if isinstance(relay, dict) else {}


def _code(answer: httpx.Response) -> str | None:
    """The relay's error code, where it gave one."""
    if answer.is_success:
        return None
    try:
        return str(answer.json()["error"]["code"])
    except (ValueError, LookupError, TypeError):
        return None
