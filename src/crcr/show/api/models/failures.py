"""The JSON API's models of groups of failures over all commits."""

from crcr.decide.views import failures
from crcr.show.api.models import examples
from crcr.show.api.models.commit import KNOWN_FAILURE, SIGHTING
from crcr.show.api.models.derive import Next, derive_model
from crcr.show.api.models.shared import WithJobToken

OPEN_GROUP = derive_model(
    failures.OpenGroup,
    "OpenFailureGroup",
    "Failures with the same fingerprint over all commits.",
    types={"first_seen": SIGHTING, "last_seen": SIGHTING, "known": KNOWN_FAILURE | None},
    described={
        "sample": "The first line of one of their messages, as it was reported.",
        "jobs": "`owner/repo:job`, of its newest 50 failures.",
        "backends": "The one that failed last first.",
        "count": "How often it failed, deleted results included.",
        "known": "Null unless a maintainer linked it to an issue.",
    },
)
FAILURES = derive_model(
    failures.FailurePage,
    "Failures",
    "Groups that failed in the last 14 days and since their issue was closed, those that failed last first.",
    without=("cursor",),
    types={"next": Next},
    example=examples.FAILURES,
)
GROUP_MEMBER = derive_model(
    failures.GroupMember,
    "GroupMember",
    base=WithJobToken,
    described={"passed_at": "When the same job passed on the same commit; null where it did not."},
)
GROUP = derive_model(
    failures.GroupPage,
    "FailureGroupPage",
    "One group with its failures, newest first.",
    without=("cursor",),
    types={"next": Next},
    described={"is_open": "Whether the list of failures has it."},
    example=examples.FAILURE_GROUP,
)
