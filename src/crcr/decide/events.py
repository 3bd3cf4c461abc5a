"""The closed set of webhook events that the relay knows; everything else is `Unwanted` with a reason.

These are the facts that decisions need, nothing more: the raw body stays beside them for the dispatch.
"""

from dataclasses import dataclass
from datetime import datetime

from crcr.decide.model import RepoName


@dataclass(frozen=True, slots=True)
class PullRequest:
    upstream: RepoName
    repository_id: int
    action: str
    number: int
    head_sha: str
    before: str | None
    """The head before a `synchronize`; None for other actions."""
    base_ref: str
    updated_at: datetime
    is_open: bool
    merged: bool
    draft: bool
    labels: tuple[str, ...]
    title: str
    author: str
    author_association: str
    installation_id: int | None


@dataclass(frozen=True, slots=True)
class Push:
    upstream: RepoName
    repository_id: int
    ref: str
    before: str
    after: str
    deleted: bool
    changed_paths: frozenset[str]
    """Paths named in the payload's commits (GitHub lists at most 2,048 commits)."""
    installation_id: int | None


@dataclass(frozen=True, slots=True)
class InstalledRepository:
    repository_id: int
    name: RepoName


@dataclass(frozen=True, slots=True)
class Installation:
    """`installation` (created, deleted, suspend, unsuspend, new_permissions_accepted)."""

    action: str
    installation_id: int
    account: str
    repositories: tuple[InstalledRepository, ...]


@dataclass(frozen=True, slots=True)
class InstallationRepositories:
    action: str
    installation_id: int
    account: str
    added: tuple[InstalledRepository, ...]
    removed: tuple[InstalledRepository, ...]


@dataclass(frozen=True, slots=True)
class RepositoryMoved:
    """`repository` renamed or transferred: the same id under a new name."""

    action: str
    repository_id: int
    old_name: RepoName | None
    new_name: RepoName
    installation_id: int | None


@dataclass(frozen=True, slots=True)
class Ping:
    zen: str


@dataclass(frozen=True, slots=True)
class Unwanted:
    """Authentic, understood, and of no interest."""

    reason: str


Event = PullRequest | Push | Installation | InstallationRepositories | RepositoryMoved | Ping | Unwanted
