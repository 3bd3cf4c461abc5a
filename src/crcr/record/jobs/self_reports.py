"""Self-reports: one transaction admits, judges and records a nightly or periodic result.

In a job's key the commit's SHA takes the place of the delivery id; it is empty when the commit is unknown. The run is
bound to no delivery: it may answer a dispatch as well. Self-reports answer no dispatch, so no check follows.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from crcr.decide.jobs.judge import (
    AdmittedCaller,
    CallerStanding,
    CloseJob,
    DisputeJob,
    IgnoredReport,
    OpenJob,
    RejectedReport,
    workflow_key,
)
from crcr.decide.jobs.report import Report
from crcr.decide.jobs.self_report import (
    Admission,
    SelfReportedJob,
    SelfReportFacts,
    SelfReportOutcome,
    admit_self_report,
    choose_upstream,
    judge_self_report,
)
from crcr.decide.model import Binding, RepoName
from crcr.decide.oidc.identity import Identity
from crcr.errors import DefaultBranchUnknown, NoAllowlist
from crcr.record.change_and_audit_log import note_change
from crcr.record.clickhouse.feed_queue import note_job
from crcr.record.jobs.outcomes import JobOutcomes, JobRow
from crcr.record.jobs.report_context import bind_build, find_named_jobs, read_build
from crcr.record.jobs.reports import Reports
from crcr.record.jobs.tested_commits import note_commit
from crcr.record.repositories.default_branches import ask_default_branch
from crcr.record.repositories.downstreams import Downstreams
from crcr.record.statistics.recount_changed_jobs import recount
from crcr.record.store.database import Database, Tx


@dataclass(frozen=True, slots=True)
class _Context:
    """One self-report with its sender and its upstream."""

    report: Report
    identity: Identity
    standing: CallerStanding
    admitted: AdmittedCaller
    body: bytes

    @property
    def upstream(self) -> RepoName:
        return self.standing.upstream

    @property
    def run(self) -> dict[str, Any]:
        return {
            "upstream": self.upstream.key,
            "delivery": self.report.said_commit or "",
            "downstream": self.identity.repository.key,
            "workflow": workflow_key(self.identity, self.report),
            "run_id": self.report.run_id,
            "attempt": self.report.run_attempt,
        }

    def job(self, job_name: str) -> JobRow:
        entry, report = self.admitted.entry, self.report
        facts = {"level": entry.level.value, "event": report.event_type, "number": None, "test": 0}
        return JobRow(
            key={**self.run, "job_name": job_name},
            dispatch={**facts, "head_sha": report.said_commit},
            identity=self.identity,
            expected=entry.expected(job_name),
        )


class SelfReports:
    def __init__(
        self, database: Database, *, reports: Reports, targets: Downstreams, outcomes: JobOutcomes
    ) -> None:
        self._database = database
        self._reports = reports
        self._targets = targets
        self._outcomes = outcomes

    async def admit(
        self, report: Report, identity: Identity
    ) -> tuple[CallerStanding, Admission] | RejectedReport:
        """The upstream that the report is for, and whether its sender may report there."""

        async def unit(tx: Tx) -> tuple[CallerStanding, ...]:
            return await self._reports.read_all_standings(tx, identity.repository)

        standings = await self._database.quick_read(unit)
        claimed_upstream = report.said_upstream
        if (
            claimed_upstream
            and self._reports.is_upstream(claimed_upstream)
            and claimed_upstream.lower() not in {s.upstream.key for s in standings}
        ):
            # If it was recorded for another upstream meanwhile, it stays there.
            raise NoAllowlist(f"no valid allowlist was ever read for {claimed_upstream}")
        standing = choose_upstream(report, identity, standings)
        if isinstance(standing, RejectedReport):
            return standing
        return standing, admit_self_report(report, identity, standing)

    async def take(
        self, report: Report, identity: Identity, standing: CallerStanding, body: bytes, now: datetime
    ) -> SelfReportOutcome | IgnoredReport:
        """Judge and record. `body` is the callback as it came, for a forward."""

        async def unit(tx: Tx) -> SelfReportOutcome | IgnoredReport:
            # Check admission again inside the transaction: it may have ended, or the name been bound, since.
            known = await self._reports.read_standing(tx, standing.upstream, identity.repository)
            admitted = admit_self_report(report, identity, known)
            if not isinstance(admitted, AdmittedCaller):
                return admitted
            context = _Context(report, identity, known, admitted, body)
            facts = SelfReportFacts(
                jobs=await find_named_jobs(tx, context.run, report.job_name),
                build=await read_build(tx, identity, report.run_id),
                default_branch=known.default_branch,
            )
            outcome = judge_self_report(report, identity, admitted.entry, facts)
            if isinstance(outcome, RejectedReport) and outcome.code == DefaultBranchUnknown.code:
                await ask_default_branch(tx, known.upstream, identity.repository, now)
            await self._write(tx, context, outcome, now)
            return outcome

        return await self._database.write(unit)

    async def _write(self, tx: Tx, context: _Context, outcome: SelfReportOutcome, now: datetime) -> None:
        if isinstance(outcome, SelfReportedJob):
            row = await self._record(tx, context, outcome, now)
        elif isinstance(outcome, RejectedReport) and isinstance(outcome.dispute, DisputeJob):
            row = context.job(outcome.dispute.job_name)
            if not await self._outcomes.dispute(tx, row, outcome.dispute, now):
                return
        else:
            return
        await recount(tx, row.key, now)
        note_job(tx, row.key, now)
        await self._outcomes.follow(tx, row.key, now)
        changed = {"downstream": row.key["downstream"], "delivery": row.key["delivery"] or None}
        await note_change(tx, context.upstream, "job", now=now, **changed)

    async def _record(self, tx: Tx, context: _Context, outcome: SelfReportedJob, now: datetime) -> JobRow:
        """Open and close the job at the same time: its queue and execution times are unknown."""
        identity, report, row = context.identity, context.report, context.job(outcome.job_name)
        if context.standing.binding is None and identity.repository_id is not None:
            binding = Binding(identity.repository_id, identity.owner_id, confirmed=False)
            await self._targets.bind(tx, context.upstream, identity.repository, binding, now)
        await bind_build(tx, identity, report.run_id, now)
        opened = OpenJob(
            job_name=outcome.job_name,
            queue_s=None,
            late=False,
            unsigned=outcome.unsigned,
            superseded=False,
            supersedes=(),
            silent_at=now,
            warning=outcome.warning,
        )
        closed = CloseJob(outcome.job_name, outcome.conclusion, None, None, late=False)
        await self._outcomes.open_and_close(
            tx, row, report, opened=opened, closed=closed, body=context.body, now=now
        )
        if report.said_commit is not None:
            await note_commit(tx, context.upstream, identity.repository, report.said_commit, now)
        return row
