"""Digests of the webhook bodies that were taken, so that a captured one is not taken again under another GUID.

A digest is written in the transaction that takes its webhook: what was answered with an error, or ignored, leaves none and
can come again.
"""

from sqlalchemy import bindparam, select, text

from crcr.decide.dispatch.plan import ReceivedDelivery
from crcr.decide.dispatch.webhook_body import repeats_within
from crcr.decide.events import Event
from crcr.record.schema.checks import webhook_bodies
from crcr.record.schema.core import deliveries
from crcr.record.store.database import Tx
from crcr.record.store.statement import Statement, inserting
from crcr.record.store.times import to_us

SEEN = Statement(
    select(deliveries.c.state).where(
        deliveries.c.guid == bindparam("guid"), deliveries.c.upstream == bindparam("upstream")
    )
)
_insert = inserting(webhook_bodies, "digest", "guid", "taken_at")
# The key decides between two processes: the second one waits for the first, and then finds a row that is too young.
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
    """Take the body; False when an equal one was taken a short while ago."""
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
