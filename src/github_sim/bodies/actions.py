"""GitHub's JSON of workflow runs, their jobs, and check runs."""

from github_sim.bodies.pull_requests import git_user_json
from github_sim.bodies.repositories import account_json, node_id, repository_json
from github_sim.clock import stamp, stamp_or_none
from github_sim.world.actions import StepRun, WorkflowJob, WorkflowRun
from github_sim.world.records import Account, CheckRun, Json, Repository


def run_json(base: str, repository: Repository, run: WorkflowRun, actor: Account) -> Json:
    api = f"{base}/repos/{repository.full_name}"
    url = f"{api}/actions/runs/{run.id}"
    person = account_json(base, actor)
    return {
        "id": run.id,
        "name": run.workflow.name,
        "node_id": node_id("WFR_", run.id),
        "head_branch": run.ref_name,
        "head_sha": run.head_sha,
        "path": run.workflow.path,
        "display_title": run.display_title,
        "run_number": run.run_number,
        "run_attempt": run.attempt,
        "event": run.event,
        "status": run.status,
        "conclusion": run.conclusion,
        "workflow_id": run.workflow_id,
        "check_suite_id": run.id + 1,
        "check_suite_node_id": node_id("CS_", run.id + 1),
        "url": url,
        "html_url": run_page(base, repository, run),
        "pull_requests": [],
        "created_at": stamp(run.created_at),
        "updated_at": stamp(run.updated_at or run.created_at),
        "run_started_at": stamp(run.created_at),
        "actor": person,
        "triggering_actor": person,
        "referenced_workflows": [],
        **_run_links(api, url, run),
        "head_commit": _head_commit(repository, run),
        "repository": repository_json(base, repository),
        "head_repository": repository_json(base, repository),
    }


def run_page(base: str, repository: Repository, run: WorkflowRun) -> str:
    return f"{base}/{repository.full_name}/actions/runs/{run.id}"


def _run_links(api: str, url: str, run: WorkflowRun) -> Json:
    return {
        "jobs_url": f"{url}/jobs",
        "logs_url": f"{url}/logs",
        "check_suite_url": f"{api}/check-suites/{run.id + 1}",
        "artifacts_url": f"{url}/artifacts",
        "cancel_url": f"{url}/cancel",
        "rerun_url": f"{url}/rerun",
        "previous_attempt_url": f"{url}/attempts/{run.attempt - 1}" if run.attempt > 1 else None,
        "workflow_url": f"{api}/actions/workflows/{run.workflow_id}",
    }


def _head_commit(repository: Repository, run: WorkflowRun) -> Json | None:
    commit = repository.commits.get(run.head_sha)
    if commit is None:
        return None
    author = git_user_json(commit.author)
    del author["username"]
    return {
        "id": commit.sha,
        "tree_id": commit.tree_sha,
        "message": commit.message,
        "timestamp": stamp(commit.committed_at),
        "author": author,
        "committer": author,
    }


def job_json(base: str, repository: Repository, run: WorkflowRun, job: WorkflowJob) -> Json:
    api = f"{base}/repos/{repository.full_name}"
    page = run_page(base, repository, run)
    runner = job.started_at is not None
    return {
        "id": job.id,
        "run_id": run.id,
        "workflow_name": run.workflow.name,
        "head_branch": run.ref_name,
        "run_url": f"{api}/actions/runs/{run.id}",
        "run_attempt": job.attempt,
        "node_id": node_id("CR_", job.id),
        "head_sha": run.head_sha,
        "url": f"{api}/actions/jobs/{job.id}",
        "html_url": f"{page}/job/{job.id}",
        "status": job.status,
        "conclusion": job.conclusion,
        "created_at": stamp(job.created_at),
        # GitHub gives a queued job its creation time here, never null.
        "started_at": stamp(job.started_at or job.created_at),
        "completed_at": stamp_or_none(job.completed_at),
        "name": job.name,
        "steps": [_step_json(step) for step in job.steps],
        "check_run_url": f"{api}/check-runs/{job.id}",
        "labels": ["self-hosted"],
        "runner_id": 7 if runner else None,
        "runner_name": "runner-7" if runner else None,
        "runner_group_id": 1 if runner else None,
        "runner_group_name": "Default" if runner else None,
    }


def _step_json(step: StepRun) -> Json:
    return {
        "name": step.name,
        "status": step.status,
        "conclusion": step.conclusion,
        "number": step.number,
        "started_at": stamp_or_none(step.started_at),
        "completed_at": stamp_or_none(step.completed_at),
    }


def check_run_json(base: str, repository: Repository, check: CheckRun, app: Json) -> Json:
    url = f"{base}/repos/{repository.full_name}/check-runs/{check.id}"
    return {
        "id": check.id,
        "name": check.name,
        "node_id": node_id("CR_", check.id),
        "head_sha": check.head_sha,
        "external_id": check.external_id or "",
        "url": url,
        "html_url": f"{base}/{repository.full_name}/runs/{check.id}",
        "details_url": check.details_url or base,
        "status": check.status,
        "conclusion": check.conclusion,
        "started_at": check.started_at,
        "completed_at": check.completed_at,
        "output": {
            "title": check.output.get("title"),
            "summary": check.output.get("summary"),
            "text": check.output.get("text"),
            "annotations_count": len(check.annotations),
            "annotations_url": f"{url}/annotations",
        },
        "check_suite": {"id": check.repository_id + 1},
        "app": app,
        "pull_requests": [],
    }


def workflow_json(base: str, repository: Repository, number: int, path: str) -> Json:
    api, page = f"{base}/repos/{repository.full_name}", f"{base}/{repository.full_name}"
    declared = next((workflow.name for workflow in repository.workflows if workflow.path == path), None)
    return {
        "id": number,
        "node_id": node_id("W_", number),
        "name": declared or path,
        "path": path,
        "state": "disabled_manually" if path in repository.disabled_workflows else "active",
        "created_at": stamp(repository.created_at),
        "updated_at": stamp(repository.updated_at),
        "url": f"{api}/actions/workflows/{number}",
        "html_url": f"{page}/blob/{repository.default_branch}/{path}",
        "badge_url": f"{page}/workflows/{path.rpartition('/')[2]}/badge.svg",
    }
