"""Keeps us within GitHub's limits, so that GitHub has no need to.

Per installation, a sliding log of the last minute's points: 900 in any 60 s, a write costs 5 and a read 1, so
at most 180 writes. A bucket that refills would let twice that through around a quiet minute. On top of it
stand the hour's budget as GitHub counts it (`x-ratelimit-*`) and blocks that GitHub asked for, which double while
they follow one another. For this process, a cap on requests under way. Nothing here sleeps: `reserve` says how long to
wait, and the worker reschedules. The key `APP` stands for calls signed by the App itself. Of several workers each
keeps to its share (`share_among`).

What is less urgent leaves a part of the minute untouched (`keep`), so that a gate never waits behind job checks.
Comments are counted a second time, 80 a minute and 500 an hour: GitHub's limit on content that people are notified
of. Check runs are not: nobody is notified of one, GitHub does not name them there, and 500 an hour would hold up
the gates of a busy upstream for a limit that may not exist. Should GitHub count them, it says so, and that blocks.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from crcr.decide.outside import Budget
from crcr.errors import OutsideLimited
from crcr.github.faults import LONGEST_WAIT_S, header_number

APP = 0
CONTENT_PER_MINUTE = 80
CONTENT_PER_HOUR = 500


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
    strikes: int = 0
    remaining: int | None = None
    limit: int | None = None
    resets_at: float = 0.0

    def content_wait_s(self, now: float, workers: int) -> float:
        return max(
            self.content_minute.wait_s(1, CONTENT_PER_MINUTE // workers, now),
            self.content_hour.wait_s(1, CONTENT_PER_HOUR // workers, now),
        )

    def hour_wait_s(self, now: float) -> float:
        if self.remaining is None or self.remaining > 0:
            return 0.0
        return self.resets_at - now

    def spend(self, cost: int, now: float) -> None:
        if not cost:
            return
        self.points.spend(cost, now)
        if self.remaining is not None:
            self.remaining -= 1

    def spend_content(self, now: float) -> None:
        self.content_minute.spend(1, now)
        self.content_hour.spend(1, now)


class Governor:
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
        self, installation_id: int, cost: int, now: float, *, keep: int = 0, content: bool = False
    ) -> float:
        """Take `cost` points and return 0, or take nothing and return the seconds to wait.

        At least `keep` points of the minute stay for others; `content` counts as content created. A cost of 0 only
        asks whether the installation is blocked or has used up its hour.
        """
        account = self._accounts[installation_id]
        wait_s = max(
            account.blocked_until - now,
            account.hour_wait_s(now),
            account.points.wait_s(cost, (self._points - keep) // self._workers, now),
            account.content_wait_s(now, self._workers) if content else 0.0,
        )
        if wait_s > 0:
            return wait_s
        account.spend(cost, now)
        if content:
            account.spend_content(now)
        return 0.0

    def refund(self, installation_id: int) -> None:
        """A read was answered 304, which GitHub does not count against the hour."""
        account = self._accounts[installation_id]
        if account.remaining is not None:
            account.remaining += 1

    def observe(self, installation_id: int, headers: Mapping[str, str], now: float) -> None:
        """Learn from an answer that was not a limit."""
        account = self._accounts[installation_id]
        if now >= account.blocked_until:
            account.strikes = 0
        remaining = header_number(headers, "x-ratelimit-remaining")
        reset = header_number(headers, "x-ratelimit-reset")
        if remaining is None or reset is None or reset < account.resets_at:
            return
        # Answers overtake each other: within one hour the lowest count is the newest.
        if reset == account.resets_at and account.remaining is not None:
            remaining = min(remaining, account.remaining)
        account.remaining, account.limit = remaining, header_number(headers, "x-ratelimit-limit")
        account.resets_at = min(float(reset), now + LONGEST_WAIT_S)

    def block(self, installation_id: int, wait_s: float, now: float) -> float:
        """Hold the installation after a limit; return the seconds, which double with each block in a row.

        Requests that were under way when it began are limited too, and do not count as another.
        """
        account = self._accounts[installation_id]
        if now >= account.blocked_until:
            account.strikes += 1
            wait_s = min(wait_s * 2 ** min(account.strikes - 1, 10), LONGEST_WAIT_S)
        account.blocked_until = max(account.blocked_until, now + wait_s)
        return account.blocked_until - now

    def budgets(self, now: float) -> list[Budget]:
        """How every installation that was asked for stands; for who watches, not for who decides."""
        return [
            Budget(
                account.remaining if now < account.resets_at else None,
                account.limit,
                now < account.blocked_until,
            )
            for account in self._accounts.values()
        ]

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
