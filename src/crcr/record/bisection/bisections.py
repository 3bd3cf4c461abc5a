"""Bisections: begun, advanced and ended; each step is one transaction that reads all results and sends the next run.

A step is computed from the recorded runs alone (`decide.bisection.search`), so that a crash loses nothing and a repeat sends
nothing twice: a run's number is part of its key, and its delivery's GUID is made from both. A job has at most one running
bisection, which a unique index ensures.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from sqlalchemy import text

from crcr.decide.allowlist.entries import AllowlistEntry
from crcr.decide.bisection.request import (
    AUTOMATIC,
    BisectionRequest,
    RangeCommit,
    RefusedRequest,
    UpstreamRepository,
    bisection_push,
    bisection_ref,
    may_begin_automatically,
    refuse_backend,
    refuse_request,
)
from crcr.decide.bisection.search import (
    BisectionOutcome,
    CommitsLeft,
    FinishSearch,
    SearchLimits,
    TestCommit,
    next_step,
)
from crcr.decide.dispatch.plan import PlannedDispatch
from crcr.decide.dispatch.webhook_body import compress_body
from crcr.decide.model import (
    BISECTION_EVENT,
    DeliveryState,
    DispatchState,
    RepoName,
)
from crcr.decide.notices.notice import NoticeEvent, NoticeKind
from crcr.errors import BadRequest, NoAllowlist, NotFound, NotPossible
from crcr.record.bisection.bisection_range import BisectionRange, read_bisection_range
from crcr.record.bisection.bisection_runs import read_runs, take_results
from crcr.record.change_and_audit_log import note_act, note_change
from crcr.record.deliveries.dispatches import drop_delivery, write_dispatches
from crcr.record.notices.threads import queue_notice
from crcr.record.repositories.allowlists import Allowlists
from crcr.record.repositories.downstreams import Downstreams
from crcr.record.schema.bisections import bisection_runs, bisections
from crcr.record.schema.main_tables import deliveries
from crcr.record.store.database import Database, Row, Tx
from crcr.record.store.statement import Statement, inserting
from crcr.record.store.times import from_us, to_us
from crcr.record.views.culprits.evidence import RedJob
from crcr.record.views.culprits.job_culprits import read_history
from crcr.record.views.failures.failing_jobs import HISTORY, find_red_jobs, read_base_branch

_BEGIN = Statement(
    inserting(
        bisections,
        *("upstream", "downstream", "workflow", "job_name", "ref", "commits", "fingerprints", "flake_rate"),
        *("most_runs", "who", "created_at", "ends_at", "state", "left_good", "left_bad"),
    )
    .on_conflict_do_nothing()
    .returning(bisections.c.bisection_id)
)
_RUNNING_FOR_JOB = Statement(
    text(
        "SELECT bisection_id FROM bisections WHERE upstream = :upstream AND downstream = :downstream"
        " AND workflow = :workflow AND job_name = :job_name AND state = 'running'"
    )
)
# The condition on the upstream holds for all: with it SQLite takes the index of running ones instead of reading the table.
_RUNNING = Statement(
    text(
        "SELECT upstream, bisection_id FROM bisections WHERE state = 'running' AND upstream >= ''"
        " ORDER BY upstream, downstream"
    )
)
_BISECTION = Statement(
    text("SELECT * FROM bisections WHERE bisection_id = :bisection_id AND upstream = :upstream")
)
_OF_DELIVERY = Statement(
    text("SELECT bisection_id FROM bisection_runs WHERE delivery = :delivery AND upstream = :upstream")
)
_ADD_RUN = Statement(
    inserting(bisection_runs, "bisection_id", "number", "upstream", "delivery", "position", "created_at")
    .on_conflict_do_nothing()
    .returning(bisection_runs.c.number)
)
_NARROW = Statement(
    text(
        "UPDATE bisections SET left_good = :left_good, left_bad = :left_bad"
        " WHERE bisection_id = :bisection_id AND upstream = :upstream AND state = 'running'"
    )
)
_FINISH = Statement(
    text(
        "UPDATE bisections SET state = 'finished', outcome = :outcome, reason = :reason, left_good = :left_good,"
        " left_bad = :left_bad, culprit = :culprit, finished_at = :finished_at"
        " WHERE bisection_id = :bisection_id AND upstream = :upstream AND state = 'running'"
    )
)
_TAKE = Statement(
    inserting(
        deliveries,
        *(
            "guid",
            "upstream",
            "event",
            "action",
            "state",
            "source",
            "ref",
            "received_at",
            "body_bytes",
            "body",
        ),
    )
)
_NOT_COUNTED = Statement(
    text("UPDATE dispatches SET test = 1 WHERE upstream = :upstream AND delivery = :delivery")
)
_UPSTREAM = Statement(
    text("SELECT name, repository_id, default_branch FROM upstreams WHERE upstream = :upstream")
)
_MOST_A_DAY = 4
"""Automatic bisections of one backend."""
_MOST_JOBS = 20

_BEGUN = Statement(
    text(
        "SELECT count(*) AS begun, coalesce(sum(CASE WHEN state = 'running' THEN 1 ELSE 0 END), 0) AS running"
        " FROM bisections WHERE upstream = :upstream AND downstream = :downstream AND who = :who"
        " AND (created_at > :since OR state = 'running')"
    )
)
_BISECTED = Statement(
    text(
        "SELECT 1 FROM bisections WHERE upstream = :upstream AND downstream = :downstream AND job_name = :job_name"
        " AND workflow = :workflow AND created_at >= :since LIMIT 1"
    )
)


@dataclass(frozen=True, slots=True)
class _NextRun:
    number: int
    step: TestCommit


class Bisections:
    def __init__(
        self,
        database: Database,
        allowlists: Allowlists,
        targets: Downstreams,
        *,
        upstreams: tuple[RepoName, ...],
        github_url: str,
        job_timeout: timedelta,
    ) -> None:
        """`github_url` is GitHub's web address; `job_timeout` holds for entries without one of their own."""
        self._database = database
        self._allowlists = allowlists
        self._targets = targets
        self._upstreams = upstreams
        self._github_url = github_url
        self._job_timeout = job_timeout

    async def start(self, upstream: RepoName, request: BisectionRequest, now: datetime) -> int:
        """Begin a bisection and send its first run; return its id."""
        return await self._database.write(lambda tx: self.start_in(tx, upstream, request, now))

    async def start_in(self, tx: Tx, upstream: RepoName, request: BisectionRequest, now: datetime) -> int:
        """Begin a bisection in the caller's transaction; nothing is written where an error is raised."""
        if (refused := refuse_request(request)) is not None:
            raise BadRequest(refused.detail, hint=refused.hint)
        entry = await self._find_entry(tx, upstream, request.downstream)
        if entry is None:
            raise NotFound(f"{request.downstream} is not on the allowlist of {upstream}")
        refused = await self._refuse(tx, upstream, entry, automatic=request.is_automatic)
        if refused is not None:
            raise NotPossible(refused.detail, hint=refused.hint)
        found = await read_bisection_range(tx, upstream, request, now)
        running = await tx.one(_RUNNING_FOR_JOB, **found.job.names)
        if running is not None:
            raise NotPossible(
                f"bisection {running['bisection_id']} of this job is running",
                hint="wait for it, or stop it first",
            )
        bisection_id = await self._begin(tx, found, request, now)
        subject = f"{entry.name}: {request.job}"
        await note_act(
            tx, upstream, who=request.who, act="bisect", subject=subject, now=now, bisection=bisection_id
        )
        await self._advance(tx, upstream, bisection_id, now)
        return bisection_id

    async def stop(self, upstream: RepoName, bisection_id: int, *, who: str, now: datetime) -> None:
        """Stop a running bisection; its run in progress is not waited for."""
        await self._database.write(lambda tx: self.stop_in(tx, upstream, bisection_id, who=who, now=now))

    async def stop_in(
        self, tx: Tx, upstream: RepoName, bisection_id: int, *, who: str, now: datetime
    ) -> None:
        """Stop one in the caller's transaction; nothing is written where an error is raised."""
        row = await tx.one(_BISECTION, bisection_id=bisection_id, upstream=upstream.key)
        if row is None:
            raise NotFound(f"there is no bisection {bisection_id}")
        if row["state"] != "running":
            raise NotPossible(f"bisection {bisection_id} has ended: {row['outcome']}")
        left = CommitsLeft(row["left_good"], row["left_bad"])
        await note_act(
            tx,
            upstream,
            who=who,
            act="stop_bisection",
            subject=str(bisection_id),
            now=now,
            backend=row["downstream"],
        )
        await self._finish(tx, row, FinishSearch(BisectionOutcome.STOPPED, left), now, f"stopped by {who}")

    async def read_range(self, tx: Tx, upstream: RepoName, bisection_id: int) -> tuple[RangeCommit, ...]:
        """The commits of one as it began: the good end first, the bad end last."""
        row = await tx.one(_BISECTION, bisection_id=bisection_id, upstream=upstream.key)
        return read_range_commits(row["commits"]) if row else ()

    async def advance_after(self, upstream: RepoName, delivery: str, now: datetime) -> None:
        """Advance the bisection that a delivery is a run of."""

        async def unit(tx: Tx) -> None:
            row = await tx.one(_OF_DELIVERY, delivery=delivery, upstream=upstream.key)
            if row is not None:
                await self._advance(tx, upstream, row["bisection_id"], now)

        await self._database.write(unit)

    async def advance_running(self, now: datetime) -> None:
        """Advance every running bisection: time, time-outs and changes of the allowlist end runs without a report."""
        for row in await self._database.quick_read(lambda tx: tx.all(_RUNNING)):
            await self._advance_one(RepoName(row["upstream"]), row["bisection_id"], now)

    async def start_automatic(self, now: datetime) -> list[int]:
        """Begin the bisections that backends with `bisect: auto` need; return their ids."""
        begun = []
        for upstream in self._upstreams:
            for entry in await self._automatic_entries(upstream):
                find = partial(find_automatic, upstream=upstream, entry=entry, now=now)
                bisection_id = await self._start_first(upstream, await self._database.read(find), now)
                begun += [] if bisection_id is None else [bisection_id]
        return begun

    async def _start_first(
        self, upstream: RepoName, requests: Sequence[BisectionRequest], now: datetime
    ) -> int | None:
        """Begin the first of these that can begin: one whose commits are not all recorded must not hold up the others."""
        for request in requests:
            with suppress(BadRequest, NotFound, NotPossible):
                return await self.start(upstream, request, now)
        return None

    async def _automatic_entries(self, upstream: RepoName) -> list[AllowlistEntry]:
        async def unit(tx: Tx) -> list[AllowlistEntry]:
            suspended = await self._targets.read_suspended(tx, upstream)
            try:
                entries = (await self._allowlists.in_force(tx, upstream)).entries
            except NoAllowlist:
                return []
            return [
                entry
                for entry in entries
                if refuse_backend(entry, suspended=entry.name.key in suspended, automatic=True) is None
            ]

        return await self._database.quick_read(unit)

    async def _advance_one(self, upstream: RepoName, bisection_id: int, now: datetime) -> None:
        await self._database.write(lambda tx: self._advance(tx, upstream, bisection_id, now))

    async def _find_entry(self, tx: Tx, upstream: RepoName, downstream: RepoName) -> AllowlistEntry | None:
        try:
            return (await self._allowlists.in_force(tx, upstream)).find(downstream)
        except NoAllowlist:
            return None

    async def _refuse(
        self, tx: Tx, upstream: RepoName, entry: AllowlistEntry, *, automatic: bool
    ) -> RefusedRequest | None:
        suspended = entry.name.key in await self._targets.read_suspended(tx, upstream)
        return refuse_backend(entry, suspended=suspended, automatic=automatic)

    async def _begin(self, tx: Tx, found: BisectionRange, request: BisectionRequest, now: datetime) -> int:
        commits = [[commit.sha, commit.number, commit.title] for commit in found.commits]
        rows = await tx.all(
            _BEGIN,
            **found.job.names,
            ref=found.job.ref,
            commits=json.dumps(commits, ensure_ascii=False),
            fingerprints=" ".join(sorted(found.fingerprints)) or None,
            flake_rate=found.flake_rate,
            most_runs=request.most_runs,
            who=request.who,
            created_at=to_us(now),
            ends_at=to_us(now + request.time),
            state="running",
            left_good=0,
            left_bad=len(commits) - 1,
        )
        if not rows:
            raise NotPossible("a bisection of this job is running")
        bisection_id: int = rows[0]["bisection_id"]
        return bisection_id

    async def _advance(self, tx: Tx, upstream: RepoName, bisection_id: int, now: datetime) -> None:
        row = await tx.one(_BISECTION, bisection_id=bisection_id, upstream=upstream.key)
        if row is None or row["state"] != "running":
            return
        entry = await self._find_entry(tx, upstream, RepoName(row["downstream"]))
        bad_end = len(read_range_commits(row["commits"])) - 1
        timeout = self._timeout(entry)
        runs, has_new = await take_results(tx, row, bad_end=bad_end, timeout=timeout, now=now)
        if has_new:
            await note_change(tx, upstream, "bisection", downstream=row["downstream"], now=now)
        limits = SearchLimits(commits=bad_end, most_runs=row["most_runs"], flake_rate=row["flake_rate"])
        step = next_step(limits, runs)
        end = step if isinstance(step, FinishSearch) else None
        reason = None if end else await self._why_withdrawn(tx, upstream, entry)
        if reason is not None:
            end = FinishSearch(BisectionOutcome.WITHDRAWN, step.left)
        elif end is None and now >= from_us(row["ends_at"]):
            end, reason = FinishSearch(BisectionOutcome.BUDGET_SPENT, step.left), "its time is over"
        if end is not None:
            await self._finish(tx, row, end, now, reason)
        elif isinstance(step, TestCommit) and entry is not None:
            await self._send(tx, row, entry, _NextRun(len(runs) + 1, step), now)

    def _timeout(self, entry: AllowlistEntry | None) -> timedelta:
        own_s = entry.job_timeout_s if entry else None
        return timedelta(seconds=own_s) if own_s else self._job_timeout

    async def _why_withdrawn(self, tx: Tx, upstream: RepoName, entry: AllowlistEntry | None) -> str | None:
        if entry is None:
            return "the backend left the allowlist"
        refused = await self._refuse(tx, upstream, entry, automatic=False)
        return refused.detail if refused else None

    async def _send(self, tx: Tx, row: Row, entry: AllowlistEntry, run: _NextRun, now: datetime) -> None:
        """Record the next run and have its dispatch sent; nothing happens where the run is recorded already."""
        upstream, bisection_id = RepoName(row["upstream"]), row["bisection_id"]
        key = {"bisection_id": bisection_id, "upstream": upstream.key}
        guid = str(uuid5(NAMESPACE_URL, f"{upstream.key}/{bisection_id}/{row['created_at']}/{run.number}"))
        place = {"position": run.step.position, "created_at": to_us(now)}
        if not await tx.all(_ADD_RUN, **key, number=run.number, delivery=guid, **place):
            return
        await tx.run(_NARROW, **key, left_good=run.step.left.good, left_bad=run.step.left.bad)
        commits = read_range_commits(row["commits"])
        payload = bisection_push(
            await self._describe(tx, upstream), bisection_id, commits[run.step.position], commits[0]
        )
        body = json.dumps(payload, ensure_ascii=False).encode()
        await tx.run(_TAKE, **_delivery_row(upstream, guid, bisection_id, body, now))
        shared = {
            "upstream": upstream.key, "delivery": guid, "event": BISECTION_EVENT, "action": None, "number": None,
            "head_sha": None, "lane": f"bisect/{bisection_id}", "created_at": to_us(now),
        }  # fmt: skip
        await write_dispatches(tx, shared, (PlannedDispatch(entry, DispatchState.WAITING),), now)
        await tx.run(_NOT_COUNTED, upstream=upstream.key, delivery=guid)
        await note_change(tx, upstream, "bisection", downstream=entry.name.key, delivery=guid, now=now)

    async def _describe(self, tx: Tx, upstream: RepoName) -> UpstreamRepository:
        row = await tx.one(_UPSTREAM, upstream=upstream.key)
        return UpstreamRepository(
            name=RepoName(row["name"]) if row else upstream,
            repository_id=row["repository_id"] if row else None,
            default_branch=(row["default_branch"] if row else None) or "main",
            github_url=self._github_url,
        )

    async def _finish(
        self, tx: Tx, row: Row, finish: FinishSearch, now: datetime, reason: str | None = None
    ) -> None:
        upstream, left = RepoName(row["upstream"]), finish.left
        key = {"bisection_id": row["bisection_id"], "upstream": row["upstream"]}
        is_found = finish.outcome is BisectionOutcome.FOUND
        culprit = read_range_commits(row["commits"])[left.bad].sha if is_found else None
        ended = await tx.run(
            _FINISH,
            **key,
            outcome=finish.outcome.value,
            reason=reason,
            left_good=left.good,
            left_bad=left.bad,
            culprit=culprit,
            finished_at=to_us(now),
        )
        if not ended:
            return
        for run in await read_runs(tx, row):
            if run.row["result"] is None:
                await drop_delivery(tx, upstream, run.row["delivery"], "the bisection has ended", now)
        await note_act(
            tx,
            upstream,
            who="crcr",
            act="bisection_ended",
            subject=str(row["bisection_id"]),
            now=now,
            backend=row["downstream"],
            outcome=finish.outcome.value,
            culprit=culprit,
        )
        await note_change(tx, upstream, "bisection", downstream=row["downstream"], now=now)
        await queue_notice(tx, _ended_notice(row, finish.outcome, culprit, reason), now)


def _ended_notice(
    row: Row, outcome: BisectionOutcome, culprit: str | None, reason: str | None
) -> NoticeEvent:
    commits = {commit.sha: commit for commit in read_range_commits(row["commits"])}
    found = f"commit {culprit[:12]} broke it: {commits[culprit].title or 'no title'}" if culprit else None
    return NoticeEvent(
        kind=NoticeKind.BISECTED,
        upstream=RepoName(row["upstream"]),
        backend=RepoName(row["downstream"]),
        item=str(row["bisection_id"]),
        summary=found or f"it ended without a culprit: {reason or outcome.value.replace('_', ' ')}",
        details=(f"job: {row['job_name']}",),
        path=f"/crcr/bisections/{row['bisection_id']}",
    )


def read_range_commits(column: str) -> tuple[RangeCommit, ...]:
    return tuple(RangeCommit(*commit) for commit in json.loads(column))


def _delivery_row(
    upstream: RepoName, guid: str, bisection_id: int, body: bytes, now: datetime
) -> dict[str, Any]:
    return {
        "guid": guid,
        "upstream": upstream.key,
        "event": BISECTION_EVENT,
        "action": None,
        "state": DeliveryState.ACCEPTED.value,
        "source": "bisection",
        "ref": bisection_ref(bisection_id),
        "received_at": to_us(now),
        "body_bytes": len(body),
        "body": compress_body(body),
    }


async def find_automatic(
    tx: Tx, upstream: RepoName, entry: AllowlistEntry, now: datetime
) -> list[BisectionRequest]:
    """The bisections of which one may begin now: one of a backend at a time, a few a day, one for each breakage."""
    backend = {"upstream": upstream.key, "downstream": entry.name.key}
    branch = await read_base_branch(tx, upstream)
    count = await tx.one(_BEGUN, **backend, who=AUTOMATIC, since=to_us(now - timedelta(days=1)))
    if branch is None or count is None or count["running"] or count["begun"] >= _MOST_A_DAY:
        return []
    requests = []
    for row in (await find_red_jobs(tx, upstream, branch, now, entry.name))[:_MOST_JOBS]:
        job = RedJob(upstream.key, branch, row["downstream"], row["workflow"], row["job_name"])
        for breakage in (await read_history(tx, job, now - HISTORY)).breakages:
            since = to_us(breakage.first_bad.at)
            if not may_begin_automatically(breakage, now) or await tx.one(
                _BISECTED, **job.names, since=since
            ):
                continue
            requests.append(
                BisectionRequest(
                    downstream=entry.name,
                    job=job.job_name,
                    workflow=job.workflow,
                    good=breakage.good.sha if breakage.good else None,
                    bad=breakage.bad.sha,
                    who=AUTOMATIC,
                )
            )
    return requests
