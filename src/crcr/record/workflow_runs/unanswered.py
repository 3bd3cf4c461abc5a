"""Dispatches without an answer: which of them should have one, and the look-ups that are queued for these.

An answer is expected from L2 on, of a backend that has answered such an event in the last 14 days; of an L4 backend
always.
"""

from datetime import datetime, timedelta

from sqlalchemy import text

from crcr.decide.allowlist.entries import AllowlistEntry
from crcr.decide.model import Level, RepoName
from crcr.errors import NoAllowlist
from crcr.record.change_and_audit_log import note_change
from crcr.record.outbox.effects import add_once
from crcr.record.repositories.allowlists import Allowlists
from crcr.record.store.database import Database, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import to_us
from crcr.record.workflow_runs.lookup_effects import look_up_effect

_SEARCHED_BACK = timedelta(days=2)
_ANSWERED_WITHIN = timedelta(days=14)

_UNANSWERED = Statement(
    text(
        "SELECT d.delivery, d.event FROM dispatches d WHERE d.upstream = :upstream AND d.downstream = :downstream"
        " AND d.event IN ('pull_request', 'push', 'merge_group')"
        " AND d.created_at > :since AND d.created_at <= :until AND d.state = 'sent'"
        # A run that was running at the last look-up may be over by now.
        " AND (d.answer IS NULL OR (d.answer = 'running' AND d.listed_at <= :until))"
        " AND d.test = 0 AND d.imported = 0 AND d.superseded_at IS NULL AND d.level >= 2"
        " AND (d.action IS NULL OR d.action IN ('opened', 'reopened', 'synchronize', 'checks_requested'))"
        " AND d.sent_at <= :until AND NOT EXISTS (SELECT 1 FROM runs n WHERE n.delivery = d.delivery"
        " AND n.upstream = d.upstream AND n.downstream = d.downstream AND n.reported = 1)"
    )
)
_ANSWERED_BEFORE = Statement(
    text(
        "SELECT 1 FROM dispatches d WHERE d.upstream = :upstream AND d.downstream = :downstream"
        " AND d.created_at > :since AND d.event = :event AND EXISTS (SELECT 1 FROM runs n WHERE n.delivery = d.delivery"
        " AND n.upstream = d.upstream AND n.downstream = d.downstream AND n.reported = 1) LIMIT 1"
    )
)
_NOT_LISTENING = Statement(
    text(
        "UPDATE dispatches SET answer = 'not_listening' WHERE delivery = :delivery"
        " AND upstream = :upstream AND downstream = :downstream AND answer IS NULL"
    )
)


class UnansweredDispatches:
    def __init__(
        self,
        database: Database,
        allowlists: Allowlists,
        upstreams: tuple[RepoName, ...],
        job_timeout: timedelta,
    ) -> None:
        self._database = database
        self._allowlists = allowlists
        self._upstreams = upstreams
        self._job_timeout = job_timeout

    async def request_look_ups(self, now: datetime) -> int:
        """Queue look-ups of the unanswered dispatches whose answer is expected; return how many."""
        queued = 0
        for upstream in self._upstreams:
            for entry in await self._entries(upstream):
                queued += await self._request_for_entry(upstream, entry, now)
        return queued

    async def _entries(self, upstream: RepoName) -> list[AllowlistEntry]:
        try:
            allowlist = await self._allowlists.current(upstream)
        except NoAllowlist:
            return []
        return [entry for entry in allowlist.entries if entry.level >= Level.L2]

    async def _request_for_entry(self, upstream: RepoName, entry: AllowlistEntry, now: datetime) -> int:
        timeout = timedelta(seconds=entry.job_timeout_s) if entry.job_timeout_s else self._job_timeout
        until = now - timeout
        key = {"upstream": upstream.key, "downstream": entry.name.key}

        async def unit(tx: Tx) -> int:
            rows = await tx.all(_UNANSWERED, since=to_us(until - _SEARCHED_BACK), until=to_us(until), **key)
            queued = 0
            for row in rows:
                if await self._is_expected(tx, entry, row["event"], key, now):
                    await add_once(tx, look_up_effect(upstream, row["delivery"], entry.name.key, now))
                    queued += 1
                else:
                    await tx.run(_NOT_LISTENING, delivery=row["delivery"], **key)
                    changed = {"downstream": entry.name.key, "delivery": row["delivery"]}
                    await note_change(tx, upstream, "dispatch", now=now, **changed)
            return queued

        unanswered = await self._database.quick_read(
            lambda tx: tx.one(_UNANSWERED, since=to_us(until - _SEARCHED_BACK), until=to_us(until), **key)
        )
        return await self._database.write(unit) if unanswered else 0

    async def _is_expected(
        self, tx: Tx, entry: AllowlistEntry, event: str, key: dict[str, str], now: datetime
    ) -> bool:
        if entry.level is Level.L4 and event != "push":
            return True
        return (
            await tx.one(_ANSWERED_BEFORE, event=event, since=to_us(now - _ANSWERED_WITHIN), **key)
            is not None
        )
