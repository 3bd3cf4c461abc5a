"""The badge: what it says, in which colour, that it is a sound picture whatever is written into it, and its headers."""

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


def view(state: CountedAs | None = CountedAs.SUCCESS, *, stale: bool = False, **tally: int) -> BadgeView:
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
    """Knows one backend, and notes what it was asked for."""

    def __init__(self, answer: BadgeView | Exception) -> None:
        self.answer = answer
        self.asked: list[tuple[Any, ...]] = []

    def for_admins(self) -> "FakeViews":
        return self

    async def badge(
        self, upstream: RepoName, downstream: RepoName, kind: ResultKind, span: Span, now: datetime
    ) -> BadgeView:
        self.asked.append((upstream.full_name, downstream.full_name, kind, span))
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


def parsed(content: bytes) -> tuple[list[str], list[str], str]:
    """Texts, colours and the title of a picture; fails when it is not sound."""
    root = ET.fromstring(content)  # noqa: S314  our own
    assert (root.tag, root.get("role")) == (f"{SVG}svg", "img")
    assert {each.tag.removeprefix(SVG) for each in root.iter()} == {
        "svg",
        "title",
        "clipPath",
        "rect",
        "g",
        "text",
    }
    assert not [
        name for each in root.iter() for name in each.attrib if name.startswith("on") or name == "style"
    ]
    texts = list(root.iter(f"{SVG}text"))
    for each in texts:
        assert float(each.get("x", "")) + float(each.get("textLength", "")) <= float(root.get("width", ""))
    colours = [each.get("fill", "") for each in root.iter(f"{SVG}rect") if each.get("fill")]
    return [each.text or "" for each in texts], colours, root.findtext(f"{SVG}title") or ""


@pytest.mark.parametrize(
    ("seen", "message", "colour"),
    [
        (view(), "passing · 98.7%", GREEN),
        (view(CountedAs.FAILURE, success=61, failure=39), "failing · 61.0%", "#cf222e"),
        (view(CountedAs.SUCCESS, success=9_999, failure=1), "passing · 99.9%", GREEN),
        (view(CountedAs.RUNNING, success=1), "running · 100.0%", "#0969da"),
        (view(CountedAs.OTHER, other=3), "inconclusive", "#57606a"),
        (view(None, running=2), "no results", "#57606a"),
        (view(CountedAs.SUCCESS, other=1), "no results", "#57606a"),
        (view(stale=True), "silent", "#9a6700"),
        (view(None, stale=True, running=0), "silent", "#9a6700"),
    ],
)
def test_it_says_the_state_and_the_rate_of_every_page(seen: BadgeView, message: str, colour: str) -> None:
    texts, colours, title = parsed(draw(choose_badge(seen, "torch")))
    assert texts == ["torch", message]
    assert colours[1] == colour
    assert title == f"Good/Backend, push, 14d · torch: {message}"


@pytest.mark.parametrize("state", [*CountedAs, None])
@pytest.mark.parametrize("stale", [True, False])
def test_it_is_green_for_a_pass_that_is_not_stale_and_for_nothing_else(
    state: CountedAs | None, *, stale: bool
) -> None:
    for tally in ({"success": 1}, {"running": 1}, {"other": 5}):
        green = choose_badge(view(state, stale=stale, **tally), "x").colour == GREEN
        assert green == (state is CountedAs.SUCCESS and not stale and "success" in tally)


async def test_it_shows_pushes_of_the_first_upstream_unless_asked_otherwise() -> None:
    views = FakeViews(view())
    first = await get(views, "/badge/Good/Backend.svg")
    await get(views, "/badge/good/backend.svg?kind=pull_request&range=24h&upstream=Other/Upstream")
    await get(views, "/badge/good/backend.svg?kind=no&range=no")
    assert views.asked == [
        ("Torch/torch", "Good/Backend", ResultKind.PUSH, Span.FORTNIGHT),
        ("other/upstream", "good/backend", ResultKind.PULLS, Span.DAY),
        ("Torch/torch", "good/backend", ResultKind.PUSH, Span.FORTNIGHT),
    ]
    assert parsed(first.content)[0] == ["torch", "passing · 98.7%"]


async def test_its_headers_let_it_be_kept_for_a_minute_and_do_nothing() -> None:
    answer = await get(FakeViews(view()), "/badge/good/backend.svg")
    assert answer.headers["content-type"] == "image/svg+xml; charset=utf-8"
    assert answer.headers["content-security-policy"] == "default-src 'none'; sandbox"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "public, max-age=60, stale-while-revalidate=60"

    again = await get(
        FakeViews(view()),
        "/badge/good/backend.svg",
        headers={"If-None-Match": f'"x", W/{answer.headers["etag"]}'},
    )
    assert (again.status_code, again.content) == (304, b"")
    other = await get(FakeViews(view(CountedAs.FAILURE)), "/badge/good/backend.svg")
    assert other.headers["etag"] != answer.headers["etag"]


async def test_head_gives_the_same_headers_without_the_picture() -> None:
    whole = await get(FakeViews(view()), "/badge/good/backend.svg")
    head = await get(FakeViews(view()), "/badge/good/backend.svg", "HEAD")
    assert (head.status_code, head.content) == (200, b"")
    assert dict(head.headers) == dict(whole.headers)


async def test_what_is_hidden_and_what_is_not_there_give_the_same_picture() -> None:
    hidden = await get(FakeViews(NotFound("it is hidden")), "/badge/good/hidden.svg")
    others = [
        await get(FakeViews(view()), address)
        for address in (
            "/badge/no/body.svg",
            "/badge/-bad/name.svg",
            "/badge/good/backend.svg?upstream=no/such",
        )
    ]
    assert {each.content for each in others} == {hidden.content}
    assert {each.status_code for each in (hidden, *others)} == {404}
    assert [dict(each.headers) for each in others] == [dict(hidden.headers)] * 3
    assert parsed(hidden.content)[0] == ["crcr", "unknown"]


async def test_a_store_that_does_not_answer_is_no_result() -> None:
    answer = await get(FakeViews(StoreUnavailable()), "/badge/good/backend.svg")
    assert (answer.status_code, answer.headers["cache-control"]) == (503, "no-store")
    assert answer.headers["retry-after"] == "5"
    assert parsed(answer.content)[0] == ["crcr", "unavailable"]


@pytest.mark.parametrize(
    "text", [*HOSTILE, "\ufffe\uffff", "]]>", "&amp;", "<!--", "a\r\nb\tc", "漢字かな", "W" * 80]
)
async def test_a_label_is_text_and_stays_within_its_place(text: str) -> None:
    short = text[:2_000]
    answer = await get(FakeViews(view()), "/badge/good/backend.svg", params={"label": short})
    [label, message], _, title = parsed(answer.content)
    assert answer.status_code == 200
    assert 0 < len(label) <= 41
    assert message == "passing · 98.7%"
    assert not CONTROL_CHARACTERS.search(label + title)
    assert "\n" not in label
    unknown = await get(FakeViews(view()), "/badge/no/body.svg", params={"label": short})
    assert parsed(unknown.content)[0] == [label, "unknown"]


async def test_an_empty_label_is_the_upstreams_name() -> None:
    for asked in ("", "%20%09", "%00"[:0]):
        answer = await get(FakeViews(view()), f"/badge/good/backend.svg?label={asked}")
        assert parsed(answer.content)[0][0] == "torch"


def test_a_text_is_given_more_room_the_more_it_needs() -> None:
    assert text_width("") == 0
    assert text_width("iiii") < text_width("nnnn") < text_width("WWWW") < text_width("漢漢漢漢")
    assert text_width("passing") == pytest.approx(43, abs=4)  # Verdana at 11 pixels
