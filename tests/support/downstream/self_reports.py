"""Self-reports: a run on the backend's own schedule, and its reports."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import httpx

from github_sim.github import Workflow, WorkflowJob, WorkflowRun
from support.downstream.callbacks import BACKEND, CALLBACK, LISTED, bearer
from support.running_relay import AUDIENCE, UPSTREAM, WORKFLOW, RunningRelay, running_relay

NIGHTLY = Workflow(
    name="Nightly", path=".github/workflows/nightly.yml", listens=("schedule",), jobs=WORKFLOW.jobs
)


def nightly_run(relay: RunningRelay, repository: str = BACKEND, workflow: Workflow = NIGHTLY) -> WorkflowRun:
    """A run that the backend's own schedule has started."""
    workflows = relay.github.repository(repository).workflows
    if workflow not in workflows:
        workflows.append(workflow)
    return relay.github.start_run(repository, event="schedule")


async def send_self_report(
    relay: RunningRelay,
    run: WorkflowRun,
    job: WorkflowJob | str = "build",
    conclusion: str | None = "success",
    *,
    commit: str | None = None,
    event_type: str = "nightly",
    payload: dict[str, Any] | None = None,
    claims: dict[str, Any] | None = None,
    **workflow: Any,
) -> httpx.Response:
    """Send one self-report; `commit` is its `delivery_id`, which may be any text or absent."""
    chosen = run.job(job) if isinstance(job, str) else job
    fields = {"conclusion": conclusion, **workflow}
    body = relay.github.ci.report_body(run, chosen, fields.pop("status", "completed"), **fields)
    body |= {"event_type": event_type, "delivery_id": commit, "payload": payload or {}}
    token = relay.github.oidc_token(run, chosen, audience=AUDIENCE, **(claims or {}))
    return await relay.http.post(CALLBACK, json=body, headers=bearer(token))


def upstream_head(relay: RunningRelay, upstream: str = UPSTREAM) -> str:
    """The newest commit of the upstream's default branch."""
    return relay.github.repository(upstream).head_sha


def recorded_standing(relay: RunningRelay, sha: str) -> tuple[str, str | None]:
    [row] = relay.rows("SELECT standing, branch FROM commits WHERE sha = ?", sha)
    return row["standing"], row["branch"]


def relay_with_backend(
    folder: Path, allowlist: str = LISTED, **settings: Any
) -> AbstractAsyncContextManager[RunningRelay]:
    """A relay with one backend and no pull request."""
    return running_relay(folder, allowlist, downstreams=(BACKEND,), **settings)
