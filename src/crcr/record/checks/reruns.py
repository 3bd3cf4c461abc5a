"""Requested re-runs: recorded at once, so that failed runs count as pending from that moment on."""

import json
from datetime import datetime
from typing import Any

from sqlalchemy import text

from crcr.decide.checks.commit import BackendResults, MergeSubject
from crcr.decide.checks.reruns import Redispatch, Rerun, RunToRerun
from crcr.decide.model import EffectKind, RepoName
from crcr.record.change_and_audit_log import note_change
from crcr.record.checks.refresh import CheckRefresher
from crcr.record.deliveries.dispatches import send
from crcr.record.outbox.effects import add_once, effect_row
from crcr.record.repositories.renames import JOIN_PRESENT_NAME
from crcr.record.store.database import Database, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import to_us

_MARK_RERUN = Statement(
    text(
        "UPDATE runs SET rerun_from = attempt, rerun_at = :at"
        " WHERE run_id = :run_id AND upstream = :upstream AND downstream = :downstream"
    )
)
_ASKED_ALL = Statement(
    text(
        "UPDATE runs SET rerun_from = attempt, rerun_at = :at WHERE delivery = :delivery AND upstream = :upstream"
        " AND downstream = :downstream AND superseded = 0"
    )
)
_NOT_AGAIN = Statement(
    text(
        "UPDATE runs SET rerun_from = NULL, rerun_at = NULL WHERE delivery = :delivery AND upstream = :upstream"
        " AND downstream = :downstream"
    )
)
_DISPATCH = Statement(
    text(
        "SELECT d.downstream, d.delivery, d.lane, d.state, d.head_sha, d.event, d.level, d.upstream, d.number,"
        " v.body IS NOT NULL AND NOT EXISTS (SELECT 1 FROM repositories r WHERE r.upstream = d.upstream"
        " AND r.downstream = d.downstream AND r.suspended_at IS NOT NULL) AS can_be_sent"
        " FROM dispatches d JOIN deliveries v ON v.guid = d.delivery AND v.upstream = d.upstream"
        " WHERE d.delivery = :delivery AND d.upstream = :upstream AND d.downstream = :downstream"
    )
)
_REOPEN = Statement(
    text(
        "UPDATE dispatches SET state = 'waiting', reason = NULL, answer = NULL, listed_at = NULL"
        " WHERE delivery = :delivery AND upstream = :upstream AND downstream = :downstream"
        " AND state IN ('sent', 'parked', 'cancelled') AND superseded_at IS NULL"
    )
)
_END_PARKED = Statement(
    text(
        "UPDATE effects SET state = 'cancelled', last_error = 'sent again' WHERE upstream = :upstream"
        " AND state = 'parked' AND target = :downstream AND delivery = :delivery AND kind = 'send_dispatch'"
    )
)
_RUN = Statement(
    text(
        "SELECT n.issuer, n.superseded, coalesce(n.rerun_from, 0) AS asked_after, r.name, r.repository_id, r.installation_id FROM runs n"  # noqa: S608  our own text
        " JOIN dispatches d ON d.delivery = n.delivery AND d.upstream = n.upstream AND d.downstream = n.downstream"
        f"{JOIN_PRESENT_NAME}"
        " WHERE n.run_id = :run_id AND n.upstream = :upstream AND n.downstream = :downstream"
    )
)


async def request_reruns(
    tx: Tx,
    upstream: RepoName,
    subject: MergeSubject,
    backend: BackendResults,
    *,
    reruns: tuple[Rerun, ...],
    now: datetime,
) -> int:
    """Record the re-runs with the effects that request them; return how many."""
    downstream = backend.recorded_name.key
    queued = 0
    for again in reruns:
        if isinstance(again, Redispatch):
            queued += await redispatch(tx, upstream, subject.delivery, downstream, now)
        else:
            key = {"run_id": again.run_id, "upstream": upstream.key, "downstream": downstream}
            await tx.run(_MARK_RERUN, at=to_us(now), **key)
            await add_once(tx, _effect(upstream, downstream, subject.delivery, again.run_id, now))
            queued += 1
    return queued


async def redispatch(tx: Tx, upstream: RepoName, delivery: str, downstream: str, now: datetime) -> bool:
    """Dispatch a delivery again; False when its body is no longer kept, or its backend is suspended."""
    key = {"delivery": delivery, "upstream": upstream.key, "downstream": downstream}
    row = await tx.one(_DISPATCH, **key)
    if row is None or not row["can_be_sent"]:
        return False
    await tx.run(_ASKED_ALL, at=to_us(now), **key)
    if await tx.run(_REOPEN, **key):
        await tx.run(_END_PARKED, **key)
        await send(tx, upstream.key, [row], now)
    return True


def _effect(upstream: RepoName, downstream: str, delivery: str, run_id: str, now: datetime) -> dict[str, Any]:
    return effect_row(
        upstream,
        EffectKind.RERUN,
        target=downstream,
        lane=f"rerun/{run_id}",
        delivery=delivery,
        payload=json.dumps({"run_id": run_id}).encode(),
        now=now,
    )


class Reruns:
    """The store behind the effect that asks GitHub for a re-run."""

    def __init__(self, database: Database, refresher: CheckRefresher) -> None:
        self._database = database
        self._refresher = refresher

    async def find_run(self, upstream: RepoName, downstream: str, run_id: str) -> RunToRerun | None:
        """The run with the repository to ask; None when it is superseded."""
        row = await self._database.quick_read(
            lambda tx: tx.one(_RUN, run_id=run_id, upstream=upstream.key, downstream=downstream)
        )
        if row is None or row["superseded"]:
            return None
        return RunToRerun(
            downstream=RepoName(row["name"] or downstream),
            repository_id=row["repository_id"],
            installation_id=row["installation_id"],
            on_github=row["issuer"] == "github",
            attempt=row["asked_after"],
        )

    async def redispatch(self, upstream: RepoName, delivery: str, downstream: str, now: datetime) -> bool:
        """Dispatch the delivery again where GitHub cannot re-run the run; without success the failure stands."""

        async def unit(tx: Tx) -> bool:
            key = {"delivery": delivery, "upstream": upstream.key, "downstream": downstream}
            sent = await redispatch(tx, upstream, delivery, downstream, now)
            if not sent:
                await tx.run(_NOT_AGAIN, **key)
            await note_change(tx, upstream, "dispatch", downstream=downstream, delivery=delivery, now=now)
            row = await tx.one(_DISPATCH, **key)
            if row is not None:
                await self._refresher.request_refresh_for(tx, row, now)
            return sent

        return await self._database.write(unit)
