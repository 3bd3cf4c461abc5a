"""Refused reports, for the page of the upstream that they are about: the newest few, without bodies.

Where that upstream is unknown, each upstream that lists the sender gets a copy; a copy must not reveal to the readers of
one upstream that another lists the sender without being public. A sender on no allowlist leaves no row. A row has the
sender's error text, and the names by which maintainers find the run; all texts are cut, and shown as plain text.
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

KEPT_PER_BACKEND = 50
"""How many rows are kept for each backend of each upstream."""

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
_DELETE_SAME_CODE = Statement(
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
    """Records refused callbacks."""

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
        """Add the refusal for every upstream concerned. For a caller on no allowlist this writes nothing."""
        entries = await self._database.quick_read(lambda tx: self._find_listing_upstreams(tx, refusal.caller))
        if not entries:
            return

        async def unit(tx: Tx) -> None:
            for upstream, copy in _copies_by_upstream(refusal, entries):
                await self._add(tx, upstream, copy, now)

        await self._database.write(unit)

    async def _find_listing_upstreams(self, tx: Tx, caller: RepoName) -> dict[RepoName, AllowlistEntry]:
        entries = {}
        for upstream in self._upstreams:
            try:
                allowlist = await self._lists.in_force(tx, upstream)
            except NoAllowlist:
                continue
            entry = allowlist.find(caller)
            if entry is not None:
                entries[upstream] = entry
        return entries

    async def _add(self, tx: Tx, upstream: RepoName, refusal: RefusedReport, now: datetime) -> None:
        target = await self._targets.find(tx, upstream, refusal.caller)
        shown = for_bound_repository(refusal, target.binding if target else None)
        key = {"upstream": upstream.key, "downstream": shown.caller.key}
        if shown.code in KEPT_ONCE:
            await tx.run(_DELETE_SAME_CODE, **key, code=shown.code)
        await tx.run(_ADD, **key, at=to_us(now), **_row(shown))
        await tx.run(_PRUNE, **key, kept=KEPT_PER_BACKEND)
        await note_change(tx, upstream, "refusal", downstream=shown.caller.key, now=now)


def _copies_by_upstream(
    refusal: RefusedReport, entries: dict[RepoName, AllowlistEntry]
) -> list[tuple[RepoName, RefusedReport]]:
    """Return the upstreams whose pages show the refusal, each with its copy."""
    if refusal.upstream is not None and refusal.upstream in entries:
        return [(refusal.upstream, refusal)]
    not_public = {name for name, entry in entries.items() if entry.visibility is not Visibility.PUBLIC}
    return [(name, without_run(refusal) if not_public - {name} else refusal) for name in entries]


def _row(refusal: RefusedReport) -> dict[str, Any]:
    texts = {
        "code": refusal.code,
        "detail": refusal.detail,
        "hint": refusal.hint,
        "delivery": refusal.delivery_id,
        "run_id": refusal.run_id,
        "workflow_name": refusal.workflow_name,
        "job_name": refusal.job_name,
    }
    return {name: cut(value, _LONGEST[name]) for name, value in texts.items()}


def cut(content: str | None, longest: int) -> str | None:
    return content if content is None or len(content) <= longest else f"{content[: longest - 1]}…"
