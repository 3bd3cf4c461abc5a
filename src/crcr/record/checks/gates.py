"""The table of gates: each commit's gate state, which pages and merge groups read, and the time of its next recheck.

A commit without a gate has a row too, if its checks must be refreshed at some time.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, select, text

from crcr.decide.checks.commit import BackendResults, CommitFacts, GrantedWaiver, JobResult, MergeSubject
from crcr.decide.checks.gate import GateJudgement, GateState
from crcr.decide.checks.status import GATE_OF, GateStatus, find_new_failures
from crcr.decide.model import RepoName
from crcr.decide.notices.notice import NoticeEvent, NoticeKind
from crcr.record.change_and_audit_log import note_act, note_change
from crcr.record.checks.waivers import record_waiver_use
from crcr.record.notices.threads import queue_notice, read_blocked_backends
from crcr.record.schema.checks import gates
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement, inserting
from crcr.record.store.times import to_us

NO_GATE = "none"
OVER = "over"

_GATE = inserting(gates, "head_sha", "upstream", "state", "title", "judged_at", "recheck_at", "decided_at")
_SAVE = Statement(
    _GATE.on_conflict_do_update(
        index_elements=["head_sha", "upstream"],
        set_={
            name: _GATE.excluded[name] for name in ("state", "title", "judged_at", "recheck_at", "decided_at")
        },
    )
)
_STATE = Statement(
    select(gates.c.state, gates.c.title, gates.c.judged_at, gates.c.decided_at).where(
        gates.c.head_sha == bindparam("head_sha"), gates.c.upstream == bindparam("upstream")
    )
)
_END_GATE = Statement(
    text(
        "UPDATE gates SET state = CASE WHEN state = 'pending' OR (state = 'passed' AND :landed = 0) THEN 'over'"
        " ELSE state END, recheck_at = NULL"
        " WHERE head_sha = :head_sha AND upstream = :upstream"
    )
)
_EXCUSED = Statement(
    text(
        "UPDATE failures SET excused_at = :at WHERE delivery = :delivery AND upstream = :upstream"
        " AND downstream = :downstream AND workflow = :workflow AND run_id = :run_id AND attempt = :attempt"
        " AND job_name = :job_name AND excused_at IS NULL"
    )
)
_DUE_GATES = Statement(
    text(
        "SELECT head_sha FROM gates WHERE recheck_at IS NOT NULL AND recheck_at <= :now AND upstream = :upstream"
        " ORDER BY recheck_at LIMIT :most"
    )
)


async def record_gate(
    tx: Tx,
    commit: CommitFacts,
    judgement: GateJudgement | None,
    *,
    title: str,
    recheck_at: datetime | None,
    now: datetime,
) -> None:
    """Record the commit's gate, and notify open pages if it changed."""
    key = {"head_sha": commit.head_sha, "upstream": commit.upstream.key}
    if not commit.subjects:
        await tx.run(_END_GATE, landed=int(commit.landed), **key)
        return
    state = judgement.state.value if judgement else NO_GATE
    before = await tx.one(_STATE, **key)
    recheck_us = to_us(recheck_at) if recheck_at else None
    at = to_us(now)
    decided_at = _decision_time(before, state, at)
    await tx.run(
        _SAVE, **key, state=state, title=title, judged_at=at, recheck_at=recheck_us, decided_at=decided_at
    )
    if judgement is None:
        return
    if before is None or (before["state"], before["title"]) != (state, title):
        await _notify_pages(tx, commit, now)
    await _record_excuses(tx, commit, judgement, now)
    for event in await _find_gate_events(tx, commit, judgement):
        await queue_notice(tx, event, now)
    if judgement.state is GateState.PASSED:
        await _record_used_waivers(tx, commit.upstream, judgement, now)


def _decision_time(before: Row | None, state: str, at: int) -> int:
    """When the gate entered its state; judging it again with the same result keeps the time."""
    if before is None or before["state"] != state:
        return at
    return int(before["decided_at"] or before["judged_at"])


async def find_due_gates(tx: Tx, upstream: RepoName, now: datetime, most: int) -> list[Row]:
    return await tx.all(_DUE_GATES, upstream=upstream.key, now=to_us(now), most=most)


async def _notify_pages(tx: Tx, commit: CommitFacts, now: datetime) -> None:
    for subject in commit.subjects:
        location: dict[str, Any] = {"delivery": subject.delivery, "number": subject.number}
        await note_change(tx, commit.upstream, "gate", now=now, **location)


async def _record_excuses(tx: Tx, commit: CommitFacts, judgement: GateJudgement, now: datetime) -> None:
    """Write each excuse into the audit log once; again only if its verdict has changed meanwhile."""
    for subject, backend, job in _excused_jobs(judgement):
        key = {"delivery": subject.delivery, "upstream": commit.upstream.key, "attempt": job.attempt}
        names = {"workflow": job.workflow, "run_id": job.run_id, "job_name": job.name}
        if job.verdict is None or not await tx.run(
            _EXCUSED, at=to_us(now), downstream=backend.recorded_name.key, **key, **names
        ):
            continue
        group = f"merge group {commit.head_sha[:12]}"
        await note_act(
            tx,
            commit.upstream,
            who="relay",
            act="excuse",
            subject=group if subject.number is None else f"#{subject.number}",
            now=now,
            downstream=str(backend.name),
            job=job.name,
            run=job.run_id,
            attempt=job.attempt,
            head=commit.head_sha,
            verdict=job.verdict.kind.value,
            confidence=job.verdict.confidence.value,
            reason=job.verdict.sentence,
        )


async def _find_gate_events(tx: Tx, commit: CommitFacts, judgement: GateJudgement) -> list[NoticeEvent]:
    """Notices about backends that block a pull request with a new failure, and about those that no longer do."""
    events = []
    for judged in judgement.subjects:
        number = judged.subject.number
        if number is None:
            continue
        new_failures = {one.backend.name: find_new_failures(one) for one in judged.backends}
        states = {one.backend.name: GATE_OF[one.standing] for one in judged.backends}
        where: dict[str, Any] = {"upstream": commit.upstream, "number": number, "path": f"/crcr/pr/{number}"}
        for backend, details in new_failures.items():
            if details:
                count = "1 job fails" if len(details) == 1 else f"{len(details):,} jobs fail"
                summary = f"{count}, and the base branch does not fail like this"
                event = NoticeEvent(
                    kind=NoticeKind.GATE_FAILED, backend=backend, summary=summary, details=details, **where
                )
                events.append(event)
        for backend in await read_blocked_backends(tx, commit.upstream, number):
            # While it runs again, nothing is known: the thread stays as it is.
            if new_failures.get(backend) or states.get(backend) is GateState.PENDING:
                continue
            passed = states.get(backend, GateState.PASSED) is GateState.PASSED
            summary = "it passes, or no longer counts" if passed else "its failure is not judged new any more"
            resolved = NoticeKind.GATE_RESOLVED
            events.append(NoticeEvent(kind=resolved, backend=backend, summary=summary, **where))
    return events


def _excused_jobs(judgement: GateJudgement) -> Iterable[tuple[MergeSubject, BackendResults, JobResult]]:
    for subject in judgement.subjects:
        for judged in subject.backends if subject.subject.reused_from is None else ():
            for part in judged.parts:
                if part.standing is GateStatus.EXCUSED and part.job is not None:
                    yield subject.subject, judged.backend, part.job


async def _record_used_waivers(tx: Tx, upstream: RepoName, judgement: GateJudgement, now: datetime) -> None:
    for waiver in _used_waivers(judgement):
        if await record_waiver_use(tx, upstream, waiver, now):
            await note_act(
                tx,
                upstream,
                who=waiver.who,
                act="waiver_used",
                subject=f"#{waiver.number}",
                now=now,
                downstream=str(waiver.downstream),
                job=waiver.job,
                reason=waiver.reason,
            )


def _used_waivers(judgement: GateJudgement) -> Iterable[GrantedWaiver]:
    parts = (part for subject in judgement.subjects for backend in subject.backends for part in backend.parts)
    return dict.fromkeys(part.waiver for part in parts if part.waiver is not None)
