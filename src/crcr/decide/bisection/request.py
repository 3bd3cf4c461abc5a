"""A request for a bisection, and the event that tests one of its commits."""

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from crcr.decide.allowlist.entries import AllowlistEntry, BisectionMode
from crcr.decide.culprits.commit_range import BreakageRange
from crcr.decide.model import Level, RepoName

DEFAULT_RUNS = 12
MOST_RUNS = 100
DEFAULT_TIME = timedelta(hours=24)
LONGEST_TIME = timedelta(days=7)
MOST_COMMITS = 500
"""Of a range."""
AUTOMATIC = "the relay"
"""Who begins a bisection that the relay begins by itself; a person's name has no blank, and the service's user may be `crcr`."""
_SENDER = "crcr"
_PREFIX = re.compile(r"[0-9a-f]{7,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BisectionRequest:
    downstream: RepoName
    job: str
    who: str
    workflow: str | None = None
    """Needed only where two workflows have a job of this name."""
    good: str | None = None
    bad: str | None = None
    """SHAs, or at least their first 7 digits; without them the recorded breakage tells."""
    most_runs: int = DEFAULT_RUNS
    time: timedelta = DEFAULT_TIME

    @property
    def is_automatic(self) -> bool:
        return self.who == AUTOMATIC


@dataclass(frozen=True, slots=True)
class RefusedRequest:
    detail: str
    hint: str | None = None


def refuse_request(request: BisectionRequest) -> RefusedRequest | None:
    """Why a request cannot be understood."""
    if not 3 <= request.most_runs <= MOST_RUNS:
        return RefusedRequest(f"a bisection has 3 to {MOST_RUNS:,} runs")
    if not timedelta(hours=1) <= request.time <= LONGEST_TIME:
        return RefusedRequest(f"a bisection takes 1 hour to {LONGEST_TIME.days} days")
    for name, sha in (("good", request.good), ("bad", request.bad)):
        if sha is not None and not _PREFIX.fullmatch(sha):
            return RefusedRequest(
                f"{name}: {sha[:80]!r} is not a commit", "give at least 7 digits of its SHA"
            )
    return None


def refuse_backend(entry: AllowlistEntry, *, suspended: bool, automatic: bool) -> RefusedRequest | None:
    """Why no commit may be tested on this backend."""
    if entry.level < Level.L2:
        return RefusedRequest(
            f"{entry.name} is at L1, whose results are not recorded", "bisection needs L2 or above"
        )
    if entry.bisect is BisectionMode.OFF or (automatic and entry.bisect is not BisectionMode.AUTO):
        mode = "auto" if automatic else "manual"
        return RefusedRequest(
            f"bisection is off for {entry.name}", f"write `bisect: {mode}` into its allowlist entry"
        )
    if "push" not in entry.events:
        return RefusedRequest(
            f"{entry.name} takes no pushes, and a bisection sends its commits as pushes",
            "add push to the events of its allowlist entry",
        )
    if suspended:
        return RefusedRequest(f"{entry.name} is suspended", "`crcr resume OWNER/REPO` ends it")
    return None


_SETTLED = timedelta(hours=1)


def may_begin_automatically(breakage: BreakageRange, now: datetime) -> bool:
    """Whether the relay bisects a breakage by itself: it lasts, its good end is known, and there is something to search."""
    if breakage.good is None or not 1 < breakage.bad.position - breakage.good.position <= MOST_COMMITS:
        return False
    return breakage.failing > 1 or now - breakage.first_bad.at >= _SETTLED


@dataclass(frozen=True, slots=True)
class RangeCommit:
    sha: str
    number: int | None
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamRepository:
    name: RepoName
    repository_id: int | None
    default_branch: str
    github_url: str


def bisection_ref(bisection_id: int) -> str:
    """A branch of its own: it joins no other branch's concurrency group, and nobody takes its result for the newest."""
    return f"refs/heads/crcr-bisect/{bisection_id}"


def bisection_push(
    upstream: UpstreamRepository, bisection_id: int, commit: RangeCommit, before: RangeCommit
) -> dict[str, Any]:
    """The `push` that has a downstream test the commit; `before` is the good end of the range."""
    address = f"{upstream.github_url.rstrip('/')}/{upstream.name}"
    return {
        "ref": bisection_ref(bisection_id),
        "before": before.sha,
        "after": commit.sha,
        "created": False,
        "deleted": False,
        "forced": True,
        "base_ref": None,
        "compare": f"{address}/compare/{before.sha[:12]}...{commit.sha[:12]}",
        "commits": [],
        "head_commit": {
            "id": commit.sha,
            "message": commit.title,
            "url": f"{address}/commit/{commit.sha}",
        },
        "repository": {
            "id": upstream.repository_id,
            "name": upstream.name.name,
            "full_name": upstream.name.full_name,
            "owner": {"login": upstream.name.owner, "name": upstream.name.owner},
            "html_url": address,
            "clone_url": f"{address}.git",
            "default_branch": upstream.default_branch,
        },
        "pusher": {"name": _SENDER},
        "sender": {"login": _SENDER, "type": "Bot"},
    }
