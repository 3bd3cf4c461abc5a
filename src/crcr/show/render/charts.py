"""Charts drawn on the server: lines and stacked bars over time, as SVG with a table behind them.

Pure functions from values to markup. An unknown value leaves a gap and is never drawn as zero. Colour is a class and
never the only sign: each series has its own mark and its name in the legend. Every part of the time axis carries its values
as a `<title>`, and the table holds the same numbers.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache

from markupsafe import Markup, escape

from crcr.decide.number_format import format_percent
from crcr.show.render.markup import escape_link
from crcr.show.render.safe_text import visible
from crcr.show.render.status import duration

WIDTH, HEIGHT = 480, 184
LEFT, RIGHT, TOP, BOTTOM = 52, 8, 10, 28
_FLOOR = HEIGHT - BOTTOM
_MOST_TICKS = 5
_MOST_DATES = 6
_GAP = 1.5
_KEPT_DATES = 2_048
_MARKS_UPTO = 45
"""With more parts than this the marks of a line would overlap, so only single values get one."""

Number = float | None


class Unit(StrEnum):
    COUNT = "count"
    RATE = "rate"
    SECONDS = "seconds"


@dataclass(frozen=True, slots=True)
class Series:
    """One line or layer; `look` is the CSS class of its colour, mark and dash."""

    name: str
    values: tuple[Number, ...]
    look: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart over parts of equal width that begin at `starts`."""

    title: str
    starts: tuple[datetime, ...]
    series: tuple[Series, ...]
    unit: Unit
    stacked: bool = False
    note: str = ""
    """What the numbers mean, in a few words."""
    links: tuple[str, ...] = ()
    """The address of the day of each part: the table's rows link to it, and a script has a click on a part follow it."""


def format_value(value: Number, unit: Unit) -> str:
    """Format a value; a dash for an unknown one."""
    if value is None:
        return "—"
    if unit is Unit.RATE:
        return format_percent(value)
    return duration(value) if unit is Unit.SECONDS else f"{value:,.0f}"


_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 28_800, 43_200, 86_400)


def ticks(most: float, unit: Unit) -> tuple[float, ...]:
    """Return round values from zero to the first that reaches `most`, in at most five steps."""
    if unit is Unit.RATE:
        return (0.0, 0.25, 0.5, 0.75, 1.0)
    step = _choose_step(most, unit)
    count = max(1, -int(-most // step))
    return tuple(step * index for index in range(count + 1))


def _choose_step(most: float, unit: Unit) -> float:
    if unit is Unit.SECONDS:
        fitting = (float(step) for step in _STEPS_S if most <= step * _MOST_TICKS)
        fitting_step = next(fitting, None)
        if fitting_step is not None:
            return fitting_step
        return 86_400 * _choose_step(most / 86_400, Unit.COUNT)
    size = 1.0
    while True:
        for factor in (1, 2, 5):
            if most <= factor * size * _MOST_TICKS:
                return factor * size
        size *= 10


def draw(chart: Chart) -> Markup:
    """Return the figure: heading, legend, picture and table."""
    has_data = any(value is not None for series in chart.series for value in series.values)
    picture = _picture(chart) if has_data and chart.starts else '<p class="nothing">No data in this range</p>'
    note = f' <span class="faint">{escape(chart.note)}</span>' if chart.note else ""
    legend = _legend(chart) if len(chart.series) > 1 else ""
    heading = f"<figcaption><b>{escape(chart.title)}</b>{note}{legend}</figcaption>"
    table = _table(chart) if has_data else ""
    # Plain strings: a chart has hundreds of pieces, and all but the escaped texts are numbers and names of ours.
    return Markup(f'<figure class="chart">{heading}{picture}{table}</figure>')  # noqa: S704


def _legend(chart: Chart) -> str:
    items = "".join(
        f'<span><svg class="key" width="18" height="10" aria-hidden="true">{_key(chart, series)}</svg>'
        f"{_name(series)}</span>"
        for series in chart.series
    )
    return f'<span class="keys">{items}</span>'


def _key(chart: Chart, series: Series) -> str:
    if chart.stacked:
        return f'<rect class="layer {series.look}" x="4" y="0" width="10" height="10"/>'
    return f'<line class="line {series.look}" x1="0" y1="5" x2="18" y2="5"/>{_mark(series.look, 9, 5)}'


def _name(series: Series) -> Markup:
    return escape(visible(series.name, 80))


def _picture(chart: Chart) -> str:
    scale = ticks(_highest_value(chart), chart.unit)
    plot = _Plot(chart, scale)
    body = (plot.layers() if chart.stacked else plot.lines()) + plot.hover_areas()
    return (
        f'<div class="picture"><svg class="plot{" days" if chart.links else ""}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
        f' aria-label="{escape(_label(chart))}">{plot.axes()}{body}</svg></div>'
    )


def _highest_value(chart: Chart) -> float:
    if not chart.stacked:
        return max(
            (value for series in chart.series for value in series.values if value is not None), default=0
        )
    return max((sum(value or 0 for value in column) for column in _columns(chart)), default=0)


def _columns(chart: Chart) -> Iterator[tuple[Number, ...]]:
    return zip(*(series.values for series in chart.series), strict=True)


def _label(chart: Chart) -> str:
    """Describe the picture in a sentence: title, range, and the extremes and last value of each series."""
    ends = []
    for series in chart.series:
        values = [value for value in series.values if value is not None]
        if values:
            low, high = format_value(min(values), chart.unit), format_value(max(values), chart.unit)
            ends.append(
                f"{visible(series.name, 80)} between {low} and {high}, last {format_value(values[-1], chart.unit)}"
            )
    span = f"{_date(chart.starts[0])} to {_date(chart.starts[-1])}"
    return f"{chart.title}, {span}: {'; '.join(ends)}"


class _Plot:
    def __init__(self, chart: Chart, scale: tuple[float, ...]) -> None:
        self._chart = chart
        self._scale = scale
        self._part = (WIDTH - LEFT - RIGHT) / len(chart.starts)

    def x(self, index: float) -> str:
        return _number(LEFT + self._part * index)

    def y(self, value: float) -> str:
        return _number(_FLOOR - (_FLOOR - TOP) * value / (self._scale[-1] or 1))

    def axes(self) -> str:
        dates = "".join(
            f'<text class="date" x="{self.x(index + 0.5)}" y="{HEIGHT - 5}">{_short_date(self._chart.starts, index)}</text>'
            for index in _dated_parts(len(self._chart.starts))
        )
        return "".join(map(self._grid_line, self._scale)) + dates

    def _grid_line(self, tick: float) -> str:
        look, y = "grid" if tick else "floor", self.y(tick)
        text = escape(_tick(tick, self._chart.unit))
        return (
            f'<line class="{look}" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
            f'<text class="tick" x="{LEFT - 6}" y="{_number(float(y) + 4)}">{text}</text>'
        )

    def lines(self) -> str:
        return "".join(map(self._line, self._chart.series))

    def _line(self, series: Series) -> str:
        """Draw a path for each run of known values; unknown ones leave a gap."""
        drawn = []
        for run in _runs(series.values):
            points = [(self.x(index + 0.5), self.y(value)) for index, value in run]
            if len(points) > 1:
                path = " ".join([f"{x},{y}" for x, y in points])
                drawn.append(f'<polyline class="line {series.look}" points="{path}"/>')
            if len(points) == 1 or len(series.values) <= _MARKS_UPTO:
                drawn += [_mark(series.look, float(x), float(y)) for x, y in points]
        return "".join(drawn)

    def layers(self) -> str:
        gap = min(_GAP, self._part / 4)
        width = _number(self._part - gap)
        drawn = []
        for index, column in enumerate(_columns(self._chart)):
            below = 0.0
            x = _number(LEFT + self._part * index + gap / 2)
            for series, value in zip(self._chart.series, column, strict=True):
                if value:
                    top, foot = float(self.y(below + value)), float(self.y(below))
                    place = f'x="{x}" y="{_number(top)}" width="{width}" height="{_number(foot - top)}"'
                    drawn.append(f'<rect class="layer {series.look}" {place}/>')
                    below += value
        return "".join(drawn)

    def hover_areas(self) -> str:
        """Return an invisible area over each part that shows its values on hover."""
        size = f'y="{TOP}" width="{_number(self._part)}" height="{_FLOOR - TOP}"'
        names, unit = [_name(series) for series in self._chart.series], self._chart.unit
        areas = []
        for index, (at, column) in enumerate(zip(self._chart.starts, _columns(self._chart), strict=True)):
            values = zip(names, column, strict=True)
            lines = [f"\n{name}: {_format_hover_value(value, unit)}" for name, value in values]
            title = f"{_date(at)}{''.join(lines)}"
            areas.append(f'<rect class="hit" x="{self.x(index)}" {size}><title>{title}</title></rect>')
        return "".join(areas)


def _tick(value: float, unit: Unit) -> str:
    return f"{value * 100:.0f}%" if unit is Unit.RATE else format_value(value, unit)


def _format_hover_value(value: Number, unit: Unit) -> str:
    return "no data" if value is None else escape(format_value(value, unit))


def _runs(values: Sequence[Number]) -> Iterator[list[tuple[int, float]]]:
    run: list[tuple[int, float]] = []
    for index, value in enumerate(values):
        if value is not None:
            run.append((index, value))
        elif run:
            yield run
            run = []
    if run:
        yield run


_SHAPES: dict[str, Callable[[float, float], str]] = {
    "a": lambda x, y: f'<circle cx="{_number(x)}" cy="{_number(y)}" r="2.5"/>',
    "b": lambda x, y: f'<rect x="{_number(x - 2.5)}" y="{_number(y - 2.5)}" width="5" height="5"/>',
    "c": lambda x, y: f'<path d="M{_number(x)} {_number(y - 3.2)}l3.2 5.6h-6.4z"/>',
}


def _mark(look: str, x: float, y: float) -> str:
    """Draw the mark of a look: a circle, a square or a triangle."""
    return f'<g class="mark-{look}">{_SHAPES.get(look, _SHAPES["a"])(x, y)}</g>'


def _dated_parts(parts: int) -> range:
    return range(0, parts, max(1, -(-parts // _MOST_DATES)))


@lru_cache(_KEPT_DATES)
def _date(at: datetime) -> str:
    """All charts of a page, and their tables, have the same dates."""
    utc = at.astimezone(UTC)
    return f"{utc:%b} {utc.day}, {utc:%H:%M} UTC"


def _short_date(starts: Sequence[datetime], index: int) -> str:
    """The hour within a day, else the day."""
    utc = starts[index].astimezone(UTC)
    within_a_day = (starts[-1] - starts[0]).total_seconds() <= 86_400
    return f"{utc:%H:%M}" if within_a_day else f"{utc:%b} {utc.day}"


def _table(chart: Chart) -> str:
    head = "".join(f'<th scope="col" class="num">{_name(series)}</th>' for series in chart.series)
    rows = []
    links = [f'<a href="{escape_link(link)}">' for link in chart.links]
    for index, (at, column) in enumerate(zip(chart.starts, _columns(chart), strict=True)):
        cells = [f'<td class="num">{escape(format_value(value, chart.unit))}</td>' for value in column]
        day = f"{links[index]}{_date(at)}</a>" if links else _date(at)
        rows.append(f'<tr><th scope="row">{day}</th>{"".join(cells)}</tr>')
    return (
        f'<details id="table-{_slug(chart.title)}"><summary>Table</summary><table><thead><tr><th scope="col">From</th>'
        f"{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></details>"
    )


def _slug(title: str) -> str:
    return "".join(character if character.isalnum() else "-" for character in title.lower())


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
