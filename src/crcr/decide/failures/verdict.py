"""The values of a verdict: its kind, how sure it is, its evidence; and the thresholds of the rules.

`judge` computes verdicts; docs/verdicts.md explains the rules with examples.
"""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from crcr.decide.model import RepoName


class VerdictKind(StrEnum):
    """The likely cause of a failure, from recorded history."""

    NEW = "new"
    PRE_EXISTING = "pre-existing"
    FLAKY = "flaky"
    INFRASTRUCTURE = "infrastructure"
    MISSING = "missing"
    UNKNOWN = "unknown"


class Confidence(StrEnum):
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class EvidenceKind(StrEnum):
    BASE = "base"
    """A result of the base branch."""
    PULL = "pull"
    """The same failure on another pull request."""
    RERUN = "re-run"
    """Another result of the same job on the same commit."""
    BACKEND = "backend"
    """Other results of the backend at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    kind: EvidenceKind
    text: str
    sha: str | None = None
    number: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    kind: VerdictKind
    confidence: Confidence
    sentence: str
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobVerdict:
    verdict: Verdict
    by_fingerprint: tuple[tuple[str, VerdictKind, Confidence], ...] = ()
    """The verdicts of the job's fingerprints, for its failed tests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictPolicy:
    """The thresholds of the rules; docs/verdicts.md says what each is for."""

    window: timedelta = timedelta(days=14)
    """How far back history counts."""
    passes_for_new: int = 3
    """Passing results without the change, of the base or of pull requests, that make a failure new."""
    pulls_for_pre_existing: int = 3
    authors_for_pre_existing: int = 2
    flips_for_flaky: int = 2
    """Separate short failures of the base, or re-runs elsewhere that passed, that make a failure flaky."""
    fleet_jobs: int = 4
    fleet_heads: int = 3
    fleet_share: float = 0.8
    """A fleet is sick when this share of its results fails, of so many jobs on so many unrelated commits."""


def evidence_url(upstream: RepoName, evidence: Evidence) -> str:
    """Return the address of the page that shows the evidence; the upstream is named, since a relay may have several."""
    if evidence.number is not None:
        path = f"/crcr/pr/{evidence.number}"
    elif evidence.sha is not None and evidence.sha.isalnum():
        path = f"/crcr/commit/{evidence.sha}"
    else:
        path = "/crcr"
    return f"{path}?upstream={upstream}"
