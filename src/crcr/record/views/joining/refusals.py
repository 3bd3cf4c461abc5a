"""A backend's refused reports for its page and the API: of the last two weeks, the newest first."""

from datetime import datetime, timedelta

from sqlalchemy import text

from crcr.decide.model import RepoName
from crcr.decide.views.joining import RefusalList, RefusalView
from crcr.record.reports.refusals import KEPT
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us, to_us
from crcr.record.views.visibility import Seen

SHOWN_FOR = timedelta(days=14)

# The result must have come after the refusal: one that contradicts an earlier result is settled by nothing.
SETTLED = (
    "EXISTS (SELECT 1 FROM jobs j WHERE j.delivery = r.delivery AND j.upstream = r.upstream"
    " AND j.downstream = r.downstream AND j.run_id = r.run_id AND j.reported_name = r.job_name"
    " AND j.state = 'completed' AND j.completed_at >= r.at)"
)
"""Of a refusal `r`: whether the same job's result was taken since."""
_NEWEST = Statement(
    text(
        "SELECT r.refusal_id, r.at, r.code, r.detail, r.hint, r.delivery, r.run_id, r.workflow_name, r.job_name,"  # noqa: S608  ours
        " EXISTS (SELECT 1 FROM deliveries d WHERE d.guid = r.delivery AND d.upstream = r.upstream) AS delivery_known,"
        f" {SETTLED} AS settled"
        " FROM refusals r WHERE r.upstream = :upstream AND r.downstream = :downstream AND r.at >= :since"
        " ORDER BY r.refusal_id DESC LIMIT :limit"
    )
)


async def refusal_list(
    tx: Tx, upstream: RepoName, downstream: RepoName, seen: Seen, now: datetime
) -> RefusalList:
    """Of a backend that shows its name only there are none to see."""
    entry = seen.entry(downstream)
    return RefusalList(
        upstream=upstream, backend=entry.name, refusals=await refusals_of(tx, upstream, entry.name, seen, now)
    )


async def refusals_of(
    tx: Tx, upstream: RepoName, downstream: RepoName, seen: Seen, now: datetime
) -> tuple[RefusalView, ...]:
    if downstream.key not in seen.public:
        return ()
    since = to_us(now - SHOWN_FOR)
    where = {"upstream": upstream.key, "downstream": downstream.key}
    return tuple(_view(row) for row in await tx.all(_NEWEST, **where, since=since, limit=KEPT))


def _view(row: Row) -> RefusalView:
    flags = {name: bool(row[name]) for name in ("delivery_known", "settled")}
    return RefusalView(**{**row, **flags, "at": from_us(row["at"])})
