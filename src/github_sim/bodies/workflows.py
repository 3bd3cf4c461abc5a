"""GitHub's JSON of a repository's workflows."""

from github_sim.bodies.repositories import node_id
from github_sim.clock import stamp
from github_sim.world.records import Json, Repository


def workflow_json(base: str, repository: Repository, number: int, path: str) -> Json:
    api, page = f"{base}/repos/{repository.full_name}", f"{base}/{repository.full_name}"
    declared = next((each.name for each in repository.workflows if each.path == path), None)
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
