"""A backend's pass rates as a row of small bars, with words for those who cannot see them."""

from collections.abc import Sequence

from markupsafe import Markup

from crcr.decide.statistics.figures import Tally
from crcr.show.render.status import percent

_WIDTH, _HEIGHT = 98, 18
_LEAST_SEEN = 2.0
"""One failure among many passes is still seen."""


def strip(tallies: Sequence[Tally], span: str) -> Markup:
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
