"""Templates into answers: autoescaped, every printed text neutralised first, strict headers on each page.

`finalize` passes whatever a template prints through `visible`, so no template can forget it.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import HTMLResponse

from crcr import __version__
from crcr.show import status
from crcr.show.statics import Statics
from crcr.show.text import safe_link, visible

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
    def __init__(self, statics: Statics) -> None:
        self._environment = Environment(
            loader=PackageLoader("crcr.show"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=_printed,
        )
        self._environment.filters.update(
            clip=visible,
            safe_link=safe_link,
            duration=status.duration,
            percent=status.percent,
            job_status=status.job_status,
            job_details=status.job_details,
            dispatch_details=status.dispatch_details,
            short_ref=_short_ref,
            when=_when,
        )
        self._environment.globals.update(
            static=statics.address,
            version=__version__,
            level_words=status.LEVELS,
            dispatch_statuses=status.DISPATCHES,
            legend=status.LEGEND,
        )

    def page(
        self,
        template: str,
        context: Mapping[str, Any],
        *,
        code: int = 200,
        headers: Mapping[str, str] | None = None,
    ) -> HTMLResponse:
        text = self._environment.get_template(template).render(context)
        return HTMLResponse(text, status_code=code, headers={**HEADERS, **(headers or {})})


def _printed(value: object) -> object:
    """Markup is the templates' own (macros, `when`); any other text may be a stranger's."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _short_ref(ref: str) -> str:
    return ref.removeprefix("refs/heads/").removeprefix("refs/tags/")


def _when(at: datetime | None, missing: str = "never") -> Markup:
    """A time for the script to make relative; readable as it stands."""
    if at is None:
        return Markup('<span class="faint">{}</span>').format(missing)
    utc = at.astimezone(UTC)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        f"{utc:%Y-%m-%dT%H:%M:%SZ}", status.stamp(utc), f"{utc:%b} {utc.day}, {utc:%H:%M} UTC"
    )
