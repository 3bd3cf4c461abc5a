"""Results to another HUD: what goes out, in which order, and what happens when it is not taken."""

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from crcr.decide.model import RepoName
from support.downstream.callbacks import BACKEND, dispatched_run, post_report, report_outcome
from support.running_relay import UPSTREAM

TOKEN = "hud-token-0123456789"
HUD = "hud.test"
SETTINGS: dict[str, Any] = {
    "CRCR_HUD_FORWARD_URL": f"https://{HUD}/api/crcr/results",
    "CRCR_HUD_FORWARD_TOKEN": TOKEN,
}


@dataclass
class Hud:
    """Another HUD's ingest: keeps what it takes, and refuses as often as it is told to."""

    refusals: list[Response] = field(default_factory=list)
    taken: list[dict[str, Any]] = field(default_factory=list)
    asked: int = 0
    tokens: set[str | None] = field(default_factory=set)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        self.asked += 1
        self.tokens.add(request.headers.get("x-hud-internal-bot"))
        answer = self.refusals.pop(0) if self.refusals else Response(status_code=200)
        if answer.status_code == 200:
            self.taken.append(json.loads(await request.body()))
        await answer(scope, receive, send)

    def statuses(self) -> list[str]:
        return [each["untrusted"]["callback_payload"]["workflow"]["status"] for each in self.taken]


async def test_a_result_is_forwarded_with_what_was_proved_apart_from_what_was_said(tmp_path: Path) -> None:
    hud = Hud()
    async with dispatched_run(tmp_path, outside={HUD: hud}, **SETTINGS) as (relay, run):
        relay.clock.advance(30)
        await relay.github.start_job(run, "build", check_run_id=None)
        relay.clock.advance(60)
        await relay.github.complete_job(run, "build", "failure", note="é")
        await relay.drain()

    first, second = hud.taken
    [job] = relay.jobs()
    assert first["trusted"] == {
        "verified_repo": BACKEND,
        "downstream_repo_level": "L2",
        "ci_metrics": {"queue_time": 30.0, "execution_time": None},
        "upstream": UPSTREAM,
        "delivery_id": run.delivery_id,
        "event_type": "pull_request",
        "pr_number": 1,
        "head_sha": job["head_sha"],
        "job": {"workflow": job["workflow"], "run_id": str(run.id), "run_attempt": 1, "job_name": "build"},
        "outcome": {"number": 1, "status": "in_progress", "conclusion": None, "disputed": False},
    }
    assert second["trusted"]["ci_metrics"] == {"queue_time": 30.0, "execution_time": 60.0}
    said = second["untrusted"]["callback_payload"]
    assert said["payload"]["action"] == "opened"
    assert (said["workflow"]["conclusion"], said["workflow"]["note"]) == ("failure", "é")
    # Its key is that of the signed check run from the first forward on, whatever each report says of it.
    ids = [each["untrusted"]["callback_payload"]["workflow"]["check_run_id"] for each in hud.taken]
    assert ids == [str(run.job("build").id)] * 2
    assert hud.tokens == {TOKEN}


async def test_what_answers_a_test_dispatch_is_recorded_and_not_forwarded(tmp_path: Path) -> None:
    hud = Hud()
    async with dispatched_run(tmp_path, outside={HUD: hud}, **SETTINGS) as (relay, _):
        core, backend = RepoName(UPSTREAM), RepoName(BACKEND)
        await relay.services.acts.dispatch_test(core, backend, "test-1", who="ann", now=relay.clock.now())
        await relay.drain()
        run = next(each for each in relay.github.runs(BACKEND) if each.delivery_id == "test-1")
        assert report_outcome(await relay.github.start_job(run, "build")) == "applied"
        await relay.drain()

        assert [job["delivery"] for job in relay.jobs()] == ["test-1"]
    assert hud.taken == []


async def test_repeats_are_not_forwarded_and_a_dispute_is_once(tmp_path: Path) -> None:
    hud = Hud()
    async with dispatched_run(tmp_path, outside={HUD: hud}, **SETTINGS) as (relay, run):
        await relay.github.complete_job(run, "build")
        for _ in range(3):
            await relay.github.report(run, "build")
        await relay.github.complete_job(run, "build", "success")
        for _ in range(2):
            await relay.github.complete_job(run, "build", "failure")
        await relay.drain()

    assert hud.statuses() == ["in_progress", "completed", "completed"]
    assert hud.taken[2]["trusted"]["outcome"] == {
        "number": 3,
        "status": "completed",
        "conclusion": "failure",
        "disputed": True,
    }


async def test_results_of_one_delivery_arrive_in_order_though_the_first_is_refused_for_a_while(
    tmp_path: Path,
) -> None:
    hud = Hud(refusals=[Response(status_code=503, headers={"retry-after": "120"})])
    async with dispatched_run(tmp_path, outside={HUD: hud}, **SETTINGS) as (relay, run):
        await relay.github.start_job(run, "build")
        await relay.drain()
        await relay.github.complete_job(run, "build")
        await relay.drain()
        await relay.pass_time(119)
        assert (hud.asked, hud.taken) == (1, [])
        await relay.pass_time(3)

    assert hud.statuses() == ["in_progress", "completed"]


@pytest.mark.parametrize("status", [500, 502, 429, 302])
async def test_a_refusal_that_may_pass_is_retried_until_it_does(tmp_path: Path, status: int) -> None:
    hud = Hud(refusals=[Response(status_code=status) for _ in range(3)])
    async with dispatched_run(tmp_path, outside={HUD: hud}, **SETTINGS) as (relay, run):
        await relay.github.start_job(run, "build")
        for _ in range(10):
            await relay.pass_time(60)

    assert (hud.asked, hud.statuses()) == (4, ["in_progress"])


@pytest.mark.parametrize("status", [400, 401, 403, 413])
async def test_a_refusal_for_good_is_parked_with_its_reason_and_holds_up_nothing(
    tmp_path: Path, status: int
) -> None:
    hud = Hud(refusals=[Response(status_code=status)])
    async with dispatched_run(tmp_path, outside={HUD: hud}, **SETTINGS) as (relay, run):
        await relay.github.start_job(run, "build")
        await relay.drain()
        await relay.github.complete_job(run, "build")
        await relay.drain()

        assert hud.statuses() == ["completed"]
        parked = relay.rows("SELECT kind, last_error FROM effects WHERE state = 'parked'")
        assert parked == [{"kind": "forward_result", "last_error": f"the HUD answered {status}"}]


async def test_a_hud_that_is_down_costs_the_reporter_nothing(tmp_path: Path) -> None:
    async def down(_: Scope, __: Receive, ___: Send) -> None:
        raise httpx.ConnectError("refused")

    async with dispatched_run(tmp_path, outside={HUD: down}, **SETTINGS) as (relay, run):
        assert report_outcome(await relay.github.start_job(run, "build")) == "applied"
        await relay.drain()
        assert report_outcome(await relay.github.complete_job(run, "build")) == "applied"
        await relay.drain()

        waiting = relay.rows("SELECT state, unsure FROM effects WHERE kind = 'forward_result'")
        assert waiting == [{"state": "waiting", "unsure": 0}] * 2


async def test_nothing_is_forwarded_when_nothing_is_configured(tmp_path: Path) -> None:
    hud = Hud()
    async with dispatched_run(tmp_path, outside={HUD: hud}) as (relay, run):
        await relay.github.start_job(run, "build")
        await relay.drain()

        assert hud.asked == 0
        assert relay.rows("SELECT * FROM effects WHERE kind = 'forward_result'") == []


async def test_an_echoed_payload_that_python_cannot_read_does_not_hold_up_its_result(tmp_path: Path) -> None:
    hud = Hud()
    async with dispatched_run(tmp_path, outside={HUD: hud}, **SETTINGS) as (relay, run):
        body = relay.github.ci.report_body(run, run.job("build"), "in_progress")
        for number, odd in enumerate(
            (b'{"n": 1e400}', b"[" * 900 + b"]" * 900, b'"\\ud800"', b'"' + b"x" * 2_090_000 + b'"')
        ):
            body["workflow"]["job_name"], body["payload"] = f"job {number}", "ECHO"
            sent = json.dumps(body).encode().replace(b'"ECHO"', odd)
            assert report_outcome(await relay.github.report(run, "build", body=sent)) == "applied"
        await relay.drain()

    assert len(hud.taken) == 4


async def test_the_envelope_fits_the_far_sides_cap(tmp_path: Path) -> None:
    hud = Hud()
    async with dispatched_run(tmp_path, outside={HUD: hud}, **SETTINGS) as (relay, run):
        body = relay.github.ci.report_body(run, run.job("build"), "in_progress")
        body["payload"] = "x" * (
            2 * 1024 * 1024 - len(json.dumps(body)) + len(json.dumps(body["payload"])) - 8
        )
        assert (
            report_outcome(await relay.github.report(run, "build", body=json.dumps(body).encode()))
            == "applied"
        )
        [row] = relay.rows("SELECT length(payload) AS size FROM effects WHERE kind = 'forward_result'")
        await relay.drain()

    assert row["size"] < 2 * 1024 * 1024
    kept = hud.taken[0]["untrusted"]["callback_payload"]["payload"]
    assert kept["pull_request"]["number"] == 1


async def test_sixty_results_at_once_all_arrive(tmp_path: Path) -> None:
    hud = Hud()
    async with dispatched_run(tmp_path, outside={HUD: hud}, **SETTINGS) as (relay, run):
        names = [f"job {number}" for number in range(60)]
        await asyncio.gather(
            *(post_report(relay, run, "build", "in_progress", job_name=name) for name in names)
        )
        await relay.drain()

    seen = [each["untrusted"]["callback_payload"]["workflow"]["job_name"] for each in hud.taken]
    assert sorted(seen) == sorted(names)
