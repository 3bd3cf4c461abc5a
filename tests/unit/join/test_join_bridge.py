"""The bridge workflow against a stub of each CI's API: it starts and cancels builds and leaks no secret."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from crcr.join.shipped import bridge

SHA = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
DISPATCHED = {
    "CRCR_DELIVERY_ID": "3f1c6e2a-47a5-11f1-8000-000000000000",
    "CRCR_EVENT_TYPE": "pull_request",
    "CRCR_CALLBACK_URL": "https://relay.example.org/github/callback",
    "CRCR_AUDIENCE": "crcr",
    "CRCR_UPSTREAM": "pytorch/pytorch",
    "CRCR_HEAD_SHA": SHA,
    "CRCR_NUMBER": "7",
    "CRCR_ACTION": "opened",
}
PINNED = "https://relay.example.org/github/callback crcr"
PLACES = {
    "buildkite": {"CRCR_BRIDGE_ORGANIZATION": "acme", "CRCR_BRIDGE_PIPELINE": "crcr"},
    "gitlab": {"CRCR_BRIDGE_PROJECT": "42"},
    "circleci": {"CRCR_BRIDGE_PROJECT": "gh/org/backend"},
}


@dataclass
class ReceivedRequest:
    method: str
    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class Ci:
    """Another CI's API; answers with the next of `answers`, or with success."""

    url: str = ""
    requests: list[ReceivedRequest] = field(default_factory=list)
    answers: list[tuple[int, Any]] = field(default_factory=list)

    def answer(self, request: ReceivedRequest) -> tuple[int, Any]:
        self.requests.append(request)
        return self.answers.pop(0) if self.answers else (200, [] if request.method == "GET" else {})


@pytest.fixture
def ci() -> Iterator[Ci]:
    stub = Ci()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            status, payload = stub.answer(ReceivedRequest(self.command, self.path, dict(self.headers), body))
            text = json.dumps(payload).encode()
            self.send_response(status)
            if status == 302:
                self.send_header("Location", f"{stub.url}/elsewhere")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_PUT = do_POST  # noqa: N815

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    stub.url = f"http://127.0.0.1:{server.server_port}"
    yield stub
    server.shutdown()
    thread.join()
    server.server_close()


def environment(ci: Ci, kind: str, **changes: str) -> dict[str, str]:
    own = {
        "CRCR_BRIDGE_TO": kind,
        "CRCR_BRIDGE_API": ci.url,
        "CRCR_BRIDGE_TOKEN": "s3cret",
        "CRCR_BRIDGE_BRANCH": "main",
    }
    return {**own, **PLACES[kind], **DISPATCHED, "CRCR_RELAYS": PINNED, **changes}


def run(ci: Ci, kind: str, **changes: str) -> list[float]:
    """Run the bridge; return its pauses between attempts."""
    waits: list[float] = []
    bridge.main(environment(ci, kind, **changes), waits.append)
    return waits


def test_buildkite_gets_a_build_with_the_variables_of_the_dispatch(ci: Ci) -> None:
    run(ci, "buildkite")
    build = ci.requests[-1]
    assert (build.method, build.path) == ("POST", "/v2/organizations/acme/pipelines/crcr/builds")
    assert build.headers["Authorization"] == "Bearer s3cret"
    assert (build.body["commit"], build.body["branch"]) == ("HEAD", "main")
    expected = {**DISPATCHED, "UPSTREAM_REPO": "pytorch/pytorch", "UPSTREAM_SHA": SHA, "UPSTREAM_PR": "7"}
    assert build.body["env"] == expected
    assert build.body["meta_data"] == {"crcr_change": "pytorch/pytorch#7"}


@pytest.mark.parametrize("kind", PLACES)
def test_only_a_nightly_build_gets_its_start_time(ci: Ci, kind: str) -> None:
    for event, began in (("nightly", "2001-09-09T01:46:40Z"), ("pull_request", None)):
        bridge.main(environment(ci, kind, CRCR_EVENT_TYPE=event), now=lambda: 1_000_000_000.0)
        body = ci.requests[-1].body
        passed = body.get("env") or body.get("variables") or body["parameters"]
        assert {name.upper(): value for name, value in passed.items()}.get("CRCR_STARTED_AT") == began


@pytest.mark.parametrize("action", ["synchronize", "closed"])
def test_running_buildkite_builds_of_a_pull_request_are_cancelled(ci: Ci, action: str) -> None:
    ci.answers = [(200, [{"number": 11}, {"number": 12}])]
    run(ci, "buildkite", CRCR_ACTION=action)
    query = parse_qs(urlsplit(ci.requests[0].path).query)
    assert query["meta_data[crcr_change]"] == ["pytorch/pytorch#7"]
    assert query["state[]"] == ["scheduled", "running", "failing"]
    builds = "/v2/organizations/acme/pipelines/crcr/builds"
    cancellations = [f"PUT {builds}/11/cancel", f"PUT {builds}/12/cancel"]
    assert [f"{request.method} {request.path}" for request in ci.requests[1:]] == [
        *cancellations,
        *([f"POST {builds}"] if action == "synchronize" else []),
    ]


def test_gitlab_gets_a_trigger(ci: Ci) -> None:
    run(ci, "gitlab")
    [trigger] = ci.requests
    assert (trigger.method, trigger.path) == ("POST", "/api/v4/projects/42/trigger/pipeline")
    assert (trigger.body["token"], trigger.body["ref"]) == ("s3cret", "main")
    assert trigger.body["variables"]["UPSTREAM_SHA"] == SHA


@pytest.mark.parametrize("definition", ["", "0184990a-477b-4fa8-9968-496074483cee"])
def test_circleci_gets_a_pipeline_with_parameters(ci: Ci, definition: str) -> None:
    run(ci, "circleci", CRCR_BRIDGE_DEFINITION=definition)
    [pipeline] = ci.requests
    assert pipeline.path == f"/api/v2/project/gh/org/backend/pipeline{'/run' if definition else ''}"
    assert pipeline.headers["Circle-Token"] == "s3cret"
    assert pipeline.body["parameters"] == {name.lower(): value for name, value in DISPATCHED.items()}
    assert (pipeline.body["config"] if definition else pipeline.body)["branch"] == "main"


@pytest.mark.parametrize("kind", list(PLACES))
@pytest.mark.parametrize(
    "changes", [{"CRCR_ACTION": "closed"}, {"CRCR_ACTION": "destroyed"}, {"CRCR_HEAD_SHA": "0" * 40}]
)
def test_no_build_is_started_for_a_closed_or_deleted_ref(ci: Ci, kind: str, changes: dict[str, str]) -> None:
    run(ci, kind, **changes)
    assert [request for request in ci.requests if request.method == "POST"] == []


PAIR = {
    "CRCR_EVENT_TYPE": "crcr_pair",
    "CRCR_PAIR_NUMBER": "3",
    "CRCR_PAIR_SHA": "c" * 40,
    "CRCR_PAIR_CLONE_URL": "https://github.com/org/backend.git",
}


@pytest.mark.parametrize("kind", list(PLACES))
def test_a_pair_build_gets_the_other_pull_request_and_its_own_metadata(ci: Ci, kind: str) -> None:
    run(ci, kind, **PAIR)
    sent = ci.requests[-1].body
    passed = sent.get("env") or sent.get("variables") or sent["parameters"]
    variables = {name.upper(): value for name, value in passed.items()}
    assert variables.get("DEPENDS_ON_SHA", variables["CRCR_PAIR_SHA"]) == "c" * 40
    if kind == "buildkite":
        assert sent["meta_data"] == {"crcr_change": "pytorch/pytorch#7 with #3"}


@pytest.mark.parametrize(
    "changes",
    [{**PAIR, "CRCR_EVENT_TYPE": "pull_request"}, {**PAIR, "CRCR_PAIR_SHA": ""}, {**PAIR, "CRCR_PAIR_SHA": "main"},
     {**PAIR, "CRCR_PAIR_CLONE_URL": "https://github.com/a b"}, {**PAIR, "CRCR_PAIR_CLONE_URL": "--upload-pack=x"}],
)  # fmt: skip
def test_an_incomplete_pair_starts_nothing(ci: Ci, changes: dict[str, str]) -> None:
    with pytest.raises(SystemExit):
        run(ci, "buildkite", **changes)
    assert ci.requests == []


@pytest.mark.parametrize("kind", list(PLACES))
def test_a_test_dispatch_is_passed_on_without_a_commit(ci: Ci, kind: str) -> None:
    run(ci, kind, CRCR_EVENT_TYPE="crcr_test", CRCR_HEAD_SHA="", CRCR_NUMBER="", CRCR_ACTION="")
    [started] = ci.requests
    assert "crcr_test" in json.dumps(started.body)
    assert SHA not in json.dumps(started.body)


@pytest.mark.parametrize("name", list(DISPATCHED))
@pytest.mark.parametrize(
    "value", ['"; id; "', "$(id)", "a\nb", "${{ secrets.X }}", "--flag", "\u202e", "<< x >>"], ids=ascii
)
def test_a_malformed_value_starts_nothing(ci: Ci, name: str, value: str) -> None:
    with pytest.raises(SystemExit) as ended:
        run(ci, "buildkite", **{name: value})
    assert ended.value.code == 1
    assert ci.requests == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"CRCR_CALLBACK_URL": "https://stranger.example.org/github/callback"},
            "https://stranger.example.org/github/callback with the audience crcr",
        ),
        ({"CRCR_AUDIENCE": "sts.amazonaws.com"}, "with the audience sts.amazonaws.com"),
        ({"CRCR_CALLBACK_URL": "https://relay.example.org/GitHub/callback"}, "does not pin"),
        ({"CRCR_RELAYS": ""}, "no relay is pinned"),
        ({"CRCR_RELAYS": "https://relay.example.org/github/callback"}, "no relay is pinned"),
    ],
)
def test_a_relay_that_is_not_pinned_starts_nothing(
    ci: Ci, changes: dict[str, str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(ci, "gitlab", **changes)
    assert (ended.value.code, ci.requests) == (1, [])
    assert expected in capsys.readouterr().out


@pytest.mark.parametrize(
    "pins", [f"https://other.example.org x\n{PINNED}\n", "https://relay.example.org/ crcr"]
)
def test_the_dispatch_selects_among_the_pinned_relays(ci: Ci, pins: str) -> None:
    run(ci, "gitlab", CRCR_RELAYS=pins)
    assert len(ci.requests) == 1


def test_a_temporary_error_is_retried_and_a_refusal_is_reported(
    ci: Ci, capsys: pytest.CaptureFixture[str]
) -> None:
    ci.answers = [(503, {}), (429, {}), (200, {})]
    assert run(ci, "gitlab") == [2.0, 4.0]
    ci.requests.clear()
    ci.answers = [(401, {"message": "no"})]
    with pytest.raises(SystemExit):
        run(ci, "gitlab")
    assert len(ci.requests) == 1
    output = capsys.readouterr().out
    assert "was answered with 401" in output
    assert "s3cret" not in output


def test_the_bridge_gives_up_after_its_attempts(ci: Ci) -> None:
    ci.answers = [(503, {})] * 10
    with pytest.raises(SystemExit):
        run(ci, "circleci")
    assert len(ci.requests) == bridge.ATTEMPTS


def test_the_token_follows_no_redirect(ci: Ci) -> None:
    ci.answers = [(302, {})]
    with pytest.raises(SystemExit):
        run(ci, "circleci")
    assert [request.path for request in ci.requests] == ["/api/v2/project/gh/org/backend/pipeline"]


def test_a_missing_secret_is_an_error(ci: Ci) -> None:
    env = environment(ci, "gitlab", CRCR_BRIDGE_TOKEN="")
    done = subprocess.run(
        [sys.executable, bridge.__file__], env=env, capture_output=True, text=True, check=False, timeout=30
    )
    assert done.returncode == 1
    assert done.stdout.startswith("::error title=CRCR bridge::the secret")
    assert ci.requests == []
