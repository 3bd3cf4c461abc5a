from datetime import UTC, datetime
from typing import Any

import pytest

from crcr.decide.jobs.report import FailedTest, TestCounts
from crcr.receive.callback import report_details as details


@pytest.mark.parametrize(
    "link", ["https://ci.example/1?x=y#z", "HTTP://x", "https://x/é", "https://x/" + "y" * 2_038]
)
def test_a_web_link_is_kept_unchanged(link: str) -> None:
    assert details.link(link) == link


@pytest.mark.parametrize(
    "link",
    [
        *(
            "javascript:alert(1)",
            "ftp://x/y",
            "//x/y",
            "https://",
            "https:///x",
            "https://a b",
            5,
            ["https://x"],
        ),
        *("https://x/\u202eabc", "https://x/\n", "https://x/\0", "https://x/" + "y" * 2_048),
    ],
)
def test_an_invalid_link_is_dropped_and_the_report_accepted(link: Any) -> None:
    assert details.link(link) is None


@pytest.mark.parametrize("time", ["yesterday", "", 5, None, "0001-01-01T00:00:00+05:00", "2026-13-01", {}])
def test_an_invalid_time_is_dropped(time: Any) -> None:
    assert details.time(time) is None


def test_a_time_without_a_zone_is_utc() -> None:
    assert details.time("2026-08-01T10:00:00.5") == datetime(2026, 8, 1, 10, 0, 0, 500_000, tzinfo=UTC)


@pytest.mark.parametrize(
    ("results", "counts"),
    [
        ({"passed": "42", "failed": "x", "skipped": -1}, TestCounts(42, None, None, None)),
        ({"passed": True, "failed": 1.5, "skipped": 2**40, "total": 0}, TestCounts(None, None, None, 0)),
        ({"passed": "٣", "total": "9" * 5_000}, None),
        ({}, None),
        ([1], None),
        ("12", None),
    ],
)
def test_invalid_counts_are_dropped(results: Any, counts: TestCounts | None) -> None:
    assert details.test_counts(results) == counts


def test_failed_tests_over_the_limits_are_truncated_and_counted() -> None:
    long = {"name": "é" * 5_000, "file": "f" * 5_000, "message": "🚀" * 5_000}
    kept, cut = details.failed_tests([long] * 1_500)
    assert (len(kept), cut) == (1_000, 500)
    assert kept[0] == FailedTest("é" * 512, "f" * 1_024, "🚀" * 256)


def test_failed_tests_without_a_name_are_dropped_and_counted() -> None:
    given_tests = ["test_a", {"name": "b\0", "file": 3}, {"file": "x"}, 5, None, {"name": ""}]
    kept, cut = details.failed_tests(given_tests)
    assert kept == (FailedTest("test_a", None, None), FailedTest("b\ufffd", None, None))
    assert cut == 4


@pytest.mark.parametrize("environment", [{}, [], "npu", 5, {"x": "y" * 4_096}, {"nul": "\0"}])
def test_an_invalid_environment_is_dropped(environment: Any) -> None:
    assert details.environment(environment) is None


@pytest.mark.parametrize(
    ("check", "text"),
    [("1-2", "1-2"), (456, "456"), ("x" * 257, None), (True, None), (1.5, None), ("\0", None)],
)
def test_the_check_run_of_the_body_is_kept_as_text_only(check: Any, text: str | None) -> None:
    assert details.check_run_text(check) == text
