"""What of a backend's results is news in its feed."""

from datetime import UTC, datetime, timedelta

import pytest

from crcr.decide.feeds.backend_results import EventResult, ResultNews, find_news

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
RESULTS = {"p": (1, 0, 0), "f": (1, 1, 0), "o": (0, 0, 1)}


def result(place: int, letter: str, *, on_base: bool = True, running: int = 0) -> EventResult:
    passed, failed, other = RESULTS.get(letter, (0, 0, 0))
    return EventResult(
        key=f"d-{place}",
        event="push",
        number=None,
        head_sha=None,
        delivery=f"d-{place}",
        at=NOON + timedelta(minutes=place),
        passed=passed,
        failed=failed,
        other=other,
        running=running,
        first_failed=None,
        on_base=on_base,
    )


@pytest.mark.parametrize(
    ("letters", "news"),
    [
        ("", ""),
        ("p", "passed"),
        ("f", "failed"),
        ("pf", "passed, turned red"),
        ("pffp", "passed, turned red, still failing, recovered"),
        ("pofop", "passed, inconclusive, turned red, inconclusive, recovered"),
        ("fp", "failed, recovered"),
        ("-p", "passed"),
    ],
)
def test_results_of_the_base_are_told_as_changes(letters: str, news: str) -> None:
    results = [result(place, letter) for place, letter in enumerate(letters)]
    told = [each.news.value for each in reversed(find_news(results)) if each.news]
    assert ", ".join(told) == news


def test_a_pull_request_changes_nothing_for_the_base() -> None:
    results = [result(0, "p"), result(1, "f", on_base=False), result(2, "p"), result(3, "f")]
    told = [each.news for each in reversed(find_news(results))]
    assert told == [ResultNews.PASSED, ResultNews.FAILED, ResultNews.PASSED, ResultNews.TURNED_RED]


@pytest.mark.parametrize(("letter", "is_told"), [("p", False), ("f", True)])
def test_a_running_event_is_told_once_nothing_can_make_it_better(letter: str, is_told: bool) -> None:
    assert bool(find_news([result(0, letter, running=2)])) is is_told
