"""Routes of the OIDC issuers, GitHub's and other CIs': discovery and keys.

Open to anybody, not part of the REST description.
"""

from typing import TYPE_CHECKING

from github_sim.oidc.github_actions import ISSUER_PATH
from github_sim.oidc.other_cis import (
    BuildkiteIssuer,
    CircleCiIssuer,
    GenericIssuer,
    GitLabIssuer,
    OtherIssuer,
)
from github_sim.rest.exchange import Ask, Auth, Reply, Route

if TYPE_CHECKING:
    from github_sim.simulation import Simulation


async def discovery(sim: "Simulation", _ask: Ask) -> Reply:
    return Reply(200, sim.issuer.discovery())


async def jwks(sim: "Simulation", _ask: Ask) -> Reply:
    return Reply(200, sim.issuer.jwks())


def _routes_of(issuer: type[OtherIssuer]) -> tuple[Route, ...]:
    async def other_discovery(sim: "Simulation", _ask: Ask) -> Reply:
        return Reply(200, sim.others[issuer.name].discovery())

    async def other_jwks(sim: "Simulation", _ask: Ask) -> Reply:
        return Reply(200, sim.others[issuer.name].jwks())

    return (
        Route("GET", f"{issuer.path}/.well-known/openid-configuration", other_discovery, Auth.OPEN),
        Route("GET", f"{issuer.path}{issuer.keys_path}", other_jwks, Auth.OPEN),
    )


ROUTES = (
    Route("GET", f"{ISSUER_PATH}/.well-known/openid-configuration", discovery, Auth.OPEN),
    Route("GET", f"{ISSUER_PATH}/.well-known/jwks", jwks, Auth.OPEN),
    *_routes_of(BuildkiteIssuer),
    *_routes_of(GitLabIssuer),
    *_routes_of(CircleCiIssuer),
    *_routes_of(GenericIssuer),
)
