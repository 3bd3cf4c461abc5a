"""Page parts: how an element is marked, and how the layer replaces parts that the reader already has."""

from collections.abc import Callable

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from crcr.show.http.page_parts import PagePartsLayer, cut_page, mark_part

ROW = '<tr data-key="{0}"><td>{0}</td></tr>'


def render_main(*words: str) -> str:
    rows = "".join(mark_part(ROW.format(word)) for word in words)
    return f"<h1>All</h1><table><tbody>\n{rows}</tbody></table><p>end</p>"


def part_versions(*words: str) -> str:
    return "".join(cut_page(render_main(*words).encode()).versions)


async def get(answer: Callable[[Request], Response], query: str, **headers: str) -> httpx.Response:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(Request(scope, receive))(scope, receive, send)

    transport = httpx.ASGITransport(PagePartsLayer(app))
    async with httpx.AsyncClient(transport=transport, base_url="http://relay") as http:
        return await http.get(f"/page?{query}", headers=headers)


@pytest.mark.parametrize(
    "html", ["<div><div>inner</div></div>", f"<ul>{mark_part('<li>part</li>')}</ul>", "words", ""]
)
def test_an_element_with_a_nested_element_of_its_tag_is_not_marked(html: str) -> None:
    assert mark_part(html) == html


def test_a_version_depends_on_the_content_only() -> None:
    assert part_versions("a", "b") == part_versions("a") + part_versions("b")
    assert part_versions("a") != part_versions("b")


async def test_rows_that_the_reader_has_become_indexes_into_its_versions() -> None:
    have = part_versions("a", "b", "c", "d", "e")
    answer = await get(
        lambda _: HTMLResponse(render_main("b", "c", "new", "e", "a", "d")), f"fragment=parts&have={have}"
    )
    new = mark_part(ROW.format("new")).strip()
    assert answer.text == (
        '<h1>All</h1><table><tbody>\n<template data-same="1-2"></template>\n'
        f'{new}\n<template data-same="4 0 3"></template>\n</tbody></table><p>end</p>'
    )


async def test_equal_rows_are_matched_one_to_one() -> None:
    for shown, stubs, sent in ((("a", "a"), "0-1", 0), (("a",), "0", 1)):
        query = f"fragment=parts&have={part_versions(*shown)}"
        answer = await get(lambda _: HTMLResponse(render_main("a", "a")), query)
        assert f'<template data-same="{stubs}"></template>' in answer.text
        assert answer.text.count("data-part") == sent


async def test_the_app_gets_one_url_for_all_readers() -> None:
    requests: list[tuple[str, str | None]] = []

    def record(request: Request) -> Response:
        requests.append((request.url.query, request.headers.get("if-none-match")))
        return HTMLResponse(render_main("a"))

    for have in (part_versions("a"), part_versions("b"), ""):
        await get(record, f"sort=rate&fragment=parts&have={have}&v=7", **{"If-None-Match": "*"})
    assert set(requests) == {("sort=rate&v=7&fragment=main", None)}


@pytest.mark.parametrize("have", ["", "have=short", "have=%3Cscript%3E", f"have={'a' * 6_006}"])
async def test_a_request_without_valid_versions_gets_the_whole_page(have: str) -> None:
    answer = await get(lambda _: HTMLResponse(render_main("a", "b")), f"fragment=parts&{have}")
    assert answer.text == render_main("a", "b")


@pytest.mark.parametrize("encodings", ["gzip", "identity"])
async def test_responses_are_compressed_and_cached(encodings: str) -> None:
    def answer_plain(request: Request) -> Response:
        assert "accept-encoding" not in request.headers
        return HTMLResponse(render_main(*map(str, range(50))), headers={"ETag": 'W/"1"'})

    query = f"fragment=parts&have={part_versions('0', '1')}"
    for _ in range(2):
        answer = await get(answer_plain, query, **{"Accept-Encoding": encodings})
        assert answer.text.count("data-part") == 48
        assert answer.headers.get("content-encoding", "identity") == encodings
        assert "etag" not in answer.headers
        assert answer.headers["vary"] == "Accept-Encoding"


@pytest.mark.parametrize(
    "other",
    [
        RedirectResponse("/crcr/login"),
        HTMLResponse("not now", 503, headers={"Retry-After": "3"}),
        Response('{"ok": true}', media_type="application/json"),
    ],
)
async def test_responses_other_than_pages_pass_unchanged(other: Response) -> None:
    answer = await get(lambda _: other, f"fragment=parts&have={part_versions('a')}")
    assert (answer.status_code, answer.content) == (other.status_code, other.body)
    assert answer.headers.get("retry-after") == other.headers.get("retry-after")
