"""Batches of a DynamoDB stream: the items that the public HUD or a relay has written, into our ingest, into ClickHouse, or both.

AWS sends the records of one item in order, and repeats a batch from the first record that is returned as failed. Only what
may succeed later is returned: a record that is no job would block its shard for a day, so it is logged and left out.
Removed items stay here: the table forgets after its own time, and history does not.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

from crcr.decide.jobs.ingested import IngestedResult
from crcr.decide.jobs.workflow_job_record import KEY, NotARecord, Record, make_envelope, read_attributes
from crcr.errors import BadReport, OutsideFault, Unavailable
from crcr.ports import Clock
from crcr.receive.ingest.parse_envelope import parse_envelope
from crcr.record.jobs.ingested import IngestedResults

log = structlog.get_logger(__name__)

_REMOVED = "REMOVE"
_MOST_RECORDS = 10_000


class RecordTable(Protocol):
    async def insert(self, records: Sequence[Record]) -> None:
        """Insert all of them, or raise `OutsideFault`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamIntake:
    results: IngestedResults | None
    """Where results are shown; None: they are not taken in."""
    table: RecordTable | None
    """ClickHouse's table of them; None: they are not copied there."""
    clock: Clock


@dataclass(frozen=True, slots=True)
class _StreamRecord:
    sequence: str
    record: Record
    result: IngestedResult


async def handle_stream(event: Mapping[str, Any], intake: StreamIntake) -> dict[str, list[dict[str, str]]]:
    """Take a batch, and return what is to be sent again, as AWS expects it from a function (`batchItemFailures`)."""
    records = [found for sent in _records(event) if (found := _read(sent)) is not None]
    failed = await _take(records, intake)
    log.info("stream_batch_taken", records=len(records), origin=_origin(event), failed=failed is not None)
    return {"batchItemFailures": [] if failed is None else [{"itemIdentifier": failed}]}


async def _take(records: Sequence[_StreamRecord], intake: StreamIntake) -> str | None:
    """Take the records; returns the sequence number from which on they are to be sent again."""
    if intake.table is not None and records:
        try:
            await intake.table.insert([record.record for record in records])
        except OutsideFault as fault:
            log.warning("stream_not_taken", error=str(fault), records=len(records))
            return records[0].sequence
    if intake.results is None:
        return None
    for record in records:
        try:
            # The table may be one that this relay writes, too: then its own results come back.
            await intake.results.take(record.result, "dynamodb", intake.clock.now(), unless_reported=True)
        except Unavailable as fault:
            log.warning("stream_not_taken", error=str(fault), records=len(records))
            return record.sequence
    return None


def _records(event: Mapping[str, Any]) -> list[Any]:
    records = event.get("Records")
    return records[:_MOST_RECORDS] if isinstance(records, list) else []


def _read(sent: Any) -> _StreamRecord | None:
    change = sent.get("dynamodb") if isinstance(sent, Mapping) else None
    if not isinstance(change, Mapping) or sent.get("eventName") == _REMOVED:
        return None
    sequence = str(change.get("SequenceNumber", ""))
    try:
        record = _require_key(read_attributes(change.get("NewImage")))
        envelope = json.dumps(make_envelope(record)).encode()
        return _StreamRecord(sequence, record, parse_envelope(envelope))
    except (NotARecord, BadReport, RecursionError) as reason:
        log.warning("stream_record_left_out", sequence=sequence[:60], reason=str(reason)[:200])
        return None


def _require_key(record: Record) -> Record:
    if not record.get(KEY):
        raise NotARecord(f"{KEY} is missing")
    return record


def _origin(event: Mapping[str, Any]) -> str:
    """The table's name, from the address of the stream."""
    first = next(iter(_records(event)), None)
    source = str(first.get("eventSourceARN", "")) if isinstance(first, Mapping) else ""
    return source.partition(":table/")[2].partition("/")[0][:255]
