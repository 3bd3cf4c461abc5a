"""Requests to GitHub byte for byte, and the meaning of each kind of response."""

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crcr.decide.github.requests_and_answers import FileLocation, FileText, PullFacts, RepositoryFacts
from crcr.decide.model import RepoName
from crcr.errors import FileNotText, OutsideFault, OutsideLimited, OutsideRefused, OutsideUnsure
from crcr.github.api import request_response
from crcr.github.api.request_response import Request, Response
from crcr.github.http.errors import MESSAGE_CHARS, error_from_response, readable

NOW = datetime(2026, 1, 1, tzinfo=UTC)
EPOCH = int(NOW.timestamp())
REPO = RepoName("Org/Back.end")
READ = Request("GET", "/repos/Org/Back.end")
TOKEN = "ghs_123456_eyJhbGciOiJ.eyJpc3MiOi_x.sig-nature"


def answer(status: int, headers: dict[str, str] | None = None, **body: object) -> Response:
    return Response(status, headers or {}, json.dumps(body).encode())


def test_every_call_has_its_method_path_and_points() -> None:
    file = FileLocation(REPO, "main/x?&", ".github/allow list#1.yml")
    requests = [
        request_response.find_installation(REPO),
        request_response.read_repository(REPO),
        request_response.create_dispatch(REPO, b"{}"),
        request_response.read_pull(REPO, 7),
        request_response.read_file(file, '"e"'),
        request_response.create_installation_token(5, [9], request_response.CONTENTS_WRITE),
    ]
    assert [(r.method, r.path, r.points) for r in requests] == [
        ("GET", "/repos/Org/Back.end/installation", 1),
        ("GET", "/repos/Org/Back.end", 1),
        ("POST", "/repos/Org/Back.end/dispatches", 5),
        ("GET", "/repos/Org/Back.end/pulls/7", 1),
        (
            "GET",
            "/repos/Org/Back.end/contents/.github/allow%20list%231.yml?ref=main%2Fx%3F%26",
            1,
        ),
        ("POST", "/app/installations/5/access_tokens", 5),
    ]


def test_a_token_request_is_limited_to_its_repositories_and_permissions() -> None:
    narrow = request_response.create_installation_token(5, [9], request_response.CONTENTS_WRITE).body
    wide = request_response.create_installation_token(5, [], request_response.METADATA_READ).body
    assert json.loads(narrow or b"") == {"permissions": {"contents": "write"}, "repository_ids": [9]}
    assert json.loads(wide or b"") == {"permissions": {"metadata": "read"}}


def test_a_dispatch_sends_the_given_body_object_unchanged() -> None:
    body = b'{"event_type":"push"}'
    assert request_response.create_dispatch(REPO, body).body is body


@pytest.mark.parametrize("path", ["../../../user", "a/../b", "", "a//b", "."])
def test_a_file_path_that_would_reach_another_endpoint_is_refused(path: str) -> None:
    with pytest.raises(OutsideRefused, match="not the path of a file"):
        request_response.read_file(FileLocation(REPO, "main", path), None)


RESET = {"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(EPOCH + 120)}
LIMITS: list[tuple[int, dict[str, str], str, float]] = [
    (403, {"retry-after": "7"}, "", 7),
    (429, {"retry-after": "7"}, "", 7),
    (429, {"retry-after": "7", **RESET}, "", 7),
    (403, RESET, "API rate limit exceeded for installation", 120),
    (429, RESET, "", 120),
    (403, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(EPOCH - 9)}, "", 1),
    (403, {"x-ratelimit-remaining": "0"}, "", 60),
    (429, {}, "", 60),
    (429, {"retry-after": "Thu, 01 Jan 2026 00:00:09 GMT"}, "", 60),
    (429, {"x-ratelimit-remaining": "44", "x-ratelimit-reset": str(EPOCH + 120)}, "", 60),
    (403, {}, "You have exceeded a secondary rate limit.", 60),
    (403, {}, "You have triggered an abuse detection mechanism.", 60),
    (429, {"retry-after": "0"}, "", 1),
    (429, {"retry-after": "999999999"}, "", 3600),
    (429, {"retry-after": "-5"}, "", 60),
]


@pytest.mark.parametrize(("status", "headers", "message", "wait_s"), LIMITS)
def test_a_rate_limit_response_gives_the_time_to_wait(
    status: int, headers: dict[str, str], message: str, wait_s: float
) -> None:
    fault = error_from_response(READ, answer(status, headers, message=message), NOW)
    assert isinstance(fault, OutsideLimited)
    assert fault.retry_after_s == wait_s


OTHERS: list[tuple[int, type[OutsideFault] | None]] = [
    *((status, None) for status in (200, 201, 202, 204)),
    *((status, OutsideRefused) for status in (301, 302, 304, 307, 308)),
    *((status, OutsideRefused) for status in (400, 401, 403, 404, 409, 410, 413, 422, 451)),
    *((status, OutsideUnsure) for status in (408, 500, 502, 503, 504, 599)),
]


@pytest.mark.parametrize(("status", "kind"), OTHERS)
def test_every_other_status_maps_to_one_kind_of_error(status: int, kind: type[OutsideFault] | None) -> None:
    headers = {"x-ratelimit-remaining": "10", "x-ratelimit-reset": str(EPOCH)}
    fault = error_from_response(READ, answer(status, headers, message="Because."), NOW)
    assert (type(fault) if fault else None) is kind
    if isinstance(fault, OutsideRefused):
        assert fault.status == status
    if fault:
        assert fault.detail == f"GitHub answered {status} to GET /repos/Org/Back.end: Because."


def test_a_304_is_a_success_only_when_an_etag_was_sent() -> None:
    request = request_response.read_file(FileLocation(REPO, "main", "a"), '"e"')
    assert error_from_response(request, Response(304, {}, b""), NOW) is None
    assert request_response.parse_file(Response(304, {}, b"")) is None


@pytest.mark.parametrize("body", [b"", b"<html>", b"\xff", b"[1]", b'{"message": 3}', b"[" * 100_000])
def test_an_unreadable_error_body_still_gives_a_clear_error(body: bytes) -> None:
    fault = error_from_response(READ, Response(404, {}, body), NOW)
    assert "not there, or the App is not installed on it" in str(fault)


def test_fault_31_error_texts_contain_no_token_and_no_control_characters() -> None:
    message = f"Bad\x1b[31m \u202e{TOKEN} and Bearer abc.def and eyJhbGci.eyJpc3Mi.c2ln " + "x" * 5000
    text = str(error_from_response(READ, answer(422, message=message), NOW))
    assert not any(secret in text for secret in ("ghs_", "eyJ", "abc.def"))
    assert text.isprintable()
    assert len(text) < MESSAGE_CHARS + 100


@given(st.text(max_size=2000), st.integers(0, 600))
def test_truncation_never_leaves_a_token_in_the_text(before: str, at: int) -> None:
    shown = readable(before[:at] + " " + TOKEN + " " + before[at:])
    assert "ghs_" not in shown
    assert len(shown) <= MESSAGE_CHARS


def test_valid_responses_are_parsed_into_values() -> None:
    updated_at = "2026-01-01T02:00:00+02:00"
    repository = answer(200, id=3, full_name="Org/New", owner={"id": 4, "login": "Org"}, extra=[1])
    pull = answer(200, state="open", head={"sha": "a" * 40}, base={"ref": "main"}, updated_at=updated_at)
    minted = request_response.parse_token(answer(201, token=TOKEN, expires_at="2026-01-01T01:00:00Z"))
    assert request_response.parse_installation_id(answer(200, id=5)) == 5
    assert request_response.parse_repository(repository) == RepositoryFacts(3, 4, "Org/New")
    assert request_response.parse_pull(pull) == PullFacts("a" * 40, "main", is_open=True, updated_at=NOW)
    assert (minted.value, minted.expires_at) == (TOKEN, NOW.replace(hour=1))
    assert TOKEN not in repr(minted)
    assert request_response.parse_file(Response(200, {"etag": '"e"'}, "é".encode())) == FileText("é", '"e"')


@pytest.mark.parametrize(
    "response",
    [
        Response(200, {}, b""),
        Response(200, {}, b"<html>"),
        Response(200, {}, b'{"token": "\xff"}'),
        Response(200, {}, b"[" * 100_000),
        answer(200, token="ghs_a\r\nX-Evil: 1", expires_at="2026-01-01T01:00:00Z"),
        answer(200, token=TOKEN, expires_at="2026-01-01T01:00:00"),
        answer(200, token=TOKEN),
        Response(200, {}, json.dumps({"token": TOKEN}).encode(), cut=True),
    ],
)
def test_an_unreadable_token_response_raises_outside_unsure(response: Response) -> None:
    with pytest.raises(OutsideUnsure) as caught:
        request_response.parse_token(response)
    assert "ghs_" not in f"{caught.value!r} {caught.value}"


@pytest.mark.parametrize(
    "response", [Response(200, {}, b"\xff\xfe"), Response(200, {}, b"a", cut=True)], ids=["binary", "large"]
)
def test_a_binary_or_too_large_file_is_refused(response: Response) -> None:
    with pytest.raises(OutsideRefused):
        request_response.parse_file(response)


def test_a_file_that_is_not_utf_8_is_refused_with_the_line_of_the_error() -> None:
    with pytest.raises(FileNotText) as caught:
        request_response.parse_file(Response(200, {}, b"L1:\n  - caf\xe9/x\n"))
    assert (caught.value.line, caught.value.detail) == (2, "not UTF-8 text: byte 0xe9 at column 8")


GHES = "https://ghe.example/api/v3"
MOVES: list[tuple[str, str, str | None]] = [
    (
        "https://api.github.com",
        "https://api.github.com/repositories/3/pulls/7?x=1",
        "/repositories/3/pulls/7?x=1",
    ),
    ("https://api.github.com", "/repositories/3", "/repositories/3"),
    (GHES, "https://ghe.example/api/v3/repositories/3", "/repositories/3"),
    (GHES, "https://ghe.example/login", None),
    (GHES, "https://ghe.example/api/v3/../../login", None),
    ("https://api.github.com", "https://evil.example/repositories/3", None),
    ("https://api.github.com", "https://api.github.com@evil.example/x", None),
    ("https://api.github.com", "https://api.github.com.evil.example/x", None),
    ("https://api.github.com", "https://api.github.com:8443/x", None),
    ("https://api.github.com", "http://api.github.com/x", None),
    ("https://api.github.com", "//evil.example/x", "//evil.example/x"),
    ("https://api.github.com", ".evil.example/x", None),
    ("https://api.github.com", "https://evil.example\\@api.github.com/x", None),
    ("https://api.github.com", "https://[/x", None),
    ("https://api.github.com", "/x y", None),
    ("https://api.github.com", "", None),
]


@pytest.mark.parametrize(("api_url", "location", "path"), MOVES)
def test_a_read_follows_a_redirect_only_below_the_apis_own_url(
    api_url: str, location: str, path: str | None
) -> None:
    next_request = request_response.follow_redirect(READ, Response(301, {"location": location}, b""), api_url)
    assert (next_request.path if next_request else None) == path


def test_a_write_follows_no_redirect() -> None:
    redirect = Response(307, {"location": "/repositories/3/dispatches"}, b"")
    assert (
        request_response.follow_redirect(
            request_response.create_dispatch(REPO, b"{}"), redirect, "https://api.github.com"
        )
        is None
    )
