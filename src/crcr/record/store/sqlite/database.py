"""SQLite behind the `Database` port: one writing connection that commits the queued units as one group.

Statements run inline on the event loop, and a failed unit is rolled back alone; only the COMMIT, which waits for the
disk (`synchronous=FULL`), runs in a thread. While one group commits the next one gathers. A caller is answered
after the commit that holds its rows, never before. Why: docs/adr/0005-group-commit.md.
"""

import asyncio
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Awaitable, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

from crcr.errors import SchemaMismatch, StoreUnavailable
from crcr.record.store.database import NoCounters, Row, StoreCounters, Unit
from crcr.record.store.group_commit import PendingSums, QueuedUnit, fail_units, resolve_units
from crcr.record.store.signals import Signals
from crcr.record.store.statement import Statement, SumUpsert, all_storable

T = TypeVar("T")

_GROUP = 256
_BUSY_MS = 10_000
_DATA_VERSION_POLL_S = 0.05
_CACHE_KB = 8_000
_PAGES_CACHE_KB = 32_000
"""For the readers of pages, which go through indexes; a report reads and writes a few rows by their keys."""


class SqliteTx:
    """Runs statements on one connection. Its methods are `async` by contract and never suspend."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.signals: set[str] = set()
        self._sums = PendingSums()

    async def one(self, statement: Statement, **params: Any) -> Row | None:
        return cast("Row | None", self._execute(statement, params).fetchone())

    async def all(self, statement: Statement, **params: Any) -> list[Row]:
        return self._execute(statement, params).fetchall()

    async def run(self, statement: Statement, **params: Any) -> int:
        return self._execute(statement, params).rowcount

    async def many(self, statement: Statement, rows: Iterable[Mapping[str, Any]]) -> None:
        compiled = statement.for_dialect("sqlite")
        self._connection.executemany(compiled.sql, [compiled.parameters(row) for row in rows])

    def add_up(self, upsert: SumUpsert, key: tuple[Any, ...], amounts: Mapping[str, float]) -> None:
        self._sums.add(upsert, key, amounts)

    def write_sums(self) -> None:
        for upsert, sums in self._sums.drain():
            rows = (all_storable(upsert.row(key, amounts)) for key, amounts in sums)
            self._connection.executemany(upsert.statement.for_dialect("sqlite").sql, rows)

    async def settled_change(self) -> int | None:
        return None  # with one writer at a time, ids are committed in their order

    def signal(self, name: str) -> None:
        self.signals.add(name)

    def _execute(self, statement: Statement, params: Mapping[str, Any]) -> sqlite3.Cursor:
        compiled = statement.for_dialect("sqlite")
        return self._connection.execute(compiled.sql, compiled.parameters(params))


def _run_inline(awaitable: Awaitable[T]) -> T:
    """Run a unit that never suspends, without an event loop."""
    coroutine = cast("Coroutine[Any, Any, T]", awaitable)
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return cast("T", stop.value)
    coroutine.close()
    raise RuntimeError("a unit of work may await nothing but its transaction")


def connect(
    path: Path, *, read_only: bool = False, durable: bool = True, cache_kb: int = _CACHE_KB
) -> sqlite3.Connection:
    try:
        connection = sqlite3.connect(
            str(path),
            isolation_level=None,
            check_same_thread=False,
            cached_statements=512,
        )
        connection.row_factory = sqlite3.Row
        connection.execute(f"PRAGMA busy_timeout={_BUSY_MS}")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'OFF'}")
        connection.execute(f"PRAGMA cache_size=-{cache_kb}")
        if read_only:
            connection.execute("PRAGMA query_only=ON")
    except sqlite3.Error as fault:
        raise StoreUnavailable(f"the database {path.name} cannot be opened: {fault}") from fault
    return connection


class SqliteDatabase:
    """`durable=False` does not wait for the disk: for tests, whose machine does not lose power.

    What does not wait for the disk and reads few rows needs no thread: with `in_threads=False` commits and reads are
    done on the event loop.
    """

    def __init__(
        self,
        path: Path,
        signals: Signals,
        counters: StoreCounters | None = None,
        *,
        durable: bool = True,
        in_threads: bool = True,
    ) -> None:
        self.signals = signals
        self._counters = counters or NoCounters()
        self._path = path
        self._writing = connect(path, durable=durable)
        # Waiting for the lock belongs in a thread, see `_begin`.
        self._writing.execute("PRAGMA busy_timeout=0")
        self._key_reader = connect(path, read_only=True)
        self._committer = ThreadPoolExecutor(1, thread_name_prefix="commit")
        self._in_threads = in_threads
        self._readers = ThreadPoolExecutor(4, thread_name_prefix="read")
        self._thread = threading.local()
        self._thread_connections: list[sqlite3.Connection] = []
        self._queue: deque[QueuedUnit[Any]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    async def write(self, unit: Unit[T], *, lane: str | None = None) -> T:  # noqa: ARG002  one writer needs none
        self._refuse_if_closed()
        committed: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.append(QueuedUnit(unit, committed))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._commit_groups())
        return await committed

    async def quick_read(self, unit: Unit[T]) -> T:
        self._refuse_if_closed()
        try:
            return _run_inline(unit(SqliteTx(self._key_reader)))
        except sqlite3.Error as fault:
            raise _unavailable(fault) from fault

    async def read(self, unit: Unit[T]) -> T:
        self._refuse_if_closed()
        if self._in_threads:
            loop = asyncio.get_running_loop()
            return cast("T", await loop.run_in_executor(self._readers, self._read_in_snapshot, unit))
        await asyncio.sleep(0)  # others go on meanwhile here too
        return self._read_in_snapshot(unit)

    async def renew_connections(self) -> None:
        """A file has no connection that could die."""

    async def close(self) -> None:
        """Commit the queued units, then close the file."""
        self._closed = True
        if self._task is not None:
            await self._task
        self._committer.shutdown()
        self._readers.shutdown()
        for connection in (*self._thread_connections, self._key_reader, self._writing):
            connection.close()

    async def watch_other_processes(self) -> None:
        """Wake our waiters when another process has committed; SQLite has no notifications."""
        last_version = None
        while not self._closed:
            with suppress(sqlite3.Error):
                now = self._key_reader.execute("PRAGMA data_version").fetchone()[0]
                if last_version is not None and now != last_version:
                    self.signals.wake_all()
                last_version = now
            await asyncio.sleep(_DATA_VERSION_POLL_S)

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise StoreUnavailable("the store is closed")

    def _read_in_snapshot(self, unit: Unit[T]) -> T:
        """Read with this thread's connection."""
        connection: sqlite3.Connection | None = getattr(self._thread, "connection", None)
        if connection is None:
            connection = self._thread.connection = connect(
                self._path, read_only=True, cache_kb=_PAGES_CACHE_KB
            )
            self._thread_connections.append(connection)
        try:
            connection.execute("BEGIN")  # one snapshot for all queries of a page
            try:
                return _run_inline(unit(SqliteTx(connection)))
            finally:
                connection.execute("ROLLBACK")
        except sqlite3.Error as fault:
            raise _unavailable(fault) from fault

    async def _commit_groups(self) -> None:
        while self._queue:
            await asyncio.sleep(0)  # let requests that are ready now join this group
            group = [self._queue.popleft() for _ in range(min(_GROUP, len(self._queue)))]
            began = time.perf_counter()
            try:
                signals = await self._commit(group)
            except sqlite3.Error as fault:
                self._counters.failed()
                fail_units(group, StoreUnavailable(f"the store did not take the write: {fault}"))
                continue
            except BaseException:
                # No other task would take the units that are still queued.
                fail_units([*group, *self._queue], StoreUnavailable("the write was cancelled"))
                self._queue.clear()
                raise
            self._counters.committed(len(group), time.perf_counter() - began)
            resolve_units(group)
            for name in signals:
                self.signals.notify(name)

    async def _commit(self, group: list[QueuedUnit[Any]]) -> set[str]:
        loop = asyncio.get_running_loop()
        await self._begin(loop)
        try:
            signals = self._run_units(group)
            if self._in_threads:
                await loop.run_in_executor(self._committer, self._writing.execute, "COMMIT")
            else:
                self._writing.execute("COMMIT")
                await asyncio.sleep(0)  # units that are queued meanwhile are the next group here too
        except BaseException:
            if self._writing.in_transaction:
                self._writing.execute("ROLLBACK")
            raise
        return signals

    async def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take the write lock; when another process holds it, wait in the thread, not on the event loop."""
        try:
            self._writing.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            await loop.run_in_executor(self._committer, self._begin_waiting)

    def _begin_waiting(self) -> None:
        self._writing.execute(f"PRAGMA busy_timeout={_BUSY_MS}")
        try:
            self._writing.execute("BEGIN IMMEDIATE")
        finally:
            self._writing.execute("PRAGMA busy_timeout=0")

    def _run_units(self, group: list[QueuedUnit[Any]]) -> set[str]:
        """Run all without savepoints, since a unit rarely fails; if one does, again with a savepoint for each."""
        tx = SqliteTx(self._writing)
        try:
            for queued in group:
                queued.result = _run_inline(queued.unit(tx))
            tx.write_sums()
        except Exception:  # noqa: BLE001  the second run finds out which unit failed
            self._writing.execute("ROLLBACK")
            self._writing.execute("BEGIN IMMEDIATE")
            return self._run_with_savepoints(group)
        return tx.signals

    def _run_with_savepoints(self, group: list[QueuedUnit[Any]]) -> set[str]:
        signals: set[str] = set()
        for queued in group:
            tx = SqliteTx(self._writing)
            self._writing.execute("SAVEPOINT unit")
            try:
                queued.result = _run_inline(queued.unit(tx))
                tx.write_sums()
            except Exception as failure:  # noqa: BLE001  the other callers' units are not affected
                unavailable = isinstance(failure, sqlite3.OperationalError)
                queued.failure = _unavailable(failure) if unavailable else failure
                self._writing.execute("ROLLBACK TO unit")
            else:
                signals |= tx.signals
            self._writing.execute("RELEASE unit")
        return signals


def _unavailable(fault: Exception) -> StoreUnavailable:
    missing = str(fault).startswith(("no such table", "no such column"))
    return SchemaMismatch(str(fault)) if missing else StoreUnavailable(str(fault))
