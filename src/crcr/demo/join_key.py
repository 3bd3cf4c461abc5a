"""The key of a running demo: a file that only whoever started it can read, found by the demo's port.

Joining a repository makes the demo run files; so a port that anybody can reach is not enough to ask for it.
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
    """Keep the key while the demo runs; where there is no place for it, nothing can join."""
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
            f"no demo of yours runs at port {port}: there is no key of it at {path}",
            hint="start one with `crcr demo`; --github names its simulated GitHub, as the demo prints it",
        ) from None
