"""Who answers a page's history questions: ClickHouse where it holds everything, the main store otherwise.

A page looks at the main store first: up to which change it has everything, and of which backends something is not
told yet. Then ClickHouse is asked, and only then the page's own snapshot is read: so an answer is never older than
the change from which live updates go on, and a backend with something untold is read from the main store. Nothing
that ClickHouse does or fails to do can fail a page.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar

import structlog
from sqlalchemy import text

from crcr.decide.model import RepoName
from crcr.decide.statistics.window import HistoryState, ResultKind, Window
from crcr.errors import OutsideFault
from crcr.record.clickhouse.feed_state import mark
from crcr.record.schema.clickhouse_feed import Mark
from crcr.record.store.database import Database, Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us
from crcr.record.views.relay.state import newest_change

log = structlog.get_logger(__name__)
T = TypeVar("T")

LEFT_ALONE = timedelta(seconds=30)
"""How long ClickHouse is not asked after it failed to answer."""
BEHIND_AFTER = timedelta(seconds=60)
_MOST_UNFED = 2_000
_UNFED = Statement(
    text(
        "SELECT downstream, count(*) AS number, min(due_at) AS due_at FROM (SELECT downstream, due_at FROM unfed"
        " WHERE upstream = :upstream ORDER BY seq LIMIT :most) oldest GROUP BY downstream"
    )
)

Rows = list[dict[str, Any]]


class HistorySource(Protocol):
    """The questions; each answer is rows as the main store's own sums would give them."""

    async def figures(
        self, upstream: str, kind: ResultKind, window: Window, downstream: str | None = None
    ) -> Mapping[str, Rows]: ...
    async def by_name(self, upstream: str, downstream: str, kind: ResultKind, window: Window) -> Rows: ...
    async def named(self, upstream: str, part: str, since: datetime, most: int) -> Rows: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What ClickHouse answered for one page; of `untold` backends, and where nothing stands, the main store is read."""

    state: HistoryState = HistoryState.OWN
    cursor: int | None = None
    untold: frozenset[str] = frozenset()
    figures: Mapping[str, Rows] | None = None
    by_name: Rows | None = None
    named: Rows | None = None

    def figures_of(self, downstream: str) -> Sequence[Row] | None:
        if self.figures is None or downstream in self.untold:
            return None
        return self.figures.get(downstream, [])

    def by_name_of(self, downstream: str) -> Sequence[Row] | None:
        return None if downstream in self.untold else self.by_name

    def named_of(self, downstream: str, kind: ResultKind) -> Sequence[Row] | None:
        if self.named is None or downstream in self.untold:
            return None
        return [row for row in self.named if (row["downstream"], row["kind"]) == (downstream, kind.value)]


NOTHING_TOLD = Told()


@dataclass(slots=True)
class History:
    """Asks ClickHouse for the pages of one process, and leaves it alone for a while when it fails."""

    database: Database
    source: HistorySource | None = None
    _alone_until: datetime | None = field(default=None, init=False)

    async def of_all(self, upstream: RepoName, kind: ResultKind, window: Window, now: datetime) -> Told:
        async def ask(source: HistorySource) -> Told:
            return Told(figures=await source.figures(upstream.key, kind, window))

        return await self._ask(upstream, now, ask)

    async def of_one(
        self, upstream: RepoName, downstream: RepoName, kind: ResultKind, window: Window, now: datetime
    ) -> Told:
        async def ask(source: HistorySource) -> Told:
            figures = await source.figures(upstream.key, kind, window, downstream.key)
            return Told(
                figures=figures, by_name=await source.by_name(upstream.key, downstream.key, kind, window)
            )

        return await self._ask(upstream, now, ask)

    async def of_names(
        self, upstream: RepoName, part: str, since: datetime, most: int, now: datetime
    ) -> Told:
        async def ask(source: HistorySource) -> Told:
            return Told(named=await source.named(upstream.key, part, since, most))

        return await self._ask(upstream, now, ask)

    async def _ask(
        self, upstream: RepoName, now: datetime, ask: Callable[[HistorySource], Awaitable[Told]]
    ) -> Told:
        if self.source is None:
            return NOTHING_TOLD
        vantage = await self.database.read(lambda tx: _vantage(tx, upstream.key, now))
        if vantage.state is not HistoryState.TOLD:
            return vantage
        alone = self._alone_until
        if alone is not None:
            if now < alone:
                return Told(state=HistoryState.UNREACHABLE)
            self._alone_until = now + LEFT_ALONE  # one tries, and the others do not wait for it
        try:
            told = await ask(self.source)
        except OutsideFault as fault:
            if alone is None:
                log.warning("history_unreachable", error=fault.detail)
            self._alone_until = now + LEFT_ALONE
            return Told(state=HistoryState.UNREACHABLE)
        if alone is not None:
            log.info("history_answers_again")
        self._alone_until = None
        return replace(told, state=vantage.state, cursor=vantage.cursor, untold=vantage.untold)


async def _vantage(tx: Tx, upstream: str, now: datetime) -> Told:
    """Whether ClickHouse can answer, from which change on live updates go on then, and for whom it cannot."""
    if await mark(tx, Mark.WHOLE) is None or await mark(tx, Mark.SINCE) is None:
        return NOTHING_TOLD
    rows = await tx.all(_UNFED, upstream=upstream, most=_MOST_UNFED)
    if is_behind(rows, now):
        return Told(state=HistoryState.BEHIND)
    untold = frozenset(row["downstream"] for row in rows)
    return Told(state=HistoryState.TOLD, cursor=await newest_change(tx), untold=untold)


def is_behind(rows: list[Row], now: datetime) -> bool:
    number, oldest = sum(row["number"] for row in rows), min((row["due_at"] for row in rows), default=None)
    return number >= _MOST_UNFED or (oldest is not None and now - from_us(oldest) > BEHIND_AFTER)
