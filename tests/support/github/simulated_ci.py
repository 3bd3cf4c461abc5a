"""`SimulatedCi`: the checks of one commit as a CI starts, ends and re-runs them, with the truth about what they show."""

from collections import Counter
from dataclasses import dataclass, field
from random import Random

from crcr.decide.in_tree.checks import STATUSES, Counts, InTreeCheck, Outcome

OUTCOMES = {
    "success": Outcome.PASSED,
    "neutral": Outcome.PASSED,
    "skipped": Outcome.PASSED,
    "failure": Outcome.FAILED,
    "error": Outcome.FAILED,
    "timed_out": Outcome.FAILED,
    "cancelled": Outcome.FAILED,
    "action_required": Outcome.FAILED,
    "startup_failure": Outcome.FAILED,
    "stale": Outcome.FAILED,
    "unknown": Outcome.FAILED,
    None: Outcome.RUNNING,
}
"""GitHub's conclusions; None is a check that is not completed."""
_WORDS = [word for word in OUTCOMES if word is not None]
_APPS = (15_368, 29_310, STATUSES)


@dataclass
class SimulatedCi:
    chance: Random
    names: int = 5
    """How many checks the commit has; some of the same name by several Apps, some of them commit statuses."""
    sent: list[InTreeCheck] = field(default_factory=list)
    """All webhooks, in the order of what happened."""
    last: dict[tuple[int, str], InTreeCheck] = field(default_factory=dict)
    """What each App and name shows now."""
    _id: int = 48_000_000_000
    _now: int = 1_780_000_000

    def act(self, times: int = 1) -> None:
        """Start a check under any name, or end the last one of it, be it once more; a re-run starts the name anew."""
        for _ in range(times):
            self._now += self.chance.randint(1, 3)
            number = self.chance.randrange(self.names)
            key = (_APPS[number % len(_APPS)], f"test ({number // 2}, {self.names})")
            last = self.last.get(key)
            if last is None or self.chance.random() < (0.2 if last.conclusion is None else 0.8):
                self._id += self.chance.randint(1, 900)
                self._send(InTreeCheck(*key, self._id, None, None, f"https://ci.test/{self._id}"))
            else:
                self._end(last)

    def _end(self, check: InTreeCheck) -> None:
        if check.app_id == STATUSES:  # each state of a status has its own id
            self._id += 1
            check = check._replace(check_id=self._id)
        self._send(check._replace(conclusion=self.chance.choice(_WORDS), ended_at=self._now))

    def _send(self, check: InTreeCheck) -> None:
        self.sent.append(check)
        self.last[check.key] = check

    def shuffled(self) -> list[InTreeCheck]:
        """All webhooks in any order, half of them twice."""
        arriving = [*self.sent, *self.chance.sample(self.sent, len(self.sent) // 2)]
        self.chance.shuffle(arriving)
        return arriving

    def count(self) -> Counts:
        counted = Counter(OUTCOMES[check.conclusion] for check in self.last.values())
        return Counts(*(counted[outcome] for outcome in Outcome))
