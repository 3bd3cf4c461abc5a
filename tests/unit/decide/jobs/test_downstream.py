"""Pure rules: the callers that may report, and the effects of a report."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from crcr.decide.allowlist.entries import AllowlistEntry
from crcr.decide.jobs.judge import (
    AdmittedCaller,
    CallerStanding,
    CloseJob,
    DispatchFacts,
    DisputeJob,
    IgnoredReport,
    OpenJob,
    RejectedReport,
    RepeatedReport,
    ReportFacts,
    ReportOutcome,
    RunFacts,
    admit_caller,
    judge_report,
    workflow_key,
)
from crcr.decide.jobs.match_job import JobFacts
from crcr.decide.jobs.report import Report, ReportStatus
from crcr.decide.model import Binding, Conclusion, JobState, Level, RepoName
from crcr.decide.oidc.identity import Identity
from support.data.events_and_reports import a_caller, a_start, ref_claims

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
SIX_HOURS = timedelta(hours=6)
BACKEND = RepoName("org/backend")
ENTRY = AllowlistEntry(name=BACKEND, level=Level.L2)
IDENTITY = a_caller(expires_at=NOW)
STARTED = a_start()
FINISHED = replace(STARTED, status=ReportStatus.COMPLETED, conclusion=Conclusion.SUCCESS)
SENT = DispatchFacts("pull_request", Level.L2, NOW - timedelta(seconds=30), may_have_arrived=True)
FACTS = ReportFacts(dispatch=SENT, run_delivery=None, sibling_runs=(), jobs=(), opened_others=False)
RUNNING = JobFacts(
    "build",
    "build",
    JobState.IN_PROGRESS,
    None,
    None,
    "100",
    NOW - timedelta(seconds=60),
    late_start=False,
)
COMPLETED = replace(
    RUNNING,
    state=JobState.COMPLETED,
    first_conclusion=Conclusion.SUCCESS,
    conclusion=Conclusion.SUCCESS,
)
STANDING = CallerStanding(RepoName("up/stream"), ENTRY, Binding(5, 6, confirmed=True), suspended=False)


def _judge(
    report: Report, facts: ReportFacts = FACTS, identity: Identity = IDENTITY, entry: AllowlistEntry = ENTRY
) -> ReportOutcome:
    return judge_report(report, identity, entry, facts, now=NOW, job_timeout=SIX_HOURS)


def _code(outcome: Any) -> str:
    assert isinstance(outcome, RejectedReport)
    return outcome.code


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"entry": None}, "not_allowlisted"),
        ({"suspended": True}, "suspended"),
        ({"binding": Binding(4, 6, confirmed=True)}, "identity_changed"),
        ({"binding": Binding(4, 6, confirmed=False)}, "identity_changed"),
        ({"binding": Binding(4, 6, confirmed=True), "entry": None, "suspended": True}, "identity_changed"),
        ({"entry": None, "suspended": True}, "not_allowlisted"),
    ],
)
def test_a_caller_is_refused_by_the_first_layer_that_objects(change: dict[str, Any], code: str) -> None:
    assert _code(admit_caller(IDENTITY, replace(STANDING, **change))) == code


@pytest.mark.parametrize("binding", [None, Binding(5, 6, confirmed=True), Binding(5, None, confirmed=False)])
def test_a_listed_repository_with_its_own_id_or_none_yet_is_admitted(binding: Binding | None) -> None:
    assert admit_caller(IDENTITY, replace(STANDING, binding=binding)) == AdmittedCaller(ENTRY)


def test_an_l1_repository_is_ignored_with_a_hint_about_l2() -> None:
    ignored = admit_caller(IDENTITY, replace(STANDING, entry=replace(ENTRY, level=Level.L1)))
    assert isinstance(ignored, IgnoredReport)
    assert "L2" in ignored.hint


def test_workflows_are_identified_by_their_signed_path_or_else_by_name() -> None:
    assert workflow_key(IDENTITY, STARTED) == ".github/workflows/ci.yml"
    assert workflow_key(replace(IDENTITY, workflow_path=None), STARTED) == "CI"


@pytest.mark.parametrize(
    ("facts", "identity", "code"),
    [
        ({"dispatch": None}, {}, "unknown_delivery"),
        ({"dispatch": replace(SENT, may_have_arrived=False)}, {}, "unknown_delivery"),
        ({}, {"run_id": "11"}, "claim_mismatch"),
        ({}, {"run_attempt": 2}, "claim_mismatch"),
        ({}, {"event_name": "push"}, "wrong_event"),
        ({}, {"event_name": "pull_request_target"}, "wrong_event"),
        ({"run_delivery": "another"}, {}, "run_bound_elsewhere"),
        ({"named_delivery": "another"}, {}, "run_bound_elsewhere"),
        ({"dispatch": None, "run_delivery": "another"}, {"run_id": "11"}, "unknown_delivery"),
        ({"run_delivery": "another"}, {"run_id": "11", "event_name": "push"}, "claim_mismatch"),
        ({"run_delivery": "another"}, {"event_name": "push"}, "wrong_event"),
    ],
)
@pytest.mark.parametrize("report", [STARTED, FINISHED])
def test_mismatched_claims_are_refused_in_a_fixed_order(
    report: Report, facts: dict[str, Any], identity: dict[str, Any], code: str
) -> None:
    assert _code(_judge(report, replace(FACTS, **facts), replace(IDENTITY, **identity))) == code


def test_an_event_that_the_entry_allows_may_report() -> None:
    entry = replace(ENTRY, allow_events=frozenset({"workflow_run"}))
    second_step = replace(IDENTITY, event_name="workflow_run", **ref_claims())
    assert isinstance(_judge(STARTED, replace(FACTS, default_branch="main"), second_step, entry), OpenJob)
    assert _code(_judge(STARTED, identity=replace(IDENTITY, event_name="push"), entry=entry)) == "wrong_event"


def test_a_start_opens_the_job_with_its_queue_time() -> None:
    opened = _judge(STARTED)
    assert isinstance(opened, OpenJob)
    assert (opened.job_name, opened.queue_s, opened.late, opened.unsigned) == ("build", 30.0, False, False)
    assert opened.silent_at == NOW + SIX_HOURS
    assert (opened.superseded, opened.supersedes, opened.warning) == (False, (), None)


def test_an_unsigned_run_is_marked() -> None:
    unsigned = replace(IDENTITY, run_id=None, run_attempt=None)
    opened = _judge(replace(STARTED, run_id="build-10"), identity=unsigned)
    assert isinstance(opened, OpenJob)
    assert opened.unsigned


def test_an_unsigned_run_cannot_have_a_numeric_id() -> None:
    refusal = _judge(STARTED, identity=replace(IDENTITY, run_id=None, run_attempt=None))
    assert isinstance(refusal, RejectedReport)
    assert refusal.code == "claim_mismatch"


def test_a_finish_without_a_start_is_refused_with_a_hint() -> None:
    refusal = _judge(FINISHED)
    assert isinstance(refusal, RejectedReport)
    assert refusal.code == "no_in_progress"
    assert '"late": true' in (refusal.hint or "")
    assert refusal.dispute is None


@pytest.mark.parametrize(
    ("late", "attempt", "attempted_at"),
    [
        (True, 1, NOW - timedelta(seconds=30)),
        (False, 2, NOW - timedelta(seconds=30)),
        (False, 1, NOW + timedelta(seconds=1)),
    ],
)
def test_an_unknown_queue_time_is_null_and_never_0(late: bool, attempt: int, attempted_at: datetime) -> None:
    facts = replace(FACTS, dispatch=replace(SENT, attempted_at=attempted_at))
    report = replace(STARTED, late=late, run_attempt=attempt)
    opened = _judge(report, facts, replace(IDENTITY, run_attempt=attempt))
    assert isinstance(opened, OpenJob)
    assert opened.queue_s is None


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, 60.0),
        ({"late_start": True}, None),
        ({"in_progress_at": NOW + timedelta(seconds=1)}, None),
    ],
)
def test_an_execution_time_is_measured_or_null(change: dict[str, Any], expected: float | None) -> None:
    closed = _judge(FINISHED, replace(FACTS, jobs=(replace(RUNNING, **change),)))
    assert closed == CloseJob("build", Conclusion.SUCCESS, None, expected, late=False)


def test_a_finish_after_the_sweep_is_accepted_as_late() -> None:
    swept = replace(RUNNING, state=JobState.TIMED_OUT)
    closed = _judge(FINISHED, replace(FACTS, jobs=(swept,)))
    assert closed == CloseJob("build", Conclusion.SUCCESS, None, 60.0, late=True)


@pytest.mark.parametrize(("report", "job"), [(STARTED, RUNNING), (STARTED, COMPLETED), (FINISHED, COMPLETED)])
def test_a_report_that_was_already_applied_is_a_repeat(report: Report, job: JobFacts) -> None:
    assert _judge(report, replace(FACTS, jobs=(job,))) == RepeatedReport("build")


def test_a_different_result_is_refused_and_recorded_and_the_worse_one_counts() -> None:
    other = replace(FINISHED, conclusion=Conclusion.FAILURE)
    refusal = _judge(other, replace(FACTS, jobs=(COMPLETED,)))
    assert _code(refusal) == "conflicting_result"
    assert isinstance(refusal, RejectedReport)
    assert refusal.dispute == DisputeJob("build", Conclusion.FAILURE, Conclusion.FAILURE)


def test_after_a_dispute_only_the_first_result_is_a_repeat() -> None:
    disputed = replace(COMPLETED, conclusion=Conclusion.FAILURE)
    facts = replace(FACTS, jobs=(disputed,))
    assert _judge(FINISHED, facts) == RepeatedReport("build")
    assert _code(_judge(replace(FINISHED, conclusion=Conclusion.FAILURE), facts)) == "conflicting_result"


def test_a_better_second_result_never_improves_the_one_that_counts() -> None:
    failed = replace(COMPLETED, first_conclusion=Conclusion.FAILURE, conclusion=Conclusion.FAILURE)
    refusal = _judge(FINISHED, replace(FACTS, jobs=(failed,)))
    assert isinstance(refusal, RejectedReport)
    assert refusal.dispute == DisputeJob("build", Conclusion.FAILURE, Conclusion.SUCCESS)


@pytest.mark.parametrize(
    ("siblings", "superseded", "supersedes"),
    [
        ((RunFacts("9", superseded=False),), False, ("9",)),
        ((RunFacts("11", superseded=False),), True, ()),
        ((RunFacts("9", superseded=True),), False, ()),
        ((RunFacts("9", superseded=False), RunFacts("11", superseded=False)), True, ("9",)),
        ((RunFacts("100", superseded=False),), True, ()),  # by number, not by text
    ],
)
def test_the_newer_of_two_runs_of_a_workflow_counts(
    siblings: tuple[RunFacts, ...], superseded: bool, supersedes: tuple[str, ...]
) -> None:
    opened = _judge(STARTED, replace(FACTS, sibling_runs=siblings))
    assert isinstance(opened, OpenJob)
    assert (opened.superseded, opened.supersedes) == (superseded, supersedes)
