"""What GitHub is asked about and what it answers, as values that both sides of the port share."""

from dataclasses import dataclass
from datetime import datetime

from crcr.decide.model import RepoName


@dataclass(frozen=True, slots=True)
class Target:
    """Where a dispatch goes; with a known id the token is good for that repository only, whoever has its name."""

    repository: RepoName
    repository_id: int | None
    installation_id: int


@dataclass(frozen=True, slots=True)
class RepositoryFacts:
    repository_id: int
    owner_id: int
    full_name: str


@dataclass(frozen=True, slots=True)
class PullFacts:
    head_sha: str
    is_open: bool
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class FilePlace:
    repository: RepoName
    ref: str
    path: str


@dataclass(frozen=True, slots=True)
class FileText:
    text: str
    etag: str | None
