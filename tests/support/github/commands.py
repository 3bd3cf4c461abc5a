"""Helpers for tests of `/crcr` commands: a blocked pull request, and the relay's comments and reactions."""

import json
from typing import Any

from github_sim.github import Comment, PullRequest
from support.github.gated_upstream import GATING, Stage, gate_state, open_pull, run_all

WAIVE = f"/crcr waive {GATING} because the runner is on fire"


def reaction_names(comment: Comment) -> list[str]:
    return [each.content for each in comment.reactions]


def was_obeyed(comment: Comment) -> bool:
    """Whether the one reaction says so."""
    [only] = reaction_names(comment)
    return {"+1": True, "-1": False}[only]


def relay_comments(it: Stage, pull: PullRequest) -> list[str]:
    """What the relay has said below the pull request."""
    return [each.body for each in it.github.comments(pull) if each.by_app]


def audit_entries(it: Stage, act: str) -> list[dict[str, Any]]:
    """Who did that according to the audit log, on what, with its details."""
    rows = it.rows("SELECT who, subject, detail FROM audit WHERE act = ? ORDER BY audit_id", act)
    return [{"who": row["who"], "subject": row["subject"], **json.loads(row["detail"])} for row in rows]


async def failing_pull(it: Stage, **more: Any) -> PullRequest:
    """A pull request whose gate the gating backend has failed."""
    pull = await open_pull(it, **more)
    await run_all(it, build="failure")
    assert gate_state(it, pull) == "failure"
    return pull
