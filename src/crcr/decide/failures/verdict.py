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
from datetime import timedelta
from enum import StrEnum

from crcr.decide.failures.history import (
    FLEET_SPAN,
    BackendHour,
    BaseResult,
    BaseState,
    FailedAs,
    JobHistory,
    RecordedFailure,
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
    """Passing results of the base that make a failure elsewhere new."""
    pulls_for_new: int = 5
    """Passing results on pull requests that do the same for a backend without results of the base."""
    pulls_for_pre_existing: int = 3
    authors_for_pre_existing: int = 2
    flips_for_flaky: int = 2
    """Separate short failures of the base, or re-runs elsewhere that passed, that make a failure flaky."""
    fleet_jobs: int = 4
    fleet_heads: int = 2
    fleet_share: float = 0.8
    """A fleet is sick when this share of its results fails, of so many jobs on so many unrelated commits."""


_MOST_EVIDENCE = 5
_SHORT_SPELL = 2
"""So many failing results of the base in a row, between two passes, may be chance."""
_ORDER = (
    VerdictKind.NEW,
    VerdictKind.UNKNOWN,
    VerdictKind.PRE_EXISTING,
    VerdictKind.FLAKY,
)
_CHANCE = 0.05
"""A row of failures that chance alone makes less often than this is not flakiness."""
_LEAST_RATE = 0.01
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _BaseView:
    """The base branch as one failure sees it, before and after the commit that its head was built on."""

    before: tuple[tuple[BaseResult, BaseState], ...]
    """Decided results at or before that commit, in the order of commits."""
    after: tuple[tuple[BaseResult, BaseState], ...]

    @property
    def all(self) -> tuple[tuple[BaseResult, BaseState], ...]:
        return self.before + self.after

    @property
    def failing_in_a_row(self) -> list[BaseResult]:
        """The failing results right before the head's commit."""
        row: list[BaseResult] = []
        for result, state in reversed(self.before):
            if state is BaseState.CLEAN:
                break
            row.append(result)
        return row

    @property
    def last_clean(self) -> BaseResult | None:
        return next((result for result, state in reversed(self.before) if state is BaseState.CLEAN), None)

    @property
    def next_decided(self) -> tuple[BaseResult, BaseState] | None:
        return self.after[0] if self.after else None

    @property
    def passes(self) -> int:
        return sum(state is BaseState.CLEAN for _, state in self.all)

    @property
    def short_spells(self) -> list[BaseResult]:
        """The first result of each short row of failures between two passes, and results that flipped by themselves."""
        spells: list[BaseResult] = []
        row: list[BaseResult] = []
        seen_clean = False
        for result, state in self.all:
            if state is BaseState.FAILS:
                row.append(result)
                continue
            if seen_clean and 0 < len(row) <= _SHORT_SPELL:
                spells.append(row[0])
            row, seen_clean = [], True
        return spells


def _look_at_base(failure: RecordedFailure, fingerprint: str | None, history: JobHistory) -> _BaseView:
    decided = [
        (result, state)
        for result in history.base
        if (state := state_of(result, fingerprint)) is not BaseState.UNCLEAR
        and not (failure.on_base and result.sha == failure.head_sha and result.at == failure.at)
    ]
    placed = sorted(decided, key=lambda pair: _order_key(pair[0], history.base))
    before = tuple(pair for pair in placed if _is_before(pair[0], failure, history.base))
    after = tuple(pair for pair in placed if not _is_before(pair[0], failure, history.base))
    return _BaseView(before=before, after=after)


def _order_key(result: BaseResult, base: Sequence[BaseResult]) -> tuple[float, float]:
    return _position(result, base), result.at.timestamp()


def _position(result: BaseResult, base: Sequence[BaseResult]) -> float:
    """A result of an unknown commit is placed by its time, right after the results that were there before it."""
    if result.position is not None:
        return result.position
    earlier = [other.position for other in base if other.position is not None and other.at <= result.at]
    return max(earlier, default=0) + 0.5


def _is_before(result: BaseResult, failure: RecordedFailure, base: Sequence[BaseResult]) -> bool:
    if failure.position is None:
        return result.at <= failure.at
    position = _position(result, base)
    if failure.on_base and position == failure.position:
        return result.at < failure.at
    return position <= failure.position


def _judge_unit(
    failure: RecordedFailure, fingerprint: str | None, history: JobHistory, policy: VerdictPolicy
) -> Verdict:
    base = _look_at_base(failure, fingerprint, history)
    same = [other for other in history.failures if _is_same(other, fingerprint, failure)]
    flips = _flips_elsewhere(same, failure)
    if failure.passed_at is not None:
        return _flaky_on_this_commit(base, flips, fingerprint, policy)
    if base.failing_in_a_row:
        return _judge_failing_base(failure, base, flips, fingerprint, policy)
    return (
        _judge_known_flake(base, flips, fingerprint, policy)
        or _judge_gap(failure, base)
        or _judge_others(failure, base, same, history, policy)
        or _judge_new(failure, base, history, fingerprint, policy)
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
    base: _BaseView, flips: list[RecordedFailure], fingerprint: str | None, policy: VerdictPolicy
) -> Verdict:
    spells = base.short_spells
    sure = fingerprint is not None and len(flips) + len(spells) >= policy.flips_for_flaky
    elsewhere = f", and it failed by chance {len(flips) + len(spells)} times elsewhere" if sure else ""
    return Verdict(
        kind=VerdictKind.FLAKY,
        confidence=Confidence.HIGH if sure else Confidence.MEDIUM,
        sentence=f"The same commit passed when it was run again{elsewhere}.",
        evidence=(_rerun_evidence(), *_flip_evidence(flips, spells))[:_MOST_EVIDENCE],
    )


def _judge_failing_base(
    failure: RecordedFailure,
    base: _BaseView,
    flips: list[RecordedFailure],
    fingerprint: str | None,
    policy: VerdictPolicy,
) -> Verdict:
    """The base fails alike at the commit that the head was built on: pre-existing, unless it only fails by chance."""
    row, spells = base.failing_in_a_row, base.short_spells
    flaked = len(flips) + len([spell for spell in spells if spell not in row])
    decided = len(base.all)
    rate = max(len(spells) / decided if decided else 0.0, _LEAST_RATE)
    next_is_clean = base.next_decided is not None and base.next_decided[1] is BaseState.CLEAN
    if flaked >= policy.flips_for_flaky and rate ** len(row) > _CHANCE**2 and len(row) <= _SHORT_SPELL:
        return Verdict(
            kind=VerdictKind.FLAKY,
            confidence=Confidence.MEDIUM,
            sentence=f"It fails by chance: {flaked} times on other commits in the window, the base's newest result among them.",
            evidence=_flip_evidence(flips, spells)[:_MOST_EVIDENCE],
        )
    long_enough = len(row) > 1 or (base.next_decided is not None and not next_is_clean)
    sure = failure.exact and long_enough and fingerprint is not None and not flaked
    times = f"{len(row)} times in a row" if len(row) > 1 else "once"
    where = "at the commit that this was built on" if failure.exact else "before this"
    return Verdict(
        kind=VerdictKind.PRE_EXISTING,
        confidence=Confidence.HIGH if sure else Confidence.MEDIUM,
        sentence=f"The base failed alike {times}, last {where}.",
        evidence=tuple(_base_evidence(result, BaseState.FAILS) for result in row[:_MOST_EVIDENCE]),
    )


def _judge_known_flake(
    base: _BaseView, flips: list[RecordedFailure], fingerprint: str | None, policy: VerdictPolicy
) -> Verdict | None:
    if fingerprint is None:
        return None  # without details a failure of a flaky job may as well be another one
    spells = base.short_spells
    times = len(flips) + len(spells)
    if not flips and times < policy.flips_for_flaky:
        return None
    sure = len(flips) >= policy.flips_for_flaky or times > policy.flips_for_flaky
    return Verdict(
        kind=VerdictKind.FLAKY,
        confidence=Confidence.HIGH if sure else Confidence.MEDIUM,
        sentence=f"The same failure came and went {times} times without a change of code in the window.",
        evidence=_flip_evidence(flips, spells)[:_MOST_EVIDENCE],
    )


def _judge_gap(failure: RecordedFailure, base: _BaseView) -> Verdict | None:
    """The base began to fail alike between two tested commits, and the head was built on one between them."""
    following = base.next_decided
    if following is None or following[1] is not BaseState.FAILS or failure.landed or failure.on_base:
        return None
    last = base.last_clean
    if last is not None and last.position is not None and last.position == failure.position:
        return None
    return Verdict(
        kind=VerdictKind.PRE_EXISTING,
        confidence=Confidence.MEDIUM,
        sentence="The base fails alike at the next commit that was tested after the one that this was built on.",
        evidence=(
            _base_evidence(following[0], BaseState.FAILS),
            *((_base_evidence(last, BaseState.CLEAN),) if last else ()),
        ),
    )


def _judge_others(
    failure: RecordedFailure,
    base: _BaseView,
    same: list[RecordedFailure],
    history: JobHistory,
    policy: VerdictPolicy,
) -> Verdict | None:
    """The same failure on pull requests of other authors: pre-existing if most fail since it began, else flaky."""
    others = unrelated(same, failure)
    by_pull = {other.number: other for other in others}
    if len(by_pull) < policy.flips_for_flaky:
        return None
    began_at = min(other.at for other in others)
    passes = history.passes_since(began_at)
    base_passed_later = any(state is BaseState.CLEAN and result.at >= began_at for result, state in base.all)
    authors = {other.author for other in others if other.trusted}
    evidence = tuple(_pull_evidence(other) for other in by_pull.values())[:_MOST_EVIDENCE]
    if (
        len(by_pull) >= policy.pulls_for_pre_existing
        and len(authors) >= policy.authors_for_pre_existing
        and not base_passed_later
        and passes <= len(by_pull)
    ):
        return Verdict(
            kind=VerdictKind.PRE_EXISTING,
            confidence=Confidence.MEDIUM,
            sentence=f"{len(by_pull)} other pull requests fail alike since {began_at:%d %b %H:%M} UTC.",
            evidence=evidence,
        )
    if passes > len(by_pull) or base_passed_later:
        return Verdict(
            kind=VerdictKind.FLAKY,
            confidence=Confidence.MEDIUM,
            sentence=f"{len(by_pull)} unrelated pull requests failed alike, and others passed in between.",
            evidence=evidence,
        )
    return None


def _judge_new(
    failure: RecordedFailure,
    base: _BaseView,
    history: JobHistory,
    fingerprint: str | None,
    policy: VerdictPolicy,
) -> Verdict:
    passes, on_pulls = base.passes, history.pulls_passed
    clean = next(
        (result for result, state in reversed(base.before) if state is BaseState.CLEAN),
        None,
    )
    if passes < policy.passes_for_new and on_pulls < policy.pulls_for_new:
        return Verdict(
            kind=VerdictKind.UNKNOWN,
            confidence=Confidence.LOW,
            sentence=f"Too little history: {passes} passing results of the base and {on_pulls} on pull requests.",
            evidence=(_base_evidence(clean, BaseState.CLEAN),) if clean else (),
        )
    repeated = _fails_again(failure, history, fingerprint)
    if fingerprint is None and not repeated and _flaked_without_details(base, history):
        return Verdict(
            kind=VerdictKind.UNKNOWN,
            confidence=Confidence.LOW,
            sentence="The job failed without details, and it has failed by chance before: run it again to know.",
            evidence=(_base_evidence(clean, BaseState.CLEAN),) if clean else (),
        )
    sure = passes >= policy.passes_for_new and repeated
    seen = (
        f"The base passed {passes} times in the window"
        if passes >= policy.passes_for_new
        else f"{on_pulls} results on other pull requests passed in the window"
    )
    return Verdict(
        kind=VerdictKind.NEW,
        confidence=Confidence.HIGH if sure else Confidence.MEDIUM,
        sentence=f"{seen} and this failure is not known{', and a re-run failed again' if repeated else ''}.",
        evidence=(
            *((_rerun_evidence(),) if repeated else ()),
            *((_base_evidence(clean, BaseState.CLEAN),) if clean else ()),
        ),
    )


def _fails_again(failure: RecordedFailure, history: JobHistory, fingerprint: str | None) -> bool:
    """Whether another run or attempt of the same commit failed alike."""
    return any(
        _is_same(other, fingerprint, failure)
        and other.head_sha == failure.head_sha
        and (other.run_id, other.attempt) != (failure.run_id, failure.attempt)
        for other in history.failures
    )


def _flaked_without_details(base: _BaseView, history: JobHistory) -> bool:
    return bool(base.short_spells) or any(
        other.passed_at is not None and not other.fingerprints for other in history.failures
    )


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
    heads = {(other.number, None if other.number else other.head_sha) for other in near}
    if len(near) < policy.fleet_jobs or len(heads) < policy.fleet_heads:
        return None
    if len(near) < policy.fleet_share * (len(near) + hour.passed):
        return None
    ways = Counter(_way(other) for other in near)
    if len(ways) > max(2, len(near) // 5) or not _is_common(failure, near):
        return None
    if verdict.kind is VerdictKind.PRE_EXISTING and not _base_failed_only_then(failure, history):
        return None
    own = sum(other.number == failure.number and other.head_sha == failure.head_sha for other in near)
    return Verdict(
        kind=VerdictKind.INFRASTRUCTURE,
        confidence=Confidence.HIGH if len(near) - own >= policy.fleet_jobs else Confidence.MEDIUM,
        sentence=f"{len(near)} jobs of this backend failed within the hour on {len(heads)} unrelated commits, "
        f"in {len(ways)} way{'s' * (len(ways) > 1)}; {hour.passed or 'none'} passed.",
        evidence=(
            Evidence(
                kind=EvidenceKind.BACKEND,
                text=f"{len(near)} failures on {len(heads)} commits",
                sha=failure.head_sha,
            ),
            *(_pull_evidence(other) for other in near if other.number not in (None, failure.number)),
        )[:_MOST_EVIDENCE],
    )


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


def _base_failed_only_then(failure: RecordedFailure, history: JobHistory) -> bool:
    """Whether every failing result of the base is from the same hour."""
    return all(result.passed or abs(result.at - failure.at) <= 2 * FLEET_SPAN for result in history.base)


# Evidence


def _rerun_evidence() -> Evidence:
    return Evidence(kind=EvidenceKind.RERUN, text="another run of the same commit")


def _base_evidence(result: BaseResult, state: BaseState) -> Evidence:
    what = "nightly run" if result.nightly else "base"
    words = "failed alike" if state is BaseState.FAILS else "passed"
    return Evidence(
        kind=EvidenceKind.BASE, text=f"{what} {words}, {result.at:%d %b %H:%M} UTC", sha=result.sha
    )


def _pull_evidence(other: RecordedFailure) -> Evidence:
    return Evidence(
        kind=EvidenceKind.PULL,
        text=f"#{other.number} failed alike, {other.at:%d %b %H:%M} UTC",
        sha=other.head_sha,
        number=other.number,
    )


def _flip_evidence(flips: Sequence[RecordedFailure], spells: Sequence[BaseResult]) -> tuple[Evidence, ...]:
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
        *(_base_evidence(spell, BaseState.FAILS) for spell in spells),
    )
