"""A copy of a SQLite database that is in use: one snapshot, checked, and under its name only when it is whole.

The copy is a single file without a write-ahead log. Writers go on meanwhile: a snapshot is a reader like others.
"""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from crcr.errors import NotPossible, StoreUnavailable
from crcr.record.store.sqlite.database import connect


def copy_database(source: Path, target: Path) -> int:
    """Copy it, and return how many bytes the copy has."""
    if target.exists():
        raise NotPossible(f"{target} exists", hint="choose another name, or move that file away")
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        # It holds all that the database holds, so it is the owner's alone from its first byte on.
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        _copy(source, part)
        _keep(part, target)
    except sqlite3.Error as fault:
        raise StoreUnavailable(f"{source} was not copied: {fault}") from fault
    except OSError as fault:
        raise NotPossible(f"{target} cannot be written: {fault.strerror}") from fault
    finally:
        part.unlink(missing_ok=True)
    return target.stat().st_size


def _copy(source: Path, part: Path) -> None:
    with closing(connect(source, read_only=True)) as reading, closing(sqlite3.connect(part)) as writing:
        reading.backup(writing)  # in one step: in several, every commit of the relay would make it begin anew
        writing.execute("PRAGMA journal_mode=DELETE")
        [[verdict], *_] = writing.execute("PRAGMA quick_check(1)").fetchall()
    if verdict != "ok":
        raise StoreUnavailable(f"{source} is damaged: {verdict}", hint="restore the last good copy")


def _keep(part: Path, target: Path) -> None:
    _reach_the_disk(part)
    part.rename(target)
    _reach_the_disk(target.parent)


def _reach_the_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
