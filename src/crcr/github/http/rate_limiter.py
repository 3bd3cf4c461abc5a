"""Keeps us within GitHub's limits, so that GitHub has no need to.

Per installation, a sliding log of the last minute's points: 900 in any 60 s, a write costs 5 and a read 1, so
at most 180 writes. A bucket that refills would let twice that through around a quiet minute. On top of it
stand the hour's budget as GitHub counts it (`hour.py`) and blocks that GitHub asked for, which double while
they follow one another. For this process, a cap on requests under way. Nothing here sleeps: `reserve` says which limit
holds a call back and for how long, and the worker reschedules. The key `APP` stands for calls signed by the App
itself. Of several workers each keeps to its share (`share_among`).

The less urgent classes leave a part of the minute (`KEPT_POINTS`) and of the hour untouched, so that a gate never
waits behind job checks; and after a limit they come back later.
Comments are counted a second time, 80 a minute and 500 an hour: GitHub's limit on content that people are notified
of. Check runs are not: nobody is notified of one, GitHub does not name them there, and 500 an hour would hold up
the gates of a busy upstream for a limit that may not exist. Should GitHub count them, it says so, and that blocks.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from crcr.decide.github.values import Budget, Urgency
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
"""Servers of GitHub may differ by a second in when an hour ends."""
KEPT_POINTS: Mapping[Urgency, int] = {
    Urgency.FIRST: 0,
    Urgency.CHECKS: 270,
    Urgency.DETAILS: 360,
}
"""Points of the minute that a class leaves to the more urgent ones."""
LEAST_WAIT_S: Mapping[Urgency, float] = {
    Urgency.FIRST: 0.5,
    Urgency.CHECKS: 2.0,
    Urgency.DETAILS: 5.0,
}
"""A queue that is held back is not looked at more often than this."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Which limit holds a call back, and for how long."""

    by: HeldBy
    wait_s: float


@dataclass(slots=True)
class _Window:
    """What was spent in the last `span_s` seconds."""

    span_s: float
    log: deque[tuple[float, int]] = field(default_factory=deque)
    spent: int = 0

    def wait_s(self, cost: int, budget: int, now: float) -> float:
        while self.log and self.log[0][0] + self.span_s <= now:
            self.spent -= self.log.popleft()[1]
        # What costs more than there is waits for an empty window, not for ever.
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
    """One installation's standing; times are seconds since the epoch, as GitHub's headers give them."""

    points: _Window = field(default_factory=lambda: _Window(60.0))
    content_minute: _Window = field(default_factory=lambda: _Window(60.0))
    content_hour: _Window = field(default_factory=lambda: _Window(3600.0))
    blocked_until: float = 0.0
    blocked_by: HeldBy = HeldBy.SECONDARY
    strikes: int = 0
    count: HourCount | None = None
    """None before GitHub's first answer: nothing is known to be short."""
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
        known, resets_at = self.count, min(float(reset), now + LONGEST_WAIT_S)
        if known is not None:
            if resets_at < known.resets_at - _SAME_HOUR_S:
                return
            if resets_at <= known.resets_at + _SAME_HOUR_S:
                # Answers overtake each other: within one hour the lowest count is the newest.
                remaining, resets_at = min(remaining, known.remaining), known.resets_at
            elif known.resets_at <= now and known.remaining <= known.floor(Urgency.CHECKS):
                # The classes that were held back in the last hour come back one after the other.
                self.blocked_until, self.blocked_by = max(self.blocked_until, known.resets_at), HeldBy.HOUR
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
        """Keep to our part of every minute: so many processes ask in the App's name."""
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
        """Take `cost` points, or take nothing and return what holds the call back the longest.

        `content` counts as content created. A cost of 0 only asks whether the installation is blocked or has used up
        its hour. What was taken with a cost is under way until `release`.
        """
        account = self._accounts[installation_id]
        points = (self._points - KEPT_POINTS[urgency]) // self._workers
        hold = max(
            Hold(account.blocked_by, account.blocked_s(urgency, now)),
            Hold(HeldBy.HOUR, account.hour_wait_s(urgency, now, self._workers)),
            Hold(HeldBy.MINUTE, account.points.wait_s(cost, points, now)),
            Hold(HeldBy.CONTENT, account.content_wait_s(now, self._workers) if content else 0.0),
            key=lambda each: each.wait_s,
        )
        if hold.wait_s > 0:
            return Hold(hold.by, max(hold.wait_s, LEAST_WAIT_S[urgency]))
        account.spend(cost, urgency, now, self._workers)
        if content:
            account.spend_content(now)
        return None

    def release(self, installation_id: int, cost: int) -> None:
        """Note that a call is over, answered or not: GitHub's next answer says what it cost of the hour."""
        account = self._accounts[installation_id]
        if cost:
            account.spending = replace(account.spending, in_flight=account.spending.in_flight - 1)

    def observe(self, installation_id: int, headers: Mapping[str, str], now: float) -> None:
        """Learn from an answer that was not a limit."""
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
            # GitHub says when the hour ends; only an end that did not come is waited for longer and longer.
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
        waits = {each: self._hour_or_block_s(account, each, now) for each in Urgency}
        return Budget(
            count.remaining if current and count else None,
            count.limit if count else None,
            now < account.blocked_until,
            resets_at=count.resets_at if current and count else None,
            held=tuple(each for each, wait_s in waits.items() if wait_s > 0),
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
