"""The relay against what GitHub knows: missed webhooks are taken up, silences are looked into, checks are repaired.

Runs every few minutes and by hand; each part finds for itself what is wrong, so a run can be left out or repeated.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import structlog

from crcr.decide.github.missed_webhooks import RecoveryReport
from crcr.deliver.periodic.recover_webhooks import Recovery, Tell
from crcr.errors import OutsideFault, Unavailable
from crcr.ports import Clock

log = structlog.get_logger(__name__)

RECONCILE_EVERY_S = 180.0
THOROUGH_EVERY = 20
"""Once an hour every open head is looked at, whether or not anything seems to be wrong with it."""


class Silences(Protocol):
    async def ask(self, now: datetime) -> int:
        """Have unanswered dispatches looked up; return how many."""
        ...


class Repairs(Protocol):
    async def repair(self, now: datetime, *, thorough: bool) -> int:
        """Have checks looked at again that were given up or never came to be; `thorough`: of every open head."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciled:
    recovery: RecoveryReport
    lookups: int
    heads: int


class Reconciler:
    def __init__(self, recovery: Recovery, silences: Silences, repairs: Repairs, clock: Clock) -> None:
        self._recovery = recovery
        self._silences = silences
        self._repairs = repairs
        self._clock = clock
        self._runs = 0

    async def run(self, tell: Tell = lambda _: None, *, thorough: bool = False) -> Reconciled:
        recovered = await self._recovery.run(tell)
        lookups = await self._silences.ask(self._clock.now())
        heads = await self._repairs.repair(self._clock.now(), thorough=thorough)
        return Reconciled(recovery=recovered, lookups=lookups, heads=heads)

    async def run_quietly(self) -> None:
        """Run once; what is away is only worth a line, for the next run finds the same again."""
        self._runs += 1
        try:
            await self.run(thorough=self._runs % THOROUGH_EVERY == 0)
        except (OutsideFault, Unavailable) as fault:
            log.warning("reconciling_stopped", error=fault.detail)
