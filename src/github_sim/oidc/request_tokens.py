"""How a running job gets its OIDC tokens: a request token of its own, good while it runs and only if it may mint.

A simulated runner grants one when a job with `id-token: write` starts and takes it back when the job ends.
"""

import secrets
from collections import Counter
from typing import TYPE_CHECKING

from github_sim.oidc.github_actions import ISSUER_PATH
from github_sim.rest.exchange import ApiError, Ask, Auth, Reply, Route
from github_sim.world.actions import Job, WorkflowRun

if TYPE_CHECKING:
    from github_sim.simulation import Simulation


class RequestTokens:
    def __init__(self) -> None:
        self._granted: dict[str, tuple[WorkflowRun, Job]] = {}
        self.minted: Counter[int] = Counter()
        """How many tokens each job got, by its id."""

    def grant(self, run: WorkflowRun, job: Job) -> str:
        token = secrets.token_urlsafe(32)
        self._granted[token] = (run, job)
        return token

    def take_back(self, token: str) -> None:
        self._granted.pop(token, None)

    def holder(self, bearer: str, run: str, job: str) -> tuple[WorkflowRun, Job] | None:
        """Whose token it is, if the job that asks is the one it was granted to and still runs."""
        found = self._granted.get(bearer)
        if found is None or (str(found[0].id), str(found[1].id)) != (run, job):
            return None
        return found if found[1].status == "in_progress" else None


async def request_token(sim: "Simulation", ask: Ask) -> Reply:
    scheme, _, bearer = ask.headers.get("authorization", "").partition(" ")
    known = bearer if scheme.lower() == "bearer" else ""
    found = sim.request_tokens.holder(known, ask.query.get("run", ""), ask.query.get("job", ""))
    if found is None:
        raise ApiError(401, "Unauthorized")
    run, job = found
    repository = sim.world.repositories[run.repository_id]
    audience = ask.query.get("audience") or f"{sim.base_url}/{repository.owner.login}"
    sim.request_tokens.minted[job.id] += 1
    return Reply(200, {"value": sim.ci.token(run, job, audience), "count": sim.request_tokens.minted[job.id]})


ROUTES = (Route("GET", f"{ISSUER_PATH}/request", request_token, Auth.OPEN),)
