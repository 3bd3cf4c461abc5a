"""GitHub's responses about set-ups: what is read from them; no outside text chooses an address."""

import json

import pytest

from crcr.decide.github.requests_and_answers import Urgency
from crcr.decide.model import RepoName
from crcr.errors import OutsideRefused, OutsideUnsure
from crcr.github.api import setup
from crcr.github.api.request_response import Response

REPO = RepoName("org/backend")


def answer(body: object, **headers: str) -> Response:
    return Response(200, headers, json.dumps(body).encode())


def test_an_installation_tells_rights_events_and_suspension() -> None:
    told = {"id": 7, "permissions": {"contents": "write"}, "events": ["push"], "suspended_at": None}
    found = setup.parse_installation(answer(told))
    assert (found.installation_id, found.suspended, found.events) == (7, False, ("push",))
    assert found.grants("contents", "read")
    assert not found.grants("actions", "read")
    assert setup.parse_installation(answer({**told, "suspended_at": "2026-08-03T09:00:00Z"})).suspended


def test_only_workflow_files_right_in_the_folder_are_listed() -> None:
    listed = [
        {"type": "file", "path": ".github/workflows/a.yml", "sha": "1", "size": 3},
        {"type": "dir", "path": ".github/workflows/b.yml", "sha": "2"},
        {"type": "file", "path": ".github/workflows/readme.md", "sha": "3", "size": 1},
        {"type": "file", "path": ".github/workflows/c.yaml", "sha": "4", "size": 9},
    ]
    assert [each.path[-6:] for each in setup.parse_files(answer(listed))] == ["/a.yml", "c.yaml"]


@pytest.mark.parametrize("path", ["../../x", ".github/workflows/a b&ref=c.yml", ".github/workflows/ä.yml"])
def test_a_file_is_one_quoted_segment_of_the_folder(path: str) -> None:
    request = setup.read_workflow_file(REPO, path, "ma/in?")
    folder, _, query = request.path.partition("?")
    assert folder.startswith("/repos/org/backend/contents/.github/workflows/")
    assert (folder.count("/"), query) == (7, "ref=ma%2Fin%3F")
    with pytest.raises(OutsideRefused):
        setup.read_workflow_file(REPO, "a/..", "main")


def test_a_large_file_is_refused_and_bytes_that_are_no_text_are_not_fatal() -> None:
    with pytest.raises(OutsideRefused):
        setup.parse_text(Response(200, {}, b"x", cut=True))
    assert setup.parse_text(Response(200, {}, b"a\xff")) == "a\N{REPLACEMENT CHARACTER}"


def test_the_app_tells_who_it_is_and_what_time_it_is() -> None:
    told = {"id": 5, "slug": "relay", "html_url": "https://x", "permissions": {}, "events": ["push"]}
    found = setup.parse_app(answer(told, date="Mon, 03 Aug 2026 09:00:00 GMT"))
    assert (found.app_id, found.slug, found.server_time is not None) == (5, "relay", True)
    assert found.server_time is not None
    assert found.server_time.isoformat() == "2026-08-03T09:00:00+00:00"
    assert setup.parse_app(answer(told, date="yesterday")).server_time is None


@pytest.mark.parametrize(
    ("insecure", "checks"), [("0", True), (0, True), ("1", False), (1, False), (None, True)]
)
def test_the_hook_tells_where_it_sends_and_how(insecure: object, checks: bool) -> None:
    found = setup.parse_hook(answer({"url": "https://x", "content_type": "json", "insecure_ssl": insecure}))
    assert (found.url, found.content_type, found.checks_tls) == ("https://x", "json", checks)


def test_what_cannot_be_read_is_no_answer() -> None:
    for read in (
        setup.parse_installation,
        setup.parse_branch,
        setup.parse_files,
        setup.parse_states,
        setup.parse_app,
    ):
        with pytest.raises(OutsideUnsure):
            read(answer({"id": 0}))


def test_an_inspection_leaves_the_minute_to_what_is_urgent() -> None:
    asked = (
        setup.read_branch(REPO),
        setup.list_workflow_files(REPO, "main"),
        setup.read_workflow_file(REPO, "a.yml", "main"),
        setup.list_workflows(REPO),
    )
    assert {each.urgency for each in asked} == {Urgency.DETAILS}
