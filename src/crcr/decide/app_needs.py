"""What the relay's GitHub App must be allowed and told, as docs/examples/app-manifest.json asks for it."""

from collections.abc import Mapping
from types import MappingProxyType

from crcr.decide.inspection import RIGHTS_IN_ORDER

ALWAYS: Mapping[str, str] = MappingProxyType(
    {"metadata": "read", "contents": "write", "pull_requests": "write"}
)
TO_SPEAK: Mapping[str, str] = MappingProxyType(
    {"checks": "write", "statuses": "write", "actions": "write", "merge_queues": "read"}
)
"""Needed once somebody is at L3 or L4."""
EVENTS_ALWAYS = ("pull_request", "push", "repository")
EVENTS_TO_SPEAK = (
    "merge_group", "check_run", "check_suite", "issue_comment", "workflow_run", "workflow_job",
)  # fmt: skip


def lacking(granted: Mapping[str, str], wanted: Mapping[str, str]) -> tuple[str, ...]:
    """Return `name: right` for each that is not granted, or not so far."""
    rank = {name: place for place, name in enumerate(RIGHTS_IN_ORDER)}
    return tuple(
        f"{name}: {right}"
        for name, right in wanted.items()
        if rank.get(granted.get(name, ""), -1) < rank[right]
    )
