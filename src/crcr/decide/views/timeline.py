"""The timeline of a commit from its webhook to its results, computed from the values of its page.

Every moment has a recorded time: facts without one, such as the first decision of a gate, have no line. When there are
too many, the least important ones are left out.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from crcr.decide.checks.check_run import GATE_NAME, CheckStatus
from crcr.decide.model import Conclusion, JobState
from crcr.decide.statistics.figures import CountedAs
from crcr.decide.views.commit import (
    Arrival,
    BackendState,
    CheckView,
    CommitBackend,
    GateShown,
    GateView,
    GroupView,
    Moment,
    MomentKind,
    PullState,
    Spell,
    WaiverState,
    WaiverView,
)
from crcr.decide.views.overview import JobView

MOST_MOMENTS = 60
_ORDER = {kind: index for index, kind in enumerate(MomentKind)}
_OF_BACKENDS = frozenset({MomentKind.FAILING, MomentKind.ENDED})
_OF_WAIVERS = frozenset({MomentKind.WAIVED, MomentKind.TAKEN_BACK, MomentKind.USED})
_DECIDED = frozenset({GateShown.PASSED, GateShown.FAILED})
_PUBLISHED = {Conclusion.SUCCESS.value: GateShown.PASSED, Conclusion.FAILURE.value: GateShown.FAILED}


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineFacts:
    """The values of a commit's page, or of a pull request's page at its head."""

    arrivals: tuple[Arrival, ...]
    """Newest first."""
    backends: tuple[CommitBackend, ...]
    waivers: tuple[WaiverView, ...] = ()
    checks: tuple[CheckView, ...] = ()
    gate: GateView | None = None
    groups: tuple[GroupView, ...] = ()
    pull: PullState | None = None
    """None on a commit's page, where it is unknown whether a closing was a merge."""


def build_timeline(known: TimelineFacts) -> tuple[tuple[Moment, ...], int]:
    """Return the moments, newest first, and how many were left out; the commit and older ones have a limit each."""
    moments = [
        *_arrival_moments(known.arrivals, known.pull),
        *_backend_moments(known.backends),
        *_gate_moments(known.gate, known.checks),
        *(moment for waiver in known.waivers for moment in _waiver_moments(waiver)),
        *(moment for group in known.groups for moment in _group_moments(group)),
    ]
    kept = [
        *_most_important(moment for moment in moments if not moment.superseded),
        *_most_important(moment for moment in moments if moment.superseded),
    ]
    return tuple(sorted(kept, key=_newest_first, reverse=True)), len(moments) - len(kept)


def running_time(jobs: Iterable[JobView]) -> Spell:
    """Return when these jobs ran. A silent job ended when it was timed out."""
    started: list[datetime] = []
    failed: list[datetime] = []
    ended: list[datetime] = []
    running = False
    for job in jobs:
        started.append(job.started_at)
        running = running or job.state is JobState.IN_PROGRESS
        at = job.completed_at or job.swept_at
        if at is not None:
            ended.append(at)
            if job.counted is CountedAs.FAILURE:
                failed.append(at)
    return Spell(
        started_at=min(started, default=None),
        failed_at=min(failed, default=None),
        ended_at=None if running else max(ended, default=None),
    )


def _arrival_moments(arrivals: tuple[Arrival, ...], pull: PullState | None) -> Iterator[Moment]:
    merged = pull is PullState.MERGED
    for arrival in arrivals:
        kind = MomentKind.ARRIVED
        if pull is not None and (arrival.event, arrival.action) == ("pull_request", "closed"):
            kind = MomentKind.MERGED if merged else MomentKind.CLOSED
            merged = False  # after an earlier closing it was reopened
        yield Moment(
            kind=kind,
            at=arrival.received_at,
            event=arrival.event,
            head_sha=arrival.head_sha,
            superseded=arrival.superseded,
            arrival=arrival,
        )


def _backend_moments(backends: tuple[CommitBackend, ...]) -> Iterator[Moment]:
    for delivery in dict.fromkeys(backend.delivery for backend in backends):
        of_one = [backend for backend in backends if backend.delivery == delivery]
        yield from _dispatch_moments(of_one)
        yield from _start_moments(of_one)
    for backend in backends:
        ended = backend.spell.ended_at
        at = ended or backend.spell.failed_at
        if at is not None:
            yield Moment(
                kind=MomentKind.ENDED if ended else MomentKind.FAILING,
                at=at,
                subject=str(backend.name),
                event=backend.event,
                result=backend.state,
            )


def _dispatch_moments(backends: list[CommitBackend]) -> Iterator[Moment]:
    sent = [backend.dispatch.sent_at for backend in backends if backend.dispatch and backend.dispatch.sent_at]
    if len(sent) == 1:
        yield Moment(kind=MomentKind.SENT, at=sent[0], number=1, event=backends[0].event)
    elif sent:
        for kind, at in ((MomentKind.FIRST_SENT, min(sent)), (MomentKind.LAST_SENT, max(sent))):
            yield Moment(kind=kind, at=at, number=len(sent), event=backends[0].event)


def _start_moments(backends: list[CommitBackend]) -> Iterator[Moment]:
    started = [(backend.spell.started_at, backend) for backend in backends if backend.spell.started_at]
    if started:
        at, first = min(started, key=lambda pair: pair[0])
        yield Moment(kind=MomentKind.STARTED, at=at, subject=str(first.name), event=first.event)


def _gate_moments(gate: GateView | None, checks: tuple[CheckView, ...]) -> Iterator[Moment]:
    if gate is not None and gate.state in _DECIDED:
        yield Moment(kind=MomentKind.JUDGED, at=gate.judged_at, gate=gate.state)
    for check in checks:
        if check.name == GATE_NAME and check.published_at is not None:
            yield Moment(kind=MomentKind.PUBLISHED, at=check.published_at, gate=_published_state(check))


def _published_state(check: CheckView) -> GateShown:
    if check.status != CheckStatus.COMPLETED.value:
        return GateShown.PENDING
    return _PUBLISHED.get(check.conclusion or "", GateShown.OVER)


def _waiver_moments(waiver: WaiverView) -> Iterator[Moment]:
    happened = (
        (MomentKind.WAIVED, waiver.created_at, waiver.who),
        (MomentKind.USED, waiver.used_at, waiver.who),
        (MomentKind.TAKEN_BACK, waiver.ended_at, waiver.ended_by),
    )
    older = waiver.state in {WaiverState.OTHER_COMMIT, WaiverState.OTHER_BASE}
    for kind, at, who in happened:
        if at is not None:
            yield Moment(
                kind=kind, at=at, subject=waiver.downstream, job=waiver.job, who=who, superseded=older
            )


def _group_moments(group: GroupView) -> Iterator[Moment]:
    yield Moment(kind=MomentKind.QUEUED, at=group.created_at, head_sha=group.head_sha)
    if group.destroyed_at is not None:
        yield Moment(kind=MomentKind.UNQUEUED, at=group.destroyed_at, head_sha=group.head_sha)


def _most_important(moments: Iterable[Moment]) -> list[Moment]:
    newest_first = sorted(moments, key=_newest_first, reverse=True)
    return sorted(newest_first, key=_importance)[:MOST_MOMENTS]


def _importance(moment: Moment) -> int:
    """Rank deliveries and the gate first, then backends that did not pass, then other results, then no-ops."""
    if moment.arrival is not None:
        changed = moment.arrival.dispatches or moment.kind is not MomentKind.ARRIVED
        return 0 if changed else 3
    if moment.kind in _OF_BACKENDS:
        return 2 if moment.result is BackendState.PASSED else 1
    return 2 if moment.kind in _OF_WAIVERS else 0


def _newest_first(moment: Moment) -> tuple[datetime, int, str]:
    who = moment.arrival.guid if moment.arrival else moment.subject
    return moment.at, _ORDER[moment.kind], who or ""
