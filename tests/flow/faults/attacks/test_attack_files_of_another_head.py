"""While GitHub is asked which files changed, the author has moved the pull request elsewhere for a moment.

GitHub lists the files of the pull request as it is then; the webhooks of both moves are late.
"""

from pathlib import Path

import pytest

from github_sim.github import PullRequest
from support.github.checks import force_push
from support.github.dispatch_log import dispatched_actions
from support.github.gated_upstream import GATING, Stage, gated_upstream
from support.stage import UPSTREAM

STACK = "stack"
ATEN = f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: [build, test], paths: ['aten/**']}}\n"


async def open_on_stack(it: Stage) -> PullRequest:
    """A pull request into main, whose branch begins with an untested branch of the upstream."""
    await it.github.push(UPSTREAM, ref=f"refs/heads/{STACK}", created=True, files={"aten/evil.cpp": "evil"})

    def retarget(pull: PullRequest) -> None:
        pull.base_ref, pull.base_sha = "main", it.github.repository(UPSTREAM).branches["main"]

    return await it.github.open_pr(UPSTREAM, base=STACK, files=["docs/a.md"], before_webhook=retarget)


async def move_away(it: Stage, pull: PullRequest, how: str) -> None:
    if how == "base":
        await it.github.edit_pr(pull, base=STACK)
    else:
        pull.head_sha = it.github.repository(UPSTREAM).branches["main"]
        await it.github.push_to_pr(pull, files=["docs/a.md"])


async def move_back(it: Stage, pull: PullRequest, how: str, head: str) -> None:
    if how == "base":
        await it.github.edit_pr(pull, base="main")
    else:
        await force_push(it.github, pull, head)


@pytest.mark.parametrize("how", ["base", "head"])
async def test_attack_files_of_another_head_or_base_leave_nobody_out(tmp_path: Path, how: str) -> None:
    async with gated_upstream(tmp_path, ATEN, downstreams=(GATING,)) as it:
        pull = await open_on_stack(it)
        head = pull.head_sha
        it.github.faults.webhooks.lose(event="pull_request", times=2)
        it.clock.advance(1)
        await move_away(it, pull, how)
        await it.act()
        it.clock.advance(1)
        await move_back(it, pull, how, head)
        await it.act()

        assert (pull.head_sha, pull.base_ref) == (head, "main")
        assert not it.github.merge_state(pull).mergeable
        assert dispatched_actions(it.github, GATING) == ["opened"]
