"""Bookkeeping of webhooks: digests of processed bodies, counts of refused ones, and the recovery of missed ones.

A captured body is not processed again under another GUID: its digest is recorded in the transaction that processes the
webhook. A webhook that was answered with an error, or ignored, leaves no digest and can be sent again. A row of `recovered`
only saves a call to GitHub; the inbox itself guarantees that nothing is processed twice.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import islice

from sqlalchemy import BindParameter, bindparam, select, text

from crcr.decide.dispatch.plan import ReceivedDelivery
from crcr.decide.dispatch.webhook_body import repeats_within
from crcr.decide.events import Event
from crcr.decide.github.missed_webhooks import KnownWebhooks, RecoveryOutcome
from crcr.decide.model import DeliveryState
from crcr.record.schema.checks import recovered, watermarks, webhook_bodies
from crcr.record.schema.main_tables import deliveries
from crcr.record.store.database import Database, Tx
from crcr.record.store.statement import Statement, inserting
from crcr.record.store.times import from_us, from_us_or_none, to_us

DELIVERY_STATE = Statement(
    select(deliveries.c.state).where(
        deliveries.c.guid == bindparam("guid"), deliveries.c.upstream == bindparam("upstream")
    )
)
_insert = inserting(webhook_bodies, "digest", "guid", "taken_at")
# The key decides between two processes: the second waits for the first, then finds a row that is too recent.
_TAKE = Statement(
    _insert.on_conflict_do_update(
        index_elements=["digest"],
        set_={"guid": _insert.excluded.guid, "taken_at": _insert.excluded.taken_at},
        where=webhook_bodies.c.taken_at <= bindparam("before"),
    ).returning(webhook_bodies.c.digest)
)
FORGET_DIGESTS = Statement(
    text(
        "DELETE FROM webhook_bodies WHERE digest IN (SELECT digest FROM webhook_bodies WHERE taken_at < :before"
        " ORDER BY taken_at LIMIT :most)"
    )
)


async def is_new_body(tx: Tx, receipt: ReceivedDelivery, event: Event) -> bool:
    """Record the body's digest; False when an equal body was processed a short while ago."""
    if receipt.body_digest is None:
        return True
    now = receipt.received_at
    return bool(
        await tx.all(
            _TAKE,
            digest=receipt.body_digest,
            guid=receipt.guid,
            taken_at=to_us(now),
            before=to_us(now - repeats_within(event)),
        )
    )


SPELL_ENDS_AFTER = timedelta(hours=1)
"""After this time without a refusal, the next one starts a new count."""

_COUNT_REFUSED = Statement(
    text(
        "INSERT INTO refused_webhooks (reason, number, since_at, last_at)"
        " VALUES ('bad_signature', :number, :since, :now) ON CONFLICT (reason) DO UPDATE SET"
        " number = excluded.number + CASE WHEN refused_webhooks.last_at < :spell THEN 0 ELSE refused_webhooks.number END,"
        " since_at = CASE WHEN refused_webhooks.last_at < :spell THEN excluded.since_at"
        " ELSE refused_webhooks.since_at END, last_at = excluded.last_at RETURNING number, since_at"
    )
)


class RefusalCounts:
    """How many webhooks all processes refused for their signature since the current series began."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, number: int, *, since: datetime, now: datetime) -> tuple[int, datetime]:
        async def unit(tx: Tx) -> tuple[int, datetime]:
            spell = to_us(now - SPELL_ENDS_AFTER)
            [row] = await tx.all(
                _COUNT_REFUSED, number=number, since=to_us(since), now=to_us(now), spell=spell
            )
            return row["number"], from_us(row["since_at"])

        return await self._database.write(unit)


_KEEP = timedelta(days=8)
"""Longer than GitHub keeps its delivery log."""
_CHUNK = 100
_WATERMARK = "delivery_log"

_GUIDS: list[BindParameter[str]] = [bindparam(f"guid_{number}") for number in range(_CHUNK)]
_STORED = Statement(select(deliveries.c.guid).where(deliveries.c.guid.in_(_GUIDS)))
_RECOVERED = Statement(select(recovered.c.guid).where(recovered.c.guid.in_(_GUIDS)))
_SUPERSEDED = Statement(
    select(deliveries.c.guid).where(
        deliveries.c.guid.in_(_GUIDS), deliveries.c.state == DeliveryState.SUPERSEDED.value
    )
)
_NOTE = Statement(inserting(recovered, "guid", "outcome", "at").on_conflict_do_nothing())
_FORGET = Statement(text("DELETE FROM recovered WHERE at < :before"))
_READ_TO = Statement(text("SELECT at FROM watermarks WHERE name = :name"))
_insert_watermark = inserting(watermarks, "name", "at")
_MOVE = Statement(
    _insert_watermark.on_conflict_do_update(
        index_elements=["name"],
        set_={"at": _insert_watermark.excluded.at},
        where=watermarks.c.at < _insert_watermark.excluded.at,
    )
)
_UPSTREAM_IDS = Statement(text("SELECT repository_id FROM upstreams"))


class RecoveryStore:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def find_known(self, guids: Iterable[str]) -> KnownWebhooks:
        wanted_guids = list(guids)
        return KnownWebhooks(
            await self._find_guids(_STORED, wanted_guids), await self._find_guids(_RECOVERED, wanted_guids)
        )

    async def count_superseded(self, guids: Iterable[str]) -> int:
        """How many of these deliveries are superseded."""
        return len(await self._find_guids(_SUPERSEDED, list(guids)))

    async def read_upstream_ids(self) -> frozenset[int] | None:
        """The upstreams' repository ids; None while one is unknown."""
        rows = await self._database.quick_read(lambda tx: tx.all(_UPSTREAM_IDS))
        ids = [row["repository_id"] for row in rows]
        return None if None in ids or not ids else frozenset(ids)

    async def note(self, guid: str, outcome: RecoveryOutcome, now: datetime) -> None:
        await self._database.write(lambda tx: tx.run(_NOTE, guid=guid, outcome=outcome.value, at=to_us(now)))

    async def read_watermark(self) -> datetime | None:
        """The time up to which every entry of the log was handled."""
        row = await self._database.quick_read(lambda tx: tx.one(_READ_TO, name=_WATERMARK))
        return from_us_or_none(row["at"] if row else None)

    async def complete(self, until: datetime, now: datetime) -> None:
        """Record that the log was handled up to this time, and delete rows older than the log."""

        async def unit(tx: Tx) -> None:
            await tx.run(_MOVE, name=_WATERMARK, at=to_us(until))
            await tx.run(_FORGET, before=to_us(now - _KEEP))

        await self._database.write(unit)

    async def _find_guids(self, statement: Statement, guids: Sequence[str]) -> frozenset[str]:
        async def unit(tx: Tx) -> frozenset[str]:
            rows = [row for chunk in _chunks(guids) for row in await tx.all(statement, **chunk)]
            return frozenset(row["guid"] for row in rows)

        return await self._database.read(unit)


def _chunks(guids: Sequence[str]) -> Iterator[dict[str, str]]:
    """The parameters of one statement each; a short chunk is padded with its first GUID."""
    rest = iter(guids)
    while chunk := list(islice(rest, _CHUNK)):
        chunk += chunk[:1] * (_CHUNK - len(chunk))
        yield {bind.key: guid for bind, guid in zip(_GUIDS, chunk, strict=True)}
