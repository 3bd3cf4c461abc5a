"""The rows of a backend's table of jobs: each job over the window, with a link that shows it alone in the matrix.

In Python and not in a template: a backend may have a hundred jobs.
"""

from collections.abc import Iterable
from functools import lru_cache
from urllib.parse import quote_plus

from markupsafe import Markup

from crcr.decide.number_format import format_count
from crcr.decide.statistics.figures import Tally
from crcr.decide.views.backend import Column, JobFigures
from crcr.show.http.page_parts import mark_part
from crcr.show.render.markup import draw_rate, escape_link, escape_name, escape_text, make_id
from crcr.show.render.status import duration
from crcr.show.urls.location import PageLinks

_LONGEST_FILTER = 200
_KEPT_ROWS = 1_024


def draw_job_rows(jobs: Iterable[JobFigures], links: PageLinks) -> Markup:
    prefix = escape_link(links.url_prefix("jobs", after=None))
    return Markup("").join([_draw_row(job.column, job.tally, job.execution_s, prefix) for job in jobs])


@lru_cache(_KEPT_ROWS)
def _draw_row(column: Column, tally: Tally, execution_s: float | None, prefix: str) -> Markup:
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
