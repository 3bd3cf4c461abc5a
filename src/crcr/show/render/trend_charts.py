"""The charts of the metrics page and of a backend's page, the strip of pass rates in a table row, and that of commits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC
from functools import lru_cache

from markupsafe import Markup, escape

from crcr.decide.in_tree.checks import Outcome
from crcr.decide.levels.standings import EvaluatedDay
from crcr.decide.model import Level
from crcr.decide.number_format import format_percent
from crcr.decide.statistics.figures import Figures, Part, Tally
from crcr.decide.views.in_tree import InTreeCommit
from crcr.show.render.charts import Chart, Number, Series, Unit, draw


def trend_charts(figures: Figures) -> tuple[Markup, ...]:
    """Draw all charts of the metrics page."""
    return tuple(draw(chart) for chart in make_charts(figures))


def backend_charts(figures: Figures, day_url: Callable[[str], str]) -> tuple[Markup, ...]:
    """Draw the charts of a backend's page: pass rate, queue time, run time, timeouts.

    `day_url` returns the address of the page with the events of a day (`2026-09-01`, UTC).
    """
    titles = {"Pass rate", "Queue time", "Run time", "Timeouts"}
    links = tuple(day_url(f"{part.at.astimezone(UTC):%Y-%m-%d}") for part in figures.parts)
    return tuple(draw(replace(chart, links=links)) for chart in make_charts(figures) if chart.title in titles)


@dataclass(frozen=True, slots=True)
class _ChartSpec:
    """A chart before its numbers are known: each series has a name, a look and the number that it takes from a part."""

    title: str
    unit: Unit
    note: str
    series: tuple[tuple[str, str, Callable[[Part], Number]], ...]
    stacked: bool = False


def _number_if_any(number: Callable[[Tally], int]) -> Callable[[Part], Number]:
    """None where no job ended, so that the chart has a gap instead of a zero."""
    return lambda part: number(part.tally) if part.tally.total else None


_CHARTS = (
    _ChartSpec(
        "Pass rate", Unit.RATE, "of decided jobs", (("pass rate", "a", lambda part: part.tally.pass_rate),)
    ),
    _ChartSpec(
        "Results",
        Unit.COUNT,
        "jobs that ended",
        (
            ("success", "ok", _number_if_any(lambda tally: tally.success)),
            ("failure", "bad", _number_if_any(lambda tally: tally.failure)),
            ("other", "off", _number_if_any(lambda tally: tally.other)),
        ),
        stacked=True,
    ),
    _ChartSpec(
        "Queue time",
        Unit.SECONDS,
        "dispatch sent to job start",
        (("P50", "a", lambda part: part.queue.p50_s), ("P95", "b", lambda part: part.queue.p95_s)),
    ),
    _ChartSpec(
        "Run time",
        Unit.SECONDS,
        "job start to result",
        (("P50", "a", lambda part: part.execution.p50_s), ("P95", "b", lambda part: part.execution.p95_s)),
    ),
    _ChartSpec(
        "Timeouts",
        Unit.COUNT,
        "or went silent",
        (("timeouts", "bad", _number_if_any(lambda tally: tally.timed_out)),),
        stacked=True,
    ),
    _ChartSpec(
        "Dispatch delay",
        Unit.SECONDS,
        "webhook arrived to dispatch sent, average",
        (("average", "c", lambda part: part.average_delay_s),),
    ),
)


def make_charts(figures: Figures) -> tuple[Chart, ...]:
    starts = tuple(part.at for part in figures.parts)
    return tuple(
        Chart(
            title=spec.title,
            starts=starts,
            series=tuple(
                Series(name, tuple(map(number, figures.parts)), look) for name, look, number in spec.series
            ),
            unit=spec.unit,
            stacked=spec.stacked,
            note=spec.note,
        )
        for spec in _CHARTS
    )


_WIDTH, _HEIGHT = 98, 18
_KEPT_BARS = 8_192
_LEAST_SEEN = 2.0
"""The least height of failures, so that one among many passes is visible."""


def draw_strip(tallies: Sequence[Tally], span: str) -> Markup:
    """Oldest first: failures from above, passes below; a dash where nothing ended."""
    rates = [tally.pass_rate for tally in tallies]
    number = len(tallies)
    bars = [_bar(index, number, tally.success, tally.failure) for index, tally in enumerate(tallies)]
    label = f'role="img" aria-label="{escape(_describe_strip(rates, span))}"'
    frame = f'<svg class="strip" viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" {label}>'
    # Nothing but numbers went into the bars, and there are thousands of them on a page.
    return Markup(f"{frame}{''.join(bars)}</svg>")  # noqa: S704


def draw_commit_strip(commits: Sequence[InTreeCommit]) -> Markup:
    """A bar for each commit, oldest first: failed, passed, or a dash while it runs."""
    step = _WIDTH / max(1, len(commits))
    bars = [_commit_bar(index * step, step * 0.75, commit) for index, commit in enumerate(commits)]
    words = ", ".join(str(commit.outcome) for commit in commits)
    frame = f'<svg class="strip" viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img"'
    label = f"In-tree results of {len(commits):,} commits, oldest first: {words}"
    return Markup(f'{frame} aria-label="{label}">{"".join(bars)}</svg>')  # noqa: S704  numbers and words of our own


def draw_level_strip(days: Sequence[EvaluatedDay]) -> Markup:
    """A bar for each day with an evaluation, oldest first: in order, or not; a low one where L3 is not reached yet."""
    step = _WIDTH / max(len(days), 10)
    bars = [_level_bar(index * step, step * 0.75, day) for index, day in enumerate(days)]
    good = sum(day.standing.in_order for day in days)
    label = f"{len(days)} evaluations, oldest first: {good} in order, {len(days) - good} not; latest {days[-1].standing.value}"
    frame = f'<svg class="strip" viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img"'
    return Markup(f'{frame} aria-label="{label}">{"".join(bars)}</svg>')  # noqa: S704  numbers and words of our own


def _level_bar(x: float, width: float, day: EvaluatedDay) -> str:
    title = f"{day.at:%Y-%m-%d}: {day.level.name} {day.standing.value}, {day.observation.value}"
    if day.standing.in_order:
        bar = _rect("ok", x, width, 0, _HEIGHT)
    elif day.level < Level.L3:
        bar = _rect("none", x, width, 16, 2)
    else:
        bar = _rect("bad", x, width, 0, _HEIGHT)
    return f"<g><title>{title}</title>{bar}</g>"


def _commit_bar(x: float, width: float, commit: InTreeCommit) -> str:
    title = f"{escape(commit.sha[:8])}: {commit.passed:,} passed, {commit.failed:,} failed, {commit.running:,} running"
    if commit.outcome is Outcome.RUNNING:
        bar = _rect("none", x, width, 16, 2)
    else:
        bar = _rect("bad" if commit.outcome is Outcome.FAILED else "ok", x, width, 0, _HEIGHT)
    return f"<g><title>{title}</title>{bar}</g>"


@lru_cache(_KEPT_BARS)
def _bar(index: int, number: int, success: int, failure: int) -> str:
    """The bar at `index` of so many; of a range of days, all but the last are the same on the next rendering."""
    step = _WIDTH / number
    x, width = index * step, step * 0.75
    rate = Tally(success, failure).pass_rate
    if rate is None:
        return f"{_rect('none', x, width, 16, 2, closed=False)}<title>no results</title></rect>"
    failed = max(_LEAST_SEEN, _HEIGHT * (1 - rate)) if failure else 0.0
    title = f"{format_percent(rate)}: {success:,} success, {failure:,} failure"
    bad = _rect("bad", x, width, 0, failed) if failed else ""
    good = _rect("ok", x, width, failed, _HEIGHT - failed) if success else ""
    return f"<g><title>{title}</title>{bad}{good}</g>"


def _rect(look: str, x: float, width: float, y: float, height: float, *, closed: bool = True) -> str:
    end = "/>" if closed else ">"
    return f'<rect class="part-{look}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"{end}'


def _describe_strip(rates: Sequence[float | None], span: str) -> str:
    known = [rate for rate in rates if rate is not None]
    start = f"Pass rate over {span} in {len(rates)} parts: "
    if not known:
        return f"{start}no results"
    summary = f"{start}lowest {format_percent(min(known))}, latest {format_percent(known[-1])}"
    empty = len(rates) - len(known)
    return f"{summary}, {empty} without results" if empty else summary
