"""Fault 56: a dispatch with an attacker's URL and audience gets no token, no request and no build.

Everyone who may write to a downstream, and every holder of a token that may call `repository_dispatch`, can send one.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from crcr.join.request import Ci
from support.downstream.join_requests import ACTION as ACTION_USED
from support.downstream.joined_downstream import (
    DOWNSTREAM,
    RunningDownstream,
    downstream_request,
    running_downstream,
)
from support.downstream.reporter import ACTION, TOKEN, run_reporter_process
from support.running_relay import AUDIENCE, UPSTREAM

pytestmark = pytest.mark.slow
CLOUD = "sts.amazonaws.com"


class Recorder(ThreadingHTTPServer):
    """A server on this machine that answers every request like a token service and like a relay, and records its path."""

    def __init__(self) -> None:
        self.got: list[str] = []
        super().__init__(("127.0.0.1", 0), _Recording)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Recording(BaseHTTPRequestHandler):
    server: Recorder

    def do_GET(self) -> None:
        self.server.got.append(self.path)
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = json.dumps({"value": TOKEN, "ok": True, "status": "in_progress", "repeat": False}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815

    def log_message(self, *_: Any) -> None: ...


@contextmanager
def recorder() -> Iterator[Recorder]:
    with Recorder() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def hostile(url: str, audience: str, **more: Any) -> dict[str, Any]:
    """A dispatch as the relay sends it, except for the callback URL and the audience."""
    payload = {"action": "opened", "number": 7, "pull_request": {"head": {"sha": "a" * 40}}}
    relay = {"version": 1, "upstream": UPSTREAM, "callback_url": url, "audience": audience}
    return {"event_type": "pull_request", "delivery_id": "d-1", "payload": payload, "relay": relay, **more}


def github_job(folder: Path, oidc: Recorder, client_payload: dict[str, Any], **more: str) -> dict[str, str]:
    event = folder / "event.json"
    event.write_text(json.dumps({"action": "pull_request", "client_payload": client_payload}))
    return {
        "GITHUB_ACTIONS": "true",
        "GITHUB_EVENT_NAME": "repository_dispatch",
        "GITHUB_EVENT_PATH": str(event),
        "GITHUB_RUN_ID": "77",
        "GITHUB_JOB": "finished",
        "ACTIONS_ID_TOKEN_REQUEST_URL": f"{oidc.url}/token?v=1",
        "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "request-secret",
        "CRCR_STATUS": "in_progress",
        "CRCR_MAX_TIME": "0",
        **more,
    }


@pytest.mark.parametrize("audience", [CLOUD, AUDIENCE], ids=["of a cloud", "of the relay"])
@pytest.mark.parametrize("pinned", [True, False], ids=["pinned", "without pins"])
async def test_fault_56_a_dispatch_with_a_foreign_callback_url_gets_no_token_and_no_request(
    tmp_path: Path, audience: str, *, pinned: bool
) -> None:
    with recorder() as attacker, recorder() as relay, recorder() as oidc:
        pins = f"{relay.url}/github/callback {AUDIENCE}" if pinned else ""
        env = github_job(tmp_path, oidc, hostile(f"{attacker.url}/take", audience), CRCR_RELAYS=pins)
        code, output = await run_reporter_process(env=env, folder=tmp_path)
        assert (code, attacker.got, relay.got, oidc.got) == (1, [], [], []), output
        assert "::error title=CRCR relay::" in output
        assert (f"{attacker.url}/take" in output) is pinned


async def test_fault_56_the_relays_own_url_with_a_foreign_audience_gets_no_token(tmp_path: Path) -> None:
    with recorder() as relay, recorder() as oidc:
        own = f"{relay.url}/github/callback"
        env = github_job(tmp_path, oidc, hostile(own, CLOUD), CRCR_RELAYS=f"{own} {AUDIENCE}")
        code, output = await run_reporter_process(env=env, folder=tmp_path)
        assert (code, relay.got, oidc.got) == (1, [], []), output
        env = github_job(tmp_path, oidc, hostile(own, AUDIENCE), CRCR_RELAYS=f"{own} {AUDIENCE}")
        code, output = await run_reporter_process(env=env, folder=tmp_path)
        assert (code, relay.got) == (0, ["/github/callback"]), output
        assert oidc.got == [f"/token?v=1&audience={AUDIENCE}"]


async def test_fault_56_the_callback_url_of_a_bridge_cannot_send_an_issued_token_elsewhere(
    tmp_path: Path,
) -> None:
    """GitLab's token has the relay's audience already: an attacker who receives it could use it at once."""
    with recorder() as attacker, recorder() as relay:
        env = {
            "GITLAB_CI": "true",
            "CI_PIPELINE_ID": "9",
            "CI_JOB_NAME": "crcr-started",
            "CRCR_ID_TOKEN": TOKEN,
            "CRCR_DELIVERY_ID": "d-1",
            "CRCR_CALLBACK_URL": f"{attacker.url}/take",
            "CRCR_AUDIENCE": AUDIENCE,
            "CRCR_MAX_TIME": "0",
        }
        pin = ("--relays", f"{relay.url}/github/callback {AUDIENCE}")
        for words in (pin, ()):
            code, output = await run_reporter_process(
                "--status", "in_progress", *words, env=env, folder=tmp_path
            )
            assert (code, attacker.got, relay.got) == (1, [], []), output
            assert TOKEN not in output


def count_minted_tokens(downstream: RunningDownstream) -> int:
    return sum(downstream.github.request_tokens.minted.values())


@pytest.mark.parametrize("ci", list(Ci), ids=[ci.value for ci in Ci])
async def test_fault_56_a_generated_workflow_fails_for_a_foreign_dispatch_and_works_for_the_relay(
    tmp_path: Path, ci: Ci
) -> None:
    with recorder() as attacker:
        async with running_downstream(
            tmp_path, downstream_request(ci), build="echo ran-the-build"
        ) as downstream:
            url = f"{attacker.url}/github/callback"
            for audience in (CLOUD, AUDIENCE):
                await downstream.github.send_dispatch(DOWNSTREAM, "pull_request", hostile(url, audience))
                await downstream.run_to_end()
            runs = downstream.github.runs(DOWNSTREAM)
            logs = "".join(step.log for run in runs for job in run.jobs for step in job.steps)
            assert [run.conclusion for run in runs] == ["failure", "failure"], logs
            assert (attacker.got, count_minted_tokens(downstream), downstream.jobs(), downstream.builds) == (
                [],
                0,
                [],
                [],
            ), logs
            assert f"{url} with the audience {AUDIENCE}" in logs
            assert "ran-the-build" not in logs

            await downstream.github.open_pr(UPSTREAM)
            await downstream.run_to_end()
            assert downstream.job_conclusions() == [("build", "success")], logs
            assert (attacker.got, downstream.runner.problems) == ([], [])


async def test_fault_56_the_composite_action_refuses_a_foreign_dispatch(tmp_path: Path) -> None:
    with recorder() as attacker:
        async with running_downstream(tmp_path, downstream_request(action=ACTION_USED)) as downstream:
            downstream.runner.actions[ACTION_USED.partition("@")[0]] = ACTION
            url = f"{attacker.url}/github/callback"
            (run,) = await downstream.github.send_dispatch(DOWNSTREAM, "pull_request", hostile(url, CLOUD))
            await downstream.run_to_end()
            assert (run.conclusion, attacker.got, count_minted_tokens(downstream)) == ("failure", [], 0)
            await downstream.github.open_pr(UPSTREAM)
            await downstream.run_to_end()
            assert downstream.job_conclusions() == [("build", "success")]
