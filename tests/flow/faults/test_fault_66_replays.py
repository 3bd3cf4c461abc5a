"""Fault 66: GitHub signs a webhook's body and not its GUID, so a captured one can be sent again under any GUID."""

import asyncio
from pathlib import Path
from typing import Any
from uuid import uuid4

from github_sim.world.records import WebhookDelivery
from support.github.commands import WAIVE, failing_pull
from support.github.dispatch_log import BOTH, TWO
from support.github.gated_upstream import (
    GATE,
    GATING,
    Stage,
    finish_jobs,
    gate_state,
    gated_upstream,
    latest_check,
    newest_run,
    open_pull,
    run_all,
    start_jobs,
    sweep_after,
    write_comment,
)
from support.stage import UPSTREAM, stage

EVENTS = {"pull_request", "workflow_run", "workflow_job", "installation_repositories"}
HOUR, DAY = 3600.0, 86400.0


async def replay(it: Stage, captured: WebhookDelivery | None) -> dict[str, Any]:
    """Send the captured bytes with their captured signature, under a new GUID."""
    assert captured is not None
    guid = str(uuid4())
    headers = {**captured.headers, "X-GitHub-Delivery": guid}
    answer = await it.http.post("/github/webhook", content=captured.payload, headers=headers)
    return {"status": answer.status_code, **answer.json(), "guid": answer.json().get("delivery") == guid}


REPEAT = {"status": 202, "ok": True, "repeat": True, "guid": True}


def without_id(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name != "delivery"}


async def test_fault_66_a_captured_push_dispatches_nothing_again(tmp_path: Path) -> None:
    async with stage(tmp_path, TWO, downstreams=BOTH) as it:
        captured = await it.github.push(UPSTREAM)
        await it.act()
        sent, stored = len(it.github.dispatches()), it.rows("SELECT guid FROM deliveries")
        answers = await asyncio.gather(*(replay(it, captured) for _ in range(3)))
        it.clock.advance(3 * DAY - HOUR)
        answers.append(await replay(it, captured))
        await it.act()

        assert [without_id(answer) for answer in answers] == [REPEAT] * 4
        assert len(it.github.dispatches()) == sent == 2
        assert it.rows("SELECT guid FROM deliveries") == stored
        it.clock.advance(2 * HOUR)
        await it.services.sweeper.forget()
        assert it.rows("SELECT * FROM webhook_bodies") == []
        assert (await replay(it, captured))["ignored"] == "the push is older than three days"
        await it.act()
        assert len(it.github.dispatches()) == sent


async def test_fault_66_of_many_copies_at_once_one_is_taken(tmp_path: Path) -> None:
    async with stage(tmp_path, TWO, downstreams=BOTH) as it:
        it.github.faults.webhooks.lose(times=1)
        captured = await it.github.push(UPSTREAM)  # the attacker's copies come first
        answers = await asyncio.gather(*(replay(it, captured) for _ in range(5)))
        recovered = (await it.services.reconciler.run()).recovery
        await it.act()

        assert sorted("repeat" in answer for answer in answers) == [False, True, True, True, True]
        assert (recovered.missed, recovered.repeated, recovered.taken) == (1, 1, 0)
        assert len(it.github.dispatches()) == 2


async def test_fault_66_a_captured_waiver_comes_to_nothing_once_it_was_taken_back(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as it:
        pull = await failing_pull(it)
        await write_comment(it, pull, WAIVE)
        captured = newest(it, "issue_comment")
        assert gate_state(it, pull) == "success"
        await write_comment(it, pull, f"/crcr unwaive {GATING}")
        assert gate_state(it, pull) == "failure"

        assert without_id(await replay(it, captured)) == REPEAT
        await sweep_after(it, 4 * DAY)
        assert "older than three days" in (await replay(it, captured))["ignored"]
        await it.act()
        assert gate_state(it, pull) == "failure"
        assert not it.github.merge_state(pull).mergeable


async def test_fault_66_what_is_stored_as_no_delivery_is_not_taken_twice_either(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as it:
        it.github.repository(GATING).sends_run_webhooks = True
        pull = await open_pull(it, labels=["one"])
        await run_all(it)
        for act in (it.github.unlabel_pr, it.github.label_pr):
            it.clock.advance(1)
            await act(pull, "one")
        for again in (it.github.close_pr, it.github.reopen_pr):
            it.clock.advance(1)
            await again(pull)
        await it.github.uninstall(GATING)
        await it.github.install(GATING)
        await it.act()
        stored = it.rows("SELECT count(*) AS number FROM deliveries")
        captured = [each for each in it.github.deliveries() if "dispatches" in each.answer_body]
        for delivery in captured:
            answer = await replay(it, delivery)
            assert (delivery.event, without_id(answer)) == (delivery.event, REPEAT)

        assert {delivery.event for delivery in captured} == EVENTS
        assert it.rows("SELECT count(*) AS number FROM deliveries") == stored
        assert await it.act() == 0


async def test_fault_66_a_button_may_be_pressed_again_after_a_minute(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as it:
        pull = await failing_pull(it)
        pressed = await it.github.rerequest_check(latest_check(it, GATE, pull.head_sha))
        await it.act()
        run = newest_run(it)
        assert run.attempt == 2
        await start_jobs(it, run, "build")
        await finish_jobs(it, run, build="failure")
        it.clock.advance(59)
        assert without_id(await replay(it, pressed)) == REPEAT
        it.clock.advance(2)
        assert (await replay(it, pressed))["dispatches"] == 0
        await it.act()

        assert run.attempt == 3


async def test_fault_66_what_was_refused_for_an_outage_can_come_again(tmp_path: Path) -> None:
    async with stage(tmp_path, "L9: nonsense\n", downstreams=BOTH) as it:
        captured = await it.github.push(UPSTREAM)
        assert captured is not None
        assert captured.status_code == 503
        it.write_allowlist(TWO)
        await it.refresh()

        assert (await it.github.redeliver(captured.guid)).ok
        await it.act()
        assert len(it.github.dispatches()) == 2
        assert without_id(await replay(it, captured)) == REPEAT


def newest(it: Stage, event: str) -> WebhookDelivery:
    return next(each for each in reversed(it.github.deliveries()) if each.event == event)
