"""Histories, reports and orders that must not mislead a bisection or reveal one of a hidden backend."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from crcr.decide.model import RepoName
from crcr.errors import NotPossible
from crcr.record.admin.operations import ParkedFilter
from crcr.record.store.statement import Statement
from github_sim.github import WorkflowRun
from support.downstream.callbacks import BACKEND, post_report, refusal_code, workflow_with_jobs
from support.failures.bisection import BISECTED, BROKEN, BrokenBase, broken_base, end_run, failed_with
from support.running_relay import UPSTREAM, RunningRelay, running_relay
from support.sign_in import ADMIN, TOKENS

HOUR = 3600.0
HIDDEN = f"L2:\n  - {BACKEND}: {{bisect: manual, visibility: hidden}}\n"
RIVAL = "org/rival"


@pytest.fixture
async def relay(tmp_path: Path) -> AsyncIterator[RunningRelay]:
    listed = f"{BISECTED}  - {RIVAL}\n"
    async with running_relay(tmp_path, listed, downstreams=(BACKEND, RIVAL), **TOKENS) as running:
        for name in (BACKEND, RIVAL):
            running.github.repository(name).workflows = list(workflow_with_jobs("test"))
        yield running


@pytest.fixture
async def base(relay: RunningRelay) -> BrokenBase:
    return await broken_base(relay, commits=8, culprit=5)


async def sweep(relay: RunningRelay, seconds: float = 0.0) -> None:
    relay.clock.advance(seconds)
    await relay.services.sweeper.sweep()
    await relay.drain()


async def start_second_run(relay: RunningRelay, run: WorkflowRun) -> WorkflowRun:
    """A second run of the same delivery."""
    return relay.github.start_run(
        BACKEND,
        event="repository_dispatch",
        event_type=run.event_type,
        client_payload=run.client_payload,
    )


async def test_a_pass_counts_even_if_a_second_run_of_the_delivery_fails(
    relay: RunningRelay, base: BrokenBase
) -> None:
    bisection = await base.start()
    for _ in range(2):
        await base.answer()
    middle = base.run
    await base.answer(middle, conclusion="success")
    await end_run(relay, await start_second_run(relay, middle), **failed_with(BROKEN))
    assert base.runs(bisection)[2] == (4, "passed")


@pytest.mark.parametrize("end", [None, "cancelled"])
async def test_a_later_attempt_without_a_result_does_not_undo_a_failure(
    relay: RunningRelay, base: BrokenBase, end: str | None
) -> None:
    bisection = await base.start()
    bad_end = base.run
    await base.answer()
    await sweep(relay, 8 * HOUR)
    await relay.github.rerun(bad_end)
    await post_report(relay, bad_end, "test", "in_progress")
    if end is not None:
        await post_report(relay, bad_end, "test", "completed", conclusion=end)
    await relay.drain()
    await sweep(relay)
    assert base.runs(bisection)[0] == (8, "failed")


async def test_another_backend_cannot_report_for_a_bisection(relay: RunningRelay, base: BrokenBase) -> None:
    bisection = await base.start()
    stranger = relay.github.start_run(
        RIVAL,
        event="repository_dispatch",
        event_type=base.run.event_type,
        client_payload=base.run.client_payload,
    )
    answer = await post_report(relay, stranger, "test", "in_progress")
    assert refusal_code(answer)[1] == "unknown_delivery"
    await sweep(relay)
    assert base.runs(bisection) == [(8, None)]


async def test_each_failure_is_fingerprinted_once(relay: RunningRelay, base: BrokenBase) -> None:
    """A job can fail with a thousand tests, and every step and sweep reads all runs."""
    bisection = await base.start()
    await base.answer()
    forget = Statement(text("UPDATE jobs SET failed_tests = NULL WHERE event = 'crcr_bisection'"))
    assert await relay.services.database.write(lambda tx: tx.run(forget)) == 1
    await sweep(relay)
    assert base.runs(bisection)[0] == (8, "failed")
    row = relay.rows("SELECT failed_run, fingerprints, sample FROM bisection_runs ORDER BY number")[0]
    assert row["failed_run"] == f"{base.relay.github.runs(BACKEND)[-2].id}/1"
    assert row["fingerprints"] == base.row(bisection)["fingerprints"]
    assert row["sample"] == BROKEN


def run_deliveries(relay: RunningRelay) -> list[str]:
    """The delivery of each run, in order."""
    rows = relay.rows("SELECT delivery FROM bisection_runs ORDER BY bisection_id, number")
    return [row["delivery"] for row in rows]


@pytest.mark.parametrize("event", ["pull_request", "push", "merge_group", "crcr_test"])
async def test_a_forged_event_in_a_report_does_not_make_a_bisection_run_count(
    relay: RunningRelay, base: BrokenBase, event: str
) -> None:
    tables = ("hours", "days", "job_days", "failures")
    bisection = await base.start()
    counted_rows = [relay.rows(f"SELECT * FROM {name} ORDER BY 1, 2, 3") for name in tables]  # noqa: S608
    job = base.run.job("test")
    for status, more in (("in_progress", {}), ("completed", failed_with(BROKEN))):
        body = {**relay.github.ci.report_body(base.run, job, status, **more), "event_type": event}
        assert (await relay.github.report(base.run, job, body=body)).status_code == 200
    await relay.drain()
    recorded = relay.rows("SELECT delivery, event, ended_as FROM jobs")
    (run,) = [row for row in recorded if row["delivery"] == run_deliveries(relay)[0]]
    assert (run["event"], run["ended_as"]) == ("crcr_bisection", None)
    assert [relay.rows(f"SELECT * FROM {name} ORDER BY 1, 2, 3") for name in tables] == counted_rows  # noqa: S608
    assert base.runs(bisection)[0] == (8, "failed")


async def test_a_run_of_a_bisection_cannot_be_replayed(relay: RunningRelay, base: BrokenBase) -> None:
    bisection = await base.start()
    await base.answer()
    await relay.services.bisections.stop(RepoName(UPSTREAM), bisection, who="ann", now=relay.clock.now())
    sent = len(relay.github.dispatches(BACKEND))
    for guid in run_deliveries(relay):
        for everyone in (False, True):
            with pytest.raises(NotPossible, match="is a run of a bisection"):
                await relay.services.acts.replay(
                    RepoName(UPSTREAM), guid, who="ann", now=relay.clock.now(), everyone=everyone
                )
    await relay.drain()
    assert len(relay.github.dispatches(BACKEND)) == sent


async def test_a_run_that_could_not_be_sent_is_never_sent_later(
    relay: RunningRelay, base: BrokenBase
) -> None:
    """A retry of parked effects does not send it, and no parked effect remains."""
    upstream = RepoName(UPSTREAM)
    await relay.github.uninstall(BACKEND)
    bisection = await base.start()
    await sweep(relay)
    await sweep(relay)
    assert base.row(bisection)["outcome"] == "no_answer"
    assert base.runs(bisection) == [(8, "no_result"), (8, "no_result")]
    assert relay.rows("SELECT effect_id FROM effects WHERE state = 'parked'") == []
    await relay.github.install(BACKEND)
    sent = len(relay.github.dispatches(BACKEND))
    retried = await relay.services.acts.retry_parked(
        upstream, ParkedFilter(), who="ann", now=relay.clock.now()
    )
    await relay.drain()
    assert (retried, len(relay.github.dispatches(BACKEND))) == (0, sent)


async def test_a_run_cancelled_by_a_suspension_is_not_offered_for_replay(
    relay: RunningRelay, base: BrokenBase
) -> None:
    upstream, acts = RepoName(UPSTREAM), relay.services.acts
    began_at = relay.clock.now()
    await acts.pause(upstream, who="ann", now=began_at)
    bisection = await base.start()
    await relay.services.targets.suspend(upstream, RepoName(BACKEND), who="ann", now=relay.clock.now())
    await sweep(relay)
    assert base.row(bisection)["outcome"] == "withdrawn"
    assert await acts.find_cut_off(upstream, began_at) == []


SHOWN = (
    *("/api/v1/bisections", "/api/v1/bisections/1", "/api/v1/bisections.csv", "/api/v1/deliveries"),
    *("/api/v1/audit", "/api/v1/effects", "/api/v1/effects?state=done", "/api/v1/culprits", "/api/v1/jobs"),
    *("/api/v1/failing", "/crcr/bisections", "/crcr/deliveries", "/crcr/audit", "/crcr", "/crcr/failing"),
)


async def test_a_bisection_of_a_hidden_backend_is_shown_to_admins_only(relay: RunningRelay) -> None:
    relay.write_allowlist(HIDDEN)
    await relay.refresh()
    base = await broken_base(relay, commits=8, culprit=5)
    await base.finish(await base.start())
    stopped = await base.start()
    await relay.services.bisections.stop(RepoName(UPSTREAM), stopped, who="ann", now=relay.clock.now())
    guids, culprit = run_deliveries(relay), base.commits[5]
    secrets = (*guids, "refs/heads/crcr-bisect", '"act":"bisection_ended"', "stopped by", BACKEND)
    for path in (*SHOWN, f"/api/v1/commits/{culprit}", f"/crcr/commit/{culprit}"):
        answer = await relay.http.get(path)
        assert [secret for secret in secrets if secret in answer.text] == [], path
        assert "act=bisection_ended" not in answer.text, path
    for path in ("/api/v1/deliveries", "/crcr/deliveries"):
        unknown = await relay.http.get(f"{path}/{guids[0][::-1]}")
        hidden = await relay.http.get(f"{path}/{guids[0]}")
        assert (hidden.status_code, unknown.status_code) == (404, 404)
    admin_deliveries = await relay.http.get(
        "/api/v1/deliveries", headers={"authorization": f"Bearer {ADMIN}"}
    )
    assert guids[0] in admin_deliveries.text
    admin_audit = await relay.http.get("/api/v1/audit", headers={"authorization": f"Bearer {ADMIN}"})
    assert culprit in admin_audit.text


async def test_waiting_effects_of_a_hidden_bisection_are_shown_to_admins_only(relay: RunningRelay) -> None:
    relay.write_allowlist(HIDDEN)
    await relay.refresh()
    base = await broken_base(relay, commits=8, culprit=5)
    await base.start()
    for status, more in (("in_progress", {}), ("completed", failed_with(BROKEN))):
        await post_report(relay, base.run, "test", status, **more)
    (guid,) = run_deliveries(relay)
    admin = {"authorization": f"Bearer {ADMIN}"}
    answers = [await relay.http.get("/api/v1/effects/list", headers=headers) for headers in ({}, admin)]
    assert [guid in answer.text for answer in answers] == [False, True]


@pytest.mark.parametrize(
    "changes",
    [
        {"job": "a\0b"},
        {"workflow": "a\0b"},
        {"good": "1234567\0"},
        {"backend": "org/back\0end"},
        {"upstream": "a\0/b"},
        {"job": "\ud800"},
        {"job": "ü" * 301},
        {"job": "%"},
        {"good": "%______"},
        {"bad": "_______"},
        {"good": "\uff11\uff12\uff13\uff14\uff15\uff16\uff17"},
        {"runs": 10**30},
        {"hours": -1},
        {"job": "x" * 10_000_000},
    ],
    ids=range(14),
)
async def test_a_hostile_order_is_refused(
    relay: RunningRelay, base: BrokenBase, changes: dict[str, Any]
) -> None:
    headers = {"authorization": f"Bearer {ADMIN}", "content-type": "application/json"}
    order = json.dumps({"backend": BACKEND, "job": "test", **changes})
    answer = await relay.http.post("/api/v1/bisections", content=order, headers=headers)
    assert answer.status_code in {400, 404, 413}, answer.text
    assert relay.rows("SELECT * FROM bisections") == []
