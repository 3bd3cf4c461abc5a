"""Inspections of downstreams: requested at most once a minute, with GitHub's last answer.

The effect has a queue of its own beside the downstream's: an inspection must go through just when the dispatches
do not, and must not hold them up when they do.
"""

from datetime import datetime, timedelta

import msgspec
from sqlalchemy import text

from crcr.decide.github.repository_setup import Inspection
from crcr.decide.model import EffectKind, RepoName
from crcr.record.change_and_audit_log import note_change
from crcr.record.outbox.effects import add_once, effect_row
from crcr.record.store.database import Database, Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us_or_none, to_us

ASKED_AT_MOST_EVERY = timedelta(minutes=1)

_REQUEST = Statement(
    text(
        "INSERT INTO inspections (upstream, downstream, asked_at) VALUES (:upstream, :downstream, :now)"
        " ON CONFLICT (upstream, downstream) DO UPDATE SET asked_at = excluded.asked_at"
        " WHERE inspections.asked_at <= :before"
    )
)
_RECORD = Statement(
    text(
        "INSERT INTO inspections (upstream, downstream, asked_at, inspected_at, found)"
        " VALUES (:upstream, :downstream, :now, :now, :found) ON CONFLICT (upstream, downstream)"
        " DO UPDATE SET inspected_at = excluded.inspected_at, found = excluded.found"
    )
)
_READS_ACTIONS = Statement(
    text(
        "UPDATE repositories SET reads_actions = :reads_actions WHERE upstream = :upstream AND downstream = :downstream"
    )
)
_INSPECTION = Statement(
    text(
        "SELECT asked_at, inspected_at, found FROM inspections"
        " WHERE upstream = :upstream AND downstream = :downstream"
    )
)
_BOUND = Statement(
    text("SELECT repository_id FROM repositories WHERE upstream = :upstream AND downstream = :downstream")
)


class Inspections:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def ask(self, upstream: RepoName, downstream: RepoName, now: datetime) -> bool:
        """Queue an inspection; False when another was queued less than a minute ago, whose answer serves as well."""

        async def unit(tx: Tx) -> bool:
            before = to_us(now - ASKED_AT_MOST_EVERY)
            is_due = await tx.run(_REQUEST, now=to_us(now), before=before, **_key(upstream, downstream))
            if not is_due:
                return False
            effect = effect_row(
                upstream,
                EffectKind.INSPECT_REPOSITORY,
                target=f"inspect {downstream.key}",
                lane=downstream.key,
                now=now,
            )
            await add_once(tx, effect)
            return True

        return await self._database.write(unit)

    async def find(self, upstream: RepoName, downstream: RepoName) -> Inspection | None:
        row = await self._database.quick_read(lambda tx: tx.one(_INSPECTION, **_key(upstream, downstream)))
        return inspection_from(row)

    async def bound_id(self, upstream: RepoName, downstream: RepoName) -> int | None:
        """The id of the admitted repository; None while it is unknown."""
        row = await self._database.quick_read(lambda tx: tx.one(_BOUND, **_key(upstream, downstream)))
        return row["repository_id"] if row else None

    async def note(
        self, upstream: RepoName, downstream: RepoName, inspection: Inspection, now: datetime
    ) -> None:
        async def unit(tx: Tx) -> None:
            content = msgspec.json.encode(inspection).decode()
            await tx.run(_RECORD, found=content, now=to_us(now), **_key(upstream, downstream))
            if inspection.installation is not None:
                reads = int(inspection.installation.reads_actions)
                await tx.run(_READS_ACTIONS, reads_actions=reads, **_key(upstream, downstream))
            await note_change(tx, upstream, "backend", downstream=downstream.key, now=now)

        await self._database.write(unit)


async def read_inspection(
    tx: Tx, upstream: RepoName, downstream: RepoName
) -> tuple[datetime | None, datetime | None, Inspection | None]:
    """When it was requested, when GitHub was queried, and the answer."""
    row = await tx.one(_INSPECTION, **_key(upstream, downstream))
    if row is None:
        return None, None, None
    return from_us_or_none(row["asked_at"]), from_us_or_none(row["inspected_at"]), inspection_from(row)


def inspection_from(row: Row | None) -> Inspection | None:
    if row is None or row["found"] is None:
        return None
    try:
        return msgspec.json.decode(row["found"], type=Inspection)
    except msgspec.DecodeError:  # written by another release: the page requests a new one
        return None


def _key(upstream: RepoName, downstream: RepoName) -> dict[str, str]:
    return {"upstream": upstream.key, "downstream": downstream.key}
