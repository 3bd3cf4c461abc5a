"""Deliveries in doubt: events that disagree about a pull request's head or base, settled by asking GitHub."""

from dataclasses import replace
from datetime import datetime

from sqlalchemy import text

from crcr.decide.dispatch.ordering import agrees_with_github, apply_github_answer
from crcr.decide.dispatch.plan import Drop
from crcr.decide.github.requests_and_answers import PullFacts
from crcr.decide.model import DeliveryState, KnownPull, RepoName
from crcr.record.change_and_audit_log import note_change
from crcr.record.checks.refresh import CheckRefresher
from crcr.record.deliveries.dispatches import drop_held, drop_unsent, find_held_of_pull, reconsider_held
from crcr.record.deliveries.pull_requests import load_pull, save_pull
from crcr.record.repositories.allowlists import Allowlists
from crcr.record.store.database import Database, Tx
from crcr.record.store.statement import Statement

_SETTLE = Statement(
    text(
        "UPDATE deliveries SET state = :state, reason = :reason, base_ref = coalesce(base_ref, :base_ref)"
        " WHERE guid = :guid AND upstream = :upstream AND state = 'in_doubt'"
    )
)
_IN_DOUBT = Statement(
    text(
        "SELECT d.number, d.head_sha, d.base_ref, d.action, d.relay_reason, u.installation_id FROM deliveries d"
        " LEFT JOIN upstreams u ON u.upstream = d.upstream"
        " WHERE d.guid = :guid AND d.upstream = :upstream AND d.state = 'in_doubt'"
    )
)


class HeadConflicts:
    def __init__(self, database: Database, allowlists: Allowlists, refresher: CheckRefresher) -> None:
        self._database = database
        self._allowlists = allowlists
        self._refresher = refresher

    async def in_doubt(self, upstream: RepoName, delivery: str) -> tuple[int, int | None] | None:
        """The pull request's number and the installation id for the query; None when the delivery is no longer in doubt."""
        row = await self._database.quick_read(
            lambda tx: tx.one(_IN_DOUBT, guid=delivery, upstream=upstream.key)
        )
        return (row["number"], row["installation_id"]) if row else None

    async def settle(self, upstream: RepoName, delivery: str, facts: PullFacts, now: datetime) -> bool:
        """Dispatch the delivery if GitHub confirms its head, else supersede it; False when the answer is older than the event."""
        return await self._database.write(lambda tx: self._settle(tx, upstream, delivery, facts, now))

    async def _settle(
        self, tx: Tx, upstream: RepoName, delivery: str, facts: PullFacts, now: datetime
    ) -> bool:
        key = {"guid": delivery, "upstream": upstream.key}
        row = await tx.one(_IN_DOUBT, **key)
        known = await load_pull(tx, upstream, row["number"]) if row else None
        if row is None or known is None:
            return True
        # GitHub's API reads from replicas that may lag behind the webhooks it has sent.
        if facts.updated_at < known.updated_at:
            return False
        if agrees_with_github(row["head_sha"], row["base_ref"] or facts.base_ref, row["action"], facts):
            reason = f"base changed to {facts.base_ref}" if row["relay_reason"] else None
            await self._end(tx, key, DeliveryState.ACCEPTED, reason=reason, base_ref=facts.base_ref)
            await self._accept(tx, upstream, apply_github_answer(known, facts), now)
        else:
            reason = f"GitHub says that the head is {facts.head_sha[:12]} on {facts.base_ref}"
            await self._end(tx, key, DeliveryState.SUPERSEDED, reason=reason)
            held = await find_held_of_pull(tx, upstream, known.number, delivery=delivery)
            await drop_held(tx, upstream, held, now)
            if facts.head_sha == known.head_sha and facts.base_ref != known.base_ref:
                # A third base without an event yet: its first event is dispatched, and the gate does not pass before.
                await save_pull(
                    tx, upstream, replace(known, base_ref=facts.base_ref, base_at=facts.updated_at)
                )
        await self._refresher.request_refresh(
            tx, upstream, {known.head_sha, row["head_sha"], facts.head_sha}, now
        )
        await note_change(tx, upstream, "delivery", delivery=delivery, number=known.number, now=now)
        return True

    async def _accept(self, tx: Tx, upstream: RepoName, pull: KnownPull, now: datetime) -> None:
        await save_pull(tx, upstream, pull)
        await drop_unsent(tx, upstream, pull, Drop.OLDER_HEADS if pull.is_open else Drop.ALL_BUT_CLOSED, now)
        await reconsider_held(tx, upstream, pull, await self._allowlists.in_force(tx, upstream), now)

    async def _end(self, tx: Tx, key: dict[str, str], state: DeliveryState, **columns: str | None) -> None:
        await tx.run(_SETTLE, state=state.value, **{"base_ref": None, **columns}, **key)
