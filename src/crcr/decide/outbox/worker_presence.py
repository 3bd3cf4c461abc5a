"""Which workers are gone: those whose heartbeat has not changed for some seconds.

Each worker changes its own row every `ROLL_CALL_EVERY_S` and reads the rows of the others. A row is only compared with
its previous value, and the time between is measured by the reading worker: differing clocks do not matter. A worker
that was itself suspended has counted no rounds meanwhile, and so removes nobody.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

ROLL_CALL_EVERY_S = 2.0
GONE_AFTER = timedelta(seconds=6)
"""With one round before and one after it, 10 s: a worker that is gone is noticed within that time."""
_ROUNDS = 3
"""How many of the reader's own rounds must have seen the same heartbeat."""


@dataclass(frozen=True, slots=True)
class Sighting:
    sign: int
    since: datetime
    """When the reader first saw this heartbeat, by its own clock."""
    rounds: int = 0


@dataclass(frozen=True, slots=True)
class Sightings:
    """The heartbeats that one worker has seen of the others."""

    workers: Mapping[str, Sighting] = field(default_factory=dict)

    def after_round(self, signs: Mapping[str, int], now: datetime) -> "Sightings":
        """Return the state after one more round; `signs` are all current heartbeats."""
        return Sightings({name: self._sighting_after(name, sign, now) for name, sign in signs.items()})

    def find_gone(self, now: datetime) -> tuple[str, ...]:
        return tuple(
            name
            for name, sighting in self.workers.items()
            if sighting.rounds >= _ROUNDS and now - sighting.since >= GONE_AFTER
        )

    def _sighting_after(self, name: str, sign: int, now: datetime) -> Sighting:
        last = self.workers.get(name)
        if last is None or last.sign != sign:
            return Sighting(sign, now)
        return Sighting(sign, last.since, last.rounds + 1)


@dataclass(frozen=True, slots=True)
class WorkerRoll:
    """The result of one roll call."""

    workers: int
    """How many workers there are, this one included."""
    was_listed: bool
    """False when its own row was missing: another worker removed it as gone, and took over its claims."""
    gone: Mapping[str, int]
    """The workers that seem gone, with their last heartbeats."""
