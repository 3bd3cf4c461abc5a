"""The verdict on a failed job: is the change to blame? A pure function from the failure and recorded history.

Each fingerprint of the job (each failed test) is judged by itself against the base branch at the commit that the head was
built on, against the same failure elsewhere, and against re-runs of the same commit; the job follows its worst fingerprint:
it is `new` if any of its tests is new. What history cannot tell is `unknown`. Every verdict carries its evidence.

A verdict with high confidence may excuse a failure where an upstream allows it, so each rule says what it takes to be sure.
`docs/verdicts.md` explains the rules with examples.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import takewhile

from crcr.decide.failures.history import (
    FLEET_SPAN,
    BackendHour,
    BaseResult,
    BaseState,
    FailedAs,
    JobHistory,
    RecordedFailure,
    is_stacked,
    state_of,
    unrelated,
)


class VerdictKind(StrEnum):
    """The likely cause of a failure, from recorded history."""

    NEW = "new"
    PRE_EXISTING = "pre-existing"
    FLAKY = "flaky"
    INFRASTRUCTURE = "infrastructure"
    MISSING = "missing"
    UNKNOWN = "unknown"


class Confidence(StrEnum):
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class EvidenceKind(StrEnum):
    BASE = "base"
    """A result of the base branch."""
    PULL = "pull"
    """The same failure on another pull request."""
    RERUN = "re-run"
    """Another result of the same job on the same commit."""
    BACKEND = "backend"
    """Other results of the backend at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    kind: EvidenceKind
    text: str
    sha: str | None = None
    number: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    kind: VerdictKind
    confidence: Confidence
    sentence: str
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobVerdict:
    verdict: Verdict
    by_fingerprint: tuple[tuple[str, VerdictKind, Confidence], ...] = ()
    """The verdicts of the job's fingerprints, for its failed tests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictPolicy:
    """The thresholds of the rules; docs/verdicts.md says what each is for."""

    window: timedelta = timedelta(days=14)
    """How far back history counts."""
    passes_for_new: int = 3
    """Passing results without the change, of the base or of pull requests, that make a failure new."""
    pulls_for_pre_existing: int = 3
    authors_for_pre_existing: int = 2
    flips_for_flaky: int = 2
    """Separate short failures of the base, or re-runs elsewhere that passed, that make a failure flaky."""
    fleet_jobs: int = 4
    fleet_heads: int = 3
    fleet_share: float = 0.8
    """A fleet is sick when this share of its results fails, of so many jobs on so many unrelated commits."""


_MOST_EVIDENCE = 5
_ORDER = (
    VerdictKind.NEW,
    VerdictKind.UNKNOWN,
    VerdictKind.PRE_EXISTING,
    VerdictKind.FLAKY,
)
_CHANCE = 0.05
"""A row of failures that chance alone makes less often than this is not flakiness."""
_LEAST_RATE = 0.01
_SHORT_ROW = 2
"""So many failures in a row, between two passes, may be chance."""
_MOST_PASSES = 4
"""So many passes on other pull requests for each failing one: they may have branched off before it began."""
_CONFIDENCES = (Confidence.LOW, Confidence.MEDIUM, Confidence.HIGH)


def judge_failure(
    failure: RecordedFailure, history: JobHistory, hour: BackendHour, policy: VerdictPolicy
) -> JobVerdict:
    if (verdict := _judge_end(failure)) is not None:
        return JobVerdict(verdict=verdict)
    units = [
        (fingerprint, _judge_unit(failure, fingerprint, history, policy))
        for fingerprint in sorted(failure.fingerprints) or (None,)
    ]
    worst = _follow_worst([verdict for _, verdict in units])
    if worst.kind is not VerdictKind.FLAKY or failure.passed_at is None:
        sick = _judge_fleet(failure, worst, history, hour, policy)
        if sick is not None:
            units = [(fingerprint, sick) for fingerprint, _ in units]
            worst = sick
    return JobVerdict(
        verdict=worst,
        by_fingerprint=tuple(
            (fingerprint, verdict.kind, verdict.confidence)
            for fingerprint, verdict in units
            if fingerprint is not None
        ),
    )


def _judge_end(failure: RecordedFailure) -> Verdict | None:
    """The verdict of a job that did not come to a result of its own."""
    if failure.ended is FailedAs.FAILURE:
        return None
    if failure.passed_at is not None:
        return Verdict(
            kind=VerdictKind.INFRASTRUCTURE,
            confidence=Confidence.HIGH,
            sentence="It ended without a result, and a re-run of the same commit passed.",
            evidence=(_rerun_evidence(),),
        )
    if failure.ended is FailedAs.SILENT:
        return Verdict(
            kind=VerdictKind.MISSING,
            confidence=Confidence.MEDIUM,
            sentence="It started and never reported its end.",
        )
    words = "timed out" if failure.ended is FailedAs.TIMED_OUT else "was cancelled"
    return Verdict(
        kind=VerdictKind.INFRASTRUCTURE,
        confidence=Confidence.MEDIUM,
        sentence=f"It {words}: there is no result about the change.",
    )


def _follow_worst(verdicts: Sequence[Verdict]) -> Verdict:
    return min(
        verdicts,
        key=lambda verdict: (_ORDER.index(verdict.kind), -_CONFIDENCES.index(verdict.confidence)),
    )


# One fingerprint


@dataclass(frozen=True, slots=True)
class _Sighting:
    """One result of the job that shows the failure, or shows that it is absent, at a place in the order of the base."""

    position: float
    at: datetime
    fails: bool
    base: BaseResult | None = None
    pull: RecordedFailure | None = None

    @property
    def order(self) -> tuple[float, datetime]:
        return self.position, self.at


@dataclass(frozen=True, slots=True, kw_only=True)
class _Course:
    """The failure in the order of the base's commits, without the judged change: where it came and where it went.

    A breakage of the base is one episode: it came with a commit and went with one. A failure by chance comes and goes.
    """

    before: tuple[_Sighting, ...]
    """At or before the commit that the head was built on."""
    after: tuple[_Sighting, ...]

    @property
    def sightings(self) -> tuple[_Sighting, ...]:
        return self.before + self.after

    @property
    def row_before(self) -> list[_Sighting]:
        """The failing sightings right before the head, the nearest first."""
        return list(takewhile(lambda sighting: sighting.fails, reversed(self.before)))

    @property
    def row_after(self) -> list[_Sighting]:
        return list(takewhile(lambda sighting: sighting.fails, self.after))

    @property
    def row(self) -> list[_Sighting]:
        """The episode that the head is in."""
        return [*self.row_before, *self.row_after]

    @property
    def chances(self) -> list[_Sighting]:
        """The first sighting of each short row of failures that came and went, without the head's own row.

        A longer row is a breakage that was fixed, and a row that has not ended says nothing about chance.
        """
        own, starts, row = {id(sighting) for sighting in self.row}, [], list[_Sighting]()
        for sighting in self.sightings:
            if sighting.fails:
                row.append(sighting)
                continue
            if 0 < len(row) <= _SHORT_ROW and id(row[0]) not in own:
                starts.append(row[0])
            row = []
        return starts

    @property
    def base_passes(self) -> int:
        return sum(not sighting.fails and sighting.base is not None for sighting in self.sightings)

    @property
    def last_clean(self) -> BaseResult | None:
        clean = (one.base for one in reversed(self.before) if one.base is not None and not one.fails)
        return next(clean, None)

    @property
    def fail_rate(self) -> float:
        """How often it fails outside of the head's own episode."""
        others = len(self.sightings) - len(self.row)
        failing = sum(sighting.fails for sighting in self.sightings) - len(self.row)
        return max(failing / others if others else 0.0, _LEAST_RATE)


def _trace_course(failure: RecordedFailure, fingerprint: str | None, history: JobHistory) -> _Course:
    sightings = [
        _Sighting(_position(result, history.base), result.at, state is BaseState.FAILS, base=result)
        for result in history.base
        if (state := state_of(result, fingerprint)) is not BaseState.UNCLEAR and not _is_own(result, failure)
    ]
    if not failure.on_base:
        sightings += _pull_sightings(failure, fingerprint, history)
    if failure.landed:
        # What fails alike after the change has landed is its own doing.
        sightings = [one for one in sightings if one.at <= failure.at or not one.fails]
    sightings.sort(key=lambda sighting: sighting.order)
    own = (failure.position, failure.at) if failure.position is not None else None
    is_before = [
        sighting.order <= own if own is not None else sighting.at <= failure.at for sighting in sightings
    ]
    if not failure.on_base and own is not None:
        # Every result of the base at that very commit counts, whenever it came.
        is_before = [
            before or (sighting.base is not None and sighting.position <= own[0])
            for before, sighting in zip(is_before, sightings, strict=True)
        ]
    return _Course(
        before=tuple(one for one, before in zip(sightings, is_before, strict=True) if before),
        after=tuple(one for one, before in zip(sightings, is_before, strict=True) if not before),
    )


def _pull_sightings(
    failure: RecordedFailure, fingerprint: str | None, history: JobHistory
) -> list[_Sighting]:
    """Results on unrelated pull requests whose place in the order is known; where the base is not tested, they are all."""
    failing = {
        other.head_sha: _Sighting(other.position, other.at, fails=True, pull=other)
        for other in unrelated(history.failures, failure)
        if other.position is not None
        and other.exact
        and other.passed_at is None
        and _is_same(other, fingerprint, failure)
    }
    passing = [
        _Sighting(passed.position, passed.at, fails=False)
        for passed in history.pull_passes
        if passed.number != failure.number and passed.head_sha not in failing
    ]
    return [*failing.values(), *passing]


def _is_own(result: BaseResult, failure: RecordedFailure) -> bool:
    return failure.on_base and result.sha == failure.head_sha and result.at == failure.at


def _position(result: BaseResult, base: Sequence[BaseResult]) -> float:
    """A result of an unknown commit is placed by its time, right after the results that were there before it."""
    if result.position is not None:
        return result.position
    earlier = [other.position for other in base if other.position is not None and other.at <= result.at]
    return max(earlier, default=0) + 0.5


def _judge_unit(
    failure: RecordedFailure, fingerprint: str | None, history: JobHistory, policy: VerdictPolicy
) -> Verdict:
    course = _trace_course(failure, fingerprint, history)
    same = [other for other in history.failures if _is_same(other, fingerprint, failure)]
    flips = _flips_elsewhere(same, failure)
    if failure.passed_at is not None:
        return _flaky_on_this_commit(course, flips, fingerprint, policy)
    return (
        _judge_row(failure, course, flips, fingerprint, policy)
        or _judge_known_flake(course, flips, fingerprint, policy)
        or _judge_others(failure, course, same, history, policy)
        or _judge_new(failure, course, history, fingerprint, policy)
    )


def _is_same(other: RecordedFailure, fingerprint: str | None, failure: RecordedFailure) -> bool:
    if other.failure_id == failure.failure_id or other.infrastructure or other.ended is not FailedAs.FAILURE:
        return False
    return not other.fingerprints if fingerprint is None else fingerprint in other.fingerprints


def _flips_elsewhere(same: Iterable[RecordedFailure], failure: RecordedFailure) -> list[RecordedFailure]:
    """The same failure on other commits that passed when they were run again, one for each commit."""
    by_head = {
        other.head_sha: other
        for other in same
        if other.passed_at is not None
        and other.head_sha != failure.head_sha
        and (other.number is None or other.number != failure.number)
    }
    return list(by_head.values())


def _flaky_on_this_commit(
    course: _Course, flips: list[RecordedFailure], fingerprint: str | None, policy: VerdictPolicy
) -> Verdict:
    times = len(flips) + len(course.chances)
    sure = fingerprint is not None and times >= policy.flips_for_flaky
    elsewhere = f", and it came and went {times} times elsewhere" if sure else ""
    return Verdict(
        kind=VerdictKind.FLAKY,
        confidence=Confidence.HIGH if sure else Confidence.MEDIUM,
        sentence=f"The same commit passed when it was run again{elsewhere}.",
        evidence=(_rerun_evidence(), *_flip_evidence(flips, course.chances))[:_MOST_EVIDENCE],
    )


def _judge_row(
    failure: RecordedFailure,
    course: _Course,
    flips: list[RecordedFailure],
    fingerprint: str | None,
    policy: VerdictPolicy,
) -> Verdict | None:
    """It fails alike around the commit that the head was built on: pre-existing, unless it fails there by chance."""
    row = course.row
    if not row:
        return None
    # The head's own episode may be chance too, where there are others and it is no longer than chance makes it.
    others = len(flips) + len(course.chances)
    is_chance = others >= 1 and course.fail_rate ** len(row) > _CHANCE
    if is_chance:
        return Verdict(
            kind=VerdictKind.FLAKY,
            confidence=Confidence.HIGH
            if others >= policy.flips_for_flaky and fingerprint is not None
            else Confidence.MEDIUM,
            sentence=f"The same failure came and went {others + 1} times without a change of code in the window.",
            evidence=_flip_evidence(flips, course.chances)[:_MOST_EVIDENCE],
        )
    on_base = [sighting for sighting in row if sighting.base is not None]
    if not course.row_before and on_base and not _may_be_gap(failure, course):
        return None
    base_before = [sighting for sighting in course.row_before if sighting.base is not None]
    surrounded = bool(base_before) and len(on_base) > 1
    sure = failure.exact and surrounded and fingerprint is not None and not others
    return Verdict(
        kind=VerdictKind.PRE_EXISTING,
        confidence=Confidence.HIGH if sure else Confidence.MEDIUM,
        sentence=_describe_row(failure, row, base_before),
        evidence=tuple(_sighting_evidence(sighting) for sighting in row[:_MOST_EVIDENCE]),
    )


def _may_be_gap(failure: RecordedFailure, course: _Course) -> bool:
    """Whether the failure may have landed between the last clean commit and the one that the head was built on."""
    last = course.before[-1] if course.before else None
    return not failure.on_base and (
        last is None or failure.position is None or last.position < failure.position
    )


def _describe_row(
    failure: RecordedFailure, row: Sequence[_Sighting], base_before: Sequence[_Sighting]
) -> str:
    pulls = len({sighting.pull.number for sighting in row if sighting.pull is not None})
    beside = f"{pulls} other pull request{'s' * (pulls > 1)} fail{'s' * (pulls == 1)} alike" if pulls else ""
    if base_before:
        times = f"{len(base_before)} times in a row" if len(base_before) > 1 else "once"
        where = "at the commit that this was built on" if failure.exact else "before this"
        return f"The base failed alike {times}, last {where}{f'; {beside}' if beside else ''}."
    if any(sighting.base is not None for sighting in row):
        return "The base fails alike at the next commit that was tested after the one that this was built on."
    return f"{beside}, built on the same commits of the base."


def _judge_known_flake(
    course: _Course, flips: list[RecordedFailure], fingerprint: str | None, policy: VerdictPolicy
) -> Verdict | None:
    """It came and went elsewhere, and is absent around the head's own commit."""
    if fingerprint is None:
        return None  # without details a failure of a flaky job may as well be another one
    times = len(flips) + len(course.chances)
    if not times:
        return None
    sure = times > policy.flips_for_flaky or len(flips) >= policy.flips_for_flaky
    return Verdict(
        kind=VerdictKind.FLAKY,
        confidence=Confidence.HIGH if sure else Confidence.MEDIUM if times > 1 else Confidence.LOW,
        sentence=f"The same failure came and went {times} time{'s' * (times > 1)} elsewhere, without a change of code.",
        evidence=_flip_evidence(flips, course.chances)[:_MOST_EVIDENCE],
    )


def _judge_others(
    failure: RecordedFailure,
    course: _Course,
    same: list[RecordedFailure],
    history: JobHistory,
    policy: VerdictPolicy,
) -> Verdict | None:
    """The same failure on pull requests whose place in the order is unknown: their number and the passes decide."""
    others = [other for other in unrelated(same, failure) if other.position is None or not other.exact]
    by_pull = {other.number: other for other in others}
    if not by_pull or failure.landed:
        return None
    began_at = min(other.at for other in others)
    passes = history.passes_since(began_at)
    base_passed_later = any(
        one.base is not None and not one.fails and one.at >= began_at for one in course.sightings
    )
    authors = {other.author for other in others if other.trusted}
    evidence = tuple(_pull_evidence(other) for other in by_pull.values())[:_MOST_EVIDENCE]
    enough = len(by_pull) >= policy.pulls_for_pre_existing and len(authors) >= policy.authors_for_pre_existing
    if enough and not base_passed_later and passes <= _MOST_PASSES * len(by_pull):
        return Verdict(
            kind=VerdictKind.PRE_EXISTING,
            confidence=Confidence.MEDIUM,
            sentence=f"{len(by_pull)} other pull requests fail alike since {began_at:%d %b %H:%M} UTC.",
            evidence=evidence,
        )
    is_flaky = len(by_pull) >= policy.flips_for_flaky and (passes > len(by_pull) or base_passed_later)
    seen = f"{len(by_pull)} unrelated pull request{'s' * (len(by_pull) > 1)} failed alike"
    return Verdict(
        kind=VerdictKind.FLAKY if is_flaky else VerdictKind.UNKNOWN,
        confidence=Confidence.MEDIUM if is_flaky else Confidence.LOW,
        sentence=f"{seen}, and others passed in between."
        if is_flaky
        else f"{seen}: more than this change fails, and nothing says since when.",
        evidence=evidence,
    )


def _judge_new(
    failure: RecordedFailure,
    course: _Course,
    history: JobHistory,
    fingerprint: str | None,
    policy: VerdictPolicy,
) -> Verdict:
    passes, on_pulls = course.base_passes, history.pulls_passed
    clean = course.last_clean
    evidence = (_base_evidence(clean, fails=False),) if clean else ()
    if passes + on_pulls < policy.passes_for_new:
        return Verdict(
            kind=VerdictKind.UNKNOWN,
            confidence=Confidence.LOW,
            sentence=f"Too little history: {passes} passing results of the base and {on_pulls} on pull requests.",
            evidence=evidence,
        )
    repeated = _fails_again(failure, history, fingerprint)
    flaked = 0 if fingerprint is not None or repeated else _count_unexplained(course, history)
    if flaked:
        return Verdict(
            kind=VerdictKind.FLAKY if flaked >= policy.flips_for_flaky else VerdictKind.UNKNOWN,
            confidence=Confidence.LOW,
            sentence=f"The job failed without details, and it came and went {flaked} time{'s' * (flaked > 1)} before: "
            "run it again to know.",
            evidence=evidence,
        )
    enough_base = passes >= policy.passes_for_new
    seen = (
        f"The base passed {passes} times in the window"
        if enough_base
        else f"{passes + on_pulls} results of the base and on pull requests passed in the window"
    )
    return Verdict(
        kind=VerdictKind.NEW,
        confidence=Confidence.HIGH if enough_base and repeated else Confidence.MEDIUM,
        sentence=f"{seen} and this failure is not known{', and a re-run failed again' if repeated else ''}.",
        evidence=(*((_rerun_evidence(),) if repeated else ()), *evidence),
    )


def _fails_again(failure: RecordedFailure, history: JobHistory, fingerprint: str | None) -> bool:
    """Whether another run or attempt of the same commit failed alike."""
    return any(
        _is_same(other, fingerprint, failure)
        and other.head_sha == failure.head_sha
        and (other.run_id, other.attempt) != (failure.run_id, failure.attempt)
        for other in history.failures
    )


def _count_unexplained(course: _Course, history: JobHistory) -> int:
    """How often the job failed without details elsewhere, and passed again."""
    flips = {
        other.head_sha for other in history.failures if other.passed_at is not None and not other.fingerprints
    }
    return len(course.chances) + len(flips)


# The backend as a whole


def _judge_fleet(
    failure: RecordedFailure,
    verdict: Verdict,
    history: JobHistory,
    hour: BackendHour,
    policy: VerdictPolicy,
) -> Verdict | None:
    """Many jobs fail at once on unrelated commits, in few ways: the machines are sick, whatever the change is.

    A change that breaks everything on its own commit is not excused by that: other commits decide. Nor is a base branch
    that was broken by a commit: its results before and after say so.
    """
    near = [other for other in hour.failed if abs(other.at - failure.at) <= FLEET_SPAN]
    heads = _count_unrelated_heads(near)
    if len(near) < policy.fleet_jobs or heads < policy.fleet_heads:
        return None
    if len(near) < policy.fleet_share * (len(near) + hour.passed):
        return None
    ways = Counter(_way(other) for other in near)
    if len(ways) > max(2, len(near) // 5) or not _is_common(failure, near):
        return None
    if is_contradicted(failure, verdict, history):
        return None
    own = sum(other.number == failure.number and other.head_sha == failure.head_sha for other in near)
    return Verdict(
        kind=VerdictKind.INFRASTRUCTURE,
        confidence=Confidence.HIGH
        if len(near) - own >= policy.fleet_jobs and _is_known_good(failure, history)
        else Confidence.MEDIUM,
        sentence=f"{len(near)} jobs of this backend failed within the hour on {heads} unrelated commits, "
        f"in {len(ways)} way{'s' * (len(ways) > 1)}; {hour.passed or 'none'} passed.",
        evidence=(
            Evidence(
                kind=EvidenceKind.BACKEND,
                text=f"{len(near)} failures on {heads} commits",
                sha=failure.head_sha,
            ),
            *(_pull_evidence(other) for other in near if other.number not in (None, failure.number)),
        )[:_MOST_EVIDENCE],
    )


def _count_unrelated_heads(failures: Iterable[RecordedFailure]) -> int:
    """Count pull requests and pushes; a stack of pull requests is one."""
    heads: list[RecordedFailure] = []
    for failure in failures:
        if not any(_is_same_head(failure, head) for head in heads):
            heads.append(failure)
    return len(heads)


def _is_same_head(one: RecordedFailure, other: RecordedFailure) -> bool:
    if one.number is None or other.number is None:
        return one.head_sha == other.head_sha
    return is_stacked(one, other)


def _way(failure: RecordedFailure) -> str:
    return min(failure.fingerprints, default=failure.ended.value)


def _is_common(failure: RecordedFailure, near: Sequence[RecordedFailure]) -> bool:
    """Whether other commits failed in the same way, or without details as this one did."""
    return any(
        other.head_sha != failure.head_sha
        and (
            bool(other.fingerprints & failure.fingerprints)
            or (not other.fingerprints and not failure.fingerprints)
        )
        for other in near
    )


def _is_known_good(failure: RecordedFailure, history: JobHistory) -> bool:
    """Whether the job passed on a commit that contains all of the base that the failing one does."""
    if failure.position is None:
        return False
    passed = [result.position for result in history.base if result.passed and result.position is not None]
    passed += [one.position for one in history.pull_passes]
    return any(position >= failure.position for position in passed)


def is_contradicted(failure: RecordedFailure, verdict: Verdict, history: JobHistory) -> bool:
    """Whether a verdict without the backend's hour shows that its machines were not sick: the base fails at other times."""
    return verdict.kind is VerdictKind.PRE_EXISTING and not _base_failed_only_then(failure, history)


def _base_failed_only_then(failure: RecordedFailure, history: JobHistory) -> bool:
    """Whether every failing result of the base is from the same hour."""
    return all(result.passed or abs(result.at - failure.at) <= 2 * FLEET_SPAN for result in history.base)


# Evidence


def _rerun_evidence() -> Evidence:
    return Evidence(kind=EvidenceKind.RERUN, text="another run of the same commit")


def _base_evidence(result: BaseResult, *, fails: bool) -> Evidence:
    what = "nightly run" if result.nightly else "base"
    words = "failed alike" if fails else "passed"
    return Evidence(
        kind=EvidenceKind.BASE, text=f"{what} {words}, {result.at:%d %b %H:%M} UTC", sha=result.sha
    )


def _sighting_evidence(sighting: _Sighting) -> Evidence:
    if sighting.base is not None:
        return _base_evidence(sighting.base, fails=True)
    if sighting.pull is not None:
        return _pull_evidence(sighting.pull)
    raise ValueError("a failing sighting is of the base or of a pull request")


def _pull_evidence(other: RecordedFailure) -> Evidence:
    return Evidence(
        kind=EvidenceKind.PULL,
        text=f"#{other.number} failed alike, {other.at:%d %b %H:%M} UTC",
        sha=other.head_sha,
        number=other.number,
    )


def _flip_evidence(flips: Sequence[RecordedFailure], chances: Sequence[_Sighting]) -> tuple[Evidence, ...]:
    return (
        *(
            Evidence(
                kind=EvidenceKind.PULL if flip.number else EvidenceKind.BASE,
                text=f"failed and passed on the same commit, {flip.at:%d %b %H:%M} UTC",
                sha=flip.head_sha,
                number=flip.number,
            )
            for flip in flips
        ),
        *map(_sighting_evidence, chances),
    )
