"""Two relays side by side: where the records of an old one differ from what this one decided and received.

The id of a delivery is GitHub's GUID, which all Apps share, so a dispatch is known by delivery and backend in both. The old
relay records results only: that it dispatched is known from the answers. What it cannot tell is counted as not compared,
and never as a difference.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from crcr.decide.model import Conclusion, DispatchState, Level, RepoName

SELF_REPORTED = frozenset({"nightly", "periodic"})
UNFINISHED = "in progress"
_DISPATCHED = frozenset({DispatchState.WAITING, DispatchState.SENT, DispatchState.PARKED})
_UNANSWERED_ACTIONS = frozenset({"closed", "destroyed"})
"""Backends cancel on these, and report nothing."""

DispatchKey = tuple[str, str]
"""Delivery, and key of the backend."""
JobKey = tuple[str, str]
"""Names of workflow and job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedResult:
    """A job's result as either relay has recorded it."""

    delivery: str
    backend: RepoName
    event: str
    workflow: str
    job: str
    check_run: str
    attempt: int
    conclusion: Conclusion | None
    """None while it runs."""
    at: datetime | None = None
    upstream: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnDispatch:
    """A dispatch that this relay decided about."""

    delivery: str
    backend: RepoName
    level: Level
    state: DispatchState
    reason: str | None
    action: str | None
    head_sha: str | None = None

    @property
    def is_dispatched(self) -> bool:
        return self.state in _DISPATCHED

    @property
    def expects_answer(self) -> bool:
        deletes = self.head_sha is not None and not self.head_sha.strip("0")
        is_tested = not deletes and self.action not in _UNANSWERED_ACTIONS
        return self.is_dispatched and self.level >= Level.L2 and is_tested


@dataclass(frozen=True, slots=True)
class OwnRecords:
    """What this relay recorded in the compared time."""

    dispatches: tuple[OwnDispatch, ...]
    results: tuple[RecordedResult, ...]
    deliveries: Mapping[str, str | None]
    """The deliveries of that time, each with the reason why it was not dispatched, if any."""
    other_deliveries: frozenset[str] = frozenset()
    """Deliveries that the old relay names, and this one has from another time."""


class DifferenceKind(StrEnum):
    DISPATCHED_BY_OLD = "dispatched by the old relay only"
    DISPATCHED_BY_NEW = "dispatched by this relay only"
    RESULT_IN_OLD = "result in the old relay only"
    RESULT_IN_NEW = "result in this relay only"
    CONCLUSION = "conclusions differ"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowDifference:
    kind: DifferenceKind
    backend: RepoName
    delivery: str
    workflow: str | None = None
    job: str | None = None
    old: str | None = None
    new: str | None = None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowComparison:
    differences: tuple[ShadowDifference, ...]
    dispatches: int
    """Compared pairs of delivery and backend."""
    results: int
    """Compared jobs."""
    unread_backends: tuple[RepoName, ...]
    """Backends without any record in the old relay: their dispatches cannot be compared."""
    unreported_backends: tuple[RepoName, ...]
    """Backends that do not report to this relay, and whose results it was not sent: only their dispatches are compared."""
    self_reports: int
    """Nightly and periodic results of the old relay, which no dispatch leads to."""


@dataclass(slots=True)
class _Comparer:
    differences: list[ShadowDifference] = field(default_factory=list)
    dispatches: int = 0
    results: int = 0

    def note(self, kind: DifferenceKind, key: DispatchKey, **more: str | None) -> None:
        delivery, backend = key
        found = ShadowDifference(kind=kind, delivery=delivery, backend=RepoName(backend), **more)  # type: ignore[arg-type]
        self.differences.append(found)


def select_results(
    old: Iterable[RecordedResult], own: OwnRecords, upstream: RepoName, since: datetime, until: datetime
) -> Iterator[RecordedResult]:
    """The old relay's results for the upstream and the time: by the delivery's arrival here, else by their own time."""
    for result in old:
        if result.upstream is not None and result.upstream.lower() != upstream.key:
            continue
        is_known = result.delivery in own.deliveries or result.delivery in own.other_deliveries
        if is_known or result.at is None or since <= result.at < until:
            yield result


def compare_relays(old: Iterable[RecordedResult], own: OwnRecords) -> ShadowComparison:
    """Compare the old relay's results of a time with this relay's records of it."""
    old = tuple(old)
    answered = _by_dispatch(result for result in old if result.event not in SELF_REPORTED)
    answered = {key: jobs for key, jobs in answered.items() if key[0] not in own.other_deliveries}
    own_results = _by_dispatch(own.results)
    decided = {(one.delivery, one.backend.key): one for one in own.dispatches}
    old_backends = {result.backend.key for result in old}
    reporting = {result.backend.key for result in own.results}
    comparer = _Comparer()
    _compare_dispatches(comparer, answered, decided, own, old_backends)
    for key in sorted(answered.keys() & decided.keys()):
        if decided[key].is_dispatched and key[1] in reporting:
            _compare_results(comparer, key, answered[key], own_results.get(key, {}))
    expecting = {one.backend for one in own.dispatches if one.expects_answer}
    return ShadowComparison(
        differences=tuple(comparer.differences),
        dispatches=comparer.dispatches,
        results=comparer.results,
        unread_backends=tuple(sorted(name for name in expecting if name.key not in old_backends)),
        unreported_backends=tuple(sorted(name for name in expecting if name.key in old_backends - reporting)),
        self_reports=sum(result.event in SELF_REPORTED for result in old),
    )


def _by_dispatch(
    results: Iterable[RecordedResult],
) -> dict[DispatchKey, dict[JobKey, tuple[str, ...]]]:
    """The conclusions of each job's newest attempt, by dispatch; a name that several jobs share has several."""
    found: dict[DispatchKey, dict[JobKey, dict[str, RecordedResult]]] = {}
    for result in results:
        jobs = found.setdefault((result.delivery, result.backend.key), {})
        runs = jobs.setdefault((result.workflow, result.job), {})
        if any(run.attempt > result.attempt for run in runs.values()):
            continue
        if any(run.attempt < result.attempt for run in runs.values()):
            runs.clear()
        known = runs.get(result.check_run)
        if known is None or known.conclusion is None:
            runs[result.check_run] = result
    return {
        key: {job: _conclusions(runs.values()) for job, runs in jobs.items()} for key, jobs in found.items()
    }


def _conclusions(runs: Iterable[RecordedResult]) -> tuple[str, ...]:
    """A run that only began counts where no other of the name ended: reporters may end it under another id."""
    ended = sorted(run.conclusion.value for run in runs if run.conclusion is not None)
    return tuple(ended) or (UNFINISHED,)


def _compare_dispatches(
    comparer: _Comparer,
    answered: Mapping[DispatchKey, object],
    decided: Mapping[DispatchKey, OwnDispatch],
    own: OwnRecords,
    old_backends: set[str],
) -> None:
    comparer.dispatches = len(
        {*answered, *(key for key, one in decided.items() if one.expects_answer and key[1] in old_backends)}
    )
    for key in sorted(answered):
        one = decided.get(key)
        if one is None or not one.is_dispatched:
            comparer.note(DifferenceKind.DISPATCHED_BY_OLD, key, why=_explain_undispatched(one, key[0], own))
    for key, one in sorted(decided.items()):
        if one.expects_answer and key[1] in old_backends and key not in answered:
            why = "the old relay has no record: it did not dispatch, or the backend did not report"
            comparer.note(DifferenceKind.DISPATCHED_BY_NEW, key, why=why)


def _explain_undispatched(one: OwnDispatch | None, delivery: str, own: OwnRecords) -> str:
    if one is not None:
        word = {DispatchState.LEFT_OUT: "left out by", DispatchState.HELD: "held for"}.get(one.state)
        return f"{word} {one.reason}" if word else f"{one.state.value}: {one.reason}"
    if delivery not in own.deliveries:
        return "this relay did not receive the webhook, or nobody wants its event"
    return own.deliveries[delivery] or "the allowlist does not select the backend"


def _compare_results(
    comparer: _Comparer,
    key: DispatchKey,
    old: Mapping[JobKey, tuple[str, ...]],
    new: Mapping[JobKey, tuple[str, ...]],
) -> None:
    for job in sorted({*old, *new}):
        comparer.results += 1
        values = (
            {"workflow": job[0], "job": job[1]}
            | dict(_named("old", old.get(job)))
            | dict(_named("new", new.get(job)))
        )
        if job not in new:
            comparer.note(DifferenceKind.RESULT_IN_OLD, key, **values)
        elif job not in old:
            comparer.note(DifferenceKind.RESULT_IN_NEW, key, **values)
        elif Counter(old[job]) != Counter(new[job]):
            comparer.note(DifferenceKind.CONCLUSION, key, **values)


def _named(name: str, conclusions: tuple[str, ...] | None) -> Iterator[tuple[str, str]]:
    if conclusions is not None:
        yield name, ", ".join(conclusions)
