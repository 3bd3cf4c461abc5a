"""Link previews: tags on public pages only, and pictures of one size with bounded cost."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import BytesIO

import httpx
import pytest
from PIL import Image
from starlette.applications import Starlette

from crcr.errors import CrcrError
from crcr.show.pages import routes as page_routes
from crcr.show.pages.frame import Frame
from crcr.show.previews.picture import draw_picture, wrap_text
from crcr.show.previews.preview import Preview
from crcr.show.render.status import Status
from support.data.store_rows import OTHER, UPSTREAM, StoreRows
from support.page_reader import ParsedPage

LISTED = """
L2:
  - good/backend
  - secret/one: {visibility: hidden}
  - shy/one: {visibility: name}
"""
SITE = "https://hud.example"
HOSTILE = '"><script>alert(1)</script>\u202e\x00' + "W" * 5_000


@asynccontextmanager
async def browse(store: StoreRows, *, is_public: bool = True) -> AsyncIterator[httpx.AsyncClient]:
    frame = Frame(
        store.views, upstreams=(UPSTREAM, OTHER), clock=store.clock, public_url=SITE, is_public=is_public
    )

    async def problem(request: object, fault: Exception) -> object:
        return frame.problem(request, fault, 404, {})  # type: ignore[arg-type]

    app = Starlette(routes=page_routes.routes(frame), exception_handlers={CrcrError: problem})  # type: ignore[dict-item]
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://attacker") as client:
        yield client


def fill(store: StoreRows, title: str = "Fuse it") -> list[str]:
    store.allowlist(LISTED)
    delivery = store.pull(7, title=title)
    for name in ("good/backend", "secret/one"):
        store.dispatch(delivery, name)
        store.job(delivery, "failure", downstream=name, number=7, ended_as="failure")
    group = store.failure(delivery, "good/backend", f"RuntimeError: {title}"[:300])
    pages = ("/crcr", "/crcr/good/backend", "/crcr/pr/7", f"/crcr/commit/{7:040x}", "/crcr/failures")
    return [*pages, f"/crcr/failures/{group}"]


def preview_tags(text: str) -> dict[str, str]:
    values_of_tags = {}
    for name, attributes in ParsedPage(text).elements:
        if name == "meta":
            key = attributes.get("property") or attributes.get("name") or ""
            values_of_tags[key] = attributes.get("content") or ""
    return {key: value for key, value in values_of_tags.items() if key.startswith(("og:", "twitter:"))}


async def test_public_pages_have_a_preview_with_a_picture_of_their_state(store: StoreRows) -> None:
    pages = fill(store)
    async with browse(store) as client:
        for path in pages:
            tags_of_page = preview_tags((await client.get(path)).text)
            assert {
                "og:title",
                "og:description",
                "og:url",
                "og:image",
                "twitter:card",
            } <= tags_of_page.keys(), path
            assert tags_of_page["og:url"] == f"{SITE}{path}"
            assert tags_of_page["og:image"].startswith(f"{SITE}/og/")
            picture = await client.get(tags_of_page["og:image"].removeprefix(SITE))
            assert (picture.status_code, picture.headers["content-type"]) == (200, "image/png")
            assert Image.open(BytesIO(picture.content)).size == (1200, 630)
        pull = preview_tags((await client.get("/crcr/pr/7")).text)
        assert pull["og:title"] == f"#7 Fuse it · {UPSTREAM}"
        assert pull["og:description"].startswith("Failed: failed 1, by ada, into main.")


async def test_a_private_dashboard_has_no_previews(store: StoreRows) -> None:
    pages = fill(store)
    async with browse(store, is_public=False) as client:
        for path in pages:
            assert preview_tags((await client.get(path)).text) == {}
        for path in ("/og/summary.png", "/og/pr/7.png", "/og/backend/good/backend.png"):
            assert (await client.get(path)).status_code == 404


async def test_hidden_backends_are_in_no_preview(store: StoreRows) -> None:
    fill(store)
    async with browse(store) as client:
        hidden = await client.get("/crcr/secret/one")
        assert (hidden.status_code, preview_tags(hidden.text)) == (404, {})
        for name in ("secret/one", "no/such"):
            assert (await client.get(f"/og/backend/{name}.png")).status_code == 404
        assert (await client.get("/og/backend/shy/one.png")).status_code == 200
        shy = preview_tags((await client.get("/crcr/shy/one")).text)
        assert shy["og:description"] == f"Listed: level L2. {UPSTREAM}"
        assert "backends 2" in preview_tags((await client.get("/crcr")).text)["og:description"]


async def test_hostile_text_stays_text_in_tags_and_pictures(store: StoreRows) -> None:
    pages = fill(store, HOSTILE.replace("\x00", "\x01"))
    async with browse(store) as client:
        for path in pages:
            page = await client.get(path)
            assert "<script>alert" not in page.text
            assert len(preview_tags(page.text)["og:title"]) < 400
        assert (await client.get("/og/pr/7.png")).status_code == 200
        for odd in (
            "/og/pr/x.png",
            "/og/pr/0.png",
            "/og/commit/abc.png",
            "/og/failures/zz.png",
            "/og/backend/a%20b/c.png",
        ):
            assert (await client.get(odd)).status_code == 404, odd


@pytest.mark.parametrize("title", ["", "x", "W" * 200, "word " * 40, "\u0e01\u0300" * 100, "日本語🦀"])
def test_any_title_fits_its_picture(title: str) -> None:
    preview = Preview("o/r", title, Status("→", "odd " * 50, "no such tone"), (("Label" * 9, "V" * 60),) * 9)
    assert 1_000 < len(draw_picture(preview)) < 100_000
    assert draw_picture(preview) is draw_picture(preview)


def test_wrapping_a_text_loses_no_letter() -> None:
    for text in ("one two three four five six seven eight nine ten", "W" * 150, f"a {'b' * 90} c"):
        lines = wrap_text(text, 64, 600)
        assert "".join(lines).replace(" ", "") == text.replace(" ", "")
        assert len(lines) > 1
