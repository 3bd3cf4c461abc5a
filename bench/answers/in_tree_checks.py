"""The upstream's own CI in a history: checks of pushes and pull requests, of which some are red for a known reason.

Some culprits of downstreams break a check too, and some innocent changes break one that has nothing to do with any downstream.
One check is always red, and some come and go. Chance is drawn apart, so that a history is the same with and without in-tree CI.
"""

import random
from dataclasses import dataclass, field

from bench.answers.causes import Breakage, TestedCode

ALWAYS_RED = "periodic / always red"
_STABLE = tuple(f"linux / test ({number}, 8)" for number in range(1, 9))
_FLAKY = {"linux / flaky": 0.08, "macos / seldom flaky": 0.02}
_BREAKS_TOO = 0.35
"""How many culprits of downstreams break a check too."""
_BREAKS_OTHERWISE = 0.1
"""How many innocent changes break a check."""
_SHOWN = 0.6
"""How many of both fail on their pull request."""
_CANCELLED = 0.05


@dataclass(slots=True)
class BrokenCheck:
    """A change that makes checks fail on the base branch until they are fixed."""

    checks: frozenset[str]
    pull: str | None
    start: int
    end: int | None = None
    with_breakage: Breakage | None = None
    is_shown: bool = False
    """Whether it fails on its pull request."""

    def covers(self, code: TestedCode) -> bool:
        if self.pull is not None and code.contains(self.pull):
            return self.is_shown
        if self.with_breakage is not None and code.pull in self.with_breakage.fixed_by:
            return False
        end = self.with_breakage.end if self.with_breakage is not None else self.end
        return self.start <= code.base and (end is None or code.base < end)


@dataclass(slots=True)
class InTreeCi:
    rng: random.Random
    broken: list[BrokenCheck] = field(default_factory=list)

    def land_culprit(self, breakage: Breakage) -> None:
        if self.rng.random() < _BREAKS_TOO:
            broken = BrokenCheck(
                self._some_checks(), breakage.landed_from, breakage.start, with_breakage=breakage
            )
            broken.is_shown = self.rng.random() < _SHOWN
            self.broken.append(broken)

    def land_innocent(self, pull: str, position: int) -> None:
        if self.rng.random() < _BREAKS_OTHERWISE:
            end = position + self.rng.randint(2, 12)
            broken = BrokenCheck(self._some_checks(), pull, position, end)
            broken.is_shown = self.rng.random() < _SHOWN
            self.broken.append(broken)

    def _some_checks(self) -> frozenset[str]:
        return frozenset(self.rng.sample(_STABLE, self.rng.choice((1, 1, 2, 4))))

    def test(self, code: TestedCode) -> dict[str, str]:
        """The conclusion of each check on this code."""
        failing = {name for broken in self.broken if broken.covers(code) for name in broken.checks}
        failing |= {name for name, rate in _FLAKY.items() if self.rng.random() < rate} | {ALWAYS_RED}
        ends = {name: "failure" if name in failing else "success" for name in (*_STABLE, *_FLAKY, ALWAYS_RED)}
        return {name: "cancelled" if self.rng.random() < _CANCELLED else end for name, end in ends.items()}

    def culprits(self, check: str, tip: int) -> set[int]:
        """The commits that broke the check and are not fixed at this commit of the base branch."""
        at_tip = TestedCode("", tip)
        return {one.start for one in self.broken if check in one.checks and one.covers(at_tip)}
