"""Forwarding results to another HUD: what is sent, in which order, and what happens when it is refused."""

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
    """The ingest of another HUD: answers with the given refusals first, then keeps every result."""

    refusals: list[Response] = field(default_factory=list)
    taken: list[dict[str, Any]] = field(default_factory=list)
    requests_received: int = 0
    tokens: set[str | None] = field(default_factory=set)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        self.requests_received += 1
        self.tokens.add(request.headers.get("x-hud-internal-bot"))
        answer = self.refusals.pop(0) if self.refusals else Response(status_code=200)
        if answer.status_code == 200:
            self.taken.append(json.loads(await request.body()))
        await answer(scope, receive, send)

    def statuses(self) -> list[str]:
        return [envelope["untrusted"]["callback_payload"]["workflow"]["status"] for envelope in self.taken]


async def test_a_result_is_forwarded_with_trusted_fields_separate_from_untrusted_ones(tmp_path: Path) -> None:
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
    callback = second["untrusted"]["callback_payload"]
    assert callback["payload"]["action"] == "opened"
    assert (callback["workflow"]["conclusion"], callback["workflow"]["note"]) == ("failure", "é")
    # From the first forward on, its key is the id of the signed check run, whatever id each report claims.
    ids = [envelope["untrusted"]["callback_payload"]["workflow"]["check_run_id"] for envelope in hud.taken]
    assert ids == [str(run.job("build").id)] * 2
    assert hud.tokens == {TOKEN}


async def test_a_result_of_a_test_dispatch_is_recorded_and_not_forwarded(tmp_path: Path) -> None:
    hud = Hud()
    async with dispatched_run(tmp_path, outside={HUD: hud}, **SETTINGS) as (relay, _):
        core, backend = RepoName(UPSTREAM), RepoName(BACKEND)
        await relay.services.acts.dispatch_test(core, backend, "test-1", who="ann", now=relay.clock.now())
        await relay.drain()
        run = next(candidate for candidate in relay.github.runs(BACKEND) if candidate.delivery_id == "test-1")
        assert report_outcome(await relay.github.start_job(run, "build")) == "applied"
        await relay.drain()

        assert [job["delivery"] for job in relay.jobs()] == ["test-1"]
    assert hud.taken == []


async def test_repeats_are_not_forwarded_and_a_dispute_is_forwarded_once(tmp_path: Path) -> None:
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


async def test_results_of_one_delivery_arrive_in_order_when_the_first_is_refused_temporarily(
    tmp_path: Path,
) -> None:
    hud = Hud(refusals=[Response(status_code=503, headers={"retry-after": "120"})])
    async with dispatched_run(tmp_path, outside={HUD: hud}, **SETTINGS) as (relay, run):
        await relay.github.start_job(run, "build")
        await relay.drain()
        await relay.github.complete_job(run, "build")
        await relay.drain()
        await relay.pass_time(119)
        assert (hud.requests_received, hud.taken) == (1, [])
        await relay.pass_time(3)

    assert hud.statuses() == ["in_progress", "completed"]


@pytest.mark.parametrize("status", [500, 502, 429, 302])
async def test_a_temporary_refusal_is_retried_until_the_result_is_accepted(
    tmp_path: Path, status: int
) -> None:
    hud = Hud(refusals=[Response(status_code=status) for _ in range(3)])
    async with dispatched_run(tmp_path, outside={HUD: hud}, **SETTINGS) as (relay, run):
        await relay.github.start_job(run, "build")
        for _ in range(10):
            await relay.pass_time(60)

    assert (hud.requests_received, hud.statuses()) == (4, ["in_progress"])


@pytest.mark.parametrize("status", [400, 401, 403, 413])
async def test_a_permanent_refusal_is_parked_with_its_reason_and_blocks_no_other_result(
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


async def test_a_hud_outage_does_not_affect_the_reporter(tmp_path: Path) -> None:
    async def down(_: Scope, __: Receive, ___: Send) -> None:
        raise httpx.ConnectError("refused")

    async with dispatched_run(tmp_path, outside={HUD: down}, **SETTINGS) as (relay, run):
        assert report_outcome(await relay.github.start_job(run, "build")) == "applied"
        await relay.drain()
        assert report_outcome(await relay.github.complete_job(run, "build")) == "applied"
        await relay.drain()

        waiting = relay.rows("SELECT state, unsure FROM effects WHERE kind = 'forward_result'")
        assert waiting == [{"state": "waiting", "unsure": 0}] * 2


async def test_nothing_is_forwarded_without_a_configured_hud(tmp_path: Path) -> None:
    hud = Hud()
    async with dispatched_run(tmp_path, outside={HUD: hud}) as (relay, run):
        await relay.github.start_job(run, "build")
        await relay.drain()

        assert hud.requests_received == 0
        assert relay.rows("SELECT * FROM effects WHERE kind = 'forward_result'") == []


async def test_an_echoed_payload_that_python_cannot_parse_does_not_block_its_result(tmp_path: Path) -> None:
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


async def test_the_envelope_fits_the_size_limit_of_the_other_hud(tmp_path: Path) -> None:
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
    echoed = hud.taken[0]["untrusted"]["callback_payload"]["payload"]
    assert echoed["pull_request"]["number"] == 1


async def test_sixty_concurrent_results_all_arrive(tmp_path: Path) -> None:
    hud = Hud()
    async with dispatched_run(tmp_path, outside={HUD: hud}, **SETTINGS) as (relay, run):
        names = [f"job {number}" for number in range(60)]
        await asyncio.gather(
            *(post_report(relay, run, "build", "in_progress", job_name=name) for name in names)
        )
        await relay.drain()

    arrived = [envelope["untrusted"]["callback_payload"]["workflow"]["job_name"] for envelope in hud.taken]
    assert sorted(arrived) == sorted(names)
