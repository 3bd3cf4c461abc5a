"""Renders templates: autoescaped, every printed text neutralised first, strict headers on each page.

`finalize` passes everything that a template prints through `visible`, so that no template can forget it.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.runtime import Context
from markupsafe import Markup, escape
from starlette.responses import HTMLResponse

from crcr import __version__
from crcr.decide.checks.status import left_out_words
from crcr.decide.health.texts import capitalize
from crcr.decide.number_format import format_count, format_percent
from crcr.decide.statistics.window import Span
from crcr.show.http.page_parts import mark_part
from crcr.show.http.static_files import load_static_files
from crcr.show.render import job_lines, markup, status
from crcr.show.render.grids import GRID_LEGEND
from crcr.show.render.number_cells import draw_job_rows, draw_metrics_cells, draw_summary_cells
from crcr.show.render.safe_text import safe_link, visible
from crcr.show.render.status import waiting_reason
from crcr.show.render.trend_charts import draw_commit_strip, draw_level_strip
from crcr.show.urls.location import is_sha

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "strict-origin-when-cross-origin",
    "Cache-Control": "no-cache",
}


class Renderer:
    def page(
        self,
        template: str,
        context: Mapping[str, Any],
        *,
        code: int = 200,
        headers: Mapping[str, str] | None = None,
    ) -> HTMLResponse:
        text = _render(template, context)
        return HTMLResponse(text, status_code=code, headers={**HEADERS, **(headers or {})})


_OPENED = "_opened_contexts"


class _PageContext(Context):
    """A context that is listed in the rendering that it belongs to."""

    def __init__(self, environment: Environment, parent: dict[str, Any], *more: Any, **options: Any) -> None:
        super().__init__(environment, parent, *more, **options)
        if _OPENED in parent:
            parent[_OPENED].append(self)


def _render(template: str, context: Mapping[str, Any]) -> str:
    """Render a page, and release its values with the rendering.

    A context and the macros of its template refer to each other. Left to the garbage collector they would keep the values of
    dozens of pages, thousands of objects each, and its run would delay a reader for longer than a page takes.
    """
    opened: list[Context] = []
    try:
        return _environment().get_template(template).render({**context, _OPENED: opened})
    finally:
        for one in opened:
            one.vars.clear()
            one.parent.clear()


@cache
def _environment() -> Environment:
    """Return the environment of the process: compiling the templates takes half a second, and no app changes them."""
    environment = Environment(
        loader=PackageLoader("crcr.show"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_neutralize,
    )
    environment.context_class = _PageContext
    environment.filters.update(_FILTERS)
    environment.globals.update(_GLOBALS, static=load_static_files().address)
    return environment


def _neutralize(value: object) -> object:
    """Markup comes from the templates (macros, `when`); any other text is untrusted."""
    if value.__class__ is Markup or not isinstance(value, str):
        return value
    return visible(value)


def _short_ref(ref: str) -> str:
    return ref.removeprefix("refs/heads/").removeprefix("refs/tags/")


def _mark_code(text: str) -> Markup:
    """Mark the parts in backquotes as code; unpaired backquotes stay text."""
    parts = visible(text).split("`")
    if len(parts) % 2 == 0:
        return escape("`".join(parts))
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if index % 2 else escape(part)
        for index, part in enumerate(parts)
    )


def _escape_all(text: str) -> Markup:
    """Escape a text to copy, of any length; the values in it have been checked."""
    return escape(visible(text, len(text)))


_FILTERS: Mapping[str, Any] = {
    "clip": visible,
    "safe_link": safe_link,
    "duration": status.duration,
    "fine_duration": status.fine_duration,
    "stamp": status.stamp,
    "count_of": format_count,
    "probe_status": status.probe_status,
    "percent": format_percent,
    "job_status": status.job_status,
    "job_details": status.job_details,
    "dispatch_details": status.dispatch_details,
    "short_ref": _short_ref,
    "when": markup.format_time_or_missing,
    "day": markup.format_day,
    "is_late": status.is_late,
    "effect_word": status.effect_word,
    "left_out_words": left_out_words,
    "ahead": markup.format_ahead,
    "spans": _mark_code,
    "anchor": markup.make_id,
    "is_sha": is_sha,
    "verbatim": _escape_all,
    "waits_for": waiting_reason,
    "capital": capitalize,
    "part": mark_part,
    "level_status": status.level_status,
}
_GLOBALS: Mapping[str, Any] = {
    "version": __version__,
    "level_words": status.LEVELS,
    "kind_words": status.KINDS,
    "ranges": tuple(Span),
    "summary_cells": draw_summary_cells,
    "metrics_cells": draw_metrics_cells,
    "commit_strip": draw_commit_strip,
    "level_strip": draw_level_strip,
    "met_statuses": status.MET,
    "level_changes": status.LEVEL_CHANGES,
    "chip": markup.draw_chip,
    "verdict_mark": job_lines.draw_verdict_mark,
    "verdict_line": job_lines.draw_verdict,
    "verdict_kind": job_lines.draw_verdict_kind,
    "rate": markup.draw_rate,
    "job_rows": draw_job_rows,
    "split_jobs": job_lines.split_jobs,
    "job_line": job_lines.draw_line,
    "job_list": job_lines.draw_list,
    "job_names": job_lines.draw_names,
    "jobs_alike": job_lines.draw_alike,
    "job_marks": job_lines.draw_marks,
    "dispatch_statuses": status.DISPATCHES,
    "legend": status.LEGEND,
    "grid_legend": GRID_LEGEND,
    "answers": status.ANSWERS,
    "gate_statuses": status.GATES,
    "standings": status.GATE_STATUSES,
    "backend_statuses": status.BACKENDS,
    "folded_states": status.FOLDED,
    "pull_statuses": status.PULLS,
    "waiver_statuses": status.WAIVERS,
    "bisection_statuses": status.BISECTIONS,
    "doubts": status.DOUBTS,
    "places": status.PLACES,
    "health_statuses": status.HEALTH,
    "relay_statuses": status.RELAY,
    "attention_statuses": status.ATTENTION,
    "finding_signs": status.FINDING_SIGNS,
}
