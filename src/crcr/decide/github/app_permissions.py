"""What the relay's GitHub App must be allowed and told, as docs/examples/app-manifest.json asks for it."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from crcr.decide.allowlist.entries import AllowlistEntry
from crcr.decide.github.inspection import RIGHTS_IN_ORDER
from crcr.decide.model import Level

PERMISSIONS_ALWAYS: Mapping[str, str] = MappingProxyType(
    {"metadata": "read", "contents": "write", "pull_requests": "write"}
)
PERMISSIONS_FOR_CHECKS: Mapping[str, str] = MappingProxyType(
    {"checks": "write", "statuses": "write", "actions": "write", "merge_queues": "read"}
)
"""Needed once somebody is at L3 or L4."""
EVENTS_ALWAYS = ("pull_request", "push", "repository")
EVENTS_FOR_CHECKS = (
    "merge_group", "check_run", "check_suite", "issue_comment", "workflow_run", "workflow_job",
)  # fmt: skip


def missing_permissions(granted: Mapping[str, str], wanted: Mapping[str, str]) -> tuple[str, ...]:
    """Return `name: right` for each that is not granted, or not so far."""
    rank = {name: place for place, name in enumerate(RIGHTS_IN_ORDER)}
    return tuple(
        f"{name}: {right}"
        for name, right in wanted.items()
        if rank.get(granted.get(name, ""), -1) < rank[right]
    )


@dataclass(frozen=True, slots=True)
class Shortfall:
    """What an installation lacks, and what comes of it."""

    missing: tuple[str, ...]
    meaning: str
    is_fatal: bool
    """Nothing can be sent, or the gate cannot be judged; otherwise the relay makes do."""


def downstream_shortfall(granted: Mapping[str, str], entry: AllowlistEntry) -> Shortfall | None:
    """Judge the App's rights on a downstream by what its level asks of them; None where nothing is missing."""
    actions = {"actions": "write"} if entry.level >= Level.L3 else {}
    missing = missing_permissions(granted, {"contents": "write", **actions})
    if not missing:
        return None
    if missing_permissions(granted, {"contents": "write"}):
        text = "The App may not write Contents there, without which GitHub takes no repository_dispatch."
        return Shortfall(missing, text, is_fatal=True)
    if missing_permissions(granted, {"actions": "read"}):
        text = "The App may not read Actions there, so results cannot be held against GitHub's own view"
        if entry.level >= Level.L4 and not entry.names_jobs:
            advice = "name its `jobs` literally, or grant Actions: read"
            return Shortfall(
                missing, f"{text}, and the gate cannot tell when all is over: {advice}.", is_fatal=True
            )
        return Shortfall(missing, f"{text}.", is_fatal=False)
    text = "The App may not write Actions there: re-runs become fresh dispatches."
    return Shortfall(missing, text, is_fatal=False)
