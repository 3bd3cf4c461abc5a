"""Sliding-window rate limits in this process's memory: for a relay without Redis.

Exact: the time of every counted request is kept until it leaves the window, so no window of any position ever holds
more than its limit. A refused request is not counted. Memory is bounded by limit x subjects; with that many live
subjects, new ones are refused rather than old ones dropped.
"""

from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from crcr.errors import LimiterUnavailable, RateLimited
from crcr.ports import Clock

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MAX_SUBJECTS = 10_000


@dataclass(frozen=True, slots=True)
class Rule:
    limit: int
    window_s: float

    def __post_init__(self) -> None:
        if self.limit < 1 or self.window_s <= 0:
            raise ValueError("a limit needs at least one request and some time")

    @property
    def window_us(self) -> int:
        # Whole microseconds: with floats, a request at exactly the promised time could still be refused.
        return round(self.window_s * 1_000_000)


def limit_exceeded(scope: str, rule: Rule, wait_us: int) -> RateLimited:
    """The error for a full window, the same for every limiter."""
    return RateLimited(
        f"more than {rule.limit:,} in {rule.window_s:g} s ({scope})",
        retry_after_s=wait_us / 1_000_000,
        hint="wait for Retry-After and send the same request again; nothing was lost",
    )


class MemoryLimits:
    """Implements `ports.RequestLimiter`. No method awaits anything, so each is atomic on the event loop."""

    def __init__(self, rules: Mapping[str, Rule], clock: Clock, *, max_subjects: int = _MAX_SUBJECTS) -> None:
        self._clock = clock
        self._scopes = {scope: _Scope(scope, rule, max_subjects) for scope, rule in rules.items()}

    async def take(self, scope: str, subject: str) -> None:
        self._scopes[scope].take(subject, self._now_us())

    async def check(self, scope: str, subject: str) -> None:
        self._scopes[scope].check(subject, self._now_us())

    def _now_us(self) -> int:
        return (self._clock.now() - _EPOCH) // _MICROSECOND


class _Scope:
    def __init__(self, name: str, rule: Rule, max_subjects: int) -> None:
        self._name = name
        self._rule = rule
        self._window_us = rule.window_us
        self._max_subjects = max_subjects
        # Ordered by the last request, so that the empty windows come first.
        self._taken: OrderedDict[str, deque[int]] = OrderedDict()

    def take(self, subject: str, now_us: int) -> None:
        self._drop_empty(now_us)
        self.check(subject, now_us)
        if subject not in self._taken and len(self._taken) >= self._max_subjects:
            raise LimiterUnavailable(f"too many callers at once ({self._name})")
        self._taken.setdefault(subject, deque()).append(now_us)
        self._taken.move_to_end(subject)

    def check(self, subject: str, now_us: int) -> None:
        taken = self._taken.get(subject)
        if taken is None:
            return
        while taken and taken[0] + self._window_us <= now_us:
            taken.popleft()
        if len(taken) >= self._rule.limit:
            raise limit_exceeded(self._name, self._rule, taken[0] + self._window_us - now_us)

    def _drop_empty(self, now_us: int) -> None:
        while self._taken:
            subject, taken = next(iter(self._taken.items()))
            if taken and taken[-1] + self._window_us > now_us:
                return
            del self._taken[subject]
