"""Fault 7 for what people and the merge queue ask: a missed comment is answered, a missed group is judged, once."""

from pathlib import Path

from support.github.gated_upstream import (
    GATE,
    GATING,
    LABEL,
    Stage,
    gate_state,
    gated_upstream,
    open_pull,
    run_all,
    shown_check,
    write_comment,
)
from support.stage import UPSTREAM


async def recover(it: Stage) -> int:
    """Reconcile twice; what was missed is found by the first."""
    first = (await it.services.reconciler.run()).recovery
    await it.act()
    second = (await it.services.reconciler.run()).recovery
    await it.act()
    assert (first.stopped, second.stopped, second.missed) == (None, None, 0)
    return first.missed


async def test_a_missed_command_is_answered_once(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as it:
        pull = await open_pull(it)
        it.github.faults.webhooks.lose(times=2)
        await write_comment(it, pull, "/crcr status")
        await write_comment(it, pull, "Looks good to me")
        assert len(it.github.comments(pull)) == 2

        assert await recover(it) == 2
        assert len(it.github.comments(pull)) == 3


async def test_the_gate_of_a_missed_head_stands_after_recovery(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as it:
        it.github.faults.webhooks.lose(event="pull_request", times=1)
        pull = await open_pull(it)
        assert gate_state(it, pull) == "absent"
        assert await recover(it) == 1
        assert gate_state(it, pull) == "pending"
        await run_all(it)
        assert gate_state(it, pull) == "success"


async def test_a_missed_merge_group_is_told_and_judged_once(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as it:
        pull = await open_pull(it)
        await it.github.push(
            UPSTREAM, files={"other.txt": "moved on"}
        )  # the group is more than the pull request
        await run_all(it)
        it.github.faults.webhooks.lose(event="merge_group", times=1)
        group = await it.github.enqueue(pull)
        await it.act()
        assert shown_check(it, GATE, group.head_sha) is None

        assert await recover(it) == 1
        assert shown_check(it, GATE, group.head_sha) is not None
        told = [each.event_type for each in it.github.dispatches(GATING)]
        assert told.count("merge_group") == 1


async def test_a_missed_label_brings_what_it_stands_for(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as it:
        pull = await open_pull(it)
        it.github.faults.webhooks.lose(event="pull_request", times=1)
        it.clock.advance(1)
        await it.github.label_pr(pull, LABEL)

        assert await recover(it) == 1
        assert f'"{LABEL}"' in it.rows("SELECT labels FROM pulls")[0]["labels"]


async def test_a_missed_request_to_run_again_is_obeyed_once(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as it:
        pull = await open_pull(it)
        await run_all(it, test="failure")
        assert gate_state(it, pull) == "failure"
        it.github.faults.webhooks.lose(times=1)
        check = it.github.latest_checks(UPSTREAM, pull.head_sha)[GATE]
        await it.github.rerequest_check(check)
        assert len(it.github.calls_to("POST", f"/repos/{GATING}/actions/runs/*")) == 0

        assert await recover(it) == 1
        assert len(it.github.calls_to("POST", f"/repos/{GATING}/actions/runs/*")) == 1
