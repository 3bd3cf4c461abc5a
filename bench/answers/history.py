"""A history as data: backends, causes and the steps of people, and the builder that the scenarios use."""

import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from bench.answers.causes import Backend, Breakage, Cause, Job, Outage, Places, Regression
from bench.answers.in_tree_checks import InTreeCi
from bench.answers.symptoms import DEVICES, Symptom, SymptomBook

MERGE_OPTION_IS_ACCEPTED = True
"""Whether the allowlist has the option `tests: merge`."""

BEGINNING = datetime(2026, 1, 5, 6, tzinfo=UTC)
TRUSTED = frozenset({"OWNER", "MEMBER", "COLLABORATOR", "CONTRIBUTOR"})
AUTHORS = {
    "ada": "MEMBER",
    "ben": "MEMBER",
    "cleo": "CONTRIBUTOR",
    "dan": "CONTRIBUTOR",
    "eve": "COLLABORATOR",
    "finn": "NONE",
    "gus": "FIRST_TIME_CONTRIBUTOR",
}


@dataclass(frozen=True, slots=True)
class Push:
    commits: int
    paths: tuple[str, ...] = ()
    """Files that its last commit changes."""


@dataclass(frozen=True, slots=True)
class Open:
    pull: str
    author: str
    base: int
    """The commit of the base branch that it is built on."""
    on_top_of: str | None = None
    """A pull request whose head it is built on."""
    title: str | None = None
    """With `{0}` for the number of the pull request that `names` means."""
    names: str | None = None
    paths: tuple[str, ...] = ()
    """Files that it changes; without them one of its own."""


@dataclass(frozen=True, slots=True)
class NewHead:
    pull: str
    base: int | None
    """None: one more commit. Otherwise a force push, on to this commit of the base branch."""


@dataclass(frozen=True, slots=True)
class Land:
    pull: str


@dataclass(frozen=True, slots=True)
class LandTogether:
    """A merge queue merges several pull requests by one push."""

    pulls: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AskCulprits:
    """Ask the relay who broke the jobs that fail on the base branch now."""


@dataclass(frozen=True, slots=True)
class Rerun:
    pull: str
    whole: bool
    """All jobs, and not only those that failed."""


@dataclass(frozen=True, slots=True)
class Nightly:
    pass


Step = Push | Open | NewHead | Land | LandTogether | Rerun | Nightly | AskCulprits


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    number: int
    scenario: str
    seed: int
    backends: tuple[Backend, ...]
    causes: tuple[Cause, ...]
    steps: tuple[tuple[datetime, Step], ...]
    authors: dict[str, str] = field(default_factory=lambda: dict(AUTHORS))
    in_tree: InTreeCi | None = None
    """The upstream's own CI; None where the relay is told of none."""
    untestable: frozenset[int] = frozenset()
    """Commits of the base branch whose runs never report."""

    def is_untestable(self, position: int) -> bool:
        return position in self.untestable

    def backend(self, name: str) -> Backend:
        return next(backend for backend in self.backends if backend.name == name)


class HistoryBuilder:
    """Writes a history step by step; `now` and `tip` are the time and the newest commit of the base branch so far."""

    def __init__(self, number: int, scenario: str, seed: int) -> None:
        self.number, self.scenario, self.seed = number, scenario, seed
        self.rng = random.Random(f"{seed}-{number}-{scenario}")  # noqa: S311  repeatable, and no secret
        self.book = SymptomBook(self.rng)
        self.backends: list[Backend] = []
        self.causes: list[Cause] = []
        self.steps: list[tuple[datetime, Step]] = []
        self.now, self.tip = BEGINNING, 0
        self.commits_between_tests = self.rng.choice((1, 1, 2, 3, 5, 8, 13, 20))
        self.pace_s = self.rng.choice((900, 1800, 3600, 5400))
        self.push_share = self.rng.uniform(0.35, 0.6)
        self.furthest_behind = self.rng.choice((0, 0, 1, 2, self.commits_between_tests))
        self.in_tree: InTreeCi | None = None
        self.untestable: set[int] = set()
        self._pulls = 0
        self._bases: dict[str, int] = {}
        self._heads: dict[str, int] = {}

    def finish(self) -> History:
        return History(
            number=self.number,
            scenario=self.scenario,
            seed=self.seed,
            backends=tuple(self.backends),
            causes=tuple(self.causes),
            steps=tuple(self.steps),
            in_tree=self.in_tree,
            untestable=frozenset(self.untestable),
        )

    def add_backends(self, number: int | None = None, **options: object) -> None:
        for _ in range(number if number is not None else self.rng.choice((2, 2, 3, 3, 4, 5, 6))):
            self.backends.append(self._make_backend(**options))

    def _make_backend(self, **options: object) -> Backend:
        number = len(self.backends)
        device = DEVICES[number % len(DEVICES)]
        given = {"names_jobs": self.rng.random() < 0.5, **options}
        names = self.rng.sample(
            ("test", "test-ops", "inductor", "distributed"), self.rng.choice((1, 1, 2, 2, 3))
        )
        lists_tests = given.pop("lists_tests", None)
        jobs = [Job(name, self._lists(lists_tests)) for name in names]
        if self.rng.random() < 0.3:
            jobs.insert(0, Job("build", lists_tests=False))
        return Backend(
            name=f"{device.lower()}-{number}/torch-{device.lower()}",
            device=device,
            jobs=tuple(jobs),
            **given,  # type: ignore[arg-type]
        )

    def _lists(self, given: object) -> bool:
        return self.rng.random() < 0.75 if given is None else bool(given)

    def wait(self, seconds: float | None = None) -> None:
        self.now += timedelta(
            seconds=int(self.rng.uniform(0.3, 1.7) * self.pace_s if seconds is None else seconds)
        )

    def _add(self, step: Step) -> None:
        self.steps.append((self.now, step))
        self.wait()

    def push(self, commits: int | None = None, paths: tuple[str, ...] = ()) -> None:
        number = commits or max(1, round(self.commits_between_tests * self.rng.uniform(0.6, 1.4)))
        self.tip += min(number, 20)
        self._add(Push(min(number, 20), paths))

    def open(
        self,
        *,
        author: str | None = None,
        base: int | None = None,
        on_top_of: str | None = None,
        **described: object,
    ) -> str:
        """`described` are the title and the paths of `Open`."""
        self._pulls += 1
        pull = f"pull-{self._pulls}"
        chosen = base if base is not None else max(0, self.tip - self.rng.randint(0, self.furthest_behind))
        self._bases[pull] = chosen if on_top_of is None else self._bases[on_top_of]
        self._heads[pull] = 1
        author = author or self.rng.choice(tuple(AUTHORS))
        self._add(Open(pull, author, self._bases[pull], on_top_of, **described))  # type: ignore[arg-type]
        return pull

    def new_head(self, pull: str, *, base: int | None = None) -> int:
        self._heads[pull] += 1
        if base is not None:
            self._bases[pull] = base
        self._add(NewHead(pull, base))
        return self._heads[pull]

    def rerun(self, pull: str, *, whole: bool = False) -> None:
        self._add(Rerun(pull, whole))

    def nightly(self) -> None:
        self._add(Nightly())

    def land(self, pull: str) -> int:
        """Merge the pull request; return the number of its commit on the base branch."""
        self.tip += 1
        self._add(Land(pull))
        return self.tip

    def land_together(self, pulls: tuple[str, ...]) -> int:
        """Merge the pull requests by one push; return the number of the first one's commit."""
        first = self.tip + 1
        self.tip += len(pulls)
        self._add(LandTogether(pulls))
        return first

    def ask_culprits(self) -> None:
        self._add(AskCulprits())

    def traffic(self, steps: int) -> list[str]:
        """Pushes and innocent pull requests; return the pull requests."""
        opened = []
        for _ in range(steps):
            if self.rng.random() < self.push_share:
                self.push()
            else:
                opened.append(self.open())
        return opened

    def base_of(self, pull: str) -> int:
        return self._bases[pull]

    def some_places(self, *, most: int | None = None) -> dict[str, frozenset[str]]:
        """One or several backends, each with some of its jobs."""
        number = self.rng.randint(1, min(most or len(self.backends), len(self.backends)))
        return {
            backend.name: frozenset(
                job.name for job in self.rng.sample(backend.jobs, self.rng.randint(1, len(backend.jobs)))
            )
            for backend in self.rng.sample(self.backends, number)
        }

    def one_place(self) -> dict[str, frozenset[str]]:
        backend = self.rng.choice(self.backends)
        return {backend.name: frozenset({self.rng.choice(backend.jobs).name})}

    def some_symptoms(self) -> tuple[Symptom, ...]:
        """Failed tests, few or many, or none: the job fails before any test."""
        if self.rng.random() < 0.15:
            return ()
        return self.book.take(self.rng.randint(1, 3) if self.rng.random() < 0.9 else self.rng.randint(8, 20))

    def add_regression(self, pull: str, where: Places | None = None, **options: object) -> Regression:
        symptoms = options.pop("symptoms", None)
        cause = Regression(
            f"regression of {pull}",
            pull,
            where or self.some_places(),
            self.some_symptoms() if symptoms is None else symptoms,  # type: ignore[arg-type]
            **options,  # type: ignore[arg-type]
        )
        self.causes.append(cause)
        return cause

    def break_base(
        self, where: Places | None = None, symptoms: tuple[Symptom, ...] | None = None
    ) -> Breakage:
        """The next push contains a commit that breaks jobs."""
        before = self.tip
        self.push()
        chosen = self.some_symptoms() if symptoms is None else symptoms
        start = self.rng.randint(before + 1, self.tip)
        cause = Breakage(f"breakage at {start}", where or self.some_places(), chosen, start)
        self.causes.append(cause)
        return cause

    def fix_base(self, breakage: Breakage) -> None:
        """The next push contains the commit that fixes them."""
        before = self.tip
        self.push()
        breakage.end = self.rng.randint(before + 1, self.tip)

    def add_outage(self, outage: Outage) -> None:
        self.causes.append(outage)
