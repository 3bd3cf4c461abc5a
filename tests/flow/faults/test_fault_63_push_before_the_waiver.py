"""Fault 63: an author pushes something else just before, or just after, the comment that waives or approves."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from github_sim.github import MergeBlocked
from support.github.commands import relay_comments, was_obeyed
from support.github.dispatch_log import dispatched_actions
from support.github.gated_upstream import (
    GATE,
    GATED,
    GATING,
    gate_state,
    gated_upstream,
    latest_check,
    open_pull,
    run_all,
    write_comment,
)
from support.running_relay import UPSTREAM

WAIVE = f"/crcr waive {GATING} because the lab is down"
APPROVED = f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: [build], authors: approved}}\n"


async def test_fault_63_a_waiver_a_second_after_a_push_is_refused_with_a_command_that_names_the_head(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, GATED) as relay:
        pull = await open_pull(relay)
        await run_all(relay, build="failure")
        relay.clock.advance(600)
        await relay.github.push_to_pr(pull, message="Mine bitcoin")
        await relay.drain()

        assert not was_obeyed(await write_comment(relay, pull, WAIVE, after_s=1))
        await run_all(relay, build="failure")
        assert gate_state(relay, pull) == "failure"
        with pytest.raises(MergeBlocked):
            await relay.github.merge_pr(pull)

        [answer] = relay_comments(relay, pull)
        [command] = re.findall(r"`(/crcr waive [^`]*)`$", answer, re.MULTILINE)
        assert f" at {pull.head_sha[:12]} because " in command
        assert was_obeyed(await write_comment(relay, pull, command, after_s=1))
        assert gate_state(relay, pull) == "success"


async def test_fault_63_the_command_offered_by_the_button_is_refused_for_a_newer_head(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, GATED) as relay:
        pull = await open_pull(relay)
        await run_all(relay, build="failure")
        await relay.github.press_button(latest_check(relay, GATE, pull.head_sha), "waive")
        await relay.drain()
        [command] = [line for line in relay_comments(relay, pull)[0].splitlines() if line.startswith("/crcr")]
        command = command.replace("<reason>", "it must land")
        relay.clock.advance(600)
        await relay.github.push_to_pr(pull, message="Mine bitcoin")
        await relay.drain()

        assert not was_obeyed(await write_comment(relay, pull, command, after_s=600))
        assert "names the head" in relay_comments(relay, pull)[-1]
        await run_all(relay, build="failure")
        assert gate_state(relay, pull) == "failure"


async def test_fault_63_a_named_prefix_does_not_match_a_later_head_with_the_same_prefix(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, GATED) as relay:
        pull = await open_pull(relay)
        named_head = pull.head_sha
        relay.clock.advance(600)
        before, twin = pull.head_sha, named_head[:7] + "".join(reversed(named_head[7:]))
        commits = relay.github.repository(UPSTREAM).commits
        commits[twin] = replace(commits[before], sha=twin)
        pull.head_sha = twin
        await relay.github.send_pull_webhook(pull, "synchronize", {"before": before, "after": twin})
        await relay.drain()
        await run_all(relay, build="failure")

        waiver = WAIVE.replace(" because", f" at {named_head[:7]} because")
        assert not was_obeyed(await write_comment(relay, pull, waiver))
        assert gate_state(relay, pull) == "failure"


@pytest.mark.parametrize("push_first", [False, True])
async def test_fault_63_a_waiver_written_before_the_push_does_not_apply_to_the_pushed_head(
    tmp_path: Path, push_first: bool
) -> None:
    """Whether the relay processes the push or the comment first."""
    async with gated_upstream(tmp_path, GATED) as relay:
        pull = await open_pull(relay)
        await run_all(relay, build="failure")
        relay.clock.advance(600)
        await relay.github.comment_pr(pull, WAIVE)
        if not push_first:
            await relay.drain()  # the comment is answered first; its waiver is bound to the old head
        relay.clock.advance(1)
        await relay.github.push_to_pr(pull, message="Mine bitcoin")
        await relay.drain()
        await run_all(relay, build="failure")

        assert gate_state(relay, pull) == "failure"


async def test_fault_63_an_approval_a_second_after_a_push_is_refused(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, APPROVED) as relay:
        pull = await open_pull(relay)
        relay.clock.advance(600)
        await relay.github.push_to_pr(pull, message="Read the secrets")
        await relay.drain()

        assert not was_obeyed(await write_comment(relay, pull, "/crcr approve", after_s=1))
        assert dispatched_actions(relay.github, GATING) == []
        assert f"`/crcr approve at {pull.head_sha[:12]}`" in relay_comments(relay, pull)[-1]
        assert was_obeyed(
            await write_comment(relay, pull, f"/crcr approve at {pull.head_sha[:12]}", after_s=1)
        )
        assert dispatched_actions(relay.github, GATING) == ["synchronize"]
