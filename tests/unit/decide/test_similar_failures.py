"""Similar failures are grouped across jobs and backends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crcr.decide.model import Conclusion
from crcr.decide.statistics.similar_failures import Alike, group_similar_failures, normal_line
from crcr.decide.views.overview import JobView
from support.data.backend_views import a_failure, a_job_view


def grouped_failures(*jobs: JobView) -> list[tuple[str, str, int]]:
    return [(group.alike.value, group.what, len(group.jobs)) for group in group_similar_failures(jobs)]


def test_the_same_test_in_two_backends_is_one_group() -> None:
    one = a_failure("a", ("test_add", "boom at 0x1f"), downstream="org/one")
    two = a_failure("b", ("test_add", None), downstream="org/two")
    (group,) = group_similar_failures([one, two])
    assert (group.alike, group.what, group.sample) == (Alike.TEST, "test_add", "boom at 0x1f")
    assert group.jobs == (one, two)
    assert group.backends == ("org/one", "org/two")


def test_one_failure_alone_is_no_group() -> None:
    assert (
        grouped_failures(
            a_failure("a", ("test_add", "boom")), a_failure("b", ("test_sub", "other words here"))
        )
        == []
    )


def test_a_test_that_fails_twice_in_one_job_is_one_job() -> None:
    assert grouped_failures(a_failure("a", ("test_add", "x"), ("test_add", "y"))) == []


def test_parameters_of_a_test_make_no_difference() -> None:
    assert grouped_failures(
        a_failure("a", ("test_add[cpu]", None)), a_failure("b", ("test_add[npu-3]", None))
    ) == [("test", "test_add", 2)]


def test_the_same_message_of_other_tests_is_a_group() -> None:
    one = a_failure("a", ("test_a", "RuntimeError: no kernel on device 3 at /home/x/y.py:12"))
    two = a_failure("b", ("test_b", "RuntimeError: no kernel on device 7 at /opt/w/z.py:99\nmore"))
    assert grouped_failures(one, two) == [
        ("message", "runtimeerror: no kernel on device <n> at <path>:<n>", 2)
    ]


def test_a_message_that_says_no_more_than_a_test_is_left_out() -> None:
    one = a_failure("a", ("test_a", "RuntimeError: no kernel on device 3"))
    two = a_failure("b", ("test_a", "RuntimeError: no kernel on device 4"))
    assert grouped_failures(one, two) == [("test", "test_a", 2)]


def test_the_biggest_group_is_first_and_the_same_jobs_are_told_once() -> None:
    many = [a_failure(str(each), ("test_z", None), ("test_y", None)) for each in range(3)]
    few = [a_failure(f"few {each}", ("test_a", None)) for each in range(2)]
    assert grouped_failures(*few, *many) == [("test", "test_z", 3), ("test", "test_a", 2)]


@pytest.mark.parametrize(
    "job",
    [
        a_job_view("success", "b"),
        a_job_view(None, "b"),
        a_failure("b"),
        a_failure("b", ("test_add", None), expected=Conclusion.FAILURE),
    ],
)
def test_only_jobs_that_failed_and_say_how_are_compared(job: JobView) -> None:
    assert grouped_failures(a_failure("a", ("test_add", None)), job) == []


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("\n\n  AssertionError: 0.25 != 1e-05  \nrest", "assertionerror: <n> != <n>"),
        ("cannot open /usr/lib/x.so.6: 0xDEADBEEF", "cannot open <path>: <hex>"),
        ("commit 3f2a9bc81d is bad somehow", "commit <hex> is bad somehow"),
        ("see https://ci.example/run/17?x=1 for more", "see <link> for more"),
        ("took 00:12:33 on host12", "took <n> on host<n>"),
        ("deadbeef feedface said the cafe", "deadbeef feedface said the cafe"),
        *((text, None) for text in (None, "", "  \n ", "12 34", "0x12: 7", "failed")),
    ],
)
def test_what_differs_from_run_to_run_is_taken_out(text: str | None, line: str | None) -> None:
    assert normal_line(text) == line


@given(st.text(max_size=2_000))
def test_any_message_can_be_compared(text: str) -> None:
    line = normal_line(text)
    assert line is None or normal_line(line) is not None or "<" in line
