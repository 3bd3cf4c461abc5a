"""Who approves or waives means the head that they saw, not one that came after it."""

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
from support.stage import UPSTREAM

APPROVED = f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: [build], authors: approved}}\n"


async def test_an_approval_that_a_push_overtook_approves_nothing(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, APPROVED) as it:
        pull = await open_pull(it)
        it.clock.advance(60)
        comment = await it.github.comment_pr(pull, "/crcr approve", author="maintainer")
        it.clock.advance(60)
        await it.github.push_to_pr(pull, message="Run something else")
        await it.act()

        assert dispatched_actions(it.github, GATING) == []
        assert [each.content for each in comment.reactions] == ["-1"]
        assert "say it again" in it.github.comments(pull)[-1].body


async def test_a_waiver_that_a_push_overtook_waives_nothing(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as it:
        pull = await open_pull(it)
        it.clock.advance(60)
        await it.github.comment_pr(pull, f"/crcr waive {GATING} because it is old", author="maintainer")
        it.clock.advance(60)
        await it.github.push_to_pr(pull)
        await it.act()
        await run_all(it, build="failure")

        assert gate_state(it, pull) == "failure"


async def test_a_missed_approval_and_a_missed_push_recovered_together_release_nothing(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, APPROVED) as it:
        pull = await open_pull(it)
        it.github.faults.webhooks.lose()
        it.clock.advance(60)
        await it.github.comment_pr(pull, "/crcr approve", author="maintainer")
        it.clock.advance(60)
        await it.github.push_to_pr(pull)
        it.github.faults.clear()
        await it.services.reconciler.run()
        await it.act()

        assert dispatched_actions(it.github, GATING) == []


@pytest.mark.parametrize("seconds", [0, 59, 60])
async def test_within_the_minute_of_the_push_a_command_has_to_name_the_head(
    tmp_path: Path, seconds: int
) -> None:
    async with gated_upstream(tmp_path, APPROVED) as it:
        pull = await open_pull(it)
        it.clock.advance(seconds)
        await it.github.comment_pr(pull, "/crcr approve", author="maintainer")
        await it.act()

        assert dispatched_actions(it.github, GATING) == ["opened"] * (seconds == 60)


async def test_a_waiver_with_a_time_is_about_no_head_and_holds_after_the_push(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATED) as it:
        pull = await open_pull(it)
        await write_comment(it, pull, f"/crcr waive {GATING} until 3d because the lab moves")
        it.clock.advance(60)
        await it.github.push_to_pr(pull)
        await it.act()
        await run_all(it, build="failure")

        assert gate_state(it, pull) == "success"
        await it.github.merge_pr(pull)
        assert it.github.repository(UPSTREAM).branches["main"] == pull.merge_commit_sha
