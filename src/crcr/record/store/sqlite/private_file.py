"""The SQLite file is its owner's alone: it holds hidden repositories, identities and every webhook's body."""

import os
import stat
from contextlib import suppress
from pathlib import Path

_OTHERS = stat.S_IRWXO
_GROUP_AND_OTHERS = stat.S_IRWXG | _OTHERS


def is_open_to_others(path: Path) -> bool:
    """Say whether users who are neither its owner nor in its group may read or write it."""
    return bool(path.stat().st_mode & _OTHERS)


def make_private(path: Path) -> None:
    """Make an empty file for its owner alone; take one that is there away from everybody else.

    SQLite gives its log and its index the mode of the file. A file that only its group may read was made so on
    purpose, and stays as it is.
    """
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        return
    for each in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        # Of another owner's file the mode cannot be changed; `crcr doctor` warns about it.
        with suppress(FileNotFoundError, PermissionError):
            if is_open_to_others(each):
                each.chmod(stat.S_IMODE(each.stat().st_mode) & ~_GROUP_AND_OTHERS)
