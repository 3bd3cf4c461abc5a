"""CSV exports: text stays text, numbers keep every digit, no item is split, and a link leads to the next page."""

import csv
import io
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from crcr.decide.model import Conclusion, Level, RepoName
from crcr.errors import StoreUnavailable
from crcr.show.csv import columns as csv_columns
from crcr.show.csv.writer import CsvExport, CsvTable, CursorKey, file_name, format_cell, neutralize_formula
from crcr.show.urls import cursors

ITEMS: CsvTable[tuple[str, int]] = CsvTable(
    ("name", "line"), lambda item: [(item[0], n) for n in range(item[1])]
)


def make_request(query: str = "") -> Request:
    scope = {"type": "http", "path": "/api/v1/jobs.csv", "query_string": query.encode(), "headers": []}
    return Request(scope)


class PagedItems:
    """A paged list of items; each item has its own number of CSV lines."""

    def __init__(self, *lines: int) -> None:
        self.items = [(f"item {index}", number) for index, number in enumerate(lines)]
        self.reads = 0

    async def read(self, after: CursorKey, size: int) -> tuple[Sequence[tuple[str, int]], CursorKey]:
        self.reads += 1
        start = int(after[0]) if after else 0
        end = start + size
        return self.items[start:end], (end,) if end < len(self.items) else None


async def response_text(response: Response) -> str:
    if isinstance(response, StreamingResponse):
        return b"".join([bytes(chunk) async for chunk in response.body_iterator]).decode()  # type: ignore[arg-type]
    return bytes(response.body).decode()


async def csv_rows(response: Response) -> list[list[str]]:
    return list(csv.reader(io.StringIO(await response_text(response), newline="")))[1:]


def next_cursor(response: Response) -> CursorKey:
    link = response.headers.get("link")
    return cursors.decode(link.partition("cursor=")[2].partition(">")[0]) if link else None


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, ""),
        (True, "true"),
        (-3, "-3"),
        (0.1 + 0.2, "0.30000000000000004"),
        (2 / 3, "0.6666666666666666"),
        (Level.L3, "L3"),
        (Conclusion.TIMED_OUT, "timed_out"),
        (RepoName("Org/Repo"), "Org/Repo"),
        (datetime(2026, 1, 2, 3, 4, 5, 600, UTC), "2026-01-02T03:04:05.000600Z"),
        (datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=2))), "2026-01-02T01:04:05Z"),
    ],
)
def test_typed_values_are_written_exactly(value: object, shown: str) -> None:
    assert format_cell(value) == shown


@pytest.mark.parametrize("start", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "＝1", "＠x"])  # noqa: RUF001
def test_a_text_that_a_spreadsheet_would_run_is_quoted(start: str) -> None:
    assert format_cell(start).startswith("'")
    assert format_cell(f"a{start}")[0] == "a"


def test_control_characters_are_made_visible() -> None:
    assert neutralize_formula("nul\x00 esc\x1b[31m rtl\u202e") == "nul␀ esc␛[31m rtl[U+202E]"
    assert neutralize_formula("two\nlines") == "two\nlines"


@given(st.lists(st.tuples(st.text(), st.text()), min_size=1, max_size=5))
def test_any_text_is_read_back_as_one_cell(rows: list[tuple[str, str]]) -> None:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\r\n").writerows([format_cell(cell) for cell in row] for row in rows)
    read = list(csv.reader(io.StringIO(text.getvalue(), newline=""), strict=True))
    assert read == [[format_cell(cell) for cell in row] for row in rows]
    assert not any(cell.startswith(tuple("=+-@\t\r")) for row in read for cell in row)


@pytest.mark.parametrize("table", [name for name in vars(csv_columns) if name.isupper() and name[0] != "_"])
def test_column_names_are_unique_identifiers(table: str) -> None:
    columns = getattr(csv_columns, table).columns
    assert len(set(columns)) == len(columns)
    assert all(name.isidentifier() for name in columns)


async def test_a_short_list_is_exported_whole_with_its_header() -> None:
    answer = await CsvExport(make_request(), "up/stream-jobs", 100).respond_with_pages(
        ITEMS, PagedItems(1, 2).read
    )
    assert await response_text(answer) == "name,line\r\nitem 0,0\r\nitem 1,0\r\nitem 1,1\r\n"
    assert answer.headers["content-type"] == "text/csv; charset=utf-8; header=present"
    assert answer.headers["content-disposition"] == 'attachment; filename="crcr-up-stream-jobs.csv"'
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "link" not in answer.headers


async def test_items_over_the_limit_are_reached_through_the_link() -> None:
    listed = PagedItems(*[1] * 1000)
    rows: list[list[str]] = []
    after: CursorKey = None
    while True:
        answer = await CsvExport(make_request(), "x", 300, after).respond_with_pages(ITEMS, listed.read)
        rows += await csv_rows(answer)
        after = next_cursor(answer)
        if after is None:
            break
    assert [name for name, _ in rows] == [name for name, _ in listed.items]


@given(st.lists(st.integers(1, 9), max_size=40), st.integers(1, 25))
async def test_paging_splits_loses_and_repeats_no_item(sizes: list[int], limit: int) -> None:
    listed = PagedItems(*sizes)
    rows: list[list[str]] = []
    after: CursorKey = None
    for _ in range(len(sizes) + 1):
        answer = await CsvExport(make_request(), "x", limit, after).respond_with_pages(ITEMS, listed.read)
        part = await csv_rows(answer)
        assert len(part) <= max(limit, *sizes, 1)
        rows += part
        after = next_cursor(answer)
        if after is None:
            break
    assert rows == [[name, str(line)] for name, number in listed.items for line in range(number)]


async def test_the_next_link_keeps_the_query_and_names_no_host() -> None:
    answer = await CsvExport(make_request("state=completed&cursor=old&limit=1"), "x", 1).respond_with_pages(
        ITEMS, PagedItems(1, 1).read
    )
    cursor = cursors.encode((1,))
    assert answer.headers["link"] == f'</api/v1/jobs.csv?state=completed&limit=1&cursor={cursor}>; rel="next"'


async def test_a_large_export_is_streamed_with_its_content_length() -> None:
    table: CsvTable[int] = CsvTable(("text",), lambda number: [(f"{number} " + "x" * 10_000,)])

    async def read(_: CursorKey, __: int) -> tuple[Sequence[int], CursorKey]:
        return range(200), None

    answer = await CsvExport(make_request(), "x").respond_with_pages(table, read)
    assert isinstance(answer, StreamingResponse)
    text = await response_text(answer)
    assert len(text.encode()) == int(answer.headers["content-length"])
    assert text.count("\r\n") == 201


async def test_a_store_outage_in_the_middle_raises_instead_of_a_truncated_file() -> None:
    async def read(after: CursorKey, _: int) -> tuple[Sequence[Any], CursorKey]:
        if after:
            raise StoreUnavailable
        return [("x" * 1_000_000, 1)], (1,)

    with pytest.raises(StoreUnavailable):
        await CsvExport(make_request(), "x", 100).respond_with_pages(ITEMS, read)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("Org/Repo-jobs", "crcr-Org-Repo-jobs.csv"),
        ('a"\r\nX: y', "crcr-a-X-y.csv"),
        ("../../etc", "crcr-etc.csv"),
        ("ü😀", "crcr-.csv"),
        ("x" * 500, f"crcr-{'x' * 100}.csv"),
    ],
)
def test_file_names_are_safe_on_every_system(name: str, file: str) -> None:
    assert file_name(name) == file
