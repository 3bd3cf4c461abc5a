"""What the rooms need from each other, as narrow interfaces.

Each consumer declares only the calls it makes; `wiring.py` decides who answers them. Method names are
transitions of the domain, not operations on tables.
"""

from datetime import datetime
from typing import Protocol

from crcr.decide.identity import Identity
from crcr.decide.model import RepoName
from crcr.decide.outside import FilePlace, FileText, PullFacts, RepositoryFacts, Target


class Clock(Protocol):
    """Time as the relay sees it; tests move it by hand."""

    def now(self) -> datetime:
        """Return the present as an aware UTC time."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class Verifier(Protocol):
    """Turns a bearer token into a proved identity, or raises `NotAuthentic`, `NotRegistered`, `KeysUnavailable`."""

    async def verify(self, unverified_token: str) -> Identity: ...


class Limits(Protocol):
    """Sliding windows. `take` counts one and raises `RateLimited` when the window is full."""

    async def take(self, scope: str, subject: str) -> None: ...

    async def check(self, scope: str, subject: str) -> None:
        """Raise `RateLimited` if the window is full, without counting."""
        ...


class GitHub(Protocol):
    """The calls that effects make. Failures are the `Outside…` errors of `errors.py`."""

    async def find_installation(self, repo: RepoName) -> int: ...

    async def read_repository(self, repo: RepoName, installation_id: int) -> RepositoryFacts: ...

    async def dispatch(self, target: Target, body: bytes) -> None: ...

    async def read_pull(self, repo: RepoName, number: int, installation_id: int) -> PullFacts: ...

    async def read_file(self, place: FilePlace, *, etag: str | None) -> FileText | None:
        """Return the file's text, or None when it still is what `etag` names."""
        ...
