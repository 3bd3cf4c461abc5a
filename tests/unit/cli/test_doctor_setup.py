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
    """A relay that asks GitHub at once, and at most once a minute; time passes only while somebody sleeps."""

    def __init__(self, inspected_at: datetime | None = None) -> None:
        self.now = NOW
        self.inspected_at = inspected_at
        self.posts = 0
        self.slept_s = 0.0
        self.waiting = False
        """Somebody else's question is on its way."""

    def __call__(self, request: HttpRequest) -> HttpResponse:
        date = format_datetime(self.now, usegmt=True)
        if request.method == "POST":
            self.posts += 1
            asks = not self.waiting and (not self.inspected_at or self.now - self.inspected_at >= EVERY)
            self.inspected_at = self.now if asks else self.inspected_at
            return answer(202, {"ok": True, "asked": asks}, date=date)
        at = self.inspected_at.isoformat() if self.inspected_at else None
        told: dict[str, Any] = {
            "listed": True,
            "inspected_at": at,
            "being_inspected": self.waiting,
            "findings": [],
        }
        return answer(200, told, date=date)

    def sleep(self, seconds: float) -> None:
        self.slept_s += seconds
        self.now += timedelta(seconds=seconds)
        if self.waiting:
            self.waiting, self.inspected_at = False, self.now


def read_setup(told: Exchange, *, waits: bool, sleep: Callable[[float], None]) -> FindingSection:
    request = DownstreamRequest("https://relay.example.org", RepoName("org/backend"), waits=waits)
    return setup_section(RelayClient(request, exchange=told), shown=False, sleep=sleep)


@pytest.mark.parametrize("waits", [True, False])
def test_what_is_asked_anew_is_told_without_an_age(waits: bool) -> None:
    told = FakeRelay(NOW - timedelta(hours=1))
    section = read_setup(told, waits=waits, sleep=told.sleep)
    assert (section.note, section.facts) == (None, {"inspected_at": NOW.isoformat()})
    assert (told.posts, told.slept_s) == (1, 0.0)


def test_a_script_is_told_how_old_the_answer_is() -> None:
    told = FakeRelay(NOW - timedelta(seconds=40))
    section = read_setup(told, waits=False, sleep=told.sleep)
    assert section.note == "GitHub's state 40 s ago; it is asked at most once a minute"
    assert section.facts == {"inspected_at": (NOW - timedelta(seconds=40)).isoformat()}
    assert told.slept_s == 0.0


def test_at_a_terminal_the_rest_of_the_minute_is_waited_for() -> None:
    told = FakeRelay(NOW - timedelta(seconds=40))
    section = read_setup(told, waits=True, sleep=told.sleep)
    assert section.note is None
    assert told.inspected_at == told.now
    assert (told.posts, 20 <= told.slept_s <= 22) == (2, True)


@pytest.mark.parametrize("at", [None, "2026-08-03T11:59:50+00:00", "2020-01-01T00:00:00+00:00"])
def test_whatever_a_relay_says_a_minute_is_the_longest_wait(at: str | None) -> None:
    slept: list[float] = []

    def odd(_: HttpRequest) -> HttpResponse:
        told: dict[str, Any] = {"listed": True, "inspected_at": at, "asked": False, "findings": []}
        return answer(200, told, date=format_datetime(NOW, usegmt=True))

    read_setup(odd, waits=True, sleep=slept.append)
    assert 0 < sum(slept) <= 61


def test_what_somebody_else_has_just_asked_is_as_good() -> None:
    told = FakeRelay(NOW - timedelta(days=3))
    told.waiting = True
    section = read_setup(told, waits=True, sleep=told.sleep)
    assert (section.note, told.posts) == (None, 1)


@pytest.mark.parametrize("at", [None, 7, "nonsense", "2026-08-03T12:00:00"])
def test_a_time_that_cannot_be_read_is_no_time(at: object) -> None:
    def odd(request: HttpRequest) -> HttpResponse:
        told: dict[str, Any] = {"listed": True, "inspected_at": at, "asked": False, "findings": []}
        return answer(200, told)

    section = read_setup(odd, waits=False, sleep=lambda _: None)
    assert (section.note, section.facts) == (None, {"inspected_at": None})


def test_a_relay_that_asks_to_wait_is_told_with_the_age_of_what_it_knows() -> None:
    told = FakeRelay(NOW - timedelta(hours=5))

    def full(request: HttpRequest) -> HttpResponse:
        if request.method == "POST":
            return answer(429, {"ok": False, "error": {"code": "rate_limited", "detail": "slow"}})
        return told(request)

    section = read_setup(full, waits=True, sleep=told.sleep)
    assert section.note == "GitHub's state 5 h ago; it is asked at most once a minute"
    assert [each.name for each in section.findings] == ["inspection"]
    assert told.slept_s == 0.0
