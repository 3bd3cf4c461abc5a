"""An author retargets the pull request just before, or just after, a comment that waives its head by name."""

from pathlib import Path

import pytest

from github_sim.github import PullRequest
from support.github.commands import relay_comments, was_obeyed
from support.github.gated_upstream import (
    GATING,
    gate_state,
    gated_upstream,
    open_pull,
    run_all,
    write_comment,
)
from support.running_relay import UPSTREAM, RunningRelay

STACK = "stack"
ANY = f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: [build, test]}}\n"


async def open_failing_on_stack(relay: RunningRelay) -> PullRequest:
    """A pull request that fails on a branch where a maintainer accepts failures."""
    await relay.github.push(
        UPSTREAM, ref=f"refs/heads/{STACK}", created=True, files={"aten/evil.cpp": "evil"}
    )
    pull = await open_pull(relay, base=STACK, files=["docs/a.md"])
    await run_all(relay, build="failure")
    relay.clock.advance(600)
    return pull


def waive(pull: PullRequest) -> str:
    return f"/crcr waive {GATING} at {pull.head_sha[:12]} because the stack is a playground"


@pytest.mark.parametrize("first", ["retarget", "comment"])
async def test_attack_a_waiver_of_a_head_on_one_base_does_not_apply_on_another_base(
    tmp_path: Path, first: str
) -> None:
    async with gated_upstream(tmp_path, ANY, downstreams=(GATING,)) as relay:
        pull = await open_failing_on_stack(relay)
        if first == "comment":  # and the relay processes it after the retarget
            comment = await relay.github.comment_pr(pull, waive(pull), author="maintainer")
            relay.clock.advance(1)
            await relay.github.edit_pr(pull, base="main")
            await relay.drain()
        else:
            await relay.github.edit_pr(pull, base="main")
            await relay.drain()
            comment = await write_comment(relay, pull, waive(pull), after_s=1)

        assert not was_obeyed(comment)
        assert "the base of this pull request" in relay_comments(relay, pull)[-1]
        assert (gate_state(relay, pull), relay.github.merge_state(pull).mergeable) == ("pending", False)
        assert was_obeyed(await write_comment(relay, pull, waive(pull), after_s=60))
        assert gate_state(relay, pull) == "success"
