"""Read models of the command line: everything, hidden backends and test dispatches included.

Nothing here writes. Pages have read models of their own (`record.views`), which leave out what is not public.
"""

import json
from collections.abc import Collection
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, select, text

from crcr.decide.allowlist.entries import Allowlist
from crcr.decide.dispatch.webhook_body import decompress_body
from crcr.decide.health.relay import Health, judge_health
from crcr.decide.model import Level, RepoName
from crcr.decide.shadow import OwnRecords
from crcr.decide.views.bisections import BisectionDetail, BisectionPage, BisectionQuery
from crcr.decide.views.failing import FailingPage, FailingQuery
from crcr.decide.views.failures import ContradictedVerdicts
from crcr.decide.views.operator import (
    AuditLine,
    DeliveryDetail,
    DeliveryLine,
    DispatchLine,
    EffectLine,
    JobLine,
    RepositoryLine,
)
from crcr.decide.views.overview import AllowlistState
from crcr.errors import NoAllowlist, NotFound
from crcr.record.deliveries.dispatch_payloads import trimmed_fields
from crcr.record.failures.person_verdicts import load_contradicted
from crcr.record.failures.recompute import count_left
from crcr.record.repositories.allowlists import text_in_force
from crcr.record.schema.main_tables import audit, effects, repositories
from crcr.record.store.database import Database, Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us, from_us_or_none
from crcr.record.views.culprits.bisections import bisection_detail, bisection_page
from crcr.record.views.failures.failing_jobs import failing_page
from crcr.record.views.relay.health import NOTHING_HINDERS, health_facts, waiting_reason
from crcr.record.views.relay.shadow import read_own_records
from crcr.record.views.visibility import AllowlistReader, allowlist_state, visible_backends

_DELIVERY = (
    "SELECT upstream, guid, event, action, state, reason, source, number, head_sha, ref, received_at, body_bytes,"
    " body IS NOT NULL AS body_kept FROM deliveries"
)
_DELIVERIES = Statement(
    text(
        f"{_DELIVERY} WHERE upstream = :upstream AND (CAST(:state AS TEXT) IS NULL OR state = :state)"
        " ORDER BY received_at DESC, guid LIMIT :limit"
    )
)
_BY_GUID = Statement(
    text(f"{_DELIVERY} WHERE guid = :guid AND (CAST(:upstream AS TEXT) IS NULL OR upstream = :upstream)")
)
_BODY = Statement(text("SELECT body FROM deliveries WHERE guid = :guid AND upstream = :upstream"))
_COUNTS = Statement(
    text(
        "SELECT state, count(*) AS number FROM dispatches WHERE upstream = :upstream AND delivery = :guid"
        " GROUP BY state ORDER BY state"
    )
)
_DISPATCHES = Statement(
    text(
        "SELECT d.*, coalesce(r.name, d.downstream) AS name FROM dispatches d LEFT JOIN repositories r"
        " ON r.upstream = d.upstream AND r.downstream = d.downstream"
        " WHERE d.upstream = :upstream AND d.delivery = :guid ORDER BY d.level DESC, d.downstream"
    )
)
_JOBS = Statement(
    text(
        "SELECT downstream, workflow_name, run_id, attempt, job_name, state, conclusion, late, disputed, superseded,"
        " unsigned, imported, in_progress_at, completed_at, queue_s, execution_s, url FROM jobs"
        " WHERE upstream = :upstream AND delivery = :guid ORDER BY workflow, run_id, attempt, job_name"
    )
)
_EFFECT_COLUMNS = (
    *("effect_id", "kind", "target", "delivery", "state", "attempts", "unsure"),
    *("created_at", "due_at", "finished_at", "last_error"),
    *("held_by", "fault", "fault_since"),
)
_EFFECT = select(*(effects.c[name] for name in _EFFECT_COLUMNS)).where(
    effects.c.upstream == bindparam("upstream")
)
_BY_DELIVERY = _EFFECT.where(effects.c.delivery == bindparam("guid"))
# One statement for each partial index; finished effects are searched from the time of the delivery on.
_OPEN_OF = Statement(_BY_DELIVERY.where(text("state IN ('waiting', 'claimed')")))
_PARKED_OF = Statement(_BY_DELIVERY.where(text("state = 'parked'")))
_OVER_OF = Statement(_BY_DELIVERY.where(text("state IN ('done', 'cancelled') AND finished_at >= :since")))
_EFFECTS = Statement(
    _EFFECT.where(
        text(
            "(state = 'parked' OR (:parked = 0 AND state IN ('waiting', 'claimed')))"
            " AND (CAST(:target AS TEXT) IS NULL OR target = :target) AND (CAST(:kind AS TEXT) IS NULL OR kind = :kind)"
        )
    )
    .order_by(effects.c.effect_id.desc())
    .limit(bindparam("limit"))
)
_REPOSITORIES = Statement(
    select(repositories)
    .where(repositories.c.upstream == bindparam("upstream"))
    .order_by(repositories.c.downstream)
)
_AUDIT = Statement(
    select(audit)
    .where(audit.c.upstream == bindparam("upstream"))
    .order_by(audit.c.audit_id.desc())
    .limit(bindparam("limit"))
)
_MARKS = ("late", "disputed", "superseded", "unsigned", "imported")


class OperatorViews:
    def __init__(self, database: Database, lists: AllowlistReader) -> None:
        self._database = database
        self._lists = lists

    async def allowlist_text(self, upstream: RepoName) -> str:
        """The text of the allowlist in force."""
        in_force = await self._database.read(lambda tx: text_in_force(tx, upstream))
        if in_force is None:
            raise NoAllowlist(f"no valid allowlist was ever read for {upstream}")
        return in_force

    async def own_records(
        self, upstream: RepoName, since: datetime, until: datetime, named: Collection[str]
    ) -> OwnRecords:
        """Read the dispatches and results of a time, for a comparison with another relay."""
        return await self._database.read(lambda tx: read_own_records(tx, upstream, since, until, named))

    async def contradicted(self, upstream: RepoName, now: datetime) -> ContradictedVerdicts:
        return await self._database.read(lambda tx: load_contradicted(tx, upstream, now))

    async def deliveries(self, upstream: RepoName, *, state: str | None, limit: int) -> list[DeliveryLine]:
        async def unit(tx: Tx) -> list[DeliveryLine]:
            rows = await tx.all(_DELIVERIES, upstream=upstream.key, state=state, limit=limit)
            return [await _read_line(tx, row) for row in rows]

        return await self._database.read(unit)

    async def delivery(self, guid: str, upstream: RepoName | None) -> DeliveryDetail:
        """Return one delivery with its dispatches, effects and jobs; without `upstream`, of any upstream."""

        async def unit(tx: Tx) -> DeliveryDetail:
            row = await tx.one(_BY_GUID, guid=guid, upstream=upstream.key if upstream else None)
            if row is None:
                hint = "`crcr deliveries list` shows them; very old ones are no longer kept"
                raise NotFound(f"there is no delivery {guid[:64]}", hint=hint)
            return await _read_detail(tx, row)

        return await self._database.read(unit)

    async def body(self, delivery: DeliveryLine) -> bytes | None:
        """Return the webhook's body as it came, while it is kept."""
        row = await self._database.read(
            lambda tx: tx.one(_BODY, guid=delivery.guid, upstream=delivery.upstream)
        )
        return decompress_body(row["body"]) if row and row["body"] is not None else None

    async def effects(
        self, upstream: RepoName, *, parked: bool, target: str | None, kind: str | None, limit: int
    ) -> list[EffectLine]:
        """Return open and parked effects, newest first; finished ones are left out."""
        filters = {"parked": int(parked), "target": target, "kind": kind, "limit": limit}
        rows = await self._database.read(lambda tx: tx.all(_EFFECTS, upstream=upstream.key, **filters))
        return [_effect(row) for row in rows]

    async def health(self, upstream: RepoName, now: datetime) -> Health:
        facts = await self._database.read(lambda tx: health_facts(tx, upstream))
        return judge_health(facts, now)

    async def failing(self, query: FailingQuery, now: datetime) -> FailingPage:
        async def unit(tx: Tx) -> FailingPage:
            visible = await visible_backends(tx, self._lists, query.upstream, everything=True)
            return await failing_page(tx, query, visible, now)

        return await self._database.read(unit)

    async def bisections(self, query: BisectionQuery) -> BisectionPage:
        async def unit(tx: Tx) -> BisectionPage:
            visible = await visible_backends(tx, self._lists, query.upstream, everything=True)
            return await bisection_page(tx, query, visible)

        return await self._database.read(unit)

    async def bisection(self, upstream: RepoName, bisection_id: int) -> BisectionDetail:
        async def unit(tx: Tx) -> BisectionDetail:
            visible = await visible_backends(tx, self._lists, upstream, everything=True)
            try:
                return await bisection_detail(tx, upstream, bisection_id, visible)
            except NotFound as missing:
                hint = "one of a backend that is no longer listed at L2 or above is not shown either"
                raise NotFound(missing.detail, hint=hint) from None

        return await self._database.read(unit)

    async def outdated_fingerprints(self, upstream: RepoName) -> int:
        """How many failures wait for fingerprints by the rules of this release."""
        return await self._database.read(lambda tx: count_left(tx, upstream))

    async def repositories(self, upstream: RepoName) -> list[RepositoryLine]:
        async def unit(tx: Tx) -> list[RepositoryLine]:
            listed = await self._read_allowlist(tx, upstream)
            return [_repository(row, listed) for row in await tx.all(_REPOSITORIES, upstream=upstream.key)]

        return await self._database.read(unit)

    async def audit(self, upstream: RepoName, *, limit: int) -> list[AuditLine]:
        rows = await self._database.read(lambda tx: tx.all(_AUDIT, upstream=upstream.key, limit=limit))
        return [
            AuditLine(from_us(row["at"]), row["who"], row["act"], row["subject"], json.loads(row["detail"]))
            for row in rows
        ]

    async def allowlist(self, upstream: RepoName) -> tuple[AllowlistState, Allowlist]:
        async def unit(tx: Tx) -> tuple[AllowlistState, Allowlist]:
            return await allowlist_state(tx, upstream), await self._read_allowlist(tx, upstream)

        return await self._database.read(unit)

    async def _read_allowlist(self, tx: Tx, upstream: RepoName) -> Allowlist:
        try:
            return await self._lists.in_force(tx, upstream)
        except NoAllowlist:
            return Allowlist(())


async def _read_detail(tx: Tx, row: Row) -> DeliveryDetail:
    key = {"upstream": row["upstream"], "guid": row["guid"]}
    jobs = await tx.all(_JOBS, **key)
    queued = await _read_effects(tx, row)
    dispatches = await tx.all(_DISPATCHES, **key)
    targets = {dispatch["downstream"] for dispatch in dispatches}
    return DeliveryDetail(
        delivery=await _read_line(tx, row),
        dispatches=tuple(_dispatch(dispatch, queued, jobs) for dispatch in dispatches),
        effects=tuple(_effect(effect) for effect in queued if effect["target"] not in targets),
    )


async def _read_effects(tx: Tx, delivery: Row) -> list[Row]:
    key = {"upstream": delivery["upstream"], "guid": delivery["guid"]}
    rows = [
        *await tx.all(_OPEN_OF, **key),
        *await tx.all(_PARKED_OF, **key),
        *await tx.all(_OVER_OF, since=delivery["received_at"], **key),
    ]
    return sorted(rows, key=lambda row: row["effect_id"])


async def _read_line(tx: Tx, row: Row) -> DeliveryLine:
    counts = await tx.all(_COUNTS, upstream=row["upstream"], guid=row["guid"])
    return DeliveryLine(
        dispatches={row["state"]: row["number"] for row in counts},
        **_converted(row, times=("received_at",), flags=("body_kept",)),
    )


def _dispatch(row: Row, queued: list[Row], jobs: list[Row]) -> DispatchLine:
    key = row["downstream"]
    return DispatchLine(
        downstream=row["name"],
        level=Level(row["level"]).name,
        state=row["state"],
        reason=row["reason"],
        test=bool(row["test"]),
        unsure=bool(row["unsure"]),
        created_at=from_us(row["created_at"]),
        sent_at=from_us_or_none(row["sent_at"]),
        superseded_at=from_us_or_none(row["superseded_at"]),
        answer=row["answer"],
        trimmed=trimmed_fields(row),
        effects=tuple(_effect(effect) for effect in queued if effect["target"] == key),
        jobs=tuple(_job(job) for job in jobs if job["downstream"] == key),
    )


def _effect(row: Row) -> EffectLine:
    times = ("created_at", "due_at", "finished_at")
    return EffectLine(
        **{
            **_converted(row, times=times, flags=("unsure",)),
            **(waiting_reason(row) if row["state"] in ("waiting", "claimed") else NOTHING_HINDERS),
        }
    )


def _job(row: Row) -> JobLine:
    return JobLine(
        workflow=row["workflow_name"],
        started_at=from_us(row["in_progress_at"]),
        completed_at=from_us_or_none(row["completed_at"]),
        marks=tuple(mark for mark in _MARKS if row[mark]),
        **{
            name: row[name]
            for name in (
                "run_id",
                "attempt",
                "job_name",
                "state",
                "conclusion",
                "queue_s",
                "execution_s",
                "url",
            )
        },
    )


def _repository(row: Row, listed: Allowlist) -> RepositoryLine:
    entry = listed.find(RepoName(row["downstream"]))
    return RepositoryLine(
        name=row["name"],
        level=entry.level.name if entry else None,
        repository_id=row["repository_id"],
        confirmed=bool(row["confirmed"]),
        bound_at=from_us_or_none(row["bound_at"]),
        installation_id=row["installation_id"],
        suspended_at=from_us_or_none(row["suspended_at"]),
        alarm=row["alarm"],
    )


def _converted(row: Row, *, times: tuple[str, ...], flags: tuple[str, ...]) -> dict[str, Any]:
    """Return a row's columns as fields, with times and flags converted to Python's types."""
    values = dict(row)
    values |= {name: from_us_or_none(row[name]) for name in times}
    return values | {name: bool(row[name]) for name in flags}
