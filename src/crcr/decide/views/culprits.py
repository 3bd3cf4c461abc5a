"""Culprits as pages and the JSON API show them.

Text that others wrote (`job`, titles of commits, paths in reasons) is unescaped here.
"""

from dataclasses import dataclass
from datetime import datetime

from crcr.decide.culprits.ranking import CulpritCandidate
from crcr.decide.model import RepoName

MOST_CANDIDATES = 50
"""Of one breakage, the likeliest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CulpritRange:
    good: str | None
    """The newest tested commit without the failure; None where none is recorded."""
    bad: str
    """The commit that has it; candidates are the commits after `good`, up to this one."""
    commits: int | None
    """How many these are; None without `good`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCulprits:
    """One breakage of a job on the base branch; a job that was broken twice has two."""

    backend: RepoName
    workflow: str
    job: str
    range: CulpritRange
    candidates: tuple[CulpritCandidate, ...]
    """The likeliest first."""
    bisection: int | None = None
    """The newest bisection of this breakage."""
    may_bisect: bool = False
    """Whether the backend's entry lets administrators begin one."""
    fingerprints: tuple[str, ...] = ()
    """Empty for a failure without details."""
    since: datetime
    """When it first failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CulpritQuery:
    upstream: RepoName
    backend: RepoName | None = None
    job: str | None = None
    """Its exact name."""
    fingerprint: str | None = None
    """Only breakages with this failure."""
    limit: int = 50
    """Of jobs."""
