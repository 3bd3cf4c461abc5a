"""The REST route that lists branches by how their names begin."""

from typing import TYPE_CHECKING

from github_sim.bodies.repositories import node_id
from github_sim.rest.exchange import Ask, Reply, Route
from github_sim.world.records import Json

if TYPE_CHECKING:
    from github_sim.simulation import Simulation


async def list_matching_refs(sim: "Simulation", ask: Ask) -> Reply:
    """All that begin so, in one answer and in the order of their names; none at all is no error."""
    wanted = f"refs/{ask.params['ref']}"
    refs = {f"refs/heads/{branch}": sha for branch, sha in ask.repository.branches.items()}
    found = sorted(name for name in refs if name.startswith(wanted))
    return Reply(200, [_ref_json(sim.base_url, ask.repository.full_name, name, refs[name]) for name in found])


def _ref_json(base: str, full_name: str, ref: str, sha: str) -> Json:
    api = f"{base}/repos/{full_name}/git"
    return {
        "ref": ref,
        "node_id": node_id(ref, 0),
        "url": f"{api}/{ref}",
        "object": {"type": "commit", "sha": sha, "url": f"{api}/commits/{sha}"},
    }


ROUTES = (
    Route(
        "GET",
        "/repos/{owner}/{repo}/git/matching-refs/{ref}",
        list_matching_refs,
        permission=("contents", "read"),
    ),
)
