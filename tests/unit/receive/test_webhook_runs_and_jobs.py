import json
from datetime import UTC, datetime
from typing import Any

import pytest

from crcr.decide.events import Event, UnusedEvent, WorkflowJobEvent, WorkflowRunEvent
from crcr.decide.github.requests_and_answers import ActionsJob, ActionsRun
from crcr.decide.model import Conclusion, RepoName
from crcr.errors import BadRequest
from crcr.receive.webhook.parse import parse_event
from support.published_files import example

REPOSITORY = {"id": 7, "full_name": "Down/Stream"}
CREATED = "2026-08-01T10:00:00Z"


def _parse(name: str, body: Any) -> Event:
    return parse_event(name, json.dumps(body).encode())


def _refusal(name: str, body: Any) -> str:
    with pytest.raises(BadRequest) as caught:
        _parse(name, body)
    return caught.value.detail


def _run_body(action: str = "completed", workflow: Any = None, **changes: Any) -> dict[str, Any]:
    run = {"id": 5, "status": "completed", "event": "repository_dispatch", "created_at": CREATED}
    return {
        "action": action,
        "workflow_run": run | changes,
        "workflow": workflow,
        "repository": REPOSITORY,
    }


def _job_body(action: str = "completed", **changes: Any) -> dict[str, Any]:
    job = {"id": 6, "run_id": 5, "name": "build (cuda, 3.12)", "status": "completed"}
    return {"action": action, "workflow_job": job | changes, "repository": REPOSITORY}


def _run(**changes: Any) -> ActionsRun:
    event = _parse("workflow_run", _run_body(**changes))
    assert isinstance(event, WorkflowRunEvent)
    return event.run


def _job(**changes: Any) -> ActionsJob:
    event = _parse("workflow_job", _job_body(**changes))
    assert isinstance(event, WorkflowJobEvent)
    return event.job


def test_a_workflow_run_is_parsed_in_full() -> None:
    body = json.loads(example("workflow_run", "requested"))
    assert _parse("workflow_run", body | {"installation": {"id": 3}}) == WorkflowRunEvent(
        repository=RepoName("octo-org/octo-repo"),
        repository_id=300029405,
        run=ActionsRun(
            run_id=289782451,
            attempt=1,
            status="queued",
            conclusion=None,
            display_title="ci(action): update actions/setup-node digest to 8c91899",
            workflow_name="test",
            workflow_path=".github/workflows/test.yml",
            event="repository_dispatch",
            created_at=datetime(2020, 10, 5, 16, 33, 24, tzinfo=UTC),
        ),
        installation_id=3,
        default_branch="master",
    )


def test_a_workflow_job_is_parsed_in_full() -> None:
    body = json.loads(example("workflow_job", "completed"))
    assert _parse("workflow_job", body | {"installation": {"id": 3}}) == WorkflowJobEvent(
        repository=RepoName("Codertocat/Hello-World"),
        repository_id=186853002,
        run_id=2202229078,
        job=ActionsJob(
            job_id=289782451,
            check_run_id="1291536064",
            name="linters",
            attempt=1,
            status="completed",
            conclusion=Conclusion.FAILURE,
            started_at=datetime(2021, 8, 5, 10, 34, 58, tzinfo=UTC),
            completed_at=datetime(2021, 8, 5, 10, 38, 16, tzinfo=UTC),
        ),
        installation_id=3,
        default_branch="master",
    )


def test_fields_of_a_run_or_job_that_github_omits_have_defaults() -> None:
    run, job = _run(), _job()
    assert (run.attempt, run.conclusion, run.display_title) == (1, None, "")
    assert (run.workflow_name, run.workflow_path) == ("", "")
    assert (job.attempt, job.conclusion, job.check_run_id) == (1, None, None)
    assert (job.started_at, job.completed_at) == (None, None)


def test_the_workflow_in_the_run_takes_precedence_over_the_top_level_workflow() -> None:
    top_level = {"name": "beside", "path": "beside.yml"}
    both = _run(workflow=top_level, name="CI", path=".github/workflows/ci.yml")
    assert (both.workflow_name, both.workflow_path) == ("CI", ".github/workflows/ci.yml")
    neither = _run(workflow=top_level, name="", path=None)
    assert (neither.workflow_name, neither.workflow_path) == ("beside", "beside.yml")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (".github/workflows/ci.yml@main", ".github/workflows/ci.yml"),
        (".github/workflows/ci.yaml@refs/heads/a@b.yml@c", ".github/workflows/ci.yaml"),
        (".github/workflows/c@i.yml", ".github/workflows/c@i.yml"),
        ("dynamic/dependabot/dependabot-updates", "dynamic/dependabot/dependabot-updates"),
    ],
)
def test_a_workflow_path_is_stored_without_its_ref(path: str, expected: str) -> None:
    assert _run(path=path).workflow_path == expected


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        *((known.value, known) for known in Conclusion if known is not Conclusion.NONE),
        (None, None),
        ("startup_failure", Conclusion.FAILURE),
        ("stale", Conclusion.CANCELLED),
        ("none", Conclusion.FAILURE),
        ("SUCCESS", Conclusion.FAILURE),
        ("of_next_year", Conclusion.FAILURE),
        ("", Conclusion.FAILURE),
    ],
)
def test_an_unknown_conclusion_is_a_failure(word: str | None, expected: Conclusion | None) -> None:
    assert _run(conclusion=word).conclusion is expected
    assert _job(conclusion=word).conclusion is expected


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://api.github.com/repos/o/r/check-runs/456", "456"),
        ("https://api.github.com/repos/o/r/check-runs/", None),
        ("https://api.github.com/repos/o/r/check-runs/456x", None),
        ("https://api.github.com/repos/o/r/check-runs/456\n", None),
        ("https://api.github.com/repos/o/r/check-runs/٤٥٦", None),
        ("/" * 100_000, None),
        (None, None),
    ],
)
def test_the_check_run_id_of_a_job_is_the_last_segment_of_its_url(
    url: str | None, expected: str | None
) -> None:
    assert _job(check_run_url=url).check_run_id == expected


@pytest.mark.parametrize("action", ["requested", "in_progress", "completed"])
def test_the_status_of_a_run_counts_and_not_the_action(action: str) -> None:
    assert _run(action=action, status="queued", run_attempt=2).status == "queued"


@pytest.mark.parametrize("action", ["queued", "in_progress", "completed"])
def test_every_used_action_of_a_job_is_parsed(action: str) -> None:
    assert _job(action=action).name == "build (cuda, 3.12)"


def test_an_unused_action_of_a_run_or_job_is_ignored() -> None:
    waiting = parse_event("workflow_job", example("workflow_job", "waiting"))
    assert waiting == UnusedEvent("action waiting of workflow_job")
    assert _parse("workflow_run", {"action": "of_next_year"}) == UnusedEvent(
        "action of_next_year of workflow_run"
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("id", "5"), ("status", None), ("event", 1), ("created_at", "yesterday"), ("created_at", None)),
        *(("run_attempt", 0), ("conclusion", 1), ("display_title", []), ("created_at", 10**18)),
    ],
)
def test_an_invalid_field_of_a_run_is_named_by_its_path(field: str, value: Any) -> None:
    assert f"`$.workflow_run.{field}`" in _refusal("workflow_run", _run_body(**{field: value}))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("id", None), ("run_id", "5"), ("name", None), ("status", 1), ("check_run_url", 4)),
        *(("started_at", "soon"), ("completed_at", "0001-01-01T00:00:00+02:00")),
    ],
)
def test_an_invalid_field_of_a_job_is_named_by_its_path(field: str, value: Any) -> None:
    assert f"`$.workflow_job.{field}`" in _refusal("workflow_job", _job_body(**{field: value}))
