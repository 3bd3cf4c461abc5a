"""Reports of jobs: one transaction judges a report against our own records and writes its consequences.

The result, the run's binding, the live change and the forward are in one commit; a retry of the same report finds them
and is a repeat. Of any number of simultaneous reports exactly one is applied.
"""

from dataclasses import replace
from datetime import datetime, timedelta

from sqlalchemy import text

from crcr.decide.allowlist.entries import AllowlistEntry
from crcr.decide.jobs.judge import (
    AdmittedCaller,
    CallerStanding,
    CloseJob,
    DisputeJob,
    IgnoredReport,
    OpenJob,
    RejectedReport,
    ReportOutcome,
    admit_caller,
    judge_report,
)
from crcr.decide.jobs.report import Report
from crcr.decide.model import Binding, RepoName
from crcr.decide.oidc.identity import Identity, IssuerKind
from crcr.errors import DefaultBranchUnknown, NoAllowlist
from crcr.record.bisection.bisection_runs import request_advance
from crcr.record.change_and_audit_log import note_change
from crcr.record.checks.refresh import CheckRefresher
from crcr.record.clickhouse.feed_queue import note_job
from crcr.record.deliveries.dispatches import mark_arrived
from crcr.record.jobs.outcomes import JobOutcomes
from crcr.record.jobs.report_context import ReportContext, bind_build, read_dispatch_and_jobs
from crcr.record.repositories.allowlists import Allowlists
from crcr.record.repositories.default_branches import ask_default_branch
from crcr.record.repositories.downstreams import Downstreams
from crcr.record.repositories.renames import find_dispatched_name, find_entry_by_id
from crcr.record.schema.main_tables import runs
from crcr.record.statistics import sums
from crcr.record.statistics.recount_changed_jobs import recount
from crcr.record.store.database import Database, Row, Tx
from crcr.record.store.statement import Statement, inserting
from crcr.record.store.times import to_us
from crcr.record.workflow_runs.lookup_effects import look_up_result

_STANDING_ROWS = Statement(
    text(
        "SELECT d.upstream, r.repository_id, r.owner_id, r.confirmed, r.suspended_at, r.default_branch,"
        " x.downstream AS dispatched,"
        " (SELECT max(v.version) FROM allowlist_versions v WHERE v.upstream = d.upstream AND v.good = 1) AS version"
        " FROM deliveries d LEFT JOIN repositories r ON r.upstream = d.upstream AND r.downstream = :caller"
        " LEFT JOIN dispatches x ON x.delivery = d.guid AND x.upstream = d.upstream AND x.downstream = :caller"
        " WHERE d.guid = :guid ORDER BY d.upstream"
    )
)
# Over all upstreams: a run that belongs to one upstream's delivery may not report for another's.
_RAISED = Statement(
    text("SELECT alarm FROM repositories WHERE upstream = :upstream AND downstream = :downstream")
)


_BIND_RUN = Statement(
    inserting(
        runs,
        *("upstream", "downstream", "run_id", "delivery", "workflow", "workflow_name", "issuer"),
        *("superseded", "first_seen_at"),
    ).on_conflict_do_nothing()
)
# A workflow_run webhook with the delivery in its name may have created the run before its first report.
_ADOPT_RUN = Statement(
    text(
        "UPDATE runs SET delivery = :delivery, workflow = :workflow, workflow_name = :workflow_name,"
        " issuer = :issuer, superseded = :superseded, reported = 1"
        " WHERE run_id = :run_id AND upstream = :upstream AND downstream = :downstream AND reported = 0"
    )
)
_NEW_ATTEMPT = Statement(
    text(
        "UPDATE runs SET attempt = :attempt, attempt_at = :at WHERE run_id = :run_id AND upstream = :upstream"
        " AND downstream = :downstream AND attempt < :attempt"
    )
)
_SUPERSEDE_RUN = Statement(
    text(
        "UPDATE runs SET superseded = 1 WHERE upstream = :upstream AND downstream = :downstream AND run_id = :run_id"
    )
)
_SUPERSEDE_JOBS = Statement(
    text(
        "UPDATE jobs SET superseded = 1 WHERE upstream = :upstream AND delivery = :delivery"
        " AND downstream = :downstream AND workflow = :workflow AND run_id = :run_id"
    )
)
_ANSWERED = Statement(
    text(
        "UPDATE dispatches SET answer = NULL WHERE upstream = :upstream AND delivery = :delivery"
        " AND downstream = :downstream AND answer IS NOT NULL"
    )
)
_NO_RETRY = Statement(
    text(
        "UPDATE effects SET state = 'done', finished_at = :at, last_error = NULL WHERE upstream = :upstream"
        " AND target = :downstream AND lane = :lane AND delivery = :delivery AND kind = 'send_dispatch'"
        " AND state IN ('waiting', 'claimed') AND state = 'waiting'"
    )
)
_NOT_PARKED = Statement(
    text(
        "UPDATE effects SET state = 'done', finished_at = :at WHERE upstream = :upstream AND state = 'parked'"
        " AND target = :downstream AND delivery = :delivery AND kind = 'send_dispatch'"
    )
)


class Reports:
    def __init__(
        self,
        database: Database,
        *,
        allowlists: Allowlists,
        targets: Downstreams,
        outcomes: JobOutcomes,
        refresher: CheckRefresher,
        upstreams: tuple[RepoName, ...],
        job_timeout: timedelta,
    ) -> None:
        self._database = database
        self._allowlists = allowlists
        self._targets = targets
        self._outcomes = outcomes
        self._refresher = refresher
        self._upstreams = {upstream.key: upstream for upstream in upstreams}
        self._job_timeout = job_timeout

    async def read_standings(
        self, caller: RepoName, delivery: str, caller_id: int | None = None
    ) -> tuple[CallerStanding, ...]:
        """The caller's standing with the delivery's upstream; with every upstream when the delivery is unknown.

        By its id the caller is found under a former or newer name, too, beside the one in its token.
        """

        async def unit(tx: Tx) -> tuple[CallerStanding, ...]:
            rows = await tx.all(_STANDING_ROWS, guid=delivery, caller=caller.key)
            standings = [
                await self._read_standing_with(tx, row, caller, delivery, caller_id=caller_id)
                for row in rows
                if row["upstream"] in self._upstreams
            ]
            return tuple(standings) or await self.read_all_standings(tx, caller)

        return await self._database.quick_read(unit)

    async def take(
        self, report: Report, identity: Identity, standing: CallerStanding, body: bytes, now: datetime
    ) -> ReportOutcome | IgnoredReport:
        """Admit, judge and record. `body` is the callback as it came, for a forward."""
        if standing.entry is None:
            raise ValueError("a report is taken from listed repositories only")

        async def unit(tx: Tx) -> ReportOutcome | IgnoredReport:
            dispatch, jobs = await read_dispatch_and_jobs(tx, report, identity, standing)
            standing_now = await self._reread_standing(tx, dispatch, identity, standing)
            verdict = admit_caller(identity, standing_now)
            if not isinstance(verdict, AdmittedCaller):
                return verdict
            context = await ReportContext.load(
                tx, report, identity, standing_now, dispatch=dispatch, jobs=jobs
            )
            timeout = self._timeout(verdict.entry)
            outcome = judge_report(
                report, identity, verdict.entry, context.facts, now=now, job_timeout=timeout
            )
            if isinstance(outcome, RejectedReport) and outcome.code == DefaultBranchUnknown.code:
                await ask_default_branch(tx, standing.upstream, identity.repository, now)
            await self._write(tx, context, outcome, body, now)
            return outcome

        # All that a report decides by is its caller's, under the name that it was dispatched to; what callers share,
        # they only add to.
        return await self._database.write(unit, lane=(standing.dispatched_as or identity.repository).key)

    async def raise_alarm(
        self, standing: CallerStanding, identity: Identity, reason: str, now: datetime
    ) -> bool:
        """Raise the alarm once: repeated calls of a foreign repository must not fill the audit log."""
        upstream, caller = standing.upstream, identity.repository

        async def unit(tx: Tx) -> bool:
            known = await tx.one(_RAISED, upstream=upstream.key, downstream=caller.key)
            if known is not None and known["alarm"] == reason:
                return False
            await self._targets.alarm(tx, upstream, caller, reason, now)
            return True

        return await self._database.write(unit)

    async def _reread_standing(
        self, tx: Tx, dispatch: Row | None, identity: Identity, standing: CallerStanding
    ) -> CallerStanding:
        """The standing inside the transaction: the admission may have ended, or the name been bound, since."""
        if dispatch is None:
            return standing
        standing_now = await self._read_standing_row(
            tx, dispatch, identity.repository, identity.repository_id
        )
        if standing.dispatched_as is None:
            return standing_now
        # The row is of a former name, which may belong to another repository now; the dispatch was found by the id.
        return replace(standing_now, binding=standing.binding, dispatched_as=standing.dispatched_as)

    def _timeout(self, entry: AllowlistEntry) -> timedelta:
        return timedelta(seconds=entry.job_timeout_s) if entry.job_timeout_s else self._job_timeout

    async def _read_standing_with(
        self, tx: Tx, row: Row, caller: RepoName, delivery: str, *, caller_id: int | None
    ) -> CallerStanding:
        """The caller's standing, with the other name under which the delivery was dispatched to its repository."""
        standing = await self._read_standing_row(tx, row, caller, caller_id)
        if row["dispatched"] is not None or caller_id is None:
            return standing
        name = await find_dispatched_name(tx, standing.upstream, delivery, caller_id)
        if name is None:
            return standing
        binding = standing.binding or Binding(caller_id, None, confirmed=False)
        return replace(standing, dispatched_as=name, binding=binding)

    async def _read_standing_row(
        self, tx: Tx, row: Row, caller: RepoName, caller_id: int | None
    ) -> CallerStanding:
        upstream = self._upstreams[row["upstream"]]
        allowlist = await self._allowlists.version(tx, upstream, row["version"])
        entry = allowlist.find(caller)
        if entry is None:
            entry = await find_entry_by_id(tx, upstream, allowlist, caller_id)
        bound = row["repository_id"]
        binding = None if bound is None else Binding(bound, row["owner_id"], bool(row["confirmed"]))
        suspended = row["suspended_at"] is not None
        return CallerStanding(upstream, entry, binding, suspended, row["default_branch"])

    async def read_all_standings(self, tx: Tx, caller: RepoName) -> tuple[CallerStanding, ...]:
        """The caller's standing with every upstream that has an allowlist; no allowlist at all is an outage."""
        standings: list[CallerStanding] = []
        missing: NoAllowlist | None = None
        for upstream in self._upstreams.values():
            try:
                standings.append(await self.read_standing(tx, upstream, caller))
            except NoAllowlist as none:
                missing = none
        if not standings and missing is not None:
            raise missing
        return tuple(standings)

    def is_upstream(self, name: str) -> bool:
        return name.lower() in self._upstreams

    async def read_standing(self, tx: Tx, upstream: RepoName, caller: RepoName) -> CallerStanding:
        allowlist = await self._allowlists.in_force(tx, upstream)
        known = await self._targets.find(tx, upstream, caller)
        binding = known.binding if known else None
        suspended, branch = (known.suspended, known.default_branch) if known else (False, None)
        return CallerStanding(upstream, allowlist.find(caller), binding, suspended, branch)

    async def _write(
        self, tx: Tx, context: ReportContext, outcome: ReportOutcome, body: bytes, now: datetime
    ) -> None:
        if isinstance(outcome, OpenJob):
            await self._open(tx, context, outcome, body, now)
        elif isinstance(outcome, CloseJob):
            await self._close(tx, context, outcome, body, now)
        elif isinstance(outcome, RejectedReport) and isinstance(outcome.dispute, DisputeJob):
            disputed = context.job(outcome.dispute.job_name)
            if not await self._outcomes.dispute(tx, disputed, outcome.dispute, now):
                return
            await recount(tx, disputed.key, now)
            await self._outcomes.follow(tx, disputed.key, now)
            note_job(tx, disputed.key, now)
        else:
            return
        key = context.key
        await note_change(
            tx,
            context.upstream,
            "job",
            downstream=key["downstream"],
            delivery=key["delivery"],
            number=context.number,
            now=now,
        )
        if context.dispatch is not None and not isinstance(outcome, OpenJob):
            await request_advance(tx, context.dispatch, now)
        if context.has_checks:
            await self._follow_up(tx, context, outcome, now)

    async def _follow_up(self, tx: Tx, context: ReportContext, outcome: ReportOutcome, now: datetime) -> None:
        """After a result of L3 or L4: refresh the checks, and look the run up on GitHub."""
        if context.dispatch is not None:
            await self._refresher.request_refresh_for(tx, context.dispatch, now)
            if isinstance(outcome, CloseJob) and context.identity.kind is IssuerKind.GITHUB:
                await look_up_result(tx, context.dispatch, now)

    async def _open(
        self, tx: Tx, context: ReportContext, outcome: OpenJob, body: bytes, now: datetime
    ) -> None:
        identity, upstream, key = context.identity, context.upstream, context.key
        if context.standing.binding is None and identity.repository_id is not None:
            binding = Binding(identity.repository_id, identity.owner_id, confirmed=False)
            await self._targets.bind(tx, upstream, identity.repository, binding, now)
        await bind_build(tx, identity, context.report.run_id, now)
        if context.facts.run_delivery is None:
            await self._bind_run(tx, context, outcome, now)
        if context.report.run_attempt > 1:
            run = {name: key[name] for name in ("upstream", "downstream")}
            attempt = context.report.run_attempt
            await tx.run(_NEW_ATTEMPT, run_id=context.report.run_id, attempt=attempt, at=to_us(now), **run)
        for older in outcome.supersedes:
            await tx.run(_SUPERSEDE_RUN, upstream=key["upstream"], downstream=key["downstream"], run_id=older)
            await tx.run(_SUPERSEDE_JOBS, **key, workflow=context.workflow, run_id=older)
            await recount(tx, {**key, "workflow": context.workflow, "run_id": older}, now)
        if context.proves_arrival:
            # The report itself proves that the dispatch arrived: what waits to be sent again need not be. Effects come
            # before their dispatch, as in a claim: two that went the other way round would wait for each other.
            await tx.run(_NO_RETRY, **key, lane=context.lane, at=to_us(now))
            await tx.run(_NOT_PARKED, **key, at=to_us(now))
            await mark_arrived(tx, key, now)
        row = context.job(outcome.job_name)
        await self._outcomes.open(tx, row, context.report, outcome, body=body, now=now)
        if context.report.run_attempt > 1:
            await recount(tx, row.key, now)

    async def _close(
        self, tx: Tx, context: ReportContext, outcome: CloseJob, body: bytes, now: datetime
    ) -> None:
        """Close the job and count it. A running job of the newest attempt needs no further reads; for others the rows are read."""
        row, ended = context.job(outcome.job_name), context.ended_as(outcome)
        await self._outcomes.close(tx, row, context.report, outcome, body=body, now=now, ended=ended)
        if ended is None:
            await recount(tx, row.key, now)
        elif (share := context.share(outcome, ended)) is not None:
            sums.add(tx, share)
            if context.is_fed:
                note_job(tx, row.key, now)
        if context.may_change_verdicts(ended):
            await self._outcomes.follow(tx, row.key, now)

    async def _bind_run(self, tx: Tx, context: ReportContext, outcome: OpenJob, now: datetime) -> None:
        run = {
            **context.key,
            "run_id": context.report.run_id,
            "workflow": context.workflow,
            "workflow_name": context.report.workflow_name,
            "issuer": context.identity.kind.value,
            "superseded": int(outcome.superseded),
        }
        if context.run_came_by_webhook:
            await tx.run(_ADOPT_RUN, **run)
        else:
            await tx.run(_BIND_RUN, first_seen_at=to_us(now), **run)
        if context.dispatch is not None and context.dispatch["answer"] is not None:
            await tx.run(_ANSWERED, **context.key)
