"""`crcr doctor` against a hostile server: findings without a traceback, and no control characters in the terminal."""

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
CONTROL_CHARACTERS = "\x1b]0;pwned\x07[bold]\x9b31m\u202e\r\nx"
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
def serve_responses(responses: dict[str, Any]) -> Iterator[str]:
    """A server with one response per path prefix; the longest matching prefix wins."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = responses[max((each for each in responses if self.path.startswith(each)), key=len)]
            body = content if isinstance(content, bytes) else json.dumps(content).encode()
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
    arguments = ["doctor", "--relay", url, "--repo", "org/backend", "--token", "t", "--timeout", "1s", *words]
    result = CliRunner().invoke(app, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output + result.stderr


@pytest.mark.parametrize(
    "setup",
    [DEEP, b"", b"\xff\xfe", [], 5, {"listed": True, "findings": 5}, {"listed": True, "findings": {}}, {}],
    ids=lambda each: str(each)[:40],
)
def test_an_unreadable_set_up_is_one_finding_without_a_traceback(setup: Any) -> None:
    with serve_responses({"/healthz": HEALTHY, "/": setup}) as url:
        code, out = doctor(url)
    assert (code, "set-up: The relay's answer is unreadable." in out) == (1, True), out


def test_an_unreadable_finding_is_left_out() -> None:
    good = {"name": "app", "state": "ok", "text": "fine", "hint": None}
    findings = [5, "x", None, {}, {"name": "a", "state": [], "text": ""}, good]
    with serve_responses({"/healthz": HEALTHY, "/": {"listed": True, "findings": findings}}) as url:
        code, out = doctor(url)
    assert (code, "app: fine" in out, "No problems" in out) == (0, True, True), out


@pytest.mark.parametrize("dispatch", DISPATCHES, ids=lambda each: str(each)[:60])
def test_an_unreadable_test_dispatch_is_one_finding_without_a_traceback(dispatch: Any) -> None:
    responses = {
        "/healthz": HEALTHY,
        "/": LISTED,
        "/api/v1/setup/org/backend/test": {"delivery": "abc"},
        "/api/v1/deliveries/": dispatch,
    }
    with serve_responses(responses) as url:
        code, out = doctor(url, "--test")
    assert (code, "test: The relay's answer is unreadable." in out) == (1, True), out


@pytest.mark.parametrize("delivery", [None, 5, "", "../admin", "//evil.example/x?y", "a b", "x" * 500])
def test_an_invalid_delivery_id_is_never_requested(delivery: Any) -> None:
    responses = {
        "/healthz": HEALTHY,
        "/": LISTED,
        "/api/v1/setup/org/backend/test": {"delivery": delivery},
        "/api/v1/deliveries": DEEP,
    }
    with serve_responses(responses) as url:
        code, out = doctor(url, "--test")
    assert (code, out.count("The relay's answer is unreadable.")) == (1, 1), out


def test_an_unreadable_health_response_is_reported_as_no_relay() -> None:
    with serve_responses({"/": DEEP}) as url:
        code, out = doctor(url)
    assert (code, "The server there is not a relay" in out) == (1, True)


def test_no_text_of_a_relay_controls_the_terminal() -> None:
    each = {"name": CONTROL_CHARACTERS, "state": "ok", "text": CONTROL_CHARACTERS, "hint": CONTROL_CHARACTERS}
    job = {
        "run_id": "1",
        "job_name": CONTROL_CHARACTERS,
        "state": CONTROL_CHARACTERS,
        "completed_at": CONTROL_CHARACTERS,
        "conclusion": CONTROL_CHARACTERS,
    }
    responses = {
        "/healthz": {"ok": True, "version": CONTROL_CHARACTERS},
        "/": {"listed": True, "findings": [each]},
        "/api/v1/setup/org/backend/test": {"delivery": "abc"},
        "/api/v1/deliveries/": {
            "dispatches": [{"state": "sent", "sent_at": CONTROL_CHARACTERS, "jobs": [job]}]
        },
    }
    with serve_responses(responses) as url:
        _, out = doctor(url, "--test")
        _, as_json = doctor(url, "--test", "--json")
    assert "pwned" in out
    for text in (out, as_json):
        assert [each for each in text if not each.isprintable() and each != "\n"] == []
