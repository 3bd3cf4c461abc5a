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


def an_end(conclusion: Conclusion = Conclusion.SUCCESS, **changes: object) -> Report:
    return replace(a_start(status=ReportStatus.COMPLETED, conclusion=conclusion), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("known", "report", "becomes"),
    [
        (None, a_start(), JobState.IN_PROGRESS),
        (None, an_end(), "no_in_progress"),
        (None, an_end(event_type="nightly"), JobState.COMPLETED),
        (None, an_end(event_type="periodic"), JobState.COMPLETED),
        (RUNNING, a_start(), "repeat"),
        (RUNNING, an_end(), JobState.COMPLETED),
        (PASSED, a_start(), "repeat"),
        (PASSED, an_end(), "repeat"),
        (PASSED, an_end(event_type="nightly"), "repeat"),
        (PASSED, an_end(Conclusion.FAILURE), "conflicting_result"),
        (PASSED, an_end(Conclusion.FAILURE, event_type="nightly"), "conflicting_result"),
    ],
)
def test_a_tried_job_lives_by_the_real_table(
    known: KnownSandboxJob | None, report: Report, becomes: object
) -> None:
    outcome = judge_sandbox_report(report, a_caller(), known)
    said = (
        outcome.code
        if isinstance(outcome, RejectedReport)
        else "repeat"
        if isinstance(outcome, RepeatedReport)
        else outcome
    )
    assert said == becomes


@pytest.mark.parametrize("wrong", [{"run_id": "11"}, {"run_attempt": 2}])
def test_a_report_of_another_run_than_the_token_proves_is_refused_here_too(wrong: dict[str, object]) -> None:
    outcome = judge_sandbox_report(replace(a_start(), **wrong), a_caller(), None)  # type: ignore[arg-type]
    assert isinstance(outcome, RejectedReport)
    assert outcome.code == "claim_mismatch"


def test_any_event_and_delivery_will_do() -> None:
    report = a_start(event_type="anything", delivery_id="made-up")
    assert judge_sandbox_report(report, a_caller(event_name="push"), None) is JobState.IN_PROGRESS


def a_refusal(**changes: object) -> RefusedReport:
    made = make_refusal(BACKEND, "bad_report", "detail", "hint", a_start(), caller_id=5)
    return replace(made, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("binding", [None, Binding(5, 6, confirmed=True)])
def test_the_repositorys_own_refusal_is_kept_as_it_was_told(binding: Binding | None) -> None:
    assert for_bound_repository(a_refusal(), binding) == a_refusal()


def test_a_registered_pipeline_without_an_id_speaks_for_the_repository() -> None:
    told = a_refusal(caller_id=None)
    assert for_bound_repository(told, Binding(5, 6, confirmed=True)) == told


def test_of_a_stranger_with_the_name_not_a_word_is_kept() -> None:
    said = a_refusal(detail="EVIL", hint="EVIL", job_name="EVIL", workflow_name="EVIL", run_id="EVIL")
    kept = for_bound_repository(said, Binding(77, 6, confirmed=True))
    assert kept.code in KEPT_ONCE
    assert kept.code == "identity_changed"
    assert "EVIL" not in repr(kept)
    assert "77" in kept.detail


def test_every_reason_has_a_meaning_and_an_unheard_one_too() -> None:
    assert len(set(MEANINGS.values())) == len(MEANINGS)
    assert refusal_meaning("brand_new") == "The report was refused"
