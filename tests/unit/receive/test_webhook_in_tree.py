"""Webhooks of a repository's own CI: check runs of any App, and commit statuses."""

import json
from typing import Any

import pytest

from crcr.decide.events import CheckRunEvent, InTreeCheckEvent
from crcr.decide.in_tree.checks import NO_APP, STATUSES, InTreeCheck, Outcome
from crcr.decide.model import RepoName
from crcr.errors import BadRequest
from crcr.receive.webhook.parse import parse_event
from support.published_files import example, webhook_examples

SHA = "ec26c3e57ca3a959ca5aad62de7213c562f8c821"


def check_body(action: str = "completed", **changes: Any) -> bytes:
    body = json.loads(example("check_run", "completed"))
    body["check_run"] |= changes
    return json.dumps(body | {"action": action}).encode()


def status_body(**changes: Any) -> bytes:
    return json.dumps(json.loads(example("status")) | changes).encode()


def parse_check(event: str, body: bytes) -> InTreeCheck:
    parsed = parse_event(event, body)
    assert isinstance(parsed, InTreeCheckEvent)
    return parsed.check


def test_a_completed_check_run_is_parsed_in_full() -> None:
    assert parse_event("check_run", example("check_run", "completed")) == InTreeCheckEvent(
        upstream=RepoName("Codertocat/Hello-World"),
        repository_id=186853002,
        head_sha=SHA,
        check=InTreeCheck(
            app_id=29310,
            name="Octocoders-linter",
            check_id=128620228,
            ended_at=1557933672,
            conclusion="failure",
            url="https://github.com/Codertocat/Hello-World/runs/128620228",
        ),
        client_id=None,
        installation_id=None,
    )


def test_the_status_in_the_body_counts_and_not_the_action() -> None:
    running = parse_check("check_run", check_body("completed", status="in_progress", conclusion=None))
    assert (running.outcome, running.ended_at) == (Outcome.RUNNING, None)
    over = parse_check("check_run", check_body("created", status="completed", conclusion="failure"))
    assert over.outcome is Outcome.FAILED


def test_a_rerequested_check_run_is_a_check_run_event() -> None:
    for action in ("rerequested", "requested_action"):
        assert isinstance(parse_event("check_run", example("check_run", action)), CheckRunEvent)


@pytest.mark.parametrize("conclusion", [None, 5, "two words", "<b>"])
def test_an_invalid_conclusion_becomes_unknown_and_counts_as_failed(conclusion: Any) -> None:
    check = parse_check("check_run", check_body(conclusion=conclusion))
    assert (check.conclusion, check.outcome) == ("unknown", Outcome.FAILED)


def test_fields_that_only_pages_need_may_be_missing() -> None:
    odd: dict[str, Any] = {"html_url": 5, "details_url": None, "completed_at": "soon", "app": None}
    check = parse_check("check_run", check_body(**odd))
    assert (check.url, check.ended_at, check.app_id) == (None, None, NO_APP)


def test_a_link_falls_back_to_details_url() -> None:
    check = parse_check("check_run", check_body(html_url=None, details_url="https://ci.example/1"))
    assert check.url == "https://ci.example/1"
    assert parse_check("check_run", check_body(html_url=None, details_url="x" * 2_001)).url is None


@pytest.mark.parametrize("field", ["id", "head_sha", "name"])
def test_a_check_run_without_id_sha_or_name_is_refused(field: str) -> None:
    absent: dict[str, Any] = {field: None}
    with pytest.raises(BadRequest) as caught:
        parse_event("check_run", check_body(**absent))
    assert f"$.check_run.{field}" in caught.value.detail


def test_an_app_matches_by_its_id_and_its_client_id() -> None:
    event = parse_event("check_run", check_body(app={"id": 12, "client_id": "Iv23liABC"}))
    assert isinstance(event, InTreeCheckEvent)
    assert event.is_made_by("12")
    assert event.is_made_by("Iv23liABC")
    assert not event.is_made_by("13")


@pytest.mark.parametrize(
    ("state", "outcome"),
    [
        ("success", Outcome.PASSED),
        ("failure", Outcome.FAILED),
        ("error", Outcome.FAILED),
        ("pending", Outcome.RUNNING),
    ],
)
def test_a_commit_status_is_a_check_without_an_app(state: str, outcome: Outcome) -> None:
    check = parse_check("status", status_body(state=state, context="ci/circleci", target_url="https://ci/7"))
    assert (check.app_id, check.name, check.outcome, check.url) == (
        STATUSES,
        "ci/circleci",
        outcome,
        "https://ci/7",
    )


def test_every_published_example_is_parsed() -> None:
    bodies = [
        (name, body)
        for name, body in webhook_examples()
        if name == "status"
        or (name == "check_run" and json.loads(body)["action"] in {"created", "completed"})
    ]
    assert len(bodies) == 10
    assert all(isinstance(parse_event(name, body), InTreeCheckEvent) for name, body in bodies)
