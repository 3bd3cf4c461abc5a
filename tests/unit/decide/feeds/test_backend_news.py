"""The results of a backend that are news in its feed."""

from datetime import UTC, datetime, timedelta

import pytest

from crcr.decide.feeds.backend_results import EventResult, ResultNews, find_news

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
RESULTS = {"p": (1, 0, 0), "f": (1, 1, 0), "o": (0, 0, 1)}


def result(position: int, letter: str, *, on_base: bool = True, running: int = 0) -> EventResult:
    passed, failed, other = RESULTS.get(letter, (0, 0, 0))
    return EventResult(
        key=f"d-{position}",
        event="push",
        number=None,
        head_sha=None,
        delivery=f"d-{position}",
        at=NOON + timedelta(minutes=position),
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
def test_results_of_the_base_are_reported_as_changes(letters: str, news: str) -> None:
    results = [result(position, letter) for position, letter in enumerate(letters)]
    kinds = [item.news.value for item in reversed(find_news(results)) if item.news]
    assert ", ".join(kinds) == news


def test_a_pull_request_result_does_not_affect_the_news_of_the_base() -> None:
    results = [result(0, "p"), result(1, "f", on_base=False), result(2, "p"), result(3, "f")]
    kinds = [item.news for item in reversed(find_news(results))]
    assert kinds == [ResultNews.PASSED, ResultNews.FAILED, ResultNews.PASSED, ResultNews.TURNED_RED]


@pytest.mark.parametrize(("letter", "is_reported"), [("p", False), ("f", True)])
def test_a_running_event_is_reported_only_once_it_has_failed(letter: str, is_reported: bool) -> None:
    assert bool(find_news([result(0, letter, running=2)])) is is_reported
