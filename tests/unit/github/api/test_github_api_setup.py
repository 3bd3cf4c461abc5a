"""GitHub's responses about set-ups: the parsed facts. No text from outside chooses a URL."""

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


def test_an_installation_has_permissions_events_and_suspension() -> None:
    body = {"id": 7, "permissions": {"contents": "write"}, "events": ["push"], "suspended_at": None}
    installation = setup.parse_installation(answer(body))
    assert (installation.installation_id, installation.suspended, installation.events) == (
        7,
        False,
        ("push",),
    )
    assert installation.grants("contents", "read")
    assert not installation.grants("actions", "read")
    assert setup.parse_installation(answer({**body, "suspended_at": "2026-08-03T09:00:00Z"})).suspended


def test_only_workflow_files_directly_in_the_folder_are_listed() -> None:
    listed = [
        {"type": "file", "path": ".github/workflows/a.yml", "sha": "1", "size": 3},
        {"type": "dir", "path": ".github/workflows/b.yml", "sha": "2"},
        {"type": "file", "path": ".github/workflows/readme.md", "sha": "3", "size": 1},
        {"type": "file", "path": ".github/workflows/c.yaml", "sha": "4", "size": 9},
    ]
    assert [each.path[-6:] for each in setup.parse_files(answer(listed))] == ["/a.yml", "c.yaml"]


@pytest.mark.parametrize("path", ["../../x", ".github/workflows/a b&ref=c.yml", ".github/workflows/ä.yml"])
def test_a_workflow_path_becomes_one_quoted_segment_of_the_folder(path: str) -> None:
    request = setup.read_workflow_file(REPO, path, "ma/in?")
    folder, _, query = request.path.partition("?")
    assert folder.startswith("/repos/org/backend/contents/.github/workflows/")
    assert (folder.count("/"), query) == (7, "ref=ma%2Fin%3F")
    with pytest.raises(OutsideRefused):
        setup.read_workflow_file(REPO, "a/..", "main")


def test_a_too_large_file_is_refused_and_invalid_bytes_are_replaced() -> None:
    with pytest.raises(OutsideRefused):
        setup.parse_text(Response(200, {}, b"x", cut=True))
    assert setup.parse_text(Response(200, {}, b"a\xff")) == "a\N{REPLACEMENT CHARACTER}"


def test_the_app_has_its_id_slug_and_server_time() -> None:
    body = {"id": 5, "slug": "relay", "html_url": "https://x", "permissions": {}, "events": ["push"]}
    app = setup.parse_app(answer(body, date="Mon, 03 Aug 2026 09:00:00 GMT"))
    assert (app.app_id, app.slug, app.server_time is not None) == (5, "relay", True)
    assert app.server_time is not None
    assert app.server_time.isoformat() == "2026-08-03T09:00:00+00:00"
    assert setup.parse_app(answer(body, date="yesterday")).server_time is None


@pytest.mark.parametrize(
    ("insecure", "checks"), [("0", True), (0, True), ("1", False), (1, False), (None, True)]
)
def test_the_hook_has_its_url_content_type_and_tls_check(insecure: object, checks: bool) -> None:
    hook = setup.parse_hook(answer({"url": "https://x", "content_type": "json", "insecure_ssl": insecure}))
    assert (hook.url, hook.content_type, hook.checks_tls) == ("https://x", "json", checks)


def test_an_unreadable_response_raises_outside_unsure() -> None:
    for read in (
        setup.parse_installation,
        setup.parse_branch,
        setup.parse_files,
        setup.parse_states,
        setup.parse_app,
    ):
        with pytest.raises(OutsideUnsure):
            read(answer({"id": 0}))


def test_inspection_calls_have_the_lowest_urgency() -> None:
    requests = (
        setup.read_branch(REPO),
        setup.list_workflow_files(REPO, "main"),
        setup.read_workflow_file(REPO, "a.yml", "main"),
        setup.list_workflows(REPO),
    )
    assert {each.urgency for each in requests} == {Urgency.DETAILS}
