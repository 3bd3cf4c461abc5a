"""Random interleavings of reports, repeats, sweeps, re-runs and clock moves, compared with an independent model.

The real relay, store and tokens are compared with a small model of the protocol. After every step the stored rows equal
the model's rows, and each transition was announced to the pages once.
"""

import asyncio
import tempfile
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import structlog
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from github_sim.github import JobSpec, Workflow, WorkflowJob, WorkflowRun
from support.downstream.callbacks import BACKEND, LISTED, report_outcome
from support.running_relay import UPSTREAM, RunningRelay, running_relay

pytestmark = pytest.mark.timeout(600)  # shrinking a failure to the necessary steps takes minutes

NAMES = ("build", "build", "report")
FEW, JOB = st.sampled_from([0, 0, 0, 0, 1, 1, 2, 3, 4, 5]), st.integers(0, len(NAMES) - 1)
WORKFLOWS = [
    Workflow(name="CI", path=f".github/workflows/{name}.yml", jobs=tuple(map(JobSpec, NAMES)))
    for name in ("ci", "more")
]
TIMEOUT_S = 6 * 3600.0
PATIENCE_S = 3600.0
FROM_BEST_TO_WORST = ("success", "cancelled", "failure")
_MOST_VERDICT_CHANGES = 2
FIELDS = (
    *("state", "first_conclusion", "conclusion", "disputed_conclusion", "disputed", "late", "superseded"),
    *("queue_s", "execution_s"),
)

RowKey = tuple[str, str, int, str]
"""Delivery, run, attempt, name of the row."""


@dataclass
class Row:
    workflow: str
    reported_name: str
    opened_by: int
    started_at: float
    late_start: bool
    queue_s: float | None
    closed_by: int | None = None
    state: str = "in_progress"
    first_conclusion: str | None = None
    conclusion: str | None = None
    disputed_conclusion: str | None = None
    disputed: int = 0
    late: int = 0
    superseded: int = 0
    execution_s: float | None = None
    looked_up_at: float | None = None


@dataclass(frozen=True)
class SentReport:
    """One report of a job."""

    delivery: str
    run: WorkflowRun
    attempt: int
    signer: WorkflowJob
    name: str
    status: str
    conclusion: str | None
    late: bool


class Model:
    """The rules of the protocol, without the relay's code."""

    def __init__(self) -> None:
        self.now = 0.0
        self.rows: dict[RowKey, Row] = {}
        self.delivery_by_run: dict[int, str] = {}
        self.transitions = 0

    def apply(self, report: SentReport) -> str:
        if self.delivery_by_run.get(report.run.id, report.delivery) != report.delivery:
            return "run_bound_elsewhere"
        attempt = {k[3]: r for k, r in self.rows.items() if k[:3] == self._attempt(report)}
        named = {k: r for k, r in attempt.items() if r.reported_name == report.name}
        mine = [row for row in named.values() if row.opened_by == report.signer.id]
        if report.status == "in_progress":
            return "repeat" if mine else self._open(report, attempt, named)
        if mine:
            return self._finish(mine[0], report)
        if not named:
            return "no_in_progress"
        if any(row.opened_by == report.signer.id for row in attempt.values()):
            return "claim_mismatch"
        return self._finish_for_another(list(named.values()), report)

    def _open(self, report: SentReport, attempt: dict[str, Row], named: dict[str, Row]) -> str:
        name, number = report.name, 2
        while name in attempt or (named and name == report.name):
            name, number = f"{report.name} ({number})", number + 1
        measured = report.attempt == 1 and not report.late
        self.rows[(*self._attempt(report), name)] = Row(
            workflow=report.run.workflow.path,
            reported_name=report.name,
            opened_by=report.signer.id,
            started_at=self.now,
            late_start=report.late,
            queue_s=self.now if measured else None,
            late=int(report.late),
        )
        self.delivery_by_run[report.run.id] = report.delivery
        self._newest_run_counts(report)
        return self._applied()

    def _newest_run_counts(self, report: SentReport) -> None:
        rows_of_workflow = {
            key: row
            for key, row in self.rows.items()
            if key[0] == report.delivery and row.workflow == report.run.workflow.path
        }
        newest = max(int(key[1]) for key in rows_of_workflow)
        for key, row in rows_of_workflow.items():
            row.superseded = int(int(key[1]) < newest)

    def _finish_for_another(self, named: list[Row], report: SentReport) -> str:
        if any(
            row.closed_by == report.signer.id and row.first_conclusion == report.conclusion for row in named
        ):
            return "repeat"
        unfinished = [row for row in named if row.state != "completed"]
        if len(unfinished) == 1:
            return self._finish(unfinished[0], report)
        if not unfinished and (
            len(named) == 1 or {row.first_conclusion for row in named} == {report.conclusion}
        ):
            return self._finish(named[0], report)
        return "ambiguous_job"

    def _finish(self, row: Row, report: SentReport) -> str:
        assert report.conclusion is not None
        if row.state == "completed":
            return (
                "repeat"
                if report.conclusion == row.first_conclusion
                else self._dispute(row, report.conclusion)
            )
        row.late |= int(row.state == "timed_out")
        row.state, row.first_conclusion, row.conclusion = "completed", report.conclusion, report.conclusion
        row.closed_by = report.signer.id
        row.execution_s = None if row.late_start else self.now - row.started_at
        return self._applied()

    def _dispute(self, row: Row, claimed: str) -> str:
        before = asdict(row)
        row.disputed, row.disputed_conclusion = 1, claimed
        row.conclusion = max(row.conclusion or "", claimed, key=FROM_BEST_TO_WORST.index)
        self.transitions += asdict(row) != before
        return "conflicting_result"

    def sweep(self) -> None:
        """A silent job is looked up; GitHub does not respond here, so it times out after an hour."""
        for row in self.rows.values():
            if row.state != "in_progress":
                continue
            if row.looked_up_at is None:
                row.looked_up_at = self.now if row.started_at + TIMEOUT_S <= self.now else None
            elif row.looked_up_at + PATIENCE_S <= self.now:
                row.state = "timed_out"
                self.transitions += 1

    def _applied(self) -> str:
        self.transitions += 1
        return "applied"

    @staticmethod
    def _attempt(report: SentReport) -> tuple[str, str, int]:
        return report.delivery, str(report.run.id), report.attempt


class Interleavings(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
        self.loop = asyncio.new_event_loop()
        self.stack = AsyncExitStack()
        self.folder = self.stack.enter_context(tempfile.TemporaryDirectory())
        self.model = Model()
        self.relay: RunningRelay
        self.runs: list[WorkflowRun]

    @initialize()
    def dispatch(self) -> None:
        self.loop.run_until_complete(self._dispatch())

    async def _dispatch(self) -> None:
        opening = running_relay(
            Path(self.folder), LISTED, downstreams=(BACKEND,), CRCR_RATE_LIMIT_PER_MIN="1000000"
        )
        self.relay = await self.stack.enter_async_context(opening)
        self.relay.github.repository(BACKEND).workflows = WORKFLOWS
        for _ in range(2):
            await self.relay.github.open_pr(UPSTREAM)
        await self.relay.drain()
        self.runs = self.relay.github.runs(BACKEND)

    @rule(
        which=st.tuples(FEW, FEW, JOB),
        name=st.sampled_from([None, None, None, "build", "build (2)", "new"]),
        late=st.sampled_from([False, False, False, True]),
        wrong_delivery=st.sampled_from([False] * 24 + [True]),
        copies=st.integers(1, 3),
    )
    def start(
        self, which: tuple[int, int, int], name: str | None, *, late: bool, wrong_delivery: bool, copies: int
    ) -> None:
        """A job of any attempt of any run reports a start, up to three times concurrently."""
        self._report(self._make_report(which, name=name, late=late, wrong_delivery=wrong_delivery), copies)

    @rule(
        which=st.tuples(FEW, FEW, st.sampled_from([0, 1, 2, 2, 2])),
        name=st.sampled_from(["build", "build", "report"]),
        conclusion=st.sampled_from(FROM_BEST_TO_WORST),
        copies=st.integers(1, 3),
    )
    def finish(self, which: tuple[int, int, int], name: str, conclusion: str, copies: int) -> None:
        """A job reports a result of itself or of another job."""
        self._report(self._make_report(which, name=name, conclusion=conclusion), copies)

    def _make_report(
        self,
        which: tuple[int, int, int],
        *,
        name: str | None,
        conclusion: str | None = None,
        late: bool = False,
        wrong_delivery: bool = False,
    ) -> SentReport:
        run = self.runs[which[0] % len(self.runs)]
        attempt = run.attempt - which[1] % run.attempt
        signer = run.attempts[attempt][which[2]]
        own = str(run.delivery_id)
        other = next(str(other_run.delivery_id) for other_run in self.runs if other_run.delivery_id != own)
        return SentReport(
            delivery=other if wrong_delivery else own,
            run=run,
            attempt=attempt,
            signer=signer,
            name=name or signer.name,
            status="completed" if conclusion else "in_progress",
            conclusion=conclusion,
            late=late,
        )

    @precondition(lambda self: self.model.rows)
    @rule(
        which=st.integers(0, 99),
        conclusion=st.sampled_from([None, *FROM_BEST_TO_WORST]),
        copies=st.integers(1, 3),
    )
    def report_again(self, which: int, conclusion: str | None, copies: int) -> None:
        """The job of an existing row reports a result, or its start again."""
        (delivery, run_id, attempt, _), row = list(self.model.rows.items())[which % len(self.model.rows)]
        run = next(known_run for known_run in self.runs if str(known_run.id) == run_id)
        report = SentReport(
            delivery=delivery,
            run=run,
            attempt=attempt,
            signer=next(job for job in run.attempts[attempt] if job.id == row.opened_by),
            name=row.reported_name,
            status="completed" if conclusion else "in_progress",
            conclusion=conclusion,
            late=False,
        )
        self._report(report, copies)

    def _report(self, report: SentReport, copies: int) -> None:
        expected = Counter(self.model.apply(report) for _ in range(copies))
        assert Counter(self.loop.run_until_complete(self._send(report, copies))) == expected

    async def _send(self, report: SentReport, copies: int) -> list[str]:
        github = self.relay.github
        body = github.ci.report_body(
            report.run,
            report.signer,
            report.status,
            run_attempt=report.attempt,
            job_name=report.name,
            conclusion=report.conclusion,
            late=report.late,
        )
        body["delivery_id"] = report.delivery
        token = github.oidc_token(report.run, report.signer, run_attempt=str(report.attempt))
        sent = [github.report(report.run, report.signer, body=body, token=token) for _ in range(copies)]
        return [report_outcome(answer) for answer in await asyncio.gather(*sent)]

    @rule(seconds=st.sampled_from([1.0, 60.0, 3600.0, TIMEOUT_S, TIMEOUT_S]), swept=st.booleans())
    def pass_time(self, seconds: float, *, swept: bool) -> None:
        self.relay.clock.advance(seconds)
        self.model.now += seconds
        if swept:
            self.sweep()

    @rule()
    def sweep(self) -> None:
        self.loop.run_until_complete(self.relay.services.sweeper.sweep())
        self.model.sweep()

    @precondition(lambda self: max(run.attempt for run in self.runs) < 3)
    @rule(which=st.integers(0, 9))
    def rerun(self, which: int) -> None:
        self.loop.run_until_complete(self.relay.github.rerun(self.runs[which % len(self.runs)]))

    @precondition(lambda self: len(self.runs) < 7)
    @rule(which=st.integers(0, 9))
    def dispatch_arrives_twice(self, which: int) -> None:
        run = self.runs[which % len(self.runs)]
        repository = self.relay.github.repository(BACKEND)
        repository.workflows = [run.workflow]
        again: dict[str, Any] = {"event_type": run.event_type, "client_payload": run.client_payload}
        self.runs.append(self.relay.github.start_run(BACKEND, event="repository_dispatch", **again))

    @invariant()
    def stored_rows_match_the_model(self) -> None:
        if not hasattr(self, "runs"):
            return
        stored = {
            (row["delivery"], row["run_id"], row["attempt"], row["job_name"]): {
                name: row[name] for name in FIELDS
            }
            for row in self.relay.jobs()
        }
        announced = self.relay.rows("SELECT count(*) AS n FROM changes WHERE kind = 'job'")[0]["n"]
        assert stored == {
            key: {name: getattr(row, name) for name in FIELDS} for key, row in self.model.rows.items()
        }
        failures = self.relay.rows("SELECT count(*) AS n FROM failures")[0]["n"]
        # A verdict that changes, such as after a re-run that passes, is announced as a change of its job.
        assert 0 <= announced - self.model.transitions <= _MOST_VERDICT_CHANGES * failures

    def teardown(self) -> None:
        self.loop.run_until_complete(self.stack.aclose())
        self.loop.close()
        structlog.reset_defaults()


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(
    max_examples=30,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
