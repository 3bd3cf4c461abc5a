"""Reads an allowlist from its file or from GitHub, and keeps the store's version of it up to date.

A source that cannot be read, or that has errors, changes nothing that is in force: the failure is recorded beside the last
good version, shown, and logged as an alarm.
"""

import asyncio
from pathlib import Path
from typing import Protocol

import structlog

from crcr.decide.allowlist.entries import AllowlistProblem, AllowlistReading, AllowlistVersion, decode_text
from crcr.decide.github.requests_and_answers import FileLocation
from crcr.decide.model import RepoName
from crcr.errors import FileNotText, OutsideFault, OutsideRefused
from crcr.github.client import RepositoriesApi
from crcr.ports import Clock
from crcr.record.repositories.allowlists import Allowlists

log = structlog.get_logger(__name__)

_CAP_BYTES = 1024 * 1024


class AllowlistSource(Protocol):
    async def read(self, etag: str | None) -> AllowlistReading | None:
        """Return the present content; None when `etag` still matches."""
        ...


class AllowlistFileSource:
    def __init__(self, path: Path) -> None:
        self._path = path

    async def read(self, etag: str | None) -> AllowlistReading | None:  # noqa: ARG002  files have none
        return await asyncio.to_thread(self._read)

    def _read(self) -> AllowlistReading:
        source = str(self._path)
        try:
            with self._path.open("rb") as file:
                data = file.read(_CAP_BYTES + 1)
        except OSError as error:
            reason = f"the file cannot be read: {error.strerror or error}"
            return AllowlistReading(source, "", failure=AllowlistProblem(0, "error", reason))
        # A text cut at the cap may end inside a character; the check reports that it is too large.
        text = decode_text(data) if len(data) <= _CAP_BYTES else data.decode(errors="replace")
        if isinstance(text, AllowlistProblem):
            return AllowlistReading(source, "", failure=text)
        return AllowlistReading(source, text)


class AllowlistGitHubSource:
    def __init__(self, repositories: RepositoriesApi, file: FileLocation) -> None:
        self._repositories = repositories
        self._file = file

    async def read(self, etag: str | None) -> AllowlistReading | None:
        source = f"{self._file.repository}@{self._file.ref}:{self._file.path}"
        try:
            file = await self._repositories.read_file(self._file, etag=etag)
        except FileNotText as fault:
            return AllowlistReading(
                source, "", failure=AllowlistProblem(fault.line, "error", fault.detail, fault.hint)
            )
        except OutsideRefused as refusal:
            return AllowlistReading(
                source,
                "",
                failure=AllowlistProblem(0, "error", f"GitHub refused to show the file: {refusal.detail}"),
            )
        return None if file is None else AllowlistReading(source, file.text, file.etag)


class AllowlistRefresher:
    def __init__(
        self, upstream: RepoName, source: AllowlistSource, allowlists: Allowlists, clock: Clock
    ) -> None:
        self._upstream = upstream
        self._source = source
        self._allowlists = allowlists
        self._clock = clock

    async def refresh(self) -> AllowlistVersion | None:
        """Read the source once; return the new version if it has changed."""
        newest = await self._allowlists.newest(self._upstream)
        reading = await self._source.read(newest.etag if newest and newest.good else None)
        if reading is None:
            return None
        version = await self._allowlists.take_reading(self._upstream, reading, self._clock.now())
        if version is not None:
            self._log_version(version)
        return version

    async def refresh_or_log(self) -> None:
        """Read the source; an outage of its host is only logged, because the last good version stays in force."""
        try:
            await self.refresh()
        except OutsideFault as fault:
            log.warning("allowlist_not_read", upstream=str(self._upstream), error=str(fault))

    def _log_version(self, version: AllowlistVersion) -> None:
        who = {"upstream": str(self._upstream), "version": version.version, "source": version.source}
        if version.good:
            log.info("allowlist_in_force", warnings=len(version.problems), **who)
            return
        first = version.problems[0]
        log.error(
            "allowlist_bad",
            alarm=True,
            problems=len(version.problems),
            line=first.line,
            first=first.message,
            **who,
        )
