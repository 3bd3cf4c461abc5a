"""An approval or a waiver counts for the head that its author saw, not for a later one."""

from pathlib import Path

import pytest

from support.github.dispatch_log import dispatched_actions
from support.github.gated_upstream import (
    GATED,
    GATING,
    gate_state,
    gated_upstream,
    open_pull,
    run_all,
    write_comment,
)
from support.running_relay import UPSTREAM

APPROVED = f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: [build], authors: approved}}\n"


async def test_an_approval_processed_after_a_newer_push_approves_nothing(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, APPROVED) as relay:
        pull = await open_pull(relay)
        relay.clock.advance(60)
        comment = await relay.github.comment_pr(pull, "/crcr approve", author="maintainer")
        relay.clock.advance(60)
        await relay.github.push_to_pr(pull, message="Run something else")
        await relay.drain()

        assert dispatched_actions(relay.github, GATING) == []
        assert [reaction.content for reaction in comment.reactions] == ["-1"]
        assert "repeat the command" in relay.github.comments(pull)[-1].body


async def test_a_waiver_processed_after_a_newer_push_waives_nothing(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        relay.clock.advance(60)
        await relay.github.comment_pr(pull, f"/crcr waive {GATING} because it is old", author="maintainer")
        relay.clock.advance(60)
        await relay.github.push_to_pr(pull)
        await relay.drain()
        await run_all(relay, build="failure")

        assert gate_state(relay, pull) == "failure"


async def test_a_missed_approval_and_a_missed_push_recovered_together_release_nothing(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, APPROVED) as relay:
        pull = await open_pull(relay)
        relay.github.faults.webhooks.lose()
        relay.clock.advance(60)
        await relay.github.comment_pr(pull, "/crcr approve", author="maintainer")
        relay.clock.advance(60)
        await relay.github.push_to_pr(pull)
        relay.github.faults.clear()
        await relay.services.reconciler.run()
        await relay.drain()

        assert dispatched_actions(relay.github, GATING) == []


@pytest.mark.parametrize("seconds", [0, 59, 60])
async def test_a_command_within_a_minute_after_the_push_must_name_the_head(
    tmp_path: Path, seconds: int
) -> None:
    async with gated_upstream(tmp_path, APPROVED) as relay:
        pull = await open_pull(relay)
        relay.clock.advance(seconds)
        await relay.github.comment_pr(pull, "/crcr approve", author="maintainer")
        await relay.drain()

        assert dispatched_actions(relay.github, GATING) == ["opened"] * (seconds == 60)


async def test_a_waiver_with_an_end_time_is_not_bound_to_a_head_and_survives_a_push(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATED) as relay:
        pull = await open_pull(relay)
        await write_comment(relay, pull, f"/crcr waive {GATING} until 3d because the lab moves")
        relay.clock.advance(60)
        await relay.github.push_to_pr(pull)
        await relay.drain()
        await run_all(relay, build="failure")

        assert gate_state(relay, pull) == "success"
        await relay.github.merge_pr(pull)
        assert relay.github.repository(UPSTREAM).branches["main"] == pull.merge_commit_sha
