import json
from datetime import UTC, datetime
from typing import Any

import pytest

from crcr.decide.events import (
    CheckRunEvent,
    CheckSuiteEvent,
    Event,
    IssueCommentEvent,
    MergeGroupEvent,
    UnusedEvent,
)
from crcr.decide.model import RepoName
from crcr.errors import BadRequest
from crcr.receive.webhook.parse import parse_event
from support.published_files import example

REPOSITORY = {"id": 7, "full_name": "Up/Stream"}
UPSTREAM = RepoName("up/stream")


def _parse(name: str, body: Any) -> Event:
    return parse_event(name, json.dumps(body).encode())


def _refusal(name: str, body: Any) -> str:
    with pytest.raises(BadRequest) as caught:
        _parse(name, body)
    return caught.value.detail


def _group(action: str, **changes: Any) -> dict[str, Any]:
    group = {
        "head_sha": "a" * 40,
        "head_ref": "refs/heads/gh-readonly-queue/main/pr-104-" + "b" * 40,
        "base_sha": "b" * 40,
        "base_ref": "refs/heads/main",
    }
    return {"action": action, "merge_group": group | changes, "repository": REPOSITORY}


def test_a_checks_requested_merge_group_is_parsed_in_full() -> None:
    assert parse_event("merge_group", example("merge_group", "checks_requested")) == MergeGroupEvent(
        upstream=RepoName("octo-org/octo-repo"),
        repository_id=17273051,
        action="checks_requested",
        head_sha="2ffea6db159f6b6c47a24e778fb9ef40cf6b1c7d",
        head_ref="refs/heads/gh-readonly-queue/main/pr-104-929f8209d40f77f4abc622a499c93a83babdbe64",
        base_sha="380387fbc80638b734a49e1be1c4dfec1c01b33c",
        base_ref="refs/heads/main",
        installation_id=1,
        default_branch="main",
    )


def test_a_destroyed_merge_group_is_parsed_for_any_reason() -> None:
    event = _parse("merge_group", _group("destroyed") | {"reason": "of next year"})
    assert isinstance(event, MergeGroupEvent)
    assert (event.action, event.installation_id) == ("destroyed", None)


@pytest.mark.parametrize(
    ("field", "value"), [("head_sha", "main"), ("base_sha", None), ("head_ref", "a b"), ("base_ref", "")]
)
def test_an_invalid_field_of_a_merge_group_is_named_by_its_path(field: str, value: Any) -> None:
    assert f"`$.merge_group.{field}`" in _refusal("merge_group", _group("destroyed", **{field: value}))


def test_a_clicked_check_run_button_is_parsed_in_full() -> None:
    assert parse_event("check_run", example("check_run", "requested_action")) == CheckRunEvent(
        upstream=RepoName("electron/electron"),
        repository_id=9384267,
        action="requested_action",
        head_sha="5bd5f196a46b8222fb7484f05faba41a73cf34bd",
        name="API Review",
        check_run_id=1494503112,
        external_id=None,
        identifier="lgtm|26764",
        app_id=25811,
        sender="codebytere",
        installation_id=690857,
    )


def _check(action: str, **changes: Any) -> dict[str, Any]:
    check = {"id": 4, "head_sha": "a" * 40, "name": "crcr/gate"}
    return {"action": action, "check_run": check | changes, "repository": REPOSITORY}


def test_a_rerequested_check_run_has_none_for_fields_that_github_omits() -> None:
    assert _parse("check_run", _check("rerequested", app=None, external_id="")) == CheckRunEvent(
        upstream=UPSTREAM,
        repository_id=7,
        action="rerequested",
        head_sha="a" * 40,
        name="crcr/gate",
        check_run_id=4,
        external_id=None,
        identifier=None,
        app_id=None,
        sender="ghost",
        installation_id=None,
    )


def test_a_check_run_event_has_our_external_id() -> None:
    event = _parse("check_run", _check("rerequested", external_id="gate:1", app={"id": 12}))
    assert isinstance(event, CheckRunEvent)
    assert (event.external_id, event.app_id) == ("gate:1", 12)


@pytest.mark.parametrize(
    ("field", "value"), [("id", 0), ("head_sha", "A" * 40), ("name", None), ("app", {"id": "12"})]
)
def test_an_invalid_field_of_a_check_run_is_named_by_its_path(field: str, value: Any) -> None:
    assert f"`$.check_run.{field}" in _refusal("check_run", _check("rerequested", **{field: value}))


def test_a_rerequested_check_suite_is_parsed_in_full() -> None:
    assert parse_event("check_suite", example("check_suite", "rerequested")) == CheckSuiteEvent(
        upstream=RepoName("Codertocat/Hello-World"),
        repository_id=186853002,
        head_sha="ec26c3e57ca3a959ca5aad62de7213c562f8c821",
        app_id=29310,
        sender="octocoders-linter[bot]",
        installation_id=957387,
    )


@pytest.mark.parametrize(
    ("name", "action"),
    [
        ("merge_group", "of_next_year"),
        ("check_run", "of_next_year"),
        ("check_suite", "requested"),
        ("check_suite", "completed"),
        ("issue_comment", "edited"),
        ("issue_comment", "deleted"),
    ],
)
def test_other_actions_are_ignored_even_in_a_malformed_body(name: str, action: str) -> None:
    assert _parse(name, {"action": action}) == UnusedEvent(f"action {action} of {name}")


PERSON = {"login": "Octo-Cat", "type": "User"}


def _comment(issue: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    return {
        "action": "created",
        "issue": {"number": 12, "pull_request": {"url": "https://x/pulls/12"}} if issue is None else issue,
        "comment": {"id": 99, "body": "/crcr status", "user": PERSON, "created_at": "2026-01-01T00:00:00Z"}
        | changes,
        "repository": REPOSITORY,
        "installation": {"id": 3},
    }


def test_a_comment_with_a_command_is_parsed_in_full() -> None:
    body = "Looks good.\r\n/crcr approve\r\n"
    assert _parse("issue_comment", _comment(body=body)) == IssueCommentEvent(
        upstream=UPSTREAM,
        repository_id=7,
        number=12,
        comment_id=99,
        author="Octo-Cat",
        author_is_person=True,
        body=body,
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        installation_id=3,
    )


@pytest.mark.parametrize("issue", [{"number": 12}, {"number": 12, "pull_request": None}])
def test_a_comment_on_an_issue_is_ignored_even_with_a_command(issue: dict[str, Any]) -> None:
    assert _parse("issue_comment", _comment(issue)) == UnusedEvent("a comment on an issue")


@pytest.mark.parametrize(
    "body", ["", None, "Thanks!", "> /crcr approve", "see /crcr approve", "```\n/crcr status"]
)
def test_a_comment_without_a_command_is_ignored(body: str | None) -> None:
    assert _parse("issue_comment", _comment(body=body)) == UnusedEvent("a comment without a command")


@pytest.mark.parametrize(
    "changes",
    [
        {"user": None},
        {"user": {}},
        {"user": {"login": None, "type": "User"}},
        {"user": {"login": "ghost", "type": "User"}},
        {"user": {"login": "Ghost", "type": "User"}},
        {"user": {"login": "octocat"}},
        {"user": {"login": "octo", "type": "Bot"}},
        {"user": {"login": "octo", "type": "Organization"}},
        {"user": {"login": "octo", "type": "Mannequin"}},
        {"user": {"login": "octo[bot]", "type": "User"}},
        {"performed_via_github_app": {"id": 1, "slug": "some-app"}},
        {"performed_via_github_app": {}},
    ],
)
def test_bots_apps_and_deleted_accounts_are_not_persons(changes: dict[str, Any]) -> None:
    event = _parse("issue_comment", _comment(**changes))
    assert isinstance(event, IssueCommentEvent)
    assert not event.author_is_person


def test_a_nul_in_a_comment_is_replaced() -> None:
    event = _parse("issue_comment", _comment(body="\0\n/crcr retry"))
    assert isinstance(event, IssueCommentEvent)
    assert event.body == "\ufffd\n/crcr retry"


@pytest.mark.parametrize(("field", "value"), [("id", None), ("body", 3), ("user", "octocat")])
def test_an_invalid_field_of_a_comment_is_named_by_its_path(field: str, value: Any) -> None:
    assert f"`$.comment.{field}`" in _refusal("issue_comment", _comment(**{field: value}))
