"""The merge queue: enqueue pull requests, settle the queue, and read the groups that downstreams received."""

import json
from typing import Any

from github_sim.github import MergeGroup, PullRequest
from support.running_relay import UPSTREAM, RunningRelay


async def enqueue(relay: RunningRelay, pull: PullRequest) -> MergeGroup:
    """Enqueue the pull request, and run the effects."""
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
    """Enqueue both as one group; return the group's head."""
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
    """(action, head) of every merge group that was dispatched to the downstream."""
    payloads: list[dict[str, Any]] = [
        dispatch.client_payload["payload"] for dispatch in relay.github.dispatches(downstream)
    ]
    groups = [payload for payload in payloads if "merge_group" in payload]
    return [(group["action"], group["merge_group"]["head_sha"]) for group in groups]
