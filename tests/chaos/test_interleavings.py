"""Random interleavings of reports, repeats, sweeps, re-runs and clock moves, against a model of its own.

The real relay, its real store and real tokens on one side; on the other a few lines that say what the protocol
says. After every step the stored rows are the model's rows, and each transition was told to the pages once.
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

pytestmark = pytest.mark.timeout(600)  # a failure takes minutes to shrink to the steps that matter

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
    asked_at: float | None = None


@dataclass(frozen=True)
class SentReport:
    """One report, as its sender means it."""

    delivery: str
    run: WorkflowRun
    attempt: int
    signer: WorkflowJob
    name: str
    status: str
    conclusion: str | None
    late: bool


class Model:
    """What the protocol says, in its own order and without the relay's code."""

    def __init__(self) -> None:
        self.now = 0.0
        self.rows: dict[RowKey, Row] = {}
        self.bound: dict[int, str] = {}
        self.transitions = 0

    def hear(self, said: SentReport) -> str:
        if self.bound.get(said.run.id, said.delivery) != said.delivery:
            return "run_bound_elsewhere"
        attempt = {k[3]: r for k, r in self.rows.items() if k[:3] == self._attempt(said)}
        named = {k: r for k, r in attempt.items() if r.reported_name == said.name}
        mine = [row for row in named.values() if row.opened_by == said.signer.id]
        if said.status == "in_progress":
            return "repeat" if mine else self._open(said, attempt, named)
        if mine:
            return self._finish(mine[0], said)
        if not named:
            return "no_in_progress"
        if any(row.opened_by == said.signer.id for row in attempt.values()):
            return "claim_mismatch"
        return self._finish_for_another(list(named.values()), said)

    def _open(self, said: SentReport, attempt: dict[str, Row], named: dict[str, Row]) -> str:
        name, number = said.name, 2
        while name in attempt or (named and name == said.name):
            name, number = f"{said.name} ({number})", number + 1
        measured = said.attempt == 1 and not said.late
        self.rows[(*self._attempt(said), name)] = Row(
            workflow=said.run.workflow.path,
            reported_name=said.name,
            opened_by=said.signer.id,
            started_at=self.now,
            late_start=said.late,
            queue_s=self.now if measured else None,
            late=int(said.late),
        )
        self.bound[said.run.id] = said.delivery
        self._newest_run_counts(said)
        return self._applied()

    def _newest_run_counts(self, said: SentReport) -> None:
        mates = {
            key: row
            for key, row in self.rows.items()
            if key[0] == said.delivery and row.workflow == said.run.workflow.path
        }
        newest = max(int(key[1]) for key in mates)
        for key, row in mates.items():
            row.superseded = int(int(key[1]) < newest)

    def _finish_for_another(self, named: list[Row], said: SentReport) -> str:
        if any(row.closed_by == said.signer.id and row.first_conclusion == said.conclusion for row in named):
            return "repeat"
        unfinished = [row for row in named if row.state != "completed"]
        if len(unfinished) == 1:
            return self._finish(unfinished[0], said)
        if not unfinished and (
            len(named) == 1 or {row.first_conclusion for row in named} == {said.conclusion}
        ):
            return self._finish(named[0], said)
        return "ambiguous_job"

    def _finish(self, row: Row, said: SentReport) -> str:
        assert said.conclusion is not None
        if row.state == "completed":
            return (
                "repeat" if said.conclusion == row.first_conclusion else self._dispute(row, said.conclusion)
            )
        row.late |= int(row.state == "timed_out")
        row.state, row.first_conclusion, row.conclusion = "completed", said.conclusion, said.conclusion
        row.closed_by = said.signer.id
        row.execution_s = None if row.late_start else self.now - row.started_at
        return self._applied()

    def _dispute(self, row: Row, claimed: str) -> str:
        before = asdict(row)
        row.disputed, row.disputed_conclusion = 1, claimed
        row.conclusion = max(row.conclusion or "", claimed, key=FROM_BEST_TO_WORST.index)
        self.transitions += asdict(row) != before
        return "conflicting_result"

    def sweep(self) -> None:
        """A silent job is asked about; nobody answers here, so after an hour it has timed out."""
        for row in self.rows.values():
            if row.state != "in_progress":
                continue
            if row.asked_at is None:
                row.asked_at = self.now if row.started_at + TIMEOUT_S <= self.now else None
            elif row.asked_at + PATIENCE_S <= self.now:
                row.state = "timed_out"
                self.transitions += 1

    def _applied(self) -> str:
        self.transitions += 1
        return "applied"

    @staticmethod
    def _attempt(said: SentReport) -> tuple[str, str, int]:
        return said.delivery, str(said.run.id), said.attempt


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
        staged = running_relay(
            Path(self.folder), LISTED, downstreams=(BACKEND,), CRCR_RATE_LIMIT_PER_MIN="1000000"
        )
        self.relay = await self.stack.enter_async_context(staged)
        self.relay.github.repository(BACKEND).workflows = WORKFLOWS
        for _ in range(2):
            await self.relay.github.open_pr(UPSTREAM)
        await self.relay.drain()
        self.runs = self.relay.github.runs(BACKEND)

    @rule(
        which=st.tuples(FEW, FEW, JOB),
        name=st.sampled_from([None, None, None, "build", "build (2)", "new"]),
        late=st.sampled_from([False, False, False, True]),
        astray=st.sampled_from([False] * 24 + [True]),
        copies=st.integers(1, 3),
    )
    def start(
        self, which: tuple[int, int, int], name: str | None, *, late: bool, astray: bool, copies: int
    ) -> None:
        """Some job of some attempt of some run begins something, a few times at once."""
        self._hear(self._said(which, name=name, late=late, astray=astray), copies)

    @rule(
        which=st.tuples(FEW, FEW, st.sampled_from([0, 1, 2, 2, 2])),
        name=st.sampled_from(["build", "build", "report"]),
        conclusion=st.sampled_from(FROM_BEST_TO_WORST),
        copies=st.integers(1, 3),
    )
    def finish(self, which: tuple[int, int, int], name: str, conclusion: str, copies: int) -> None:
        """Some job reports a result, of itself or of another."""
        self._hear(self._said(which, name=name, conclusion=conclusion), copies)

    def _said(
        self,
        which: tuple[int, int, int],
        *,
        name: str | None,
        conclusion: str | None = None,
        late: bool = False,
        astray: bool = False,
    ) -> SentReport:
        run = self.runs[which[0] % len(self.runs)]
        attempt = run.attempt - which[1] % run.attempt
        signer = run.attempts[attempt][which[2]]
        own = str(run.delivery_id)
        other = next(str(each.delivery_id) for each in self.runs if each.delivery_id != own)
        return SentReport(
            delivery=other if astray else own,
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
        """The job behind a row that stands says how it went, or once more that it began."""
        (delivery, run_id, attempt, _), row = list(self.model.rows.items())[which % len(self.model.rows)]
        run = next(each for each in self.runs if str(each.id) == run_id)
        said = SentReport(
            delivery=delivery,
            run=run,
            attempt=attempt,
            signer=next(job for job in run.attempts[attempt] if job.id == row.opened_by),
            name=row.reported_name,
            status="completed" if conclusion else "in_progress",
            conclusion=conclusion,
            late=False,
        )
        self._hear(said, copies)

    def _hear(self, said: SentReport, copies: int) -> None:
        expected = Counter(self.model.hear(said) for _ in range(copies))
        assert Counter(self.loop.run_until_complete(self._send(said, copies))) == expected

    async def _send(self, said: SentReport, copies: int) -> list[str]:
        github = self.relay.github
        body = github.ci.report_body(
            said.run,
            said.signer,
            said.status,
            run_attempt=said.attempt,
            job_name=said.name,
            conclusion=said.conclusion,
            late=said.late,
        )
        body["delivery_id"] = said.delivery
        token = github.oidc_token(said.run, said.signer, run_attempt=str(said.attempt))
        sent = [github.report(said.run, said.signer, body=body, token=token) for _ in range(copies)]
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
    def the_record_is_the_models(self) -> None:
        if not hasattr(self, "runs"):
            return
        stored = {
            (row["delivery"], row["run_id"], row["attempt"], row["job_name"]): {
                name: row[name] for name in FIELDS
            }
            for row in self.relay.jobs()
        }
        told = self.relay.rows("SELECT count(*) AS n FROM changes WHERE kind = 'job'")[0]["n"]
        assert stored == {
            key: {name: getattr(row, name) for name in FIELDS} for key, row in self.model.rows.items()
        }
        failures = self.relay.rows("SELECT count(*) AS n FROM failures")[0]["n"]
        # A verdict that changes, such as after a re-run that passes, is announced as a change of its job.
        assert 0 <= told - self.model.transitions <= _MOST_VERDICT_CHANGES * failures

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
