"""Allowlist versions: every text that was read, valid or not, and the one that is in force.

The newest valid version is in force; an invalid newer one is kept and shown. The parsed form of the version in
force is cached by its number, so a process sees another's refresh on its next transaction.
"""

import asyncio
import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, func, insert, select

from crcr.decide.allowlist.check import NO_LEVEL
from crcr.decide.allowlist.entries import (
    Allowlist,
    AllowlistProblem,
    AllowlistReading,
    AllowlistVersion,
    CheckedAllowlist,
)
from crcr.decide.model import RepoName
from crcr.decide.notices.notice import NoticeEvent, NoticeKind, SetupItem
from crcr.errors import NoAllowlist, StoreUnavailable
from crcr.record.checks.refresh import CheckRefresher
from crcr.record.notices.threads import queue_notice
from crcr.record.repositories.downstreams import Downstreams, record_levels
from crcr.record.schema.main_tables import allowlist_versions as versions
from crcr.record.store.database import Database, Row, Tx
from crcr.record.store.signals import ALLOWLIST
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us, to_us

_IN_FORCE = Statement(
    select(func.max(versions.c.version).label("version")).where(
        versions.c.upstream == bindparam("upstream"), versions.c.good == 1
    )
)
_TEXT = Statement(
    select(versions.c.text).where(
        versions.c.upstream == bindparam("upstream"), versions.c.version == bindparam("version")
    )
)
_NEWEST = Statement(
    select(versions)
    .where(versions.c.upstream == bindparam("upstream"))
    .order_by(versions.c.version.desc())
    .limit(1)
)
_ADD = Statement(insert(versions))


class Allowlists:
    def __init__(
        self,
        database: Database,
        downstreams: Downstreams,
        refresher: CheckRefresher,
        check: Callable[[str], CheckedAllowlist],
    ) -> None:
        self._database = database
        self._downstreams = downstreams
        self._refresher = refresher
        self._check = check
        self._cache: dict[str, tuple[int, Allowlist]] = {}

    async def in_force(self, tx: Tx, upstream: RepoName) -> Allowlist:
        """The allowlist in force, read in the caller's transaction."""
        row = await tx.one(_IN_FORCE, upstream=upstream.key)
        return await self.version(tx, upstream, row["version"] if row else None)

    async def version(self, tx: Tx, upstream: RepoName, version: int | None) -> Allowlist:
        """The allowlist of that version, from the cache unless another process has just recorded it."""
        if version is None:
            raise NoAllowlist(f"no valid allowlist was ever read for {upstream}")
        cached = self._cache.get(upstream.key)
        if cached is None or cached[0] != version:
            cached = (version, await self._load(tx, upstream, version))
            self._cache[upstream.key] = cached
        return cached[1]

    async def warm(self, upstream: RepoName) -> None:
        """Parse the version in force in a thread, before a transaction needs it."""

        async def unit(tx: Tx) -> tuple[int, str] | None:
            row = await tx.one(_IN_FORCE, upstream=upstream.key)
            version, cached = row["version"] if row else None, self._cache.get(upstream.key)
            if version is None or (cached is not None and cached[0] >= version):
                return None
            newest = await tx.one(_TEXT, upstream=upstream.key, version=version)
            return (version, newest["text"]) if newest else None

        fresh = await self._database.quick_read(unit)
        if fresh is None:
            return
        allowlist = _allowlist_in_force(await asyncio.to_thread(self._check, fresh[1]))
        cached = self._cache.get(upstream.key)
        if allowlist is not None and (cached is None or cached[0] < fresh[0]):
            self._cache[upstream.key] = (fresh[0], allowlist)

    async def current(self, upstream: RepoName) -> Allowlist:
        return await self._database.quick_read(lambda tx: self.in_force(tx, upstream))

    async def newest(self, upstream: RepoName) -> AllowlistVersion | None:
        async def unit(tx: Tx) -> AllowlistVersion | None:
            row = await tx.one(_NEWEST, upstream=upstream.key)
            return _version(row) if row else None

        return await self._database.quick_read(unit)

    async def take_reading(
        self, upstream: RepoName, reading: AllowlistReading, now: datetime
    ) -> AllowlistVersion | None:
        """Record the text as a new version; None when it equals the newest version."""
        # Parsing a thousand entries takes a tenth of a second: not on the event loop.
        checked = (
            CheckedAllowlist(None, (reading.failure,))
            if reading.failure
            else await asyncio.to_thread(self._check, reading.text)
        )

        async def unit(tx: Tx) -> AllowlistVersion | None:
            newest = await tx.one(_NEWEST, upstream=upstream.key)
            if newest is not None and _equals_newest(newest, reading, checked):
                await self._enable_gate(tx, upstream, checked, now)
                if checked.allowlist is not None:
                    await record_levels(tx, upstream, checked.allowlist, newest["version"], now)
                return None
            row = _row(upstream, reading, checked, (newest["version"] if newest else 0) + 1, now)
            await tx.run(_ADD, **row)
            await queue_notice(tx, _reading_notice(upstream, checked), now)
            if checked.allowlist is not None:
                await self._downstreams.apply_allowlist(tx, upstream, checked.allowlist, now)
                await self._refresher.apply_allowlist(tx, upstream, checked.allowlist, now)
                await record_levels(tx, upstream, checked.allowlist, row["version"], now)
            tx.signal(ALLOWLIST)
            return _version(row)

        try:
            return await self._database.write(unit)
        except StoreUnavailable:
            # A later unit of the same group commit may have cached a version that was never committed.
            self._cache.pop(upstream.key, None)
            raise

    async def _enable_gate(
        self, tx: Tx, upstream: RepoName, checked: CheckedAllowlist, now: datetime
    ) -> None:
        """Enable the gate for a list with an L4 entry that an older release recorded."""
        if checked.allowlist is not None and await self._refresher.enable_gate(
            tx, upstream, checked.allowlist, now
        ):
            await self._refresher.refresh_all_heads(tx, upstream, now, has_checks=True)

    async def _load(self, tx: Tx, upstream: RepoName, version: int) -> Allowlist:
        row = await tx.one(_TEXT, upstream=upstream.key, version=version)
        allowlist = _allowlist_in_force(self._check(row["text"])) if row else None
        if allowlist is None:
            raise NoAllowlist(f"allowlist version {version} of {upstream} is not readable by this release")
        return allowlist


async def text_in_force(tx: Tx, upstream: RepoName) -> str | None:
    """The text of the version in force; None while there is none."""
    newest = await tx.one(_IN_FORCE, upstream=upstream.key)
    if newest is None or newest["version"] is None:
        return None
    row = await tx.one(_TEXT, upstream=upstream.key, version=newest["version"])
    return row["text"] if row else None


def _reading_notice(upstream: RepoName, checked: CheckedAllowlist) -> NoticeEvent:
    """Without the texts of problems, which may quote a hidden entry."""
    kind, summary = NoticeKind.SETUP_REPAIRED, "the allowlist can be read again"
    if checked.allowlist is None:
        errors = [problem for problem in checked.problems if problem.severity == "error"]
        count = "1 error" if len(errors) == 1 else f"{len(errors):,} errors"
        place = f", the first in line {errors[0].line}" if errors and errors[0].line else ""
        kind = NoticeKind.SETUP_BROKEN
        summary = f"the allowlist has {count}{place}; the last good version stays in force"
    return NoticeEvent(
        kind=kind, upstream=upstream, item=SetupItem.ALLOWLIST.value, summary=summary, path="/crcr"
    )


def _allowlist_in_force(checked: CheckedAllowlist) -> Allowlist | None:
    """The allowlist of a version in force. Release 0.1.0 put a file without any level in force."""
    return Allowlist(()) if checked.problems == (NO_LEVEL,) else checked.allowlist


def _equals_newest(newest: Row, reading: AllowlistReading, checked: CheckedAllowlist) -> bool:
    if reading.failure is not None:
        return bool(newest["problems"] == _encoded((reading.failure,)))
    # An unreadable file is kept as "", and a newer release may read what an older one could not.
    if checked.allowlist is None:
        return bool(newest["text"] == reading.text) and bool(newest["problems"] == _encoded(checked.problems))
    return bool(newest["text"] == reading.text) and bool(newest["good"])


def _encoded(problems: tuple[AllowlistProblem, ...]) -> str:
    return json.dumps(
        [[problem.line, problem.severity, problem.message, problem.hint] for problem in problems]
    )


def _row(
    upstream: RepoName, reading: AllowlistReading, checked: CheckedAllowlist, version: int, now: datetime
) -> dict[str, Any]:
    return {
        "upstream": upstream.key,
        "version": version,
        "source": reading.source,
        "text": reading.text,
        "good": int(checked.allowlist is not None),
        "problems": _encoded(checked.problems),
        "etag": reading.etag,
        "read_at": to_us(now),
    }


def _version(row: Any) -> AllowlistVersion:
    return AllowlistVersion(
        version=row["version"],
        good=bool(row["good"]),
        source=row["source"],
        text=row["text"],
        etag=row["etag"],
        read_at=from_us(row["read_at"]),
        problems=tuple(AllowlistProblem(*fields) for fields in json.loads(row["problems"])),
    )
