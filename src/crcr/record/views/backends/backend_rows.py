"""Rows of the summary: a backend's figures, its dispatches and its problems; and the states of all backends."""

from collections import defaultdict
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from sqlalchemy import text

from crcr.decide.allowlist.entries import AllowlistEntry, Visibility
from crcr.decide.model import JobState, Level, RepoName
from crcr.decide.statistics.figures import ANSWER_WITHIN, SILENT_WITHIN, Figures, LastResult, is_silent
from crcr.decide.statistics.window import ResultKind, Window
from crcr.decide.views.overview import BackendSummary
from crcr.record.clickhouse.history import NO_ANSWER, HistoryAnswer
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us, from_us_or_none, to_us
from crcr.record.views.backends.figures import (
    PART_SUMS,
    Running,
    figures_of,
    ingested_running,
    read_extremes,
    read_few,
    read_figures,
    read_last,
    read_running,
)
from crcr.record.views.relay.state import newest_change
from crcr.record.views.visibility import VisibleBackends

_LAST_SENT = Statement(
    text(
        "SELECT sent_at FROM dispatches WHERE upstream = :upstream AND downstream = :downstream AND event = :event"
        " AND sent_at IS NOT NULL AND test = 0 ORDER BY created_at DESC, delivery DESC LIMIT 1"
    )
)
_LAST_REPORT = Statement(
    text("SELECT max(in_progress_at) AS at FROM jobs WHERE upstream = :upstream AND downstream = :downstream")
)
# Nobody need answer the end of a pull request, the deletion of a branch, or a commit that a newer one took the place
# of, whose run it may have cancelled.
AWAITED = (
    "d.event IN ('pull_request', 'push', 'merge_group') AND d.sent_at <= :before AND d.test = 0"
    " AND coalesce(d.action, '') <> 'closed' AND d.superseded_at IS NULL"
    " AND coalesce(d.head_sha, '') <> '0000000000000000000000000000000000000000'"
)
"""Whether a dispatch `d` should have been answered by now."""
# More than a few are not counted.
_UNANSWERED = Statement(
    text(
        "SELECT count(*) AS number FROM (SELECT 1 FROM dispatches d WHERE d.upstream = :upstream"  # noqa: S608  our own text
        f" AND d.downstream = :downstream AND d.created_at > :since AND {AWAITED} LIMIT 10) AS few"
    )
)
_REPOSITORIES = Statement(
    text("SELECT downstream, suspended_at, alarm FROM repositories WHERE upstream = :upstream")
)
_PARKED = Statement(
    text(
        "SELECT target, count(*) AS number FROM effects WHERE upstream = :upstream AND state = 'parked'"
        " GROUP BY target"
    )
)
_UNSENT = Statement(
    text(
        "SELECT downstream, count(*) AS number FROM dispatches WHERE upstream = :upstream"
        " AND state <> 'sent' AND state <> 'cancelled' AND state <> 'left_out' AND state <> 'parked' AND test = 0"
        " GROUP BY downstream"
    )
)


@dataclass(frozen=True, slots=True)
class BackendStates:
    """What is known of all backends of an upstream beside their jobs."""

    suspended: frozenset[str]
    alarms: dict[str, str]
    parked: dict[str, int]
    waiting: dict[str, int]
    running: Running


async def read_standing(tx: Tx, upstream: RepoName) -> BackendStates:
    rows = await tx.all(_REPOSITORIES, upstream=upstream.key)
    parked = await tx.all(_PARKED, upstream=upstream.key)
    waiting = await tx.all(_UNSENT, upstream=upstream.key)
    return BackendStates(
        frozenset(row["downstream"] for row in rows if row["suspended_at"] is not None),
        {row["downstream"]: row["alarm"] for row in rows if row["alarm"]},
        {row["target"]: row["number"] for row in parked},
        {row["downstream"]: row["number"] for row in waiting},
        await read_running(tx, upstream.key),
    )


@dataclass(frozen=True, slots=True)
class BackendReader:
    """Reads the backends of one upstream over one window and one kind of event, inside one transaction."""

    tx: Tx
    upstream: RepoName
    visible: VisibleBackends
    window: Window
    kind: ResultKind
    now: datetime
    told: HistoryAnswer = NO_ANSWER
    """What ClickHouse knows of the window, where it is used."""

    async def cursor(self) -> int:
        """From which change on live updates go on: what was told may be as old as when it was asked for."""
        return await newest_change(self.tx) if self.told.cursor is None else self.told.cursor

    async def summary(
        self, entry: AllowlistEntry, standing: BackendStates, *, parts: bool = False
    ) -> BackendSummary:
        key = entry.name.key
        if key not in self.visible.public:
            return by_name_only(entry)
        figures, silent = await self.figures(key, standing, parts=parts), await self.silent(entry)
        return replace(
            line_of(entry, figures, standing, silent=silent), last_sent_at=await self._last_sent(key)
        )

    async def figures(self, key: str, standing: BackendStates, *, parts: bool = False) -> Figures:
        """A backend's numbers; `parts` for a view that shows the times of the window's parts too."""
        found = await self._counted(key)
        asked = (self.tx, self.upstream.key, key, self.kind, self.window)
        found = await read_few(*asked, figures=found, parts=parts)
        running = standing.running.of(key, self.kind)
        if self.kind is ResultKind.INGESTED:
            running = await ingested_running(self.tx, self.upstream.key, key, self.window, self.now)
        last = await read_last(self.tx, self.upstream.key, key, self.kind)
        return replace(found, running=running, last_result=last)

    async def _counted(self, key: str) -> Figures:
        asked = (self.tx, self.upstream.key, key, self.kind, self.window)
        told = self.told.figures_of(key)
        if told is None:
            return await read_figures(*asked)
        return figures_of(told, self.window, await read_extremes(*asked))

    async def silent(self, entry: AllowlistEntry) -> bool:
        where = {"upstream": self.upstream.key, "downstream": entry.name.key}
        last = await self.tx.one(_LAST_REPORT, **where)
        reported = last["at"] if last else None
        since = max(reported or 0, to_us(self.now - SILENT_WITHIN))
        row = await self.tx.one(_UNANSWERED, since=since, before=to_us(self.now - ANSWER_WITHIN), **where)
        unanswered = row["number"] if row else 0
        return is_silent(entry.level, ever_reported=reported is not None, unanswered=unanswered)

    async def _last_sent(self, key: str) -> datetime | None:
        where = {"upstream": self.upstream.key, "downstream": key}
        rows = [await self.tx.one(_LAST_SENT, event=event, **where) for event in self.kind.events]
        return from_us_or_none(max((row["sent_at"] for row in rows if row), default=None))


def line_of(
    entry: AllowlistEntry, figures: Figures, standing: BackendStates, *, silent: bool
) -> BackendSummary:
    """A backend's line with all but when something was sent to it last."""
    key = entry.name.key
    return BackendSummary(
        name=entry.name,
        level=entry.level,
        device=entry.device,
        oncalls=entry.oncalls,
        hardware=entry.hardware,
        name_only=False,
        figures=figures if entry.level >= Level.L2 else None,
        sent=figures.sent,
        waiting=standing.waiting.get(key, 0),
        parked=standing.parked.get(key, 0),
        suspended=key in standing.suspended,
        silent=silent,
        alarm=standing.alarms.get(key),
        probe=bool(entry.expect),
        hidden=entry.visibility is not Visibility.PUBLIC,
    )


def by_name_only(entry: AllowlistEntry) -> BackendSummary:
    return BackendSummary(
        name=entry.name,
        level=entry.level,
        device=None,
        oncalls=(),
        hardware=None,
        name_only=True,
        figures=None,
    )


# All backends of an upstream in a few statements, to count, filter and sort thousands of them.
#
# A page reads its own rows in full afterwards (`BackendReader.summary`). Each statement jumps along an index from one
# backend that has rows to the next, so its cost follows the backends with something to tell, not the whole allowlist.

OWN_KINDS = (ResultKind.PULLS, ResultKind.PUSH, ResultKind.NIGHTLY)
"""What reached us through our own callbacks."""


def _names_in(table: str, where: str = "upstream = :upstream") -> str:
    """A common table expression `known` with the backends that have rows in a table, and a NULL at its end."""
    return (
        f"WITH RECURSIVE known(downstream) AS (SELECT min(downstream) FROM {table} WHERE {where} AND downstream > ''"  # noqa: S608  our own names
        f" UNION ALL SELECT (SELECT min(downstream) FROM {table} WHERE {where} AND downstream > known.downstream)"
        " FROM known WHERE known.downstream IS NOT NULL)"
    )


def _sums(table: str, at: str, part: str, group: str) -> Statement:
    return Statement(
        text(
            f"{_names_in(table)} SELECT known.downstream, {part} AS part, {PART_SUMS} FROM known CROSS JOIN {table} s"  # noqa: S608  our own names
            " WHERE s.upstream = :upstream AND s.downstream = known.downstream AND s.kind = :kind"
            f" AND s.{at} >= :since AND s.{at} < :until GROUP BY {group}"
        )
    )


_WHOLE_BY_HOURS = _sums("hours", "hour_at", "0", "known.downstream")
_WHOLE_BY_DAYS = _sums("days", "day_at", "0", "known.downstream")
_PARTS_BY_HOURS = _sums("hours", "hour_at", "(s.hour_at - :since) / :width", "1, 2")
_PARTS_BY_DAYS = _sums("days", "day_at", "(s.day_at - :since) / :width", "1, 2")
_UNANSWERED_OF_ALL = Statement(
    text(
        f"{_names_in('dispatches')} SELECT found.downstream, found.reported_at, (SELECT count(*) FROM (SELECT 1"  # noqa: S608  our own names
        " FROM dispatches d WHERE d.upstream = :upstream AND d.downstream = found.downstream"
        " AND d.created_at > CASE WHEN found.reported_at > :since THEN found.reported_at ELSE :since END"
        f" AND {AWAITED} LIMIT 10) AS few) AS unanswered"
        " FROM (SELECT known.downstream, (SELECT max(j.in_progress_at) FROM jobs j WHERE j.upstream = :upstream"
        " AND j.downstream = known.downstream) AS reported_at FROM known WHERE known.downstream IS NOT NULL) AS found"
    )
)
_EVENTS = " UNION ALL ".join(f"SELECT '{event}' AS event" for kind in OWN_KINDS for event in kind.events)
_LAST_ENDED = Statement(
    text(
        f"{_names_in('jobs')} SELECT known.downstream, e.event, (SELECT j.completed_at FROM jobs j"  # noqa: S608  our own names
        " WHERE j.upstream = :upstream AND j.downstream = known.downstream AND j.event = e.event"
        " AND j.ended_as IN ('success', 'failure', 'timed_out', 'other') ORDER BY j.completed_at DESC LIMIT 1) AS at"
        f" FROM known CROSS JOIN ({_EVENTS}) AS e WHERE known.downstream IS NOT NULL"
    )
)
_LAST_INGESTED = Statement(
    text(
        f"{_names_in('ingested')} SELECT known.downstream, 'ingested' AS event, (SELECT i.completed_at FROM ingested i"  # noqa: S608  our own names
        " WHERE i.upstream = :upstream AND i.downstream = known.downstream"
        " AND i.ended_as IN ('success', 'failure', 'timed_out', 'other') ORDER BY i.completed_at DESC LIMIT 1) AS at"
        " FROM known WHERE known.downstream IS NOT NULL"
    )
)
_RUNS = "upstream = :upstream AND state = 'in_progress'"
_INGESTED_BEGUN = Statement(
    text(
        f"{_names_in('ingested', _RUNS)} SELECT downstream FROM known WHERE downstream IS NOT NULL"  # noqa: S608  our own names
    )
)


@dataclass(frozen=True, slots=True)
class Overview:
    """Facts of all backends over one window and kind. A backend without rows is in none of the mappings."""

    figures: dict[str, Figures]
    """Sums over the whole window as a single part."""
    running: dict[str, int]
    silences: dict[str, tuple[bool, int]] = field(default_factory=dict)
    """Whether it ever reported, and how many dispatches it has not answered since."""
    ended_at: dict[tuple[str, str], datetime] = field(default_factory=dict)
    """When the newest result of a backend and an event ended."""
    empty: Figures = field(default_factory=lambda: Figures(parts=()))
    """Of a backend without rows."""

    def figures_of(self, key: str, kind: ResultKind) -> Figures:
        """A backend's figures; of its last result only the time is known."""
        at = self.last_at(key, kind)
        return replace(
            self.figures.get(key, self.empty),
            running=self.running.get(key, 0),
            last_result=LastResult(JobState.COMPLETED, None, "", at) if at else None,
        )

    def silent(self, entry: AllowlistEntry) -> bool:
        ever_reported, unanswered = self.silences.get(entry.name.key, (False, 0))
        return is_silent(entry.level, ever_reported=ever_reported, unanswered=unanswered)

    def last_at(self, key: str, *kinds: ResultKind) -> datetime | None:
        found = (self.ended_at.get((key, event)) for kind in kinds for event in kind.events)
        return max((at for at in found if at is not None), default=None)


async def read_overview(reader: BackendReader, standing: BackendStates) -> Overview:
    return Overview(
        await _figures(reader),
        await _running(reader, standing),
        await _silences(reader),
        await _ended_at(reader),
    )


async def _ended_at(reader: BackendReader) -> dict[tuple[str, str], datetime]:
    rows = await reader.tx.all(_LAST_ENDED, upstream=reader.upstream.key)
    if reader.kind is ResultKind.INGESTED:
        rows = [*rows, *await reader.tx.all(_LAST_INGESTED, upstream=reader.upstream.key)]
    return {(row["downstream"], row["event"]): from_us(row["at"]) for row in rows if row["at"] is not None}


async def _silences(reader: BackendReader) -> dict[str, tuple[bool, int]]:
    since, before = reader.now - SILENT_WITHIN, reader.now - ANSWER_WITHIN
    times = {"since": to_us(since), "before": to_us(before)}
    rows = await reader.tx.all(_UNANSWERED_OF_ALL, upstream=reader.upstream.key, **times)
    return {row["downstream"]: (row["reported_at"] is not None, row["unanswered"]) for row in rows}


async def read_all_figures(reader: BackendReader, standing: BackendStates) -> Overview:
    """The same facts, with the window's parts in the figures."""
    width = reader.window.width // timedelta(microseconds=1)
    asked = _PARTS_BY_DAYS if reader.window.whole_days else _PARTS_BY_HOURS
    by_backend: defaultdict[str, list[Row]] = defaultdict(list)
    for row in await reader.tx.all(asked, width=width, **_asked(reader)):
        by_backend[row["downstream"]].append(row)
    figures = {key: figures_of(rows, reader.window) for key, rows in by_backend.items()}
    return Overview(
        _with_told(reader, figures, reader.window),
        await _running(reader, standing),
        await _silences(reader),
        await _ended_at(reader),
        empty=figures_of((), reader.window),
    )


def line(
    reader: BackendReader, entry: AllowlistEntry, standing: BackendStates, overview: Overview
) -> BackendSummary:
    """A backend's line as far as it is needed to count and order it."""
    if entry.name.key not in reader.visible.public:
        return by_name_only(entry)
    figures = overview.figures_of(entry.name.key, reader.kind)
    return line_of(entry, figures, standing, silent=overview.silent(entry))


async def _figures(reader: BackendReader) -> dict[str, Figures]:
    asked = _WHOLE_BY_DAYS if reader.window.whole_days else _WHOLE_BY_HOURS
    whole = replace(reader.window, parts=1)
    rows = await reader.tx.all(asked, **_asked(reader))
    found = {row["downstream"]: figures_of((row,), whole) for row in rows}
    return _with_told(reader, found, reader.window)


def _with_told(reader: BackendReader, found: dict[str, Figures], window: Window) -> dict[str, Figures]:
    """The figures with those of ClickHouse in the place of the main store's, where it is used."""
    if reader.told.figures is None:
        return found
    told = {
        key: figures_of(rows, window)
        for key, rows in reader.told.figures.items()
        if key not in reader.told.unfed
    }
    return {**{key: figures for key, figures in found.items() if key in reader.told.unfed}, **told}


async def _running(reader: BackendReader, standing: BackendStates) -> dict[str, int]:
    if reader.kind is not ResultKind.INGESTED:
        found: defaultdict[str, int] = defaultdict(int)
        for (key, event), number in standing.running.by_event.items():
            found[key] += number if event in reader.kind.events else 0
        return found
    rows = await reader.tx.all(_INGESTED_BEGUN, upstream=reader.upstream.key)
    where = (reader.tx, reader.upstream.key)
    return {
        row["downstream"]: await ingested_running(*where, row["downstream"], reader.window, reader.now)
        for row in rows
    }


def _asked(reader: BackendReader) -> dict[str, str | int]:
    times = {"since": to_us(reader.window.since), "until": to_us(reader.window.until)}
    return {"upstream": reader.upstream.key, "kind": reader.kind.value, **times}
