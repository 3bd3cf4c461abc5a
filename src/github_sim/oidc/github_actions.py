"""The OIDC issuer of GitHub Actions: keys, discovery, and tokens with the claims that GitHub signs.

All claim values are strings, as on GitHub. Keys rotate: the old one stays published until it is retired.
`hostile.py` makes the tokens that must be refused.
"""

import uuid
from datetime import timedelta

from github_sim.oidc.signing import Signing
from github_sim.world.actions import Job, WorkflowRun
from github_sim.world.records import Json, Repository
from github_sim.world.world import World

TOKEN_LIFE = timedelta(minutes=5)
ISSUER_PATH = "/_services/token"


class Issuer(Signing):
    def __init__(self, world: World, base_url: str) -> None:
        super().__init__("oidc", "crcr-sim")
        self._world = world
        self.base_url = base_url
        self.signs_check_run_id = True

    @property
    def url(self) -> str:
        return f"{self.base_url}{ISSUER_PATH}"

    @property
    def jwks_url(self) -> str:
        return f"{self.url}/.well-known/jwks"

    def discovery(self) -> Json:
        return {
            "issuer": self.url,
            "jwks_uri": self.jwks_url,
            "subject_types_supported": ["public", "pairwise"],
            "response_types_supported": ["id_token"],
            "id_token_signing_alg_values_supported": ["RS256"],
            "scopes_supported": ["openid"],
            "claims_supported": ["sub", "aud", "exp", "iat", "iss", "jti", "nbf", *_RUN_CLAIMS],
        }

    def claims(self, repository: Repository, run: WorkflowRun, job: Job, audience: str) -> Json:
        return {
            **self._registered_claims(repository, run, audience),
            **self._run_claims(repository, run),
            **({"check_run_id": str(job.id)} if self.signs_check_run_id else {}),
        }

    def _registered_claims(self, repository: Repository, run: WorkflowRun, audience: str) -> Json:
        now = self._world.now()
        return {
            "iss": self.url,
            "aud": audience,
            "sub": f"repo:{repository.full_name}:ref:{run.ref}",
            "jti": str(uuid.UUID(int=self._world.rng.getrandbits(128), version=4)),
            "iat": int(now.timestamp()),
            "nbf": int((now - timedelta(minutes=5)).timestamp()),
            "exp": int((now + TOKEN_LIFE).timestamp()),
        }

    def _run_claims(self, repository: Repository, run: WorkflowRun) -> Json:
        workflow_ref = f"{repository.full_name}/{run.workflow.path}@{run.ref}"
        return {
            "repository": repository.full_name,
            "repository_id": str(repository.id),
            "repository_owner": repository.owner.login,
            "repository_owner_id": str(repository.owner.id),
            "repository_visibility": "private" if repository.private else "public",
            "run_id": str(run.id),
            "run_number": str(run.run_number),
            "run_attempt": str(run.attempt),
            "event_name": run.event,
            "workflow": run.workflow.name,
            "workflow_ref": workflow_ref,
            "workflow_sha": run.head_sha,
            "job_workflow_ref": workflow_ref,
            "job_workflow_sha": run.head_sha,
            "ref": run.ref,
            "ref_type": "tag" if run.ref.startswith("refs/tags/") else "branch",
            "ref_protected": "false" if run.ref.startswith("refs/tags/") else "true",
            "base_ref": "",
            "head_ref": "",
            "sha": run.head_sha,
            "actor": run.actor,
            "actor_id": str(self._world.account(run.actor).id),
            "runner_environment": "self-hosted",
        }


_RUN_CLAIMS = (
    "ref", "sha", "repository", "repository_id", "repository_owner", "repository_owner_id", "run_id",
    "run_number", "run_attempt", "actor", "actor_id", "workflow", "workflow_ref", "workflow_sha", "head_ref",
    "base_ref", "event_name", "ref_protected", "ref_type", "job_workflow_ref", "job_workflow_sha",
    "repository_visibility", "runner_environment", "check_run_id",
)  # fmt: skip
