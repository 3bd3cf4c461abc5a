"""Sorting tables of backends: unknown values last, the worst first, the order in the address."""

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


def names(rows: tuple[BackendSummary, ...]) -> list[str]:
    return [str(each.name) for each in rows]


@pytest.mark.parametrize("down", [False, True])
def test_what_is_not_known_is_last_either_way(down: bool) -> None:
    rows = names(arrange((EMPTY, GOOD, TOLD, BAD), SortOrder("rate", down)))
    assert rows == [*(["b/good", "c/bad"] if down else ["c/bad", "b/good"]), "a/empty", "d/told"]


@pytest.mark.parametrize("column", ["name", *NUMBERS])
@pytest.mark.parametrize("down", [False, True])
def test_every_column_sorts_and_loses_nobody(column: str, down: bool) -> None:
    everyone = every_state().backends
    assert sorted(names(arrange(everyone, SortOrder(column, down)))) == sorted(names(everyone))


def test_levels_stand_apart_and_the_worst_is_first() -> None:
    silent = backend_summary("z/silent", silent=True)
    gate = backend_summary("z/gate", Level.L4, figures=figures(Tally(success=1)))
    table = tabulate((EMPTY, GOOD, TOLD, silent, BAD, gate), TableFilters())
    assert [(level, names(rows)) for level, rows in table.groups] == [
        (Level.L4, ["z/gate"]),
        (Level.L2, ["z/silent", "c/bad", "b/good", "a/empty"]),
        (Level.L1, ["d/told"]),
    ]


def test_a_sorted_table_mixes_the_levels() -> None:
    table = tabulate((EMPTY, GOOD, TOLD, BAD), TableFilters(SortOrder("name", down=False)))
    assert [(level, names(rows)) for level, rows in table.groups] == [
        (None, ["a/empty", "b/good", "c/bad", "d/told"])
    ]


@pytest.mark.parametrize(
    ("asked", "found"),
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
def test_the_address_narrows_the_table(asked: dict[str, str], found: list[str]) -> None:
    one = backend_summary("x/one", hardware="NPU 910B", oncalls=("Ada",))
    table = tabulate((GOOD, TOLD, one), TableFilters.from_query(asked))
    assert sorted(name for _, rows in table.groups for name in names(rows)) == found
    assert (table.shown, table.total) == (len(found), 3)


def test_a_click_turns_a_column_around_and_begins_with_what_one_looks_for() -> None:
    assert SortOrder().after_click("failure") == SortOrder("failure", down=True)
    assert SortOrder("failure", down=True).after_click("failure") == SortOrder("failure", down=False)
    assert SortOrder().after_click("rate") == SortOrder("rate", down=False)
    assert SortOrder("rate", down=False).after_click("name") == SortOrder("name", down=False)


def test_what_cannot_be_asked_for_is_the_default() -> None:
    assert [pick_order(asked) for asked in (None, "", "-", "level", "-level", "nonsense")] == [
        SortOrder()
    ] * 6
    assert [pick_level(asked) for asked in (None, "", "L5", "x")] == [None] * 4


def test_links_keep_the_rest_of_the_choice_and_leave_defaults_out() -> None:
    choice = TableFilters.from_query({"sort": "-failure", "q": " npu ", "level": "l3"})
    assert choice.query() == {"sort": "-failure", "q": "npu", "level": "L3"}
    assert choice.query(level="") == {"sort": "-failure", "q": "npu"}
    assert choice.sorted_by("level") == {"q": "npu", "level": "L3"}
    assert TableFilters().query() == {}
