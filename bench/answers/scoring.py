"""Compares the relay's answers with the truth, and counts: right and wrong, by kind and scenario, and the groups."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from bench.answers.api_answers import NO_VERDICT, Answer, Group
from bench.answers.causes import Kind
from bench.answers.truth import Kinds

HIGH = "high"
EXCUSES = frozenset({"pre-existing", "flaky"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One failed job, test or silence, with the truth and the answer."""

    history: int
    scenario: str
    what: Literal["job", "test"]
    pull: int
    place: str
    kind: Kind
    accepted: Kinds
    causes: tuple[str, ...]
    answer: Answer

    @property
    def is_decidable(self) -> bool:
        return bool(self.accepted)

    @property
    def is_right(self) -> bool:
        return self.answer.kind in self.accepted


@dataclass(frozen=True, slots=True)
class GroupScore:
    """Of one pull request: memberships in all, those that agree, and the same for true symptoms."""

    members: int = 0
    agreeing: int = 0
    shared: int = 0
    found: int = 0


def score_groups(groups: Iterable[Group], symptoms: dict[tuple[str, str], set[str]]) -> GroupScore:
    """`symptoms` are those of each failed job that lists tests, by backend and job.

    A group is pure if all its jobs have one symptom in common. A symptom of several jobs is complete if one group has
    them all.
    """
    listed = list(groups)
    members = agreeing = shared = found = 0
    for group in listed:
        counts = Counter(symptom for member in group.members for symptom in symptoms.get(member, ()))
        members += len(group.members)
        agreeing += max(counts.values(), default=0)
    places: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for place, own in symptoms.items():
        for symptom in own:
            places[symptom].add(place)
    for same in places.values():
        if len(same) > 1:
            shared += len(same)
            found += max((len(same & group.members) for group in listed), default=0)
    return GroupScore(members, agreeing, shared, found)


@dataclass(slots=True)
class Score:
    judged: list[Judged] = field(default_factory=list)
    groups: list[GroupScore] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    histories: int = 0

    def jobs(self) -> list[Judged]:
        return [each for each in self.judged if each.what == "job" and each.is_decidable]

    def tests(self) -> list[Judged]:
        return [each for each in self.judged if each.what == "test" and each.is_decidable]

    def undecidable(self) -> list[Judged]:
        return [each for each in self.judged if each.what == "job" and not each.is_decidable]

    def wrong(self) -> list[Judged]:
        return [each for each in self.judged if each.is_decidable and not each.is_right]

    def accuracy(self, scenario: str | None = None) -> float:
        chosen = [each for each in self.jobs() if scenario in {None, each.scenario}]
        return share(chosen, lambda each: each.is_right)

    def false_new(self) -> float:
        """Of the failures that no change of the pull request made."""
        innocent = [each for each in self.jobs() if "new" not in each.accepted]
        return share(innocent, lambda each: each.answer.kind == "new", empty=0.0)

    def _regressions(self) -> list[Judged]:
        return [each for each in self.jobs() if each.kind == "new"]

    def regressions_called_otherwise(self) -> float:
        allowed = {"new", "unknown", NO_VERDICT}
        return share(
            self._regressions(), lambda each: each.answer.kind not in allowed | each.accepted, empty=0.0
        )

    def wrong_excuses(self) -> int:
        """Regressions that `excuses` would let pass."""
        return sum(map(is_excused, self._regressions()))

    def undecidable_excuses(self) -> int:
        return sum(is_excused(each) for each in self.undecidable() if each.kind == "new")

    def precision_at_high(self) -> float:
        sure = [each for each in self.jobs() if each.answer.confidence == HIGH]
        return share(sure, lambda each: each.is_right)

    def purity(self) -> float:
        return _ratio(sum(each.agreeing for each in self.groups), sum(each.members for each in self.groups))

    def completeness(self) -> float:
        return _ratio(sum(each.found for each in self.groups), sum(each.shared for each in self.groups))

    def confusion(self) -> Counter[tuple[str, str]]:
        return Counter((each.kind, each.answer.kind) for each in self.jobs())


def is_excused(judged: Judged) -> bool:
    return judged.answer.kind in EXCUSES and judged.answer.confidence == HIGH


def share(judged: list[Judged], holds: Callable[[Judged], bool], *, empty: float = 1.0) -> float:
    return sum(map(holds, judged)) / len(judged) if judged else empty


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
