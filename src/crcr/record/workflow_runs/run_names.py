"""Runs whose own name contains another delivery than the one they report for: their results are taken off it.

Anyone who can send a dispatch can have a run report for any delivery; the name that GitHub shows was made from the
dispatch that started it. Such a run is bound to the delivery of its name instead, as a run without reports, and that
binding refuses its further reports. A name proves nothing when it contains the claimed delivery too, or several that were
sent to the repository: strangers can write into names.
"""

from collections.abc import Iterable
from datetime import datetime

from sqlalchemy import text

from crcr.decide.github.requests_and_answers import ActionsRun
from crcr.decide.github.workflow_runs import RunLookup, delivery_ids_in, other_delivery_named
from crcr.decide.model import Level, RepoName
from crcr.record.change_and_audit_log import note_act, note_change
from crcr.record.checks.refresh import CheckRefresher
from crcr.record.jobs.outcomes import JobOutcomes
from crcr.record.outbox.effects import add_once
from crcr.record.statistics.recount_changed_jobs import recount
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.workflow_runs.lookup_effects import look_up_effect
from crcr.record.workflow_runs.verification import record_run

_REPORTED = Statement(
    text(
        "SELECT n.run_id, n.delivery, n.upstream, n.downstream, n.workflow, d.level, d.event, d.head_sha, d.number"
        " FROM runs n JOIN repositories r ON r.upstream = n.upstream AND r.downstream = n.downstream"
        " JOIN dispatches d ON d.delivery = n.delivery AND d.upstream = n.upstream AND d.downstream = n.downstream"
        " WHERE n.run_id = :run_id AND n.issuer = 'github' AND n.reported = 1"
        " AND coalesce(d.repository_id, r.repository_id) = :repository_id"
    )
)
_SENT = Statement(
    text(
        "SELECT d.delivery, d.upstream, d.downstream, d.level, d.event, d.head_sha, d.number FROM dispatches d"
        " LEFT JOIN repositories r ON r.upstream = d.upstream AND r.downstream = d.downstream"
        " WHERE d.delivery = :guid AND coalesce(d.repository_id, r.repository_id) = :repository_id"
        " AND d.attempted_at IS NOT NULL"
    )
)
_UNBIND = Statement(
    text(
        "DELETE FROM runs WHERE run_id = :run_id AND upstream = :upstream AND downstream = :downstream"
        " AND delivery = :delivery AND reported = 1"
    )
)
_SIBLINGS = Statement(
    text(
        "SELECT run_id, superseded, first_seen_at FROM runs WHERE delivery = :delivery AND upstream = :upstream"
        " AND downstream = :downstream AND workflow = :workflow"
    )
)
_MARK_RUN = Statement(
    text(
        "UPDATE runs SET superseded = :superseded WHERE run_id = :run_id AND upstream = :upstream"
        " AND downstream = :downstream"
    )
)
_MARK_JOBS = Statement(
    text(
        "UPDATE jobs SET superseded = :superseded WHERE delivery = :delivery AND upstream = :upstream"
        " AND downstream = :downstream AND workflow = :workflow AND run_id = :run_id"
    )
)
_BACKEND = ("upstream", "downstream")
_RUN = ("delivery", "upstream", "downstream", "workflow", "run_id")


class RunNames:
    """Compares runs with the deliveries in their names, and moves runs that report for another one."""

    def __init__(self, refresher: CheckRefresher, outcomes: JobOutcomes) -> None:
        self._refresher = refresher
        self._outcomes = outcomes

    async def own_runs(
        self, tx: Tx, lookup: RunLookup, runs: Iterable[ActionsRun], now: datetime
    ) -> tuple[ActionsRun, ...]:
        """Return those of GitHub's runs for a delivery whose names do not contradict it."""
        own = []
        for run in runs:
            named_delivery = await self.compare(tx, lookup.repository_id, run, now)
            if named_delivery in (None, lookup.delivery):
                own.append(run)
        return tuple(own)

    async def compare(self, tx: Tx, repository_id: int | None, run: ActionsRun, now: datetime) -> str | None:
        """Take a run off the delivery that it reports for, if its name contains another; return that other one."""
        for row in await tx.all(_REPORTED, run_id=str(run.run_id), repository_id=repository_id):
            sent = [
                dispatch
                for guid in delivery_ids_in(run.display_title)
                for dispatch in await tx.all(_SENT, guid=guid, repository_id=repository_id)
            ]
            named_delivery = other_delivery_named(
                run.display_title, row["delivery"], [dispatch["delivery"] for dispatch in sent]
            )
            if named_delivery is not None:
                await self._move(
                    tx,
                    row,
                    next(dispatch for dispatch in sent if dispatch["delivery"] == named_delivery),
                    run,
                    now,
                )
                return named_delivery
        return None

    async def _move(self, tx: Tx, row: Row, named_dispatch: Row, run: ActionsRun, now: datetime) -> None:
        run_key = {name: row[name] for name in _RUN}
        await tx.run(_UNBIND, **{name: row[name] for name in ("run_id", "delivery", *_BACKEND)})
        await tx.run(_MARK_JOBS, superseded=1, **run_key)
        await recount(tx, run_key, now)
        await self._restore_newest_run(tx, row, now)
        await record_run(tx, named_dispatch, run, now)
        await self._outcomes.take_off(tx, run_key, now)
        await note_act(
            tx,
            RepoName(row["upstream"]),
            who="relay",
            act="run_bound_elsewhere",
            subject=row["downstream"],
            now=now,
            run=row["run_id"],
            delivery=row["delivery"],
            named=named_dispatch["delivery"],
        )
        for dispatch in (row, named_dispatch):
            await self._refresh_dispatch(tx, dispatch, now)

    async def _restore_newest_run(self, tx: Tx, row: Row, now: datetime) -> None:
        """Let the newest of the remaining runs count, if the moved one had superseded them all."""
        dispatch_key = {name: row[name] for name in ("delivery", *_BACKEND)}
        siblings = await tx.all(_SIBLINGS, workflow=row["workflow"], **dispatch_key)
        if not siblings or not all(run["superseded"] for run in siblings):
            return
        newest = max(siblings, key=_run_age)
        await tx.run(
            _MARK_RUN, superseded=0, run_id=newest["run_id"], **{name: row[name] for name in _BACKEND}
        )
        run_key = {**dispatch_key, "workflow": row["workflow"], "run_id": newest["run_id"]}
        await tx.run(_MARK_JOBS, superseded=0, **run_key)
        await recount(tx, run_key, now)

    async def _refresh_dispatch(self, tx: Tx, dispatch: Row, now: datetime) -> None:
        key = {name: dispatch[name] for name in ("delivery", "downstream")}
        await note_change(
            tx, RepoName(dispatch["upstream"]), "job", number=dispatch["number"], now=now, **key
        )
        await self._refresher.request_refresh_for(tx, dispatch, now)
        if dispatch["level"] >= Level.L3:
            await add_once(tx, look_up_effect(dispatch["upstream"], now=now, **key))


def _run_age(run: Row) -> tuple[int, int]:
    """GitHub's run ids grow; where ids are no numbers, the run that was seen later is the newer one."""
    return (int(run["run_id"]) if run["run_id"].isdigit() else -1, run["first_seen_at"])
