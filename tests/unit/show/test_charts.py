"""Charts: round ticks, gaps instead of zeros, foreign names as text, and a table with the same values as the picture."""

import re
from dataclasses import replace
from datetime import timedelta
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crcr.decide.statistics.figures import Tally
from crcr.show.render.charts import Chart, Series, Unit, draw, format_value, ticks
from crcr.show.render.trend_charts import backend_charts, draw_strip, trend_charts
from support.data.overview_views import NOW, figures
from support.page_reader import HOSTILE, ParsedPage, assert_inert


def make_chart(*values: float | None, unit: Unit = Unit.COUNT, **more: object) -> Chart:
    starts = tuple(NOW + index * timedelta(days=1) for index in range(len(values)))
    chart_of_values = Chart(title="Things", starts=starts, series=(Series("some", values, "a"),), unit=unit)
    return replace(chart_of_values, **more)  # type: ignore[arg-type]


class Cells(HTMLParser):
    """The cell texts of a table's body, row by row."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self._in_body = self._in_cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in_body = self._in_body or tag == "tbody"
        if tag == "tr" and self._in_body:
            self.rows.append([])
        self._in_cell = tag in {"td", "th"} and self._in_body

    def handle_data(self, data: str) -> None:
        if self._in_cell:
            self.rows[-1].append(data)

    def handle_endtag(self, tag: str) -> None:
        self._in_cell = False


@pytest.mark.parametrize(
    ("most", "unit", "expected"),
    [
        (0, Unit.COUNT, (0, 1)),
        (3, Unit.COUNT, (0, 1, 2, 3)),
        (23, Unit.COUNT, (0, 5, 10, 15, 20, 25)),
        (2_560, Unit.COUNT, (0, 1_000, 2_000, 3_000)),
        (0.4, Unit.RATE, (0, 0.25, 0.5, 0.75, 1)),
        (50, Unit.SECONDS, (0, 10, 20, 30, 40, 50)),
        (4_000, Unit.SECONDS, (0, 900, 1_800, 2_700, 3_600, 4_500)),
        (900_000, Unit.SECONDS, (0, 432_000, 864_000, 1_296_000)),
    ],
)
def test_ticks_are_round(most: float, unit: Unit, expected: tuple[float, ...]) -> None:
    assert ticks(most, unit) == expected


@given(st.floats(0, 1e7), st.sampled_from([Unit.COUNT, Unit.SECONDS]))
def test_ticks_reach_the_highest_value_in_at_most_five_even_steps(most: float, unit: Unit) -> None:
    values = ticks(most, unit)
    assert values[0] == 0
    assert values[-1] >= most
    assert 2 <= len(values) <= 6
    assert len({round(high - low, 6) for low, high in pairwise(values)}) == 1


def test_an_unknown_value_is_a_gap_in_the_line_and_never_a_zero() -> None:
    drawn = draw(make_chart(4, 4, None, 4, 4, 4))
    lines = re.findall(r'<polyline class="line a" points="([^"]+)"', drawn)
    assert [len(line.split()) for line in lines] == [2, 3]
    floor = re.search(r'class="floor"[^>]* y1="([^"]+)"', drawn)
    assert floor
    assert not any(point.endswith(f",{floor[1]}") for line in lines for point in line.split())
    assert "some: no data" in drawn


def test_a_single_value_between_gaps_is_drawn_as_a_mark() -> None:
    drawn = draw(make_chart(None, 5, None))
    assert "<polyline" not in drawn
    assert drawn.count("<circle") == 1


def test_a_known_zero_is_drawn_as_zero() -> None:
    drawn = draw(make_chart(0, 4))
    assert "some: 0" in drawn
    assert "no data" not in drawn


def test_without_any_value_no_plot_is_drawn() -> None:
    for empty in (make_chart(None, None), make_chart()):
        drawn = draw(empty)
        assert "No data in this range" in drawn
        assert '<svg class="plot"' not in drawn


def test_stacked_layers_touch_and_have_proportional_heights() -> None:
    starts = (NOW,)
    series = (Series("good", (30.0,), "ok"), Series("bad", (20.0,), "bad"))
    drawn = draw(Chart(title="Things", starts=starts, series=series, unit=Unit.COUNT, stacked=True))
    rects = re.findall(
        r'<rect class="layer (\w+)" x="[^"]+" y="([^"]+)" width="[^"]+" height="([^"]+)"/>', drawn
    )
    boxes = {
        css_class: (float(y), float(height))
        for css_class, y, height in rects
        if css_class in {"ok", "bad"} and y != "0"
    }
    assert boxes["bad"][0] + boxes["bad"][1] == pytest.approx(boxes["ok"][0])
    assert boxes["bad"][1] / boxes["ok"][1] == pytest.approx(2 / 3, abs=0.02)


@given(st.lists(st.one_of(st.none(), st.floats(0, 1e6)), min_size=1, max_size=40), st.sampled_from(Unit))
def test_the_table_has_the_same_values_as_the_picture(values: list[float | None], unit: Unit) -> None:
    shown = [value if value is None or unit is not Unit.RATE else value / 1e6 for value in values]
    drawn = draw(make_chart(*shown, unit=unit))
    rows = Cells(drawn).rows
    if any(value is not None for value in shown):
        assert [row[1] for row in rows] == [format_value(value, unit) for value in shown]
        titles = re.findall(r"<title>[^<]*some: ([^<]*)</title>", drawn)
        assert titles == ["no data" if text == "—" else text.replace("<", "&lt;") for _, text in rows]


def test_series_differ_by_mark_and_name_and_not_by_colour_alone() -> None:
    two = (Series("P50", (1.0, 2.0), "a"), Series("P95", (3.0, 4.0), "b"))
    drawn = draw(Chart(title="Times", starts=(NOW, NOW), series=two, unit=Unit.SECONDS))
    assert 'class="mark-a"><circle' in drawn
    assert 'class="mark-b"><rect' in drawn
    assert all(name in drawn for name in ("P50", "P95"))


@pytest.mark.parametrize("hostile", HOSTILE, ids=range(len(HOSTILE)))
def test_fault_29_hostile_names_stay_text_in_a_chart(hostile: str) -> None:
    series = (Series(hostile, (1.0,), "a"), Series("other", (2.0,), "b"))
    drawn = str(draw(Chart(title="Things", starts=(NOW,), series=series, unit=Unit.COUNT)))
    assert_inert(ParsedPage(drawn), drawn)
    assert len(drawn) < 10_000


def test_a_chart_has_an_aria_label_with_its_range_and_values() -> None:
    page = ParsedPage(draw(make_chart(1, None, 3)))
    svg = next(attrs for tag, attrs in page.elements if attrs.get("role") == "img")
    assert svg["aria-label"] == "Things, Jul 1, 12:20 UTC to Jul 3, 12:20 UTC: some between 1 and 3, last 3"


def test_figures_are_drawn_as_all_their_charts() -> None:
    window_figures = figures(Tally(success=3, failure=1, timed_out=1), None, Tally(success=2))
    drawn = trend_charts(window_figures)
    titles = [re.search(r"<figcaption><b>([^<]+)</b>", chart_html) for chart_html in drawn]
    names = [title[1] for title in titles if title]
    assert names == ["Pass rate", "Results", "Queue time", "Run time", "Timeouts", "Dispatch delay"]
    assert "75%" in drawn[0]
    own = backend_charts(window_figures, lambda day: f"?day={day}&x=1")
    assert len(own) == 4
    days = [f"{part.at:%Y-%m-%d}" for part in window_figures.parts]
    assert [*dict.fromkeys(re.findall(r'<th scope="row"><a href="[?]day=([^&]+)&amp;x=1">', own[0]))] == days
    assert "?day=" not in drawn[0]


def test_a_strip_has_an_aria_label_with_its_rates() -> None:
    page = ParsedPage(draw_strip((Tally(), Tally(success=1, failure=1), Tally(success=4)), "14d"))
    label = page.attributes("aria-label")[0]
    assert label == "Pass rate over 14d in 3 parts: lowest 50.0%, latest 100.0%, 1 without results"
    assert page.attributes("class").count("part-none") == 1
    nothing = draw_strip((Tally(),) * 14, "14d")
    assert "part-ok" not in nothing
    assert "no results" in nothing


def test_one_failure_among_thousands_is_visible_in_a_strip() -> None:
    assert "part-bad" in draw_strip((Tally(success=9_999, failure=1),), "14d")
    assert "part-bad" not in draw_strip((Tally(success=9_999),), "14d")
