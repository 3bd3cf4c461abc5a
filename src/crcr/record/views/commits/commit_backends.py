"""Reads one commit for pages: its gate, the backends of a delivery with their jobs, and its checks.

The gate is judged anew from recorded facts, so that a page never lags behind its check; the gate of a commit that is no
longer to be merged is shown as it was last recorded.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice, takewhile
from typing import Any

from sqlalchemy import bindparam, select, text

from crcr.decide.allowlist.entries import Allowlist, AllowlistEntry
from crcr.decide.checks.gate import GatePolicy, judge_gate, time_limit
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
from crcr.decide.views.failures import CommitGroup
from crcr.decide.views.missing_results import judge_missing_jobs, judge_silence, reports_nothing
from crcr.decide.views.overview import JobView
from crcr.decide.views.timeline import running_time
from crcr.errors import NoAllowlist
from crcr.record.checks.commit_facts import load_commit
from crcr.record.schema.main_tables import jobs
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us, from_us_or_none
from crcr.record.views.backends.backend_reader import read_reporting
from crcr.record.views.backends.jobs import (
    CURRENT_RUN,
    IN_ORDER,
    LATEST_ATTEMPT,
    VIEW_COLUMNS,
    add_failed_tests,
    job_view,
)
from crcr.record.views.failures.commit_failures import load_commit_failures, load_commit_groups
from crcr.record.views.logs.deliveries import dispatch_view
from crcr.record.views.relay.health import unpublished_gate
from crcr.record.views.visibility import AllowlistReader, VisibleBackends

_MOST_JOBS = 200
_MOST_FAILURES = 20

_GATE = Statement(
    text(
        "SELECT state, title, judged_at, decided_at FROM gates WHERE head_sha = :head_sha AND upstream = :upstream"
    )
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
# Self-reports have no delivery: the column has the commit's SHA instead.
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
    policy: GatePolicy
    now: datetime

    async def gate(self, head_sha: str, delivery: str | None) -> GateView | None:
        """The gate; None while the commit has not been judged. `delivery` is the one it was last judged by."""
        row = await self.tx.one(_GATE, head_sha=head_sha, upstream=self.upstream.key)
        if row is None:
            return None
        judged_at = from_us(row["judged_at"])
        if row["state"] == GateShown.NONE.value:
            return GateView(state=GateShown.NONE, title=None, judged_at=judged_at)
        commit = await load_commit(self.tx, self.upstream, head_sha, self.allowlist, self.now)
        if commit.subjects:
            judgement = judge_gate(commit, self.policy, self.now)
            shown = gate_view(judgement, self.visible.public, judged_at, head_sha)
            came_at = from_us_or_none(row["decided_at"]) if row["state"] == shown.state.value else None
            unpublished = await self._read_unpublished(head_sha, shown.state)
            return replace(shown, unpublished=unpublished, decided_at=came_at)
        whole = delivery is not None and await self._sees_all_gating(delivery)
        title = row["title"] if whole else None
        return GateView(state=GateShown(row["state"]), title=title, judged_at=judged_at, whole=whole)

    async def backends(self, delivery: str) -> tuple[CommitBackend, ...]:
        """The visible backends of a delivery, with the jobs that count."""
        key = {"delivery": delivery, "upstream": self.upstream.key}
        jobs_by_backend: dict[str, list[JobView]] = {}
        for row in await self.tx.all(_JOBS, **key):
            if row["downstream"] in self.visible.reporting:
                jobs_by_backend.setdefault(row["downstream"], []).append(job_view(row, self.visible))
        rows = [
            row for row in await self.tx.all(_DISPATCHES, **key) if row["downstream"] in self.visible.public
        ]
        backends = [
            await self._add_missing(self._dispatched_backend(row, jobs_by_backend.get(row["downstream"], [])))
            for row in rows
        ]
        return await self._add_failed_tests(sorted(backends, key=backend_sort_key))

    async def groups(self, delivery: str, backends: Sequence[CommitBackend]) -> tuple[CommitGroup, ...]:
        """The groups of the delivery's failures; self-reports have the commit's SHA as their delivery."""
        failures = await load_commit_failures(self.tx, self.upstream, delivery, None)
        return await load_commit_groups(self.tx, failures, backends, self.visible, self.now)

    async def read_self_reporting(self, head_sha: str) -> tuple[CommitBackend, ...]:
        """The backends that tested the commit without a dispatch, such as nightly; their jobs are found by its SHA."""
        commit = {"head_sha": head_sha, "upstream": self.upstream.key}
        rows_by_backend: dict[tuple[str, str], list[Row]] = {}
        for row in await self.tx.all(_OWN_REPORTS, **commit):
            if row["downstream"] in self.visible.reporting:
                rows_by_backend.setdefault((row["downstream"], row["event"]), []).append(row)
        backends = [self._self_reporting_backend(head_sha, rows) for rows in rows_by_backend.values()]
        return await self._add_failed_tests(sorted(backends, key=backend_sort_key))

    async def checks(self, head_sha: str, gate: GateView | None) -> tuple[CheckView, ...]:
        """The newest published check of each name; the gate's title only where the whole gate is visible."""
        newest: dict[str, Row] = {}
        for row in await self.tx.all(_CHECKS, head_sha=head_sha, upstream=self.upstream.key):
            if row["downstream"] is None or row["downstream"] in self.visible.reporting:
                newest.setdefault(row["name"], row)
        whole = gate is not None and gate.whole
        return tuple(
            _check(row, show_title=whole or row["downstream"] is not None) for row in newest.values()
        )

    async def _read_unpublished(self, head_sha: str, state: GateShown) -> GatePublication | None:
        return await unpublished_gate(self.tx, self.upstream, head_sha, state.value, self.now)

    async def _sees_all_gating(self, delivery: str) -> bool:
        rows = await self.tx.all(_DISPATCHES, delivery=delivery, upstream=self.upstream.key)
        gating = {row["downstream"] for row in rows if row["level"] == Level.L4}
        return gating <= set(self.visible.public)

    def _dispatched_backend(self, row: Row, jobs: list[JobView]) -> CommitBackend:
        dispatch = dispatch_view(row, self.visible)
        return _make_backend(
            self.visible.public[row["downstream"]],
            jobs,
            level=dispatch.level,
            state=backend_state(dispatch, jobs, reports=self._is_result_expected(row)),
            delivery=dispatch.delivery,
            event=dispatch.event,
            dispatch=dispatch,
        )

    async def _add_missing(self, backend: CommitBackend) -> CommitBackend:
        """Add the verdict on a backend whose results, or some of them, did not come."""
        entry = self.visible.reporting.get(backend.name.key)
        if entry is None or backend.level < Level.L2:
            return backend
        limit = time_limit(entry, self.policy)
        if reports_nothing(backend, limit, self.now):
            reporting = await read_reporting(self.tx, self.upstream, entry, self.now)
            return replace(backend, verdict=judge_silence(backend, reporting, self.upstream))
        verdict = judge_missing_jobs(backend, entry.jobs or (), limit, self.upstream, self.now)
        return replace(backend, verdict=verdict) if verdict else backend

    def _self_reporting_backend(self, head_sha: str, rows: list[Row]) -> CommitBackend:
        jobs = [job_view(row, self.visible) for row in rows]
        return _make_backend(
            self.visible.reporting[rows[0]["downstream"]],
            jobs,
            level=Level(max(row["level"] for row in rows)),
            state=state_of_jobs(jobs),
            delivery=head_sha,
            event=rows[0]["event"],
            dispatch=None,
        )

    def _is_result_expected(self, row: Row) -> bool:
        """Whether a result is expected: by the backend's level then and now; below L2 it is only notified."""
        return row["downstream"] in self.visible.reporting and row["level"] >= Level.L2

    async def _add_failed_tests(self, backends: list[CommitBackend]) -> tuple[CommitBackend, ...]:
        remaining = _MOST_FAILURES
        with_tests = []
        for backend in backends:
            failed = [*takewhile(_has_failed, islice(backend.jobs, remaining))]  # failed ones are first
            remaining -= len(failed)
            detailed = [await add_failed_tests(self.tx, self.upstream, self.visible, job) for job in failed]
            with_tests.append(replace(backend, jobs=(*detailed, *backend.jobs[len(failed) :])))
        return await self._add_verdicts(with_tests)

    async def _add_verdicts(self, backends: list[CommitBackend]) -> tuple[CommitBackend, ...]:
        deliveries = dict.fromkeys(
            (backend.delivery, backend.jobs[0].head_sha) for backend in backends if backend.jobs
        )
        failures = {
            delivery: await load_commit_failures(self.tx, self.upstream, delivery, head_sha)
            for delivery, head_sha in deliveries
        }
        return tuple(
            replace(backend, jobs=tuple(failures[backend.delivery].with_verdict(job) for job in backend.jobs))
            if backend.jobs and failures[backend.delivery].rows
            else backend
            for backend in backends
        )


async def commit_reader(
    tx: Tx,
    lists: AllowlistReader,
    upstream: RepoName,
    *,
    visible: VisibleBackends,
    policy: GatePolicy,
    now: datetime,
) -> CommitReader:
    try:
        allowlist = await lists.in_force(tx, upstream)
    except NoAllowlist:
        allowlist = Allowlist(())
    return CommitReader(tx, upstream, allowlist, visible, policy, now)


def _has_failed(job: JobView) -> bool:
    return job.counted is CountedAs.FAILURE


def _make_backend(entry: AllowlistEntry, jobs: list[JobView], **facts: Any) -> CommitBackend:
    jobs.sort(key=job_sort_key)
    return CommitBackend(
        name=entry.name,
        level_now=entry.level,
        device=entry.device,
        oncalls=entry.oncalls,
        spell=running_time(jobs),
        jobs=tuple(jobs[:_MOST_JOBS]),
        jobs_left_out=max(0, len(jobs) - _MOST_JOBS),
        **facts,
    )


def _check(row: Row, *, show_title: bool) -> CheckView:
    return CheckView(
        name=row["name"],
        round=row["round"],
        status=row["status"],
        conclusion=row["conclusion"],
        title=row["title"] if show_title else None,
        published_at=from_us_or_none(row["published_at"]),
    )
