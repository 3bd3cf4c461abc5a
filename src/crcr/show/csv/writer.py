"""CSV for spreadsheets and scripts: RFC 4180 in UTF-8, complete or with a `Link` to the rest, in bounded memory.

A response is written to the end before its first byte is sent: a fault in the middle becomes an error, never a file that
is short and looks complete; and the header can say whether more follows. Large responses wait on disk.
"""

import csv
import io
import re
import sys
from asyncio import to_thread
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, IntEnum
from tempfile import SpooledTemporaryFile
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from crcr.errors import BadRequest
from crcr.show.render.safe_text import visible
from crcr.show.urls import cursors

T = TypeVar("T")
CursorKey = tuple[str | int, ...] | None
CsvRow = Sequence[object]
ReadPage = Callable[[CursorKey, int], Awaitable[tuple[Sequence[T], CursorKey]]]
"""Reads a page: the items after a key, at most so many, and the key of the next page."""

MEDIA_TYPE = "text/csv; charset=utf-8; header=present"
_PAGE = 200
_MOST_BYTES = 32 * 1024 * 1024
_IN_MEMORY_BYTES = 512 * 1024
_CHUNK_BYTES = 64 * 1024
_MOST_TEXT = 32_000
"""The longest text that a spreadsheet cell can hold."""
_FORMULA_STARTS = tuple("=+-@\t\r\n＝＋－＠")  # noqa: RUF001  spreadsheets accept the full-width ones too
_UNFIT_FOR_NAMES = re.compile(r"[^A-Za-z0-9._]+")


@dataclass(frozen=True, slots=True)
class CsvTable(Generic[T]):
    """Stable names of columns, and the lines of one item: at least one, and never split over two responses."""

    columns: tuple[str, ...]
    lines: Callable[[T], Iterable[CsvRow]]


@dataclass(frozen=True, slots=True)
class CsvExport:
    """The request, the name of the file, the key to start after, and the limit of lines."""

    request: Request
    name: str
    limit: int = sys.maxsize
    after: CursorKey = None

    async def respond_with_items(self, table: CsvTable[T], items: Sequence[T]) -> Response:
        """Respond with a view that was read as a whole; its cursor is the number of items before."""

        async def read(after: CursorKey, size: int) -> tuple[Sequence[T], CursorKey]:
            start = first_row(after)
            end = start + size
            return items[start:end], (end,) if end < len(items) else None

        return await self.respond_with_pages(table, read)

    async def respond_with_pages(self, table: CsvTable[T], read: ReadPage[T]) -> Response:
        with ExitStack() as unsent:
            file = LineSpool()
            unsent.callback(file.close)
            file.write([table.columns])
            next_key = await self._write_pages(file, table, read)
            unsent.pop_all()
        return file.response(self._headers(next_key))

    async def _write_pages(self, file: "LineSpool", table: CsvTable[T], read: ReadPage[T]) -> CursorKey:
        """Write pages up to the limit of lines; a page with too many lines is read again with fewer items."""
        after, size, lines_left = self.after, _PAGE, self.limit
        while True:
            size = min(size, lines_left)
            items, next_key = await read(after, size)
            lines = await to_thread(_lines, table, items)
            if len(lines) > lines_left and size > 1:
                size //= 2
                continue
            if len(lines) > lines_left and lines_left < self.limit:
                return after
            await to_thread(file.write, lines)
            after, lines_left = next_key, lines_left - len(lines)
            if after is None or lines_left <= 0 or file.size >= _MOST_BYTES:
                return after

    def _headers(self, next_key: CursorKey) -> dict[str, str]:
        headers = {
            "Content-Disposition": f'attachment; filename="{file_name(self.name)}"',
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-cache",
        }
        if next_key is not None:
            parameters = [pair for pair in self.request.query_params.multi_items() if pair[0] != "cursor"]
            query = urlencode([*parameters, ("cursor", cursors.encode(next_key) or "")], safe="/")
            headers["Link"] = f'<{quote(self.request.scope["path"])}?{query}>; rel="next"'
        return headers


def first_row(key: CursorKey) -> int:
    """Return how many rows come before a cursor of a table whose order follows the newest numbers."""
    match key:
        case None:
            return 0
        case (int(start),) if start > 0:
            return start
    raise BadRequest("the cursor is not one of ours", hint="pass on `next` of the page before, unchanged")


def _lines(table: CsvTable[T], items: Sequence[T]) -> list[CsvRow]:
    return [line for item in items for line in table.lines(item)]


class LineSpool:
    """The lines of a response, in memory while they are few, else on disk."""

    def __init__(self) -> None:
        self._file = SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES)  # noqa: SIM115  closed after sending
        self.size = 0

    def write(self, rows: Iterable[CsvRow]) -> None:
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\r\n")
        writer.writerows([format_cell(value) for value in row] for row in rows)
        self.size += self._file.write(text.getvalue().encode())

    def close(self) -> None:
        self._file.close()

    def response(self, headers: dict[str, str]) -> Response:
        self._file.seek(0)
        if self.size <= _IN_MEMORY_BYTES:
            with self._file:
                return Response(self._file.read(), headers=headers, media_type=MEDIA_TYPE)
        length = {"Content-Length": str(self.size)}
        return StreamingResponse(self._chunks(), headers={**headers, **length}, media_type=MEDIA_TYPE)

    def _chunks(self) -> Iterator[bytes]:
        with self._file:
            while chunk := self._file.read(_CHUNK_BYTES):
                yield chunk


def format_cell(value: object) -> str:
    """Our own numbers, times and words unchanged, to the last digit; any other text is untrusted."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, IntEnum):
        return value.name
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return neutralize_formula(str(value.value if isinstance(value, Enum) else value))


def neutralize_formula(text: str) -> str:
    """Return text that no spreadsheet runs as a formula, with invisible characters made visible."""
    clean = visible(text, _MOST_TEXT)
    return f"'{clean}" if text.startswith(_FORMULA_STARTS) else clean


def file_name(name: str) -> str:
    return f"crcr-{_UNFIT_FOR_NAMES.sub('-', name).strip('-.')[:100]}.csv"


def describe_response(about: str) -> dict[int | str, dict[str, Any]]:
    """Describe the successful response of an export in OpenAPI."""
    text = {"schema": {"type": "string"}}
    return {
        200: {
            "description": about,
            "content": {"text/csv": text},
            "headers": {
                "Content-Disposition": {"description": "`attachment` with a file name", **text},
                "Link": {"description": '`<…>; rel="next"` where there are more lines', **text},
            },
        }
    }
