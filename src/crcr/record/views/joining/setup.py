"""One downstream's set-up as recorded, in one snapshot, and its refused reports.

Nothing is read of a hidden backend: it gets the same answer as one that is not listed.
"""

from dataclasses import replace
from datetime import datetime, timedelta

from sqlalchemy import text

from crcr.decide.allowlist.entries import AllowlistEntry
from crcr.decide.github.repository_setup import LastCallback, LastDispatch, LastRefusal, SetupFacts
from crcr.decide.model import TEST_EVENT, Conclusion, DispatchState, JobState, RepoName
from crcr.decide.statistics.window import ResultKind, Span, Window
from crcr.decide.views.joining import RefusalList, RefusalView
from crcr.decide.views.overview import DispatchAnswer
from crcr.record.jobs.refusals import KEPT_PER_BACKEND
from crcr.record.repositories.inspections import read_inspection
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us, from_us_or_none, to_us
from crcr.record.views.backends.backend_reader import BackendReader
from crcr.record.views.visibility import VisibleBackends, allowlist_state

SENT_EVENTS = ("pull_request", "push", "merge_group")

_REPOSITORY = Statement(
    text(
        "SELECT repository_id, confirmed, alarm, suspended_at FROM repositories"
        " WHERE upstream = :upstream AND downstream = :downstream"
    )
)
_PAUSED = Statement(text("SELECT paused_at FROM upstreams WHERE upstream = :upstream"))
_LAST_DISPATCH = Statement(
    text(
        "SELECT delivery, event, state, reason, answer, created_at, sent_at FROM dispatches"
        " WHERE upstream = :upstream AND downstream = :downstream AND event = :event AND state <> 'left_out'"
        " ORDER BY created_at DESC, delivery DESC LIMIT 1"
    )
)
_OPEN_ERROR = Statement(
    text(
        "SELECT last_error FROM effects WHERE upstream = :upstream AND target = :downstream"
        " AND state IN ('waiting', 'claimed') AND kind = 'send_dispatch' AND delivery = :delivery"
        " ORDER BY effect_id LIMIT 1"
    )
)
_PARKED_ERROR = Statement(
    text(
        "SELECT last_error FROM effects WHERE upstream = :upstream AND state = 'parked' AND target = :downstream"
        " AND kind = 'send_dispatch' AND delivery = :delivery ORDER BY finished_at DESC, effect_id DESC LIMIT 1"
    )
)
_UNSENT = Statement(
    text(
        "SELECT state, count(*) AS number FROM dispatches WHERE upstream = :upstream AND downstream = :downstream"
        " AND state <> 'sent' AND state <> 'cancelled' AND state <> 'left_out' AND test = 0 GROUP BY state ORDER BY state"
    )
)
_FIRST_SENT = Statement(
    text(
        "SELECT delivery, sent_at FROM dispatches WHERE upstream = :upstream AND downstream = :downstream"
        " AND event = :event AND sent_at IS NOT NULL ORDER BY created_at, delivery LIMIT 1"
    )
)
_OPEN_RUN = Statement(
    text(
        "SELECT min(first_seen_at) AS at FROM runs WHERE delivery = :delivery AND upstream = :upstream"
        " AND downstream = :downstream AND coalesce(over_attempt, 0) < attempt"
    )
)
_LAST_JOB = Statement(
    text(
        "SELECT job_name, event, state, conclusion, in_progress_at, completed_at FROM jobs"
        " WHERE upstream = :upstream AND downstream = :downstream"
        " ORDER BY in_progress_at DESC, delivery DESC, workflow DESC, run_id DESC, attempt DESC, job_name DESC LIMIT 1"
    )
)
_LAST_NIGHTLY = Statement(
    text(
        "SELECT job_name, event, state, conclusion, in_progress_at, completed_at FROM jobs"
        " WHERE upstream = :upstream AND downstream = :downstream AND event = 'nightly' AND ended_as IS NOT NULL"
        " AND completed_at IS NOT NULL ORDER BY completed_at DESC, delivery DESC, workflow DESC, run_id DESC, attempt DESC, job_name DESC LIMIT 1"
    )
)
# The result must have come after the refusal: a report that contradicts an earlier result is never settled.
SETTLED = (
    "EXISTS (SELECT 1 FROM jobs j WHERE j.delivery = r.delivery AND j.upstream = r.upstream"
    " AND j.downstream = r.downstream AND j.run_id = r.run_id AND j.reported_name = r.job_name"
    " AND j.state = 'completed' AND j.completed_at >= r.at)"
)
_LAST_REFUSAL = Statement(
    text(
        f"SELECT r.at, r.code, r.detail, r.hint, r.run_id, r.job_name, {SETTLED} AS settled FROM refusals r"  # noqa: S608  ours
        " WHERE r.upstream = :upstream AND r.downstream = :downstream ORDER BY settled, r.refusal_id DESC LIMIT 1"
    )
)


async def setup_facts(
    tx: Tx, upstream: RepoName, repository: RepoName, visible: VisibleBackends, now: datetime
) -> SetupFacts:
    state = await allowlist_state(tx, upstream, visible)
    entry = visible.public.get(repository.key)
    facts = SetupFacts(
        upstream=upstream,
        repository=entry.name if entry else repository,
        entry=entry,
        has_allowlist=state.version is not None,
        allowlist_source=state.source,
        for_admin=visible.everything,
    )
    return facts if entry is None else await _read_entry_facts(tx, facts, entry, visible, now)


async def _read_entry_facts(
    tx: Tx, facts: SetupFacts, entry: AllowlistEntry, visible: VisibleBackends, now: datetime
) -> SetupFacts:
    key = {"upstream": facts.upstream.key, "downstream": entry.name.key}
    row = await tx.one(_REPOSITORY, **key)
    repository = dict(row) if row else {}
    paused = await tx.one(_PAUSED, upstream=facts.upstream.key)
    asked_at, inspected_at, inspection = await read_inspection(tx, facts.upstream, entry.name)
    dispatches = [await _read_last_dispatch(tx, key, event) for event in SENT_EVENTS]
    unsent = {row["state"]: row["number"] for row in await tx.all(_UNSENT, **key)}
    last_callback = _job(await tx.one(_LAST_JOB, **key))
    first_sent_at, first_run_at = (None, None) if last_callback else await _read_first_run(tx, key)
    reader = BackendReader(tx, facts.upstream, visible, Window.of(Span.FORTNIGHT, now), ResultKind.PULLS, now)
    return replace(
        facts,
        paused_at=from_us_or_none(paused["paused_at"]) if paused else None,
        suspended_at=from_us_or_none(repository.get("suspended_at")),
        repository_id=repository.get("repository_id"),
        confirmed=bool(repository.get("confirmed")),
        alarm=repository.get("alarm"),
        asked_at=asked_at,
        inspected_at=inspected_at,
        inspection=inspection,
        last_dispatch=max(
            (dispatch for dispatch in dispatches if dispatch),
            key=lambda dispatch: dispatch.created_at,
            default=None,
        ),
        last_test=await _read_last_dispatch(tx, key, TEST_EVENT),
        waiting=unsent.get("waiting", 0) + unsent.get("held", 0),
        parked=unsent.get("parked", 0),
        first_sent_at=first_sent_at,
        first_run_at=first_run_at,
        last_callback=last_callback,
        last_refusal=_refusal(await tx.one(_LAST_REFUSAL, **key)),
        silent=await reader.is_silent(entry),
        last_nightly=_job(await tx.one(_LAST_NIGHTLY, **key)),
    )


async def _read_first_run(tx: Tx, key: dict[str, str]) -> tuple[datetime | None, datetime | None]:
    """When the first dispatch was sent, and since when its run is under way."""
    rows = [await tx.one(_FIRST_SENT, event=event, **key) for event in SENT_EVENTS]
    first = min((row for row in rows if row), key=lambda row: row["sent_at"], default=None)
    if first is None:
        return None, None
    run = await tx.one(_OPEN_RUN, delivery=first["delivery"], **key)
    return from_us(first["sent_at"]), from_us_or_none(run["at"]) if run else None


async def _read_last_dispatch(tx: Tx, key: dict[str, str], event: str) -> LastDispatch | None:
    row = await tx.one(_LAST_DISPATCH, event=event, **key)
    if row is None:
        return None
    state = DispatchState(row["state"])
    statement = {DispatchState.PARKED: _PARKED_ERROR, DispatchState.WAITING: _OPEN_ERROR}.get(state)
    effect = await tx.one(statement, delivery=row["delivery"], **key) if statement else None
    return LastDispatch(
        delivery=row["delivery"],
        event=row["event"],
        state=state,
        created_at=from_us(row["created_at"]),
        sent_at=from_us_or_none(row["sent_at"]),
        answer=DispatchAnswer(row["answer"]) if row["answer"] else None,
        reason=row["reason"],
        error=effect["last_error"] if effect else None,
    )


def _job(row: Row | None) -> LastCallback | None:
    if row is None:
        return None
    return LastCallback(
        at=from_us(row["completed_at"] or row["in_progress_at"]),
        job_name=row["job_name"],
        event=row["event"],
        state=JobState(row["state"]),
        conclusion=Conclusion(row["conclusion"]) if row["conclusion"] else None,
    )


def _refusal(row: Row | None) -> LastRefusal | None:
    if row is None:
        return None
    return LastRefusal(
        at=from_us(row["at"]),
        code=row["code"],
        detail=row["detail"],
        hint=row["hint"],
        run_id=row["run_id"],
        job_name=row["job_name"],
        settled=bool(row["settled"]),
    )


# A backend's refused reports of the last two weeks, the newest first.

SHOWN_FOR = timedelta(days=14)

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
    tx: Tx, upstream: RepoName, downstream: RepoName, visible: VisibleBackends, now: datetime
) -> RefusalList:
    """Of a backend that shows its name only there are none to see."""
    entry = visible.entry(downstream)
    return RefusalList(
        upstream=upstream,
        backend=entry.name,
        refusals=await read_refusals(tx, upstream, entry.name, visible, now),
    )


async def read_refusals(
    tx: Tx, upstream: RepoName, downstream: RepoName, visible: VisibleBackends, now: datetime
) -> tuple[RefusalView, ...]:
    if downstream.key not in visible.public:
        return ()
    since = to_us(now - SHOWN_FOR)
    where = {"upstream": upstream.key, "downstream": downstream.key}
    return tuple(_view(row) for row in await tx.all(_NEWEST, **where, since=since, limit=KEPT_PER_BACKEND))


def _view(row: Row) -> RefusalView:
    flags = {name: bool(row[name]) for name in ("delivery_known", "settled")}
    return RefusalView(**{**row, **flags, "at": from_us(row["at"])})
