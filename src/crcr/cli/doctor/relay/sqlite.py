"""A SQLite store, looked at without changing it: is it there, of this release, writable, with room to grow."""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from crcr.cli.doctor.relay.schema import schema_finding
from crcr.join.findings.finding import SetupFinding, ok, problem, unknown, warning
from crcr.record.migrations.run import head
from crcr.record.store.sqlite.private_file import is_open_to_others

_LOCK_WAIT_S = 3.0
_LITTLE = 1 << 30
_TOO_LITTLE = 200 << 20
_MB = 1 << 20


def sqlite_findings(path: Path) -> tuple[SetupFinding, ...]:
    if not path.exists():
        return (
            problem("store", f"There is no database at {path}.", "`crcr serve` makes it, or `crcr migrate`"),
            _room(path.parent),
        )
    return (*_file(path), _room(path.parent))


def is_current(path: Path) -> bool:
    try:
        return path.exists() and _revision(path) == head()
    except sqlite3.Error:
        return False


def _file(path: Path) -> Iterator[SetupFinding]:
    try:
        found = _revision(path)
    except sqlite3.Error as fault:
        yield problem(
            "store",
            f"The database {path} cannot be read: {fault}.",
            "is it a database of crcr, and readable for this user?",
        )
        return
    yield schema_finding(found, str(path))
    yield _writable(path)
    if is_open_to_others(path):
        yield warning(
            "file_mode",
            f"Every user of this machine can read {path}.",
            f"chmod 600 {path}, as the user who owns it; `crcr serve` does it when it is that user",
        )


def _revision(path: Path) -> str | None:
    with closing(
        sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=_LOCK_WAIT_S)
    ) as connection:
        connection.execute("SELECT count(*) FROM sqlite_master")
        try:
            row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
        except sqlite3.OperationalError as fault:
            if "no such table" in str(fault):
                return None
            raise
    return row[0] if row else None


def _writable(path: Path) -> SetupFinding:
    """The lock is taken and given back; nothing is written."""
    try:
        with closing(sqlite3.connect(path, timeout=_LOCK_WAIT_S, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
    except sqlite3.OperationalError as fault:
        if "locked" in str(fault):
            return unknown(
                "writing",
                f"Somebody held the write lock for {_LOCK_WAIT_S:.0f} s.",
                "a busy relay may; look again",
            )
        return problem(
            "writing",
            f"It cannot be written: {fault}.",
            "give the relay's user the right to write file and folder",
        )
    return ok("writing", "It can be written.")


def _room(folder: Path) -> SetupFinding:
    try:
        free = shutil.disk_usage(folder).free
    except OSError as fault:
        return unknown("disk", f"How much room {folder} has is not known: {fault.strerror}.")
    text = f"{free // _MB:,} MB are free at {folder}."
    if free < _TOO_LITTLE:
        return problem("disk", text, "make room: without it nothing can be taken")
    return warning("disk", text, "make room soon") if free < _LITTLE else ok("disk", text)
