"""Makes an `Identity` of the claims of each kind of issuer: one function per kind.

GitHub names the repository itself; for the others the operator's registration does. What a token proves about the run
differs: GitLab and CircleCI sign its id, Buildkite a build's number to which the run is bound.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType

from crcr.decide.model import RepoName
from crcr.decide.oidc.identity import Identity, IssuerKind
from crcr.decide.oidc.registration import CIRCLE, Registration
from crcr.receive.oidc.signed_claims import SignedClaims

# `owner/repo/.github/workflows/ci.yml@refs/heads/x`: a file name and a branch may both hold an `@`.
_WORKFLOW_REF = re.compile(r"(?P<repository>[^/]+/[^/]+)/(?P<path>.+?)@(?P<ref>refs/.+|[0-9a-f]{40})")
_PUBLIC = "public"


def read_github(signed: SignedClaims) -> Identity:
    """`sub` is not read: owners can change its form (docs.github.com, "customizing the token claims")."""
    workflow = _workflow_ref(signed.optional_text("workflow_ref"))
    return Identity(
        issuer=signed.issuer.issuer,
        kind=signed.issuer.kind,
        repository=signed.repository("repository"),
        repository_id=int(signed.digits("repository_id")),
        owner_id=int(signed.digits("repository_owner_id")),
        run_id=signed.digits("run_id"),
        run_attempt=int(signed.digits("run_attempt")),
        check_run_id=signed.optional_digits("check_run_id"),  # GitHub Enterprise Server does not sign it
        workflow_path=workflow["path"] if workflow else None,
        event_name=signed.event("event_name"),
        expires_at=signed.expires_at,
        ref=signed.optional_text("ref"),
        workflow_from=_repository(workflow["repository"]) if workflow else None,
        workflow_at=workflow["ref"] if workflow else None,
        private=signed.optional_text("repository_visibility") != _PUBLIC,  # absent: treated as private
    )


def read_registered(signed: SignedClaims, registration: Registration) -> Identity:
    """Every claim that is read is required: a token without it would prove less."""
    kind = signed.issuer.kind
    names = _RUN_CLAIMS.get(kind, signed.issuer.reads)
    values = {part: signed.id(claim) for part, claim in names.items()}
    return Identity(
        issuer=signed.issuer.issuer,
        kind=kind,
        repository=registration.repository,
        repository_id=None,
        owner_id=None,
        run_id=values.get("run_id"),
        run_attempt=int(signed.digits(names["run_attempt"])) if "run_attempt" in names else None,
        check_run_id=values.get("job_id"),
        workflow_path=values.get("workflow"),
        event_name=None,
        expires_at=signed.expires_at,
        build=values.get("build"),
    )


_RUN_CLAIMS: Mapping[IssuerKind, Mapping[str, str]] = MappingProxyType(
    {
        IssuerKind.BUILDKITE: {"build": "build_number", "job_id": "job_id"},
        IssuerKind.GITLAB: {"run_id": "pipeline_id", "job_id": "job_id"},
        IssuerKind.CIRCLECI: {"run_id": f"{CIRCLE}workflow-id", "job_id": f"{CIRCLE}job-id"},
    }
)


def _repository(name: str) -> RepoName | None:
    try:
        return RepoName(name)
    except ValueError:
        return None


def _workflow_ref(text: str | None) -> "re.Match[str] | None":
    """Return the parts of a workflow's reference.

    In one line the first `@refs/` ends the search; with line breaks each one would be tried to the end.
    """
    return _WORKFLOW_REF.fullmatch(text) if text and "\n" not in text else None
