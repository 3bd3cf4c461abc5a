"""A question to GitHub's Actions about one dispatch, and how long to wait before it is asked again."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from crcr.decide.model import RepoName

_SOONEST = timedelta(seconds=15)
_LATEST = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class KnownRun:
    run_id: int
    is_over: bool
    unchecked_attempts: tuple[int, ...]
    """Attempts with jobs that nobody has held against GitHub's view."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    upstream: RepoName
    delivery: str
    downstream: RepoName
    """Its present name, under which GitHub is asked."""
    dispatched_as: RepoName | None = None
    """The name that the dispatch is recorded under, if it is known to differ."""
    repository_id: int | None
    installation_id: int | None
    sent_at: datetime
    runs: tuple[KnownRun, ...]
    wants_list: bool
    """Other runs than the known ones may answer the delivery."""
    gates: bool = False
    """The gate waits for the answer."""

    @property
    def key(self) -> dict[str, str]:
        return {
            "upstream": self.upstream.key,
            "delivery": self.delivery,
            "downstream": (self.dispatched_as or self.downstream).key,
        }


def ask_again_after(waited: timedelta) -> timedelta:
    """Less and less often, the longer it takes."""
    return min(max(_SOONEST, waited / 6), _LATEST)
