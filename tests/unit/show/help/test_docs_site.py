"""`/docs` from a folder of the package: the files it serves, their security policy, and files that it never serves."""

import base64
import hashlib
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette

from crcr.app import ProblemPage, error_handlers
from crcr.show.help import docs_site
from crcr.show.http.response_headers import wrap_app
from crcr.show.pages.frame import Frame
from support.data.store_rows import UPSTREAM, StoreRows

INLINE = "document.documentElement.dataset.ready = '1'"
PAGE = f"""<!doctype html><script src="assets/x.js"></script><script>{INLINE}</script>
<script id="c" type="application/json">{{"a": 1}}</script><p>front</p>"""
FILES = {
    "index.html": PAGE,
    "tasks/index.html": "<!doctype html><p>tasks</p>",
    "assets/javascripts/bundle.0a1b2c3d.min.js": "1",
    "files/deploy/page.html": "<script>alert(1)</script>",
    "images/a.svg": "<svg/>",
    "policy.json": '{"styles": ["sha256-c3R5bGU="]}',
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    site = tmp_path / "site"
    for name, text in FILES.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
    (tmp_path / "secret").write_text("secret")
    (site / "link.html").symlink_to(tmp_path / "secret")
    return site


def make_client(folder: Path, problem_page: ProblemPage = lambda *_: None) -> httpx.AsyncClient:
    inner = Starlette(routes=docs_site.routes(folder), exception_handlers=error_handlers(problem_page))
    app = wrap_app(inner, public_url="https://relay.example", is_public=True)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://r")


async def test_the_csp_allows_only_the_inline_scripts_of_the_page_by_hash(
    folder: Path,
) -> None:
    async with make_client(folder) as http:
        front, plain = await http.get("/docs/"), await http.get("/docs/tasks/")
    digest = base64.b64encode(hashlib.sha256(INLINE.encode()).digest()).decode()
    policy = front.headers["content-security-policy"]
    assert policy.count("'sha256-") == 2
    assert f"script-src 'self' 'sha256-{digest}';" in policy
    assert "style-src 'self' 'sha256-c3R5bGU=';" in policy
    assert "script-src 'self';" in plain.headers["content-security-policy"]
    for answer in (front, plain):
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["content-security-policy"].startswith("default-src 'none';")
        assert answer.headers["x-frame-options"] == "DENY"


@pytest.mark.parametrize(
    "path",
    [
        "/docs/../secret",
        "/docs/%2e%2e/secret",
        "/docs/..%2fsecret",
        "/docs/tasks/..%2f..%2fsecret",
        "/docs//etc/passwd",
        "/docs/%2fetc%2fpasswd",
        "/docs/link.html",
        "/docs/policy.json",
        "/docs/index.html%00",
        "/docs/tasks//",
    ],
)
async def test_only_files_of_the_folder_are_served(folder: Path, path: str) -> None:
    async with make_client(folder) as http:
        answer = await http.get(httpx.URL("http://r", raw_path=path.encode()))
    assert answer.status_code == 404
    assert "secret" not in answer.text


async def test_pages_revalidate_by_etag_and_versioned_files_are_immutable(folder: Path) -> None:
    async with make_client(folder) as http:
        page = await http.get("/docs/")
        again = await http.get("/docs/", headers={"If-None-Match": page.headers["etag"]})
        script = await http.get("/docs/assets/javascripts/bundle.0a1b2c3d.min.js")
    assert (page.status_code, page.headers["cache-control"]) == (200, "no-cache")
    assert (again.status_code, again.content) == (304, b"")
    assert "immutable" in script.headers["cache-control"]
    assert script.headers["content-type"].startswith("text/javascript")


async def test_copies_of_repository_files_are_plain_text_in_a_sandbox(folder: Path) -> None:
    async with make_client(folder) as http:
        copy, picture = await http.get("/docs/files/deploy/page.html"), await http.get("/docs/images/a.svg")
    assert copy.headers["content-type"].startswith("text/plain")
    assert picture.headers["content-type"] == "image/svg+xml"
    for answer in (copy, picture):
        assert answer.headers["content-security-policy"] == "default-src 'none'; sandbox"
        assert answer.headers["x-content-type-options"] == "nosniff"


async def test_a_path_without_its_final_slash_redirects_to_the_page(folder: Path) -> None:
    async with make_client(folder) as http:
        moved = [(await http.get(path)).headers["location"] for path in ("/docs", "/docs/tasks")]
    assert moved == ["/docs/", "/docs/tasks/"]


async def test_without_a_built_site_the_page_says_how_to_build_it(store: StoreRows, tmp_path: Path) -> None:
    frame = Frame(store.views, upstreams=(UPSTREAM,), clock=store.clock)
    async with make_client(tmp_path / "none", frame.problem) as http:
        answer = await http.get("/docs/tasks/", headers={"Accept": "text/html"})
    assert answer.status_code == 404
    assert answer.headers["content-type"].startswith("text/html")
    assert "make site" in answer.text
    assert "/crcr/help" in answer.text
