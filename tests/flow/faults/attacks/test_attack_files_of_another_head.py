"""While the relay reads the changed files from GitHub, the author briefly moves the pull request to another head or base.

GitHub lists the files of the pull request at that moment; the webhooks of both moves are lost.
"""

from pathlib import Path

import pytest

from github_sim.github import PullRequest
from support.github.checks import force_push
from support.github.dispatch_log import dispatched_actions
from support.github.gated_upstream import GATING, gated_upstream
from support.running_relay import UPSTREAM, RunningRelay

STACK = "stack"
ATEN = f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: [build, test], paths: ['aten/**']}}\n"


async def open_on_stack(relay: RunningRelay) -> PullRequest:
    """A pull request into main, whose branch begins with an untested branch of the upstream."""
    await relay.github.push(
        UPSTREAM, ref=f"refs/heads/{STACK}", created=True, files={"aten/evil.cpp": "evil"}
    )

    def retarget(pull: PullRequest) -> None:
        pull.base_ref, pull.base_sha = "main", relay.github.repository(UPSTREAM).branches["main"]

    return await relay.github.open_pr(UPSTREAM, base=STACK, files=["docs/a.md"], before_webhook=retarget)


async def move_away(relay: RunningRelay, pull: PullRequest, moved_part: str) -> None:
    if moved_part == "base":
        await relay.github.edit_pr(pull, base=STACK)
    else:
        pull.head_sha = relay.github.repository(UPSTREAM).branches["main"]
        await relay.github.push_to_pr(pull, files=["docs/a.md"])


async def move_back(relay: RunningRelay, pull: PullRequest, moved_part: str, head: str) -> None:
    if moved_part == "base":
        await relay.github.edit_pr(pull, base="main")
    else:
        await force_push(relay.github, pull, head)


@pytest.mark.parametrize("moved_part", ["base", "head"])
async def test_attack_files_of_another_head_or_base_do_not_exclude_a_backend(
    tmp_path: Path, moved_part: str
) -> None:
    async with gated_upstream(tmp_path, ATEN, downstreams=(GATING,)) as relay:
        pull = await open_on_stack(relay)
        head = pull.head_sha
        relay.github.faults.webhooks.lose(event="pull_request", times=2)
        relay.clock.advance(1)
        await move_away(relay, pull, moved_part)
        await relay.drain()
        relay.clock.advance(1)
        await move_back(relay, pull, moved_part, head)
        await relay.drain()

        assert (pull.head_sha, pull.base_ref) == (head, "main")
        assert not relay.github.merge_state(pull).mergeable
        assert dispatched_actions(relay.github, GATING) == ["opened"]
