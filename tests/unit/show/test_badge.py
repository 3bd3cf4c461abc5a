"""The badge: its text and colour, that it is valid SVG for any text, and its headers."""

from datetime import datetime
from typing import Any, cast
from xml.etree import ElementTree as ET

import httpx
import pytest
from starlette.applications import Starlette

from crcr.decide.model import RepoName
from crcr.decide.statistics.figures import CountedAs, Tally
from crcr.decide.statistics.window import ResultKind, Span
from crcr.decide.views.backend import BadgeView
from crcr.errors import NotFound, StoreUnavailable
from crcr.record.views.sql_views import SqlViews
from crcr.show.pages.badge import choose_badge, draw, routes, text_width
from crcr.show.pages.frame import Frame
from support.clock import ManualClock
from support.page_reader import CONTROL_CHARACTERS, HOSTILE

UPSTREAMS = RepoName("Torch/torch"), RepoName("other/upstream")
SVG = "{http://www.w3.org/2000/svg}"
GREEN = "#1a7f37"


def make_view(state: CountedAs | None = CountedAs.SUCCESS, *, stale: bool = False, **tally: int) -> BadgeView:
    counts = Tally(**(tally or {"success": 987, "failure": 13}))
    return BadgeView(
        name=RepoName("Good/Backend"),
        kind=ResultKind.PUSH,
        span=Span.FORTNIGHT,
        state=state,
        tally=counts,
        stale=stale,
    )


class FakeViews:
    """Has one backend, and records the queries."""

    def __init__(self, answer: BadgeView | Exception) -> None:
        self.answer = answer
        self.queries: list[tuple[Any, ...]] = []

    def for_admins(self) -> "FakeViews":
        return self

    async def badge(
        self, upstream: RepoName, downstream: RepoName, kind: ResultKind, span: Span, now: datetime
    ) -> BadgeView:
        self.queries.append((upstream.full_name, downstream.full_name, kind, span))
        if isinstance(self.answer, Exception):
            raise self.answer
        if downstream.key != "good/backend":
            raise NotFound(f"{downstream} is not a backend of this upstream")
        return self.answer


async def get(views: FakeViews, address: str, method: str = "GET", **more: Any) -> httpx.Response:
    frame = Frame(cast("SqlViews", views), upstreams=UPSTREAMS, clock=ManualClock())
    app = Starlette(routes=routes(frame))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://hud.test") as http:
        return await http.request(method, address, **more)


def parse_badge(content: bytes) -> tuple[list[str], list[str], str]:
    """Return the texts, the colours and the title of a badge; fail when its SVG is not valid and inert."""
    root = ET.fromstring(content)  # noqa: S314  our own
    assert (root.tag, root.get("role")) == (f"{SVG}svg", "img")
    assert {element.tag.removeprefix(SVG) for element in root.iter()} == {
        "svg",
        "title",
        "clipPath",
        "rect",
        "g",
        "text",
    }
    assert not [
        name for element in root.iter() for name in element.attrib if name.startswith("on") or name == "style"
    ]
    texts = list(root.iter(f"{SVG}text"))
    for element in texts:
        assert float(element.get("x", "")) + float(element.get("textLength", "")) <= float(
            root.get("width", "")
        )
    colours = [element.get("fill", "") for element in root.iter(f"{SVG}rect") if element.get("fill")]
    return [element.text or "" for element in texts], colours, root.findtext(f"{SVG}title") or ""


@pytest.mark.parametrize(
    ("badge_view", "message", "colour"),
    [
        (make_view(), "passing · 98.7%", GREEN),
        (make_view(CountedAs.FAILURE, success=61, failure=39), "failing · 61.0%", "#cf222e"),
        (make_view(CountedAs.SUCCESS, success=9_999, failure=1), "passing · 99.9%", GREEN),
        (make_view(CountedAs.RUNNING, success=1), "running · 100.0%", "#0969da"),
        (make_view(CountedAs.OTHER, other=3), "inconclusive", "#57606a"),
        (make_view(None, running=2), "no results", "#57606a"),
        (make_view(CountedAs.SUCCESS, other=1), "no results", "#57606a"),
        (make_view(stale=True), "silent", "#9a6700"),
        (make_view(None, stale=True, running=0), "silent", "#9a6700"),
    ],
)
def test_a_badge_shows_the_state_and_the_pass_rate(badge_view: BadgeView, message: str, colour: str) -> None:
    texts, colours, title = parse_badge(draw(choose_badge(badge_view, "torch")))
    assert texts == ["torch", message]
    assert colours[1] == colour
    assert title == f"Good/Backend, push, 14d · torch: {message}"


@pytest.mark.parametrize("state", [*CountedAs, None])
@pytest.mark.parametrize("stale", [True, False])
def test_a_badge_is_green_only_for_a_pass_that_is_not_stale(state: CountedAs | None, *, stale: bool) -> None:
    for tally in ({"success": 1}, {"running": 1}, {"other": 5}):
        green = choose_badge(make_view(state, stale=stale, **tally), "x").colour == GREEN
        assert green == (state is CountedAs.SUCCESS and not stale and "success" in tally)


async def test_a_badge_shows_pushes_of_the_first_upstream_by_default() -> None:
    views = FakeViews(make_view())
    first = await get(views, "/badge/Good/Backend.svg")
    await get(views, "/badge/good/backend.svg?kind=pull_request&range=24h&upstream=Other/Upstream")
    await get(views, "/badge/good/backend.svg?kind=no&range=no")
    assert views.queries == [
        ("Torch/torch", "Good/Backend", ResultKind.PUSH, Span.FORTNIGHT),
        ("other/upstream", "good/backend", ResultKind.PULLS, Span.DAY),
        ("Torch/torch", "good/backend", ResultKind.PUSH, Span.FORTNIGHT),
    ]
    assert parse_badge(first.content)[0] == ["torch", "passing · 98.7%"]


async def test_a_badge_may_be_cached_for_a_minute_and_is_sandboxed() -> None:
    answer = await get(FakeViews(make_view()), "/badge/good/backend.svg")
    assert answer.headers["content-type"] == "image/svg+xml; charset=utf-8"
    assert answer.headers["content-security-policy"] == "default-src 'none'; sandbox"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "public, max-age=60, stale-while-revalidate=60"

    again = await get(
        FakeViews(make_view()),
        "/badge/good/backend.svg",
        headers={"If-None-Match": f'"x", W/{answer.headers["etag"]}'},
    )
    assert (again.status_code, again.content) == (304, b"")
    other = await get(FakeViews(make_view(CountedAs.FAILURE)), "/badge/good/backend.svg")
    assert other.headers["etag"] != answer.headers["etag"]


async def test_head_gives_the_same_headers_without_the_picture() -> None:
    whole = await get(FakeViews(make_view()), "/badge/good/backend.svg")
    head = await get(FakeViews(make_view()), "/badge/good/backend.svg", "HEAD")
    assert (head.status_code, head.content) == (200, b"")
    assert dict(head.headers) == dict(whole.headers)


async def test_a_hidden_backend_and_an_unknown_one_get_the_same_badge() -> None:
    hidden = await get(FakeViews(NotFound("it is hidden")), "/badge/good/hidden.svg")
    others = [
        await get(FakeViews(make_view()), address)
        for address in (
            "/badge/no/body.svg",
            "/badge/-bad/name.svg",
            "/badge/good/backend.svg?upstream=no/such",
        )
    ]
    assert {response.content for response in others} == {hidden.content}
    assert {response.status_code for response in (hidden, *others)} == {404}
    assert [dict(response.headers) for response in others] == [dict(hidden.headers)] * 3
    assert parse_badge(hidden.content)[0] == ["crcr", "unknown"]


async def test_a_store_outage_gives_an_unavailable_badge_and_no_result() -> None:
    answer = await get(FakeViews(StoreUnavailable()), "/badge/good/backend.svg")
    assert (answer.status_code, answer.headers["cache-control"]) == (503, "no-store")
    assert answer.headers["retry-after"] == "5"
    assert parse_badge(answer.content)[0] == ["crcr", "unavailable"]


@pytest.mark.parametrize(
    "text", [*HOSTILE, "\ufffe\uffff", "]]>", "&amp;", "<!--", "a\r\nb\tc", "漢字かな", "W" * 80]
)
async def test_a_hostile_label_stays_text_and_is_cut_to_its_space(text: str) -> None:
    short = text[:2_000]
    answer = await get(FakeViews(make_view()), "/badge/good/backend.svg", params={"label": short})
    [label, message], _, title = parse_badge(answer.content)
    assert answer.status_code == 200
    assert 0 < len(label) <= 41
    assert message == "passing · 98.7%"
    assert not CONTROL_CHARACTERS.search(label + title)
    assert "\n" not in label
    unknown = await get(FakeViews(make_view()), "/badge/no/body.svg", params={"label": short})
    assert parse_badge(unknown.content)[0] == [label, "unknown"]


async def test_an_empty_label_becomes_the_upstreams_name() -> None:
    for label in ("", "%20%09", "%00"[:0]):
        answer = await get(FakeViews(make_view()), f"/badge/good/backend.svg?label={label}")
        assert parse_badge(answer.content)[0][0] == "torch"


def test_the_estimated_width_of_a_text_follows_its_letters() -> None:
    assert text_width("") == 0
    assert text_width("iiii") < text_width("nnnn") < text_width("WWWW") < text_width("漢漢漢漢")
    assert text_width("passing") == pytest.approx(43, abs=4)  # Verdana at 11 pixels
