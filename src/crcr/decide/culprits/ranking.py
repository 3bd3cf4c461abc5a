"""Ranks the changes in the range of a breakage: each is a candidate, with a score and its reasons.

A change starts with the same weight as the others, and each piece of evidence multiplies it; the score is the change's share of
all weights in the range. That the pull request was merged while the same failure was on it outweighs all other evidence. Evidence
against a change lowers it and removes nothing: only the range excludes commits.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from crcr.decide.culprits.commit_message import is_revert, named_pulls
from crcr.decide.culprits.commit_range import BreakageRange
from crcr.decide.culprits.merged_pulls import BaseCommit, group_by_pull
from crcr.decide.globs import path_glob
from crcr.decide.in_tree.base_results import TurnedRed
from crcr.decide.in_tree.checks import describe_names

FAILED_ON_PULL = 100.0
FAILED_ON_PULL_ELSEWHERE = 30.0
"""The same failure, of another job or backend."""
PASSED_ON_PULL = 0.2
FOUND_BY_BISECTION = 100_000.0
"""More than all other evidence together: it was tested."""
CAME_BEFORE = 10.0
TOUCHES_TEST = 5.0
TOUCHES_PATHS = 2.0
TOUCHES_OTHER_PATHS = 0.3
IN_OTHER_RANGE = 4.0
IN_TREE_TURNED_RED = 5.0
"""An in-tree check began to fail at the change; where it may be one of several changes, they share it."""
IN_TREE_TURNED_RED_ONCE = 2.0
"""The same, seen on one commit only."""
IN_TREE_FAILED_ON_PULL = 4.0
OUTSIDE_OTHER_RANGE = 0.1
PULL_PASSED_AFTER = 0.1
PULL_FAILED_BEFORE = 0.05
REVERTED = 0.05
FAILED_OTHERWISE_AFTER = 0.4
FURTHEST = 0.8
"""Of the commit that is furthest from the first failing one."""
_SCORE_DIGITS = 3
_MOST_REASONS = 6
_MOST_SHOWN_PATH = 120


@dataclass(frozen=True, slots=True)
class OtherRange:
    """Another job with the same failure, and where it began to fail, in positions."""

    job: str
    """`owner/repo: job`."""
    good: int | None
    bad: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InTreeEvidence:
    """What the upstream's own CI shows about the changes of a range; its failures have no message to compare."""

    turned_red: tuple[TurnedRed, ...] = ()
    """In-tree checks that began to fail within the range."""
    failed_on: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """Pull requests on whose last head in-tree checks failed that passed on the base, with the names of the checks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CulpritEvidence:
    """What is recorded about the changes of a range, besides the job's own results on the base."""

    failed_on: Mapping[int, str | None] = field(default_factory=dict)
    """Pull requests that had the same failure before they were merged: None for the same job, else `owner/repo: job`."""
    passed_on: frozenset[int] = frozenset()
    """Pull requests on whose last head the job passed."""
    globs: tuple[str, ...] | None = None
    """The backend's `paths`."""
    test_files: frozenset[str] = frozenset()
    """The files of the failed tests."""
    elsewhere: tuple[OtherRange, ...] = ()
    pulls_passed_at: int | None = None
    """The newest base commit in the range with an open pull request on top of it that passed."""
    pulls_failed_at: int | None = None
    """The oldest base commit with an unrelated pull request on top of it that failed alike."""
    came_with: frozenset[int] = frozenset()
    """Pull requests in the ranges of earlier breakages with the same failure."""
    bisected: Mapping[str, int] = field(default_factory=dict)
    """Commits that a bisection of this breakage found, with the bisection."""
    in_tree: InTreeEvidence = field(default_factory=InTreeEvidence)


@dataclass(frozen=True, slots=True, kw_only=True)
class CulpritCandidate:
    sha: str
    """The change's last commit in the range."""
    number: int | None
    title: str
    score: float
    """Its share of all candidates, from 0 to 1."""
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Factor:
    weight: float
    reason: str | None = None


def rank_candidates(
    breakage: BreakageRange, commits: Sequence[BaseCommit], evidence: CulpritEvidence
) -> tuple[CulpritCandidate, ...]:
    """Rank the changes of `commits`, which are all of the range, in their order; the likeliest first.

    Without a recorded pass the range has no beginning: then only changes with evidence for them are candidates.
    """
    inside = [commit for commit in commits if breakage.contains(commit.position)]
    changes = group_by_pull(inside)
    weighed = []
    for change in changes:
        factors = list(_weigh(breakage, change, inside, evidence))
        weight = 1.0
        for factor in factors:
            weight *= factor.weight
        weighed.append((weight, change, factors))
    total = sum(weight for weight, _, _ in weighed)
    if breakage.good is None:
        weighed = [one for one in weighed if any(factor.weight > 1 for factor in one[2])]
    weighed.sort(key=lambda one: (one[0], one[1][-1].position), reverse=True)
    return tuple(
        CulpritCandidate(
            sha=change[-1].sha,
            number=change[-1].number,
            title=change[-1].title,
            score=round(weight / total, _SCORE_DIGITS),
            reasons=(*_order_reasons(factors), _describe_place(breakage, change, inside, len(changes))),
        )
        for weight, change, factors in weighed
    )


def _order_reasons(factors: Iterable[_Factor]) -> list[str]:
    """What speaks for the change first, and what weighs most."""
    told = [factor for factor in factors if factor.reason is not None]
    told.sort(key=lambda factor: factor.weight if factor.weight > 1 else -factor.weight, reverse=True)
    return [factor.reason for factor in told if factor.reason][:_MOST_REASONS]


def _weigh(
    breakage: BreakageRange,
    change: Sequence[BaseCommit],
    commits: Sequence[BaseCommit],
    evidence: CulpritEvidence,
) -> Iterator[_Factor]:
    yield from _weigh_bisections(change, evidence)
    yield from _weigh_pull(change[-1], evidence)
    yield from _weigh_paths(change, evidence)
    yield from _weigh_history(change, commits, evidence)
    yield from _weigh_elsewhere(change, evidence)
    yield from _weigh_in_tree(breakage, change, commits, evidence.in_tree)
    yield from _weigh_place(breakage, change, commits)


def _weigh_bisections(change: Sequence[BaseCommit], evidence: CulpritEvidence) -> Iterator[_Factor]:
    found = next(
        (evidence.bisected[commit.sha] for commit in change if commit.sha in evidence.bisected), None
    )
    if found is not None:
        yield _Factor(FOUND_BY_BISECTION, f"bisection {found} found it")


def _weigh_pull(commit: BaseCommit, evidence: CulpritEvidence) -> Iterator[_Factor]:
    number = commit.number
    if number is None:
        return
    if number in evidence.failed_on:
        job = evidence.failed_on[number]
        if job is None:
            yield _Factor(FAILED_ON_PULL, f"#{number} was merged while this failed on it")
        else:
            yield _Factor(FAILED_ON_PULL_ELSEWHERE, f"#{number} was merged while {job} failed alike on it")
    elif number in evidence.passed_on:
        yield _Factor(PASSED_ON_PULL, f"the job passed on #{number} before it was merged")


def _weigh_paths(change: Sequence[BaseCommit], evidence: CulpritEvidence) -> Iterator[_Factor]:
    paths = [path for commit in change for path in commit.paths]
    tested = next((path for path in paths if path in evidence.test_files), None)
    if tested is not None:
        yield _Factor(TOUCHES_TEST, f"touches {_shorten(tested)}, where the failed test is")
    if evidence.globs is None:
        return
    globs = [path_glob(glob) for glob in evidence.globs]
    matched = next((path for path in paths if any(glob.matches(path) for glob in globs)), None)
    if matched is not None:
        yield _Factor(TOUCHES_PATHS, f"touches {_shorten(matched)}, one of the backend's paths")
    elif all(commit.has_all_paths for commit in change):
        yield _Factor(TOUCHES_OTHER_PATHS, "touches none of the backend's paths")


def _weigh_history(
    change: Sequence[BaseCommit], commits: Sequence[BaseCommit], evidence: CulpritEvidence
) -> Iterator[_Factor]:
    reverting = next((commit for commit in commits if _reverts(commit, change)), None)
    if reverting is not None:
        yield _Factor(REVERTED, f"was reverted within the range, by {reverting.sha[:10]}")
    elif any(_reverts(change[-1], [commit]) for commit in commits):
        yield _Factor(REVERTED, "reverts a commit of the range")
    own = {change[-1].number} if change[-1].number is not None else set()
    again = sorted((named_pulls(change[-1].title) | own) & evidence.came_with)
    if again and not is_revert(change[-1].title):
        yield _Factor(CAME_BEFORE, f"lands #{again[0]} again, which was there when this failure first came")


def _reverts(commit: BaseCommit, change: Sequence[BaseCommit]) -> bool:
    """Whether the commit reverts the change: by its hash, or by the number in its title."""
    if commit.position <= change[-1].position:
        return False
    if commit.reverts is not None:
        return any(commit.reverts == other.sha for other in change)
    number = change[-1].number
    return number is not None and is_revert(commit.title) and number in named_pulls(commit.title)


def _weigh_elsewhere(change: Sequence[BaseCommit], evidence: CulpritEvidence) -> Iterator[_Factor]:
    position = change[-1].position
    for other in evidence.elsewhere:
        if position > other.bad:
            yield _Factor(OUTSIDE_OTHER_RANGE, f"{other.job} failed alike before it")
        elif other.good is not None and position <= other.good:
            yield _Factor(OUTSIDE_OTHER_RANGE, f"{other.job}, which fails alike, passed after it")
        elif other.good is not None:
            yield _Factor(IN_OTHER_RANGE, f"{other.job} began to fail alike around it")
    passed, failed = evidence.pulls_passed_at, evidence.pulls_failed_at
    if passed is not None and failed is not None and failed <= passed:
        return  # they contradict each other: one of them is chance
    if passed is not None and position <= passed:
        yield _Factor(PULL_PASSED_AFTER, "a pull request on top of it passed")
    if failed is not None and position > failed:
        yield _Factor(PULL_FAILED_BEFORE, "a pull request without it failed alike")


def _weigh_in_tree(
    breakage: BreakageRange,
    change: Sequence[BaseCommit],
    commits: Sequence[BaseCommit],
    evidence: InTreeEvidence,
) -> Iterator[_Factor]:
    """Checks that turned red together, or failed on the pull request together, count once."""
    places = {commit.position for commit in change}
    around = [one for one in evidence.turned_red if any(one.good < place <= one.bad for place in places)]
    if around:
        weights = [_weigh_turned_red(one, breakage, commits) for one in around]
        weight = max(weights)
        strongest = [one for one, own in zip(around, weights, strict=True) if own == weight]
        is_exact = _count_between(strongest[0], breakage, commits) == 1
        names = describe_names([one.name for one in strongest], "`")
        yield _Factor(weight, f"in-tree check {names} began to fail {'at' if is_exact else 'around'} it")
    number = change[-1].number
    if number is not None and number in evidence.failed_on:
        names = describe_names(evidence.failed_on[number], "`")
        yield _Factor(
            IN_TREE_FAILED_ON_PULL, f"#{number} was merged while in-tree check {names} failed on it"
        )


def _weigh_turned_red(one: TurnedRed, breakage: BreakageRange, commits: Sequence[BaseCommit]) -> float:
    weight = IN_TREE_TURNED_RED if one.is_lasting else IN_TREE_TURNED_RED_ONCE
    return 1 + (weight - 1) / _count_between(one, breakage, commits)


def _count_between(one: TurnedRed, breakage: BreakageRange, commits: Sequence[BaseCommit]) -> int:
    """How many changes may have turned the check red: those of the range, and commits outside of it."""
    inside = [commit for commit in commits if one.good < commit.position <= one.bad]
    before = max(0, breakage.good.position - one.good) if breakage.good is not None else 0
    return max(1, len(group_by_pull(inside)) + before + max(0, one.bad - breakage.bad.position))


def _weigh_place(
    breakage: BreakageRange, change: Sequence[BaseCommit], commits: Sequence[BaseCommit]
) -> Iterator[_Factor]:
    position = change[-1].position
    if position > breakage.first_bad.position:
        reason = "comes after the first failure, which may be chance: this failure came and went before"
        yield _Factor(max(breakage.chance, 0.01), reason)
        return
    if any(position <= other for other in breakage.failed_otherwise):
        yield _Factor(FAILED_OTHERWISE_AFTER, "the job failed otherwise after it, without this failure")
    before = [commit for commit in commits if commit.position <= breakage.first_bad.position]
    distance = sum(commit.position > position for commit in before)
    yield _Factor(1 - (1 - FURTHEST) * distance / max(len(before), 1))


def _describe_place(
    breakage: BreakageRange, change: Sequence[BaseCommit], commits: Sequence[BaseCommit], changes: int
) -> str:
    since = "since the last pass" if breakage.good is not None else "looked at; no pass is recorded"
    if changes == 1:
        return f"the only change {since}"
    first, last = breakage.first_bad.position, change[-1].position
    distance = sum(last < commit.position <= first for commit in commits)
    where = f"{distance:,} before the first failing commit" if distance else "the first failing commit"
    where = where if last <= first else "after the first failing commit"
    return f"one of {changes:,} changes {since}: {where}"


def _shorten(path: str) -> str:
    return path if len(path) <= _MOST_SHOWN_PATH else f"…{path[-_MOST_SHOWN_PATH:]}"
