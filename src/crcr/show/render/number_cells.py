"""Numbers as cells of table rows: those of a backend on the summary and on the metrics page, and those of its jobs.

In Python and not in a template: these tables have a dozen cells for each of up to a hundred backends.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import quote_plus

from markupsafe import Markup

from crcr.decide.number_format import format_count
from crcr.decide.statistics.figures import Durations, Figures, Tally
from crcr.decide.statistics.window import Span
from crcr.decide.views.backend import Column, JobFigures
from crcr.show.http.page_parts import mark_part
from crcr.show.render.markup import draw_rate, escape_link, escape_name, escape_text, make_id
from crcr.show.render.status import duration
from crcr.show.render.trend_charts import draw_strip
from crcr.show.urls.location import PageLinks

_NOT_RECORDED = "".join(
    f'<td class="num zero" data-label="{label}" title="its results are not recorded">—</td>'
    for label in ("success", "failed", "jobs", "timeouts")
)


@dataclass(frozen=True, slots=True)
class SummaryColumns:
    """The groups of columns that have a value for at least one backend; the others are left out of the table."""

    results: bool = True
    queue: bool = True
    run: bool = True

    @classmethod
    def filled_by(cls, backends: Iterable[Figures | None]) -> "SummaryColumns":
        shown = [figures for figures in backends if figures is not None]
        return cls(
            any(figures.tally.total for figures in shown),
            any(figures.queue.known for figures in shown),
            any(figures.execution.known for figures in shown),
        )

    @property
    def number(self) -> int:
        """How many columns follow the name, the last result included."""
        return 5 * self.results + 3 * self.queue + 3 * self.run + 1


def draw_summary_cells(figures: Figures, span: Span, columns: SummaryColumns) -> Markup:
    """Pass rate, strip, counts, queue and run times; the last result follows in the template."""
    cells = [
        *(_result_cells(figures, span) if columns.results else ()),
        *(_time_cells(figures.queue, "q") if columns.queue else ()),
        *(_time_cells(figures.execution, "r") if columns.run else ()),
    ]
    return Markup("\n".join(cells))  # noqa: S704


def _result_cells(figures: Figures, span: Span) -> tuple[str, ...]:
    tally = figures.tally
    nothing = ' title="no results"' if tally.pass_rate is None else ""
    return (
        f'<td class="num ratecell"{nothing}>{draw_rate(tally)}</td>',
        f'<td class="stripcell">{draw_strip(figures.strip, span.value)}</td>',
        _amount(tally.success, "success", "mid"),
        _amount(tally.failure, "failed", "failed strong-bad" if tally.failure else "failed"),
        _total(tally),
    )


def _time_cells(times: Durations, letter: str) -> tuple[str, ...]:
    return (
        _seconds(times.average_s, "wide"),
        _seconds(times.p50_s, f"{letter}50"),
        _seconds(times.p95_s, f"{letter}95"),
    )


def draw_metrics_cells(figures: Figures, *, recorded: bool = True) -> Markup:
    """Pass rate, counts, times and dispatches; without `recorded` there are no results to count."""
    tally, queue, run = figures.tally, figures.queue, figures.execution
    cells = [
        f'<td class="num ratecell" data-label="pass rate">{draw_rate(tally)}</td>',
        _counts(tally) if recorded else _NOT_RECORDED,
        _seconds(queue.p50_s, "", "queue P50"),
        _seconds(queue.p95_s, "", "queue P95"),
        _seconds(run.p50_s, "", "run P50"),
        _seconds(run.p95_s, "", "run P95"),
        _amount(figures.sent, "dispatches"),
        _seconds(figures.average_delay_s, "", "dispatch delay"),
    ]
    return Markup("\n".join(cells))  # noqa: S704


def _counts(tally: Tally) -> str:
    return "\n".join(
        (
            _amount(tally.success, "success"),
            _amount(tally.failure, "failed", "strong-bad" if tally.failure else ""),
            _amount(tally.total, "jobs"),
            _amount(tally.timed_out, "timeouts"),
        )
    )


def _total(tally: Tally) -> str:
    parts = f"{tally.success:,} success, {tally.failure:,} failure, {tally.running:,} running"
    title = f"{parts}, {tally.other:,} cancelled, skipped or neutral"
    zero = "" if tally.total else " zero"
    return f'<td class="num total{zero}" data-label="jobs" title="{title}">{format_count(tally.total)}</td>'


def _amount(value: int, label: str, look: str = "") -> str:
    zero = "" if value else " zero"
    return f'<td class="num {look}{zero}" data-label="{label}">{format_count(value)}</td>'


def _seconds(value: float | None, look: str, label: str = "") -> str:
    zero = " zero" if value is None else ""
    about = f' data-label="{label}"' if label else ""
    return f'<td class="num time {look}{zero}"{about}>{escape_text(duration(value))}</td>'


_LONGEST_FILTER = 200
_KEPT_ROWS = 1_024


def draw_job_rows(jobs: Iterable[JobFigures], links: PageLinks) -> Markup:
    prefix = escape_link(links.url_prefix("jobs", after=None))
    return Markup("").join([_draw_job_row(job.column, job.tally, job.execution_s, prefix) for job in jobs])


@lru_cache(_KEPT_ROWS)
def _draw_job_row(column: Column, tally: Tally, execution_s: float | None, prefix: str) -> Markup:
    """Most rows are the same on the next rendering: a result changes the sums of one job."""
    link = f"{prefix}{escape_link(quote_plus(column.job_name[:_LONGEST_FILTER], safe='/'))}#matrix"
    name = escape_name(column.job_name, 120)
    alert = " strong-bad" if tally.failure else ""
    return mark_part(
        f'<tr data-key="job-{make_id(column.workflow, column.job_name)}"><th scope="row">'
        f'<a class="text" href="{link}" data-in-place title="Show it alone in the matrix">{name}</a>'
        f' <small class="faint text">{escape_name(column.workflow_name, 60)}</small></th>\n'
        f'<td class="ratecell" data-label="Pass rate">{draw_rate(tally)}</td>\n'
        f'<td class="num{alert}" data-label="Failure">{format_count(tally.failure) if tally.failure else "·"}</td>'
        f'<td class="num" data-label="Timeouts">{format_count(tally.timed_out) if tally.timed_out else "·"}</td>'
        f'<td class="num" data-label="Jobs">{format_count(tally.total)}</td>'
        f'<td class="num" data-label="Run">{escape_text(duration(execution_s))}</td></tr>'
    )
