"""Pieces of markup that pages consist of: escaped texts, times, ids, chips.

They are plain f-strings with escaped values: `Markup.format` takes ten times as long, and a page has hundreds of pieces.
"""

import re
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256

from markupsafe import Markup, escape

from crcr.decide.number_format import format_percent
from crcr.decide.statistics.figures import Tally
from crcr.show.render.safe_text import visible
from crcr.show.render.status import Status, day, stamp

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_KEPT_TIMES = 8_192
_KEPT_NAMES = 8_192
_LONGEST_KEPT = 200
_KEPT_CHIPS = 1_024
_PLAIN = re.compile(r"[\w !#$%()*+,\-./:;=?@\[\\\]^`{|}~]*", re.ASCII)
"""Characters that neither act nor are markup."""


def escape_text(text: str, most: int = 2_000) -> str:
    """Return a text from outside for an f-string of markup: neutralised, escaped, cut after `most` characters."""
    if len(text) <= most and _PLAIN.fullmatch(text):
        return text
    return str(escape(visible(text, most)))


def escape_link(link: str) -> str:
    """Like `escape_text`, for an address within the site: it is never cut."""
    return escape_text(link, len(link))


def escape_name(name: str, most: int) -> str:
    """Like `escape_text`, for names of jobs and workflows: most of them are on the next page too."""
    return _escape_short_name(name, most) if len(name) <= _LONGEST_KEPT else escape_text(name, most)


_escape_short_name = lru_cache(_KEPT_NAMES)(escape_text)


@lru_cache(_KEPT_CHIPS)
def draw_chip(status: Status, text: str | None = None) -> Markup:
    """Draw a status: its letter, and its word or a text in its place."""
    letter, word = escape_text(status.letter), escape_text(text or status.word)
    return Markup(  # noqa: S704
        f'<span class="chip {status.tone}"><b aria-hidden="true">{letter}</b><span class="word">{word}</span></span>'
    )


def draw_rate(tally: Tally) -> Markup:
    """Draw a pass rate; a dash where nothing was decided."""
    if tally.pass_rate is None:
        return Markup('<span class="faint">—</span>')
    return Markup(f'<b class="rate">{format_percent(tally.pass_rate)}</b>')  # noqa: S704


def make_id(*facts: object) -> str:
    """Return an id for an element that is stable when the page is loaded again."""
    return sha256("\0".join(map(str, facts)).encode("utf-8", "replace")).hexdigest()[:12]


@lru_cache(_KEPT_TIMES)
def format_time(at: datetime, *, ahead: bool = False) -> Markup:
    """A time that a script makes relative, readable without it; `ahead` if it may be in the future.

    A page has dozens of times, and most of them are on the next rendering too.
    """
    return Markup(draw_time(at, ahead=ahead))  # noqa: S704


def draw_time(at: datetime, *, ahead: bool = False) -> str:
    """Like `format_time`, for an f-string of markup; not remembered, since each of hundreds of jobs has another time."""
    utc = at if at.tzinfo is UTC else at.astimezone(UTC)
    text = utc.isoformat(" ", "seconds")
    date, clock = text[:10], text[11:19]
    exact = f'datetime="{date}T{clock}Z" title="{date} {clock} UTC"{" data-ahead" if ahead else ""}'
    return f"<time {exact}>{_MONTHS[utc.month - 1]} {utc.day}, {clock[:5]} UTC</time>"


def format_ahead(at: datetime) -> Markup:
    """A time that may be in the future."""
    return format_time(at, ahead=True)


def format_time_or_missing(at: datetime | None, missing: str = "never") -> Markup:
    if at is None:
        return Markup(f'<span class="faint">{escape_text(missing)}</span>')  # noqa: S704
    return format_time(at)


def format_day(at: datetime, now: datetime) -> Markup:
    """A day, never made relative; the exact time on hover."""
    return Markup(f'<span class="day" title="{stamp(at)}">{day(at, now)}</span>')  # noqa: S704
