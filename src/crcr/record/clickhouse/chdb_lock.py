"""Who owns chDB's folder: one process at a time, by a lock on the file `status` in which it stands with its number.

Asked before chDB is: of a folder that is held it says no more than that it could not begin, and the rest to stderr.
"""

import fcntl
import os
from pathlib import Path

_OWNER = b"PID:"


def is_held(folder: Path) -> bool:
    """Whether a process, this one or another, has chDB open on the folder."""
    try:
        with (folder / "status").open("rb") as status:
            fcntl.flock(status, fcntl.LOCK_SH | fcntl.LOCK_NB)  # let go of when the file is closed
    except BlockingIOError:
        return True
    except OSError:
        return False  # nothing is there yet, or chDB finds out itself what is wrong
    return False


def is_held_by_another(folder: Path) -> bool:
    return is_held(folder) and _owner(folder) != os.getpid()


def _owner(folder: Path) -> int | None:
    try:
        lines = (folder / "status").read_bytes().splitlines()
    except OSError:
        return None
    numbers = [line.removeprefix(_OWNER).strip() for line in lines if line.startswith(_OWNER)]
    return int(numbers[0]) if numbers and numbers[0].isdigit() else None
