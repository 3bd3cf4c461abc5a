"""`crcr failing --hud`: a relay's list is read whole, politely, and not more often than needed."""

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


def listed(*numbers: int, following: str | None = None, etag: str | None = None) -> HttpResponse:
    headers = {"etag": etag} if etag else {}
    return answer(200, {"items": [item(n) for n in numbers], "next": following}, **headers)


@dataclass
class Relay:
    """Answers one after the other; the last one again and again. Time goes on only where the reader waits."""

    answers: list[HttpResponse | HttpError]
    asked: list[HttpRequest] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    now: float = START

    def answer(self, request: HttpRequest) -> HttpResponse:
        self.asked.append(request)
        following = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(following, HttpError):
            raise following
        return following

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds

    def read(self, cache: ResponseCache | None = None, **asked: str) -> list[str]:
        clock = lambda: self.now  # noqa: E731
        relay = RelayApi(ADDRESS, cache=cache, exchange=self.answer, pause=self.wait, clock=clock)
        return [one["job"] for one in relay.read_list("failing", asked)]

    def cache(self, folder: Path) -> ResponseCache:
        return ResponseCache(folder, lambda: self.now)


def test_all_pages_are_read_by_their_cursors() -> None:
    relay = Relay([listed(1, 2, following="abc"), listed(3, following="def"), listed(4)])
    assert relay.read(kind="nightly") == ["job 1", "job 2", "job 3", "job 4"]
    queries = [dict(parse_qsl(urlsplit(request.url).query)) for request in relay.asked]
    assert [query.get("cursor") for query in queries] == [None, "abc", "def"]
    assert all((query["kind"], query["limit"]) == ("nightly", "200") for query in queries)


def test_a_job_that_moved_to_the_next_page_meanwhile_is_listed_once() -> None:
    assert Relay([listed(1, 2, following="abc"), listed(2, 3)]).read() == ["job 1", "job 2", "job 3"]


def test_pages_that_do_not_end_are_given_up() -> None:
    relay = Relay([listed(1, following="abc")])
    with pytest.raises(OutsideFault, match="do not end"):
        relay.read()
    assert len(relay.asked) == MOST_PAGES


def test_nothing_secret_is_sent() -> None:
    relay = Relay([listed(1)])
    relay.read()
    assert set(relay.asked[0].headers) == {"User-Agent", "Accept"}


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_relay_is_asked_again_when_it_says(status: int) -> None:
    busy = answer(status, {"error": {"detail": "busy"}}, retry_after="7")
    relay = Relay([busy, busy, listed(1)])
    assert relay.read() == ["job 1"]
    assert relay.waits == [7, 7]


def test_a_date_to_come_back_at_is_understood() -> None:
    busy = answer(503, retry_after=formatdate(START + 11, usegmt=True))
    relay = Relay([busy, listed(1)])
    assert relay.read() == ["job 1"]
    assert relay.waits == [11]


@pytest.mark.parametrize("header", [{}, {"retry_after": "soon"}])
def test_without_a_time_the_pauses_double_and_end(header: dict[str, str]) -> None:
    relay = Relay([answer(503, {"error": {"detail": "down", "hint": "later"}}, **header)])
    with pytest.raises(OutsideFault, match="answers 503: down") as failed:
        relay.read()
    assert relay.waits == [1, 2, 4, 8, 16]
    assert failed.value.hint == "later"


def test_a_pause_that_is_too_long_is_not_waited_for() -> None:
    relay = Relay([answer(429, retry_after=str(int(LONGEST_WAIT_S) + 1))])
    with pytest.raises(OutsideFault, match="answers 429"):
        relay.read()
    assert relay.waits == []


def test_all_pauses_together_are_bounded() -> None:
    relay = Relay([answer(429, retry_after="50")])
    with pytest.raises(OutsideFault, match="answers 429"):
        relay.read()
    assert relay.waits == [50, 50]


def test_a_lost_connection_is_tried_again_and_then_told() -> None:
    assert Relay([ConnectionFailed("reset"), listed(1)]).read() == ["job 1"]
    relay = Relay([ConnectionFailed("no route\x1b[2J")])
    with pytest.raises(OutsideFault, match="cannot be reached") as failed:
        relay.read()
    assert (len(relay.asked), "\x1b" in failed.value.detail) == (3, False)


@pytest.mark.parametrize(
    ("received", "said"),
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
def test_an_answer_that_is_no_list_is_told_at_once(received: HttpResponse | HttpError, said: str) -> None:
    relay = Relay([received])
    with pytest.raises(OutsideFault, match=said):
        relay.read()
    assert (len(relay.asked), relay.waits) == (4 if "redirects" in said else 1, [])


def test_an_answer_is_used_again_for_a_moment_and_then_asked_for_by_its_etag(tmp_path: Path) -> None:
    relay = Relay([listed(1, etag='"v1"'), answer(304), listed(2, etag='"v2"')])
    cache = relay.cache(tmp_path)
    assert relay.read(cache) == relay.read(cache) == ["job 1"]
    assert len(relay.asked) == 1
    relay.now += FRESH_S + 1
    assert relay.read(cache) == ["job 1"]
    assert [request.headers.get("If-None-Match") for request in relay.asked] == [None, '"v1"']
    assert relay.read(cache) == ["job 1"], "a confirmed answer is fresh again"
    assert len(relay.asked) == 2
    relay.now += FRESH_S + 1
    assert relay.read(cache) == ["job 2"]


def test_another_question_has_its_own_answer(tmp_path: Path) -> None:
    relay = Relay([listed(1), listed(2)])
    cache = relay.cache(tmp_path)
    assert [relay.read(cache, kind="push"), relay.read(cache, kind="nightly")] == [["job 1"], ["job 2"]]


def test_a_refusal_is_not_kept(tmp_path: Path) -> None:
    relay = Relay([answer(404), listed(1)])
    cache = relay.cache(tmp_path)
    with pytest.raises(OutsideFault):
        relay.read(cache)
    assert relay.read(cache) == ["job 1"]


def test_a_relay_that_is_down_is_told_and_not_hidden_by_old_answers(tmp_path: Path) -> None:
    relay = Relay([listed(1, etag='"v1"'), ConnectionFailed("down")])
    cache = relay.cache(tmp_path)
    relay.read(cache)
    relay.now += FRESH_S + 1
    with pytest.raises(OutsideFault):
        relay.read(cache)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"url": 1}', "null", '{"url": "x", "etag": 1, "at": "", "body": 2}']
)
def test_a_broken_cache_is_read_past(tmp_path: Path, content: str) -> None:
    relay = Relay([listed(1)])
    cache = relay.cache(tmp_path)
    relay.read(cache)
    (kept,) = tmp_path.glob("api-*.json")
    kept.write_text(content)
    assert relay.read(cache) == ["job 1"]
    assert json.loads(kept.read_text())["url"].startswith(ADDRESS)


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    relay = Relay([listed(1)])
    assert relay.read(relay.cache(tmp_path / "file")) == ["job 1"]


def test_old_answers_are_forgotten(tmp_path: Path) -> None:
    relay = Relay([listed(1)])
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
def test_the_cache_is_where_the_system_keeps_caches(
    environ: dict[str, str], platform: str, folder: str | None
) -> None:
    assert cache_folder(environ, platform) == (Path(folder) if folder else None)


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("https://relay.example", ADDRESS),
        ("https://relay.example/", ADDRESS),
        ("https://relay.example/crcr", ADDRESS),
        ("https://relay.example/crcr/failing?kind=nightly", ADDRESS),
        ("http://127.0.0.1:8000/crcr/", "http://127.0.0.1:8000"),
        ("https://host.example/under/crcr/failing", "https://host.example/under"),
    ],
)
def test_the_address_of_a_page_is_that_of_its_relay(given: str, address: str) -> None:
    assert relay_address(given) == address


@pytest.mark.parametrize(
    "given", ["relay.example", "ftp://relay.example", "https://", "https://a:b@relay.example"]
)
def test_what_is_no_address_is_refused(given: str) -> None:
    with pytest.raises(typer.BadParameter):
        relay_address(given)
