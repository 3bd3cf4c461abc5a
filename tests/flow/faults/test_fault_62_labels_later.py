"""Fault 62: a label that comes later dispatches, and one that goes takes no result away."""

from pathlib import Path
from typing import Any

from github_sim.github import PullRequest
from support.github.gated_upstream import (
    GATING,
    INFORMING,
    Stage,
    gate_state,
    gated_upstream,
    open_pull,
    run_all,
    write_comment,
)
from support.stage import UPSTREAM, repo

NPU = "npu"
LABELLED = f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: [build, test], labels: [{NPU}]}}\n"
BELOW = f"L2:\n  - {INFORMING}: {{labels: [{NPU}]}}\n"
APPROVED = LABELLED.replace("labels:", "authors: approved, labels:")
ATEN = f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: [build, test], paths: ['aten/**']}}\n"


def sent(it: Stage, downstream: str = GATING) -> list[tuple[str, list[str]]]:
    """(action, labels) of everything that a backend was told."""
    payloads: list[dict[str, Any]] = [
        each.client_payload["payload"] for each in it.github.dispatches(downstream)
    ]
    return [
        (each["action"], [label["name"] for label in each["pull_request"]["labels"]]) for each in payloads
    ]


async def label(it: Stage, pull: PullRequest, name: str = NPU) -> None:
    it.clock.advance(1)
    await it.github.label_pr(pull, name)
    await it.act()


async def reopen(it: Stage, pull: PullRequest) -> None:
    it.clock.advance(1)
    await it.github.close_pr(pull)
    it.clock.advance(1)
    await it.github.reopen_pr(pull)
    await it.act()


async def test_fault_62_a_label_added_later_dispatches_the_recorded_delivery_with_todays_labels(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, BELOW + LABELLED) as it:
        pull = await open_pull(it, labels=["bug"])
        assert (sent(it), sent(it, INFORMING), gate_state(it, pull)) == ([], [], "success")
        await label(it, pull, "docs")
        assert (sent(it), gate_state(it, pull)) == ([], "success")
        await label(it, pull)

        assert sent(it) == [("opened", ["bug", "docs", NPU])]
        assert sent(it, INFORMING) == [("opened", ["bug", "docs", NPU])]
        assert not it.github.merge_state(pull).mergeable
        await run_all(it, build="failure")
        assert not it.github.merge_state(pull).mergeable


async def test_fault_62_a_label_taken_away_before_reopening_takes_no_failure_away(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, LABELLED, downstreams=(GATING,)) as it:
        pull = await open_pull(it, labels=[NPU])
        await run_all(it, build="failure")
        it.clock.advance(1)
        await it.github.unlabel_pr(pull, NPU)
        await it.act()
        assert not it.github.merge_state(pull).mergeable
        await reopen(it, pull)

        assert not it.github.merge_state(pull).mergeable
        assert [action for action, _ in sent(it)] == ["opened", "closed", "reopened"]
        await run_all(it, build="failure")
        assert not it.github.merge_state(pull).mergeable


async def test_fault_62_a_new_head_without_the_label_is_not_concerned(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, LABELLED, downstreams=(GATING,)) as it:
        pull = await open_pull(it, labels=[NPU])
        it.clock.advance(1)
        await it.github.unlabel_pr(pull, NPU)
        it.clock.advance(1)
        await it.github.push_to_pr(pull)
        await it.act()

        assert gate_state(it, pull) == "success"
        assert [action for action, _ in sent(it)] == ["opened"]


async def test_fault_62_a_label_releases_nothing_that_an_approval_holds_back(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, APPROVED, downstreams=(GATING,)) as it:
        pull = await open_pull(it)
        await label(it, pull)
        assert (sent(it), gate_state(it, pull)) == ([], "pending")
        await write_comment(it, pull, "/crcr approve")

        assert sent(it) == [("opened", [NPU])]


async def test_fault_62_what_paths_left_out_is_looked_at_again_with_every_edit(tmp_path: Path) -> None:
    """The stack below the pull request changed since: no event of the pull request tells of that."""
    async with gated_upstream(tmp_path, ATEN, downstreams=(GATING,)) as it:
        await it.github.push(UPSTREAM, ref="refs/heads/stack", created=True, files={"docs/b.md": "text"})
        await it.act()
        it.github.world.dispatches.clear()
        pull = await open_pull(it, base="stack", files=["docs/a.md"])
        assert (sent(it), gate_state(it, pull)) == ([], "success")
        it.write_allowlist(ATEN.replace("aten/**", "docs/**"))
        await it.refresh()
        it.clock.advance(1)
        await it.github.edit_pr(pull, title="Another title")
        await it.act()

        assert [action for action, _ in sent(it)] == ["opened"]
        assert gate_state(it, pull) == "pending"


async def test_fault_62_a_suspended_backend_is_missing_when_a_label_asks_for_it(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, LABELLED, downstreams=(GATING,)) as it:
        pull = await open_pull(it)
        where = repo(UPSTREAM), repo(GATING)
        await it.services.targets.suspend(*where, who="operator", now=it.clock.now())
        await label(it, pull)

        assert sent(it) == []
        assert not it.github.merge_state(pull).mergeable
