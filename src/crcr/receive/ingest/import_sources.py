"""Sources of history: a DynamoDB table, ClickHouse's table, and files; read in batches, from wherever an earlier reading stopped.

A file may be an export of the DynamoDB table to S3 (`{"Item": …}` a line, gzip or not), envelopes as the ingest takes them, or
rows of the ClickHouse table as JSON, one a line. Everything read is untrusted: what is no result is a reason, never an error.
"""

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncIterator, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from crcr.aws_client import open_client, outside_fault
from crcr.decide.jobs.ingested import IngestedResult
from crcr.decide.jobs.workflow_job_record import KEY, NotARecord, make_envelope, read_attributes
from crcr.errors import BadReport, NotPossible, OutsideFault
from crcr.receive.ingest.parse_envelope import parse_envelope
from crcr.record.clickhouse.workflow_jobs import TABLE, WorkflowJobTable

AT_ONCE = 200
"""Results in one batch: one transaction, which others wait for."""
_ROWS_AT_ONCE = 10_000
"""Of ClickHouse, which reads its whole table for each query."""
_LONGEST_LINE = 4 * 1024 * 1024
_BATCH_BYTES = 8 * 1024 * 1024
_ATTEMPTS = 5
_DONE = "done"
_SEGMENTS = "segments"


@dataclass(frozen=True, slots=True)
class SourceItem:
    label: str
    """The key of the item, or its place in a file, for the report."""
    result: IngestedResult | None
    problem: str = ""
    """Why there is no result."""


@dataclass(frozen=True, slots=True)
class SourceBatch:
    items: Sequence[SourceItem]
    position: Mapping[str, Any]
    """What to continue from after this batch, merged into the position before."""


class ImportSource(Protocol):
    @property
    def name(self) -> str:
        """Identifies the source for a later run; holds no secret."""
        ...

    async def estimate(self) -> int | None:
        """Roughly how many items there are; None when that is not known."""
        ...

    def batches(self, position: Mapping[str, Any]) -> AsyncIterator[SourceBatch]:
        """Read from a position of an earlier batch on; `{}` is the beginning. Raises `OutsideFault`."""
        ...


def read_item(label: str, content: Any) -> SourceItem:
    """Read an envelope, an item in DynamoDB's form, or a plain record."""
    try:
        if isinstance(content, Mapping) and "trusted" in content:
            envelope = content
        else:
            exported = content.get("Item") if isinstance(content, Mapping) else None
            record = read_attributes(exported) if exported is not None else content
            if not isinstance(record, Mapping):
                return SourceItem(label, None, "it is not an object")
            label = str(record.get(KEY) or label)
            envelope = make_envelope(record)
        return SourceItem(label, parse_envelope(json.dumps(envelope).encode()))
    except (NotARecord, BadReport) as reason:
        return SourceItem(label, None, str(reason)[:300])
    except (ValueError, RecursionError):  # a text that JSON cannot carry, or a depth that Python cannot
        return SourceItem(label, None, "it cannot be read")


class FileSource:
    def __init__(self, paths: Sequence[Path]) -> None:
        self._files = sorted({file for path in paths for file in _find_files(path)})
        if not self._files:
            raise NotPossible(
                "there are no files to import", hint="name JSON files, or a folder that has some"
            )
        self._paths = paths

    @property
    def name(self) -> str:
        return "files " + " ".join(sorted(str(path.resolve()) for path in self._paths))

    async def estimate(self) -> int | None:
        return None

    async def batches(self, position: Mapping[str, Any]) -> AsyncIterator[SourceBatch]:
        for file in self._files:
            # A file of another size is another file: its first lines are not those that were read.
            key = f"{file.resolve()} {file.stat().st_size}"
            lines = position.get(key, 0)
            if lines == _DONE:
                continue
            with closing(_read_lines(file, lines)) as reading:
                while batch := await asyncio.to_thread(_next_items, reading):
                    lines = batch[-1][0]
                    yield SourceBatch([item for _, item in batch], {key: lines})
            yield SourceBatch([], {key: _DONE})


def _find_files(path: Path) -> Iterator[Path]:
    if path.is_dir():
        # The manifests of an export are JSON, too: its items are below `data`.
        data = [file for file in path.rglob("*") if file.parent.name == "data" and _is_json(file)]
        yield from data or (file for file in path.rglob("*") if _is_json(file))
    elif path.is_file():
        yield path
    else:
        raise NotPossible(f"{path} is no file and no folder")


def _is_json(file: Path) -> bool:
    return file.is_file() and file.name.removesuffix(".gz").endswith((".json", ".jsonl", ".ndjson"))


def _next_items(reading: Iterator[tuple[int, SourceItem, int]]) -> list[tuple[int, SourceItem]]:
    """The next batch, of fewer items where their lines are long: its results are in memory at the same time."""
    batch: list[tuple[int, SourceItem]] = []
    size = 0
    for number, item, line_bytes in islice(reading, AT_ONCE):
        batch.append((number, item))
        size += line_bytes
        if size >= _BATCH_BYTES:
            break
    return batch


def _read_lines(file: Path, skipped: int) -> Generator[tuple[int, SourceItem, int], None, None]:
    """The items of a file with the numbers and sizes of their lines; a line beyond any result's length is cut and not read."""
    try:
        with _open(file) as lines:
            number = 0
            while line := lines.readline(_LONGEST_LINE):
                number += 1
                is_whole, rest = line.endswith(b"\n") or len(line) < _LONGEST_LINE, line
                while not rest.endswith(b"\n") and len(rest) == _LONGEST_LINE:
                    rest = lines.readline(_LONGEST_LINE)
                if number > skipped and line.strip():
                    yield number, _read_line(f"{file.name}:{number}", line if is_whole else None), len(line)
    except (OSError, EOFError, zlib.error) as fault:
        raise NotPossible(f"{file} cannot be read: {fault}") from None


def _open(file: Path) -> gzip.GzipFile | BufferedReader:
    with file.open("rb") as probe:
        zipped = probe.read(2) == b"\x1f\x8b"
    return gzip.open(file, "rb") if zipped else file.open("rb")


def _read_line(label: str, line: bytes | None) -> SourceItem:
    if line is None:
        return SourceItem(label, None, "the line is too long")
    try:
        return read_item(label, json.loads(line))
    except (ValueError, RecursionError):
        return SourceItem(label, None, "the line is not JSON")


class DynamoDbSource:
    """Scans a table in segments, each on its own, so that several requests are under way at once."""

    def __init__(
        self, table: str, *, region: str | None = None, endpoint: str | None = None, segments: int = 4
    ) -> None:
        self._table = table
        self._segments = segments
        self._client: Any = open_client("dynamodb", region=region, endpoint=endpoint, attempts=_ATTEMPTS)

    @property
    def name(self) -> str:
        return f"dynamodb {self._client.meta.region_name} {self._table}"

    async def estimate(self) -> int | None:
        try:
            described = await self._call("describe_table", TableName=self._table)
        except OutsideFault:  # a role that may only scan; whether the table is there, the scan says
            return None
        return int(described["Table"].get("ItemCount", 0)) or None

    async def batches(self, position: Mapping[str, Any]) -> AsyncIterator[SourceBatch]:
        segments = int(position.get(_SEGMENTS, self._segments))
        reading = {
            asyncio.create_task(self._scan(segment, segments, position.get(str(segment)))): segment
            for segment in range(segments)
            if position.get(str(segment)) != _DONE
        }
        try:
            while reading:
                done, _ = await asyncio.wait(reading, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    segment, page = reading.pop(task), task.result()
                    last = page.get("LastEvaluatedKey")
                    # In a list: a key may be any text, also the word for the end.
                    after = [last[KEY]["S"]] if last else _DONE
                    if last:
                        reading[asyncio.create_task(self._scan(segment, segments, after))] = segment
                    items = [read_item("?", {"Item": item}) for item in page.get("Items", ())]
                    yield SourceBatch(items, {_SEGMENTS: segments, str(segment): after})
        finally:
            for task in reading:
                task.cancel()
            await asyncio.gather(*reading, return_exceptions=True)

    async def _scan(self, segment: int, segments: int, after: Any) -> Any:
        start = {} if after is None else {"ExclusiveStartKey": {KEY: {"S": after[0]}}}
        return await self._call(
            "scan", TableName=self._table, Segment=segment, TotalSegments=segments, Limit=AT_ONCE, **start
        )

    async def _call(self, action: str, **arguments: Any) -> Any:
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415  an optional extra

        try:
            return await asyncio.to_thread(getattr(self._client, action), **arguments)
        except (BotoCoreError, ClientError) as fault:
            raise outside_fault(fault, "DynamoDB") from None


class ClickHouseSource:
    def __init__(self, table: WorkflowJobTable, place: str) -> None:
        """`place` is the server without user and password."""
        self._table = table
        self._place = place

    @property
    def name(self) -> str:
        return f"clickhouse {self._place} {TABLE}"

    async def estimate(self) -> int | None:
        return await self._table.count()

    async def batches(self, position: Mapping[str, Any]) -> AsyncIterator[SourceBatch]:
        after = str(position.get("after", ""))
        while rows := await self._table.read_after(after, _ROWS_AT_ONCE):
            for start in range(0, len(rows), AT_ONCE):
                some = rows[start : start + AT_ONCE]
                after = str(some[-1][KEY])
                yield SourceBatch([read_item("?", row) for row in some], {"after": after})
