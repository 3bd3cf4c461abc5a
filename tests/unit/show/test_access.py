"""Access control: every access mode against every kind of address, and the headers of each response."""

import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from ipaddress import ip_network
from typing import Any, Literal

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from crcr.app import create_app, problem_response
from crcr.errors import CrcrError
from crcr.ports import FAILED_SIGN_IN
from crcr.record.limits.memory import MemoryLimits, Rule
from crcr.show.access.middleware import AccessMiddleware, AccessSettings
from crcr.show.access.reader import get_reader
from crcr.show.access.sessions import NamedToken, Sessions, TokenStore
from crcr.show.http import response_headers
from crcr.show.http.same_site import local_path
from crcr.show.render.notices import NOTICES, read_notice, with_notice
from support.clock import ManualClock

Mode = Literal["public", "token", "proxy"]
ADMIN, READER = "the admin's token", "the reader's token"
PAGES = ("/", "/crcr", "/crcr/org/repo", "/crcr/nowhere", "/crcr/help", "/docs", "/docs/tasks/", "/api/docs")
DATA = (
    "/api/v1/summary",
    "/api/v1/events",
    "/api/openapi.json",
    "/badge/org/repo.svg",
    "/crcr/export.csv",
    "/crcr?format=csv",
    "/crcr?fragment=main",
    "/anything/else",
)
OPEN = (
    "/healthz",
    "/readyz",
    "/readyz/callback",
    "/metrics",
    "/static/page.css",
    "/robots.txt",
    "/crcr/login",
)


def token_store() -> TokenStore:
    digests = [sha256(token.encode()).hexdigest() for token in (ADMIN, READER)]
    return TokenStore((NamedToken("ann", digests[0], admin=True), NamedToken("rob", digests[1], admin=False)))


class GuardedApp:
    """An app behind the real access middleware; most of its endpoints return the reader that they see."""

    def __init__(
        self,
        mode: Mode,
        *,
        tokens: TokenStore | None = None,
        url: str = "http://hud.test",
        peer: str = "10.1.1.1",
    ) -> None:
        self.clock = ManualClock()
        tokens = token_store() if tokens is None else tokens
        self.sessions = Sessions(tokens, secret=b"secret", clock=self.clock, secure=url.startswith("https"))
        self.access_settings = AccessSettings(
            access=mode,
            tokens=tokens,
            sessions=self.sessions,
            proxy_header="X-Forwarded-User",
            trusted_proxies=(ip_network("10.0.0.0/8"),) if mode == "proxy" else (),
            public_url=url,
            limits=MemoryLimits({FAILED_SIGN_IN: Rule(3, 60.0)}, self.clock),
            subject_of=lambda request: request.client.host if request.client else "",
            refuse=lambda request, problem: problem_response(request, problem, problem_page),
        )
        self.app = create_app(
            hot={},
            routes=make_routes(),
            routers=[],
            background=Idle(),
            around=lambda app: response_headers.wrap_app(
                AccessMiddleware(app, self.access_settings), public_url=url, is_public=mode == "public"
            ),
            problem_page=problem_page,
        )
        transport = httpx.ASGITransport(self.app, client=(peer, 4711))
        self.http = httpx.AsyncClient(transport=transport, base_url=url)

    def cookie(self, token: str = ADMIN) -> dict[str, str]:
        holder = self.access_settings.tokens.find_holder(token)
        assert holder is not None
        return {"cookie": f"{self.sessions.cookie_name}={self.sessions.create(holder)}"}

    async def get(self, path: str, **more: str) -> httpx.Response:
        return await self.http.get(path, headers={"accept": "text/html", **more})


class Idle:
    async def start(self) -> None: ...
    async def stop(self) -> None: ...


def problem_page(request: Request, problem: CrcrError, status: int, headers: Any) -> Response | None:
    if "text/html" not in request.headers.get("accept", "") or request.url.path.startswith("/api/v1"):
        return None
    return HTMLResponse(problem.detail, status, headers=dict(headers))


def make_routes() -> list[BaseRoute]:
    async def show_reader(request: Request) -> Response:
        reader = get_reader(request)
        return JSONResponse(
            {"name": reader.name, "admin": reader.admin, "csrf": reader.csrf, "way": reader.method}
        )

    async def long_page(_: Request) -> Response:
        return HTMLResponse("page " * 1_000)

    async def small(_: Request) -> Response:
        return PlainTextResponse("x", headers={"cache-control": "no-store"})

    async def static(_: Request) -> Response:
        return PlainTextResponse("x", headers={"cache-control": "public, max-age=31536000, immutable"})

    async def stream(_: Request) -> Response:
        async def parts() -> AsyncIterator[bytes]:
            for _ in range(3):
                yield b"data: " + b"x" * 2_000 + b"\n\n"

        return StreamingResponse(parts(), media_type="text/event-stream")

    async def huge(_: Request) -> Response:
        return JSONResponse("x" * (response_headers._MOST_TAGGED + 1))

    paths = {
        "/": long_page,
        "/crcr": long_page,
        "/crcr/login": show_reader,
        "/crcr/export.csv": show_reader,
        "/crcr/{org}/{repo}": show_reader,
        "/api/docs": long_page,
        "/api/v1/summary": show_reader,
        "/api/v1/huge": huge,
        "/api/v1/events": stream,
        "/api/crcr/results": show_reader,
        "/badge/{org}/{repo}.svg": small,
        "/healthz": small,
        "/readyz": small,
        "/readyz/callback": small,
        "/metrics": small,
        "/static/{name}": static,
    }
    return [
        *response_headers.robots_route(is_public=True),
        *(Route(path, end, methods=["GET", "POST"]) for path, end in paths.items()),
    ]


@asynccontextmanager
async def guarded_app(mode: Mode, **more: Any) -> AsyncIterator[GuardedApp]:
    guarded = GuardedApp(mode, **more)
    async with guarded.http:
        yield guarded


@pytest.mark.parametrize("path", [*PAGES, *DATA, *OPEN])
async def test_a_public_dashboard_requires_no_login(path: str) -> None:
    async with guarded_app("public") as guarded:
        assert (await guarded.get(path)).status_code not in {303, 401, 403}


@pytest.mark.parametrize("path", PAGES)
async def test_a_signed_out_reader_of_a_page_is_redirected_to_the_login_with_the_way_back(path: str) -> None:
    async with guarded_app("token") as guarded:
        answer = await guarded.get(path)
        assert answer.status_code == 303
        assert answer.headers["location"] == f"/crcr/login?next={path.replace('/', '%2F')}"


@pytest.mark.parametrize("path", DATA)
@pytest.mark.parametrize("accept", ["*/*", "application/json", "text/event-stream"])
async def test_data_without_a_login_is_a_401_that_names_the_bearer_scheme(path: str, accept: str) -> None:
    async with guarded_app("token") as guarded:
        answer = await guarded.get(path, accept=accept)
        assert answer.status_code == 401
        assert answer.json()["error"]["code"] == "not_signed_in"
        assert answer.json()["error"]["request_id"]
        assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("mode", ["token", "proxy"])
@pytest.mark.parametrize("path", OPEN)
async def test_probes_and_what_the_login_page_needs_require_no_login(mode: Mode, path: str) -> None:
    async with guarded_app(mode) as guarded:
        assert (await guarded.get(path)).status_code == 200


@pytest.mark.parametrize("mode", ["public", "token", "proxy"])
@pytest.mark.parametrize(("token", "name", "admin"), [(ADMIN, "ann", True), (READER, "rob", False)])
async def test_a_bearer_token_identifies_its_holder(mode: Mode, token: str, name: str, admin: bool) -> None:
    async with guarded_app(mode) as guarded:
        answer = await guarded.get("/api/v1/summary", authorization=f"bearer {token}")
        assert answer.json() == {"name": name, "admin": admin, "csrf": None, "way": "token"}


@pytest.mark.parametrize("mode", ["public", "token", "proxy"])
@pytest.mark.parametrize("path", ["/crcr/org/repo", "/api/v1/summary"])
async def test_a_session_identifies_its_holder_on_pages_and_for_data(mode: Mode, path: str) -> None:
    async with guarded_app(mode) as guarded:
        reader = (await guarded.get(path, **guarded.cookie())).json()
        assert (reader["name"], reader["admin"], reader["way"]) == ("ann", True, "session")
        assert reader["csrf"]


async def test_the_event_stream_accepts_the_session_cookie() -> None:
    async with guarded_app("token") as guarded:
        assert (await guarded.get("/api/v1/events", **guarded.cookie(READER))).status_code == 200


@pytest.mark.parametrize("mode", ["public", "token", "proxy"])
async def test_a_wrong_token_is_refused_even_with_a_good_session(mode: Mode) -> None:
    async with guarded_app(mode, peer="203.0.113.9") as guarded:
        answer = await guarded.get("/api/v1/summary", authorization="Bearer nonsense", **guarded.cookie())
        assert answer.status_code == 401
        assert "nonsense" not in answer.text


async def test_without_configured_tokens_a_header_or_cookie_is_ignored() -> None:
    async with guarded_app("public", tokens=TokenStore(())) as guarded:
        answer = await guarded.get("/api/v1/summary", authorization="Bearer x", cookie="crcr_session=x.y")
        assert answer.json()["name"] is None


async def test_wrong_tokens_are_rate_limited_and_the_limit_also_delays_a_correct_token() -> None:
    async with guarded_app("public") as guarded:
        for _ in range(3):
            assert (await guarded.get("/api/v1/summary", authorization="Bearer wrong")).status_code == 401
        answer = await guarded.get("/api/v1/summary", authorization=f"Bearer {ADMIN}")
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) > 0
        assert (await guarded.get("/api/v1/summary", **guarded.cookie())).status_code == 200
        guarded.clock.advance(61)
        assert (await guarded.get("/api/v1/summary", authorization=f"Bearer {ADMIN}")).status_code == 200


async def test_a_trusted_proxy_names_the_reader_and_never_makes_an_admin() -> None:
    async with guarded_app("proxy") as guarded:
        reader = (await guarded.get("/api/v1/summary", **{"x-forwarded-user": "eve@example.org"})).json()
        assert reader == {"name": "eve@example.org", "admin": False, "csrf": None, "way": "proxy"}


@pytest.mark.parametrize("peer", ["203.0.113.9", "::1", "unix", ""])
async def test_a_proxy_header_from_an_untrusted_peer_is_ignored(peer: str) -> None:
    async with guarded_app("proxy", peer=peer) as guarded:
        headers = {"x-forwarded-user": "ann", "x-forwarded-for": "10.0.0.1"}
        assert (await guarded.get("/api/v1/summary", **headers)).status_code == 401


async def test_an_ipv4_mapped_address_of_the_proxy_is_trusted() -> None:
    async with guarded_app("proxy", peer="::ffff:10.0.0.7") as guarded:
        assert (await guarded.get("/crcr", **{"x-forwarded-user": "eve"})).status_code == 200


@pytest.mark.parametrize(
    "names", [[], [""], [" "], ["x" * 129], ["eve", "ann"], ["e\tve"], ["eve, ann"], [",eve"]]
)
async def test_a_missing_malformed_or_repeated_proxy_header_lets_nobody_in(names: list[str]) -> None:
    async with guarded_app("proxy") as guarded:
        proxy_headers = [("x-forwarded-user", name) for name in names]
        answer = await guarded.http.get("/crcr", headers=[("accept", "text/html"), *proxy_headers])
        assert answer.status_code == 401
        assert answer.headers["content-type"].startswith("text/html")


@pytest.mark.parametrize("mode", ["public", "token"])
async def test_without_a_configured_proxy_its_header_is_ignored(mode: Mode) -> None:
    async with guarded_app(mode) as guarded:
        answer = await guarded.get("/api/v1/summary", **{"x-forwarded-user": "ann"})
        assert answer.status_code == 401 if mode == "token" else answer.json()["name"] is None


async def test_a_proxys_own_bearer_token_does_not_lock_its_reader_out() -> None:
    async with guarded_app("proxy") as guarded:
        headers = {"x-forwarded-user": "eve", "authorization": "Bearer of.the.proxy"}
        for _ in range(5):
            assert (await guarded.get("/api/v1/summary", **headers)).json()["name"] == "eve"
        assert (await guarded.get("/api/v1/summary", **headers, **guarded.cookie())).json()[
            "way"
        ] == "session"
        alone = {"authorization": f"Bearer {ADMIN}"}
        assert (await guarded.get("/api/v1/summary", **alone)).json()["name"] == "ann"


async def test_guessing_tokens_through_the_proxy_is_rate_limited() -> None:
    async with guarded_app("proxy") as guarded:
        headers = {"x-forwarded-user": "eve"}
        for number in range(3):
            await guarded.get("/api/v1/summary", **headers, authorization=f"Bearer {number}")
        guessed = await guarded.get("/api/v1/summary", **headers, authorization=f"Bearer {ADMIN}")
        assert guessed.json()["name"] == "eve"
        guarded.clock.advance(61)
        known = await guarded.get("/api/v1/summary", **headers, authorization=f"Bearer {ADMIN}")
        assert known.json()["name"] == "ann"


@pytest.mark.parametrize("mode", ["public", "token", "proxy"])
async def test_fault_30_the_ingest_ignores_every_kind_of_sign_in(mode: Mode) -> None:
    async with guarded_app(mode) as guarded:
        for headers in (guarded.cookie(), {"authorization": f"Bearer {ADMIN}"}, {"x-forwarded-user": "ann"}):
            answer = await guarded.http.post("/api/crcr/results", headers=headers)
            assert answer.json() == {"name": None, "admin": False, "csrf": None, "way": None}


@pytest.mark.parametrize(
    ("headers", "accepted"),
    [
        ({}, True),
        ({"origin": "http://hud.test"}, True),
        ({"origin": "http://hud.test", "sec-fetch-site": "same-origin"}, True),
        ({"origin": "http://hud.test:81"}, False),
        ({"origin": "http://evil.test"}, False),
        ({"origin": "http://hud.test.evil.test"}, False),
        ({"origin": "null"}, False),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "same-site"}, False),
        ({"origin": "http://hud.test", "sec-fetch-site": "cross-site"}, False),
    ],
)
@pytest.mark.parametrize("path", ["/crcr/login", "/crcr/org/repo", "/api/v1/summary", "/api/crcr/results"])
async def test_cross_origin_posts_are_refused(path: str, headers: dict[str, str], accepted: bool) -> None:
    async with guarded_app("public") as guarded:
        answer = await guarded.http.post(path, headers={**headers, **guarded.cookie()})
        assert answer.status_code == (200 if accepted else 403)
        assert accepted or answer.json()["error"]["code"] == "cross_origin"


async def test_over_https_the_http_origin_of_the_same_host_is_cross_origin() -> None:
    async with guarded_app("public", url="https://hud.test") as guarded:
        assert (
            await guarded.http.post("/crcr/login", headers={"origin": "https://hud.test"})
        ).status_code == 200
        assert (
            await guarded.http.post("/crcr/login", headers={"origin": "http://hud.test"})
        ).status_code == 403


HOSTILE = [
    "https://evil.test/", "//evil.test", "/\\evil.test", "\\\\evil.test", "/\t/evil.test", "http:evil.test",
    "javascript:alert(1)", "crcr", "", " /crcr", "/crcr\r\nSet-Cookie: a=b", "/\x00", "/é", "/" + "x" * 3000,
    "/crcr/login?next=/crcr", "/crcr/logout", "/crcr/admin/pause", "/%0d\n", "///evil.test", "/ /evil.test",
]  # fmt: skip


@pytest.mark.parametrize("target", HOSTILE)
def test_a_redirect_target_outside_the_pages_becomes_the_front_page(target: str) -> None:
    assert local_path(target) == "/crcr"


@pytest.mark.parametrize(
    "target", ["/crcr", "/", "/crcr/a/b?range=7d&upstream=o/r", "/crcr/pr/7?x=https://a//b"]
)
def test_a_redirect_target_among_the_pages_is_kept(target: str) -> None:
    assert local_path(target) == target


async def test_the_query_of_a_page_is_kept_in_the_redirect_to_the_login() -> None:
    async with guarded_app("token") as guarded:
        answer = await guarded.get("/crcr/org/repo?range=7d&upstream=o/r")
        assert (
            answer.headers["location"]
            == "/crcr/login?next=%2Fcrcr%2Forg%2Frepo%3Frange%3D7d%26upstream%3Do%2Fr"
        )
        sent = await guarded.http.post("/crcr/org/repo", headers={"accept": "text/html"})
        assert sent.headers["location"] == "/crcr/login?next=%2Fcrcr"


@pytest.mark.parametrize("mode", ["public", "token", "proxy"])
@pytest.mark.parametrize("path", [*PAGES, *DATA, *OPEN])
async def test_every_response_is_nosniff_and_every_page_has_the_security_headers(
    mode: Mode, path: str
) -> None:
    async with guarded_app(mode) as guarded:
        for cookies in ({}, guarded.cookie()):
            answer = await guarded.get(path, **cookies)
            assert answer.headers["x-content-type-options"] == "nosniff"
            if answer.headers.get("content-type", "").startswith("text/html"):
                assert not [name for name in response_headers.PAGE_HEADERS if name not in answer.headers]
                assert "'unsafe-inline'" not in answer.headers["content-security-policy"]


async def test_hsts_is_sent_over_https_only() -> None:
    async with guarded_app("public", url="https://hud.test") as guarded:
        assert "max-age" in (await guarded.get("/crcr")).headers["strict-transport-security"]
    async with guarded_app("public") as guarded:
        assert "strict-transport-security" not in (await guarded.get("/crcr")).headers


async def test_search_engines_may_index_only_pages_of_a_public_dashboard() -> None:
    async with guarded_app("public") as guarded:
        assert "x-robots-tag" not in (await guarded.get("/crcr")).headers
        assert (await guarded.get("/api/v1/summary")).headers["x-robots-tag"] == "noindex"
        assert "Disallow: /api/" in (await guarded.get("/robots.txt")).text
    async with guarded_app("token") as guarded:
        assert (await guarded.get("/crcr", **guarded.cookie())).headers["x-robots-tag"] == "noindex"


@pytest.mark.parametrize("path", ["/crcr", "/api/v1/summary"])
async def test_responses_for_a_signed_in_reader_are_private(path: str) -> None:
    async with guarded_app("public") as guarded:
        assert "private" not in (await guarded.get(path)).headers.get("cache-control", "")
        assert "Cookie" in (await guarded.get(path)).headers["vary"]
        signed_in = await guarded.get(path, **guarded.cookie())
        assert signed_in.headers["cache-control"] == "private, no-store"
        assert "Cookie, Authorization" in signed_in.headers["vary"]
    async with guarded_app("token") as guarded:
        assert (await guarded.get("/crcr")).headers["cache-control"] == "private, no-store"
        assert "immutable" in (await guarded.get("/static/page.css")).headers["cache-control"]
        assert (await guarded.get("/healthz")).headers["cache-control"] == "no-store"


@pytest.mark.parametrize("path", ["/crcr", "/api/v1/summary"])
async def test_a_matching_etag_is_answered_with_304(path: str) -> None:
    async with guarded_app("public") as guarded:
        first = await guarded.get(path)
        tag = first.headers["etag"]
        for if_none_match in (tag, f'"other", {tag}', tag.removeprefix("W/"), "*"):
            again = await guarded.get(path, **{"if-none-match": if_none_match})
            assert (again.status_code, again.content) == (304, b"")
            assert again.headers["etag"] == tag
            assert again.headers["x-content-type-options"] == "nosniff"
        assert (await guarded.get(path, **{"if-none-match": '"other"'})).status_code == 200


async def test_the_etag_differs_between_readers() -> None:
    async with guarded_app("public") as guarded:
        tag = (await guarded.get("/api/v1/summary")).headers["etag"]
        assert (
            await guarded.get("/api/v1/summary", **guarded.cookie(), **{"if-none-match": tag})
        ).status_code == 200


@pytest.mark.parametrize("path", ["/api/v1/events", "/api/v1/huge", "/healthz"])
async def test_streams_and_huge_or_uncacheable_responses_have_no_etag(path: str) -> None:
    async with guarded_app("public") as guarded:
        assert "etag" not in (await guarded.get(path)).headers


async def test_pages_are_compressed_and_streams_are_not() -> None:
    async with guarded_app("public") as guarded:
        async with guarded.http.stream("GET", "/crcr", headers={"accept-encoding": "gzip"}) as page:
            raw = b"".join([part async for part in page.aiter_raw()])
        assert page.headers["content-encoding"] == "gzip"
        assert gzip.decompress(raw) == b"page " * 1_000
        assert "Accept-Encoding" in page.headers["vary"]
        async with guarded.http.stream(
            "GET", "/api/v1/events", headers={"accept-encoding": "gzip"}
        ) as events:
            parts = [part async for part in events.aiter_raw()]
        assert "content-encoding" not in events.headers
        assert b"".join(parts).startswith(b"data: ")


@pytest.mark.parametrize(
    "kind", ["text/html", "application/json", "text/csv", "image/svg+xml", "text/css", "text/javascript"]
)
async def test_every_text_type_is_compressed_above_a_minimum_size(kind: str) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await Response("x" * int(scope["path"][1:]), media_type=kind)(scope, receive, send)

    wrapped = response_headers.wrap_app(app, public_url="http://hud.test", is_public=True)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(wrapped), base_url="http://hud.test") as http:
        assert (await http.get("/5000")).headers["content-encoding"] == "gzip"
        assert "content-encoding" not in (await http.get("/50")).headers
        assert "content-encoding" not in (await http.get("/5000", headers={"accept-encoding": "br"})).headers


async def test_the_middleware_passes_each_event_on_before_the_next() -> None:
    """Neither the ETag nor compression nor the headers middleware buffers a stream."""
    sent: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        head = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        assert sent == ["http.response.start"]
        await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
        assert sent == ["http.response.start", "http.response.body"]
        assert head == [(b"content-type", b"text/event-stream")], "the app's own list was written to"

    async def send(message: Any) -> None:
        sent.append(message["type"])

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    access_settings = GuardedApp("public").access_settings
    wrapped = response_headers.wrap_app(
        AccessMiddleware(app, access_settings), public_url="https://hud.test", is_public=True
    )
    accept = [(b"accept-encoding", b"gzip")]
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/api/v1/events",
        "query_string": b"",
        "headers": accept,
    }
    await wrapped(
        {**scope, "client": ("192.0.2.1", 1), "server": ("hud.test", 80), "scheme": "http"}, receive, send
    )
    assert len(sent) == 2


@pytest.mark.parametrize(
    ("path", "host"),
    [
        ("//crcr", b"hud.test"),
        ("/healthz/../crcr", b"hud.test"),
        ("/static/../api/v1/summary/x", b"hud.test"),
        ("/HEALTHZ", b"hud.test"),
        ("/api/v1/summary", b"hud.test/healthz?"),
        ("/api/v1/summary", b"hud.test/static/#"),
        ("/api/v1/summary", b""),
    ],
)
async def test_no_spelling_of_a_path_or_host_bypasses_access_control(path: str, host: bytes) -> None:
    reached: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope["path"])
        await PlainTextResponse("in")(scope, receive, send)

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            reached.append(str(message["status"]))

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": [(b"host", host)]}
    more = {"client": ("192.0.2.1", 1), "server": ("hud.test", 80), "scheme": "http"}
    await AccessMiddleware(app, GuardedApp("token").access_settings)({**scope, **more}, receive, send)
    assert reached == ["401"]


def make_request(query: str) -> Request:
    return Request({"type": "http", "query_string": query.encode(), "headers": [], "path": "/crcr"})


@pytest.mark.parametrize("code", NOTICES)
@pytest.mark.parametrize("number", [0, 1, 7])
def test_the_page_after_an_action_shows_its_notice(code: str, number: int) -> None:
    address = with_notice("/crcr/a/b?done=paused&n=1&range=7d", code, number)
    assert address.startswith("/crcr/a/b?range=7d&")
    notice = read_notice(make_request(address.partition("?")[2]))
    assert notice
    assert "{}" not in notice


@pytest.mark.parametrize(
    "query",
    [
        "",
        "done=",
        "done=You+won",
        "done=%3Cb%3E&n=1",
        "done=paused&n=-1",
        "done=paused&n=1e9",
        "done=paused&n=" + "9" * 99,
    ],
)
def test_a_forged_notice_in_the_query_is_ignored(query: str) -> None:
    assert read_notice(make_request(query)) is None
