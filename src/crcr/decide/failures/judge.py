"""The verdict on a failed job: is the change to blame? A pure function from the failure and recorded history.

Each fingerprint of the job (each failed test) is judged by itself against the base branch at the commit that the head was
built on, against the same failure elsewhere, and against re-runs of the same commit; the job follows its worst fingerprint:
it is `new` if any of its tests is new. What history cannot tell is `unknown`. Every verdict carries its evidence.

A verdict with high confidence may excuse a failure where an upstream allows it, so each rule says what it takes to be sure.
`docs/verdicts.md` explains the rules with examples.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from crcr.decide.failures.course import (
    Course,
    find_last_before,
    is_same_failure,
    trace_course,
)
from crcr.decide.failures.evidence import (
    MOST_EVIDENCE,
    cite_base,
    cite_chances,
    cite_pull,
    cite_rerun,
    cite_step,
)
from crcr.decide.failures.history import (
    BackendHour,
    BaseState,
    FailedAs,
    JobHistory,
    RecordedFailure,
    state_of,
    unrelated,
)
from crcr.decide.failures.sick_fleet import judge_fleet
from crcr.decide.failures.verdict import Confidence, JobVerdict, Verdict, VerdictKind, VerdictPolicy

_ORDER = (VerdictKind.NEW, VerdictKind.UNKNOWN, VerdictKind.PRE_EXISTING, VerdictKind.FLAKY)
_NOT_EXPLAINED = frozenset({VerdictKind.NEW, VerdictKind.UNKNOWN})
_CHANCE = 0.05
"""A row of failures that chance alone makes less often than this is not flakiness."""
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
    worst = _follow_worst([verdict for _, verdict in units], is_whole=not failure.may_be_cut)
    if worst.kind is not VerdictKind.FLAKY or failure.passed_at is None:
        sick = judge_fleet(failure, worst, history, hour, policy)
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
            evidence=(cite_rerun(),),
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


def _follow_worst(verdicts: Sequence[Verdict], *, is_whole: bool) -> Verdict:
    """The job's verdict: one new test makes it new as surely as that test is; it is explained as surely as all tests are.

    An upstream may excuse one kind and not the other, so tests of two kinds are never a sure one; nor is a part of the tests.
    """
    kind = min((verdict.kind for verdict in verdicts), key=_ORDER.index)
    of_kind = [verdict for verdict in verdicts if verdict.kind is kind]
    if kind in _NOT_EXPLAINED:
        return max(of_kind, key=_how_sure)
    limit = Confidence.HIGH if is_whole and len(of_kind) == len(verdicts) else Confidence.MEDIUM
    least = min((limit, *(verdict.confidence for verdict in verdicts)), key=_CONFIDENCES.index)
    return replace(min(of_kind, key=_how_sure), confidence=least)


def _how_sure(verdict: Verdict) -> int:
    return _CONFIDENCES.index(verdict.confidence)


def _judge_unit(
    failure: RecordedFailure, fingerprint: str | None, history: JobHistory, policy: VerdictPolicy
) -> Verdict:
    course = trace_course(failure, fingerprint, history)
    same = [other for other in history.failures if is_same_failure(other, fingerprint, failure)]
    flips = _flips_elsewhere(same, failure)
    sure = fingerprint is not None and _is_surely_flaky(failure, course, flips, same, policy)
    if failure.passed_at is not None:
        return _flaky_on_this_commit(course, flips, policy, sure=sure)
    return (
        _judge_row(failure, course, flips, fingerprint, flaky=sure)
        or _judge_known_flake(course, flips, fingerprint, sure=sure)
        or _judge_others(failure, course, same, history, policy)
        or _judge_new(failure, course, same, history, fingerprint=fingerprint, policy=policy)
    )


def _flips_elsewhere(same: Iterable[RecordedFailure], failure: RecordedFailure) -> list[RecordedFailure]:
    """The same failure on other commits that passed when they were run again, one for each commit; the base's first."""
    passed = [other for other in same if other.passed_at is not None and other.head_sha != failure.head_sha]
    on_base = [other for other in passed if other.on_base and other.base_ref == failure.base_ref]
    elsewhere = [*on_base, *unrelated(passed, failure)]
    return list({other.head_sha: other for other in elsewhere}.values())


def _is_surely_flaky(
    failure: RecordedFailure,
    course: Course,
    flips: Iterable[RecordedFailure],
    same: Iterable[RecordedFailure],
    policy: VerdictPolicy,
) -> bool:
    """Whether the base shows, up to the head's place, that it comes and goes, and the change fails in it only once.

    A pull request shows what its author wants it to show. A change that landed and was reverted comes and goes too, but no
    commit of it both fails and passes. And what fails each time it is run is not a failure by chance.
    """
    place = failure.position if failure.exact else None
    if place is None:
        return False
    on_base = [flip for flip in flips if flip.on_branch and flip.workflow == failure.workflow]
    flipped = sum(flip.position is not None and flip.position <= place for flip in on_base)
    times = flipped + sum(step.is_sure and step.position <= place for step in course.chances)
    return flipped > 0 and times >= policy.flips_for_flaky and not _fails_repeatedly(failure, same)


def _fails_repeatedly(failure: RecordedFailure, same: Iterable[RecordedFailure]) -> bool:
    """Whether the change failed alike before or since, in another run or on another head, and has not passed there."""
    return failure.passed_at is None and any(
        other.passed_at is None
        and (
            other.head_sha == failure.head_sha
            or (failure.number is not None and other.number == failure.number)
        )
        for other in same
    )


def _flaky_on_this_commit(
    course: Course, flips: list[RecordedFailure], policy: VerdictPolicy, *, sure: bool
) -> Verdict:
    times = len(flips) + len(course.chances)
    elsewhere = f", and it came and went {times:,} times elsewhere" if times >= policy.flips_for_flaky else ""
    return Verdict(
        kind=VerdictKind.FLAKY,
        confidence=Confidence.HIGH if sure else Confidence.MEDIUM,
        sentence=f"The same commit passed when it was run again{elsewhere}.",
        evidence=(cite_rerun(), *cite_chances(flips, course.chances))[:MOST_EVIDENCE],
    )


def _judge_row(
    failure: RecordedFailure,
    course: Course,
    flips: list[RecordedFailure],
    fingerprint: str | None,
    *,
    flaky: bool,
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
            confidence=Confidence.HIGH if flaky else Confidence.MEDIUM,
            sentence=f"The same failure came and went {others + 1:,} times without a change of code in the window.",
            evidence=cite_chances(flips, course.chances)[:MOST_EVIDENCE],
        )
    on_base = [step for step in row if step.base is not None]
    if not course.row_before and on_base and not _may_be_gap(failure, course):
        return None
    at_place = _fails_at_place(failure, course)
    sure = at_place and sum(step.is_sure for step in row) > 1 and fingerprint is not None and not others
    cited = sorted(row, key=lambda step: (not step.is_sure, step.base is None))
    return Verdict(
        kind=VerdictKind.PRE_EXISTING,
        confidence=Confidence.HIGH if sure else Confidence.MEDIUM,
        sentence=_describe_row(course, at_place=at_place),
        evidence=tuple(cite_step(step) for step in cited[:MOST_EVIDENCE]),
    )


def _fails_at_place(failure: RecordedFailure, course: Course) -> bool:
    """Whether the base fails at the very commit that the head was built on: after another one, it may have been fixed."""
    at_place = [step for step in course.steps if step.is_sure and step.position == failure.position]
    return failure.exact and bool(at_place) and all(step.fails for step in at_place)


def _may_be_gap(failure: RecordedFailure, course: Course) -> bool:
    """Whether the failure may have landed between the last clean commit and the one that the head was built on."""
    last = course.before[-1] if course.before else None
    return not failure.on_base and (
        last is None or failure.position is None or last.position < failure.position
    )


def _describe_row(course: Course, *, at_place: bool) -> str:
    row = course.row
    base_before = [step for step in course.row_before if step.base is not None]
    pulls = len({step.pull.number for step in row if step.pull is not None})
    beside = (
        f"{pulls:,} other pull request{'s' * (pulls > 1)} fail{'s' * (pulls == 1)} alike" if pulls else ""
    )
    if base_before:
        times = f"{len(base_before):,} times in a row" if len(base_before) > 1 else "once"
        where = "at the commit that this was built on" if at_place else "before this"
        return f"The base failed alike {times}, last {where}{f'; {beside}' if beside else ''}."
    if any(step.base is not None for step in row):
        return "The base fails alike at the next commit that was tested after the one that this was built on."
    return f"{beside}, built on the same commits of the base."


def _judge_known_flake(
    course: Course, flips: list[RecordedFailure], fingerprint: str | None, *, sure: bool
) -> Verdict | None:
    """It came and went elsewhere, and is absent around the head's own commit."""
    if fingerprint is None:
        return None  # without details a failure of a flaky job may as well be another one
    times = len(flips) + len(course.chances)
    if not times:
        return None
    return Verdict(
        kind=VerdictKind.FLAKY,
        confidence=Confidence.HIGH if sure else Confidence.MEDIUM if times > 1 else Confidence.LOW,
        sentence=f"The same failure came and went {times:,} time{'s' * (times > 1)} elsewhere, without a change of code.",
        evidence=cite_chances(flips, course.chances)[:MOST_EVIDENCE],
    )


def _judge_others(
    failure: RecordedFailure,
    course: Course,
    same: list[RecordedFailure],
    history: JobHistory,
    policy: VerdictPolicy,
) -> Verdict | None:
    """The same failure on pull requests whose place in the order is unknown: their number and the passes decide."""
    others = [other for other in unrelated(same, failure) if other.position is None or not other.exact]
    by_pull = {other.number: other for other in others}
    if not by_pull or failure.landed:
        return None
    if not failure.fingerprints and _count_unexplained(course, history) >= policy.flips_for_flaky:
        return None  # the job comes and goes on the base itself
    began_at = min(other.at for other in others)
    passes = history.passes_since(began_at)
    base_passed_later = any(
        one.base is not None and not one.fails and one.at >= began_at for one in course.steps
    )
    authors = {other.author for other in others if other.trusted}
    evidence = tuple(cite_pull(other) for other in by_pull.values())[:MOST_EVIDENCE]
    enough = len(by_pull) >= policy.pulls_for_pre_existing and len(authors) >= policy.authors_for_pre_existing
    # The first to fail may be the one that the others contain: nothing says whether they are stacked on it.
    is_first = all(other.at >= failure.at for other in others)
    if enough and not is_first and not base_passed_later and passes <= _MOST_PASSES * len(by_pull):
        return Verdict(
            kind=VerdictKind.PRE_EXISTING,
            confidence=Confidence.MEDIUM,
            sentence=f"{len(by_pull):,} other pull requests fail alike since {began_at:%d %b %H:%M} UTC.",
            evidence=evidence,
        )
    seen = f"{len(by_pull):,} other pull request{'s' * (len(by_pull) > 1)} failed alike"
    return Verdict(
        kind=VerdictKind.UNKNOWN,
        confidence=Confidence.LOW,
        sentence=f"{seen}, and nothing says on which commits of the base: they may contain this change.",
        evidence=evidence,
    )


def _judge_new(
    failure: RecordedFailure,
    course: Course,
    same: list[RecordedFailure],
    history: JobHistory,
    *,
    fingerprint: str | None,
    policy: VerdictPolicy,
) -> Verdict:
    passes, on_pulls = course.base_passes, history.pulls_passed
    clean = course.last_clean
    evidence = (cite_base(clean, fails=False),) if clean else ()
    if passes + on_pulls < policy.passes_for_new:
        return Verdict(
            kind=VerdictKind.UNKNOWN,
            confidence=Confidence.LOW,
            sentence=f"Too little history: {passes:,} passing results of the base and {on_pulls:,} on pull requests.",
            evidence=evidence,
        )
    repeated = _fails_again(failure, history, fingerprint)
    flaked = 0 if fingerprint is not None or repeated else _count_unexplained(course, history)
    doubt = _may_be_on_base(failure, fingerprint, course, same, history)
    if doubt is not None and flaked < policy.flips_for_flaky:
        return Verdict(kind=VerdictKind.UNKNOWN, confidence=Confidence.LOW, sentence=doubt, evidence=evidence)
    if flaked:
        return Verdict(
            kind=VerdictKind.FLAKY if flaked >= policy.flips_for_flaky else VerdictKind.UNKNOWN,
            confidence=Confidence.LOW,
            sentence=f"The job failed without details, and it came and went {flaked:,} time{'s' * (flaked > 1)} before: "
            "run it again to know.",
            evidence=evidence,
        )
    enough_base = passes >= policy.passes_for_new
    seen = (
        f"The base passed {passes:,} times in the window"
        if enough_base
        else f"{passes + on_pulls:,} results of the base and on pull requests passed in the window"
    )
    return Verdict(
        kind=VerdictKind.NEW,
        confidence=Confidence.HIGH if enough_base and repeated else Confidence.MEDIUM,
        sentence=f"{seen} and this failure is not known{', and a re-run failed again' if repeated else ''}.",
        evidence=(*((cite_rerun(),) if repeated else ()), *evidence),
    )


def _may_be_on_base(
    failure: RecordedFailure,
    fingerprint: str | None,
    course: Course,
    same: Iterable[RecordedFailure],
    history: JobHistory,
) -> str | None:
    """Return why the head may contain a breakage of the base that the course does not show at its place."""
    last = find_last_before(failure, history)
    if last is not None and last.fingerprints and state_of(last, fingerprint) is BaseState.UNCLEAR:
        return "The base failed too where this was built, and what failed there cannot be compared."
    if not failure.exact and any(step.fails and step.base is not None for step in course.before):
        return "The base failed alike before, and nothing says on which of its commits this was built."
    first_read = min((result.at for result in history.base), default=failure.at)
    unread = (other for other in same if other.on_branch and other.base_ref == failure.base_ref)
    if any(other.passed_at is None and other.at < first_read for other in unread):
        return "The base failed alike earlier, at a time of which there are too many results to look through."
    return None


def _fails_again(failure: RecordedFailure, history: JobHistory, fingerprint: str | None) -> bool:
    """Whether another run or attempt of the same commit failed alike."""
    return any(
        is_same_failure(other, fingerprint, failure)
        and other.head_sha == failure.head_sha
        and (other.run_id, other.attempt) != (failure.run_id, failure.attempt)
        for other in history.failures
    )


def _count_unexplained(course: Course, history: JobHistory) -> int:
    """How often the job failed without details elsewhere, and passed again."""
    flips = {
        other.head_sha for other in history.failures if other.passed_at is not None and not other.fingerprints
    }
    return len(course.chances) + len(flips)
