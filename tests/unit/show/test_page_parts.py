"""Parts of pages: how an element is marked, and how the layer abbreviates what the app sends."""

from collections.abc import Callable

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from crcr.show.http.page_parts import PagePartsLayer, cut_page, mark_part

ROW = '<tr data-key="{0}"><td>{0}</td></tr>'


def main_of(*words: str) -> str:
    rows = "".join(mark_part(ROW.format(word)) for word in words)
    return f"<h1>All</h1><table><tbody>\n{rows}</tbody></table><p>end</p>"


def versions_of(*words: str) -> str:
    return "".join(cut_page(main_of(*words).encode()).versions)


async def ask(answer: Callable[[Request], Response], query: str, **headers: str) -> httpx.Response:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(Request(scope, receive))(scope, receive, send)

    transport = httpx.ASGITransport(PagePartsLayer(app))
    async with httpx.AsyncClient(transport=transport, base_url="http://relay") as http:
        return await http.get(f"/page?{query}", headers=headers)


@pytest.mark.parametrize(
    "html", ["<div><div>inner</div></div>", f"<ul>{mark_part('<li>part</li>')}</ul>", "words", ""]
)
def test_an_element_whose_end_cannot_be_found_by_its_tag_is_no_part(html: str) -> None:
    assert mark_part(html) == html


def test_a_version_is_that_of_the_content() -> None:
    assert versions_of("a", "b") == versions_of("a") + versions_of("b")
    assert versions_of("a") != versions_of("b")


async def test_rows_that_are_shown_already_become_places_in_the_request() -> None:
    have = versions_of("a", "b", "c", "d", "e")
    answer = await ask(
        lambda _: HTMLResponse(main_of("b", "c", "new", "e", "a", "d")), f"fragment=parts&have={have}"
    )
    new = mark_part(ROW.format("new")).strip()
    assert answer.text == (
        '<h1>All</h1><table><tbody>\n<template data-same="1-2"></template>\n'
        f'{new}\n<template data-same="4 0 3"></template>\n</tbody></table><p>end</p>'
    )


async def test_of_equal_rows_each_stands_for_itself() -> None:
    for shown, stubs, sent in ((("a", "a"), "0-1", 0), (("a",), "0", 1)):
        query = f"fragment=parts&have={versions_of(*shown)}"
        answer = await ask(lambda _: HTMLResponse(main_of("a", "a")), query)
        assert f'<template data-same="{stubs}"></template>' in answer.text
        assert answer.text.count("data-part") == sent


async def test_the_app_gets_one_address_for_all_readers() -> None:
    asked: list[tuple[str, str | None]] = []

    def note(request: Request) -> Response:
        asked.append((request.url.query, request.headers.get("if-none-match")))
        return HTMLResponse(main_of("a"))

    for have in (versions_of("a"), versions_of("b"), ""):
        await ask(note, f"sort=rate&fragment=parts&have={have}&v=7", **{"If-None-Match": "*"})
    assert set(asked) == {("sort=rate&v=7&fragment=main", None)}


@pytest.mark.parametrize("have", ["", "have=short", "have=%3Cscript%3E", f"have={'a' * 6_006}"])
async def test_a_request_without_valid_versions_gets_the_whole(have: str) -> None:
    answer = await ask(lambda _: HTMLResponse(main_of("a", "b")), f"fragment=parts&{have}")
    assert answer.text == main_of("a", "b")


@pytest.mark.parametrize("encodings", ["gzip", "identity"])
async def test_answers_are_compressed_and_kept(encodings: str) -> None:
    def answer_plain(request: Request) -> Response:
        assert "accept-encoding" not in request.headers
        return HTMLResponse(main_of(*map(str, range(50))), headers={"ETag": 'W/"1"'})

    query = f"fragment=parts&have={versions_of('0', '1')}"
    for _ in range(2):
        answer = await ask(answer_plain, query, **{"Accept-Encoding": encodings})
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
async def test_everything_but_a_page_passes_as_it_is(other: Response) -> None:
    answer = await ask(lambda _: other, f"fragment=parts&have={versions_of('a')}")
    assert (answer.status_code, answer.content) == (other.status_code, other.body)
    assert answer.headers.get("retry-after") == other.headers.get("retry-after")
