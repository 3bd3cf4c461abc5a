"""Parse a page's HTML, assert that hostile text does nothing in it, and turn errors into JSON."""

import re
from html.parser import HTMLParser

from fastapi import Request
from fastapi.responses import JSONResponse

from crcr.errors import BadRequest, CrcrError, NotFound

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "javascript:alert(1)",
    "{{ 7 * 7 }}",
    "abc\u202edcba\u2066\u200b",
    "nul\x00bell\x07esc\x1b[31m",
    "'; DROP TABLE jobs; --",
    "x" * 1_000_000,
    "😀 ünïcode עברית",
)
CONTROL_CHARACTERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069]")


class ParsedPage(HTMLParser):
    """The elements of a page with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def attributes(self, name: str) -> list[str]:
        return [attrs[name] or "" for _, attrs in self.elements if name in attrs]


def assert_inert(page: ParsedPage, text: str) -> None:
    """Assert that nothing on the page runs, links to another scheme than http(s), or reorders the text around it."""
    scripts = [attrs for tag, attrs in page.elements if tag == "script"]
    assert all((attrs.get("src") or "").startswith("/static/") for attrs in scripts)
    assert not [attrs for _, attrs in page.elements if any(name.startswith("on") for name in attrs)]
    assert not page.attributes("style")
    assert not [tag for tag, _ in page.elements if tag in {"style", "iframe", "object"}]
    assert {tag for tag, attrs in page.elements if attrs.get("src")} <= {"script", "img"}
    for href in page.attributes("href"):
        assert href.startswith(("/", "#", "https://", "http://", "?")), href
    assert not CONTROL_CHARACTERS.search(text)


_STATUS: dict[type[CrcrError], int] = {NotFound: 404, BadRequest: 400}


async def error_as_json(_: Request, failure: Exception) -> JSONResponse:
    assert isinstance(failure, CrcrError)
    body = {"ok": False, "error": {"code": failure.code, "detail": failure.detail, "hint": failure.hint}}
    return JSONResponse(body, status_code=_STATUS.get(type(failure), 503))
