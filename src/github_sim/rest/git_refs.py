"""The little of git's own protocol that `git ls-remote` needs: what refs a public repository has.

Smart HTTP, version 0: lines with their length in front. Nothing can be fetched.
"""

from typing import TYPE_CHECKING

from github_sim.rest.exchange import ApiError, Ask, Auth, Reply, Route
from github_sim.world.records import Repository

if TYPE_CHECKING:
    from github_sim.simulation import Simulation

SERVICE = "git-upload-pack"


async def info_refs(sim: "Simulation", ask: Ask) -> Reply:
    repository = sim.world.find(f"{ask.params['owner']}/{ask.params['repo'].removesuffix('.git')}")
    if repository is None or repository.private or ask.query.get("service") != SERVICE:
        raise ApiError(404, "Not Found")
    body = _line(f"# service={SERVICE}\n") + b"0000" + _advertised(repository) + b"0000"
    return Reply(200, raw=body, media=f"application/x-{SERVICE}-advertisement")


def _advertised(repository: Repository) -> bytes:
    symref = f"symref=HEAD:refs/heads/{repository.default_branch} agent=crcr-sim"
    refs = {f"refs/heads/{name}": sha for name, sha in sorted(repository.branches.items())}
    first = _line(f"{repository.head_sha} HEAD\0{symref}\n")
    return first + b"".join(_line(f"{sha} {name}\n") for name, sha in refs.items())


def _line(text: str) -> bytes:
    return f"{len(text.encode()) + 4:04x}{text}".encode()


ROUTES = (Route("GET", "/{owner}/{repo}/info/refs", info_refs, Auth.OPEN),)
