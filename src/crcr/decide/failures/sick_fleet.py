"""The sick-fleet rule: many jobs of one backend fail at once on unrelated commits, so its machines are to blame."""

from collections import Counter
from collections.abc import Iterable, Sequence

from crcr.decide.failures.evidence import MOST_EVIDENCE, cite_pull
from crcr.decide.failures.history import (
    FLEET_SPAN,
    BackendHour,
    JobHistory,
    RecordedFailure,
)
from crcr.decide.failures.verdict import (
    Confidence,
    Evidence,
    EvidenceKind,
    Verdict,
    VerdictKind,
    VerdictPolicy,
)


def judge_fleet(
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
    if is_contradicted(failure, verdict, history) or _may_be_code(failure, near, history):
        return None
    own = sum(other.number == failure.number and other.head_sha == failure.head_sha for other in near)
    return Verdict(
        kind=VerdictKind.INFRASTRUCTURE,
        confidence=Confidence.HIGH
        if len(near) - own >= policy.fleet_jobs and _is_known_good(failure, history)
        else Confidence.MEDIUM,
        sentence=f"{len(near):,} jobs of this backend failed within the hour on {heads:,} unrelated commits, "
        f"in {len(ways):,} way{'s' * (len(ways) > 1)}; {f'{hour.passed:,}' if hour.passed else 'none'} passed.",
        evidence=(
            Evidence(
                kind=EvidenceKind.BACKEND,
                text=f"{len(near):,} failures on {heads:,} commits",
                sha=failure.head_sha,
            ),
            *(cite_pull(other) for other in near if other.number not in (None, failure.number)),
        )[:MOST_EVIDENCE],
    )


def _count_unrelated_heads(failures: Iterable[RecordedFailure]) -> int:
    """Count pull requests and pushes; a stack of pull requests is one."""
    heads, numbers, pushed, all_shas = 0, set[int](), set[str | None](), set[str | None]()
    for failure in failures:
        if failure.number is None:
            is_new = failure.head_sha not in all_shas
            pushed.add(failure.head_sha)
        else:
            stack = {failure.number, *failure.stacked_on}
            is_new = failure.head_sha not in pushed and not stack & numbers
            numbers |= stack
        all_shas.add(failure.head_sha)
        heads += is_new
    return heads


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
    return any(position >= failure.position for position in _passed_positions(history))


def _may_be_code(failure: RecordedFailure, near: Sequence[RecordedFailure], history: JobHistory) -> bool:
    """Whether a commit may have broken the job: none between the failing commits is known to pass.

    Where the places of heads are unknown, pull requests that contain the same change look unrelated: then a push must fail too.
    """
    if failure.position is None or not failure.exact:
        return not any(other.on_base for other in near)
    passed = _passed_positions(history)
    placed = [other.position for other in (failure, *near) if other.exact and other.position is not None]
    return bool(passed) and not any(min(placed) <= position <= max(placed) for position in passed)


def _passed_positions(history: JobHistory) -> list[int]:
    passed = [result.position for result in history.base if result.passed and result.position is not None]
    return passed + [one.position for one in history.pull_passes]


def is_contradicted(failure: RecordedFailure, verdict: Verdict, history: JobHistory) -> bool:
    """Whether a verdict without the backend's hour shows that its machines were not sick: the base fails at other times."""
    return verdict.kind is VerdictKind.PRE_EXISTING and not _base_failed_only_then(failure, history)


def _base_failed_only_then(failure: RecordedFailure, history: JobHistory) -> bool:
    """Whether every failing result of the base is from the same hour."""
    return all(result.passed or abs(result.at - failure.at) <= 2 * FLEET_SPAN for result in history.base)
