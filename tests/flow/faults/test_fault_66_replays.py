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
from support.running_relay import UPSTREAM, RunningRelay, running_relay

EVENTS = {"pull_request", "workflow_run", "workflow_job", "installation_repositories"}
HOUR, DAY = 3600.0, 86400.0


async def replay(relay: RunningRelay, captured: WebhookDelivery | None) -> dict[str, Any]:
    """Send the captured body with its captured signature, under a new GUID."""
    assert captured is not None
    guid = str(uuid4())
    headers = {**captured.headers, "X-GitHub-Delivery": guid}
    answer = await relay.http.post("/github/webhook", content=captured.payload, headers=headers)
    return {"status": answer.status_code, **answer.json(), "guid": answer.json().get("delivery") == guid}


REPEAT = {"status": 202, "ok": True, "repeat": True, "guid": True}


def without_id(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name != "delivery"}


async def test_fault_66_a_replayed_push_is_not_dispatched_again(tmp_path: Path) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        captured = await relay.github.push(UPSTREAM)
        await relay.drain()
        sent, stored = len(relay.github.dispatches()), relay.rows("SELECT guid FROM deliveries")
        answers = await asyncio.gather(*(replay(relay, captured) for _ in range(3)))
        relay.clock.advance(3 * DAY - HOUR)
        answers.append(await replay(relay, captured))
        await relay.drain()

        assert [without_id(answer) for answer in answers] == [REPEAT] * 4
        assert len(relay.github.dispatches()) == sent == 2
        assert relay.rows("SELECT guid FROM deliveries") == stored
        relay.clock.advance(2 * HOUR)
        await relay.services.sweeper.forget()
        assert relay.rows("SELECT * FROM webhook_bodies") == []
        assert (await replay(relay, captured))["ignored"] == "the push is older than three days"
        await relay.drain()
        assert len(relay.github.dispatches()) == sent


async def test_fault_66_one_of_several_concurrent_copies_is_accepted(tmp_path: Path) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        relay.github.faults.webhooks.lose(times=1)
        captured = await relay.github.push(UPSTREAM)  # the attacker's copies come first
        answers = await asyncio.gather(*(replay(relay, captured) for _ in range(5)))
        recovered = (await relay.services.reconciler.run()).recovery
        await relay.drain()

        assert sorted("repeat" in answer for answer in answers) == [False, True, True, True, True]
        assert (recovered.missed, recovered.repeated, recovered.taken) == (1, 1, 0)
        assert len(relay.github.dispatches()) == 2


async def test_fault_66_a_replayed_waiver_has_no_effect_after_it_was_revoked(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await failing_pull(relay)
        await write_comment(relay, pull, WAIVE)
        captured = newest_delivery(relay, "issue_comment")
        assert gate_state(relay, pull) == "success"
        await write_comment(relay, pull, f"/crcr unwaive {GATING}")
        assert gate_state(relay, pull) == "failure"

        assert without_id(await replay(relay, captured)) == REPEAT
        await sweep_after(relay, 4 * DAY)
        assert "older than three days" in (await replay(relay, captured))["ignored"]
        await relay.drain()
        assert gate_state(relay, pull) == "failure"
        assert not relay.github.merge_state(pull).mergeable


async def test_fault_66_events_that_are_not_stored_as_deliveries_are_repeats_too(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        relay.github.repository(GATING).sends_run_webhooks = True
        pull = await open_pull(relay, labels=["one"])
        await run_all(relay)
        for act in (relay.github.unlabel_pr, relay.github.label_pr):
            relay.clock.advance(1)
            await act(pull, "one")
        for close_or_reopen in (relay.github.close_pr, relay.github.reopen_pr):
            relay.clock.advance(1)
            await close_or_reopen(pull)
        await relay.github.uninstall(GATING)
        await relay.github.install(GATING)
        await relay.drain()
        stored = relay.rows("SELECT count(*) AS number FROM deliveries")
        captured = [
            delivery for delivery in relay.github.deliveries() if "dispatches" in delivery.answer_body
        ]
        for delivery in captured:
            answer = await replay(relay, delivery)
            assert (delivery.event, without_id(answer)) == (delivery.event, REPEAT)

        assert {delivery.event for delivery in captured} == EVENTS
        assert relay.rows("SELECT count(*) AS number FROM deliveries") == stored
        assert await relay.drain() == 0


async def test_fault_66_a_check_rerun_can_be_requested_again_after_a_minute(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await failing_pull(relay)
        pressed = await relay.github.rerequest_check(latest_check(relay, GATE, pull.head_sha))
        await relay.drain()
        run = newest_run(relay)
        assert run.attempt == 2
        await start_jobs(relay, run, "build")
        await finish_jobs(relay, run, build="failure")
        relay.clock.advance(59)
        assert without_id(await replay(relay, pressed)) == REPEAT
        relay.clock.advance(2)
        assert (await replay(relay, pressed))["dispatches"] == 0
        await relay.drain()

        assert run.attempt == 3


async def test_fault_66_a_webhook_answered_503_without_an_allowlist_can_be_redelivered(
    tmp_path: Path,
) -> None:
    async with running_relay(tmp_path, "L9: nonsense\n", downstreams=BOTH) as relay:
        captured = await relay.github.push(UPSTREAM)
        assert captured is not None
        assert captured.status_code == 503
        relay.write_allowlist(TWO)
        await relay.refresh()

        assert (await relay.github.redeliver(captured.guid)).ok
        await relay.drain()
        assert len(relay.github.dispatches()) == 2
        assert without_id(await replay(relay, captured)) == REPEAT


def newest_delivery(relay: RunningRelay, event: str) -> WebhookDelivery:
    return next(delivery for delivery in reversed(relay.github.deliveries()) if delivery.event == event)
