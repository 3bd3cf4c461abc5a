"""Payloads of dispatches: the delivery's body, trimmed, with the level and ids of the target."""

import json
from collections import OrderedDict

from sqlalchemy import text

from crcr.decide.dispatch.payload import (
    BISECTION_PURPOSE,
    PAIR_PURPOSE,
    TEST_PURPOSE,
    DispatchedDependency,
    PreparedPayload,
    prepare_payload,
    update_payload,
)
from crcr.decide.dispatch.webhook_body import decompress_payload
from crcr.decide.model import BISECTION_EVENT, PAIR_EVENT, DispatchState, Level, RepoName
from crcr.decide.outbox.effect import ClaimedEffect, DispatchLoad
from crcr.errors import NotFound, OutsideLimited
from crcr.record.repositories.renames import JOIN_PRESENT_NAME
from crcr.record.store.database import Database, Row
from crcr.record.store.statement import Statement

_KEEP = 64
_PAUSED_S = 5.0

_LOAD = Statement(
    text(
        "SELECT d.event, d.action, d.labels, d.level, d.state, d.test, d.trimmed, r.name, r.repository_id, r.installation_id,"  # noqa: S608  our own text
        " (SELECT v.relay_reason FROM deliveries v WHERE v.guid = d.delivery AND v.upstream = d.upstream) AS relay_reason,"
        " (SELECT u.paused_at FROM upstreams u WHERE u.upstream = d.upstream) AS paused_at"
        f" FROM dispatches d{JOIN_PRESENT_NAME}"
        " WHERE d.upstream = :upstream AND d.delivery = :delivery AND d.downstream = :downstream"
    )
)
_TRIMMED = Statement(
    text(
        "UPDATE dispatches SET trimmed = :trimmed WHERE upstream = :upstream AND delivery = :delivery"
        " AND downstream = :downstream"
    )
)
# Only the head that was honoured when the dispatch was recorded: a newer one has a dispatch of its own, or none.
_PAIR = Statement(
    text(
        "SELECT name, dependency, head_sha, clone_url FROM pairs WHERE delivery = :delivery AND upstream = :upstream"
        " AND head_sha = tested_sha AND clone_url IS NOT NULL AND state = 'open' AND refusal IS NULL"
    )
)
_BODY = Statement(text("SELECT event, body FROM deliveries WHERE guid = :delivery AND upstream = :upstream"))


class DispatchPayloads:
    def __init__(self, database: Database) -> None:
        self._database = database
        # One delivery is sent to many targets within seconds: decompress and trim its payload once.
        self._prepared: OrderedDict[tuple[str, str, str | None, str | None], PreparedPayload] = OrderedDict()

    async def load(self, effect: ClaimedEffect) -> DispatchLoad | None:
        """Return the payload to send; None when the dispatch was cancelled meanwhile."""
        key = {"upstream": effect.upstream.key, "delivery": effect.delivery}
        row = await self._database.quick_read(lambda tx: tx.one(_LOAD, downstream=effect.target, **key))
        if row is None or row["state"] != DispatchState.WAITING.value:
            return None
        if row["paused_at"] is not None:
            raise OutsideLimited("dispatching is paused", retry_after_s=_PAUSED_S)
        dependency = None
        if row["event"] == PAIR_EVENT:
            pair = await self._database.quick_read(lambda tx: tx.one(_PAIR, **key))
            if pair is None:
                return None  # another dispatch has taken its place
            dependency = DispatchedDependency(
                repository=pair["name"],
                number=pair["dependency"],
                head_sha=pair["head_sha"],
                clone_url=pair["clone_url"],
            )
        return _load(row, effect, await self._payload(effect, row), dependency)

    async def note_trimmed(self, effect: ClaimedEffect, trimmed: tuple[str, ...]) -> None:
        """Record which fields are cut from the payload that is about to be sent."""
        key = {"upstream": effect.upstream.key, "delivery": effect.delivery, "downstream": effect.target}
        names = json.dumps(trimmed) if trimmed else None
        await self._database.write(lambda tx: tx.run(_TRIMMED, trimmed=names, **key))

    async def _payload(self, effect: ClaimedEffect, dispatch: Row) -> PreparedPayload:
        key = (effect.upstream.key, effect.delivery or "", dispatch["action"], dispatch["labels"])
        prepared = self._prepared.get(key)
        if prepared is not None:
            self._prepared.move_to_end(key)
        else:
            prepared = self._prepared[key] = await self._prepare(*key)
            if len(self._prepared) > _KEEP:
                self._prepared.popitem(last=False)
        return prepared

    async def _prepare(
        self, upstream: str, delivery: str, action: str | None, labels: str | None
    ) -> PreparedPayload:
        row = await self._database.quick_read(lambda tx: tx.one(_BODY, upstream=upstream, delivery=delivery))
        if row is None or row["body"] is None:
            raise NotFound(f"the body of delivery {delivery} is no longer kept")
        payload = update_payload(
            decompress_payload(row["body"]),
            action=action,
            labels=None if labels is None else json.loads(labels),
        )
        event = "push" if row["event"] == BISECTION_EVENT else row["event"]
        return prepare_payload(event_type=event, delivery_id=delivery, payload=payload)


def _load(
    row: Row, effect: ClaimedEffect, payload: PreparedPayload, dependency: DispatchedDependency | None
) -> DispatchLoad:
    return DispatchLoad(
        downstream=RepoName(row["name"] or effect.target),
        level=Level(row["level"]),
        purpose=_purpose(row),
        reason=row["relay_reason"],
        repository_id=row["repository_id"],
        installation_id=row["installation_id"],
        payload=payload,
        depends_on=dependency,
        trimmed=trimmed_fields(row),
    )


def _purpose(dispatch: Row) -> str | None:
    if dispatch["event"] == BISECTION_EVENT:
        return BISECTION_PURPOSE
    if dispatch["event"] == PAIR_EVENT:
        return PAIR_PURPOSE
    return TEST_PURPOSE if dispatch["test"] else None


def trimmed_fields(dispatch: Row) -> tuple[str, ...]:
    """Names of the fields that were cut from the dispatch's payload."""
    trimmed = dispatch["trimmed"]
    return tuple(json.loads(trimmed)) if trimmed else ()
