"""The doctor's test dispatch without an answer: it names a refusal only if it came after the test began."""

from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest

from crcr.cli.doctor.downstream.relay_api import DownstreamRequest, RelayClient
from crcr.cli.doctor.downstream.round_trip import RoundTrip
from crcr.decide.model import RepoName
from support.downstream.relay_answers import answer

BEGAN = "2026-08-03T12:00:00Z"
REFUSAL = {"name": "refusal", "state": "problem", "text": "A report was refused.", "hint": "do this"}


def finding_names(refusals: Any) -> list[str]:
    """Return the names of the findings when a test was sent and no job was reported."""
    sent = {"state": "sent", "level": "L2", "created_at": BEGAN, "sent_at": BEGAN, "jobs": []}
    answers: dict[str, Any] = {
        "/api/v1/deliveries/d": {"dispatches": [sent]},
        "/api/v1/setup/org/backend": {"listed": True, "findings": [REFUSAL]},
        "/api/v1/backends/org/backend/refusals": refusals,
    }
    relay = RelayClient(
        DownstreamRequest("https://relay.example.org", RepoName("org/backend")),
        exchange=lambda request: answer(200, answers[urlsplit(request.url).path]),
    )
    return [finding.name for finding in RoundTrip(relay, "d", shown=False).follow(timedelta(0))]


def make_refusal(at: Any, *, settled: bool = False) -> dict[str, Any]:
    return {"at": at, "settled": settled, "code": "claim_mismatch"}


def test_a_refusal_after_the_start_of_the_test_is_shown() -> None:
    before = make_refusal("2026-08-03T11:00:00Z")
    assert finding_names({"refusals": [make_refusal("2026-08-03T12:00:01.5Z"), before]}) == [
        "test",
        "refusal",
    ]


@pytest.mark.parametrize(
    "refusals",
    [
        {"refusals": []},
        {"refusals": [make_refusal("2026-08-03T11:59:59Z")]},
        {"refusals": [make_refusal("2026-08-03T12:00:01Z", settled=True)]},
        {"refusals": [make_refusal("soon")]},
        {"refusals": [make_refusal("2026-08-03T13:00:00")]},
        {"refusals": [make_refusal(5)]},
        {"refusals": 5},
        [],
    ],
)
def test_older_settled_or_malformed_refusals_are_not_shown(refusals: Any) -> None:
    assert finding_names(refusals) == ["test"]
