"""Helpers for tests of `/crcr` commands: a blocked pull request, and the relay's comments and reactions."""

import json
from typing import Any

from github_sim.github import Comment, PullRequest
from support.github.gated_upstream import GATING, gate_state, open_pull, run_all
from support.running_relay import RunningRelay

WAIVE = f"/crcr waive {GATING} because the runner is on fire"


def reaction_names(comment: Comment) -> list[str]:
    return [each.content for each in comment.reactions]


def was_obeyed(comment: Comment) -> bool:
    """Whether the one reaction says so."""
    [only] = reaction_names(comment)
    return {"+1": True, "-1": False}[only]


def relay_comments(relay: RunningRelay, pull: PullRequest) -> list[str]:
    """What the relay has said below the pull request."""
    return [each.body for each in relay.github.comments(pull) if each.by_app]


def audit_entries(relay: RunningRelay, act: str) -> list[dict[str, Any]]:
    """Who did that according to the audit log, on what, with its details."""
    rows = relay.rows("SELECT who, subject, detail FROM audit WHERE act = ? ORDER BY audit_id", act)
    return [{"who": row["who"], "subject": row["subject"], **json.loads(row["detail"])} for row in rows]


async def failing_pull(relay: RunningRelay, **more: Any) -> PullRequest:
    """A pull request whose gate the gating backend has failed."""
    pull = await open_pull(relay, **more)
    await run_all(relay, build="failure")
    assert gate_state(relay, pull) == "failure"
    return pull
