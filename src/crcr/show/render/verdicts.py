"""The verdict on a failed job as markup: a mark with its kind, and a line with its sentence and its evidence."""

from markupsafe import Markup

from crcr.decide.failures.verdict import Confidence, VerdictKind
from crcr.decide.views.failures import JudgedBy, VerdictView
from crcr.show.render.markup import escape_link, escape_text

_LOOKS = {VerdictKind.NEW: "mark verdict bad", VerdictKind.UNKNOWN: "mark verdict"}


def draw_verdict_mark(verdict: VerdictView) -> Markup:
    """Draw the kind; a question mark says that the rules are not sure."""
    sure = verdict.confidence is Confidence.HIGH or verdict.kind is VerdictKind.UNKNOWN
    look, title = _LOOKS.get(verdict.kind, "mark verdict warn"), escape_text(verdict.sentence, 300)
    return Markup(  # noqa: S704
        f'<span class="{look}" title="{title}">{verdict.kind.value}{"" if sure else "?"}</span>'
    )


def draw_verdict_kind(kind: VerdictKind) -> Markup:
    """Draw a kind without the verdict that it stands for."""
    return Markup(f'<span class="{_LOOKS.get(kind, "mark verdict warn")}">{kind.value}</span>')  # noqa: S704


def draw_verdict(verdict: VerdictView) -> Markup:
    """Draw the whole verdict as one line."""
    source = "by a person" if verdict.by is JudgedBy.PERSON else f"{verdict.confidence.value} confidence"
    was = f", was {verdict.was.value}" if verdict.was else ""
    links = " · ".join(
        f'<a href="{escape_link(item.url)}">{escape_text(item.text, 200)}</a>' for item in verdict.evidence
    )
    evidence = f' <small class="evidence">{links}</small>' if links else ""
    return Markup(  # noqa: S704
        f'\n<p class="ruling text">{draw_verdict_mark(verdict)} {escape_text(verdict.sentence, 500)}'
        f' <small class="faint">{source}{was}</small>{evidence}</p>'
    )
