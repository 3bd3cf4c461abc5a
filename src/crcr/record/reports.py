"""Reports taken: one transaction judges a report against our own records and writes what it does.

The result, the run's binding, the live change and the forward stand in one commit; a retry of the same report
finds them and is a repeat. Of any number of simultaneous reports exactly one is applied.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import bindparam, select, text, union_all

from crcr.decide.allowlist import Entry
from crcr.decide.downstream import (
    CloseJob,
    DispatchFacts,
    DisputeJob,
    OpenJob,
    Outcome,
    Rejected,
    ReportFacts,
    RunFacts,
    Standing,
    admit,
    judge,
    workflow_key,
)
from crcr.decide.identity import Identity
from crcr.decide.model import Binding, Conclusion, JobState, Level, RepoName
from crcr.decide.report import Report
from crcr.decide.which_job import JobFacts
from crcr.record.allowlists import Allowlists
from crcr.record.database import Database, Row, Tx
from crcr.record.forwards import Forwards
from crcr.record.job_rows import JobRow, close_job, dispute_job, open_job
from crcr.record.log_rows import note_change
from crcr.record.schema import dispatches, jobs, runs
from crcr.record.statement import Statement, inserting
from crcr.record.targets import Targets
from crcr.record.times import from_us, from_us_or_none, to_us

_UPSTREAM_OF = Statement(text("SELECT upstream FROM deliveries WHERE guid = :guid"))
_DISPATCH = Statement(
    select(dispatches).where(
        dispatches.c.upstream == bindparam("upstream"),
        dispatches.c.delivery == bindparam("delivery"),
        dispatches.c.downstream == bindparam("downstream"),
    )
)
# Of any upstream: a run that answers one upstream's delivery may not answer another's.
_RUN = Statement(
    text("SELECT delivery, superseded FROM runs WHERE run_id = :run_id AND downstream = :downstream")
)
_SIBLINGS = Statement(
    text(
        "SELECT run_id, superseded FROM runs WHERE upstream = :upstream AND delivery = :delivery"
        " AND downstream = :downstream AND workflow = :workflow AND run_id <> :run_id"
    )
)
_JOB_FACTS = (
    *("job_name", "reported_name", "state", "first_conclusion", "conclusion"),
    *("opened_by", "in_progress_at", "late_start", "queue_s"),
)
# By the key's own order: the name, and everything that begins with "name (", as a leg of a matrix does.
_RUN_JOBS = select(*(jobs.c[name] for name in _JOB_FACTS)).where(
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
_RAISED = Statement(
    text("SELECT alarm FROM repositories WHERE upstream = :upstream AND downstream = :downstream")
)
_BIND_RUN = Statement(
    inserting(
        runs,
        *(
            "upstream",
            "downstream",
            "run_id",
            "delivery",
            "workflow",
            "workflow_name",
            "issuer",
            "superseded",
            "first_seen_at",
        ),
    ).on_conflict_do_nothing()
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
_ARRIVED = Statement(
    text(
        "UPDATE dispatches SET state = 'sent', sent_at = attempted_at, reason = NULL WHERE upstream = :upstream"
        " AND delivery = :delivery AND downstream = :downstream AND state <> 'sent'"
    )
)
_NO_RETRY = Statement(
    text(
        "UPDATE effects SET state = 'done', finished_at = :at, last_error = NULL WHERE upstream = :upstream"
        " AND target = :downstream AND lane = :lane AND delivery = :delivery AND kind = 'send_dispatch'"
        " AND state IN ('waiting', 'claimed') AND state = 'waiting'"
    )
)


class Reports:
    def __init__(
        self,
        database: Database,
        *,
        allowlists: Allowlists,
        targets: Targets,
        forwards: Forwards,
        upstreams: tuple[RepoName, ...],
        job_timeout: timedelta,
    ) -> None:
        self._database = database
        self._allowlists = allowlists
        self._targets = targets
        self._forwards = forwards
        self._upstreams = {upstream.key: upstream for upstream in upstreams}
        self._job_timeout = job_timeout

    async def standings(self, caller: RepoName, delivery: str) -> tuple[Standing, ...]:
        """How the caller stands with the delivery's upstream; with every upstream when the delivery is unknown."""

        async def unit(tx: Tx) -> tuple[Standing, ...]:
            rows = await tx.all(_UPSTREAM_OF, guid=delivery)
            found = [self._upstreams[row["upstream"]] for row in rows if row["upstream"] in self._upstreams]
            return tuple(
                [await self._standing(tx, each, caller) for each in found or self._upstreams.values()]
            )

        return await self._database.glance(unit)

    async def take(
        self, report: Report, identity: Identity, standing: Standing, body: bytes, now: datetime
    ) -> Outcome:
        """Judge and record. `body` is the callback as it came, for a forward."""
        entry = standing.entry
        if entry is None:
            raise ValueError("a report is taken from listed repositories only")

        async def unit(tx: Tx) -> Outcome:
            if standing.binding is None and (refusal := await self._refuse_stranger(tx, identity, standing)):
                return refusal
            context = await _Context.load(tx, report, identity, standing, self._timeout(entry))
            outcome = judge(report, identity, entry, context.facts, now=now, job_timeout=context.job_timeout)
            await self._write(tx, context, outcome, body, now)
            return outcome

        return await self._database.write(unit)

    async def raise_alarm(self, standing: Standing, identity: Identity, reason: str, now: datetime) -> bool:
        """Raise it once: a stranger who goes on calling must not fill the audit log."""
        upstream, caller = standing.upstream, identity.repository

        async def unit(tx: Tx) -> bool:
            known = await tx.one(_RAISED, upstream=upstream.key, downstream=caller.key)
            if known is not None and known["alarm"] == reason:
                return False
            await self._targets.alarm(tx, upstream, caller, reason, now)
            return True

        return await self._database.write(unit)

    async def _refuse_stranger(self, tx: Tx, identity: Identity, standing: Standing) -> Rejected | None:
        """Of two repositories that show up under one unbound name at once, the first is bound and the other refused."""
        known = await self._targets.known(tx, standing.upstream, identity.repository)
        verdict = admit(identity, replace(standing, binding=known.binding if known else None))
        return verdict if isinstance(verdict, Rejected) else None

    def _timeout(self, entry: Entry) -> timedelta:
        return timedelta(seconds=entry.job_timeout_s) if entry.job_timeout_s else self._job_timeout

    async def _standing(self, tx: Tx, upstream: RepoName, caller: RepoName) -> Standing:
        allowlist = await self._allowlists.in_force(tx, upstream)
        known = await self._targets.known(tx, upstream, caller)
        binding = known.binding if known else None
        return Standing(upstream, allowlist.find(caller), binding, known.suspended if known else False)

    async def _write(self, tx: Tx, context: "_Context", outcome: Outcome, body: bytes, now: datetime) -> None:
        if isinstance(outcome, OpenJob):
            row = await self._open(tx, context, outcome, now)
        elif isinstance(outcome, CloseJob):
            row = await close_job(tx, context.job(outcome.job_name), context.report, outcome, now)
        elif isinstance(outcome, Rejected) and isinstance(outcome.dispute, DisputeJob):
            if not await dispute_job(tx, context.job(outcome.dispute.job_name), outcome.dispute):
                return
            row = None
        else:
            return
        if row is not None:
            await self._forwards.add(tx, row, context.report, body, now)
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

    async def _open(self, tx: Tx, context: "_Context", outcome: OpenJob, now: datetime) -> JobRow:
        identity, upstream, key = context.identity, context.upstream, context.key
        if context.standing.binding is None:
            binding = Binding(identity.repository_id, identity.owner_id, confirmed=False)
            await self._targets.bind(tx, upstream, identity.repository, binding, now)
        if context.facts.run_delivery is None:
            await tx.run(
                _BIND_RUN,
                **key,
                run_id=context.report.run_id,
                workflow=context.workflow,
                workflow_name=context.report.workflow_name,
                issuer=identity.kind.value,
                superseded=int(outcome.superseded),
                first_seen_at=to_us(now),
            )
        for older in outcome.supersedes:
            await tx.run(_SUPERSEDE_RUN, upstream=key["upstream"], downstream=key["downstream"], run_id=older)
            await tx.run(_SUPERSEDE_JOBS, **key, workflow=context.workflow, run_id=older)
        if not context.arrived:
            # The report itself proves that the dispatch arrived: what waits to be sent again need not be.
            await tx.run(_ARRIVED, **key)
            await tx.run(_NO_RETRY, **key, lane=context.lane, at=to_us(now))
        return await open_job(tx, context.job(outcome.job_name), context.report, outcome, now)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Context:
    """One report with the rows that it concerns."""

    standing: Standing
    report: Report
    identity: Identity
    workflow: str
    key: dict[str, str]
    dispatch: Row | None
    facts: ReportFacts
    job_timeout: timedelta

    @classmethod
    async def load(
        cls, tx: Tx, report: Report, identity: Identity, standing: Standing, job_timeout: timedelta
    ) -> "_Context":
        key = {
            "upstream": standing.upstream.key,
            "delivery": report.delivery_id,
            "downstream": identity.repository.key,
        }
        workflow = workflow_key(identity, report)
        dispatch = await tx.one(_DISPATCH, **key)
        bound = await tx.one(_RUN, run_id=report.run_id, downstream=key["downstream"])
        # A run meets its siblings once, when it is bound; from then on its own row says whether it counts.
        siblings = [] if bound else await tx.all(_SIBLINGS, **key, workflow=workflow, run_id=report.run_id)
        run = {**key, "workflow": workflow, "run_id": report.run_id, "attempt": report.run_attempt}
        found = tuple(
            _job_facts(row) for row in await tx.all(_JOBS, **run, **_name_and_legs(report.job_name))
        )
        facts = ReportFacts(
            dispatch=_dispatch_facts(dispatch),
            run_delivery=bound["delivery"] if bound else None,
            run_superseded=bool(bound and bound["superseded"]),
            sibling_runs=tuple(RunFacts(row["run_id"], bool(row["superseded"])) for row in siblings),
            jobs=found,
            opened_others=await _opened_others(tx, run, identity.check_run_id, report.job_name, found),
        )
        return cls(
            standing=standing,
            report=report,
            identity=identity,
            workflow=workflow,
            key=key,
            dispatch=dispatch,
            facts=facts,
            job_timeout=job_timeout,
        )

    @property
    def upstream(self) -> RepoName:
        return self.standing.upstream

    @property
    def arrived(self) -> bool:
        return self.dispatch is not None and self.dispatch["state"] == "sent"

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
        )


def _name_and_legs(name: str) -> dict[str, str]:
    return {"name": name, "legs_from": f"{name} (", "legs_to": f"{name} )"}


async def _opened_others(
    tx: Tx, run: dict[str, Any], signed_id: str | None, name: str, found: tuple[JobFacts, ...]
) -> bool:
    """Asked only where it matters: when rows have the name and this id opened none of them."""
    named = [job for job in found if job.reported_name == name]
    if signed_id is None or not named or any(job.opened_by == signed_id for job in named):
        return False
    return await tx.one(_OPENED, **run, opened_by=signed_id) is not None


def _dispatch_facts(row: Row | None) -> DispatchFacts | None:
    if row is None:
        return None
    return DispatchFacts(
        row["event"], Level(row["level"]), from_us_or_none(row["sent_at"] or row["attempted_at"])
    )


def _job_facts(row: Row) -> JobFacts:
    first, counts = row["first_conclusion"], row["conclusion"]
    return JobFacts(
        job_name=row["job_name"],
        reported_name=row["reported_name"],
        state=JobState(row["state"]),
        first_conclusion=Conclusion(first) if first else None,
        conclusion=Conclusion(counts) if counts else None,
        opened_by=row["opened_by"],
        in_progress_at=from_us(row["in_progress_at"]),
        late_start=bool(row["late_start"]),
        queue_s=row["queue_s"],
    )
