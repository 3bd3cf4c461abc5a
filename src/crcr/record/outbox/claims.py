"""The outbox: a worker claims effects with a lease, carries them out, and finishes those whose lease it holds.

A claim takes at most one effect of each target, the oldest due one whose lane is free, so its cost follows the
number of targets and not the length of their queues. An effect whose lease ran out,
or whose owner is gone (`WorkerRegistry`), becomes free and is marked `unsure`: its former owner may have carried it out.
A former owner can change nothing any more.
"""

import json
from datetime import datetime, timedelta

from sqlalchemy import text

from crcr.decide.dispatch.plan import SHADOW_REASON
from crcr.decide.model import EffectKind, RepoName
from crcr.decide.outbox.effect import SHADOWED, ClaimedEffect, FailedAttempt, effect_urgency
from crcr.decide.outbox.retry import GiveUp
from crcr.record.change_and_audit_log import note_change
from crcr.record.checks.refresh import CheckRefresher
from crcr.record.deliveries.dispatches import mark_arrived, mark_sent
from crcr.record.store.database import Database, Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us, to_us

_CLAIM_SQL = """
WITH RECURSIVE queues(target) AS (
  SELECT min(target) FROM effects WHERE upstream = :upstream AND state IN ('waiting', 'claimed')
  UNION ALL
  SELECT (SELECT min(e.target) FROM effects e
          WHERE e.upstream = :upstream AND e.state IN ('waiting', 'claimed') AND e.target > queues.target)
  FROM queues WHERE queues.target IS NOT NULL
), heads(effect_id) AS (
  SELECT (SELECT e.effect_id FROM effects e
          WHERE e.upstream = :upstream AND e.target = queues.target AND e.state IN ('waiting', 'claimed')
          AND e.due_at <= :now
          AND (e.kind <> 'send_dispatch' OR NOT EXISTS (
            SELECT 1 FROM upstreams u WHERE u.upstream = :upstream AND u.paused_at IS NOT NULL))
          AND e.effect_id = (SELECT min(p.effect_id) FROM effects p WHERE p.upstream = e.upstream
                             AND p.target = e.target AND p.lane = e.lane AND p.state IN ('waiting', 'claimed'))
          ORDER BY e.due_at, e.effect_id LIMIT 1)
  FROM queues
  WHERE queues.target IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM effects c WHERE c.upstream = :upstream AND c.target = queues.target
    AND c.state = 'claimed' AND c.lease_until > :now)
), picked(effect_id) AS (
  SELECT e.effect_id FROM {heads} ORDER BY e.due_at, e.effect_id LIMIT :most {lock}
)
UPDATE effects SET
  unsure = CASE WHEN state = 'claimed' THEN 1 ELSE unsure END,
  state = 'claimed', lease_owner = :owner, lease_until = :lease_until, attempts = attempts + 1, held_by = NULL,
  first_attempt_at = coalesce(first_attempt_at, :now)
WHERE effect_id IN (SELECT effect_id FROM picked)
AND (state = 'waiting' OR (state = 'claimed' AND lease_until <= :now))
RETURNING effect_id, upstream, kind, target, lane, delivery, payload, attempts, unsure, created_at,
  first_attempt_at, lease_until
"""
# Locked rows are left to the next claim, which the other transaction's commit wakes. An array, because PostgreSQL
# would otherwise join the whole table of effects: it cannot estimate the number of heads.
_CLAIM = Statement(
    text(_CLAIM_SQL.format(heads="heads h JOIN effects e ON e.effect_id = h.effect_id", lock="")),
    on_postgresql=text(
        _CLAIM_SQL.format(
            heads="effects e WHERE e.effect_id = ANY (ARRAY(SELECT effect_id FROM heads))",
            lock="FOR UPDATE OF e SKIP LOCKED",
        )
    ),
)
_CLAIMS = "claims"
"""The lane of all claims: at most one effect of a target may be in flight, over all workers."""
_RENEWALS = "renewals"
_ALONE_EVERY = timedelta(seconds=2)
"""Under a constant stream of reports the effect that they share is always locked by one of them; a claim that runs
alone finds no locked row."""
_ATTEMPTED = Statement(
    text(
        "UPDATE dispatches SET attempted_at = :at, unsure = CASE WHEN :unsure = 1 THEN 1 ELSE unsure END"
        " WHERE upstream = :upstream AND delivery = :delivery AND downstream = :target"
    )
)
_DONE = Statement(
    text(
        "UPDATE effects SET state = 'done', finished_at = :at, lease_owner = NULL, lease_until = NULL, payload = NULL"
        " WHERE effect_id = :effect_id AND state = 'claimed' AND lease_owner = :owner"
    )
)
_SHADOW = Statement(
    text(
        "UPDATE effects SET state = 'cancelled', finished_at = :at, last_error = :error, lease_owner = NULL,"
        " lease_until = NULL, payload = NULL WHERE effect_id = :effect_id AND state = 'claimed' AND lease_owner = :owner"
    )
)
_SHADOW_DISPATCH = Statement(
    text(
        "UPDATE dispatches SET reason = :reason WHERE upstream = :upstream AND delivery = :delivery"
        " AND downstream = :downstream AND state = 'sent'"
    )
)
_RETRY = Statement(
    text(
        "UPDATE effects SET state = 'waiting', due_at = :due_at, unsure = CASE WHEN :unsure = 1 THEN 1 ELSE unsure END,"
        " attempts = attempts - :uncounted, last_error = :error, held_by = :held_by, fault = :fault,"
        " fault_since = CASE WHEN CAST(:fault AS TEXT) IS NULL THEN NULL WHEN fault = :fault THEN fault_since"
        " ELSE CAST(:at AS bigint) END, lease_owner = NULL, lease_until = NULL"
        " WHERE effect_id = :effect_id AND state = 'claimed' AND lease_owner = :owner"
    )
)
_POSTPONE = Statement(
    text(
        "UPDATE effects SET state = 'waiting', due_at = :due_at, attempts = attempts - 1, last_error = :error,"
        " lease_owner = NULL, lease_until = NULL"
        " WHERE effect_id = :effect_id AND state = 'claimed' AND lease_owner = :owner"
    )
)
_CANCEL_IF_DROPPED = Statement(
    text(
        "UPDATE effects SET state = 'cancelled', finished_at = :at WHERE effect_id = :effect_id"
        " AND state IN ('waiting', 'parked') AND EXISTS (SELECT 1 FROM dispatches d WHERE d.upstream = :upstream"
        " AND d.delivery = :delivery AND d.downstream = :target AND d.state = 'cancelled')"
    )
)
_NOTE_FAILED_ATTEMPT = Statement(
    text(
        "UPDATE dispatches SET unsure = CASE WHEN :unsure = 1 THEN 1 ELSE unsure END, reason = :error"
        " WHERE upstream = :upstream AND delivery = :delivery AND downstream = :target AND state = 'waiting'"
    )
)
_PARK = Statement(
    text(
        "UPDATE effects SET state = 'parked', finished_at = :at, last_error = :error,"
        " unsure = CASE WHEN :unsure = 1 THEN 1 ELSE unsure END, lease_owner = NULL, lease_until = NULL"
        " WHERE effect_id = :effect_id AND state = 'claimed' AND lease_owner = :owner"
    )
)
_PARKED_DISPATCH = Statement(
    text(
        "UPDATE dispatches SET state = 'parked', reason = :error"
        " WHERE upstream = :upstream AND delivery = :delivery AND downstream = :target AND state = 'waiting'"
    )
)
_RUN_SINCE = Statement(
    text(
        "SELECT 1 FROM runs WHERE delivery = :delivery AND upstream = :upstream AND downstream = :target"
        " AND first_seen_at >= :since LIMIT 1"
    )
)
_DISPATCH = Statement(
    text(
        "SELECT upstream, event, head_sha, level FROM dispatches"
        " WHERE upstream = :upstream AND delivery = :delivery AND downstream = :target"
    )
)
_PAUSE_TARGET = Statement(
    text(
        "UPDATE effects SET due_at = :until WHERE upstream = :upstream AND target = :target"
        " AND state IN ('waiting', 'claimed') AND state = 'waiting' AND due_at < :until"
    )
)
# Microseconds apart, so that they become due in their order. A thousand at a time: a longer transaction would block
# others, and the first of the next thousand holds back those behind it.
_HOLD = (
    "UPDATE effects SET held_by = :held_by, last_error = :error, due_at = :until + effect_id % 1000000"
    " WHERE effect_id IN (SELECT effect_id FROM effects"
    " WHERE upstream = :upstream AND target = :target AND kind = :kind AND state IN ('waiting', 'claimed')"
    " AND state = 'waiting' AND due_at < :until ORDER BY due_at LIMIT 1000{lock})"
)
# A row that another transaction relies on is locked until its commit; it is held back at its own next attempt.
_HOLD_QUEUE = Statement(
    text(_HOLD.format(lock="")), on_postgresql=text(_HOLD.format(lock=" FOR UPDATE SKIP LOCKED"))
)
_RENEW_SQL = """
UPDATE effects SET lease_until = :lease_until WHERE effect_id IN (
  SELECT effect_id FROM effects WHERE effect_id IN ({ids}) AND state = 'claimed' AND lease_owner = :owner {lock})
RETURNING effect_id, lease_until
"""
# Locked rows are left to the next renewal, so that no two transactions wait for each other.
_RENEW = Statement(
    text(_RENEW_SQL.format(ids="SELECT value FROM json_each(:ids)", lock="")),
    on_postgresql=text(
        _RENEW_SQL.format(
            ids="SELECT CAST(id AS bigint) FROM jsonb_array_elements_text(CAST(:ids AS jsonb)) AS id",
            lock="FOR UPDATE SKIP LOCKED",
        )
    ),
)
_RELEASE = Statement(
    text(
        "UPDATE effects SET state = 'waiting', attempts = attempts - 1, lease_owner = NULL, lease_until = NULL"
        " WHERE effect_id = :effect_id AND state = 'claimed' AND lease_owner = :owner"
    )
)
_NEXT_DUE = Statement(
    text("""
WITH RECURSIVE queues(target) AS (
  SELECT min(target) FROM effects WHERE upstream = :upstream AND state IN ('waiting', 'claimed')
  UNION ALL
  SELECT (SELECT min(e.target) FROM effects e
          WHERE e.upstream = :upstream AND e.state IN ('waiting', 'claimed') AND e.target > queues.target)
  FROM queues WHERE queues.target IS NOT NULL
)
SELECT min(CASE WHEN lease IS NOT NULL THEN lease ELSE due END) AS at FROM (
  SELECT (SELECT min(e.due_at) FROM effects e WHERE e.upstream = :upstream AND e.target = queues.target
          AND e.state IN ('waiting', 'claimed') AND e.due_at > :now) AS due,
         (SELECT min(c.lease_until) FROM effects c WHERE c.upstream = :upstream AND c.target = queues.target
          AND c.state = 'claimed' AND c.lease_until > :now) AS lease
  FROM queues WHERE queues.target IS NOT NULL) AS waits
""")
)


class Outbox:
    def __init__(
        self,
        database: Database,
        upstreams: tuple[RepoName, ...],
        refresher: CheckRefresher,
        *,
        owner: str,
        lease: timedelta,
    ) -> None:
        self._database = database
        self._refresher = refresher
        self._upstreams = upstreams
        self._owner = owner
        self._lease = lease
        self._alone_at: datetime | None = None

    async def claim(self, most: int, now: datetime) -> list[ClaimedEffect]:
        """Take up to `most` due effects; a dispatch among them is marked attempted before it is sent."""

        async def unit(tx: Tx) -> list[ClaimedEffect]:
            claimed: list[ClaimedEffect] = []
            for upstream in self._upstreams:
                claimed += await self._claim_for(tx, upstream, most - len(claimed), now)
            return claimed

        # Rotate, so that a busy upstream does not take every claim.
        self._upstreams = (*self._upstreams[1:], *self._upstreams[:1])
        alone = self._alone_at is not None and abs(now - self._alone_at) >= _ALONE_EVERY
        if alone or self._alone_at is None:
            self._alone_at = now
        return await self._database.write(unit, lane=None if alone else _CLAIMS)

    async def finish(
        self, effect: ClaimedEffect, *, began_at: datetime | None, now: datetime, shadowed: bool = False
    ) -> bool:
        """Record that the effect was carried out; False, and nothing recorded, when another worker has taken it over.

        Without `began_at` there was nothing left to do, and its dispatch keeps its state. A shadowed dispatch counts as sent,
        so that everything after it goes on as it would, and says that it was not.
        """

        async def unit(tx: Tx) -> bool:
            claim = {"effect_id": effect.effect_id, "owner": self._owner, "at": to_us(now)}
            held = await (tx.run(_SHADOW, error=SHADOWED, **claim) if shadowed else tx.run(_DONE, **claim))
            if held and began_at is not None and effect.kind is EffectKind.SEND_DISPATCH:
                dispatch = await mark_sent(
                    tx, _dispatch_key(effect), began_at, now, waited_since=effect.created_at
                )
                if shadowed:
                    await tx.run(_SHADOW_DISPATCH, reason=SHADOW_REASON, **_dispatch_key(effect))
                await self._note(tx, effect, dispatch, now)
            return bool(held)

        return await self._database.write(unit, lane=effect.target)

    async def fail(self, effect: ClaimedEffect, failure: FailedAttempt, now: datetime) -> None:
        """Record a failed attempt and its retry decision, unless another worker has taken the effect over."""

        async def unit(tx: Tx) -> None:
            unsure = int(failure.unsure)
            claim_key = {
                "effect_id": effect.effect_id,
                "owner": self._owner,
                "error": failure.error,
                "unsure": unsure,
            }
            if failure.unsure and await self._answered(tx, effect):
                if await tx.run(_DONE, effect_id=effect.effect_id, owner=self._owner, at=to_us(now)):
                    await mark_arrived(tx, _dispatch_key(effect), now, waited_since=effect.created_at)
                return
            if isinstance(failure.decision, GiveUp):
                held = await tx.run(_PARK, at=to_us(now), **claim_key)
                if held and effect.kind is EffectKind.SEND_DISPATCH:
                    await tx.run(_PARKED_DISPATCH, error=failure.error, **_target_key(effect))
                    await self._note(tx, effect, await tx.one(_DISPATCH, **_target_key(effect)), now)
            else:
                due_at = to_us(failure.decision.due_at)
                held = await tx.run(
                    _RETRY,
                    due_at=due_at,
                    uncounted=int(not failure.counts),
                    held_by=failure.held_by,
                    fault=failure.fault,
                    at=to_us(now),
                    **claim_key,
                )
                if held and failure.holds_queue:
                    await self._hold_queue(tx, effect, failure, due_at)
            if held and effect.kind is EffectKind.SEND_DISPATCH:
                await tx.run(_NOTE_FAILED_ATTEMPT, error=failure.error, unsure=unsure, **_target_key(effect))
                await tx.run(
                    _CANCEL_IF_DROPPED, effect_id=effect.effect_id, at=to_us(now), **_target_key(effect)
                )

        await self._database.write(unit, lane=effect.target)

    async def _hold_queue(self, tx: Tx, effect: ClaimedEffect, failure: FailedAttempt, due_at: int) -> None:
        await tx.run(
            _HOLD_QUEUE,
            upstream=effect.upstream.key,
            target=effect.target,
            kind=effect.kind.value,
            until=due_at,
            held_by=failure.held_by,
            error=failure.error,
        )

    async def postpone(self, effect: ClaimedEffect, until: datetime) -> None:
        """Postpone this effect and all waiting ones of its target."""

        async def unit(tx: Tx) -> None:
            at = to_us(until)
            claim_key = {
                "effect_id": effect.effect_id,
                "owner": self._owner,
                "error": "the target is not answering",
            }
            await tx.run(_POSTPONE, due_at=at, **claim_key)
            await tx.run(_PAUSE_TARGET, upstream=effect.upstream.key, target=effect.target, until=at)

        await self._database.write(unit)

    async def renew(self, effect_ids: list[int], now: datetime, *, alone: bool) -> dict[int, datetime]:
        """Renew those of these leases that are still ours; return their new ends. `alone` skips no locked row."""
        parameters = {
            "ids": json.dumps(effect_ids),
            "owner": self._owner,
            "lease_until": to_us(now + self._lease),
        }

        async def unit(tx: Tx) -> list[Row]:
            return await tx.all(_RENEW, **parameters)

        renewed = await self._database.write(unit, lane=None if alone else _RENEWALS)
        return {row["effect_id"]: from_us(row["lease_until"]) for row in renewed}

    async def release(self, effects: list[ClaimedEffect]) -> None:
        """Release effects that were claimed and not begun."""

        async def unit(tx: Tx) -> None:
            for effect in effects:
                await tx.run(_RELEASE, effect_id=effect.effect_id, owner=self._owner)

        await self._database.write(unit)

    async def next_due(self, now: datetime) -> datetime | None:
        """When the next effect becomes due that is not due now."""

        async def unit(tx: Tx) -> list[Row | None]:
            return [
                await tx.one(_NEXT_DUE, upstream=upstream.key, now=to_us(now)) for upstream in self._upstreams
            ]

        due = [row["at"] for row in await self._database.quick_read(unit) if row and row["at"] is not None]
        return from_us(min(due)) if due else None

    async def _claim_for(self, tx: Tx, upstream: RepoName, most: int, now: datetime) -> list[ClaimedEffect]:
        at = to_us(now)
        rows = await tx.all(
            _CLAIM,
            upstream=upstream.key,
            now=at,
            most=most,
            owner=self._owner,
            lease_until=to_us(now + self._lease),
        )
        # The most urgent first, then in the order of their ids; an UPDATE returns rows in no order.
        claimed = sorted((_effect_from(row, upstream) for row in rows), key=_order)
        sends = [effect for effect in claimed if effect.kind is EffectKind.SEND_DISPATCH]
        await tx.many(
            _ATTEMPTED, ({**_target_key(effect), "at": at, "unsure": int(effect.unsure)} for effect in sends)
        )
        return claimed

    async def _answered(self, tx: Tx, effect: ClaimedEffect) -> bool:
        """Whether a run has reported since the first attempt: then the dispatch has arrived.

        Earlier runs belong to an earlier dispatch of the same delivery.
        """
        if effect.kind is not EffectKind.SEND_DISPATCH:
            return False
        since = to_us(effect.first_attempt_at)
        return await tx.one(_RUN_SINCE, since=since, **_target_key(effect)) is not None

    async def _note(self, tx: Tx, effect: ClaimedEffect, dispatch: Row | None, now: datetime) -> None:
        """Tell open pages of the dispatch, and refresh the checks of its commit."""
        await note_change(
            tx, effect.upstream, "dispatch", downstream=effect.target, delivery=effect.delivery, now=now
        )
        if dispatch is not None:
            await self._refresher.request_refresh_for(tx, {**dispatch, "delivery": effect.delivery}, now)


def _order(effect: ClaimedEffect) -> tuple[int, int]:
    return effect_urgency(effect.kind, effect.target), effect.effect_id


def _dispatch_key(effect: ClaimedEffect) -> dict[str, str | None]:
    return {"upstream": effect.upstream.key, "delivery": effect.delivery, "downstream": effect.target}


def _target_key(effect: ClaimedEffect) -> dict[str, str | None]:
    return {"upstream": effect.upstream.key, "delivery": effect.delivery, "target": effect.target}


def _effect_from(row: Row, upstream: RepoName) -> ClaimedEffect:
    return ClaimedEffect(
        effect_id=row["effect_id"],
        upstream=upstream,
        kind=EffectKind(row["kind"]),
        target=row["target"],
        lane=row["lane"],
        delivery=row["delivery"],
        payload=row["payload"],
        attempts=row["attempts"],
        unsure=bool(row["unsure"]),
        created_at=from_us(row["created_at"]),
        first_attempt_at=from_us(row["first_attempt_at"]),
        lease_until=from_us(row["lease_until"]),
    )
