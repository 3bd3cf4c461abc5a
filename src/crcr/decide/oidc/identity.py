"""The caller's identity, as proved by a verified token.

Only `receive.oidc.verifier` makes an `Identity`, after checking signature, issuer, audience and times; a function that
takes one needs no further proof. Unsigned values are None, never guessed.
"""

from datetime import datetime
from enum import StrEnum

from crcr.decide.model import RepoName
from crcr.decide.row_dataclass import row_dataclass


class IssuerKind(StrEnum):
    GITHUB = "github"
    BUILDKITE = "buildkite"
    GITLAB = "gitlab"
    CIRCLECI = "circleci"
    GENERIC = "generic"


@row_dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    issuer: str
    kind: IssuerKind
    repository: RepoName
    """Signed by GitHub; for other issuers the repository in the pipeline's registration."""
    repository_id: int | None
    """Signed by GitHub; None for other issuers."""
    owner_id: int | None
    run_id: str | None
    """Must equal the report's; None where the issuer does not sign it."""
    run_attempt: int | None
    check_run_id: str | None
    workflow_path: str | None
    """Path of the workflow file, from the signed `workflow_ref`; None where the issuer does not sign it."""
    event_name: str | None
    expires_at: datetime
    build: str | None = None
    """A signed build number to which the first report's `run_id` is bound, where no run id is signed."""
    ref: str | None = None
    """The run's branch or tag, as GitHub signs it: `refs/heads/main`."""
    workflow_from: RepoName | None = None
    """The repository of the workflow file, from the signed `workflow_ref`."""
    workflow_at: str | None = None
    """The ref of the workflow file, from the signed `workflow_ref`."""
    private: bool = False
    """Whether the token says that the repository is not public."""
