"""Figures over a window as charts: the whole set for the page of metrics, and the four that a backend's page has."""

from collections.abc import Callable

from markupsafe import Markup

from crcr.decide.statistics.figures import Durations, Figures, Part
from crcr.show.render.charts import Chart, Number, Series, Unit, draw


def trend_charts(figures: Figures) -> tuple[Markup, ...]:
    """All that is known over time."""
    return tuple(draw(chart) for chart in charts_of(figures))


def backend_charts(figures: Figures) -> tuple[Markup, ...]:
    """Pass rate, queue, execution, timeouts."""
    wanted = {"Pass rate", "Queue time", "Run time", "Timeouts"}
    return tuple(draw(chart) for chart in charts_of(figures) if chart.title in wanted)


def charts_of(figures: Figures) -> tuple[Chart, ...]:
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
