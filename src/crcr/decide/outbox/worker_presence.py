"""Which workers are gone: those whose sign of life has not changed while somebody watched it for some seconds.

Each worker changes its own row every `ROLL_CALL_EVERY_S` and watches the rows of the others. What a row says is only
compared with what it said before, and the time between is the watcher's own: clocks that differ between machines do
not matter. A watcher that was itself away has counted no rounds meanwhile, and accuses nobody.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

ROLL_CALL_EVERY_S = 2.0
GONE_AFTER = timedelta(seconds=6)
"""With the round before and the round after it, 10 s: no worker is gone for longer without being noticed."""
_ROUNDS = 3
"""So many of the watcher's own rounds must have seen the same sign."""


@dataclass(frozen=True, slots=True)
class Sighting:
    sign: int
    since: datetime
    """When the watcher first saw this sign, by its own clock."""
    rounds: int = 0


@dataclass(frozen=True, slots=True)
class Sightings:
    """What one worker has seen of the others."""

    workers: Mapping[str, Sighting] = field(default_factory=dict)

    def after_round(self, signs: Mapping[str, int], now: datetime) -> "Sightings":
        """Look once more; `signs` are all that are there now."""
        return Sightings({name: self._again(name, sign, now) for name, sign in signs.items()})

    def gone(self, now: datetime) -> tuple[str, ...]:
        return tuple(
            name
            for name, seen in self.workers.items()
            if seen.rounds >= _ROUNDS and now - seen.since >= GONE_AFTER
        )

    def _again(self, name: str, sign: int, now: datetime) -> Sighting:
        last = self.workers.get(name)
        if last is None or last.sign != sign:
            return Sighting(sign, now)
        return Sighting(sign, last.since, last.rounds + 1)


@dataclass(frozen=True, slots=True)
class WorkerRoll:
    """What a worker learns when it calls the roll."""

    workers: int
    """How many there are, this one included."""
    was_listed: bool
    """False when its own row was missing: another worker had counted it as gone, and taken over its claims."""
    gone: Mapping[str, int]
    """The workers that seem gone, with their last signs."""
