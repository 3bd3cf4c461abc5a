"""Matching a report to a job row: signed ids, names, matrix legs, and separate reporting jobs."""

from datetime import UTC, datetime

import pytest

from crcr.decide.jobs.match_job import JobFacts, MatchRefusal, MatrixLeg, find_job
from crcr.decide.jobs.report import Report, ReportStatus
from crcr.decide.model import Conclusion, JobState
from support.data.events_and_reports import a_start

NOW = datetime(2026, 1, 1, tzinfo=UTC)
START, FINISH = ReportStatus.IN_PROGRESS, ReportStatus.COMPLETED


def _report(status: ReportStatus, job_name: str = "build") -> Report:
    conclusion = None if status is START else Conclusion.SUCCESS
    return a_start(status=status, conclusion=conclusion, run_id="1", job_name=job_name)


def _row(
    opened_by: str | None,
    *,
    job_name: str = "build",
    reported_name: str = "build",
    state: JobState = JobState.IN_PROGRESS,
    conclusion: Conclusion | None = None,
) -> JobFacts:
    return JobFacts(job_name, reported_name, state, conclusion, conclusion, opened_by, NOW, late_start=False)


def _find(
    status: ReportStatus, signed_id: str | None, *rows: JobFacts, others: bool = False, name: str = "build"
) -> JobFacts | MatrixLeg | MatchRefusal | None:
    return find_job(_report(status, name), signed_id, rows, opened_others=others)


FIRST, SECOND = _row("7"), _row("8", job_name="build (2)")
FIRST_DONE = _row("7", state=JobState.COMPLETED, conclusion=Conclusion.SUCCESS)
SECOND_DONE = _row("8", job_name="build (2)", state=JobState.COMPLETED, conclusion=Conclusion.SUCCESS)
SWEPT = _row("8", job_name="build (2)", state=JobState.TIMED_OUT)


@pytest.mark.parametrize("status", ReportStatus)
def test_the_first_report_of_a_name_matches_no_row(status: ReportStatus) -> None:
    assert _find(status, "7") is None


@pytest.mark.parametrize("status", ReportStatus)
def test_a_report_matches_the_row_that_its_id_opened(status: ReportStatus) -> None:
    assert _find(status, "7", FIRST, SECOND) is FIRST
    assert _find(status, "8", FIRST, SECOND, others=True) is SECOND


def test_a_second_start_of_a_name_from_another_id_is_another_leg() -> None:
    leg = _find(START, "8", FIRST)
    assert isinstance(leg, MatrixLeg)
    assert leg.job_name == "build (2)"
    assert "job_name" in leg.warning


def test_a_third_leg_takes_the_next_free_number() -> None:
    leg = _find(START, "9", FIRST, SECOND)
    assert isinstance(leg, MatrixLeg)
    assert leg.job_name == "build (3)"


def test_a_leg_skips_a_number_that_another_job_has_in_its_own_name() -> None:
    own_name = _row("9", job_name="build (2)", reported_name="build (2)")
    leg = _find(START, "8", FIRST, own_name)
    assert isinstance(leg, MatrixLeg)
    assert leg.job_name == "build (3)"


def test_a_report_does_not_match_a_leg_that_was_given_its_name() -> None:
    leg = _find(START, "9", SECOND, name="build (2)")
    assert isinstance(leg, MatrixLeg)
    assert leg.job_name == "build (2) (2)"


def test_without_signed_ids_the_same_name_is_the_same_job() -> None:
    unsigned = _row(None)
    assert _find(START, None, unsigned) is unsigned
    assert _find(FINISH, None, unsigned) is unsigned
    assert _find(START, "7", unsigned) is unsigned
    assert _find(START, None, FIRST) is FIRST


@pytest.mark.parametrize("rows", [(FIRST,), (FIRST_DONE, SECOND), (FIRST_DONE, SWEPT)])
def test_a_separate_reporting_job_closes_the_only_open_row(rows: tuple[JobFacts, ...]) -> None:
    assert _find(FINISH, "99", *rows) is rows[-1]


def test_a_repeat_of_a_separate_reporting_job_matches_the_only_row() -> None:
    assert _find(FINISH, "99", FIRST_DONE) is FIRST_DONE


def test_a_finish_that_fits_several_open_rows_is_ambiguous() -> None:
    refusal = _find(FINISH, "99", FIRST, SECOND)
    assert isinstance(refusal, MatchRefusal)
    assert refusal.code == "ambiguous_job"
    assert "2 jobs" in refusal.detail


def test_a_finish_that_every_closed_leg_already_has_is_a_repeat() -> None:
    assert _find(FINISH, "99", FIRST_DONE, SECOND_DONE) is FIRST_DONE


def test_a_finish_that_only_some_closed_legs_have_is_ambiguous() -> None:
    failed = _row("8", job_name="build (2)", state=JobState.COMPLETED, conclusion=Conclusion.FAILURE)
    refusal = _find(FINISH, "99", FIRST_DONE, failed)
    assert isinstance(refusal, MatchRefusal)
    assert refusal.code == "ambiguous_job"


@pytest.mark.parametrize("row", [FIRST, FIRST_DONE, SWEPT])
def test_an_id_that_opened_other_rows_may_not_close_this_one(row: JobFacts) -> None:
    refusal = _find(FINISH, "99", row, others=True)
    assert isinstance(refusal, MatchRefusal)
    assert refusal.code == "claim_mismatch"


def test_an_id_that_opened_other_rows_may_open_more() -> None:
    assert _find(START, "99", others=True) is None
