"""Requests to GitHub and its answers, as values that callers and the client share.

`Urgency` belongs to the reason for a call, not to its endpoint: the same endpoint publishes a gate that blocks a merge
and a job check that somebody may read later.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum, StrEnum

from crcr.decide.model import Conclusion, RepoName


class Urgency(IntEnum):
    """Classes of calls in the order in which they go out; the lowest number first."""

    FIRST = 0
    """A merge, a backend or a person waits: gates, dispatches, file questions, merge groups, answers to commands."""
    CHECKS = 1
    """The checks of backends."""
    DETAILS = 2
    """Job checks, look-ups that no gate waits for, inspections."""


@dataclass(frozen=True, slots=True)
class Target:
    """A repository with the App's installation; with a known id the token is valid for that repository only, even if renamed."""

    repository: RepoName
    repository_id: int | None
    installation_id: int


@dataclass(frozen=True, slots=True)
class RepositoryFacts:
    repository_id: int
    owner_id: int
    full_name: str
    default_branch: str | None = None


@dataclass(frozen=True, slots=True)
class PullFacts:
    head_sha: str
    base_ref: str
    is_open: bool
    updated_at: datetime
    merged: bool = False


@dataclass(frozen=True, slots=True)
class FileLocation:
    repository: RepoName
    ref: str
    path: str


@dataclass(frozen=True, slots=True)
class FileText:
    text: str
    etag: str | None


@dataclass(frozen=True, slots=True)
class FileVersion:
    """A file at one commit, with git's hash of its content."""

    text: str
    sha: str


@dataclass(frozen=True, slots=True)
class ListedCheck:
    """A check run in GitHub's list; `external_id` is our own id of it."""

    check_run_id: int
    external_id: str | None
    completed: bool = False
    annotations: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedFilesQuery:
    """Which files a delivery changes, against its base and against the default branch."""

    number: int
    head_sha: str
    base_ref: str | None
    default_branch: str | None
    """None when no webhook has contained it."""

    @property
    def branches(self) -> tuple[str | None, ...]:
        """The branches to compare its head with: its base, and the likely target of a retarget."""
        return tuple(dict.fromkeys((self.base_ref, self.default_branch)))


@dataclass(frozen=True, slots=True)
class ChangedFiles:
    paths: tuple[str, ...]
    complete: bool
    """False when there are more than GitHub lists."""
    merge_base: str | None = None
    """The base branch's commit that the head was built on, where the comparison with it was read."""
    commits: tuple[str, ...] = ()
    """The head's own commits, from the same comparison."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The commits and files between two commits."""

    commits: tuple[str, ...]
    files: ChangedFiles
    complete: bool
    """False when there are more commits than were listed."""
    merge_base: str | None = None
    """The newest commit that both have."""


class Role(IntEnum):
    """A person's role in a repository; each includes the ones before it."""

    NONE = 0
    READ = 1
    TRIAGE = 2
    WRITE = 3
    MAINTAIN = 4
    ADMIN = 5


@dataclass(frozen=True, slots=True)
class PostedComment:
    comment_id: int
    body: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionsRun:
    """A workflow run on GitHub; `status` is queued, in_progress, completed or another word of GitHub's."""

    run_id: int
    attempt: int
    status: str
    conclusion: Conclusion | None
    display_title: str
    workflow_name: str
    workflow_path: str
    event: str
    created_at: datetime

    @property
    def is_over(self) -> bool:
        return self.status == "completed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionsJob:
    """A job of a workflow run on GitHub. Its OIDC token signs its `check_run_id`."""

    job_id: int
    check_run_id: str | None
    name: str
    attempt: int
    status: str
    conclusion: Conclusion | None
    started_at: datetime | None
    completed_at: datetime | None

    @property
    def is_over(self) -> bool:
        return self.status == "completed"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedDelivery:
    """One attempt of a webhook in the App's delivery log."""

    log_id: int
    guid: str
    delivered_at: datetime
    redelivery: bool
    ok: bool
    """Whether it was answered with a 2xx."""
    event: str
    action: str | None
    repository_id: int | None


@dataclass(frozen=True, slots=True)
class DeliveryLogPage:
    entries: tuple[LoggedDelivery, ...]
    next_cursor: str | None


class CallKind(StrEnum):
    """The subject of a call to GitHub, for limits and metrics."""

    ACTIONS = "actions"
    APP = "app"
    CHECKS = "checks"
    COMMENTS = "comments"
    COMMITS = "commits"
    CONTENTS = "contents"
    DELIVERY_LOG = "delivery_log"
    DISPATCH = "dispatch"
    INSTALLATION = "installation"
    PERMISSION = "permission"
    PULLS = "pulls"
    REPOSITORY = "repository"
    TOKEN = "token"  # noqa: S105  the minting of one
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Budget:
    """The remaining requests of one installation, or of the App itself, in this hour, as GitHub last answered."""

    remaining: int | None
    """None when GitHub has not answered since the hour began."""
    limit: int | None
    blocked: bool
    """Whether GitHub asked us to pause."""
    resets_at: float | None = None
    """When the hour ends, in seconds since the epoch; None as for `remaining`."""
    held: tuple[Urgency, ...] = ()
    """The classes of calls that are held back now."""
