"""The sandbox's rule, and the parts of a refusal that may be stored."""

from dataclasses import replace

import pytest

from crcr.decide.jobs.judge import RejectedReport, RepeatedReport
from crcr.decide.jobs.refusal import KEPT_ONCE, RefusedReport, for_bound_repository, make_refusal
from crcr.decide.jobs.report import Report, ReportStatus
from crcr.decide.jobs.sandbox import KnownSandboxJob, judge_sandbox_report
from crcr.decide.model import Binding, Conclusion, JobState
from crcr.show.render.status import MEANINGS, refusal_meaning
from support.data.events_and_reports import BACKEND, a_caller, a_start

RUNNING = KnownSandboxJob(JobState.IN_PROGRESS, None)
PASSED = KnownSandboxJob(JobState.COMPLETED, Conclusion.SUCCESS)


def a_finish(conclusion: Conclusion = Conclusion.SUCCESS, **changes: object) -> Report:
    return replace(a_start(status=ReportStatus.COMPLETED, conclusion=conclusion), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("known", "report", "expected"),
    [
        (None, a_start(), JobState.IN_PROGRESS),
        (None, a_finish(), "no_in_progress"),
        (None, a_finish(event_type="nightly"), JobState.COMPLETED),
        (None, a_finish(event_type="periodic"), JobState.COMPLETED),
        (RUNNING, a_start(), "repeat"),
        (RUNNING, a_finish(), JobState.COMPLETED),
        (PASSED, a_start(), "repeat"),
        (PASSED, a_finish(), "repeat"),
        (PASSED, a_finish(event_type="nightly"), "repeat"),
        (PASSED, a_finish(Conclusion.FAILURE), "conflicting_result"),
        (PASSED, a_finish(Conclusion.FAILURE, event_type="nightly"), "conflicting_result"),
    ],
)
def test_a_sandbox_job_follows_the_real_lifecycle_table(
    known: KnownSandboxJob | None, report: Report, expected: object
) -> None:
    outcome = judge_sandbox_report(report, a_caller(), known)
    result = (
        outcome.code
        if isinstance(outcome, RejectedReport)
        else "repeat"
        if isinstance(outcome, RepeatedReport)
        else outcome
    )
    assert result == expected


@pytest.mark.parametrize("wrong", [{"run_id": "11"}, {"run_attempt": 2}])
def test_a_report_of_another_run_than_the_signed_one_is_refused_in_the_sandbox_too(
    wrong: dict[str, object],
) -> None:
    outcome = judge_sandbox_report(replace(a_start(), **wrong), a_caller(), None)  # type: ignore[arg-type]
    assert isinstance(outcome, RejectedReport)
    assert outcome.code == "claim_mismatch"


def test_the_sandbox_accepts_any_event_and_delivery() -> None:
    report = a_start(event_type="anything", delivery_id="made-up")
    assert judge_sandbox_report(report, a_caller(event_name="push"), None) is JobState.IN_PROGRESS


def a_refusal(**changes: object) -> RefusedReport:
    refusal = make_refusal(BACKEND, "bad_report", "detail", "hint", a_start(), caller_id=5)
    return replace(refusal, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("binding", [None, Binding(5, 6, confirmed=True)])
def test_a_refusal_of_the_repository_itself_is_stored_unchanged(binding: Binding | None) -> None:
    assert for_bound_repository(a_refusal(), binding) == a_refusal()


def test_a_refusal_of_a_registered_pipeline_without_an_id_is_stored_unchanged() -> None:
    refusal = a_refusal(caller_id=None)
    assert for_bound_repository(refusal, Binding(5, 6, confirmed=True)) == refusal


def test_no_text_of_a_repository_with_the_same_name_and_another_id_is_stored() -> None:
    refusal = a_refusal(detail="EVIL", hint="EVIL", job_name="EVIL", workflow_name="EVIL", run_id="EVIL")
    stored = for_bound_repository(refusal, Binding(77, 6, confirmed=True))
    assert stored.code in KEPT_ONCE
    assert stored.code == "identity_changed"
    assert "EVIL" not in repr(stored)
    assert "77" in stored.detail


def test_every_refusal_code_has_its_own_meaning_and_an_unknown_one_a_default() -> None:
    assert len(set(MEANINGS.values())) == len(MEANINGS)
    assert refusal_meaning("brand_new") == "The report was refused"
