"""`crcr failing --hud`: paging, retries with pauses, and caching of a relay's list."""

import json
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
import typer

from crcr.cli.failing.relay_api import LONGEST_WAIT_S, MOST_PAGES, RelayApi, relay_address
from crcr.cli.failing.response_cache import FRESH_S, ResponseCache, cache_folder
from crcr.cli.http_client import (
    AnswerTooLarge,
    ConnectionFailed,
    HttpError,
    HttpRequest,
    HttpResponse,
    InvalidRequest,
)
from crcr.errors import OutsideFault
from support.downstream.relay_answers import answer

ADDRESS = "https://relay.example"
START = 1_790_000_000.0


def item(number: int) -> dict[str, Any]:
    return {"backend": "org/backend", "workflow": "ci.yml", "job": f"job {number}", "failures_in_a_row": 1}


def list_response(*numbers: int, following: str | None = None, etag: str | None = None) -> HttpResponse:
    headers = {"etag": etag} if etag else {}
    return answer(200, {"items": [item(n) for n in numbers], "next": following}, **headers)


@dataclass
class Relay:
    """Returns its answers in order and repeats the last one. Time passes only in `wait`."""

    answers: list[HttpResponse | HttpError]
    requests: list[HttpRequest] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    now: float = START

    def answer(self, request: HttpRequest) -> HttpResponse:
        self.requests.append(request)
        following = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(following, HttpError):
            raise following
        return following

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds

    def read(self, cache: ResponseCache | None = None, **parameters: str) -> list[str]:
        clock = lambda: self.now  # noqa: E731
        relay = RelayApi(ADDRESS, cache=cache, exchange=self.answer, pause=self.wait, clock=clock)
        return [job["job"] for job in relay.read_list("failing", parameters)]

    def cache(self, folder: Path) -> ResponseCache:
        return ResponseCache(folder, lambda: self.now)


def test_all_pages_are_read_by_their_cursors() -> None:
    relay = Relay([list_response(1, 2, following="abc"), list_response(3, following="def"), list_response(4)])
    assert relay.read(kind="nightly") == ["job 1", "job 2", "job 3", "job 4"]
    queries = [dict(parse_qsl(urlsplit(request.url).query)) for request in relay.requests]
    assert [query.get("cursor") for query in queries] == [None, "abc", "def"]
    assert all((query["kind"], query["limit"]) == ("nightly", "200") for query in queries)


def test_a_job_that_moved_to_the_next_page_meanwhile_is_listed_once() -> None:
    assert Relay([list_response(1, 2, following="abc"), list_response(2, 3)]).read() == [
        "job 1",
        "job 2",
        "job 3",
    ]


def test_endless_paging_is_an_error() -> None:
    relay = Relay([list_response(1, following="abc")])
    with pytest.raises(OutsideFault, match="do not end"):
        relay.read()
    assert len(relay.requests) == MOST_PAGES


def test_only_user_agent_and_accept_headers_are_sent() -> None:
    relay = Relay([list_response(1)])
    relay.read()
    assert set(relay.requests[0].headers) == {"User-Agent", "Accept"}


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_relay_is_retried_after_its_retry_after(status: int) -> None:
    busy = answer(status, {"error": {"detail": "busy"}}, retry_after="7")
    relay = Relay([busy, busy, list_response(1)])
    assert relay.read() == ["job 1"]
    assert relay.waits == [7, 7]


def test_a_date_in_retry_after_is_supported() -> None:
    busy = answer(503, retry_after=formatdate(START + 11, usegmt=True))
    relay = Relay([busy, list_response(1)])
    assert relay.read() == ["job 1"]
    assert relay.waits == [11]


@pytest.mark.parametrize("header", [{}, {"retry_after": "soon"}])
def test_without_retry_after_the_pauses_double_and_end(header: dict[str, str]) -> None:
    relay = Relay([answer(503, {"error": {"detail": "down", "hint": "later"}}, **header)])
    with pytest.raises(OutsideFault, match="answers 503: down") as failed:
        relay.read()
    assert relay.waits == [1, 2, 4, 8, 16]
    assert failed.value.hint == "later"


def test_a_retry_after_above_the_limit_is_not_waited_for() -> None:
    relay = Relay([answer(429, retry_after=str(int(LONGEST_WAIT_S) + 1))])
    with pytest.raises(OutsideFault, match="answers 429"):
        relay.read()
    assert relay.waits == []


def test_the_sum_of_all_pauses_is_bounded() -> None:
    relay = Relay([answer(429, retry_after="50")])
    with pytest.raises(OutsideFault, match="answers 429"):
        relay.read()
    assert relay.waits == [50, 50]


def test_a_failed_connection_is_retried_and_then_reported() -> None:
    assert Relay([ConnectionFailed("reset"), list_response(1)]).read() == ["job 1"]
    relay = Relay([ConnectionFailed("no route\x1b[2J")])
    with pytest.raises(OutsideFault, match="cannot be reached") as failed:
        relay.read()
    assert (len(relay.requests), "\x1b" in failed.value.detail) == (3, False)


@pytest.mark.parametrize(
    ("received", "message"),
    [
        (answer(401), "requires a login"),
        (answer(403), "requires a login"),
        (answer(400, {"error": {"detail": "kind is odd"}}), "answers 400: kind is odd"),
        (answer(404, b"<html>"), "answers 404"),
        (answer(200, b"<html>hello"), "is not an answer of a relay"),
        (answer(200, {"items": [1], "next": None}), "is not a list of a relay"),
        (answer(200, {"items": [], "next": 5}), "is not a list of a relay"),
        (answer(200, b"[" * 100_000), "is not an answer of a relay"),
        (AnswerTooLarge(), "more than 8 MiB"),
        (InvalidRequest(), "cannot be reached"),
        (answer(302, location=f"{ADDRESS}/again"), "cannot be reached .more than 3 redirects"),
    ],
)
def test_a_response_that_is_no_list_is_reported_without_a_retry(
    received: HttpResponse | HttpError, message: str
) -> None:
    relay = Relay([received])
    with pytest.raises(OutsideFault, match=message):
        relay.read()
    assert (len(relay.requests), relay.waits) == (4 if "redirects" in message else 1, [])


def test_a_response_is_cached_for_a_moment_and_then_revalidated_by_its_etag(tmp_path: Path) -> None:
    relay = Relay([list_response(1, etag='"v1"'), answer(304), list_response(2, etag='"v2"')])
    cache = relay.cache(tmp_path)
    assert relay.read(cache) == relay.read(cache) == ["job 1"]
    assert len(relay.requests) == 1
    relay.now += FRESH_S + 1
    assert relay.read(cache) == ["job 1"]
    assert [request.headers.get("If-None-Match") for request in relay.requests] == [None, '"v1"']
    assert relay.read(cache) == ["job 1"], "a confirmed answer is fresh again"
    assert len(relay.requests) == 2
    relay.now += FRESH_S + 1
    assert relay.read(cache) == ["job 2"]


def test_different_queries_have_separate_cache_entries(tmp_path: Path) -> None:
    relay = Relay([list_response(1), list_response(2)])
    cache = relay.cache(tmp_path)
    assert [relay.read(cache, kind="push"), relay.read(cache, kind="nightly")] == [["job 1"], ["job 2"]]


def test_an_error_response_is_not_cached(tmp_path: Path) -> None:
    relay = Relay([answer(404), list_response(1)])
    cache = relay.cache(tmp_path)
    with pytest.raises(OutsideFault):
        relay.read(cache)
    assert relay.read(cache) == ["job 1"]


def test_an_unreachable_relay_is_an_error_even_with_a_stale_cache(tmp_path: Path) -> None:
    relay = Relay([list_response(1, etag='"v1"'), ConnectionFailed("down")])
    cache = relay.cache(tmp_path)
    relay.read(cache)
    relay.now += FRESH_S + 1
    with pytest.raises(OutsideFault):
        relay.read(cache)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"url": 1}', "null", '{"url": "x", "etag": 1, "at": "", "body": 2}']
)
def test_a_corrupt_cache_file_is_ignored_and_rewritten(tmp_path: Path, content: str) -> None:
    relay = Relay([list_response(1)])
    cache = relay.cache(tmp_path)
    relay.read(cache)
    (kept,) = tmp_path.glob("api-*.json")
    kept.write_text(content)
    assert relay.read(cache) == ["job 1"]
    assert json.loads(kept.read_text())["url"].startswith(ADDRESS)


def test_an_unwritable_cache_folder_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    relay = Relay([list_response(1)])
    assert relay.read(relay.cache(tmp_path / "file")) == ["job 1"]


def test_old_cache_files_are_deleted(tmp_path: Path) -> None:
    relay = Relay([list_response(1)])
    relay.read(relay.cache(tmp_path), kind="push")
    (old,) = tmp_path.glob("api-*.json")
    relay.now = old.stat().st_mtime + 25 * 3600
    relay.read(relay.cache(tmp_path), kind="nightly")
    assert not old.exists()


@pytest.mark.parametrize(
    ("environ", "platform", "folder"),
    [
        ({"HOME": "/home/ann"}, "linux", "/home/ann/.cache/crcr"),
        ({"HOME": "/home/ann", "XDG_CACHE_HOME": "/var/cache/ann"}, "linux", "/var/cache/ann/crcr"),
        ({"HOME": "/home/ann", "XDG_CACHE_HOME": "relative"}, "linux", "/home/ann/.cache/crcr"),
        ({"HOME": "/Users/ann"}, "darwin", "/Users/ann/Library/Caches/crcr"),
        ({"USERPROFILE": "/c/ann"}, "win32", "/c/ann/AppData/Local/crcr"),
        ({}, "linux", None),
    ],
)
def test_the_cache_folder_follows_the_conventions_of_the_system(
    environ: dict[str, str], platform: str, folder: str | None
) -> None:
    assert cache_folder(environ, platform) == (Path(folder) if folder else None)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("https://relay.example", ADDRESS),
        ("https://relay.example/", ADDRESS),
        ("https://relay.example/crcr", ADDRESS),
        ("https://relay.example/crcr/failing?kind=nightly", ADDRESS),
        ("http://127.0.0.1:8000/crcr/", "http://127.0.0.1:8000"),
        ("https://host.example/under/crcr/failing", "https://host.example/under"),
    ],
)
def test_the_relay_url_is_derived_from_the_url_of_a_page(url: str, address: str) -> None:
    assert relay_address(url) == address


@pytest.mark.parametrize(
    "url", ["relay.example", "ftp://relay.example", "https://", "https://a:b@relay.example"]
)
def test_an_invalid_relay_url_is_refused(url: str) -> None:
    with pytest.raises(typer.BadParameter):
        relay_address(url)
