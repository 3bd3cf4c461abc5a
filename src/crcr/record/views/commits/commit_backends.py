"""What is shown of one commit: its gate, the backends of a delivery with their jobs, and its checks.

The gate is judged anew from recorded facts, so that a page never lags behind its check; once nobody wants the
commit merged any more, the gate is shown as it was last recorded.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, select, text

from crcr.decide.allowlist.entries import Allowlist, AllowlistEntry
from crcr.decide.checks.gate import GatePolicy, judge_gate
from crcr.decide.health.texts import GatePublication
from crcr.decide.model import Level, RepoName
from crcr.decide.statistics.figures import CountedAs
from crcr.decide.views.commit import (
    CheckView,
    CommitBackend,
    GateShown,
    GateView,
    backend_sort_key,
    backend_state,
    gate_view,
    job_sort_key,
    state_of_jobs,
)
from crcr.decide.views.overview import JobView
from crcr.decide.views.timeline import running_time
from crcr.errors import NoAllowlist
from crcr.record.checks.commit_facts import load_commit
from crcr.record.schema.main_tables import jobs
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us, from_us_or_none
from crcr.record.views.backends.jobs import (
    CURRENT_RUN,
    IN_ORDER,
    LATEST_ATTEMPT,
    VIEW_COLUMNS,
    add_failed_tests,
    job_view,
)
from crcr.record.views.logs.deliveries import dispatch_view
from crcr.record.views.relay.health import unpublished_gate
from crcr.record.views.visibility import AllowlistReader, VisibleBackends

_MOST_JOBS = 200
_MOST_FAILURES = 20

_GATE = Statement(
    text("SELECT state, title, judged_at FROM gates WHERE head_sha = :head_sha AND upstream = :upstream")
)
_DISPATCHES = Statement(
    text("SELECT * FROM dispatches WHERE delivery = :delivery AND upstream = :upstream ORDER BY downstream")
)
_JOBS = Statement(
    select(*VIEW_COLUMNS)
    .where(
        jobs.c.delivery == bindparam("delivery"),
        jobs.c.upstream == bindparam("upstream"),
        CURRENT_RUN,
        LATEST_ATTEMPT,
    )
    .order_by(jobs.c.downstream, *IN_ORDER)
)
# What backends report on their own names no delivery, but the commit in its place.
_OWN_REPORTS = Statement(
    select(*VIEW_COLUMNS, jobs.c.level)
    .where(
        jobs.c.delivery == bindparam("head_sha"),
        jobs.c.upstream == bindparam("upstream"),
        text("jobs.event IN ('nightly', 'periodic')"),
        CURRENT_RUN,
        LATEST_ATTEMPT,
    )
    .order_by(jobs.c.downstream, *IN_ORDER)
)
_CHECKS = Statement(
    text(
        "SELECT c.name, c.round, c.downstream, c.status, c.conclusion, c.title, c.published_at FROM checks c"
        " WHERE c.head_sha = :head_sha AND c.upstream = :upstream AND c.check_run_id IS NOT NULL"
        " ORDER BY c.name, c.round DESC"
    )
)


@dataclass(frozen=True, slots=True)
class CommitReader:
    """Reads commits of one upstream, inside one transaction."""

    tx: Tx
    upstream: RepoName
    allowlist: Allowlist
    visible: VisibleBackends
    timeouts: GatePolicy
    now: datetime

    async def gate(self, head_sha: str, delivery: str | None) -> GateView | None:
        """The gate; None while the commit has not been looked at. `delivery` is the one it was last judged by."""
        row = await self.tx.one(_GATE, head_sha=head_sha, upstream=self.upstream.key)
        if row is None:
            return None
        judged_at = from_us(row["judged_at"])
        if row["state"] == GateShown.NONE.value:
            return GateView(state=GateShown.NONE, title=None, judged_at=judged_at)
        commit = await load_commit(self.tx, self.upstream, head_sha, self.allowlist, self.now)
        if commit.subjects:
            judgement = judge_gate(commit, self.timeouts, self.now)
            shown = gate_view(judgement, self.visible.public, judged_at, head_sha)
            return replace(shown, unpublished=await self._unpublished(head_sha, shown.state))
        whole = delivery is not None and await self._all_are_seen(delivery)
        title = row["title"] if whole else None
        return GateView(state=GateShown(row["state"]), title=title, judged_at=judged_at, whole=whole)

    async def backends(self, delivery: str) -> tuple[CommitBackend, ...]:
        """Everybody to be seen whom the delivery concerns, with the jobs that count."""
        key = {"delivery": delivery, "upstream": self.upstream.key}
        found: dict[str, list[JobView]] = {}
        for row in await self.tx.all(_JOBS, **key):
            if row["downstream"] in self.visible.reporting:
                found.setdefault(row["downstream"], []).append(job_view(row, self.visible))
        rows = [
            row for row in await self.tx.all(_DISPATCHES, **key) if row["downstream"] in self.visible.public
        ]
        backends = [self._backend(row, found.get(row["downstream"], [])) for row in rows]
        return await self._with_tests(sorted(backends, key=backend_sort_key))

    async def reporting_on_their_own(self, head_sha: str) -> tuple[CommitBackend, ...]:
        """Who tested the commit without being told of it, such as nightly; their jobs go by its SHA."""
        where = {"head_sha": head_sha, "upstream": self.upstream.key}
        found: dict[tuple[str, str], list[Row]] = {}
        for row in await self.tx.all(_OWN_REPORTS, **where):
            if row["downstream"] in self.visible.reporting:
                found.setdefault((row["downstream"], row["event"]), []).append(row)
        backends = [self._on_its_own(head_sha, rows) for rows in found.values()]
        return await self._with_tests(sorted(backends, key=backend_sort_key))

    async def checks(self, head_sha: str, gate: GateView | None) -> tuple[CheckView, ...]:
        """The newest check of each name that GitHub has; the gate's own words only where the gate may be seen."""
        newest: dict[str, Row] = {}
        for row in await self.tx.all(_CHECKS, head_sha=head_sha, upstream=self.upstream.key):
            if row["downstream"] is None or row["downstream"] in self.visible.reporting:
                newest.setdefault(row["name"], row)
        whole = gate is not None and gate.whole
        return tuple(_check(row, told=whole or row["downstream"] is not None) for row in newest.values())

    async def _unpublished(self, head_sha: str, state: GateShown) -> GatePublication | None:
        return await unpublished_gate(self.tx, self.upstream, head_sha, state.value, self.now)

    async def _all_are_seen(self, delivery: str) -> bool:
        rows = await self.tx.all(_DISPATCHES, delivery=delivery, upstream=self.upstream.key)
        gating = {row["downstream"] for row in rows if row["level"] == Level.L4}
        return gating <= set(self.visible.public)

    def _backend(self, row: Row, found: list[JobView]) -> CommitBackend:
        dispatch = dispatch_view(row, self.visible)
        return _concerned(
            self.visible.public[row["downstream"]],
            found,
            level=dispatch.level,
            state=backend_state(dispatch, found, reports=self._reports(row)),
            delivery=dispatch.delivery,
            event=dispatch.event,
            dispatch=dispatch,
        )

    def _on_its_own(self, head_sha: str, rows: list[Row]) -> CommitBackend:
        found = [job_view(row, self.visible) for row in rows]
        return _concerned(
            self.visible.reporting[rows[0]["downstream"]],
            found,
            level=Level(max(row["level"] for row in rows)),
            state=state_of_jobs(found),
            delivery=head_sha,
            event=rows[0]["event"],
            dispatch=None,
        )

    def _reports(self, row: Row) -> bool:
        """Whether a result is to be expected: of its level then and now, and not of a mere notice."""
        return row["downstream"] in self.visible.reporting and row["level"] >= Level.L2

    async def _with_tests(self, backends: list[CommitBackend]) -> tuple[CommitBackend, ...]:
        left = _MOST_FAILURES
        told = []
        for backend in backends:
            failed = [job for job in backend.jobs if job.counted is CountedAs.FAILURE][:left]
            left -= len(failed)
            detailed = [await add_failed_tests(self.tx, self.upstream, self.visible, job) for job in failed]
            told.append(replace(backend, jobs=(*detailed, *backend.jobs[len(failed) :])))
        return tuple(told)


async def commit_reader(
    tx: Tx,
    lists: AllowlistReader,
    upstream: RepoName,
    *,
    visible: VisibleBackends,
    timeouts: GatePolicy,
    now: datetime,
) -> CommitReader:
    try:
        allowlist = await lists.in_force(tx, upstream)
    except NoAllowlist:
        allowlist = Allowlist(())
    return CommitReader(tx, upstream, allowlist, visible, timeouts, now)


def _concerned(entry: AllowlistEntry, found: list[JobView], **told: Any) -> CommitBackend:
    found.sort(key=job_sort_key)
    return CommitBackend(
        name=entry.name,
        level_now=entry.level,
        device=entry.device,
        oncalls=entry.oncalls,
        spell=running_time(found),
        jobs=tuple(found[:_MOST_JOBS]),
        jobs_left_out=max(0, len(found) - _MOST_JOBS),
        **told,
    )


def _check(row: Row, *, told: bool) -> CheckView:
    return CheckView(
        name=row["name"],
        round=row["round"],
        status=row["status"],
        conclusion=row["conclusion"],
        title=row["title"] if told else None,
        published_at=from_us_or_none(row["published_at"]),
    )
