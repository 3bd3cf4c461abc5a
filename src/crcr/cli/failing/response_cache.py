"""Answers of a relay's API in the user's cache folder: for half a minute as they are, later with their ETag.

A folder that cannot be read or written means no cache, never an error.
"""

import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from time import time

FRESH_S = 30.0
_FOLDERS = {"darwin": ("", "Library/Caches"), "win32": ("LOCALAPPDATA", "AppData/Local")}
"""The variable that names the folder of caches, and where in the home it is otherwise."""
_KEPT_S = 24 * 3600.0
_MAX_BYTES = 8 * 1024 * 1024


def cache_folder(environ: Mapping[str, str], platform: str = sys.platform) -> Path | None:
    """Where this system's programs keep what can be read again; None for a user without a home."""
    name, below = _FOLDERS.get(platform, ("XDG_CACHE_HOME", ".cache"))
    chosen, home = environ.get(name, ""), environ.get("USERPROFILE" if platform == "win32" else "HOME", "")
    if chosen and Path(chosen).is_absolute():
        return Path(chosen) / "crcr"
    return Path(home) / below / "crcr" if home and Path(home).is_absolute() else None


@dataclass(frozen=True, slots=True)
class CachedResponse:
    url: str
    etag: str | None
    at: float
    body: str


class ResponseCache:
    def __init__(self, folder: Path, clock: Callable[[], float] = time) -> None:
        self._folder = folder
        self._clock = clock

    def find(self, url: str) -> CachedResponse | None:
        with suppress(OSError, ValueError, TypeError, RecursionError):
            path = self._path(url)
            if path.stat().st_size <= _MAX_BYTES:
                kept = CachedResponse(**json.loads(path.read_text("utf-8")))
                texts = (kept.url, kept.body, kept.etag or "")
                if all(isinstance(text, str) for text in texts) and kept.url == url:
                    return kept
        return None

    def is_fresh(self, kept: CachedResponse) -> bool:
        return 0 <= self._clock() - kept.at < FRESH_S

    def keep(self, url: str, body: str, etag: str | None) -> None:
        """Keep an answer; a reader sees the old or the new one, never a part."""
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            self._forget_old()
            text = json.dumps(asdict(CachedResponse(url, etag, self._clock(), body)))
            with tempfile.NamedTemporaryFile(
                "w", encoding="utf-8", dir=self._folder, suffix=".part", delete=False
            ) as part:
                part.write(text)
            Path(part.name).replace(self._path(url))

    def _forget_old(self) -> None:
        for path in (*self._folder.glob("api-*.json"), *self._folder.glob("*.part")):
            with suppress(OSError):
                if self._clock() - path.stat().st_mtime > _KEPT_S:
                    path.unlink()

    def _path(self, url: str) -> Path:
        return self._folder / f"api-{sha256(url.encode()).hexdigest()[:32]}.json"
