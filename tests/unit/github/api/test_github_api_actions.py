"""Requests for a downstream's workflow runs and jobs, and the meaning of the responses."""

import json
from datetime import UTC, datetime

import pytest

from crcr.decide.github.requests_and_answers import ActionsJob, ActionsRun
from crcr.decide.model import Conclusion, RepoName
from crcr.errors import OutsideUnsure
from crcr.github.api import actions
from crcr.github.api.request_response import Response

REPO = RepoName("Org/Down")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
RUN: dict[str, object] = {
    "id": 3,
    "run_attempt": 2,
    "status": "completed",
    "conclusion": "failure",
    "display_title": "crcr 1-2-3",
    "name": "Upstream",
    "path": ".github/workflows/crcr.yml",
    "event": "repository_dispatch",
    "created_at": "2026-01-01T01:00:00+01:00",
    "repository": {"id": 9},
}
JOB: dict[str, object] = {
    "id": 4,
    "run_attempt": 2,
    "name": "test (3.11)",
    "status": "completed",
    "conclusion": "success",
    "check_run_url": "https://api.github.com/repos/Org/Down/check-runs/44",
    "started_at": "2026-01-01T00:00:00Z",
    "completed_at": "2026-01-01T00:00:00Z",
}


def answer(body: object) -> Response:
    return Response(200, {}, json.dumps(body).encode())


def job(**changed: object) -> ActionsJob:
    (parsed_job,) = actions.parse_jobs(answer({"total_count": 1, "jobs": [JOB | changed]}), 2)
    return parsed_job


def test_every_call_has_its_method_path_and_points() -> None:
    span = "2026-01-01T00%3A00%3A00Z..2026-01-01T01%3A00%3A00Z"
    requests = [
        actions.rerun(REPO, 3, failed_only=False),
        actions.rerun(REPO, 3, failed_only=True),
        actions.read_run(REPO, 3),
        actions.list_runs(REPO, event="a&b", since=NOW, until=NOW.replace(hour=1, microsecond=9)),
        actions.list_jobs(REPO, 3, 2),
    ]
    assert [(request.method, request.path, request.points) for request in requests] == [
        ("POST", "/repos/Org/Down/actions/runs/3/rerun", 5),
        ("POST", "/repos/Org/Down/actions/runs/3/rerun-failed-jobs", 5),
        ("GET", "/repos/Org/Down/actions/runs/3", 1),
        (
            "GET",
            f"/repos/Org/Down/actions/runs?event=a%26b&created={span}&per_page=50",
            1,
        ),
        ("GET", "/repos/Org/Down/actions/runs/3/attempts/2/jobs?per_page=100", 1),
    ]


def test_a_run_id_that_is_not_a_number_raises_an_error() -> None:
    with pytest.raises(ValueError):
        actions.read_run(REPO, "3/../4")  # type: ignore[arg-type]


def test_a_run_is_parsed_into_a_value() -> None:
    expected = ActionsRun(
        run_id=3,
        attempt=2,
        status="completed",
        conclusion=Conclusion.FAILURE,
        display_title="crcr 1-2-3",
        workflow_name="Upstream",
        workflow_path=".github/workflows/crcr.yml",
        event="repository_dispatch",
        created_at=NOW,
    )
    assert actions.parse_run(answer(RUN)) == expected
    assert actions.parse_runs(answer({"total_count": 1, "workflow_runs": [RUN]})) == (expected,)


def test_missing_fields_of_a_run_stay_empty() -> None:
    bare = {"id": 3, "event": "push", "created_at": "2026-01-01T00:00:00Z", "status": None, "name": None}
    run = actions.parse_run(answer(bare))
    assert (run.attempt, run.status, run.conclusion, run.is_over) == (1, "", None, False)
    assert (run.display_title, run.workflow_name, run.workflow_path) == ("", "", "")


CONCLUSIONS: list[tuple[str | None, Conclusion | None]] = [
    *((each.value, each) for each in Conclusion if each is not Conclusion.NONE),
    (None, None),
    ("startup_failure", Conclusion.FAILURE),
    ("stale", Conclusion.CANCELLED),
    ("none", Conclusion.FAILURE),
    ("", Conclusion.FAILURE),
    ("perfect", Conclusion.FAILURE),
]


@pytest.mark.parametrize(("value", "expected"), CONCLUSIONS)
def test_an_unknown_conclusion_is_a_failure(value: str | None, expected: Conclusion | None) -> None:
    assert actions.parse_run(answer(RUN | {"conclusion": value})).conclusion is expected
    assert job(conclusion=value).conclusion is expected


def test_a_job_is_parsed_into_a_value() -> None:
    assert job() == ActionsJob(
        job_id=4,
        check_run_id="44",
        name="test (3.11)",
        attempt=2,
        status="completed",
        conclusion=Conclusion.SUCCESS,
        started_at=NOW,
        completed_at=NOW,
    )


def test_a_queued_job_has_no_times_and_the_attempt_of_the_request() -> None:
    queued_job = job(run_attempt=None, status="queued", started_at=None, completed_at=None)
    assert (queued_job.attempt, queued_job.is_over, queued_job.started_at, queued_job.completed_at) == (
        2,
        False,
        None,
        None,
    )


@pytest.mark.parametrize(
    "url",
    [
        None,
        "",
        "44",
        "https://a/check-runs/",
        "https://a/check-runs/4x",
        "https://a/runs/44",
        "/check-runs/٤",
        "/check-runs/4\n",
    ],
)
def test_a_check_run_url_without_a_numeric_id_gives_no_check_run_id(url: str | None) -> None:
    assert job(check_run_url=url).check_run_id is None


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        {"workflow_runs": 1},
        {"jobs": [{}]},
        RUN | {"id": -1},
        RUN | {"created_at": "2026-01-01T00:00:00"},
    ],
)
def test_an_unreadable_response_raises_outside_unsure(body: object) -> None:
    with pytest.raises(OutsideUnsure):
        actions.parse_run(answer(body))
    with pytest.raises(OutsideUnsure):
        actions.parse_runs(answer(body))
    with pytest.raises(OutsideUnsure):
        actions.parse_jobs(answer(body), 1)
