"""One report with the rows that it concerns, read inside the transaction that judges it.

Where a token signs a build's number, the first report of the build binds it to its run: from then on no other build may
report for that run, nor the build for another run.
"""

from collections.abc import Iterable
from datetime import datetime
from operator import itemgetter
from typing import Any

from sqlalchemy import bindparam, select, text, union_all

from crcr.decide.jobs.judge import (
    BuildFacts,
    CallerStanding,
    CloseJob,
    DispatchFacts,
    ReportFacts,
    RunFacts,
    workflow_key,
)
from crcr.decide.jobs.match_job import JobFacts
from crcr.decide.jobs.report import Report
from crcr.decide.model import Conclusion, JobState, Level, RepoName
from crcr.decide.oidc.identity import Identity, IssuerKind
from crcr.decide.row_dataclass import row_dataclass
from crcr.decide.statistics.figures import EndedAs, ended_as
from crcr.decide.statistics.window import result_kind
from crcr.record.clickhouse.feed_queue import FED_SINCE
from crcr.record.jobs.outcomes import JobRow
from crcr.record.schema.joining import builds
from crcr.record.schema.main_tables import jobs
from crcr.record.statistics.sums import Share
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement, inserting
from crcr.record.store.times import from_us, from_us_or_none, to_us

_JOB_FACTS = (
    *("job_name", "reported_name", "first_conclusion", "conclusion"),
    *("opened_by", "in_progress_at", "late_start", "queue_s", "closed_by", "expected", "superseded"),
)
# A run answers one delivery, of whichever upstream; and the caller's standing may have changed since it was
# admitted. Asked together with the jobs that the report may mean, because every report asks all of it. The jobs are
# found by the key's own order: the name, and everything that begins with "name (", as a leg of a matrix does.
_DISPATCH_AND_JOBS = Statement(
    text(
        f"SELECT x.*, j.state AS job_state, {', '.join(f'j.{name}' for name in _JOB_FACTS)} FROM ("  # noqa: S608  our own
        "SELECT d.upstream, d.delivery, d.downstream, d.level, d.state, d.event, d.number, d.head_sha, d.lane, d.test, d.superseded_at,"
        " d.unsure, d.attempted_at, d.sent_at, d.listed_at, d.answer, CASE WHEN n.reported = 1 THEN n.delivery END AS run_delivery,"
        " CASE WHEN n.reported = 0 THEN n.delivery END AS named_delivery,"
        " n.issuer AS run_issuer, n.superseded AS run_superseded, n.reported AS run_reported, n.attempt AS run_attempt, n.rerun_from, n.rerun_at,"
        " r.repository_id, r.owner_id, r.confirmed, r.suspended_at, r.run_webhook_at, r.default_branch,"
        " (SELECT max(v.version) FROM allowlist_versions v WHERE v.upstream = d.upstream AND v.good = 1) AS version,"
        " EXISTS (SELECT 1 FROM failures f WHERE f.delivery = d.delivery AND f.upstream = d.upstream"
        " AND f.downstream = d.downstream) AS has_failures,"
        f" ({FED_SINCE}) AS is_fed"
        " FROM dispatches d LEFT JOIN runs n ON n.run_id = :run_id AND n.downstream = d.downstream"
        " LEFT JOIN repositories r ON r.upstream = d.upstream AND r.downstream = d.downstream"
        " WHERE d.upstream = :upstream AND d.delivery = :delivery AND d.downstream = :downstream"
        # What another relay dispatched is history: no report can be about it.
        " AND d.imported = 0 LIMIT 1) x"
        " LEFT JOIN jobs j ON j.delivery = x.delivery AND j.upstream = x.upstream AND j.downstream = x.downstream"
        " AND j.workflow = :workflow AND j.run_id = :run_id AND j.attempt = :attempt"
        " AND j.job_name >= :name AND j.job_name < :legs_to AND (j.job_name = :name OR j.job_name >= :legs_from)"
    )
)
_SIBLINGS = Statement(
    text(
        "SELECT run_id, superseded FROM runs WHERE upstream = :upstream AND delivery = :delivery"
        " AND downstream = :downstream AND workflow = :workflow AND run_id <> :run_id"
    )
)
_RUN_JOBS = select(jobs.c.state.label("job_state"), *(jobs.c[name] for name in _JOB_FACTS)).where(
    jobs.c.upstream == bindparam("upstream"),
    jobs.c.delivery == bindparam("delivery"),
    jobs.c.downstream == bindparam("downstream"),
    jobs.c.workflow == bindparam("workflow"),
    jobs.c.run_id == bindparam("run_id"),
    jobs.c.attempt == bindparam("attempt"),
)
_JOBS = Statement(
    union_all(
        _RUN_JOBS.where(jobs.c.job_name == bindparam("name")),
        _RUN_JOBS.where(jobs.c.job_name >= bindparam("legs_from"), jobs.c.job_name < bindparam("legs_to")),
    )
)
_OPENED = Statement(
    text(
        "SELECT 1 FROM jobs WHERE upstream = :upstream AND delivery = :delivery AND downstream = :downstream"
        " AND workflow = :workflow AND run_id = :run_id AND attempt = :attempt AND opened_by = :opened_by LIMIT 1"
    )
)
_UNDER_WAY = Statement(
    text(
        "SELECT 1 FROM effects WHERE upstream = :upstream AND target = :downstream AND state = 'claimed'"
        " AND delivery = :delivery AND kind = 'send_dispatch'"
    )
)


@row_dataclass(frozen=True, slots=True, kw_only=True)
class ReportContext:
    """One report with the rows that it concerns."""

    standing: CallerStanding
    report: Report
    identity: Identity
    workflow: str
    key: dict[str, str]
    dispatch: Row | None
    facts: ReportFacts

    @classmethod
    async def load(
        cls,
        tx: Tx,
        report: Report,
        identity: Identity,
        standing: CallerStanding,
        *,
        dispatch: Row | None,
        jobs: tuple[JobFacts, ...],
    ) -> "ReportContext":
        key, run = _dispatch_key(report, identity, standing), _run_key(report, identity, standing)
        workflow = workflow_key(identity, report)
        bound = dispatch["run_delivery"] if dispatch else None
        # A run is compared with its siblings once, when it is bound; then its own row has the result.
        siblings = [] if bound else await tx.all(_SIBLINGS, **key, workflow=workflow, run_id=report.run_id)
        facts = ReportFacts(
            dispatch=await _dispatch_facts(tx, dispatch),
            run_delivery=bound,
            named_delivery=dispatch["named_delivery"] if dispatch else None,
            default_branch=dispatch["default_branch"] if dispatch else None,
            run_superseded=bool(dispatch and dispatch["run_superseded"]),
            build=await read_build(tx, identity, report.run_id),
            run_kind=IssuerKind(dispatch["run_issuer"]) if dispatch and dispatch["run_issuer"] else None,
            sibling_runs=tuple(RunFacts(row["run_id"], bool(row["superseded"])) for row in siblings),
            jobs=jobs,
            rerun_asked_at=_rerun_request_time(dispatch, report),
            opened_others=await _opened_others(tx, run, identity.check_run_id, report.job_name, jobs),
        )
        return cls(
            standing=standing,
            report=report,
            identity=identity,
            workflow=workflow,
            key=key,
            dispatch=dispatch,
            facts=facts,
        )

    @property
    def upstream(self) -> RepoName:
        return self.standing.upstream

    @property
    def run_came_by_webhook(self) -> bool:
        """Whether a webhook created the run before its first report."""
        return self.dispatch is not None and self.dispatch["run_reported"] == 0

    @property
    def is_fed(self) -> bool:
        """Whether results are queued for ClickHouse."""
        return self.dispatch is not None and self.dispatch["is_fed"] is not None

    @property
    def has_checks(self) -> bool:
        """Whether its results have checks on the upstream's pull requests."""
        return self.dispatch is not None and self.dispatch["level"] >= Level.L3

    @property
    def proves_arrival(self) -> bool:
        """Whether this report proves that an unsure dispatch arrived; one in progress or untried is left to its worker."""
        return (
            self.dispatch is not None
            and self.dispatch["state"] != "sent"
            and bool(self.dispatch["unsure"])
            and self.facts.run_delivery is None  # a run known before answers an earlier sending
        )

    def ended_as(self, outcome: CloseJob) -> EndedAs | None:
        """The result's category in the sums, if this report alone decides it; None when rows must be read."""
        dispatch, report = self.dispatch, self.report
        job = next((job for job in self.facts.jobs if job.job_name == outcome.job_name), None)
        if dispatch is None or dispatch["test"] or job is None or job.state is not JobState.IN_PROGRESS:
            return None
        if (dispatch["run_attempt"] or 1) > report.run_attempt:
            return None
        return ended_as(
            JobState.COMPLETED,
            outcome.conclusion,
            job.expected,
            superseded=job.superseded or dispatch["superseded_at"] is not None,
            earlier=False,
        )

    def may_change_verdicts(self, ended: EndedAs | None) -> bool:
        """Whether the result can be evidence: all but the first pass of a job on a pull request without failures."""
        if self.dispatch is None or self.dispatch["test"]:
            return False
        is_first_pass = ended is EndedAs.SUCCESS and not self.dispatch["has_failures"]
        return not is_first_pass or self.dispatch["event"] != "pull_request"

    def share(self, outcome: CloseJob, ended: EndedAs) -> Share | None:
        """The share that the result adds to the sums."""
        if self.dispatch is None or (kind := result_kind(self.dispatch["event"])) is None:
            return None
        job = next(job for job in self.facts.jobs if job.job_name == outcome.job_name)
        return Share(
            upstream=self.key["upstream"],
            downstream=self.key["downstream"],
            kind=kind,
            at_us=to_us(job.in_progress_at),
            workflow=self.workflow,
            workflow_name=self.report.workflow_name,
            job_name=outcome.job_name,
            ended=ended,
            queue_s=job.queue_s,
            execution_s=outcome.execution_s,
        )

    @property
    def number(self) -> int | None:
        return self.dispatch["number"] if self.dispatch else None

    @property
    def lane(self) -> str | None:
        return self.dispatch["lane"] if self.dispatch else None

    def job(self, job_name: str) -> JobRow:
        if self.dispatch is None:
            raise ValueError("a job has a dispatch")
        return JobRow(
            key={
                **self.key,
                "workflow": self.workflow,
                "run_id": self.report.run_id,
                "attempt": self.report.run_attempt,
                "job_name": job_name,
            },
            dispatch=self.dispatch,
            identity=self.identity,
            expected=self.standing.entry.expected(job_name) if self.standing.entry else None,
        )


async def read_dispatch_and_jobs(
    tx: Tx, report: Report, identity: Identity, standing: CallerStanding
) -> tuple[Row | None, tuple[JobFacts, ...]]:
    """The dispatch that the report answers, with its run as recorded and the caller's standing now; and the jobs."""
    run, name = _run_key(report, identity, standing), report.job_name
    rows = await tx.all(_DISPATCH_AND_JOBS, **run, **_names(name))
    if not rows:
        return None, await find_named_jobs(tx, run, name)
    return rows[0], _sorted_jobs(row for row in rows if row["job_name"] is not None)


def _dispatch_key(report: Report, identity: Identity, standing: CallerStanding) -> dict[str, str]:
    return {
        "upstream": standing.upstream.key,
        "delivery": report.delivery_id,
        "downstream": (standing.dispatched_as or identity.repository).key,
    }


def _run_key(report: Report, identity: Identity, standing: CallerStanding) -> dict[str, Any]:
    return {
        **_dispatch_key(report, identity, standing),
        "workflow": workflow_key(identity, report),
        "run_id": report.run_id,
        "attempt": report.run_attempt,
    }


def _names(name: str) -> dict[str, str]:
    return {"name": name, "legs_from": f"{name} (", "legs_to": f"{name} )"}


async def find_named_jobs(tx: Tx, run: dict[str, Any], name: str) -> tuple[JobFacts, ...]:
    """The jobs of a run's attempt that have the name, or could be a leg of it."""
    return _sorted_jobs(await tx.all(_JOBS, **run, **_names(name)))


def _sorted_jobs(rows: Iterable[Row]) -> tuple[JobFacts, ...]:
    return tuple(_job_facts(row) for row in sorted(rows, key=itemgetter("job_name")))


async def _opened_others(
    tx: Tx, run: dict[str, Any], signed_id: str | None, name: str, jobs: tuple[JobFacts, ...]
) -> bool:
    """Whether the signed id opened other jobs; read only when rows have the name and this id opened none of them."""
    named = [job for job in jobs if job.reported_name == name]
    if signed_id is None or not named or any(job.opened_by == signed_id for job in named):
        return False
    return await tx.one(_OPENED, **run, opened_by=signed_id) is not None


async def _dispatch_facts(tx: Tx, row: Row | None) -> DispatchFacts | None:
    if row is None:
        return None
    key = {name: row[name] for name in ("upstream", "delivery", "downstream")}
    sent = row["sent_at"] is not None or row["state"] == "sent"
    arrived = sent or bool(row["unsure"]) or await tx.one(_UNDER_WAY, **key) is not None
    began_at = from_us_or_none(row["sent_at"] or row["attempted_at"])
    return DispatchFacts(row["event"], Level(row["level"]), began_at, arrived)


def _rerun_request_time(row: Row | None, report: Report) -> datetime | None:
    """When the relay requested the re-run that is now reporting, if it did."""
    if row is None or row["rerun_from"] is None or report.run_attempt != row["rerun_from"] + 1:
        return None
    return from_us_or_none(row["rerun_at"])


def _job_facts(row: Row) -> JobFacts:
    first, counts, expected = row["first_conclusion"], row["conclusion"], row["expected"]
    return JobFacts(
        job_name=row["job_name"],
        reported_name=row["reported_name"],
        state=JobState(row["job_state"]),
        first_conclusion=Conclusion(first) if first else None,
        conclusion=Conclusion(counts) if counts else None,
        opened_by=row["opened_by"],
        in_progress_at=from_us(row["in_progress_at"]),
        late_start=bool(row["late_start"]),
        queue_s=row["queue_s"],
        closed_by=row["closed_by"],
        expected=Conclusion(expected) if expected else None,
        superseded=bool(row["superseded"]),
    )


_RUN_OF_BUILD = Statement(
    text("SELECT run_id FROM builds WHERE build = :build AND downstream = :downstream AND issuer = :issuer")
)
_BUILD_OF_RUN = Statement(
    text("SELECT build FROM builds WHERE run_id = :run_id AND downstream = :downstream AND issuer = :issuer")
)
_BIND = Statement(
    inserting(builds, "build", "downstream", "issuer", "run_id", "first_seen_at").on_conflict_do_nothing()
)


async def read_build(tx: Tx, identity: Identity, run_id: str) -> BuildFacts | None:
    """The recorded binding of the build and of the run; None for issuers that sign no build."""
    if identity.build is None:
        return None
    of = {"downstream": identity.repository.key, "issuer": identity.issuer}
    run = await tx.one(_RUN_OF_BUILD, build=identity.build, **of)
    build = await tx.one(_BUILD_OF_RUN, run_id=run_id, **of)
    return BuildFacts(run["run_id"] if run else None, build["build"] if build else None)


async def bind_build(tx: Tx, identity: Identity, run_id: str, now: datetime) -> None:
    if identity.build is None:
        return
    of = {"downstream": identity.repository.key, "issuer": identity.issuer}
    await tx.run(_BIND, build=identity.build, run_id=run_id, first_seen_at=to_us(now), **of)
