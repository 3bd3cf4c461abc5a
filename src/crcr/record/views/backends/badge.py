"""A backend's badge: how it did on the newest event that has results, and its pass rate."""

from sqlalchemy import text

from crcr.decide.model import RepoName
from crcr.decide.statistics.figures import CountedAs
from crcr.decide.statistics.window import ResultKind, Span
from crcr.decide.views.backend import BadgeView
from crcr.errors import NotFound
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.views.backends.backend_reader import BackendReader, read_backend_states

_MOST_DELIVERIES = 50

# Of pushes only those to the base branch count, once its name is known.
_NEWEST = Statement(
    text(
        "SELECT d.delivery FROM dispatches d JOIN deliveries v ON v.guid = d.delivery AND v.upstream = d.upstream"
        " LEFT JOIN upstreams u ON u.upstream = d.upstream"
        " WHERE d.upstream = :upstream AND d.downstream = :downstream AND d.event = :event"
        " AND d.superseded_at IS NULL AND d.test = 0 AND coalesce(d.action, '') <> 'closed'"
        " AND (d.event <> 'push' OR u.default_branch IS NULL OR v.ref = 'refs/heads/' || u.default_branch)"
        " ORDER BY d.created_at DESC, d.delivery DESC LIMIT :most"
    )
)
_ENDED = Statement(
    text(
        "SELECT ended_as FROM jobs WHERE delivery = :delivery AND upstream = :upstream"
        " AND downstream = :downstream AND ended_as IS NOT NULL GROUP BY ended_as"
    )
)
# Along `ix_ingested_backend`, which has each delivery once for each of its jobs.
_NEWEST_INGESTED = Statement(
    text(
        "SELECT DISTINCT delivery_at, delivery FROM ingested WHERE upstream = :upstream AND downstream = :downstream"
        " ORDER BY delivery_at DESC, delivery DESC LIMIT :most"
    )
)
_ENDED_INGESTED = Statement(
    text(
        "SELECT ended_as FROM ingested WHERE delivery = :delivery AND upstream = :upstream"
        " AND downstream = :downstream AND ended_as IS NOT NULL GROUP BY ended_as"
    )
)
# Only of commits that are in the upstream's base: that is what a badge is about.
_LAST_NIGHTS = Statement(
    text(
        "SELECT j.workflow, j.run_id, j.ended_as, j.completed_at FROM jobs j JOIN commits c ON c.sha = j.head_sha"
        " AND c.upstream = j.upstream AND c.standing = 'base' WHERE j.upstream = :upstream"
        " AND j.downstream = :downstream AND j.event = :event"
        " AND j.ended_as IN ('success', 'failure', 'timed_out', 'other')"
        " ORDER BY j.completed_at DESC, j.delivery DESC, j.workflow DESC, j.run_id DESC, j.attempt DESC, j.job_name DESC"
        " LIMIT :most"
    )
)
_MOST_OF_NIGHT = 500
_FAILED = frozenset({"failure", "timed_out", "silent"})
_BASE = {ResultKind.PUSH: ("push",)}


async def badge_view(reader: BackendReader, downstream: RepoName, span: Span) -> BadgeView:
    """Raise `NotFound` for a backend that shows no results, as for an unknown one."""
    entry = reader.visible.reporting.get(downstream.key)
    if entry is None:
        raise NotFound(f"{downstream} is not a backend of this upstream", hint="see /api/v1/allowlist")
    states = await read_backend_states(reader.tx, reader.upstream, entry.name)
    figures = await reader.figures(entry.name.key, states)
    return BadgeView(
        name=entry.name,
        kind=reader.kind,
        span=span,
        state=await _read_state(reader.tx, reader.upstream, entry.name, reader.kind),
        tally=figures.tally,
        stale=await reader.is_silent(entry),
    )


async def _read_state(tx: Tx, upstream: RepoName, downstream: RepoName, kind: ResultKind) -> CountedAs | None:
    backend = {"upstream": upstream.key, "downstream": downstream.key}
    if kind is ResultKind.NIGHTLY:
        return _combine_results(await _read_last_night(tx, backend))
    ended_as = _ENDED_INGESTED if kind is ResultKind.INGESTED else _ENDED
    for row in await _read_newest(tx, kind, backend):
        ended = {job["ended_as"] for job in await tx.all(ended_as, delivery=row["delivery"], **backend)}
        if (state := _combine_results(ended)) is not None:
            return state
    return None


def _combine_results(ended: set[str]) -> CountedAs | None:
    if ended & _FAILED:
        return CountedAs.FAILURE
    if ended & {"success", "other"}:
        return CountedAs.SUCCESS if "success" in ended else CountedAs.OTHER
    return None


async def _read_last_night(tx: Tx, backend: dict[str, str]) -> set[str]:
    """The results of the run that reported last, whatever commits its jobs name."""
    rows_by_event = [
        await tx.all(_LAST_NIGHTS, event=event, most=_MOST_OF_NIGHT, **backend)
        for event in ResultKind.NIGHTLY.events
    ]
    rows = max(rows_by_event, key=lambda rows: rows[0]["completed_at"] if rows else 0)
    return {row["ended_as"] for row in rows if _run_key(row) == _run_key(rows[0])}


def _run_key(row: Row) -> tuple[str, str]:
    return row["workflow"], row["run_id"]


async def _read_newest(tx: Tx, kind: ResultKind, backend: dict[str, str]) -> list[Row]:
    """The newest deliveries; the first with a result decides."""
    if kind is ResultKind.INGESTED:
        return await tx.all(_NEWEST_INGESTED, most=_MOST_DELIVERIES, **backend)
    events = _BASE.get(kind, kind.events)
    return [
        row
        for event in events
        for row in await tx.all(_NEWEST, event=event, most=_MOST_DELIVERIES, **backend)
    ]
