"""Connections to ClickHouse: an HTTP server through the official driver, or chDB, its engine, in this process.

The driver blocks, so it runs in threads of its own; every call has a time-out. The first query imports it, so that a
relay without ClickHouse never loads it. Its errors are raised as `OutsideFault`s. One process at a time can use chDB's
folder; that is checked before chDB is opened, because chDB reports a folder in use only on stderr.
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
import os

T = TypeVar("T")
Record = dict[str, Any]

PAGE_TIMEOUT_S = 2
"""A page waits so long for ClickHouse, then it reads the main store."""
INSERT_TIMEOUT_S = 20
"""For inserts and short commands."""
SCAN_TIMEOUT_S = 1_800
"""For a statement that scans a whole table."""
_MOST_CHARACTERS = 200
_PORTS = {"clickhouse": 8123, "clickhouses": 8443}
_THREADS = {PAGE_TIMEOUT_S: 6, INSERT_TIMEOUT_S: 4, SCAN_TIMEOUT_S: 1}
"""One pool for each time-out: slow inserts leave the pages' threads free."""
_CHDB_OPENING = Lock()
"""One opening at a time in this process: chDB writes the owner into the folder only after it has locked it."""


@dataclass(frozen=True, slots=True)
class ClickHouseLocation:
    """ClickHouse's address: `clickhouse[s]://user:password@host:port/database` or `chdb:///path`."""

    url: str
    ca: Path | None = None

    def __repr__(self) -> str:
        return f"ClickHouseLocation({self})"

    def __str__(self) -> str:
        """Without user and password: for messages."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    @property
    def folder(self) -> Path | None:
        """ChDB's data folder, which one process at a time can use."""
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
            "connect_timeout": PAGE_TIMEOUT_S,
            "send_receive_timeout": timeout_s,
            "compress": False,
            "query_retries": 0,
            "autogenerate_session_id": False,  # a session would serialise its queries
            "client_name": "crcr",
        }


class ClickHouseLink:
    def __init__(self, location: ClickHouseLocation) -> None:
        self._location = location
        self._threads = {
            timeout_s: ThreadPoolExecutor(number, thread_name_prefix=f"clickhouse-{timeout_s}s")
            for timeout_s, number in _THREADS.items()
        }
        self._clients: dict[int, Client] = {}
        self._opening = {timeout_s: Lock() for timeout_s in _THREADS}

    def relocate(self, location: ClickHouseLocation) -> None:
        """Open connections with this address and password from now on."""
        self._location = location
        self._clients = {}

    async def query(self, sql: str, **params: Any) -> list[Record]:
        """Query for a page, with its short time-out."""
        return await self._call(PAGE_TIMEOUT_S, lambda client: _records(client, sql, params))

    async def query_slowly(self, sql: str, timeout_s: int = INSERT_TIMEOUT_S) -> list[Record]:
        return await self._call(timeout_s, lambda client: _records(client, sql, {}))

    async def command(self, sql: str, timeout_s: int = INSERT_TIMEOUT_S) -> None:
        await self._call(timeout_s, lambda client: client.command(sql))

    async def insert(self, table: str, columns: Mapping[str, str], rows: Sequence[Sequence[Any]]) -> None:
        """Insert rows; `columns` are their names with their types."""
        names, types = list(columns), list(columns.values())
        await self._call(
            INSERT_TIMEOUT_S,
            lambda client: client.insert(table, rows, column_names=names, column_type_names=types),
        )

    async def close(self) -> None:
        for threads in self._threads.values():
            threads.shutdown(wait=False, cancel_futures=True)
        for client in self._clients.values():
            client.close()

    async def _call(self, timeout_s: int, act: Callable[["Client"], T]) -> T:
        threads = self._threads[timeout_s]
        work = asyncio.get_running_loop().run_in_executor(threads, self._call_blocking, timeout_s, act)
        try:
            return await asyncio.wait_for(work, timeout_s + 0.5)
        except TimeoutError:
            raise OutsideUnreachable(
                f"ClickHouse at {self._location} did not answer within {timeout_s} s"
            ) from None

    def _call_blocking(self, timeout_s: int, act: Callable[["Client"], T]) -> T:
        """In a thread: call the driver, and raise its errors as ours."""
        from clickhouse_connect.driver.exceptions import ClickHouseError, OperationalError  # noqa: PLC0415
        from urllib3.exceptions import HTTPError  # noqa: PLC0415

        try:
            return act(self._client(timeout_s))
        except (OperationalError, HTTPError, OSError) as fault:
            raise OutsideUnreachable(
                f"ClickHouse at {self._location} does not answer: {_reason(fault)}"
            ) from None
        except ClickHouseError as fault:
            raise OutsideRefused(f"ClickHouse refused: {_first_line(fault)}", status=400) from None

    def _client(self, timeout_s: int) -> "Client":
        with self._opening[timeout_s]:
            client = self._clients.get(timeout_s)
            if client is None:
                open_client = _open if self._location.folder is None else _open_chdb
                client = self._clients[timeout_s] = open_client(self._location, timeout_s)
            return client


def _open_chdb(location: ClickHouseLocation, timeout_s: int) -> "Client":
    """Open chDB, or raise that another process uses its folder."""
    from clickhouse_connect.driver.exceptions import ClickHouseError  # noqa: PLC0415

    folder = location.folder or Path()
    with _CHDB_OPENING:
        if is_locked_by_other(folder):
            raise _folder_in_use(folder)
        try:
            return _open(location, timeout_s)
        except ClickHouseError:
            if is_locked(folder):  # locked just now, or by a process with our process id in another container
                raise _folder_in_use(folder) from None
            raise


def _folder_in_use(folder: Path) -> OutsideHeld:
    return OutsideHeld(
        f"chDB's folder {folder} is held by another process: only one process at a time can use it",
        hint="stop the relay first, or use a ClickHouse server",
    )


def _open(location: ClickHouseLocation, timeout_s: int) -> "Client":
    import clickhouse_connect  # noqa: PLC0415  loaded only with ClickHouse
    from clickhouse_connect.driver.httpclient import HttpClient  # noqa: PLC0415

    logging.getLogger("clickhouse_connect").setLevel(logging.CRITICAL)  # its errors are raised to us
    client = clickhouse_connect.get_client(**location.options(timeout_s))
    if isinstance(client, HttpClient):
        client.http_retries = 0  # a retry would exceed the time-out; the caller decides
    return client


def _records(client: "Client", sql: str, params: Mapping[str, Any]) -> list[Record]:
    answer = client.query(sql, parameters=dict(params))
    return [dict(zip(answer.column_names, row, strict=True)) for row in answer.result_rows]


def _reason(fault: BaseException) -> str:
    """The innermost `OSError`'s text, which the driver wraps into several errors of its own."""
    innermost, cause = fault, fault.__cause__ or fault.__context__
    while cause is not None:
        innermost = cause if isinstance(cause, OSError) else innermost
        cause = cause.__cause__ or cause.__context__
    named = isinstance(innermost, OSError) and innermost.strerror
    reason = named or _first_line(innermost)
    return reason[:1].lower() + reason[1:_MOST_CHARACTERS]


def _first_line(fault: BaseException) -> str:
    return (str(fault).strip() or type(fault).__name__).splitlines()[0][:300]


_OWNER = b"PID:"


def is_locked(folder: Path) -> bool:
    """Whether a process, this one or another, has chDB open on the folder."""
    import fcntl  # noqa: PLC0415  does not exist on every system

    try:
        with (folder / "status").open("rb") as status:
            fcntl.flock(status, fcntl.LOCK_SH | fcntl.LOCK_NB)  # released when the file is closed
    except BlockingIOError:
        return True
    except OSError:
        return False  # the folder is new, or chDB itself raises what is wrong
    return False


def is_locked_by_other(folder: Path) -> bool:
    return is_locked(folder) and _owner_pid(folder) != os.getpid()


def _owner_pid(folder: Path) -> int | None:
    try:
        lines = (folder / "status").read_bytes().splitlines()
    except OSError:
        return None
    ids = [line.removeprefix(_OWNER).strip() for line in lines if line.startswith(_OWNER)]
    return int(ids[0]) if ids and ids[0].isdigit() else None
