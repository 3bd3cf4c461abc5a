"""Refused reports, for the page of the upstream that they are about: the newest few, and no bodies.

Where nobody can tell which one that is, each upstream that lists the sender has it. A listing that is not public must
not be found out on the page of another. Who is on no allowlist leaves nothing here. A row holds what the sender was told, and the names by which its
maintainers find the run; all of it is cut, and shown as text.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import text

from crcr.decide.allowlist.entries import AllowlistEntry, Visibility
from crcr.decide.jobs.refusal import KEPT_ONCE, RefusedReport, for_bound_repository, without_run
from crcr.decide.model import RepoName
from crcr.errors import NoAllowlist
from crcr.record.change_and_audit_log import note_change
from crcr.record.repositories.downstreams import Downstreams
from crcr.record.schema.joining import refusals
from crcr.record.store.database import Database, Tx
from crcr.record.store.statement import Statement, inserting
from crcr.record.store.times import to_us
from crcr.record.views.visibility import AllowlistReader

KEPT = 50
"""For each backend of each upstream."""

_LONGEST = {
    "code": 60,
    "detail": 600,
    "hint": 600,
    "delivery": 100,
    "run_id": 256,
    "workflow_name": 256,
    "job_name": 256,
}
_ADD = Statement(inserting(refusals, "upstream", "downstream", "at", *_LONGEST))
_TAKE_PLACE = Statement(
    text("DELETE FROM refusals WHERE upstream = :upstream AND downstream = :downstream AND code = :code")
)
_PRUNE = Statement(
    text(
        "DELETE FROM refusals WHERE upstream = :upstream AND downstream = :downstream AND refusal_id <="
        " (SELECT refusal_id FROM refusals WHERE upstream = :upstream AND downstream = :downstream"
        " ORDER BY refusal_id DESC LIMIT 1 OFFSET :kept)"
    )
)
# Ids grow with time, so the old ones are the first.
FORGET_REFUSALS = Statement(
    text(
        "DELETE FROM refusals WHERE at < :before AND refusal_id IN (SELECT refusal_id FROM refusals"
        " WHERE refusal_id > 0 ORDER BY refusal_id LIMIT :most)"
    )
)


class Refusals:
    """Serves the callback's `Refusals`."""

    def __init__(
        self,
        database: Database,
        lists: AllowlistReader,
        targets: Downstreams,
        upstreams: tuple[RepoName, ...],
    ) -> None:
        self._database = database
        self._lists = lists
        self._targets = targets
        self._upstreams = upstreams

    async def note(self, refusal: RefusedReport, now: datetime) -> None:
        """A stranger costs a look at the lists, and no write."""
        listing = await self._database.quick_read(lambda tx: self._listing(tx, refusal.caller))
        if not listing:
            return

        async def unit(tx: Tx) -> None:
            for upstream, kept in _placed(refusal, listing):
                await self._keep(tx, upstream, kept, now)

        await self._database.write(unit)

    async def _listing(self, tx: Tx, caller: RepoName) -> dict[RepoName, AllowlistEntry]:
        found = {}
        for upstream in self._upstreams:
            try:
                allowlist = await self._lists.in_force(tx, upstream)
            except NoAllowlist:
                continue
            entry = allowlist.find(caller)
            if entry is not None:
                found[upstream] = entry
        return found

    async def _keep(self, tx: Tx, upstream: RepoName, refusal: RefusedReport, now: datetime) -> None:
        known = await self._targets.find(tx, upstream, refusal.caller)
        kept = for_bound_repository(refusal, known.binding if known else None)
        where = {"upstream": upstream.key, "downstream": kept.caller.key}
        if kept.code in KEPT_ONCE:
            await tx.run(_TAKE_PLACE, **where, code=kept.code)
        await tx.run(_ADD, **where, at=to_us(now), **_row(kept))
        await tx.run(_PRUNE, **where, kept=KEPT)
        await note_change(tx, upstream, "refusal", downstream=kept.caller.key, now=now)


def _placed(
    refusal: RefusedReport, listing: dict[RepoName, AllowlistEntry]
) -> list[tuple[RepoName, RefusedReport]]:
    """On whose pages it stands, and how."""
    if refusal.upstream is not None and refusal.upstream in listing:
        return [(refusal.upstream, refusal)]
    shy = {name for name, entry in listing.items() if entry.visibility is not Visibility.PUBLIC}
    return [(name, without_run(refusal) if shy - {name} else refusal) for name in listing]


def _row(refusal: RefusedReport) -> dict[str, Any]:
    said = {
        "code": refusal.code,
        "detail": refusal.detail,
        "hint": refusal.hint,
        "delivery": refusal.delivery_id,
        "run_id": refusal.run_id,
        "workflow_name": refusal.workflow_name,
        "job_name": refusal.job_name,
    }
    return {name: cut(value, _LONGEST[name]) for name, value in said.items()}


def cut(said: str | None, most: int) -> str | None:
    return said if said is None or len(said) <= most else f"{said[: most - 1]}…"
