"""Keeps the relay within GitHub's rate limits.

Per installation, a sliding log of the last minute's points: 900 in any 60 s, a write costs 5 and a read 1, so at most 180
writes. (A refilling bucket would let twice that through around a quiet minute.) In addition the hourly limit as GitHub
counts it (`hour_budget`), and blocks that GitHub asked for, which double while they follow one another. For this
process, a cap on concurrent requests. Nothing here sleeps: `reserve` returns which limit holds a call back and for how
long, and the worker reschedules. The key `APP` is for calls with the App's own JWT. Of several workers each uses its
share (`share_among`).

The less urgent classes leave a part of the minute (`KEPT_POINTS`) and of the hour unused, so that a gate never waits
behind job checks; and after a limit they resume later. Comments are also counted against GitHub's limit on content that
notifies people, 80 a minute and 500 an hour. Check runs are not: they notify nobody, GitHub does not list them there, and
500 an hour would delay the gates of a busy upstream for a limit that may not exist. If GitHub does count them, it answers
with a limit, and that blocks.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from crcr.decide.github.requests_and_answers import Budget, Urgency
from crcr.errors import HeldBy, OutsideLimited
from crcr.github.http.errors import LONGEST_WAIT_S, header_number
from crcr.github.http.hour_budget import (
    GITHUB_LIMIT,
    RETURN_AFTER_S,
    HourCount,
    Spending,
    hour_wait_s,
    pace_after,
)

APP = 0
CONTENT_PER_MINUTE = 80
CONTENT_PER_HOUR = 500
_SAME_HOUR_S = 5.0
"""GitHub's servers may differ by a second in when an hour ends."""
KEPT_POINTS: Mapping[Urgency, int] = {
    Urgency.FIRST: 0,
    Urgency.CHECKS: 270,
    Urgency.DETAILS: 360,
}
"""Points of each minute that a class leaves to the more urgent ones."""
LEAST_WAIT_S: Mapping[Urgency, float] = {
    Urgency.FIRST: 0.5,
    Urgency.CHECKS: 2.0,
    Urgency.DETAILS: 5.0,
}
"""The shortest wait of a class that is held back."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Which limit holds a call back, and for how long."""

    by: HeldBy
    wait_s: float


@dataclass(slots=True)
class _Window:
    """The points spent in the last `span_s` seconds."""

    span_s: float
    log: deque[tuple[float, int]] = field(default_factory=deque)
    spent: int = 0

    def wait_s(self, cost: int, budget: int, now: float) -> float:
        while self.log and self.log[0][0] + self.span_s <= now:
            self.spent -= self.log.popleft()[1]
        # A cost above the budget waits for an empty window, not for ever.
        over = self.spent + cost - max(budget, cost)
        if not cost or over <= 0:
            return 0.0
        for at, cost_then in self.log:
            over -= cost_then
            if over <= 0:
                return at + self.span_s - now
        return 0.0

    def spend(self, cost: int, now: float) -> None:
        self.log.append((now, cost))
        self.spent += cost


@dataclass(slots=True)
class _Account:
    """One installation's use of its limits; times are seconds since the epoch, as in GitHub's headers."""

    points: _Window = field(default_factory=lambda: _Window(60.0))
    content_minute: _Window = field(default_factory=lambda: _Window(60.0))
    content_hour: _Window = field(default_factory=lambda: _Window(3600.0))
    blocked_until: float = 0.0
    blocked_by: HeldBy = HeldBy.SECONDARY
    strikes: int = 0
    count: HourCount | None = None
    """None before GitHub's first response: no limit is known yet."""
    spending: Spending = field(default_factory=Spending)

    def content_wait_s(self, now: float, workers: int) -> float:
        return max(
            self.content_minute.wait_s(1, CONTENT_PER_MINUTE // workers, now),
            self.content_hour.wait_s(1, CONTENT_PER_HOUR // workers, now),
        )

    def hour_wait_s(self, urgency: Urgency, now: float, workers: int) -> float:
        if self.count is None:
            return 0.0
        return hour_wait_s(self.count, self.spending, urgency, now, workers=workers)

    def blocked_s(self, urgency: Urgency, now: float) -> float:
        if self.blocked_until <= 0:
            return 0.0
        return self.blocked_until + RETURN_AFTER_S[urgency] - now

    def spend(self, cost: int, urgency: Urgency, now: float, workers: int) -> None:
        if not cost:
            return
        self.points.spend(cost, now)
        paced_until = self.spending.paced_until
        if self.count is not None and urgency is not Urgency.FIRST:
            paced_until = pace_after(self.count, self.spending, now, workers=workers)
        self.spending = Spending(self.spending.in_flight + 1, paced_until)

    def note_count(self, headers: Mapping[str, str], now: float) -> None:
        remaining = header_number(headers, "x-ratelimit-remaining")
        reset = header_number(headers, "x-ratelimit-reset")
        if remaining is None or reset is None:
            return
        limit = header_number(headers, "x-ratelimit-limit") or GITHUB_LIMIT
        previous, resets_at = self.count, min(float(reset), now + LONGEST_WAIT_S)
        if previous is not None:
            if resets_at < previous.resets_at - _SAME_HOUR_S:
                return
            if resets_at <= previous.resets_at + _SAME_HOUR_S:
                # Responses overtake each other: within one hour the lowest count is the newest.
                remaining, resets_at = min(remaining, previous.remaining), previous.resets_at
            elif previous.resets_at <= now and previous.remaining <= previous.floor(Urgency.CHECKS):
                # The classes that were held back in the last hour resume one after the other.
                self.blocked_until, self.blocked_by = max(self.blocked_until, previous.resets_at), HeldBy.HOUR
        self.count = HourCount(remaining, limit, resets_at)

    def spend_content(self, now: float) -> None:
        self.content_minute.spend(1, now)
        self.content_hour.spend(1, now)


class GitHubRateLimiter:
    def __init__(
        self, *, points_per_minute: int = 900, concurrent: int = 100, slot_wait_s: float = 5.0
    ) -> None:
        self._points = points_per_minute
        self._workers = 1
        self._slots = asyncio.Semaphore(concurrent)
        self._slot_wait_s = slot_wait_s
        # As many accounts as the App has installations.
        self._accounts: defaultdict[int, _Account] = defaultdict(_Account)

    def share_among(self, workers: int) -> None:
        """Use only this process's share of every limit."""
        self._workers = max(1, workers)

    def reserve(
        self,
        installation_id: int,
        cost: int,
        now: float,
        *,
        urgency: Urgency = Urgency.FIRST,
        content: bool = False,
    ) -> Hold | None:
        """Take `cost` points, or take nothing and return the limit that holds the call back the longest.

        `content` counts as created content. A cost of 0 only checks whether the installation is blocked or has used up
        its hour. A call with a cost is in flight until `release`.
        """
        account = self._accounts[installation_id]
        points = (self._points - KEPT_POINTS[urgency]) // self._workers
        hold = max(
            Hold(account.blocked_by, account.blocked_s(urgency, now)),
            Hold(HeldBy.HOUR, account.hour_wait_s(urgency, now, self._workers)),
            Hold(HeldBy.MINUTE, account.points.wait_s(cost, points, now)),
            Hold(HeldBy.CONTENT, account.content_wait_s(now, self._workers) if content else 0.0),
            key=lambda hold: hold.wait_s,
        )
        if hold.wait_s > 0:
            return Hold(hold.by, max(hold.wait_s, LEAST_WAIT_S[urgency]))
        account.spend(cost, urgency, now, self._workers)
        if content:
            account.spend_content(now)
        return None

    def release(self, installation_id: int, cost: int) -> None:
        """Record that a call has ended, with or without a response; GitHub's next response has its cost."""
        account = self._accounts[installation_id]
        if cost:
            account.spending = replace(account.spending, in_flight=account.spending.in_flight - 1)

    def observe(self, installation_id: int, headers: Mapping[str, str], now: float) -> None:
        """Record the count in a response that was not a limit."""
        account = self._accounts[installation_id]
        if now >= account.blocked_until:
            account.strikes = 0
        account.note_count(headers, now)

    def block(
        self,
        installation_id: int,
        wait_s: float,
        now: float,
        *,
        by: HeldBy = HeldBy.SECONDARY,
        headers: Mapping[str, str] | None = None,
    ) -> float:
        """Hold the installation after GitHub answered with a limit; return the seconds, which double with each block
        in a row.

        Requests that were under way when it began are limited too, and do not count as another.
        """
        account = self._accounts[installation_id]
        account.note_count(headers or {}, now)
        if now >= account.blocked_until:
            account.strikes += 1
            doubled = 2.0 ** min(account.strikes - 1, 10)
            # GitHub names the end of the hour; only when the limit continues after it, the wait doubles.
            wait_s = max(wait_s, doubled) if by is HeldBy.HOUR else wait_s * doubled
            wait_s = min(wait_s, LONGEST_WAIT_S)
            account.blocked_by = by
        account.blocked_until = max(account.blocked_until, now + wait_s)
        return account.blocked_until - now

    def budgets(self, now: float) -> list[Budget]:
        """Return the budget of every installation that a call was made for. For metrics only."""
        return [self._budget(account, now) for account in self._accounts.values()]

    def _budget(self, account: _Account, now: float) -> Budget:
        count = account.count
        current = count is not None and now < count.resets_at
        waits = {urgency: self._hour_or_block_s(account, urgency, now) for urgency in Urgency}
        return Budget(
            count.remaining if current and count else None,
            count.limit if count else None,
            now < account.blocked_until,
            resets_at=count.resets_at if current and count else None,
            held=tuple(urgency for urgency, wait_s in waits.items() if wait_s > 0),
        )

    def _hour_or_block_s(self, account: _Account, urgency: Urgency, now: float) -> float:
        return max(account.blocked_s(urgency, now), account.hour_wait_s(urgency, now, self._workers))

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Hold one of the concurrent requests; raise `OutsideLimited` when none is free in time."""
        if self._slots.locked():
            await self._wait_for_slot()
        else:
            await self._slots.acquire()
        try:
            yield
        finally:
            self._slots.release()

    async def _wait_for_slot(self) -> None:
        try:
            async with asyncio.timeout(self._slot_wait_s):
                await self._slots.acquire()
        except TimeoutError:
            raise OutsideLimited("Too many requests to GitHub are under way.", retry_after_s=1.0) from None
