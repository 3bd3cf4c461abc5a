"""The charts of the metrics page and of a backend's page, and the strip of pass rates in a table row."""

from collections.abc import Callable, Sequence

from markupsafe import Markup

from crcr.decide.statistics.figures import Durations, Figures, Part, Tally
from crcr.show.render.charts import Chart, Number, Series, Unit, draw
from crcr.show.render.status import percent


def trend_charts(figures: Figures) -> tuple[Markup, ...]:
    """All that is known over time."""
    return tuple(draw(chart) for chart in make_charts(figures))


def backend_charts(figures: Figures) -> tuple[Markup, ...]:
    """Pass rate, queue, execution, timeouts."""
    wanted = {"Pass rate", "Queue time", "Run time", "Timeouts"}
    return tuple(draw(chart) for chart in make_charts(figures) if chart.title in wanted)


def make_charts(figures: Figures) -> tuple[Chart, ...]:
    starts = tuple(part.at for part in figures.parts)

    def chart(title: str, unit: Unit, *series: Series, stacked: bool = False, note: str = "") -> Chart:
        return Chart(title=title, starts=starts, series=series, unit=unit, stacked=stacked, note=note)

    def line(name: str, look: str, of: Callable[[Part], Number]) -> Series:
        return Series(name, tuple(map(of, figures.parts)), look)

    return (
        chart(
            "Pass rate",
            Unit.RATE,
            line("pass rate", "a", lambda part: part.tally.pass_rate),
            note="of decided jobs",
        ),
        chart(
            "Results",
            Unit.COUNT,
            line("success", "ok", lambda part: _where_any(part, part.tally.success)),
            line("failure", "bad", lambda part: _where_any(part, part.tally.failure)),
            line("other", "off", lambda part: _where_any(part, part.tally.other)),
            stacked=True,
            note="jobs that ended",
        ),
        chart(
            "Queue time",
            Unit.SECONDS,
            *_times(figures, lambda part: part.queue),
            note="dispatch sent to job start",
        ),
        chart(
            "Run time",
            Unit.SECONDS,
            *_times(figures, lambda part: part.execution),
            note="job start to result",
        ),
        chart(
            "Timeouts",
            Unit.COUNT,
            line("timeouts", "bad", lambda part: _where_any(part, part.tally.timed_out)),
            stacked=True,
            note="or went silent",
        ),
        chart(
            "Dispatch delay",
            Unit.SECONDS,
            line("average", "c", lambda part: part.average_delay_s),
            note="webhook arrived to dispatch sent, average",
        ),
    )


def _times(figures: Figures, of: Callable[[Part], Durations]) -> tuple[Series, ...]:
    return (
        Series("P50", tuple(of(part).p50_s for part in figures.parts), "a"),
        Series("P95", tuple(of(part).p95_s for part in figures.parts), "b"),
    )


def _where_any(part: Part, number: int) -> Number:
    """None where nothing ended: there is no zero to show for it."""
    return number if part.tally.total else None


_WIDTH, _HEIGHT = 98, 18
_LEAST_SEEN = 2.0
"""One failure among many passes is still seen."""


def draw_strip(tallies: Sequence[Tally], span: str) -> Markup:
    """Oldest first: failures from above, passes below; a dash where nothing ended."""
    step = _WIDTH / max(1, len(tallies))
    bars = "".join(_bar(place * step, step * 0.75, tally) for place, tally in enumerate(tallies))
    frame = Markup(
        '<svg class="strip" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>'
    )
    # Nothing but numbers went into the bars, and there are thousands of them on a page.
    return frame.format(_WIDTH, _HEIGHT, _label(tallies, span), Markup(bars))  # noqa: S704


def _bar(x: float, width: float, tally: Tally) -> str:
    if tally.pass_rate is None:
        return f"{_rect('none', x, width, 16, 2, closed=False)}<title>no results</title></rect>"
    failed = max(_LEAST_SEEN, _HEIGHT * (1 - tally.pass_rate)) if tally.failure else 0.0
    title = f"{percent(tally.pass_rate)}: {tally.success} success, {tally.failure} failure"
    bad = _rect("bad", x, width, 0, failed) if failed else ""
    good = _rect("ok", x, width, failed, _HEIGHT - failed) if tally.success else ""
    return f"<g><title>{title}</title>{bad}{good}</g>"


def _rect(look: str, x: float, width: float, y: float, height: float, *, closed: bool = True) -> str:
    end = "/>" if closed else ">"
    return f'<rect class="part-{look}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"{end}'


def _label(tallies: Sequence[Tally], span: str) -> str:
    rates = [tally.pass_rate for tally in tallies if tally.pass_rate is not None]
    start = f"Pass rate over {span} in {len(tallies)} parts: "
    if not rates:
        return f"{start}no results"
    told = f"{start}lowest {percent(min(rates))}, latest {percent(rates[-1])}"
    empty = len(tallies) - len(rates)
    return f"{told}, {empty} without results" if empty else told
