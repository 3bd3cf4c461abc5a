"""Sorting tables of backends: unknown values last, the worst first, the order in the query."""

import pytest

from crcr.decide.model import Level
from crcr.decide.statistics.figures import Tally
from crcr.decide.views.overview import BackendSummary
from crcr.show.urls.sorting import NUMBERS, SortOrder, TableFilters, arrange, pick_level, pick_order, tabulate
from support.data.overview_views import backend_summary, every_state, figures

GOOD = backend_summary("b/good", figures=figures(Tally(success=9)))
BAD = backend_summary("c/bad", figures=figures(Tally(success=1, failure=9)))
EMPTY = backend_summary("a/empty")
TOLD = backend_summary("d/told", Level.L1)


def backend_names(rows: tuple[BackendSummary, ...]) -> list[str]:
    return [str(row.name) for row in rows]


@pytest.mark.parametrize("down", [False, True])
def test_unknown_values_are_last_in_both_directions(down: bool) -> None:
    rows = backend_names(arrange((EMPTY, GOOD, TOLD, BAD), SortOrder("rate", down)))
    assert rows == [*(["b/good", "c/bad"] if down else ["c/bad", "b/good"]), "a/empty", "d/told"]


@pytest.mark.parametrize("column", ["name", *NUMBERS])
@pytest.mark.parametrize("down", [False, True])
def test_sorting_by_any_column_keeps_every_backend(column: str, down: bool) -> None:
    backends = every_state().backends
    assert sorted(backend_names(arrange(backends, SortOrder(column, down)))) == sorted(
        backend_names(backends)
    )


def test_backends_are_grouped_by_level_with_the_worst_first() -> None:
    silent = backend_summary("z/silent", silent=True)
    gate = backend_summary("z/gate", Level.L4, figures=figures(Tally(success=1)))
    table = tabulate((EMPTY, GOOD, TOLD, silent, BAD, gate), TableFilters())
    assert [(level, backend_names(rows)) for level, rows in table.groups] == [
        (Level.L4, ["z/gate"]),
        (Level.L2, ["z/silent", "c/bad", "b/good", "a/empty"]),
        (Level.L1, ["d/told"]),
    ]


def test_a_table_sorted_by_a_column_mixes_the_levels() -> None:
    table = tabulate((EMPTY, GOOD, TOLD, BAD), TableFilters(SortOrder("name", down=False)))
    assert [(level, backend_names(rows)) for level, rows in table.groups] == [
        (None, ["a/empty", "b/good", "c/bad", "d/told"])
    ]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"q": "GOOD"}, ["b/good"]),
        ({"q": "npu"}, ["x/one"]),
        ({"q": "ada"}, ["x/one"]),
        ({"level": "L1"}, ["d/told"]),
        ({"level": "1", "q": "good"}, []),
        ({"level": "9"}, ["b/good", "d/told", "x/one"]),
        ({"q": ""}, ["b/good", "d/told", "x/one"]),
    ],
)
def test_the_query_filters_the_table(query: dict[str, str], expected: list[str]) -> None:
    backend = backend_summary("x/one", hardware="NPU 910B", oncalls=("Ada",))
    table = tabulate((GOOD, TOLD, backend), TableFilters.from_query(query))
    assert sorted(name for _, rows in table.groups for name in backend_names(rows)) == expected
    assert (table.shown, table.total) == (len(expected), 3)


def test_a_click_on_a_column_sorts_worst_first_and_reverses_it_the_next_time() -> None:
    assert SortOrder().after_click("failure") == SortOrder("failure", down=True)
    assert SortOrder("failure", down=True).after_click("failure") == SortOrder("failure", down=False)
    assert SortOrder().after_click("rate") == SortOrder("rate", down=False)
    assert SortOrder("rate", down=False).after_click("name") == SortOrder("name", down=False)


def test_an_unknown_order_or_level_is_the_default() -> None:
    assert [pick_order(value) for value in (None, "", "-", "level", "-level", "nonsense")] == [
        SortOrder()
    ] * 6
    assert [pick_level(value) for value in (None, "", "L5", "x")] == [None] * 4


def test_links_keep_the_other_filters_and_leave_defaults_out() -> None:
    filters = TableFilters.from_query({"sort": "-failure", "q": " npu ", "level": "l3"})
    assert filters.query() == {"sort": "-failure", "q": "npu", "level": "L3"}
    assert filters.query(level="") == {"sort": "-failure", "q": "npu"}
    assert filters.sorted_by("level") == {"q": "npu", "level": "L3"}
    assert TableFilters().query() == {}
