"""The relay's own records of a time, for a comparison with another relay: dispatches decided, and results received."""

from collections.abc import Iterable
from datetime import datetime

from sqlalchemy import text

from crcr.decide.model import Conclusion, DeliveryState, DispatchState, JobState, Level, RepoName
from crcr.decide.shadow import OwnDispatch, OwnRecords, RecordedResult
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import to_us

_PAGE = 500
_DELIVERIES = Statement(
    text(
        "SELECT guid, state, reason, received_at FROM deliveries WHERE upstream = :upstream AND received_at >= :at"
        " AND received_at < :until AND (received_at > :at OR guid > :guid) ORDER BY received_at, guid LIMIT :most"
    )
)
_DISPATCHES = Statement(
    text(
        "SELECT delivery, downstream, level, state, reason, action, head_sha FROM dispatches WHERE delivery = :delivery"
        " AND upstream = :upstream AND test = 0 ORDER BY downstream"
    )
)
_JOBS = Statement(
    text(
        "SELECT delivery, downstream, workflow_name, reported_name AS job, run_id, attempt, event, state, conclusion FROM jobs"
        " WHERE delivery = :delivery AND upstream = :upstream AND superseded = 0"
        " ORDER BY downstream, workflow_name, job_name, run_id, attempt"
    )
)
_INGESTED = Statement(
    text(
        "SELECT delivery, downstream, workflow_name, job_name AS job, check_run AS run_id, attempt, event, state, conclusion"
        " FROM ingested WHERE delivery = :delivery AND upstream = :upstream"
        " ORDER BY downstream, workflow_name, job_name, check_run"
    )
)
_KNOWN = Statement(text("SELECT guid FROM deliveries WHERE guid = :guid AND upstream = :upstream"))


async def read_own_records(
    tx: Tx, upstream: RepoName, since: datetime, until: datetime, named: Iterable[str]
) -> OwnRecords:
    """The records of deliveries that arrived in that time; `named` are the deliveries of the other relay's results."""
    deliveries: dict[str, str | None] = {}
    dispatches: list[OwnDispatch] = []
    results: list[RecordedResult] = []
    at, guid = to_us(since), ""
    while rows := await tx.all(
        _DELIVERIES, upstream=upstream.key, at=at, until=to_us(until), guid=guid, most=_PAGE
    ):
        for row in rows:
            is_superseded = row["state"] != DeliveryState.ACCEPTED.value
            deliveries[row["guid"]] = (row["reason"] or row["state"]) if is_superseded else None
            key = {"delivery": row["guid"], "upstream": upstream.key}
            dispatches += [_dispatch(found) for found in await tx.all(_DISPATCHES, **key)]
            results += await _read_results(tx, key)
        at, guid = rows[-1]["received_at"], rows[-1]["guid"]
    unknown = sorted({name for name in named if name not in deliveries})
    others = [name for name in unknown if await tx.one(_KNOWN, guid=name, upstream=upstream.key) is not None]
    return OwnRecords(tuple(dispatches), tuple(results), deliveries, frozenset(others))


async def _read_results(tx: Tx, key: dict[str, str]) -> list[RecordedResult]:
    """What backends reported to this relay; of those that report nothing, what another relay sent to the ingest."""
    reported = [_result(row) for row in await tx.all(_JOBS, **key)]
    backends = {result.backend for result in reported}
    sent = [_result(row) for row in await tx.all(_INGESTED, **key)]
    return [*reported, *(result for result in sent if result.backend not in backends)]


def _dispatch(row: Row) -> OwnDispatch:
    return OwnDispatch(
        delivery=row["delivery"],
        backend=RepoName(row["downstream"]),
        level=Level(row["level"]),
        state=DispatchState(row["state"]),
        reason=row["reason"],
        action=row["action"],
        head_sha=row["head_sha"],
    )


def _result(row: Row) -> RecordedResult:
    is_over = row["state"] == JobState.COMPLETED.value
    return RecordedResult(
        delivery=row["delivery"],
        backend=RepoName(row["downstream"]),
        event=row["event"],
        workflow=row["workflow_name"],
        job=row["job"],
        check_run=row["run_id"],
        attempt=row["attempt"],
        conclusion=Conclusion(row["conclusion"] or Conclusion.NONE) if is_over else None,
    )
