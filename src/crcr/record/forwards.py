"""Forwarding results to another HUD, as effects in the transaction of the result.

The envelope keeps what the relay proved apart from what the caller wrote; the far side decides what it
believes. Results of one delivery stay in order; sixteen queues keep one delivery from holding up the others.
"""

from datetime import datetime
from zlib import crc32

import msgspec
from sqlalchemy import select

from crcr.decide.model import EffectKind, RepoName
from crcr.decide.report import Report
from crcr.decide.window import Kind
from crcr.record.database import Tx
from crcr.record.effect_rows import add_effects, effect_row
from crcr.record.job_rows import BY_KEY, JobRow
from crcr.record.schema import jobs
from crcr.record.statement import Statement

_QUEUES = 16
_CAP_BYTES = 2 * 1024 * 1024
_TRUSTED = Statement(select(jobs.c.trusted).where(BY_KEY))
_PARTS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ENCODE = msgspec.json.Encoder().encode
_NULL = msgspec.Raw(b"null")
_ABSENT = frozenset({b"null", b'""'})


class Forwards:
    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled

    async def add(self, tx: Tx, row: JobRow, report: Report, body: bytes, now: datetime) -> None:
        if not self._enabled or row.dispatch["test"]:
            return
        stored = await tx.one(_TRUSTED, **row.key)
        if stored is None:
            return
        own = row.dispatch["event"] in Kind.NIGHTLY.events
        delivery = row.key["delivery"]
        lane = delivery or report.run_id
        queue = crc32(lane.encode()) % _QUEUES
        effect = effect_row(
            RepoName(row.key["upstream"]),
            EffectKind.FORWARD_RESULT,
            target=f"hud {queue}",
            lane=lane,
            delivery=None if own else delivery,
            payload=envelope(stored["trusted"], report, body),
            now=now,
        )
        await add_effects(tx, [effect])


def envelope(trusted: str, report: Report, body: bytes) -> bytes:
    """The report with what it is told apart by filled in where it is absent, and what it echoed, beside what was proved.

    The echoed payload is copied and never read: it may hold what JSON allows and Python refuses.
    """
    callback = _PARTS.decode(report.untrusted)
    workflow = _PARTS.decode(callback["workflow"])
    if bytes(callback.get("delivery_id", _NULL)) in _ABSENT:
        callback["delivery_id"] = msgspec.Raw(_ENCODE(report.said_commit or report.run_id))
    if bytes(workflow.get("check_run_id", _NULL)) in _ABSENT:
        workflow["check_run_id"] = msgspec.Raw(_ENCODE(f"{report.run_id}-{report.run_attempt}"))
    callback["workflow"] = msgspec.Raw(_ENCODE(workflow))
    echoed = _echoed(body)
    if echoed is not None and len(report.untrusted) + len(bytes(echoed)) < _CAP_BYTES - 1024:
        callback["payload"] = echoed
    return b'{"trusted":%b,"untrusted":{"callback_payload":%b}}' % (trusted.encode(), _ENCODE(callback))


def _echoed(body: bytes) -> msgspec.Raw | None:
    try:
        return _PARTS.decode(body).get("payload")
    except (msgspec.DecodeError, RecursionError):
        return (
            None  # half of a surrogate pair, or a depth at the limit: the far side could not read it either
        )
