"""Reads one backend: its figures, whether it is silent, and its line in the overview; and the states of all backends."""

from dataclasses import dataclass, field, replace
from datetime import datetime

from sqlalchemy import text

from crcr.decide.allowlist.entries import AllowlistEntry, Visibility
from crcr.decide.levels.standings import Demotion, LevelPolicy
from crcr.decide.model import UNCOUNTED_EVENTS, Level, RepoName
from crcr.decide.statistics.figures import ANSWER_WITHIN, SILENT_WITHIN, Figures, is_silent
from crcr.decide.statistics.window import ResultKind, Window
from crcr.decide.views.missing_results import BackendReporting
from crcr.decide.views.overview import BackendSummary
from crcr.record.clickhouse.history import NO_ANSWER, HistoryAnswer
from crcr.record.levels.demotions import read_demotions
from crcr.record.store.database import Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us, from_us_or_none, to_us
from crcr.record.views.backends.figures import (
    FigureScope,
    Running,
    count_ingested_running,
    make_figures,
    read_exact_durations,
    read_extremes,
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
IS_UPSTREAM_EVENT = " AND ".join(f"event <> '{event}'" for event in UNCOUNTED_EVENTS)
"""Whether a job is no test, no run of a bisection and no pair: these say nothing about how a backend answers the upstream's events."""
_LAST_REPORT = Statement(
    text(
        "SELECT in_progress_at AS at FROM jobs WHERE upstream = :upstream AND downstream = :downstream"  # noqa: S608  our own text
        f" AND {IS_UPSTREAM_EVENT} ORDER BY in_progress_at DESC LIMIT 1"
    )
)
# No answer is expected to the end of a pull request, to the deletion of a branch, or to a superseded commit, whose run the
# newer one may have cancelled.
AWAITED = (
    "d.event IN ('pull_request', 'push', 'merge_group') AND d.sent_at <= :before AND d.test = 0"
    " AND coalesce(d.action, '') <> 'closed' AND d.superseded_at IS NULL"
    " AND coalesce(d.head_sha, '') <> '0000000000000000000000000000000000000000'"
    " AND coalesce(d.reason, '') <> 'shadow'"
)
"""Whether a dispatch `d` should have been answered by now; what shadow mode did not send, nobody can answer."""
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
_COUNT_UNSENT = (
    "SELECT downstream, count(*) AS number FROM dispatches WHERE upstream = :upstream{condition}"
    " AND state <> 'sent' AND state <> 'cancelled' AND state <> 'left_out' AND state <> 'parked' AND test = 0"
    " GROUP BY downstream"
)
_UNSENT = Statement(text(_COUNT_UNSENT.format(condition="")))
_UNSENT_OF_BACKEND = Statement(text(_COUNT_UNSENT.format(condition=" AND downstream = :downstream")))


@dataclass(frozen=True, slots=True)
class BackendStates:
    """Facts of all backends of an upstream beside their jobs."""

    suspended: dict[str, datetime]
    """Since when."""
    alarms: dict[str, str]
    parked: dict[str, int]
    waiting: dict[str, int]
    running: Running
    demotions: dict[str, Demotion] = field(default_factory=dict)


async def read_backend_states(
    tx: Tx, upstream: RepoName, downstream: RepoName | None = None
) -> BackendStates:
    """Read the states of all backends; with `downstream`, only that one's jobs and dispatches are counted."""
    rows = await tx.all(_REPOSITORIES, upstream=upstream.key)
    parked = await tx.all(_PARKED, upstream=upstream.key)
    if downstream is None:
        waiting = await tx.all(_UNSENT, upstream=upstream.key)
    else:
        waiting = await tx.all(_UNSENT_OF_BACKEND, upstream=upstream.key, downstream=downstream.key)
    return BackendStates(
        {row["downstream"]: from_us(row["suspended_at"]) for row in rows if row["suspended_at"] is not None},
        {row["downstream"]: row["alarm"] for row in rows if row["alarm"]},
        {row["target"]: row["number"] for row in parked},
        {row["downstream"]: row["number"] for row in waiting},
        await read_running(tx, upstream.key, downstream.key if downstream else None),
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
    history: HistoryAnswer = NO_ANSWER
    """ClickHouse's figures for the window, where it is used."""
    levels: LevelPolicy = field(default_factory=LevelPolicy)

    async def read_states(self, downstream: RepoName | None = None) -> BackendStates:
        """The states of all backends with their demotions; with `downstream`, only that one's jobs are counted."""
        states = await read_backend_states(self.tx, self.upstream, downstream)
        entries = self.visible.public.values()
        return replace(
            states, demotions=await read_demotions(self.tx, self.upstream, entries, self.levels, self.now)
        )

    async def cursor(self) -> int:
        """The change after which live updates continue: ClickHouse's answer may be older than the snapshot."""
        return await newest_change(self.tx) if self.history.cursor is None else self.history.cursor

    async def summary(
        self,
        entry: AllowlistEntry,
        states: BackendStates,
        *,
        parts: bool = False,
        counted: Figures | None = None,
        silent: bool | None = None,
        never_reported: bool = False,
    ) -> BackendSummary:
        """A backend's row; `counted` and those after it are given where they were read for all backends at once."""
        key = entry.name.key
        if key not in self.visible.public:
            return make_name_only_summary(entry)
        figures = await self.figures(key, states, parts=parts, counted=counted)
        if silent is None:
            reporting = await read_reporting(self.tx, self.upstream, entry, self.now)
            silent = reporting.silent
            known = reporting.last_at or figures.last_result or figures.running
            never_reported = entry.level >= Level.L2 and not known
        return replace(
            make_summary(entry, figures, states, silent=silent),
            never_reported=never_reported,
            last_sent_at=await self._read_last_sent(key),
        )

    @property
    def has_parts_of_all(self) -> bool:
        """Whether the parts of all backends, read by one statement, are what `figures` reads for each of them.

        Of ClickHouse's figures and of other relays' results the shortest and longest durations are read separately.
        """
        return self.history.figures is None and self.kind is not ResultKind.INGESTED

    async def figures(
        self, key: str, states: BackendStates, *, parts: bool = False, counted: Figures | None = None
    ) -> Figures:
        """A backend's numbers; `parts` for a view that shows the times of the window's parts too.

        `counted` are its sums where they have been read already.
        """
        counted = await self._read_counted(key) if counted is None else counted
        counted = await read_exact_durations(self.tx, self._scope(key), counted, parts=parts)
        running = states.running.count(key, self.kind)
        if self.kind is ResultKind.INGESTED:
            running = await count_ingested_running(self.tx, self.upstream.key, key, self.window, self.now)
        last = await read_last(self.tx, self.upstream.key, key, self.kind)
        return counted.with_latest(running=running, last_result=last)

    async def _read_counted(self, key: str) -> Figures:
        history_rows = self.history.backend_figures(key)
        if history_rows is None:
            return await read_figures(self.tx, self._scope(key))
        return make_figures(history_rows, self.window, await read_extremes(self.tx, self._scope(key)))

    def _scope(self, key: str) -> FigureScope:
        return FigureScope(self.upstream.key, key, self.kind, self.window)

    async def is_silent(self, entry: AllowlistEntry) -> bool:
        return (await read_reporting(self.tx, self.upstream, entry, self.now)).silent

    async def _read_last_sent(self, key: str) -> datetime | None:
        backend = {"upstream": self.upstream.key, "downstream": key}
        rows = [await self.tx.one(_LAST_SENT, event=event, **backend) for event in self.kind.events]
        return from_us_or_none(max((row["sent_at"] for row in rows if row), default=None))


async def read_reporting(
    tx: Tx, upstream: RepoName, entry: AllowlistEntry, now: datetime
) -> BackendReporting:
    """When the backend last reported, and whether it is silent since."""
    key = {"upstream": upstream.key, "downstream": entry.name.key}
    last = await tx.one(_LAST_REPORT, **key)
    reported = last["at"] if last else None
    since = max(reported or 0, to_us(now - SILENT_WITHIN))
    row = await tx.one(_UNANSWERED, since=since, before=to_us(now - ANSWER_WITHIN), **key)
    unanswered = row["number"] if row else 0
    silent = is_silent(entry.level, ever_reported=reported is not None, unanswered=unanswered)
    return BackendReporting(from_us_or_none(reported), silent)


def make_summary(
    entry: AllowlistEntry, figures: Figures, states: BackendStates, *, silent: bool
) -> BackendSummary:
    """A backend's row without the time of its last dispatch."""
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
        waiting=states.waiting.get(key, 0),
        parked=states.parked.get(key, 0),
        suspended=key in states.suspended,
        silent=silent,
        alarm=states.alarms.get(key),
        demotion=states.demotions.get(key),
        probe=bool(entry.expect),
        hidden=entry.visibility is not Visibility.PUBLIC,
    )


def make_name_only_summary(entry: AllowlistEntry) -> BackendSummary:
    return BackendSummary(
        name=entry.name,
        level=entry.level,
        device=None,
        oncalls=(),
        hardware=None,
        name_only=True,
        figures=None,
    )
