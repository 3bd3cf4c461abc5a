"""The key of a running demo: a file that only its user can read, named after the demo's port.

Joining a repository makes the demo execute files, so access to the port must not be enough.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from crcr.errors import NotPossible


def _path(port: int) -> Path:
    home = os.environ.get("XDG_RUNTIME_DIR") or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "crcr" / f"demo-{port}.key"


@contextmanager
def keep_key(port: int, key: str) -> Iterator[None]:
    """Store the key while the demo runs; when it cannot be stored, joining is not possible."""
    path = _path(port)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(key)
    except OSError:
        yield
        return
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        with suppress(OSError):  # another demo's key may be there
            path.parent.rmdir()


def read_key(port: int) -> str:
    path = _path(port)
    try:
        return path.read_text()
    except OSError:
        raise NotPossible(
            f"no demo of yours is running at port {port}: no key at {path}",
            hint="start one with `crcr demo`, and pass the address of its simulated GitHub as --github",
        ) from None
