"""Histories of a base branch for bisections: landed breakages, and what makes their search hard.

On top of `landed_breakages`: jobs that fail by chance with the failure of a breakage or with another one, a push that breaks a
job, fixes it and breaks it again, a second breakage on top of the first, commits whose runs never report, and downstreams that
change: they fail on every commit, or on none, from some time on.
"""

import random
from dataclasses import dataclass
from datetime import datetime

from bench.answers.causes import Attempt, Breakage, Failure, Flake, Job, Kind, Places
from bench.answers.history import History, HistoryBuilder
from bench.answers.landed_breakages import LandedHistory
from bench.answers.symptoms import Symptom

SCENARIO = "bisected-breakages"
_ALIKE = 0.3
"""How many breakages are in a job that showed the same failure by chance before."""
_CHANGED = 0.25
_UNTESTABLE = 0.25
"""How many histories have a downstream that changes, and commits that cannot be tested."""


@dataclass(slots=True, eq=False)
class DownstreamChange:
    """From a time on the downstream shows a breakage on every commit, or on none."""

    name: str
    breakage: Breakage
    start: datetime
    is_cure: bool
    kind: Kind = "pre-existing"

    def strike(self, attempt: Attempt, job: Job, rng: random.Random) -> list[Failure]:  # noqa: ARG002
        if self.is_cure or not self.concerns(attempt.backend.name, job.name) or attempt.at < self.start:
            return []
        return [Failure(self, symptom) for symptom in self.breakage.symptoms] or [Failure(self)]

    def concerns(self, backend: str, job: str) -> bool:
        return job in self.breakage.where.get(backend, ())

    def cures(self, failure: Failure, at: datetime) -> bool:
        return self.is_cure and failure.cause is self.breakage and at >= self.start


def write_bisected_history(number: int, seed: int) -> History:
    writer = _BisectedHistory(HistoryBuilder(number, SCENARIO, seed))
    writer.write()
    return writer.builder.finish()


class _BisectedHistory(LandedHistory):
    def write(self) -> None:
        self._add_flakes()
        self._land_innocents(self._rng.randint(10, 20))
        self._wait_for_results({backend.name: frozenset() for backend in self.builder.backends})
        acts = (
            self._break_once,
            self._break_again,
            self._break_twice,
            self._break_within_a_push,
            self._break_on_top,
        )
        for _ in range(self._rng.randint(2, 3)):
            self._rng.choice(acts)()
        if self._rng.random() < _CHANGED:
            self._change_downstream()
        if self._rng.random() < _UNTESTABLE:
            share = self._rng.uniform(0.02, 0.12)
            self.builder.untestable = {
                position for position in range(1, self.builder.tip) if self._rng.random() < share
            }

    def _add_flakes(self) -> None:
        for number in range(self._rng.choice((0, 1, 2, 3))):
            where, symptoms = self.builder.one_place(), self.builder.book.take(1)
            self.builder.causes.append(Flake(f"flake {number}", where, symptoms, self._draw_rate()))

    def _draw_rate(self) -> float:
        """From 1 to 20 percent."""
        return 0.01 * 20 ** self._rng.random()

    def _land_culprit(
        self, where: Places, symptoms: tuple[Symptom, ...], again: Breakage | None = None
    ) -> Breakage:
        broken = super()._land_culprit(where, symptoms, again)
        if again is None and self._rng.random() < _ALIKE:
            self._add_alike_flake(broken)
        return broken

    def _add_alike_flake(self, broken: Breakage) -> None:
        backend = self._rng.choice(sorted(broken.where))
        where = {backend: frozenset({self._rng.choice(sorted(broken.where[backend]))})}
        self.builder.causes.append(
            Flake(f"flake like {broken.name}", where, broken.symptoms, self._draw_rate())
        )

    def _break_within_a_push(self) -> None:
        """One push breaks jobs, fixes them, and breaks them again."""
        where, symptoms = self.builder.some_places(most=2), self.builder.some_symptoms()
        paths = self._culprit_paths(where, symptoms)
        first, fix, again = (self.builder.open(paths=paths) for _ in range(3))
        together = (first, *self._open_innocents(), fix, *self._open_innocents(), again)
        together = (*self._open_innocents(), *together, *self._open_innocents())
        start = self.builder.land_together(together)
        places = {pull: start + place for place, pull in enumerate(together)}
        broken = Breakage(
            f"breakage of {first}", where, symptoms, places[first], places[fix], landed_from=first
        )
        last = Breakage(f"breakage of {again}", where, symptoms, places[again], landed_from=again)
        self.builder.causes += [broken, last]
        self._wait_for_results(where)
        self.builder.ask_culprits()
        self._fix(last)

    def _break_on_top(self) -> None:
        """One push breaks jobs, and breaks them in another way after that; sometimes that is fixed by the same push."""
        where, symptoms = self.builder.some_places(most=2), self.builder.book.take(1)
        others = () if self._rng.random() < 0.3 else self.builder.book.take(1)
        paths = self._culprit_paths(where, symptoms)
        first, second, fix = (self.builder.open(paths=paths) for _ in range(3))
        together = (*self._open_innocents(), first, *self._open_innocents(), second, *self._open_innocents())
        is_fixed = self._rng.random() < 0.6
        together = (*together, fix, *self._open_innocents()) if is_fixed else together
        start = self.builder.land_together(together)
        places = {pull: start + place for place, pull in enumerate(together)}
        broken = Breakage(f"breakage of {first}", where, symptoms, places[first], landed_from=first)
        on_top = Breakage(
            f"breakage of {second}", where, others, places[second], places.get(fix), landed_from=second
        )
        self.builder.causes += [broken, on_top]
        self._wait_for_results(where)
        self.builder.ask_culprits()
        self._fix(broken)
        if not is_fixed:
            self._fix(on_top)

    def _open_innocents(self) -> tuple[str, ...]:
        number = self._rng.choice((0, 1, 2, 4))
        return tuple(self.builder.open(paths=self._innocent_paths()) for _ in range(number))

    def _change_downstream(self) -> None:
        """The last breakage of a history, which nobody fixes; the downstream changes when the relay is asked about it."""
        broken = self._land_culprit(self.builder.some_places(most=2), self.builder.some_symptoms())
        self._wait_for_results(broken.where)
        is_cure = self._rng.random() < 0.5
        self.builder.causes.append(
            DownstreamChange(f"change at {broken.name}", broken, self.builder.now, is_cure)
        )
        self.builder.ask_culprits()
