"""The OIDC issuer of GitHub Actions: keys, discovery, and tokens with the claims that GitHub signs.

All claim values are strings, as on GitHub. After a rotation the old key stays published until it is retired.
`hostile_token` makes tokens that a verifier must refuse; each is wrong in exactly one way.
"""

import base64
import enum
import hashlib
import hmac
import json
import uuid
from collections.abc import Callable
from datetime import datetime, timedelta

import jwt

from github_sim.oidc.signing import SigningKeys, public_pem, rsa_key
from github_sim.world.actions import WorkflowJob, WorkflowRun
from github_sim.world.records import Json, Repository
from github_sim.world.world import World

TOKEN_LIFE = timedelta(minutes=5)
ISSUER_PATH = "/_services/token"


class GitHubIssuer(SigningKeys):
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

    def claims(self, repository: Repository, run: WorkflowRun, job: WorkflowJob, audience: str) -> Json:
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


class HostileToken(enum.Enum):
    ALG_NONE = "no signature at all"
    HS256_PUBLIC_KEY = "HMAC with the public key as its secret"
    EXPIRED = "expired"
    NOT_YET_VALID = "not yet valid"
    OTHER_AUDIENCE = "made for somebody else"
    OTHER_ISSUER = "an unknown issuer"
    UNKNOWN_KID = "a key that the issuer never published"
    STRANGERS_KEY = "a published key id, signed by a stranger"
    NO_KID = "no key id"
    OVERSIZED = "one claim of 256 KB"
    TAMPERED = "claims changed after signing"
    NOT_JWT = "not a token at all"


def hostile_token(issuer: SigningKeys, kind: HostileToken, claims: Json, now: datetime) -> str:
    """Turn good claims into a token that is wrong in the given way."""
    if kind in _CLAIM_CHANGES:
        return issuer.sign({**claims, **_CLAIM_CHANGES[kind](now)})
    if kind is HostileToken.ALG_NONE:
        return jwt.encode(claims, "", algorithm="none", headers={"kid": issuer.kid})
    if kind is HostileToken.HS256_PUBLIC_KEY:
        return _hmac_token(issuer, claims)
    if kind in {HostileToken.UNKNOWN_KID, HostileToken.STRANGERS_KEY}:
        kid = issuer.kid if kind is HostileToken.STRANGERS_KEY else "never-published"
        return jwt.encode(claims, rsa_key("stranger"), algorithm="RS256", headers={"kid": kid})
    if kind is HostileToken.NO_KID:
        return jwt.encode(claims, rsa_key("stranger"), algorithm="RS256")
    if kind is HostileToken.TAMPERED:
        head, _, signature = issuer.sign(claims).split(".")
        return f"{head}.{_encoded({**claims, 'run_id': '1'})}.{signature}"
    return "not-a-token"


_CLAIM_CHANGES: dict[HostileToken, Callable[[datetime], Json]] = {
    HostileToken.EXPIRED: lambda now: {
        "iat": _seconds(now - timedelta(minutes=12)),
        "nbf": _seconds(now - timedelta(minutes=17)),
        "exp": _seconds(now - timedelta(minutes=7)),
    },
    HostileToken.NOT_YET_VALID: lambda now: {
        "nbf": _seconds(now + timedelta(minutes=5)),
        "exp": _seconds(now + timedelta(minutes=10)),
    },
    HostileToken.OTHER_AUDIENCE: lambda _: {"aud": "https://somebody-else.example"},
    HostileToken.OTHER_ISSUER: lambda _: {"iss": "https://issuer.example"},
    HostileToken.OVERSIZED: lambda _: {"padding": "x" * 256 * 1024},
}


def _seconds(at: datetime) -> int:
    return int(at.timestamp())


def _encoded(value: Json) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def _hmac_token(issuer: SigningKeys, claims: Json) -> str:
    """Made by hand, since the library refuses to use a public key as a secret."""
    signed = f"{_encoded({'alg': 'HS256', 'typ': 'JWT', 'kid': issuer.kid})}.{_encoded(claims)}"
    digest = hmac.new(public_pem(issuer.key_slot), signed.encode(), hashlib.sha256).digest()
    return f"{signed}.{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"
