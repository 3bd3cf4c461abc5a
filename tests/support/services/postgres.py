"""A PostgreSQL server for the tests: one cluster per test process, in a temporary folder, on a free port.

It never uses a server that runs already. Databases are created from a template with the schema. That takes 190 ms of the
processor, so the next test gets an emptied one, which takes 25, if its schema is that of the template.
"""

import asyncio
import os
import pwd
import shutil
import subprocess
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import asyncpg

from crcr.record.migrations.run import migrate
from crcr.record.store.database import PostgresLocation, PostgresTimeouts
from support.process import free_port
from support.services.cleanup import at_end, at_end_of_test, temporary_folder

_QUICK = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "autovacuum=off")
_ALWAYS = (
    "listen_addresses=127.0.0.1",
    "max_connections=200",
    "shared_buffers=64MB",
    "logging_collector=off",
)
_TEMPLATE = "crcr_template"
PATIENT_TIMEOUTS = PostgresTimeouts(60_000, 60_000, 60_000, 60_000, 60_000)
"""Long time-outs for a busy machine: with a manual clock, a failed statement would never be retried."""
_T = TypeVar("_T")
_NUMBERS = count(1)
_SCHEMA = """
SELECT count(*), max(xmin::text::bigint) FROM pg_class
UNION ALL SELECT count(*), max(xmin::text::bigint) FROM pg_attribute
UNION ALL SELECT count(*), max(xmin::text::bigint) FROM pg_constraint
UNION ALL SELECT count(*), max(xmin::text::bigint) FROM pg_index
UNION ALL SELECT count(*), max(xmin::text::bigint) FROM pg_proc
UNION ALL SELECT count(*), max(xmin::text::bigint) FROM pg_trigger
UNION ALL SELECT count(*), max(xmin::text::bigint) FROM alembic_version
"""
"""Differs after each change of the schema or of its revision: a row has the number of the transaction that wrote it."""
_FILLED_TABLES = """
SELECT quote_ident(relname) AS name FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace
AND relname <> 'alembic_version' AND pg_relation_size(oid) > 0
"""
_END_OTHER_SESSIONS = """
SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
_NUMBER_FROM_ONE = "SELECT setval(seqrelid, seqstart, false) FROM pg_sequence"


@dataclass
class Cluster:
    """One server; `durable` syncs to disk, for benchmarks and for tests that kill the server."""

    folder: Path
    port: int
    durable: bool = False
    _server: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @classmethod
    def make(cls, *, durable: bool = False) -> "Cluster":
        folder = temporary_folder("crcr-postgres-")
        made = cls(folder, free_port(), durable)
        if (user := _other_user()) is not None:
            shutil.chown(folder, user, user)
        arguments = (
            "-D",
            str(folder / "data"),
            "-U",
            "crcr",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--no-sync",
            "--locale=C.UTF-8",
        )
        subprocess.run(made._as_owner("initdb", *arguments), check=True, capture_output=True, cwd=folder)
        at_end(made.remove)
        made.start()
        return made

    def make_replica(self) -> "Cluster":
        """Start a hot standby of this server, which follows it by streaming."""
        folder = temporary_folder("crcr-postgres-")
        made = Cluster(folder, free_port(), self.durable)
        if (user := _other_user()) is not None:
            shutil.chown(folder, user, user)
        arguments = ("-D", str(folder / "data"), "-R", "-d", self.admin_url, "-X", "stream", "-c", "fast")
        at_end(made.remove)
        subprocess.run(
            made._as_owner("pg_basebackup", *arguments), check=True, capture_output=True, cwd=folder
        )
        made.start()
        return made

    @property
    def admin_url(self) -> str:
        return self.url("postgres")

    def url(self, database: str) -> str:
        return f"postgresql://crcr@127.0.0.1:{self.port}/{database}"

    @property
    def process_id(self) -> int:
        """Of the server, while it runs: the parent of all its processes."""
        return int((self.folder / "data" / "postmaster.pid").read_text().split()[0])

    def start(self) -> None:
        settings = (*_ALWAYS, *(() if self.durable else _QUICK), f"unix_socket_directories={self.folder}")
        options = [part for setting in settings for part in ("-c", setting)]
        command = self._as_owner("postgres", "-D", str(self.folder / "data"), "-p", str(self.port), *options)
        with (self.folder / "log").open("ab") as log:
            self._server = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)
        self._wait_until_ready()

    def stop(self, how: str = "fast") -> None:
        """`fast` ends all connections at once, `immediate` is a crash."""
        if self._server is not None:
            subprocess.run(
                self._as_owner(
                    "pg_ctl", "stop", "-D", str(self.folder / "data"), "-m", how, "-w", "-t", "30"
                ),
                check=True,
                capture_output=True,
                cwd=self.folder,
            )
            self._server.wait(30)
            self._server = None

    def remove(self) -> None:
        if self._server is not None and self._server.poll() is None:
            self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _wait_until_ready(self) -> None:
        ready = self._as_owner("pg_isready", "-q", "-h", str(self.folder), "-p", str(self.port), "-t", "1")
        for _ in range(600):
            if self._server is not None and self._server.poll() is not None:
                raise RuntimeError((self.folder / "log").read_text()[-2000:])
            if subprocess.run(ready, check=False, cwd=self.folder).returncode == 0:
                return
        raise RuntimeError("PostgreSQL did not start")

    def _as_owner(self, program: str, *arguments: str) -> list[str]:
        """Run as another user when the tests run as root, which PostgreSQL refuses."""
        user = _other_user()
        before = [] if user is None else ["setpriv", "--reuid", user, "--regid", user, "--clear-groups", "--"]
        return [*before, str(binaries() / program), *arguments]


@cache
def binaries() -> Path:
    for folder in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True):
        if (folder / "postgres").exists():
            return folder
    found = shutil.which("postgres")
    if found is None:
        raise RuntimeError("there is no PostgreSQL server: install the Debian package postgresql")
    return Path(found).parent


def _other_user() -> str | None:
    if os.getuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError:
        return "nobody"


@cache
def cluster() -> Cluster:
    """The cluster that all tests of this process share."""
    made = Cluster.make()
    run_on(
        made.admin_url, f"CREATE DATABASE {_TEMPLATE} LOCALE_PROVIDER icu ICU_LOCALE 'en' TEMPLATE template0"
    )
    migrate(PostgresLocation(made.url(_TEMPLATE)))
    return made


def new_database(*, empty: bool = False) -> str:
    """Return the URL of a database with the schema and no rows, or with `empty` without the schema.

    It is the caller's until the test ends; one that a shared fixture gets, always.
    """
    made = cluster()
    if empty:
        return _create_database(made, "template0")
    url = _reuse_database() or _create_database(made, _TEMPLATE)
    at_end_of_test(_USED.append, url)
    return url


_USED: list[str] = []
"""Databases of tests that have ended."""


def _reuse_database() -> str | None:
    """Empty the database of an earlier test, and drop those that such a test changed."""
    while _USED:
        url = _USED.pop()
        if empty_database(url):
            return url
        drop_database(url)
    return None


def empty_database(url: str) -> bool:
    """Delete all rows; return False where the schema is not that of the template, or there is no such database."""
    return _in_thread(_empty(url, _template_schema()))


async def _empty(url: str, schema: list[dict[str, Any]]) -> bool:
    try:
        connection = await asyncpg.connect(url)
    except asyncpg.InvalidCatalogNameError:
        return False
    try:
        is_same = [dict(row) for row in await connection.fetch(_SCHEMA)] == schema
    except asyncpg.UndefinedTableError:  # of the revision
        is_same = False
    if is_same:
        await _delete_all_rows(connection)
    await connection.close()
    return is_same


async def _delete_all_rows(connection: "asyncpg.Connection[asyncpg.Record]") -> None:
    """VACUUM gives the files back too: new rows lie in the order of their writing, as in a new database."""
    await connection.execute(_END_OTHER_SESSIONS)
    filled = [row["name"] for row in await connection.fetch(_FILLED_TABLES)]
    if filled:
        deletes = "; ".join(f"DELETE FROM {name}" for name in filled)  # noqa: S608
        await connection.execute(f"SET session_replication_role = replica; {deletes}")
        await connection.execute(f"VACUUM {', '.join(filled)}")
    await connection.execute(_NUMBER_FROM_ONE)


@cache
def _template_schema() -> list[dict[str, Any]]:
    return run_on(cluster().url(_TEMPLATE), _SCHEMA)


def _create_database(made: Cluster, template: str) -> str:
    name = f"crcr_{os.getpid()}_{next(_NUMBERS)}"
    run_on(made.admin_url, f"CREATE DATABASE {name} TEMPLATE {template}")
    return made.url(name)


def drop_database(url: str) -> None:
    run_on(cluster().admin_url, f"DROP DATABASE IF EXISTS {url.rpartition('/')[2]} WITH (FORCE)")


def dump(url: str, path: Path) -> None:
    """Dump a database that is in use."""
    _client("pg_dump", "--format=custom", f"--file={path}", url)


def restore_dump(url: str, path: Path) -> None:
    _client("pg_restore", "--clean", "--if-exists", "--no-owner", f"--dbname={url}", str(path))


def _client(program: str, *arguments: str) -> None:
    subprocess.run([str(binaries() / program), *arguments], check=True, capture_output=True)


def run_on(url: str, sql: str, *params: object) -> list[dict[str, Any]]:
    """Run one statement with `?` parameters and return its rows; callable with or without an event loop."""
    for number in range(1, len(params) + 1):
        sql = sql.replace("?", f"${number}", 1)
    return _in_thread(_run(url, sql, params))


def _in_thread(work: "Coroutine[Any, Any, _T]") -> _T:
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


async def _run(url: str, sql: str, params: Sequence[object]) -> list[dict[str, Any]]:
    connection = await asyncpg.connect(url)
    try:
        return [dict(row) for row in await connection.fetch(sql, *params)]
    finally:
        await connection.close()
