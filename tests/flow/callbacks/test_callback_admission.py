"""Admission and proof: a report counts only for a dispatch that may have arrived and only while its sender is admitted."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from crcr.decide.model import RepoName
from crcr.receive.oidc.issuers import GITHUB_ACTIONS
from crcr.wiring.web_app import build_app
from github_sim.world.faults import Match
from support.downstream.callbacks import BACKEND, client_from, dispatched_run, post_report, refusal_code
from support.running_relay import AUDIENCE, UPSTREAM, RunningRelay, running_relay

CORE = RepoName(UPSTREAM)
DISPATCHES = Match(method="POST", path="*/dispatches")


async def test_a_report_for_a_rate_limited_dispatch_does_not_drop_the_dispatch(tmp_path: Path) -> None:
    async with running_relay(tmp_path, "L2: [org/one]", downstreams=("org/one",)) as relay:
        await relay.github.open_pr(UPSTREAM, title="First")
        await relay.drain()
        run = relay.github.runs("org/one")[0]
        relay.github.faults.answer(429, on=DISPATCHES, times=1, retry_after_s=30)
        pr = await relay.github.open_pr(UPSTREAM, title="Second")
        await relay.drain()
        assert pr.last_delivery is not None
        workflow = {
            "name": "CI",
            "status": "in_progress",
            "run_id": run.id,
            "run_attempt": 1,
            "job_name": "build",
        }
        body = {"event_type": "pull_request", "delivery_id": pr.last_delivery.guid, "workflow": workflow}
        answer = await relay.github.report(run, run.jobs[0], status="in_progress", body=body)
        await relay.pass_time(40)

        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_delivery")
        assert len(relay.github.dispatches("org/one")) == 2


async def test_a_callback_for_a_dispatch_with_a_lost_response_prevents_the_retry(tmp_path: Path) -> None:
    async with running_relay(tmp_path, "L2: [org/one]", downstreams=("org/one",)) as relay:
        relay.github.faults.early_callback(times=1)
        relay.github.faults.lose_answer(on=DISPATCHES, times=1)
        await relay.github.open_pr(UPSTREAM, title="Lost answer")
        await relay.drain()
        await relay.pass_time(60)

        assert len(relay.github.dispatches("org/one")) == 1
        assert set(relay.dispatch_states().values()) == {"sent"}


class SuspendingLimits:
    """Limits that suspend the caller between its first admission check and its second."""

    def __init__(self, relay: RunningRelay) -> None:
        self._relay = relay

    async def check(self, scope: str, subject: str) -> None:
        await self._relay.services.limits.check(scope, subject)

    async def take(self, scope: str, subject: str) -> None:
        await self._relay.services.limits.take(scope, subject)
        core, one = RepoName(UPSTREAM), RepoName(BACKEND)
        await self._relay.services.targets.suspend(core, one, who="ann", now=self._relay.clock.now())


async def test_a_suspension_between_the_two_admission_checks_is_obeyed(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        callback = replace(relay.services.callback, limits=SuspendingLimits(relay))
        app = build_app(replace(relay.services, callback=callback), work=False)
        async with client_from(app) as http:
            answer = await post_report(relay, run, "build", "in_progress", http=http)

        assert refusal_code(answer) == (403, "suspended")
        assert relay.jobs() == []


async def _suspend(relay: RunningRelay) -> None:
    await relay.services.targets.suspend(CORE, RepoName(BACKEND), who="ann", now=relay.clock.now())


async def _rebind(relay: RunningRelay) -> None:
    await relay.services.targets.rebind(CORE, RepoName(BACKEND), 4711, who="ann", now=relay.clock.now())


async def _lower(relay: RunningRelay) -> None:
    relay.write_allowlist(f"L1: [{BACKEND}]")
    await relay.refresh()


async def _delist(relay: RunningRelay) -> None:
    relay.write_allowlist("L2: [org/other]")
    await relay.refresh()


@pytest.mark.parametrize(
    ("end_admission", "answers"),
    [
        (_suspend, (403, "suspended")),
        (_rebind, (403, "identity_changed")),
        (_lower, (202, "ignored")),
        (_delist, (403, "not_allowlisted")),
    ],
)
async def test_admission_of_a_caller_is_checked_again_with_its_next_report(
    tmp_path: Path, end_admission: Callable[[RunningRelay], Awaitable[None]], answers: tuple[int, str]
) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        assert (await post_report(relay, run, "build", "in_progress")).status_code == 200
        await end_admission(relay)
        for _ in range(2):
            answer = await post_report(relay, run, "build", "completed", conclusion="success")
            body = answer.json()
            assert (answer.status_code, body.get("status") or body["error"]["code"]) == answers

        assert [job["state"] for job in relay.jobs()] == ["in_progress"]
        [known] = relay.rows("SELECT alarm FROM repositories WHERE downstream = ?", BACKEND)
        assert bool(known["alarm"]) == (answers[1] == "identity_changed")


async def test_a_rerun_report_without_run_attempt_uses_the_signed_attempt(tmp_path: Path) -> None:
    async with running_relay(tmp_path, "L2: [org/one]", downstreams=("org/one",)) as relay:
        await relay.github.open_pr(UPSTREAM, title="Again")
        await relay.drain()
        run = relay.github.runs("org/one")[0]
        await relay.github.start_job(run, "build")
        await relay.github.complete_job(run, "build", "failure")
        await relay.github.complete_job(run, "test", "failure")
        await relay.github.cancel(run, report=False)
        run = await relay.github.rerun(run)
        answer = await relay.github.start_job(run, "build", run_attempt=None)

        assert answer.status_code == 200, answer.text
        assert [job["attempt"] for job in relay.jobs()] == [1, 2]


async def test_a_relay_of_another_github_server_rejects_tokens_of_public_github(tmp_path: Path) -> None:
    """On public GitHub the same names mean other repositories."""
    async with dispatched_run(tmp_path) as (relay, run):
        token = relay.github.oidc_token(run, run.jobs[0], audience=AUDIENCE, iss=GITHUB_ACTIONS)
        answer = await relay.github.report(run, run.jobs[0], status="in_progress", token=token)

        assert refusal_code(answer) == (401, "not_authentic")
        assert "is not known" in answer.json()["error"]["detail"]


async def test_an_upstream_with_an_invalid_allowlist_does_not_hide_the_answer_of_the_other(
    tmp_path: Path,
) -> None:
    lists = {UPSTREAM: f"L2: [{BACKEND}]", "other/core": "L2: [not a name]"}
    async with running_relay(tmp_path, lists, downstreams=(BACKEND,)) as relay:
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        run = relay.github.runs(BACKEND)[0]
        body = relay.github.ci.report_body(run, run.jobs[0], "in_progress") | {"delivery_id": "made-up"}
        answer = await relay.github.report(run, run.jobs[0], status="in_progress", body=body)

        assert refusal_code(answer) == (404, "unknown_delivery")
