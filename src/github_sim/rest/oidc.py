"""Routes of the OIDC issuers: discovery and keys of GitHub's and of other CIs', and the tokens of GitHub's jobs.

They are not part of GitHub's REST description and need no authentication, except that a job gets its OIDC token only
for its request token. The runner issues the request token when a job with `id-token: write` starts, and revokes it
when the job ends.
"""

import secrets
from collections import Counter
from typing import TYPE_CHECKING

from github_sim.oidc.github_actions import ISSUER_PATH
from github_sim.oidc.other_cis import (
    BuildkiteIssuer,
    CircleCiIssuer,
    GenericIssuer,
    GitLabIssuer,
    OtherIssuer,
)
from github_sim.rest.exchange import ApiError, ApiRequest, Auth, Reply, Route
from github_sim.world.actions import WorkflowJob, WorkflowRun

if TYPE_CHECKING:
    from github_sim.simulation import Simulation


class RequestTokens:
    """The request tokens of running jobs (`ACTIONS_ID_TOKEN_REQUEST_TOKEN`)."""

    def __init__(self) -> None:
        self._jobs: dict[str, tuple[WorkflowRun, WorkflowJob]] = {}
        self.minted: Counter[int] = Counter()
        """Number of OIDC tokens issued to each job, by job id."""

    def issue(self, run: WorkflowRun, job: WorkflowJob) -> str:
        token = secrets.token_urlsafe(32)
        self._jobs[token] = (run, job)
        return token

    def revoke(self, token: str) -> None:
        self._jobs.pop(token, None)

    def find_job(self, bearer: str, run_id: str, job_id: str) -> tuple[WorkflowRun, WorkflowJob] | None:
        """The job that the token was issued to, if it is the requesting job and still runs."""
        entry = self._jobs.get(bearer)
        if entry is None or (str(entry[0].id), str(entry[1].id)) != (run_id, job_id):
            return None
        return entry if entry[1].status == "in_progress" else None


async def request_token(sim: "Simulation", request: ApiRequest) -> Reply:
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    token = bearer if scheme.lower() == "bearer" else ""
    entry = sim.request_tokens.find_job(token, request.query.get("run", ""), request.query.get("job", ""))
    if entry is None:
        raise ApiError(401, "Unauthorized")
    run, job = entry
    repository = sim.world.repositories[run.repository_id]
    audience = request.query.get("audience") or f"{sim.base_url}/{repository.owner.login}"
    sim.request_tokens.minted[job.id] += 1
    return Reply(200, {"value": sim.ci.token(run, job, audience), "count": sim.request_tokens.minted[job.id]})


async def discovery(sim: "Simulation", _request: ApiRequest) -> Reply:
    return Reply(200, sim.issuer.discovery())


async def jwks(sim: "Simulation", _request: ApiRequest) -> Reply:
    return Reply(200, sim.issuer.jwks())


def _issuer_routes(issuer: type[OtherIssuer]) -> tuple[Route, ...]:
    async def other_discovery(sim: "Simulation", _request: ApiRequest) -> Reply:
        return Reply(200, sim.others[issuer.name].discovery())

    async def other_jwks(sim: "Simulation", _request: ApiRequest) -> Reply:
        return Reply(200, sim.others[issuer.name].jwks())

    return (
        Route("GET", f"{issuer.path}/.well-known/openid-configuration", other_discovery, Auth.OPEN),
        Route("GET", f"{issuer.path}{issuer.keys_path}", other_jwks, Auth.OPEN),
    )


ROUTES = (
    Route("GET", f"{ISSUER_PATH}/.well-known/openid-configuration", discovery, Auth.OPEN),
    Route("GET", f"{ISSUER_PATH}/.well-known/jwks", jwks, Auth.OPEN),
    Route("GET", f"{ISSUER_PATH}/request", request_token, Auth.OPEN),
    *_issuer_routes(BuildkiteIssuer),
    *_issuer_routes(GitLabIssuer),
    *_issuer_routes(CircleCiIssuer),
    *_issuer_routes(GenericIssuer),
)
