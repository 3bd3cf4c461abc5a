"""Histories of a base branch that pull requests break and fix: for each breakage the culprit is known.

Everything lands by pull requests, or by direct pushes. A culprit usually fails on its pull request before it is merged; some
break only together with what landed meanwhile, some are merged before their results come, and some backends never saw them,
because their `paths` leave the pull request out. Backends test every push, some of them, or one in ten.
"""

import random

from bench.answers.causes import Breakage, Flake, Places
from bench.answers.history import History, HistoryBuilder
from bench.answers.in_tree_checks import InTreeCi
from bench.answers.symptoms import Symptom

SCENARIO = "landed-breakages"
_SHOWN = 0.7
"""How many culprits fail on their pull request."""
_HASTY = 0.3
"""How many of the others are merged before they are tested; the rest pass there, and break what landed meanwhile."""
_AREAS = ("core", "docs", "build")


def write_landed_history(number: int, seed: int, *, with_in_tree: bool = False) -> History:
    """The same history with and without the upstream's own CI."""
    writer = LandedHistory(HistoryBuilder(number, SCENARIO, seed))
    writer.write()
    if with_in_tree:
        writer.builder.in_tree = writer.in_tree
    return writer.builder.finish()


class LandedHistory:
    def __init__(self, builder: HistoryBuilder) -> None:
        self.builder, self._rng = builder, builder.rng
        self.in_tree = InTreeCi(random.Random(f"{builder.seed}-{builder.number}-in-tree"))  # noqa: S311
        builder.pace_s, builder.furthest_behind = 1800, 3
        for _ in range(self._rng.randint(2, 4)):
            self._add_backend()

    def _add_backend(self) -> None:
        number = len(self.builder.backends)
        every = self._rng.choice((1, 1, 1, 2, 3, 10))
        has_paths = self._rng.random() < 0.5
        paths = (f"src/device{number}/**", "src/core/**", "test/**") if has_paths else None
        self.builder.add_backends(1, tests_every=every, paths=paths)

    def write(self) -> None:
        self._add_flakes()
        self._land_innocents(self._rng.randint(6, 10))
        self._wait_for_results({backend.name: frozenset() for backend in self.builder.backends})
        for _ in range(self._rng.randint(2, 3)):
            self._rng.choice((self._break_once, self._break_once, self._break_again, self._break_twice))()

    def _add_flakes(self) -> None:
        for number in range(self._rng.choice((0, 0, 1, 2))):
            rate = 0.02 * 6 ** self._rng.random()
            where, symptoms = self.builder.one_place(), self.builder.book.take(1)
            self.builder.causes.append(Flake(f"flake {number}", where, symptoms, rate))

    def _break_once(self) -> None:
        """One change breaks jobs; the relay is asked; another change fixes or reverts it."""
        broken = self._land_culprit(self.builder.some_places(most=2), self.builder.some_symptoms())
        self._wait_for_results(broken.where)
        self.builder.ask_culprits()
        self._fix(broken)

    def _break_again(self) -> None:
        """The change is reverted, and later lands again as it was."""
        broken = self._land_culprit(self.builder.some_places(most=2), self.builder.some_symptoms())
        self._wait_for_results(broken.where)
        self.builder.ask_culprits()
        self._fix(broken)
        self._wait_for_results(broken.where)
        again = self._land_culprit(broken.where, broken.symptoms, again=broken)
        self._wait_for_results(again.where)
        self.builder.ask_culprits()
        self._fix(again)

    def _break_twice(self) -> None:
        """Two changes break jobs at once, perhaps the same ones."""
        first = self._land_culprit(self.builder.some_places(most=2), self.builder.book.take(1))
        where = first.where if self._rng.random() < 0.5 else self.builder.some_places(most=2)
        second = self._land_culprit(where, self.builder.book.take(1))
        self._wait_for_results(first.where)
        self._wait_for_results(second.where)
        self.builder.ask_culprits()
        self._fix(first)
        self._fix(second)

    def _land_culprit(
        self, where: Places, symptoms: tuple[Symptom, ...], again: Breakage | None = None
    ) -> Breakage:
        """Land a change that breaks these jobs, among innocent ones."""
        self._land_innocents(self._rng.randint(0, 3))
        paths = self._culprit_paths(where, symptoms)
        named = again.landed_from if again else None
        title = 'Reland "Fix a kernel (#{0})"' if again else None
        pull = self.builder.open(paths=paths, title=title, names=named)
        is_shown, is_hasty = self._rng.random() < _SHOWN, self._rng.random() < _HASTY
        if is_shown:
            self.builder.add_regression(pull, where, symptoms=symptoms)
        if is_shown or not is_hasty:
            self.builder.wait(2 * 3600)
        start = self._land(pull)
        # By the first commit, a breakage that lands again is another one with the same failure.
        broken = Breakage(f"breakage of {pull}", where, symptoms, start, landed_from=pull)
        self.builder.causes.append(broken)
        self.in_tree.land_culprit(broken)
        return broken

    def _land(self, pull: str) -> int:
        """Land the pull request alone, or with innocent ones by one push."""
        if self._rng.random() < 0.7:
            return self.builder.land(pull)
        others = tuple(
            self.builder.open(paths=self._innocent_paths()) for _ in range(self._rng.randint(1, 3))
        )
        position = self._rng.randint(0, len(others))
        together = (*others[:position], pull, *others[position:])
        return self.builder.land_together(together) + position

    def _land_innocents(self, number: int) -> None:
        for _ in range(number):
            chance = self._rng.random()
            if chance < 0.5:
                pull = self.builder.open(paths=self._innocent_paths())
                self.builder.wait(1800)
                self.in_tree.land_innocent(pull, self.builder.land(pull))
            elif chance < 0.9:
                self.builder.push(self._rng.choice((1, 1, 2, 4)), self._innocent_paths())
            else:
                self.builder.open(paths=self._innocent_paths())

    def _wait_for_results(self, where: Places) -> None:
        """Land innocent changes until each of these backends tested what landed before, twice."""
        most = max(self._backend_rate(name) for name in where)
        for _ in range(2 * most):
            paths = tuple(self._matching_path(name) for name in where) if self._rng.random() < 0.7 else ()
            self.builder.push(self._rng.choice((1, 1, 2)), paths or self._innocent_paths())
        for name in where:
            self.builder.push(1, (self._matching_path(name),))
        self.builder.wait(2 * 3600)

    def _backend_rate(self, name: str) -> int:
        return next(backend.tests_every for backend in self.builder.backends if backend.name == name)

    def _fix(self, broken: Breakage) -> None:
        """Revert the change, or fix it, by a pull request."""
        is_revert = broken.landed_from is not None and self._rng.random() < 0.6
        title = 'Revert "Fix a kernel (#{0})"' if is_revert else "Fix the build"
        paths = self._culprit_paths(broken.where, ())
        pull = self.builder.open(paths=paths, title=title, names=broken.landed_from if is_revert else None)
        broken.fixed_by.add(pull)
        self.builder.wait(1800)
        broken.end = self.builder.land(pull)
        self._land_innocents(self._rng.randint(1, 3))

    def _innocent_paths(self) -> tuple[str, ...]:
        areas = (*_AREAS, *(f"device{number}" for number in range(len(self.builder.backends))))
        chosen = self._rng.choice(areas)
        return (f"{'docs' if chosen == 'docs' else f'src/{chosen}'}/f{self._rng.randint(0, 999)}.py",)

    def _culprit_paths(self, where: Places, symptoms: tuple[Symptom, ...]) -> tuple[str, ...]:
        """What breaks a backend is mostly what its `paths` name; sometimes the failing test was changed too."""
        name = self._rng.choice(sorted(where))
        paths = (self._matching_path(name),) if self._rng.random() < 0.9 else self._innocent_paths()
        if symptoms and self._rng.random() < 0.15:
            paths = (*paths, symptoms[0].file)
        return paths

    def _matching_path(self, name: str) -> str:
        """A file that the backend's `paths` name."""
        number = next(place for place, backend in enumerate(self.builder.backends) if backend.name == name)
        area = self._rng.choice((f"device{number}", f"device{number}", "core"))
        return f"src/{area}/f{self._rng.randint(0, 999)}.py"
