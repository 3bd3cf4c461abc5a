"""The way to ClickHouse: an HTTP server by the official driver, or chDB, its engine, in this process.

The driver waits, so it runs in threads of its own; nobody waits longer than the question is worth. It is imported by
the first question, so that a relay without ClickHouse never loads it. Its errors leave here as `OutsideFault`s.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit

from crcr.errors import OutsideHeld, OutsideRefused, OutsideUnreachable

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

T = TypeVar("T")
Record = dict[str, Any]

ANSWER_WITHIN_S = 2
"""A page waits so long for ClickHouse, then it asks the main store."""
TAKEN_WITHIN_S = 20
"""Feeding and what is quickly done wait so long."""
WHOLE_WITHIN_S = 1_800
"""A statement that walks a whole table is given so long."""
_MOST_WORDS = 200
_PORTS = {"clickhouse": 8123, "clickhouses": 8443}
_THREADS = {ANSWER_WITHIN_S: 6, TAKEN_WITHIN_S: 4, WHOLE_WITHIN_S: 1}
"""Apart by how long they are kept waiting: slow inserts leave pages the threads that they need."""
_CHDB_OPENING = Lock()
"""One at a time in this process: who has just taken the folder does not stand in it yet."""


@dataclass(frozen=True, slots=True)
class ClickHousePlace:
    """Where ClickHouse is: `clickhouse[s]://user:password@host:port/database` or `chdb:///path`."""

    url: str
    ca: Path | None = None

    def __repr__(self) -> str:
        return f"ClickHousePlace({self})"

    def __str__(self) -> str:
        """Without user and password: for people."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    @property
    def folder(self) -> Path | None:
        """Where chDB's data lies, which one process at a time can use."""
        parts = urlsplit(self.url)
        return Path(unquote(parts.path)) if parts.scheme == "chdb" else None

    def options(self, timeout_s: int) -> dict[str, Any]:
        parts = urlsplit(self.url)
        if self.folder is not None:
            return {"interface": "chdb", "path": str(self.folder)}
        return {
            "interface": "https" if parts.scheme == "clickhouses" else "http",
            "host": parts.hostname,
            "port": parts.port or _PORTS[parts.scheme],
            "username": unquote(parts.username or "default"),
            "password": unquote(parts.password or ""),
            "database": parts.path.removeprefix("/") or "default",
            "ca_cert": str(self.ca) if self.ca else None,
            "connect_timeout": ANSWER_WITHIN_S,
            "send_receive_timeout": timeout_s,
            "compress": False,
            "query_retries": 0,
            "autogenerate_session_id": False,  # sessions would keep two questions from being asked at once
            "client_name": "crcr",
        }


class ClickHouseLink:
    def __init__(self, place: ClickHousePlace) -> None:
        self._place = place
        self._threads = {
            within_s: ThreadPoolExecutor(number, thread_name_prefix=f"clickhouse-{within_s}s")
            for within_s, number in _THREADS.items()
        }
        self._clients: dict[int, Client] = {}
        self._opening = {within_s: Lock() for within_s in _THREADS}

    async def ask(self, sql: str, **params: Any) -> list[Record]:
        """A question of a page."""
        return await self._within(ANSWER_WITHIN_S, lambda client: _records(client, sql, params))

    async def ask_patiently(self, sql: str, within_s: int = TAKEN_WITHIN_S) -> list[Record]:
        return await self._within(within_s, lambda client: _records(client, sql, {}))

    async def command(self, sql: str, within_s: int = TAKEN_WITHIN_S) -> None:
        await self._within(within_s, lambda client: client.command(sql))

    async def insert(self, table: str, columns: Mapping[str, str], rows: Sequence[Sequence[Any]]) -> None:
        """Insert rows; `columns` are their names with their types."""
        names, types = list(columns), list(columns.values())
        await self._within(
            TAKEN_WITHIN_S,
            lambda client: client.insert(table, rows, column_names=names, column_type_names=types),
        )

    async def close(self) -> None:
        for threads in self._threads.values():
            threads.shutdown(wait=False, cancel_futures=True)
        for client in self._clients.values():
            client.close()

    async def _within(self, timeout_s: int, act: Callable[["Client"], T]) -> T:
        threads = self._threads[timeout_s]
        work = asyncio.get_running_loop().run_in_executor(threads, self._do, timeout_s, act)
        try:
            return await asyncio.wait_for(work, timeout_s + 0.5)
        except TimeoutError:
            raise OutsideUnreachable(
                f"ClickHouse at {self._place} did not answer within {timeout_s} s"
            ) from None

    def _do(self, timeout_s: int, act: Callable[["Client"], T]) -> T:
        """In a thread: ask, and turn the driver's errors into ours."""
        from clickhouse_connect.driver.exceptions import ClickHouseError, OperationalError  # noqa: PLC0415
        from urllib3.exceptions import HTTPError  # noqa: PLC0415

        try:
            return act(self._client(timeout_s))
        except (OperationalError, HTTPError, OSError) as fault:
            raise OutsideUnreachable(
                f"ClickHouse at {self._place} does not answer: {_reason(fault)}"
            ) from None
        except ClickHouseError as fault:
            raise OutsideRefused(f"ClickHouse refused: {_first_line(fault)}", status=400) from None

    def _client(self, timeout_s: int) -> "Client":
        with self._opening[timeout_s]:
            client = self._clients.get(timeout_s)
            if client is None:
                opened = _opened if self._place.folder is None else _opened_alone
                client = self._clients[timeout_s] = opened(self._place, timeout_s)
            return client


def _opened_alone(place: ClickHousePlace, timeout_s: int) -> "Client":
    """Open chDB, or say that another process has it."""
    from clickhouse_connect.driver.exceptions import ClickHouseError  # noqa: PLC0415

    from crcr.record.clickhouse.chdb_lock import is_held, is_held_by_another  # noqa: PLC0415  its locks are not everywhere

    folder = place.folder or Path()
    with _CHDB_OPENING:
        if is_held_by_another(folder):
            raise _held(folder)
        try:
            return _opened(place, timeout_s)
        except ClickHouseError:
            if is_held(folder):  # taken just now, or by a process that has our number in another container
                raise _held(folder) from None
            raise


def _held(folder: Path) -> OutsideHeld:
    return OutsideHeld(
        f"chDB's folder {folder} is held by another process: only one process at a time can use it",
        hint="stop the relay first, or use a ClickHouse server",
    )


def _opened(place: ClickHousePlace, timeout_s: int) -> "Client":
    import clickhouse_connect  # noqa: PLC0415  only who uses ClickHouse loads its driver
    from clickhouse_connect.driver.httpclient import HttpClient  # noqa: PLC0415

    logging.getLogger("clickhouse_connect").setLevel(logging.CRITICAL)  # we are told what it says
    client = clickhouse_connect.get_client(**place.options(timeout_s))
    if isinstance(client, HttpClient):
        client.http_retries = 0  # to wait twice would be too long; whoever asks knows what to do
    return client


def _records(client: "Client", sql: str, params: Mapping[str, Any]) -> list[Record]:
    answer = client.query(sql, parameters=dict(params))
    return [dict(zip(answer.column_names, row, strict=True)) for row in answer.result_rows]


def _reason(fault: BaseException) -> str:
    """The system's own words for what went wrong, which the driver wraps into many of its own."""
    found, each = fault, fault.__cause__ or fault.__context__
    while each is not None:
        found, each = each if isinstance(each, OSError) else found, each.__cause__ or each.__context__
    words = found.strerror if isinstance(found, OSError) and found.strerror else _first_line(found)
    return words[:1].lower() + words[1:_MOST_WORDS]


def _first_line(fault: BaseException) -> str:
    return (str(fault).strip() or type(fault).__name__).splitlines()[0][:300]
