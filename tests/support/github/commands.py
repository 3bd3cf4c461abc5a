"""`/crcr` commands: a pull request with a failed gate, and the relay's comments, reactions and audit entries."""

import json
from typing import Any

from github_sim.github import Comment, PullRequest
from support.github.gated_upstream import GATING, gate_state, open_pull, run_all
from support.running_relay import RunningRelay

WAIVE = f"/crcr waive {GATING} because the runner is on fire"


def reaction_names(comment: Comment) -> list[str]:
    return [each.content for each in comment.reactions]


def was_obeyed(comment: Comment) -> bool:
    """Whether the comment's only reaction is +1."""
    [only] = reaction_names(comment)
    return {"+1": True, "-1": False}[only]


def relay_comments(relay: RunningRelay, pull: PullRequest) -> list[str]:
    """The relay's comments on the pull request."""
    return [each.body for each in relay.github.comments(pull) if each.by_app]


def audit_entries(relay: RunningRelay, act: str) -> list[dict[str, Any]]:
    """The audit log's entries of this act: who, subject, details."""
    rows = relay.rows("SELECT who, subject, detail FROM audit WHERE act = ? ORDER BY audit_id", act)
    return [{"who": row["who"], "subject": row["subject"], **json.loads(row["detail"])} for row in rows]


async def failing_pull(relay: RunningRelay, **more: Any) -> PullRequest:
    """A pull request whose gate the gating backend has failed."""
    pull = await open_pull(relay, **more)
    await run_all(relay, build="failure")
    assert gate_state(relay, pull) == "failure"
    return pull
