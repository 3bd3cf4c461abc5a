"""What a worker holds: each claim with the end of its lease, renewed while the worker has it.

A claim may be acted on while its lease lasts and the worker is present (`attendance`). After a pause that was longer
than either, the store is asked before anything else is done: a claim that another worker has taken over is lost.
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
"""More than any one call may take: with less left, nothing is begun."""
_RENEW_BELOW = timedelta(seconds=15)
_URGENT_BELOW = timedelta(seconds=10)
"""From here on a renewal waits for the rows that others have locked, instead of leaving them for the next time."""
_RENEW_EVERY_S = 2.0


class Leases(Protocol):
    async def renew(self, effect_ids: list[int], now: datetime, *, alone: bool) -> dict[int, datetime]:
        """Prolong these leases as far as they are ours; return the new ends. `alone` leaves out no row."""
        ...


class Presence(Protocol):
    lapses: int

    @property
    def is_current(self) -> bool: ...
    async def attend(self) -> None: ...


class AlwaysPresent:
    """For a worker that nobody watches: in tests and one-shot commands."""

    lapses = 0
    is_current = True

    async def attend(self) -> None: ...


@dataclass(slots=True)
class _Held:
    effect: ClaimedEffect
    lease_until: datetime
    lapses: int


class Holdings:
    def __init__(self, leases: Leases, presence: Presence, clock: Clock) -> None:
        self._leases = leases
        self._presence = presence
        self._clock = clock
        self._attending = asyncio.Lock()
        self._held: dict[int, _Held] = {}

    def add(self, effect: ClaimedEffect) -> bool:
        """Note a claim; False when the same effect is under way here, and only its lease had run out.

        One that was under way before this worker was counted as gone is begun anew: what the old attempt has read may
        have changed since, and it may not go on.
        """
        held = self._held.get(effect.effect_id)
        if held is not None and held.lapses == self._presence.lapses:
            held.lease_until = effect.lease_until
            return False
        self._held[effect.effect_id] = _Held(effect, effect.lease_until, self._presence.lapses)
        return True

    def has(self, effect: ClaimedEffect) -> bool:
        """Whether this very claim is the last one known here of its effect."""
        held = self._held.get(effect.effect_id)
        return held is not None and held.effect is effect

    def require(self, effect: ClaimedEffect) -> None:
        """Raise `LeaseLost` when this worker has claimed the effect again since; the store is not asked."""
        if not self.has(effect):
            raise LeaseLost

    def drop(self, effects: Iterable[ClaimedEffect]) -> None:
        for effect in effects:
            if self.has(effect):
                del self._held[effect.effect_id]

    async def be_present(self) -> None:
        """Attend again after a pause, before anything is claimed or begun."""
        if not self._presence.is_current:
            async with self._attending:
                if not self._presence.is_current:
                    await self._presence.attend()

    def may_begin(self, effect: ClaimedEffect) -> bool:
        if not (self._is_current(effect) and self._presence.is_current):
            return False
        return self._held[effect.effect_id].lease_until - self._clock.now() >= _LEAST_LEASE

    async def confirm(self, effect: ClaimedEffect) -> None:
        """Raise `LeaseLost` unless the effect is still ours. Without a pause this asks nobody."""
        await self.be_present()
        if self._is_current(effect) and self._held[effect.effect_id].lease_until <= self._clock.now():
            await self._renew([effect.effect_id], alone=True)
        if not self._is_current(effect):
            raise LeaseLost

    async def renew_in_time(self) -> None:
        """Renew what runs out soon, until cancelled."""
        while True:
            await self._clock.sleep(_RENEW_EVERY_S)
            now = self._clock.now()
            left = {number: held.lease_until - now for number, held in self._held.items()}
            soon = [number for number, rest in left.items() if rest < _RENEW_BELOW]
            if soon and self._presence.is_current:
                try:
                    await self._renew(soon, alone=min(left.values()) < _URGENT_BELOW)
                except StoreUnavailable as fault:
                    log.warning("leases_not_renewed", effects=len(soon), error=str(fault))

    def _is_current(self, effect: ClaimedEffect) -> bool:
        return self.has(effect) and self._held[effect.effect_id].lapses == self._presence.lapses

    async def _renew(self, effect_ids: list[int], *, alone: bool) -> None:
        renewed = await self._leases.renew(effect_ids, self._clock.now(), alone=alone)
        for number in effect_ids:
            if number in renewed and number in self._held:
                self._held[number].lease_until = renewed[number]
            elif alone:
                self._held.pop(number, None)
