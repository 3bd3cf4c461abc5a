"""Secrets that change while the process runs: read again every 15 minutes, and when GitHub refuses the App's key.

A part that keeps a secret registers with `follow`. When reading fails, the old secrets stay in force. Without a secret in a
file or in AWS nothing is read again.
"""

import asyncio
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

import structlog

from crcr.errors import BadSettings
from crcr.log import redact_literals
from crcr.ports import Clock
from crcr.settings import Settings, settings_of

log = structlog.get_logger(__name__)

READ_EVERY = timedelta(minutes=15)
_AFTER_REFUSAL = timedelta(minutes=1)
"""Least time between two readings because of refusals: a key that was really revoked is refused again and again."""

Apply = Callable[[Settings], None]


class SecretRotation:
    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.current = settings
        """The settings with the secrets in force."""
        self._clock = clock
        self._followers: list[Apply] = []
        self._read_at: datetime = clock.now()
        self._refused_at: datetime | None = None
        self._reading = asyncio.Lock()

    def follow(self, apply: Apply) -> None:
        """Call `apply` with the new settings after every change of a secret."""
        self._followers.append(apply)

    async def run(self) -> None:
        """Read the secrets again for as long as the process lives; returns at once where none can change."""
        while self.current.may_rotate:
            await self._clock.sleep(READ_EVERY.total_seconds())
            await self.refresh_if_due()

    async def refresh_if_due(self) -> None:
        """Read them again if the last time is long enough ago: also for a process that was frozen in between."""
        if self.current.may_rotate and self._clock.now() - self._read_at >= READ_EVERY:
            await self.refresh()

    async def on_refused(self) -> None:
        """GitHub refused the App's token."""
        now = self._clock.now()
        if self._refused_at is not None and now - self._refused_at < _AFTER_REFUSAL:
            return
        self._refused_at = now
        await self.refresh()

    async def refresh(self) -> bool:
        """Read the secrets again, and put changed ones in force; returns whether any changed."""
        if not self.current.may_rotate:
            return False
        async with self._reading:
            self._read_at = self._clock.now()
            try:
                new = await asyncio.to_thread(self.current.with_rotated_secrets)
            except BadSettings as problem:
                log.warning("secrets_not_read", problems=problem.problems, alarm=True)
                return False
            changed = list(_changed(self.current, new))
            if not changed:
                return False
            redact_literals(new.secrets())
            self.current = new
            for apply in self._followers:
                apply(new)
            log.info("secrets_changed", settings=changed)
            return True


def _changed(old: Settings, new: Settings) -> Iterator[str]:
    for field, row in settings_of(type(old)).items():
        if row.secret and getattr(old, field) != getattr(new, field):
            yield row.variable
