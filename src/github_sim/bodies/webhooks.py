"""Bodies of webhooks in GitHub's full shape, built from the world's state.

One function per event. Each returns the JSON without `installation` and `sender`, which `from_app` adds as GitHub does
for an App. Events of workflow runs and jobs are built when the change happens and sent later (`QueuedWebhook`).
"""

from dataclasses import dataclass

from github_sim.bodies.actions import job_json, run_json
from github_sim.bodies.commits import UNSIGNED, commit_json
from github_sim.bodies.pull_requests import git_user_json, label_json, pull_json
from github_sim.bodies.repositories import (
    account_json,
    installation_json,
    node_id,
    repository_json,
    short_repository_json,
)
from github_sim.clock import stamp
from github_sim.world.actions import WorkflowJob, WorkflowRun
from github_sim.world.records import (
    NO_COMMIT,
    Account,
    GitCommit,
    Installation,
    Json,
    PullRequest,
    Repository,
)
from github_sim.world.world import World

MOST_COMMITS = 2_048


def from_app(base: str, body: Json, installation: Installation | None, sender: Account) -> Json:
    """Complete a body with its sender and the installation through which it reaches the App."""
    more: Json = {"sender": account_json(base, sender)}
    if installation is not None and "installation" not in body:
        identity = f"MDIzOkludGVncmF0aW9uSW5zdGFsbGF0aW9u{installation.id}"
        more["installation"] = {"id": installation.id, "node_id": identity}
    return {**body, **more}


def ping(hook_id: int, app_id: int, url: str, at: str) -> Json:
    hook = {
        "type": "App",
        "id": hook_id,
        "name": "web",
        "active": True,
        "events": ["pull_request", "push"],
        "config": {"content_type": "json", "insecure_ssl": "0", "secret": "********", "url": url},
        "updated_at": at,
        "created_at": at,
        "app_id": app_id,
        "deliveries_url": f"{url}/deliveries",
    }
    return {"zen": "Keep it logically awesome.", "hook_id": hook_id, "hook": hook}


def status(
    base: str, repository: Repository, sha: str, *, context: str, state: str, number: int, at: str
) -> Json:
    """The state of a commit status; `name` is the repository's, as GitHub has it."""
    commit = commit_json(base, repository, repository.commits[sha])
    branches = [
        {
            "name": branch,
            "commit": {"sha": head, "url": f"{base}/repos/{repository.full_name}/commits/{head}"},
            "protected": False,
        }
        for branch, head in repository.branches.items()
        if head == sha
    ]
    return {
        "id": number,
        "sha": sha,
        "name": repository.full_name,
        "avatar_url": f"{base}/avatars/oa/{number}",
        "target_url": None,
        "context": context,
        "description": None,
        "state": state,
        "commit": {**commit, "commit": {**commit["commit"], "verification": UNSIGNED}},
        "branches": branches,
        "created_at": at,
        "updated_at": at,
        "repository": repository_json(base, repository),
        **organization(base, repository.owner),
    }


def pull_request(base: str, world: World, pull: PullRequest, action: str, more: Json | None = None) -> Json:
    repository = world.repositories[pull.repository_id]
    return {
        "action": action,
        "number": pull.number,
        "pull_request": pull_json(base, world, pull),
        **(more or {}),
        "repository": repository_json(base, repository),
        **organization(base, repository.owner),
    }


def label(base: str, repository: Repository, name: str) -> Json:
    return {"label": label_json(f"{base}/repos/{repository.full_name}", name)}


def organization(base: str, owner: Account) -> Json:
    if owner.type != "Organization":
        return {}
    url = f"{base}/orgs/{owner.login}"
    return {
        "organization": {
            "login": owner.login,
            "id": owner.id,
            "node_id": node_id("O_", owner.id),
            "url": url,
            "repos_url": f"{url}/repos",
            "events_url": f"{url}/events",
            "hooks_url": f"{url}/hooks",
            "issues_url": f"{url}/issues",
            "members_url": f"{url}/members{{/member}}",
            "public_members_url": f"{url}/public_members{{/member}}",
            "avatar_url": f"{base}/avatars/u/{owner.id}?v=4",
            "description": "",
        }
    }


def push(
    base: str,
    repository: Repository,
    *,
    ref: str,
    before: str,
    after: str,
    commits: list[GitCommit],
    forced: bool,
    pusher: Account,
) -> Json:
    deleted = after == NO_COMMIT
    entries = [commit_entry(base, repository, commit) for commit in commits[-MOST_COMMITS:]]
    tip = repository.commits.get(after)
    pusher_user = git_user_json(pusher)
    return {
        "ref": ref,
        "before": before,
        "after": after,
        "repository": {**repository_json(base, repository), "master_branch": repository.default_branch},
        "pusher": {"name": pusher_user["name"], "email": pusher_user["email"]},
        **organization(base, repository.owner),
        "created": before == NO_COMMIT,
        "deleted": deleted,
        "forced": forced,
        "base_ref": None,
        "compare": f"{base}/{repository.full_name}/compare/{before[:12]}...{after[:12]}",
        "commits": entries,
        "head_commit": None if deleted or tip is None else commit_entry(base, repository, tip),
    }


def commit_entry(base: str, repository: Repository, commit: GitCommit) -> Json:
    author = git_user_json(commit.author)
    return {
        "id": commit.sha,
        "tree_id": commit.tree_sha,
        "distinct": True,
        "message": commit.message,
        "timestamp": stamp(commit.committed_at),
        "url": f"{base}/{repository.full_name}/commit/{commit.sha}",
        "author": author,
        "committer": author,
        "added": list(commit.added),
        "removed": list(commit.removed),
        "modified": list(commit.modified),
    }


def installation(base: str, app_id: int, record: Installation, action: str, world: World) -> Json:
    repositories = [short_repository_json(world.repositories[id]) for id in sorted(record.repository_ids)]
    return {
        "action": action,
        "installation": installation_json(base, app_id, record),
        "repositories": repositories,
        "requester": None,
    }


def installation_repositories(
    base: str, app_id: int, record: Installation, action: str, changed: list[Repository]
) -> Json:
    repositories = [short_repository_json(repository) for repository in changed]
    return {
        "action": action,
        "installation": installation_json(base, app_id, record),
        "repository_selection": "selected",
        "repositories_added": repositories if action == "added" else [],
        "repositories_removed": repositories if action == "removed" else [],
        "requester": None,
    }


def repository_event(base: str, repository: Repository, action: str, changes: Json) -> Json:
    return {
        "action": action,
        "changes": changes,
        "repository": repository_json(base, repository),
        **organization(base, repository.owner),
    }


def merge_group(
    base: str,
    repository: Repository,
    *,
    action: str,
    head: GitCommit,
    head_ref: str,
    base_ref: str,
    reason: str | None,
) -> Json:
    author = git_user_json(head.author)
    del author["username"]
    group = {
        "head_sha": head.sha,
        "head_ref": head_ref,
        "base_sha": head.parents[0],
        "base_ref": base_ref,
        "head_commit": {
            "id": head.sha,
            "tree_id": head.tree_sha,
            "message": head.message,
            "timestamp": stamp(head.committed_at),
            "author": author,
            "committer": author,
        },
    }
    return {
        "action": action,
        **({"reason": reason} if reason else {}),
        "merge_group": group,
        "repository": repository_json(base, repository),
        **organization(base, repository.owner),
    }


@dataclass(frozen=True)
class QueuedWebhook:
    event: str
    body: Json
    repository: Repository
    sender: Account


def workflow_run(base: str, world: World, run: WorkflowRun, action: str) -> QueuedWebhook:
    """A run was requested, is in_progress or completed."""
    repository, actor = world.repositories[run.repository_id], world.account(run.actor)
    more = {
        "workflow_run": run_json(base, repository, run, actor),
        "workflow": _workflow(base, repository, run),
    }
    return QueuedWebhook("workflow_run", _workflow_event(base, repository, action, more), repository, actor)


def workflow_job(base: str, world: World, run: WorkflowRun, job: WorkflowJob) -> QueuedWebhook:
    """A job in its current state: queued, in_progress or completed."""
    repository = world.repositories[run.repository_id]
    body = _workflow_event(
        base, repository, job.status, {"workflow_job": job_json(base, repository, run, job)}
    )
    return QueuedWebhook("workflow_job", body, repository, world.account(run.actor))


def _workflow_event(base: str, repository: Repository, action: str, more: Json) -> Json:
    return {
        "action": action,
        **more,
        "repository": repository_json(base, repository),
        **organization(base, repository.owner),
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
