"""The newest results of a backend as news: what turned red, what recovered, what went on failing.

Only results of the base branch make a change: a pull request that fails after one that passed is another change, not another
state of the backend.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from crcr.decide.model import RepoName


class ResultNews(StrEnum):
    TURNED_RED = "turned red"
    STILL_FAILING = "still failing"
    RECOVERED = "recovered"
    FAILED = "failed"
    PASSED = "passed"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventResult:
    """The jobs of a backend for one event of the upstream, or of one nightly run, as far as they count."""

    key: str
    """Stable: the delivery, and for a nightly run its id too."""
    event: str
    number: int | None
    head_sha: str | None
    delivery: str
    at: datetime
    """When the last job ended."""
    passed: int
    failed: int
    other: int
    running: int
    first_failed: str | None
    """The name of a failed job, the first by name."""
    title: str | None = None
    """Of the pull request."""
    ref: str | None = None
    on_base: bool = False
    news: ResultNews | None = None

    @property
    def is_decided(self) -> bool:
        """Whether nothing that is still to come can make it worse."""
        return self.failed > 0 or (self.running == 0 and self.passed + self.other > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendFeed:
    """A backend's decided results, newest first; `silent_since` is when it should have reported and did not."""

    upstream: RepoName
    backend: RepoName
    results: tuple[EventResult, ...]
    silent_since: datetime | None = None


def find_news(results: Sequence[EventResult]) -> tuple[EventResult, ...]:
    """Return the decided results, newest first, each with what is new about it."""
    told: list[EventResult] = []
    was_red: bool | None = None
    for result in sorted(results, key=lambda result: (result.at, result.key)):
        if result.is_decided:
            told.append(replace(result, news=_judge(result, was_red=was_red)))
            if result.on_base and result.failed + result.passed:
                was_red = result.failed > 0
    return tuple(reversed(told))


def _judge(result: EventResult, *, was_red: bool | None) -> ResultNews:
    if result.failed:
        if not result.on_base or was_red is None:
            return ResultNews.FAILED
        return ResultNews.STILL_FAILING if was_red else ResultNews.TURNED_RED
    if result.passed:
        return ResultNews.RECOVERED if result.on_base and was_red else ResultNews.PASSED
    return ResultNews.INCONCLUSIVE
