"""What the App hears of workflow runs and jobs: the bodies of `workflow_run` and `workflow_job` events.

A change is noted as it happens, with everything as it stood then, and sent when somebody can wait for it.
"""

from dataclasses import dataclass

from github_sim.bodies import webhooks
from github_sim.bodies.actions import job_json, run_json
from github_sim.bodies.repositories import node_id, repository_json
from github_sim.clock import stamp
from github_sim.world.actions import Job, WorkflowRun
from github_sim.world.records import Account, Json, Repository
from github_sim.world.world import World


@dataclass(frozen=True)
class News:
    event: str
    body: Json
    repository: Repository
    sender: Account


def of_run(base: str, world: World, run: WorkflowRun, action: str) -> News:
    """A run was requested, is in_progress or completed."""
    repository, actor = world.repositories[run.repository_id], world.account(run.actor)
    more = {
        "workflow_run": run_json(base, repository, run, actor),
        "workflow": _workflow(base, repository, run),
    }
    return News("workflow_run", _event(base, repository, action, more), repository, actor)


def of_job(base: str, world: World, run: WorkflowRun, job: Job) -> News:
    """A job as it stands: queued, in_progress or completed."""
    repository = world.repositories[run.repository_id]
    body = _event(base, repository, job.status, {"workflow_job": job_json(base, repository, run, job)})
    return News("workflow_job", body, repository, world.account(run.actor))


def _event(base: str, repository: Repository, action: str, more: Json) -> Json:
    return {
        "action": action,
        **more,
        "repository": repository_json(base, repository),
        **webhooks.organization(base, repository.owner),
    }


def _workflow(base: str, repository: Repository, run: WorkflowRun) -> Json:
    page = f"{base}/{repository.full_name}"
    return {
        "id": run.workflow_id,
        "node_id": node_id("W_", run.workflow_id),
        "name": run.workflow.name,
        "path": run.workflow.path,
        "state": "active",
        "created_at": stamp(repository.created_at),
        "updated_at": stamp(repository.updated_at),
        "url": f"{base}/repos/{repository.full_name}/actions/workflows/{run.workflow_id}",
        "html_url": f"{page}/blob/{repository.default_branch}/{run.workflow.path}",
        "badge_url": f"{page}/workflows/{run.workflow.name}/badge.svg",
    }
