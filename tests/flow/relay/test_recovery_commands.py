"""Fault 7 for comments, labels, re-runs and merge groups: each missed webhook is recovered and handled once."""

from pathlib import Path

from support.github.gated_upstream import (
    GATE,
    GATING,
    LABEL,
    gate_state,
    gated_upstream,
    open_pull,
    run_all,
    shown_check,
    write_comment,
)
from support.running_relay import UPSTREAM, RunningRelay


async def recover(relay: RunningRelay) -> int:
    """Reconcile twice; return the number of missed webhooks, all found by the first run."""
    first = (await relay.services.reconciler.run()).recovery
    await relay.drain()
    second = (await relay.services.reconciler.run()).recovery
    await relay.drain()
    assert (first.stopped, second.stopped, second.missed) == (None, None, 0)
    return first.missed


async def test_a_missed_command_is_answered_once_by_recovery(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        relay.github.faults.webhooks.lose(times=2)
        await write_comment(relay, pull, "/crcr status")
        await write_comment(relay, pull, "Looks good to me")
        assert len(relay.github.comments(pull)) == 2

        assert await recover(relay) == 2
        assert len(relay.github.comments(pull)) == 3


async def test_the_gate_of_a_missed_head_is_published_by_recovery(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        relay.github.faults.webhooks.lose(event="pull_request", times=1)
        pull = await open_pull(relay)
        assert gate_state(relay, pull) == "absent"
        assert await recover(relay) == 1
        assert gate_state(relay, pull) == "pending"
        await run_all(relay)
        assert gate_state(relay, pull) == "success"


async def test_a_missed_merge_group_is_dispatched_once_and_gets_a_gate(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        await relay.github.push(
            UPSTREAM, files={"other.txt": "moved on"}
        )  # the group contains more than the pull request
        await run_all(relay)
        relay.github.faults.webhooks.lose(event="merge_group", times=1)
        group = await relay.github.enqueue(pull)
        await relay.drain()
        assert shown_check(relay, GATE, group.head_sha) is None

        assert await recover(relay) == 1
        assert shown_check(relay, GATE, group.head_sha) is not None
        events = [dispatch.event_type for dispatch in relay.github.dispatches(GATING)]
        assert events.count("merge_group") == 1


async def test_a_missed_label_is_recorded_by_recovery(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        relay.github.faults.webhooks.lose(event="pull_request", times=1)
        relay.clock.advance(1)
        await relay.github.label_pr(pull, LABEL)

        assert await recover(relay) == 1
        assert f'"{LABEL}"' in relay.rows("SELECT labels FROM pulls")[0]["labels"]


async def test_a_missed_rerun_request_is_executed_once_by_recovery(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        await run_all(relay, test="failure")
        assert gate_state(relay, pull) == "failure"
        relay.github.faults.webhooks.lose(times=1)
        check = relay.github.latest_checks(UPSTREAM, pull.head_sha)[GATE]
        await relay.github.rerequest_check(check)
        assert len(relay.github.calls_to("POST", f"/repos/{GATING}/actions/runs/*")) == 0

        assert await recover(relay) == 1
        assert len(relay.github.calls_to("POST", f"/repos/{GATING}/actions/runs/*")) == 1
