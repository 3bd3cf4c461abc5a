"""Routes of the OIDC issuer: discovery and keys. Open to anybody, not part of the REST description."""

from typing import TYPE_CHECKING

from crcr.sim.exchange import Ask, Auth, Reply, Route
from crcr.sim.oidc import ISSUER_PATH

if TYPE_CHECKING:
    from crcr.sim.simulation import Simulation


async def discovery(sim: "Simulation", _ask: Ask) -> Reply:
    return Reply(200, sim.issuer.discovery())


async def jwks(sim: "Simulation", _ask: Ask) -> Reply:
    return Reply(200, sim.issuer.jwks())


ROUTES = (
    Route("GET", f"{ISSUER_PATH}/.well-known/openid-configuration", discovery, Auth.OPEN),
    Route("GET", f"{ISSUER_PATH}/.well-known/jwks", jwks, Auth.OPEN),
)
