"""The SQLite file: readable by its owner alone, and copied while in use (`crcr backup`).

It holds hidden repositories, identities and every webhook's body. A copy is one checked snapshot, a single file without
a write-ahead log, which gets its name only when it is complete. Writers go on meanwhile.
"""

import os
import sqlite3
import stat
from contextlib import closing, suppress
from pathlib import Path

from crcr.errors import NotPossible, StoreUnavailable
from crcr.record.store.sqlite.database import connect

_OTHERS = stat.S_IRWXO
_GROUP_AND_OTHERS = stat.S_IRWXG | _OTHERS


def is_open_to_others(path: Path) -> bool:
    """Whether users other than the owner and the group may read or write the file."""
    return bool(path.stat().st_mode & _OTHERS)


def make_private(path: Path) -> None:
    """Create an empty file with mode 0600, or remove the access of group and others from an existing one.

    SQLite gives its log and its index the mode of the file. A file that only its group may read was made so on
    purpose, and keeps its mode.
    """
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        return
    for file in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        # The mode of another owner's file cannot be changed; `crcr doctor` warns about it.
        with suppress(FileNotFoundError, PermissionError):
            if is_open_to_others(file):
                file.chmod(stat.S_IMODE(file.stat().st_mode) & ~_GROUP_AND_OTHERS)


def copy_database(source: Path, target: Path) -> int:
    """Copy the database, and return the copy's size in bytes."""
    if target.exists():
        raise NotPossible(f"{target} exists", hint="choose another name, or move that file away")
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        # It holds everything that the database holds, so only its owner may read it from its first byte on.
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        _copy(source, part)
        _rename_durably(part, target)
    except sqlite3.Error as fault:
        raise StoreUnavailable(f"{source} was not copied: {fault}") from fault
    except OSError as fault:
        raise NotPossible(f"{target} cannot be written: {fault.strerror}") from fault
    finally:
        part.unlink(missing_ok=True)
    return target.stat().st_size


def _copy(source: Path, part: Path) -> None:
    with closing(connect(source, read_only=True)) as reading, closing(sqlite3.connect(part)) as writing:
        reading.backup(writing)  # in one step: in several, every commit of the relay would restart it
        writing.execute("PRAGMA journal_mode=DELETE")
        [[verdict], *_] = writing.execute("PRAGMA quick_check(1)").fetchall()
    if verdict != "ok":
        raise StoreUnavailable(f"{source} is damaged: {verdict}", hint="restore the last good copy")


def _rename_durably(part: Path, target: Path) -> None:
    _sync(part)
    part.rename(target)
    _sync(target.parent)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
