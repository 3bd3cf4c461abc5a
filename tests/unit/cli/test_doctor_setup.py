"""Age of the doctor's set-up findings: a new inspection is requested, awaited, or the age of the old one is shown."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from crcr.cli.doctor.downstream.examine import setup_section
from crcr.cli.doctor.downstream.relay_api import DownstreamRequest, RelayClient
from crcr.cli.doctor.output import FindingSection
from crcr.cli.http_client import Exchange, HttpRequest, HttpResponse
from crcr.decide.model import RepoName
from support.downstream.relay_answers import answer

NOW = datetime(2026, 8, 3, 12, tzinfo=UTC)
EVERY = timedelta(minutes=1)


class FakeRelay:
    """A relay that inspects at once, and at most once a minute; time passes only in `sleep`."""

    def __init__(self, inspected_at: datetime | None = None) -> None:
        self.now = NOW
        self.inspected_at = inspected_at
        self.posts = 0
        self.slept_s = 0.0
        self.waiting = False
        """An inspection that another client requested is running."""

    def __call__(self, request: HttpRequest) -> HttpResponse:
        date = format_datetime(self.now, usegmt=True)
        if request.method == "POST":
            self.posts += 1
            asks = not self.waiting and (not self.inspected_at or self.now - self.inspected_at >= EVERY)
            self.inspected_at = self.now if asks else self.inspected_at
            return answer(202, {"ok": True, "asked": asks}, date=date)
        at = self.inspected_at.isoformat() if self.inspected_at else None
        setup: dict[str, Any] = {
            "listed": True,
            "inspected_at": at,
            "being_inspected": self.waiting,
            "findings": [],
        }
        return answer(200, setup, date=date)

    def sleep(self, seconds: float) -> None:
        self.slept_s += seconds
        self.now += timedelta(seconds=seconds)
        if self.waiting:
            self.waiting, self.inspected_at = False, self.now


def read_setup(exchange: Exchange, *, waits: bool, sleep: Callable[[float], None]) -> FindingSection:
    request = DownstreamRequest("https://relay.example.org", RepoName("org/backend"), waits=waits)
    return setup_section(RelayClient(request, exchange=exchange), shown=False, sleep=sleep)


@pytest.mark.parametrize("waits", [True, False])
def test_findings_of_a_new_inspection_are_shown_without_an_age(waits: bool) -> None:
    relay = FakeRelay(NOW - timedelta(hours=1))
    section = read_setup(relay, waits=waits, sleep=relay.sleep)
    assert (section.note, section.facts) == (None, {"inspected_at": NOW.isoformat()})
    assert (relay.posts, relay.slept_s) == (1, 0.0)


def test_a_script_gets_the_age_of_a_recent_inspection_without_waiting() -> None:
    relay = FakeRelay(NOW - timedelta(seconds=40))
    section = read_setup(relay, waits=False, sleep=relay.sleep)
    assert section.note == "GitHub's state 40 s ago; it is asked at most once a minute"
    assert section.facts == {"inspected_at": (NOW - timedelta(seconds=40)).isoformat()}
    assert relay.slept_s == 0.0


def test_a_terminal_waits_for_the_rest_of_the_minute() -> None:
    relay = FakeRelay(NOW - timedelta(seconds=40))
    section = read_setup(relay, waits=True, sleep=relay.sleep)
    assert section.note is None
    assert relay.inspected_at == relay.now
    assert (relay.posts, 20 <= relay.slept_s <= 22) == (2, True)


@pytest.mark.parametrize("at", [None, "2026-08-03T11:59:50+00:00", "2020-01-01T00:00:00+00:00"])
def test_the_wait_for_an_inspection_is_at_most_a_minute(at: str | None) -> None:
    slept: list[float] = []

    def respond(_: HttpRequest) -> HttpResponse:
        setup: dict[str, Any] = {"listed": True, "inspected_at": at, "asked": False, "findings": []}
        return answer(200, setup, date=format_datetime(NOW, usegmt=True))

    read_setup(respond, waits=True, sleep=slept.append)
    assert 0 < sum(slept) <= 61


def test_an_inspection_requested_by_another_client_is_awaited() -> None:
    relay = FakeRelay(NOW - timedelta(days=3))
    relay.waiting = True
    section = read_setup(relay, waits=True, sleep=relay.sleep)
    assert (section.note, relay.posts) == (None, 1)


@pytest.mark.parametrize("at", [None, 7, "nonsense", "2026-08-03T12:00:00"])
def test_a_malformed_inspection_time_is_ignored(at: object) -> None:
    def respond(request: HttpRequest) -> HttpResponse:
        setup: dict[str, Any] = {"listed": True, "inspected_at": at, "asked": False, "findings": []}
        return answer(200, setup)

    section = read_setup(respond, waits=False, sleep=lambda _: None)
    assert (section.note, section.facts) == (None, {"inspected_at": None})


def test_a_rate_limited_inspection_is_shown_with_the_age_of_the_previous_one() -> None:
    relay = FakeRelay(NOW - timedelta(hours=5))

    def respond_to_limited(request: HttpRequest) -> HttpResponse:
        if request.method == "POST":
            return answer(429, {"ok": False, "error": {"code": "rate_limited", "detail": "slow"}})
        return relay(request)

    section = read_setup(respond_to_limited, waits=True, sleep=relay.sleep)
    assert section.note == "GitHub's state 5 h ago; it is asked at most once a minute"
    assert [finding.name for finding in section.findings] == ["inspection"]
    assert relay.slept_s == 0.0
