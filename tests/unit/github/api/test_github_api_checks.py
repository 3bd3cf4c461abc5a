"""Check runs: the sent fields, cut to GitHub's limits, and the search for existing ones."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crcr.decide.checks.check_run import Annotation, Button, CheckContent, CheckStatus
from crcr.decide.github.requests_and_answers import ListedCheck, Urgency
from crcr.decide.model import Conclusion, RepoName
from crcr.errors import OutsideRefused, OutsideUnsure
from crcr.github.api import checks
from crcr.github.api.request_response import MAX_LIST_BYTES, Request, Response

REPO = RepoName("Org/Up")
SHA = "a" * 40
WAITING = CheckContent(status=CheckStatus.QUEUED, title="Waiting", summary="Soon.")
DONE = CheckContent(
    status=CheckStatus.COMPLETED,
    conclusion=Conclusion.FAILURE,
    title="2 failed",
    summary="See below.",
    text="| a |",
    annotations=(Annotation("src/a.py", 7, "broke", "It broke."),),
    buttons=(Button("Run again", "Run what failed again", "rerun"),),
    details_url="https://relay.test/d/1",
    started_at=datetime(2026, 1, 1, 1, 30, 0, 999, tzinfo=timezone(timedelta(hours=1))),
    completed_at=datetime(2026, 1, 1, 1, tzinfo=UTC),
)


def request_body(request: Request) -> Any:
    return json.loads(request.body or b"")


def output(shown: CheckContent) -> Any:
    return request_body(checks.update_check(REPO, 1, shown))["output"]


def test_a_check_is_created_with_all_fields_of_its_content() -> None:
    request = checks.create_check(
        REPO, head_sha=SHA, name="crcr/gate", external_id="g/1", content=DONE, urgency=Urgency.CHECKS
    )
    assert (request.method, request.path, request.points, request.urgency) == (
        "POST",
        "/repos/Org/Up/check-runs",
        5,
        Urgency.CHECKS,
    )
    assert not request.creates_content
    assert request_body(request) == {
        "name": "crcr/gate",
        "head_sha": SHA,
        "external_id": "g/1",
        "status": "completed",
        "conclusion": "failure",
        "started_at": "2026-01-01T00:30:00Z",
        "completed_at": "2026-01-01T01:00:00Z",
        "details_url": "https://relay.test/d/1",
        "output": {
            "title": "2 failed",
            "summary": "See below.",
            "text": "| a |",
            "annotations": [
                {
                    "path": "src/a.py",
                    "start_line": 7,
                    "end_line": 7,
                    "annotation_level": "failure",
                    "message": "It broke.",
                    "title": "broke",
                }
            ],
        },
        "actions": [{"label": "Run again", "description": "Run what failed again", "identifier": "rerun"}],
    }


def test_an_update_replaces_text_and_buttons_and_sends_no_name() -> None:
    request = checks.update_check(REPO, 12, WAITING)
    assert (request.method, request.path, request.points) == ("PATCH", "/repos/Org/Up/check-runs/12", 5)
    assert request_body(request) == {
        "status": "queued",
        "output": {"title": "Waiting", "summary": "Soon.", "text": ""},
        "actions": [],
    }


def test_conclusion_and_completed_at_are_sent_only_for_a_completed_check() -> None:
    running = replace(DONE, status=CheckStatus.IN_PROGRESS)
    body = request_body(checks.update_check(REPO, 1, running))
    assert body["status"] == "in_progress"
    assert not {"conclusion", "completed_at"} & set(body)


@pytest.mark.parametrize("conclusion", [Conclusion.NONE, None])
def test_a_missing_conclusion_raises_a_value_error(conclusion: Conclusion | None) -> None:
    with pytest.raises(ValueError, match="conclusion"):
        checks.update_check(REPO, 1, replace(DONE, conclusion=conclusion))


@pytest.mark.parametrize("conclusion", [each for each in Conclusion if each is not Conclusion.NONE])
def test_every_other_conclusion_is_sent_unchanged(conclusion: Conclusion) -> None:
    body = request_body(checks.update_check(REPO, 1, replace(DONE, conclusion=conclusion)))
    assert body["conclusion"] == conclusion.value


@pytest.mark.parametrize("size", [65_534, 65_535])
def test_texts_within_the_limit_are_not_truncated(size: int) -> None:
    sent = output(replace(DONE, title="t" * 255, summary="s" * size, text="é" * size))
    assert (sent["title"], sent["summary"], sent["text"]) == ("t" * 255, "s" * size, "é" * size)


def test_texts_over_the_limit_are_truncated_with_a_visible_mark() -> None:
    sent = output(replace(DONE, title="t" * 256, summary="s" * 65_536, text="é" * 200_000))
    assert sent["title"] == "t" * 254 + "…"
    for name in ("summary", "text"):
        assert len(sent[name]) == 65_535
        assert sent[name].endswith("… cut")


def test_annotations_and_buttons_are_limited_to_githubs_maximum() -> None:
    many = replace(DONE, annotations=DONE.annotations * 51, buttons=DONE.buttons * 4)
    body = request_body(checks.update_check(REPO, 1, many))
    assert (len(body["output"]["annotations"]), len(body["actions"])) == (50, 3)


def test_button_texts_are_truncated_to_githubs_limits() -> None:
    button = Button("l" * 21, "d" * 41, "i" * 21)
    (action,) = request_body(checks.update_check(REPO, 1, replace(DONE, buttons=(button,))))["actions"]
    assert action == {"label": "l" * 19 + "…", "description": "d" * 39 + "…", "identifier": "i" * 20}


def test_invalid_annotations_are_dropped_and_long_ones_are_truncated() -> None:
    annotations = (
        Annotation("", 1, "t", "no path"),
        Annotation("a", 1, "t", ""),
        Annotation("b", -3, "t" * 300, "é" * 40_000),
    )
    (kept,) = output(replace(DONE, annotations=annotations))["annotations"]
    assert (kept["path"], kept["start_line"], kept["end_line"], len(kept["title"])) == ("b", 1, 1, 255)
    assert 65_530 < len(kept["message"].encode()) <= 65_536
    assert kept["message"].endswith("é\n\n… cut")


@given(st.text(st.characters(), max_size=300), st.text(st.characters(), max_size=300))
def test_any_text_gives_a_readable_body_with_a_limited_title(title: str, message: str) -> None:
    hostile = replace(
        DONE,
        title=title,
        summary=message,
        text=message,
        annotations=(Annotation(title or "a", 1, title, message or "a"),),
        buttons=(Button(title, message, title),),
    )
    body = request_body(checks.update_check(REPO, 1, hostile))
    json.dumps(body, ensure_ascii=False).encode()
    assert len(body["output"]["title"]) <= 255


def test_lone_surrogates_are_replaced() -> None:
    assert output(replace(DONE, title="a\ud800b"))["title"] == "a?b"


def test_checks_are_searched_by_commit_and_name() -> None:
    request = checks.find_checks(REPO, "refs/../x", "crcr/gate & more")
    assert (request.method, request.points, request.most_bytes) == ("GET", 1, MAX_LIST_BYTES)
    assert request.path == (
        "/repos/Org/Up/commits/refs%2F..%2Fx/check-runs"
        "?check_name=crcr%2Fgate%20%26%20more&filter=all&per_page=100"
    )


@pytest.mark.parametrize("sha", ["", ".", ".."])
def test_a_sha_that_would_change_the_path_is_refused(sha: str) -> None:
    with pytest.raises(OutsideRefused):
        checks.find_checks(REPO, sha, "crcr/gate")


def test_listed_checks_are_parsed_into_values() -> None:
    body = b'{"total_count":2,"check_runs":[{"id":4,"external_id":"g/1","app":{"id":1}},{"id":5,"external_id":null}]}'
    assert checks.parse_checks(Response(200, {}, body)) == (ListedCheck(4, "g/1"), ListedCheck(5, None))
    assert checks.parse_check_run_id(Response(201, {}, b'{"id":4}')) == 4


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"check_runs":{}}', b'{"check_runs":[{"id":"4"}]}', b'{"id":0}']
)
def test_an_unreadable_response_raises_outside_unsure(body: bytes) -> None:
    for reader in (checks.parse_checks, checks.parse_check_run_id):
        with pytest.raises(OutsideUnsure):
            reader(Response(200, {}, body))
