"""`crcr doctor` against something that answers as a hostile relay would: calm findings, and nothing that steers a terminal."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from typer.testing import CliRunner

from crcr.cli.main import app

HEALTHY = {"ok": True, "version": "9"}
LISTED: dict[str, Any] = {"listed": True, "findings": []}
DEEP = b"[" * 200_000
STEERING = "\x1b]0;pwned\x07[bold]\x9b31m\u202e\r\nx"
DISPATCHES: tuple[Any, ...] = (
    DEEP,
    b"\xff",
    [],
    {"dispatches": 5},
    {"dispatches": [5]},
    {"dispatches": [{"state": "sent", "sent_at": 1, "jobs": []}]},
    {"dispatches": [{"state": "sent", "jobs": [{"nope": 1}]}]},
    {"dispatches": [{"state": "sent", "jobs": [{"job_name": "b", "state": "in_progress"}]}]},
    {"dispatches": [{"state": "sent", "jobs": 7}]},
)


@contextmanager
def answering(told: dict[str, Any]) -> Iterator[str]:
    """A server with an answer for each beginning of a path; the longest that fits is given."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = told[max((each for each in told if self.path.startswith(each)), key=len)]
            body = found if isinstance(found, bytes) else json.dumps(found).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def doctor(url: str, *words: str) -> tuple[int, str]:
    asked = ["doctor", "--relay", url, "--repo", "org/backend", "--token", "t", "--timeout", "1s", *words]
    result = CliRunner().invoke(app, asked)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output + result.stderr


@pytest.mark.parametrize(
    "setup",
    [DEEP, b"", b"\xff\xfe", [], 5, {"listed": True, "findings": 5}, {"listed": True, "findings": {}}, {}],
    ids=lambda each: str(each)[:40],
)
def test_a_set_up_that_cannot_be_read_is_one_calm_finding(setup: Any) -> None:
    with answering({"/healthz": HEALTHY, "/": setup}) as url:
        code, out = doctor(url)
    assert (code, "set-up: The relay's answer is unreadable." in out) == (1, True), out


def test_a_finding_that_cannot_be_read_is_left_out() -> None:
    good = {"name": "app", "state": "ok", "text": "fine", "hint": None}
    findings = [5, "x", None, {}, {"name": "a", "state": [], "text": ""}, good]
    with answering({"/healthz": HEALTHY, "/": {"listed": True, "findings": findings}}) as url:
        code, out = doctor(url)
    assert (code, "app: fine" in out, "No problems" in out) == (0, True, True), out


@pytest.mark.parametrize("dispatch", DISPATCHES, ids=lambda each: str(each)[:60])
def test_a_test_whose_way_cannot_be_read_is_one_calm_finding(dispatch: Any) -> None:
    told = {
        "/healthz": HEALTHY,
        "/": LISTED,
        "/api/v1/setup/org/backend/test": {"delivery": "abc"},
        "/api/v1/deliveries/": dispatch,
    }
    with answering(told) as url:
        code, out = doctor(url, "--test")
    assert (code, "test: The relay's answer is unreadable." in out) == (1, True), out


@pytest.mark.parametrize("delivery", [None, 5, "", "../admin", "//evil.example/x?y", "a b", "x" * 500])
def test_a_delivery_that_is_no_id_is_asked_for_nowhere(delivery: Any) -> None:
    told = {
        "/healthz": HEALTHY,
        "/": LISTED,
        "/api/v1/setup/org/backend/test": {"delivery": delivery},
        "/api/v1/deliveries": DEEP,
    }
    with answering(told) as url:
        code, out = doctor(url, "--test")
    assert (code, out.count("The relay's answer is unreadable.")) == (1, 1), out


def test_a_relay_whose_health_cannot_be_read_is_something_else() -> None:
    with answering({"/": DEEP}) as url:
        code, out = doctor(url)
    assert (code, "The server there is not a relay" in out) == (1, True)


def test_nothing_that_a_relay_says_steers_the_terminal() -> None:
    each = {"name": STEERING, "state": "ok", "text": STEERING, "hint": STEERING}
    job = {
        "run_id": "1",
        "job_name": STEERING,
        "state": STEERING,
        "completed_at": STEERING,
        "conclusion": STEERING,
    }
    told = {
        "/healthz": {"ok": True, "version": STEERING},
        "/": {"listed": True, "findings": [each]},
        "/api/v1/setup/org/backend/test": {"delivery": "abc"},
        "/api/v1/deliveries/": {"dispatches": [{"state": "sent", "sent_at": STEERING, "jobs": [job]}]},
    }
    with answering(told) as url:
        _, out = doctor(url, "--test")
        _, as_json = doctor(url, "--test", "--json")
    assert "pwned" in out
    for text in (out, as_json):
        assert [each for each in text if not each.isprintable() and each != "\n"] == []
