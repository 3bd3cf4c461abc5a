"""Who is calling, as proved by a verified token.

Only `receive.oidc.verifier` makes an `Identity`, after signature, issuer, audience and times were checked; a
function that takes one needs no further proof. Whatever was not signed is None here, never guessed.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from crcr.decide.model import RepoName


class IssuerKind(StrEnum):
    GITHUB = "github"
    BUILDKITE = "buildkite"
    GITLAB = "gitlab"
    CIRCLECI = "circleci"
    GENERIC = "generic"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    issuer: str
    kind: IssuerKind
    repository: RepoName
    """Signed by GitHub; for other issuers the one that an operator registered the pipeline for."""
    repository_id: int | None
    """Signed by GitHub; None where the operator's registration stands for it."""
    owner_id: int | None
    run_id: str | None
    """Must be the report's own; None where the issuer does not sign it."""
    run_attempt: int | None
    check_run_id: str | None
    workflow_path: str | None
    """Path of the workflow file, from the signed `workflow_ref`; None where the issuer does not sign it."""
    event_name: str | None
    expires_at: datetime
    build: str | None = None
    """A signed number to which the report's `run_id` is bound at first sight, where no run's id is signed."""
    ref: str | None = None
    """The branch or tag that the run is of, as GitHub signs it: `refs/heads/main`."""
    workflow_from: RepoName | None = None
    """The repository of the workflow file, from the signed `workflow_ref`."""
    workflow_at: str | None = None
    """The ref of the workflow file, from the signed `workflow_ref`."""
    private: bool = False
    """Whether the issuer says that the repository is not public."""
