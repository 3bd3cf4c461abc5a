"""The bridge workflow against a stub of each CI's API: builds started and cancelled, and secrets that never leave."""

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
TOLD = {
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
    asked: list[ReceivedRequest] = field(default_factory=list)
    answers: list[tuple[int, Any]] = field(default_factory=list)

    def answer(self, asked: ReceivedRequest) -> tuple[int, Any]:
        self.asked.append(asked)
        return self.answers.pop(0) if self.answers else (200, [] if asked.method == "GET" else {})


@pytest.fixture
def ci() -> Iterator[Ci]:
    there = Ci()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            status, found = there.answer(ReceivedRequest(self.command, self.path, dict(self.headers), body))
            text = json.dumps(found).encode()
            self.send_response(status)
            if status == 302:
                self.send_header("Location", f"{there.url}/elsewhere")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_PUT = do_POST  # noqa: N815

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    there.url = f"http://127.0.0.1:{server.server_port}"
    yield there
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
    return {**own, **PLACES[kind], **TOLD, "CRCR_RELAYS": PINNED, **changes}


def run(ci: Ci, kind: str, **changes: str) -> list[float]:
    """Run the bridge; return how long it would have waited between tries."""
    waits: list[float] = []
    bridge.main(environment(ci, kind, **changes), waits.append)
    return waits


def test_buildkite_gets_a_build_with_all_that_the_steps_need(ci: Ci) -> None:
    run(ci, "buildkite")
    build = ci.asked[-1]
    assert (build.method, build.path) == ("POST", "/v2/organizations/acme/pipelines/crcr/builds")
    assert build.headers["Authorization"] == "Bearer s3cret"
    assert (build.body["commit"], build.body["branch"]) == ("HEAD", "main")
    expected = {**TOLD, "UPSTREAM_REPO": "pytorch/pytorch", "UPSTREAM_SHA": SHA, "UPSTREAM_PR": "7"}
    assert build.body["env"] == expected
    assert build.body["meta_data"] == {"crcr_change": "pytorch/pytorch#7"}


@pytest.mark.parametrize("kind", PLACES)
def test_a_nightly_build_is_told_when_it_began_and_a_dispatched_one_is_not(ci: Ci, kind: str) -> None:
    for event, began in (("nightly", "2001-09-09T01:46:40Z"), ("pull_request", None)):
        bridge.main(environment(ci, kind, CRCR_EVENT_TYPE=event), now=lambda: 1_000_000_000.0)
        body = ci.asked[-1].body
        passed = body.get("env") or body.get("variables") or body["parameters"]
        assert {name.upper(): value for name, value in passed.items()}.get("CRCR_STARTED_AT") == began


@pytest.mark.parametrize("action", ["synchronize", "closed"])
def test_what_runs_at_buildkite_for_a_pull_request_is_cancelled(ci: Ci, action: str) -> None:
    ci.answers = [(200, [{"number": 11}, {"number": 12}])]
    run(ci, "buildkite", CRCR_ACTION=action)
    query = parse_qs(urlsplit(ci.asked[0].path).query)
    assert query["meta_data[crcr_change]"] == ["pytorch/pytorch#7"]
    assert query["state[]"] == ["scheduled", "running", "failing"]
    builds = "/v2/organizations/acme/pipelines/crcr/builds"
    then = [f"PUT {builds}/11/cancel", f"PUT {builds}/12/cancel"]
    assert [f"{each.method} {each.path}" for each in ci.asked[1:]] == [
        *then,
        *([f"POST {builds}"] if action == "synchronize" else []),
    ]


def test_gitlab_gets_a_trigger(ci: Ci) -> None:
    run(ci, "gitlab")
    [trigger] = ci.asked
    assert (trigger.method, trigger.path) == ("POST", "/api/v4/projects/42/trigger/pipeline")
    assert (trigger.body["token"], trigger.body["ref"]) == ("s3cret", "main")
    assert trigger.body["variables"]["UPSTREAM_SHA"] == SHA


@pytest.mark.parametrize("definition", ["", "0184990a-477b-4fa8-9968-496074483cee"])
def test_circleci_gets_a_pipeline_with_parameters(ci: Ci, definition: str) -> None:
    run(ci, "circleci", CRCR_BRIDGE_DEFINITION=definition)
    [pipeline] = ci.asked
    assert pipeline.path == f"/api/v2/project/gh/org/backend/pipeline{'/run' if definition else ''}"
    assert pipeline.headers["Circle-Token"] == "s3cret"
    assert pipeline.body["parameters"] == {name.lower(): value for name, value in TOLD.items()}
    assert (pipeline.body["config"] if definition else pipeline.body)["branch"] == "main"


@pytest.mark.parametrize("kind", list(PLACES))
@pytest.mark.parametrize(
    "changes", [{"CRCR_ACTION": "closed"}, {"CRCR_ACTION": "destroyed"}, {"CRCR_HEAD_SHA": "0" * 40}]
)
def test_nothing_is_started_for_what_is_gone(ci: Ci, kind: str, changes: dict[str, str]) -> None:
    run(ci, kind, **changes)
    assert [each for each in ci.asked if each.method == "POST"] == []


PAIR = {
    "CRCR_EVENT_TYPE": "crcr_pair",
    "CRCR_PAIR_NUMBER": "3",
    "CRCR_PAIR_SHA": "c" * 40,
    "CRCR_PAIR_CLONE_URL": "https://github.com/org/backend.git",
}


@pytest.mark.parametrize("kind", list(PLACES))
def test_a_pair_is_started_with_the_other_pull_request_and_cancels_only_its_own_builds(
    ci: Ci, kind: str
) -> None:
    run(ci, kind, **PAIR)
    sent = ci.asked[-1].body
    passed = sent.get("env") or sent.get("variables") or sent["parameters"]
    named = {name.upper(): value for name, value in passed.items()}
    assert named.get("DEPENDS_ON_SHA", named["CRCR_PAIR_SHA"]) == "c" * 40
    if kind == "buildkite":
        assert sent["meta_data"] == {"crcr_change": "pytorch/pytorch#7 with #3"}


@pytest.mark.parametrize(
    "changes",
    [{**PAIR, "CRCR_EVENT_TYPE": "pull_request"}, {**PAIR, "CRCR_PAIR_SHA": ""}, {**PAIR, "CRCR_PAIR_SHA": "main"},
     {**PAIR, "CRCR_PAIR_CLONE_URL": "https://github.com/a b"}, {**PAIR, "CRCR_PAIR_CLONE_URL": "--upload-pack=x"}],
)  # fmt: skip
def test_half_a_pair_starts_nothing(ci: Ci, changes: dict[str, str]) -> None:
    with pytest.raises(SystemExit):
        run(ci, "buildkite", **changes)
    assert ci.asked == []


@pytest.mark.parametrize("kind", list(PLACES))
def test_a_test_dispatch_is_passed_on_without_a_commit(ci: Ci, kind: str) -> None:
    run(ci, kind, CRCR_EVENT_TYPE="crcr_test", CRCR_HEAD_SHA="", CRCR_NUMBER="", CRCR_ACTION="")
    [started] = ci.asked
    assert "crcr_test" in json.dumps(started.body)
    assert SHA not in json.dumps(started.body)


@pytest.mark.parametrize("name", list(TOLD))
@pytest.mark.parametrize(
    "value", ['"; id; "', "$(id)", "a\nb", "${{ secrets.X }}", "--flag", "\u202e", "<< x >>"], ids=ascii
)
def test_a_value_out_of_form_starts_nothing(ci: Ci, name: str, value: str) -> None:
    with pytest.raises(SystemExit) as ended:
        run(ci, "buildkite", **{name: value})
    assert ended.value.code == 1
    assert ci.asked == []


@pytest.mark.parametrize(
    ("changes", "said"),
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
    ci: Ci, changes: dict[str, str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(ci, "gitlab", **changes)
    assert (ended.value.code, ci.asked) == (1, [])
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    "pins", [f"https://other.example.org x\n{PINNED}\n", "https://relay.example.org/ crcr"]
)
def test_the_dispatch_selects_among_the_pinned_relays(ci: Ci, pins: str) -> None:
    run(ci, "gitlab", CRCR_RELAYS=pins)
    assert len(ci.asked) == 1


def test_a_fault_is_tried_again_and_a_refusal_is_told(ci: Ci, capsys: pytest.CaptureFixture[str]) -> None:
    ci.answers = [(503, {}), (429, {}), (200, {})]
    assert run(ci, "gitlab") == [2.0, 4.0]
    ci.asked.clear()
    ci.answers = [(401, {"message": "no"})]
    with pytest.raises(SystemExit):
        run(ci, "gitlab")
    assert len(ci.asked) == 1
    said = capsys.readouterr().out
    assert "was answered with 401" in said
    assert "s3cret" not in said


def test_it_gives_up_in_the_end(ci: Ci) -> None:
    ci.answers = [(503, {})] * 10
    with pytest.raises(SystemExit):
        run(ci, "circleci")
    assert len(ci.asked) == bridge.ATTEMPTS


def test_the_token_follows_no_redirect(ci: Ci) -> None:
    ci.answers = [(302, {})]
    with pytest.raises(SystemExit):
        run(ci, "circleci")
    assert [each.path for each in ci.asked] == ["/api/v2/project/gh/org/backend/pipeline"]


def test_it_says_so_when_the_secret_is_missing(ci: Ci) -> None:
    env = environment(ci, "gitlab", CRCR_BRIDGE_TOKEN="")
    done = subprocess.run(
        [sys.executable, bridge.__file__], env=env, capture_output=True, text=True, check=False, timeout=30
    )
    assert done.returncode == 1
    assert done.stdout.startswith("::error title=CRCR bridge::the secret")
    assert ci.asked == []
