"""Matching a reported job to GitHub's job, the conclusion that counts, and when GitHub is queried."""

from dataclasses import replace
from datetime import timedelta

import pytest

from crcr.decide.checks.commit import Verification
from crcr.decide.checks.verification import (
    JobVerification,
    ReportedJob,
    compare_silent_with_github,
    compare_with_github,
    match_github_jobs,
)
from crcr.decide.github.requests_and_answers import ActionsJob
from crcr.decide.github.workflow_runs import next_lookup_delay
from crcr.decide.model import Conclusion, JobState

C, V = Conclusion, Verification


def row(name: str = "build", by: str | None = "1", **changes: object) -> ReportedJob:
    plain = ReportedJob(
        job_name=name,
        reported_name=name,
        state=JobState.COMPLETED,
        conclusion=C.SUCCESS,
        opened_by=by,
        closed_by=by,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def github_job(
    check_run_id: str, name: str = "build", conclusion: Conclusion | None = C.SUCCESS
) -> ActionsJob:
    return ActionsJob(
        job_id=int(check_run_id),
        check_run_id=check_run_id,
        name=name,
        attempt=1,
        status="completed" if conclusion else "in_progress",
        conclusion=conclusion,
        started_at=None,
        completed_at=None,
    )


def matching_ids(job: ReportedJob, jobs: list[ActionsJob], *others: ReportedJob) -> list[str | None]:
    return [match.check_run_id for match in match_github_jobs(job, (job, *others), jobs)]


def test_a_row_is_compared_with_the_job_of_its_name_regardless_of_the_reporting_id() -> None:
    jobs = [github_job("1", "report"), github_job("2", "build")]
    assert matching_ids(row("build", by="1"), jobs) == ["2"]
    assert matching_ids(row("build", by="2"), jobs) == ["2"]
    assert matching_ids(row("unit", by="1"), jobs) == []


def test_a_leg_is_not_matched_with_jobs_that_other_rows_reported() -> None:
    jobs = [github_job("1"), github_job("2"), github_job("3")]
    second = row("build (2)", by="2", reported_name="build")
    assert matching_ids(row(by="1"), jobs) == ["1", "2", "3"]
    assert matching_ids(row(by="1"), jobs, second) == ["1", "3"]
    assert matching_ids(second, jobs, row(by="1")) == ["2", "3"]


@pytest.mark.parametrize(
    "own",
    [row(by=None), row(by="1", closed_by="9"), row(by="8")],
    ids=["unsigned", "closed by another", "no such id"],
)
def test_a_row_without_its_own_id_is_compared_with_every_job_of_its_name(own: ReportedJob) -> None:
    second = row("build (2)", by="2", reported_name="build")
    assert matching_ids(own, [github_job("1"), github_job("2")], second) == ["1", "2"]


def test_an_id_that_reported_under_several_names_identifies_no_job() -> None:
    second = row("build (2)", by="2", reported_name="build")
    assert matching_ids(row(by="1"), [github_job("1"), github_job("2")], second, row("test", by="1")) == [
        "1",
        "2",
    ]


@pytest.mark.parametrize(
    ("github", "finding"),
    [
        ([C.SUCCESS], JobVerification(V.CONFIRMED, None, C.SUCCESS)),
        ([C.FAILURE], JobVerification(V.DISPUTED, C.FAILURE, C.FAILURE)),
        ([C.SUCCESS, C.FAILURE], JobVerification(V.DISPUTED, C.FAILURE, C.FAILURE)),
        ([None, C.FAILURE], JobVerification(V.DISPUTED, C.FAILURE, C.FAILURE)),
        ([C.SKIPPED], JobVerification(V.DISPUTED, C.SKIPPED, C.SKIPPED)),
        ([None, C.SUCCESS], None),
        ([None], None),
        ([], None),
    ],
)
def test_the_worst_of_the_matching_github_jobs_counts(
    github: list[Conclusion | None], finding: JobVerification | None
) -> None:
    jobs = tuple(
        github_job(str(number), conclusion=conclusion) for number, conclusion in enumerate(github, 1)
    )
    assert compare_with_github(row(), jobs, whole=True, run_over=False) == finding


def test_a_name_is_not_verifiable_once_no_job_of_that_name_can_appear() -> None:
    assert compare_with_github(row(), (), whole=True, run_over=True) == JobVerification(
        V.NOT_VERIFIABLE, None, None
    )
    assert compare_with_github(row(), (), whole=False, run_over=True) is None


def test_an_incomplete_job_list_confirms_nothing_but_a_failure_in_it_counts() -> None:
    assert compare_with_github(row(), (github_job("1"),), whole=False, run_over=False) is None
    failed = compare_with_github(row(), (github_job("1", conclusion=C.FAILURE),), whole=False, run_over=False)
    assert failed == JobVerification(V.DISPUTED, C.FAILURE, C.FAILURE)
    assert compare_silent_with_github((github_job("1"),), whole=False) is None


def test_a_gating_job_is_looked_up_after_a_few_seconds_and_then_each_minute() -> None:
    elapsed, lookups = timedelta(), []
    for _ in range(7):
        elapsed += next_lookup_delay(elapsed, gates=True, webhooks=False)
        lookups.append(elapsed.total_seconds())
    assert lookups == [5, 15, 30, 60, 120, 180, 240]
    assert next_lookup_delay(timedelta(hours=8), gates=True, webhooks=False) == timedelta(minutes=8)


def test_with_webhooks_github_is_queried_rarely() -> None:
    delays = [next_lookup_delay(timedelta(minutes=n), gates=True, webhooks=True) for n in (0, 1, 60)]
    assert delays == [timedelta(minutes=1), timedelta(minutes=10), timedelta(minutes=10)]
