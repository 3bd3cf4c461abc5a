"""Text and figures as the pages show them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crcr.decide.model import Conclusion, JobState, Level
from crcr.decide.number_format import format_percent
from crcr.decide.statistics.figures import CountedAs, Tally, count_as, is_silent
from crcr.show.render.safe_text import safe_link, visible
from crcr.show.render.status import duration


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("a\x00b\x1b", "a␀b␛"),
        ("x\u202ey", "x[U+202E]y"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("👨‍👩‍👧", "👨‍👩‍👧"),
        ("lone \ud800", "lone [U+D800]"),
        ("xyz" * 1000, "xyz" * 666 + "xy…"),
    ],
)
def test_control_characters_become_visible(text: str, shown: str) -> None:
    assert visible(text) == shown


@given(st.text())
def test_shown_text_can_always_be_encoded(text: str) -> None:
    assert len(visible(text).encode()) >= len(text)


@pytest.mark.parametrize(
    "link", ["https://a.example/b?c=d#e", "http://127.0.0.1:8000/x", "HTTPS://A.example"]
)
def test_http_urls_are_links(link: str) -> None:
    assert safe_link(link) == link


@pytest.mark.parametrize(
    "link",
    [
        *("javascript:alert(1)", " https://a.example", "java\nscript:x", "//a.example", "data:text/html,x"),
        *("https://", "https://[", "https://a.example/\u202e", "https://a.example/ b", "/local", "", None),
        "https://a.example/" + "x" * 3000,
    ],
)
def test_any_other_text_is_no_link(link: str | None) -> None:
    assert safe_link(link) is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *(
            (None, "—"),
            (0.0, "0s"),
            (0.3, "<1s"),
            (11.0, "11s"),
            (59.4, "59s"),
            (59.6, "1m"),
            (61.0, "1m 01s"),
        ),
        *((3600.0, "1h"), (3725.0, "1h 02m"), (7_500.0, "2h 05m"), (90_000.0, "1d 01h")),
    ],
)
def test_durations_are_formatted_with_at_most_two_units(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_a_rate_below_1_is_never_rounded_up_to_100_percent() -> None:
    assert format_percent(Tally(success=9_999, failure=1).pass_rate) == "99.9%"
    assert format_percent(Tally(success=3).pass_rate) == "100.0%"
    assert format_percent(Tally(success=24, failure=1).pass_rate) == "96.0%"
    assert format_percent(Tally(success=57, failure=43).pass_rate) == "57.0%"
    assert format_percent(Tally(other=3, running=2).pass_rate) == "—"


def test_fault_43_cancelled_counts_as_neither_success_nor_failure() -> None:
    assert count_as(JobState.COMPLETED, Conclusion.CANCELLED) is CountedAs.OTHER
    assert count_as(JobState.TIMED_OUT, None) is CountedAs.FAILURE
    assert count_as(JobState.IN_PROGRESS, None) is CountedAs.RUNNING


def test_fault_42_silence_is_marked_from_l2_on() -> None:
    assert is_silent(Level.L2, ever_reported=False, unanswered=1)
    assert not is_silent(Level.L2, ever_reported=True, unanswered=2)
    assert is_silent(Level.L4, ever_reported=True, unanswered=3)
    assert not is_silent(Level.L1, ever_reported=False, unanswered=9)
