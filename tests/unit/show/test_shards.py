"""Numbered shards of one job are one group; versions and other numbers are not shards."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crcr.decide.model import Conclusion, JobState
from crcr.show.render.matrix import combine_jobs, group_columns, parse_shard
from support.data.backend_views import a_column, a_job_view


def group_names(*names: str) -> list[list[str]]:
    """Return the names in their groups, all of one workflow."""
    (section,) = group_columns([a_column(name) for name in names])
    return [[names[index] for index in group.indexes] for group in section.groups]


@pytest.mark.parametrize(
    ("names", "label"),
    [
        (("test (1, 4)", "test (2, 4)", "test (4, 4)"), "test (…, 4)"),
        (("linux / test (default, 2, 5)", "linux / test (default, 3, 5)"), "linux / test (default, …, 5)"),
        (
            ("t (default, 1, 5, linux.2xlarge)", "t (default, 5, 5, linux.2xlarge)"),
            "t (default, …, 5, linux.2xlarge)",
        ),
        (("shard 3/10", "shard 9/10"), "shard …/10"),
        (("test [1/2]", "test [2/2]"), "test […/2]"),
        (("run 1 of 3", "run 3 of 3"), "run … of 3"),
        (("part-07", "part-11"), "part-…"),
        (("Chunk 1", "Chunk 4"), "Chunk …"),
        (("e2e (1)", "e2e (2)", "e2e (3)"), "e2e (…)"),
        (("unit-0", "unit-1"), "unit-…"),
        (("py3.10 shard 1/2", "py3.10 shard 2/2"), "py3.10 shard …/2"),
    ],
)
def test_shards_of_one_job_are_one_group(names: tuple[str, ...], label: str) -> None:
    (section,) = group_columns([a_column(name) for name in names])
    (group,) = section.groups
    assert (group.label, group.is_shards, len(group.indexes)) == (label, True, len(names))


@pytest.mark.parametrize(
    "names",
    [
        ("build-py3.8", "build-py3.9", "build-py3.10"),
        ("test (18)", "test (20)", "test (22)"),
        ("cuda 11", "cuda 12"),
        ("test (3.10, cpu)", "test (3.11, cpu)"),
        ("test (1, 4)", "test (1, 5)"),
        ("shard 1/2", "shard 1/3"),
        ("build", "test", "lint"),
        ("2024-01-02", "2024-02-02"),
        ("shard 1/4",),
        ("v1", "v2"),
        ("test (9, 4)", "test (8, 4)"),
    ],
)
def test_a_column_that_is_no_shard_is_a_group_of_one(names: tuple[str, ...]) -> None:
    assert group_names(*names) == [[name] for name in names]


def test_shards_are_sorted_by_number() -> None:
    names = [f"test ({number}, 12)" for number in (10, 2, 1, 11)]
    assert group_names(*names, "build") == [[f"test ({number}, 12)" for number in (1, 2, 10, 11)], ["build"]]


def test_workflows_are_separate_sections() -> None:
    columns = [
        a_column("test 1/2", "a.yml", "A"),
        a_column("test 2/2", "b.yml", "B"),
        a_column("x", "a.yml", "A"),
    ]
    sections = group_columns(columns)
    assert [(section.name, [group.indexes for group in section.groups]) for section in sections] == [
        ("A", [(0,), (2,)]),
        ("B", [(1,)]),
    ]


NAMES = st.lists(
    st.one_of(
        st.text(max_size=12),
        st.builds("{} ({}, {})".format, st.sampled_from(["a", "b"]), st.integers(0, 12), st.integers(1, 12)),
        st.builds("{}-{}".format, st.sampled_from(["a", "part"]), st.integers(0, 5)),
    ),
    unique=True,
    max_size=30,
)


@given(NAMES)
def test_every_column_is_in_exactly_one_group_and_group_keys_differ(names: list[str]) -> None:
    groups = [
        group for section in group_columns([a_column(name) for name in names]) for group in section.groups
    ]
    indexes = [index for group in groups for index in group.indexes]
    assert sorted(indexes) == [*range(len(names))]
    assert len({group.key for group in groups}) == len(groups)


@given(NAMES)
def test_shards_of_a_group_differ_only_in_one_number(names: list[str]) -> None:
    for section in group_columns([a_column(name) for name in names]):
        for group in section.groups:
            if group.is_shards:
                shards = [parse_shard(names[index]) for index in group.indexes]
                assert {shard.family for shard in shards if shard} == {group.label}


def test_a_name_of_a_million_characters_is_no_shard() -> None:
    assert parse_shard("1/2 " * 250_000) is None


X, O, C = a_job_view("failure"), a_job_view("success"), a_job_view("cancelled")  # noqa: E741
RUNS = a_job_view(None)


@pytest.mark.parametrize(
    ("cells", "letter", "text", "passed"),
    [
        ((O, X, O, X, O), "failure", "2/5", False),
        ((O, O, O, O, O), "success", "5", True),
        ((O, O, O, O, None), "success", "4/5", False),
        ((O, O, C, O, O), "cancelled", "1/5", False),
        ((O, RUNS, O, O, O), None, "1/5", False),
        ((X, X, X, X, X), "failure", "5", False),
    ],
)
def test_a_folded_cell_shows_the_worst_result_and_its_count(
    cells: tuple[object, ...], letter: str | None, text: str, passed: bool
) -> None:
    folded = combine_jobs(cells, 5)  # type: ignore[arg-type]
    assert folded is not None
    assert (folded.worst.conclusion, folded.text, folded.all_passed) == (
        Conclusion(letter) if letter else None,
        text,
        passed,
    )


def test_a_folded_cell_without_any_report_is_empty() -> None:
    assert combine_jobs((None, None), 2) is None


def test_a_silent_shard_is_worse_than_a_running_one() -> None:
    silent = replace(RUNS, state=JobState.TIMED_OUT)
    folded = combine_jobs((RUNS, silent, O), 3)
    assert folded is not None
    assert folded.worst is silent
