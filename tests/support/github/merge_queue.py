"""Helpers for tests of the merge queue: enqueue, settle, and the groups that downstreams received."""

import json
from typing import Any

from github_sim.github import MergeGroup, PullRequest
from support.running_relay import UPSTREAM, RunningRelay


async def enqueue(relay: RunningRelay, pull: PullRequest) -> MergeGroup:
    """The pull request joins the queue, and the relay does what follows."""
    group = await relay.github.enqueue(pull)
    await relay.drain()
    return group


async def move_base(relay: RunningRelay) -> None:
    await relay.github.push(UPSTREAM, files={"moved.txt": f"at {relay.clock.now()}"})
    await relay.drain()


async def settle_queue(relay: RunningRelay) -> None:
    relay.clock.advance(1)
    await relay.github.settle_queue(UPSTREAM)
    await relay.drain()


async def enqueue_together(relay: RunningRelay, first: PullRequest, second: PullRequest) -> str:
    """Both are in the queue, and GitHub makes one group of them; the head of it."""
    ahead = await relay.github.enqueue(first)
    relay.github.faults.webhooks.lose(event="merge_group", times=1)
    group = await relay.github.enqueue(second)
    assert group.last_delivery is not None
    body = json.loads(group.last_delivery.payload)
    body["merge_group"]["base_sha"] = ahead.base_sha
    await relay.github.send_webhook("merge_group", body)
    await relay.drain()
    return group.head_sha


def dispatched_groups(relay: RunningRelay, downstream: str) -> list[tuple[str, str]]:
    """(action, head) of every merge group that a downstream heard of."""
    payloads: list[dict[str, Any]] = [
        each.client_payload["payload"] for each in relay.github.dispatches(downstream)
    ]
    groups = [each for each in payloads if "merge_group" in each]
    return [(each["action"], each["merge_group"]["head_sha"]) for each in groups]
