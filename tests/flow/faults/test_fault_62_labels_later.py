"""Fault 62: a label added later causes a dispatch, and removing a label removes no result."""

from pathlib import Path
from typing import Any

from github_sim.github import PullRequest
from support.github.gated_upstream import (
    GATING,
    INFORMING,
    gate_state,
    gated_upstream,
    open_pull,
    run_all,
    write_comment,
)
from support.running_relay import UPSTREAM, RunningRelay, repo

NPU = "npu"
LABELLED = f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: [build, test], labels: [{NPU}]}}\n"
INFORMING_ENTRY = f"L2:\n  - {INFORMING}: {{labels: [{NPU}]}}\n"
APPROVED = LABELLED.replace("labels:", "authors: approved, labels:")
ATEN = f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: [build, test], paths: ['aten/**']}}\n"


def dispatched_labels(relay: RunningRelay, downstream: str = GATING) -> list[tuple[str, list[str]]]:
    """(action, labels) of all dispatches to a backend."""
    payloads: list[dict[str, Any]] = [
        payload.client_payload["payload"] for payload in relay.github.dispatches(downstream)
    ]
    return [
        (payload["action"], [label["name"] for label in payload["pull_request"]["labels"]])
        for payload in payloads
    ]


async def label(relay: RunningRelay, pull: PullRequest, name: str = NPU) -> None:
    relay.clock.advance(1)
    await relay.github.label_pr(pull, name)
    await relay.drain()


async def reopen(relay: RunningRelay, pull: PullRequest) -> None:
    relay.clock.advance(1)
    await relay.github.close_pr(pull)
    relay.clock.advance(1)
    await relay.github.reopen_pr(pull)
    await relay.drain()


async def test_fault_62_a_label_added_later_dispatches_the_recorded_event_with_current_labels(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, INFORMING_ENTRY + LABELLED) as relay:
        pull = await open_pull(relay, labels=["bug"])
        assert (dispatched_labels(relay), dispatched_labels(relay, INFORMING), gate_state(relay, pull)) == (
            [],
            [],
            "success",
        )
        await label(relay, pull, "docs")
        assert (dispatched_labels(relay), gate_state(relay, pull)) == ([], "success")
        await label(relay, pull)

        assert dispatched_labels(relay) == [("opened", ["bug", "docs", NPU])]
        assert dispatched_labels(relay, INFORMING) == [("opened", ["bug", "docs", NPU])]
        assert not relay.github.merge_state(pull).mergeable
        await run_all(relay, build="failure")
        assert not relay.github.merge_state(pull).mergeable


async def test_fault_62_removing_a_label_before_reopening_does_not_remove_a_failure(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, LABELLED, downstreams=(GATING,)) as relay:
        pull = await open_pull(relay, labels=[NPU])
        await run_all(relay, build="failure")
        relay.clock.advance(1)
        await relay.github.unlabel_pr(pull, NPU)
        await relay.drain()
        assert not relay.github.merge_state(pull).mergeable
        await reopen(relay, pull)

        assert not relay.github.merge_state(pull).mergeable
        assert [action for action, _ in dispatched_labels(relay)] == ["opened", "closed", "reopened"]
        await run_all(relay, build="failure")
        assert not relay.github.merge_state(pull).mergeable


async def test_fault_62_a_new_head_without_the_label_is_not_dispatched(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, LABELLED, downstreams=(GATING,)) as relay:
        pull = await open_pull(relay, labels=[NPU])
        relay.clock.advance(1)
        await relay.github.unlabel_pr(pull, NPU)
        relay.clock.advance(1)
        await relay.github.push_to_pr(pull)
        await relay.drain()

        assert gate_state(relay, pull) == "success"
        assert [action for action, _ in dispatched_labels(relay)] == ["opened"]


async def test_fault_62_a_label_does_not_release_a_dispatch_that_needs_approval(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, APPROVED, downstreams=(GATING,)) as relay:
        pull = await open_pull(relay)
        await label(relay, pull)
        assert (dispatched_labels(relay), gate_state(relay, pull)) == ([], "pending")
        await write_comment(relay, pull, "/crcr approve")

        assert dispatched_labels(relay) == [("opened", [NPU])]


async def test_fault_62_paths_are_evaluated_again_with_every_edit(tmp_path: Path) -> None:
    """The allowlist entry changed its `paths` since: no event of the pull request says so."""
    async with gated_upstream(tmp_path, ATEN, downstreams=(GATING,)) as relay:
        await relay.github.push(UPSTREAM, ref="refs/heads/stack", created=True, files={"docs/b.md": "text"})
        await relay.drain()
        relay.github.world.dispatches.clear()
        pull = await open_pull(relay, base="stack", files=["docs/a.md"])
        assert (dispatched_labels(relay), gate_state(relay, pull)) == ([], "success")
        relay.write_allowlist(ATEN.replace("aten/**", "docs/**"))
        await relay.refresh()
        relay.clock.advance(1)
        await relay.github.edit_pr(pull, title="Another title")
        await relay.drain()

        assert [action for action, _ in dispatched_labels(relay)] == ["opened"]
        assert gate_state(relay, pull) == "pending"


async def test_fault_62_a_suspended_backend_selected_by_a_label_blocks_the_merge(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, LABELLED, downstreams=(GATING,)) as relay:
        pull = await open_pull(relay)
        target = repo(UPSTREAM), repo(GATING)
        await relay.services.targets.suspend(*target, who="operator", now=relay.clock.now())
        await label(relay, pull)

        assert dispatched_labels(relay) == []
        assert not relay.github.merge_state(pull).mergeable
