"""`/badge/{org}/{repo}.svg`: state and pass rate of a backend as a small picture.

The rate is the one of every page. Green means that the newest result passed; no results, and no recent results, have other
colours and words. A hidden backend gets the same picture as an unlisted one.
"""

from dataclasses import dataclass
from hashlib import sha256
from html import escape
from unicodedata import east_asian_width

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from crcr.decide.model import RepoName
from crcr.decide.number_format import format_percent
from crcr.decide.statistics.figures import CountedAs
from crcr.decide.statistics.window import ResultKind
from crcr.decide.views.backend import BadgeView
from crcr.errors import NotFound, Unavailable
from crcr.show.pages.frame import Frame
from crcr.show.render.safe_text import visible
from crcr.show.urls.location import pick_span, pick_upstream

GREEN, RED, AMBER, _BLUE, GREY = "#1a7f37", "#cf222e", "#9a6700", "#0969da", "#57606a"
_LABEL = "#3d444d"
_WORDS = {
    CountedAs.SUCCESS: ("passing", GREEN),
    CountedAs.FAILURE: ("failing", RED),
    CountedAs.RUNNING: ("running", _BLUE),
    CountedAs.OTHER: ("inconclusive", GREY),
}
_HEADERS = {
    "Content-Type": "image/svg+xml; charset=utf-8",
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "public, max-age=60, stale-while-revalidate=60",
}
_MOST_LABEL = 40
_SIZE = 11
_PAD = 6
# Widths of Verdana's letters in thousandths of its size; any other letter counts as a capital W.
_WIDTHS = {
    letter: width
    for width, letters in {
        274: "il|'",
        352: " fjI.,:;!·",
        430: 'rt()[]{}-/\\"*`',
        525: "csz?",
        600: "aekvxyoFL",
        640: "bdghnpqu0123456789_$#&^TPEZ",
        700: "ABCKRSVXY<>=+~",
        790: "DGHNOQUMw",
        1000: "mW@%",
    }.items()
    for letter in letters
}
_OTHER_WIDTH, _WIDE_WIDTH = 1000, 1400


@dataclass(frozen=True, slots=True)
class BadgePicture:
    label: str
    message: str
    colour: str
    about: str = ""
    """Part of its title, before label and message."""


def routes(frame: Frame) -> list[BaseRoute]:
    async def badge(request: Request) -> Response:
        label = clean_label(request.query_params.get("label"))
        try:
            view = await _read_view(frame, request)
        except NotFound:
            return respond(request, BadgePicture(label or "crcr", "unknown", GREY), code=404)
        except Unavailable:
            return respond_unavailable(request, label or "crcr")
        upstream = pick_upstream(frame.location(request).upstreams, request.query_params.get("upstream"))
        return respond(request, choose_badge(view, label or clean_label(upstream.name) or "crcr"))

    return [Route("/badge/{org}/{repo}.svg", badge)]


def choose_badge(view: BadgeView, label: str) -> BadgePicture:
    rate = view.tally.pass_rate
    about = f"{view.name}, {view.kind.value}, {view.span.value}"
    if view.stale:
        return BadgePicture(label, "silent", AMBER, about)
    if view.state is None or (rate is None and view.state in {CountedAs.SUCCESS, CountedAs.FAILURE}):
        return BadgePicture(label, "no results", GREY, about)
    word, colour = _WORDS[view.state]
    return BadgePicture(label, word if rate is None else f"{word} · {format_percent(rate)}", colour, about)


def draw(badge: BadgePicture) -> bytes:
    """Return the SVG. `textLength` keeps the text within its box if a font draws it wider."""
    label_width, message_width = text_width(badge.label), text_width(badge.message)
    split, total_width = label_width + 2 * _PAD, label_width + message_width + 4 * _PAD
    summary = f"{badge.label}: {badge.message}"
    title = f"{badge.about} · {summary}" if badge.about else summary
    texts = "".join(
        f'<text x="{x}" y="14" textLength="{width}" lengthAdjust="spacingAndGlyphs">{_escape_xml(text)}</text>'
        for x, width, text in ((_PAD, label_width, badge.label), (split + _PAD, message_width, badge.message))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{total_width}" height="20" viewBox="0 0 {total_width} 20" role="img"'
        f' aria-label="{_escape_xml(summary)}"><title>{_escape_xml(title)}</title>'
        f'<clipPath id="round"><rect width="{total_width}" height="20" rx="3"/></clipPath><g clip-path="url(#round)">'
        f'<rect width="{split}" height="20" fill="{_LABEL}"/>'
        f'<rect x="{split}" width="{total_width - split}" height="20" fill="{badge.colour}"/></g>'
        f'<g fill="#fff" font-family="Verdana,DejaVu Sans,Geneva,sans-serif" font-size="{_SIZE}">{texts}</g></svg>\n'
    ).encode()


def text_width(text: str) -> int:
    """Return the approximate width of a text in pixels, rounded up."""
    thousandths = sum(
        _WIDTHS.get(character) or (_WIDE_WIDTH if east_asian_width(character) in {"W", "F"} else _OTHER_WIDTH)
        for character in text
    )
    return -(-thousandths * _SIZE // 1000)


async def _read_view(frame: Frame, request: Request) -> BadgeView:
    query, path = request.query_params, request.path_params
    upstream = pick_upstream(frame.location(request).upstreams, query.get("upstream"))
    try:
        downstream = RepoName(f"{path['org']}/{path['repo']}")
    except ValueError:
        raise NotFound from None
    kind = next((kind for kind in ResultKind if kind.value == query.get("kind")), ResultKind.PUSH)
    span = pick_span(query.get("range"))
    return await frame.views(request).badge(upstream, downstream, kind, span, frame.clock.now())


def clean_label(text: str | None) -> str:
    """Return untrusted text as one line of limited length."""
    clean = visible(" ".join((text or "").split()), _MOST_LABEL)
    return clean if len(clean) <= _MOST_LABEL + 1 else f"{clean[:_MOST_LABEL]}…"


def _escape_xml(text: str) -> str:
    # XML does not allow these two characters, not even as references.
    return escape(text.replace("\ufffe", "\ufffd").replace("\uffff", "\ufffd"))


def respond_unavailable(request: Request, label: str) -> Response:
    answer = respond(request, BadgePicture(label, "unavailable", GREY), code=503)
    answer.headers.update({"Retry-After": "5", "Cache-Control": "no-store"})
    return answer


def respond(request: Request, badge: BadgePicture, *, code: int = 200) -> Response:
    content = draw(badge)
    headers = {**_HEADERS, "ETag": f'"{sha256(content).hexdigest()[:32]}"'}
    client_tags = {
        value.strip().removeprefix("W/") for value in request.headers.get("if-none-match", "").split(",")
    }
    if code == 200 and client_tags & {headers["ETag"], "*"}:
        return Response(status_code=304, headers={k: v for k, v in headers.items() if k != "Content-Type"})
    headers["Content-Length"] = str(len(content))
    return Response(b"" if request.method == "HEAD" else content, code, headers)
