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
Read = Callable[[CursorKey, int], Awaitable[tuple[Sequence[T], CursorKey]]]
"""So many items after a place, and the place of the next."""

MEDIA_TYPE = "text/csv; charset=utf-8; header=present"
_PAGE = 200
_MOST_BYTES = 32 * 1024 * 1024
_IN_MEMORY_BYTES = 512 * 1024
_CHUNK_BYTES = 64 * 1024
_MOST_TEXT = 32_000
"""What a spreadsheet's cell still holds."""
_ACTS = tuple("=+-@\t\r\n＝＋－＠")  # noqa: RUF001  spreadsheets take the wide ones too
_UNFIT_FOR_NAMES = re.compile(r"[^A-Za-z0-9._]+")


@dataclass(frozen=True, slots=True)
class CsvTable(Generic[T]):
    """Stable names of columns, and the lines that one item makes: at least one, and never torn apart."""

    columns: tuple[str, ...]
    lines: Callable[[T], Iterable[CsvRow]]


@dataclass(frozen=True, slots=True)
class CsvExport:
    """Which request is answered, under which name, from which place on and how many lines at most."""

    request: Request
    name: str
    limit: int = sys.maxsize
    after: CursorKey = None

    async def all_of(self, table: CsvTable[T], items: Sequence[T]) -> Response:
        """A view that comes in one piece; a place in it is the number of items before."""

        async def read(after: CursorKey, size: int) -> tuple[Sequence[T], CursorKey]:
            start = first_row(after)
            end = start + size
            return items[start:end], (end,) if end < len(items) else None

        return await self.of(table, read)

    async def of(self, table: CsvTable[T], read: Read[T]) -> Response:
        with ExitStack() as unsent:
            file = LineSpool()
            unsent.callback(file.close)
            file.write([table.columns])
            following = await self._fill(file, table, read)
            unsent.pop_all()
        return file.response(self._headers(following))

    async def _fill(self, file: "LineSpool", table: CsvTable[T], read: Read[T]) -> CursorKey:
        """Pages until the lines are as many as may be; a page with too many is read again as a smaller one."""
        after, size, room = self.after, _PAGE, self.limit
        while True:
            size = min(size, room)
            items, following = await read(after, size)
            lines = await to_thread(_lines, table, items)
            if len(lines) > room and size > 1:
                size //= 2
                continue
            if len(lines) > room and room < self.limit:
                return after
            await to_thread(file.write, lines)
            after, room = following, room - len(lines)
            if after is None or room <= 0 or file.size >= _MOST_BYTES:
                return after

    def _headers(self, following: CursorKey) -> dict[str, str]:
        headers = {
            "Content-Disposition": f'attachment; filename="{file_name(self.name)}"',
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-cache",
        }
        if following is not None:
            kept = [pair for pair in self.request.query_params.multi_items() if pair[0] != "cursor"]
            query = urlencode([*kept, ("cursor", cursors.encode(following) or "")], safe="/")
            headers["Link"] = f'<{quote(self.request.scope["path"])}?{query}>; rel="next"'
        return headers


def first_row(place: CursorKey) -> int:
    """How many rows stand before a place in a table whose order follows the newest numbers."""
    match place:
        case None:
            return 0
        case (int(start),) if start > 0:
            return start
    raise BadRequest("the cursor is not one of ours", hint="pass on `next` of the page before, unchanged")


def _lines(table: CsvTable[T], items: Sequence[T]) -> list[CsvRow]:
    return [line for item in items for line in table.lines(item)]


class LineSpool:
    """Lines as they are written, in memory while they are few."""

    def __init__(self) -> None:
        self._file = SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES)  # noqa: SIM115  closed when it was sent
        self.size = 0

    def write(self, rows: Iterable[CsvRow]) -> None:
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\r\n")
        writer.writerows([cell(value) for value in row] for row in rows)
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


def cell(value: object) -> str:
    """Our own numbers, times and words as they are, to the last digit; any other text may be a stranger's."""
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
    return harmless(str(value.value if isinstance(value, Enum) else value))


def harmless(text: str) -> str:
    """Text that no spreadsheet takes for a formula, and that hides nothing."""
    shown = visible(text, _MOST_TEXT)
    return f"'{shown}" if text.startswith(_ACTS) else shown


def file_name(name: str) -> str:
    return f"crcr-{_UNFIT_FOR_NAMES.sub('-', name).strip('-.')[:100]}.csv"


def describe_response(about: str) -> dict[int | str, dict[str, Any]]:
    """How an export's success is told in the API's description."""
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
