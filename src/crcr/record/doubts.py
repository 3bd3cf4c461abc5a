"""Doubts about a pull request's head, and GitHub's answer that ends them."""

from datetime import datetime

from sqlalchemy import text

from crcr.decide.model import DeliveryState, RepoName
from crcr.decide.ordering import believe, is_head
from crcr.decide.outside import PullFacts
from crcr.decide.upstream import HEAD_IN_DOUBT
from crcr.record.allowlists import Allowlists
from crcr.record.database import Database, Tx
from crcr.record.dispatch_rows import SUPERSEDE, drop_held, held_dispatches, release
from crcr.record.log_rows import note_change
from crcr.record.pull_rows import load_pull, save_pull
from crcr.record.statement import Statement
from crcr.record.times import to_us

_SETTLE = Statement(
    text(
        "UPDATE deliveries SET state = :state, reason = :reason WHERE guid = :guid AND upstream = :upstream AND state = 'in_doubt'"
    )
)
_IN_DOUBT = Statement(
    text(
        "SELECT d.number, d.head_sha, d.action, u.installation_id FROM deliveries d"
        " LEFT JOIN upstreams u ON u.upstream = d.upstream"
        " WHERE d.guid = :guid AND d.upstream = :upstream AND d.state = 'in_doubt'"
    )
)


class Doubts:
    def __init__(self, database: Database, allowlists: Allowlists) -> None:
        self._database = database
        self._allowlists = allowlists

    async def in_doubt(self, upstream: RepoName, delivery: str) -> tuple[int, int | None] | None:
        """The pull request to ask about, and the installation to ask with; None when the doubt has ended."""
        row = await self._database.glance(lambda tx: tx.one(_IN_DOUBT, guid=delivery, upstream=upstream.key))
        return (row["number"], row["installation_id"]) if row else None

    async def settle(self, upstream: RepoName, delivery: str, facts: PullFacts, now: datetime) -> None:
        """Dispatch the delivery if its head is the head, else let it go."""
        await self._database.write(lambda tx: self._settle(tx, upstream, delivery, facts, now))

    async def _settle(
        self, tx: Tx, upstream: RepoName, delivery: str, facts: PullFacts, now: datetime
    ) -> None:
        row = await tx.one(_IN_DOUBT, guid=delivery, upstream=upstream.key)
        if row is None:
            return
        number = row["number"]
        held = await held_dispatches(tx, upstream, number, HEAD_IN_DOUBT, delivery=delivery)
        if is_head(row["head_sha"], row["action"], facts):
            await self._end(tx, upstream, delivery, DeliveryState.ACCEPTED, None)
            await self._believe(tx, upstream, number, facts, now)
            await release(tx, upstream, held, await self._allowlists.in_force(tx, upstream), now)
        else:
            reason = f"GitHub says that the head is {facts.head_sha[:12]}"
            await self._end(tx, upstream, delivery, DeliveryState.SUPERSEDED, reason)
            await drop_held(tx, upstream, held, now)
        await note_change(tx, upstream, "delivery", delivery=delivery, number=number, now=now)

    async def _end(
        self, tx: Tx, upstream: RepoName, delivery: str, state: DeliveryState, reason: str | None
    ) -> None:
        await tx.run(_SETTLE, guid=delivery, upstream=upstream.key, state=state.value, reason=reason)

    async def _believe(
        self, tx: Tx, upstream: RepoName, number: int, facts: PullFacts, now: datetime
    ) -> None:
        known = await load_pull(tx, upstream, number)
        if known is not None:
            await save_pull(tx, upstream, believe(known, facts))
        await tx.run(SUPERSEDE, upstream=upstream.key, number=number, head_sha=facts.head_sha, at=to_us(now))
