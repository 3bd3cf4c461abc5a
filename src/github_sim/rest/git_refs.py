"""Routes that list a repository's refs: REST's `matching-refs`, and the ref advertisement that `git ls-remote` reads.

The advertisement is git's smart HTTP protocol, version 0. Objects cannot be fetched.
"""

from typing import TYPE_CHECKING

from github_sim.bodies.repositories import node_id
from github_sim.rest.exchange import ApiError, Ask, Auth, Reply, Route
from github_sim.world.records import Json, Repository

if TYPE_CHECKING:
    from github_sim.simulation import Simulation

GIT_SERVICE = "git-upload-pack"


async def list_matching_refs(sim: "Simulation", ask: Ask) -> Reply:
    """All refs with this prefix in one answer, sorted by name; an empty list when there is none."""
    prefix = f"refs/{ask.params['ref']}"
    refs = {f"refs/heads/{branch}": sha for branch, sha in ask.repository.branches.items()}
    names = sorted(name for name in refs if name.startswith(prefix))
    return Reply(200, [_ref_json(sim.base_url, ask.repository.full_name, name, refs[name]) for name in names])


def _ref_json(base: str, full_name: str, ref: str, sha: str) -> Json:
    api = f"{base}/repos/{full_name}/git"
    return {
        "ref": ref,
        "node_id": node_id(ref, 0),
        "url": f"{api}/{ref}",
        "object": {"type": "commit", "sha": sha, "url": f"{api}/commits/{sha}"},
    }


async def advertise_refs(sim: "Simulation", ask: Ask) -> Reply:
    repository = sim.world.find(f"{ask.params['owner']}/{ask.params['repo'].removesuffix('.git')}")
    if repository is None or repository.private or ask.query.get("service") != GIT_SERVICE:
        raise ApiError(404, "Not Found")
    body = _packet_line(f"# service={GIT_SERVICE}\n") + b"0000" + _ref_lines(repository) + b"0000"
    return Reply(200, raw=body, media=f"application/x-{GIT_SERVICE}-advertisement")


def _ref_lines(repository: Repository) -> bytes:
    symref = f"symref=HEAD:refs/heads/{repository.default_branch} agent=crcr-sim"
    refs = {f"refs/heads/{name}": sha for name, sha in sorted(repository.branches.items())}
    first = _packet_line(f"{repository.head_sha} HEAD\0{symref}\n")
    return first + b"".join(_packet_line(f"{sha} {name}\n") for name, sha in refs.items())


def _packet_line(text: str) -> bytes:
    """Git's pkt-line: the length in four hexadecimal digits, then the text."""
    return f"{len(text.encode()) + 4:04x}{text}".encode()


ROUTES = (
    Route(
        "GET",
        "/repos/{owner}/{repo}/git/matching-refs/{ref}",
        list_matching_refs,
        permission=("contents", "read"),
    ),
    Route("GET", "/{owner}/{repo}/info/refs", advertise_refs, Auth.OPEN),
)
