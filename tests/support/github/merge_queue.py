"""Helpers for tests of the merge queue: enqueue, settle, and the groups that downstreams received."""

import json
from typing import Any

from github_sim.github import MergeGroup, PullRequest
from support.github.gated_upstream import Stage
from support.stage import UPSTREAM


async def enqueue(it: Stage, pull: PullRequest) -> MergeGroup:
    """The pull request joins the queue, and the relay does what follows."""
    group = await it.github.enqueue(pull)
    await it.act()
    return group


async def move_base(it: Stage) -> None:
    await it.github.push(UPSTREAM, files={"moved.txt": f"at {it.clock.now()}"})
    await it.act()


async def settle_queue(it: Stage) -> None:
    it.clock.advance(1)
    await it.github.settle_queue(UPSTREAM)
    await it.act()


async def enqueue_together(it: Stage, first: PullRequest, second: PullRequest) -> str:
    """Both are in the queue, and GitHub makes one group of them; the head of it."""
    ahead = await it.github.enqueue(first)
    it.github.faults.webhooks.lose(event="merge_group", times=1)
    group = await it.github.enqueue(second)
    assert group.last_delivery is not None
    body = json.loads(group.last_delivery.payload)
    body["merge_group"]["base_sha"] = ahead.base_sha
    await it.github.send_webhook("merge_group", body)
    await it.act()
    return group.head_sha


def dispatched_groups(it: Stage, downstream: str) -> list[tuple[str, str]]:
    """(action, head) of every merge group that a downstream heard of."""
    payloads: list[dict[str, Any]] = [
        each.client_payload["payload"] for each in it.github.dispatches(downstream)
    ]
    groups = [each for each in payloads if "merge_group" in each]
    return [(each["action"], each["merge_group"]["head_sha"]) for each in groups]
