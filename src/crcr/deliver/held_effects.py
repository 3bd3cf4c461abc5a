"""The effects that a worker has claimed, each with the end of its lease, which is renewed while the worker holds it.

A claim may be acted on while its lease lasts and the worker's heartbeat is current. After a pause longer than either, the
store is queried first: a claim that another worker has taken over is lost.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

import structlog

from crcr.decide.outbox.effect import ClaimedEffect
from crcr.errors import LeaseLost, StoreUnavailable
from crcr.ports import Clock

log = structlog.get_logger(__name__)

LEASE = timedelta(seconds=20)
"""Twice what one call may take (`github.http.transport`)."""
_LEAST_LEASE = timedelta(seconds=11)
"""More than any one call may take: with less left, no effect is started."""
_RENEW_BELOW = timedelta(seconds=15)
_URGENT_BELOW = timedelta(seconds=10)
"""Below this a renewal waits for locked rows, instead of skipping them until the next time."""
_RENEW_EVERY_S = 2.0


class Leases(Protocol):
    async def renew(self, effect_ids: list[int], now: datetime, *, alone: bool) -> dict[int, datetime]:
        """Extend those of the leases that are ours; return their new ends. `alone` skips no locked row."""
        ...


class Presence(Protocol):
    lapses: int

    @property
    def is_current(self) -> bool: ...
    async def beat(self) -> None: ...


class AlwaysPresent:
    """For a worker without a heartbeat: in tests and one-shot commands."""

    lapses = 0
    is_current = True

    async def beat(self) -> None: ...


@dataclass(slots=True)
class _HeldEffect:
    effect: ClaimedEffect
    lease_until: datetime
    lapses: int


class HeldEffects:
    def __init__(self, leases: Leases, presence: Presence, clock: Clock) -> None:
        self._leases = leases
        self._presence = presence
        self._clock = clock
        self._catching_up = asyncio.Lock()
        self._held: dict[int, _HeldEffect] = {}

    def add(self, effect: ClaimedEffect) -> bool:
        """Add a claim; False when this worker is already working on the effect, and only its lease had expired.

        An effect that was started before this worker was counted as gone is started again: what the old attempt has
        read may have changed since, and it may not continue.
        """
        held = self._held.get(effect.effect_id)
        if held is not None and held.lapses == self._presence.lapses:
            held.lease_until = effect.lease_until
            return False
        self._held[effect.effect_id] = _HeldEffect(effect, effect.lease_until, self._presence.lapses)
        return True

    def has(self, effect: ClaimedEffect) -> bool:
        """Whether this claim is the newest one of its effect in this worker."""
        held = self._held.get(effect.effect_id)
        return held is not None and held.effect is effect

    def require(self, effect: ClaimedEffect) -> None:
        """Raise `LeaseLost` when this worker has claimed the effect again since; does not query the store."""
        if not self.has(effect):
            raise LeaseLost

    def drop(self, effects: Iterable[ClaimedEffect]) -> None:
        for effect in effects:
            if self.has(effect):
                del self._held[effect.effect_id]

    async def ensure_present(self) -> None:
        """Send a heartbeat after a pause, before any effect is claimed or started."""
        if not self._presence.is_current:
            async with self._catching_up:
                if not self._presence.is_current:
                    await self._presence.beat()

    def may_start(self, effect: ClaimedEffect) -> bool:
        if not (self._is_current(effect) and self._presence.is_current):
            return False
        return self._held[effect.effect_id].lease_until - self._clock.now() >= _LEAST_LEASE

    async def confirm(self, effect: ClaimedEffect) -> None:
        """Raise `LeaseLost` unless the effect is still ours. Without a pause this queries nothing."""
        await self.ensure_present()
        if self._is_current(effect) and self._held[effect.effect_id].lease_until <= self._clock.now():
            await self._renew([effect.effect_id], alone=True)
        if not self._is_current(effect):
            raise LeaseLost

    async def renew_in_time(self) -> None:
        """Renew leases that expire soon, until cancelled."""
        while True:
            await self._clock.sleep(_RENEW_EVERY_S)
            now = self._clock.now()
            left = {effect_id: held.lease_until - now for effect_id, held in self._held.items()}
            soon = [effect_id for effect_id, rest in left.items() if rest < _RENEW_BELOW]
            if soon and self._presence.is_current:
                try:
                    await self._renew(soon, alone=min(left.values()) < _URGENT_BELOW)
                except StoreUnavailable as fault:
                    log.warning("leases_not_renewed", effects=len(soon), error=str(fault))

    def _is_current(self, effect: ClaimedEffect) -> bool:
        return self.has(effect) and self._held[effect.effect_id].lapses == self._presence.lapses

    async def _renew(self, effect_ids: list[int], *, alone: bool) -> None:
        renewed = await self._leases.renew(effect_ids, self._clock.now(), alone=alone)
        for effect_id in effect_ids:
            if effect_id in renewed and effect_id in self._held:
                self._held[effect_id].lease_until = renewed[effect_id]
            elif alone:
                self._held.pop(effect_id, None)
