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
    """An app of which every address says who asks, behind the real doors."""

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
        self.doors = AccessSettings(
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
            routes=addresses(),
            routers=[],
            background=Idle(),
            around=lambda app: response_headers.wrap_app(
                AccessMiddleware(app, self.doors), public_url=url, is_public=mode == "public"
            ),
            problem_page=problem_page,
        )
        transport = httpx.ASGITransport(self.app, client=(peer, 4711))
        self.http = httpx.AsyncClient(transport=transport, base_url=url)

    def cookie(self, token: str = ADMIN) -> dict[str, str]:
        holder = self.doors.tokens.find_holder(token)
        assert holder is not None
        return {"cookie": f"{self.sessions.cookie_name}={self.sessions.create(holder)}"}

    async def get(self, path: str, **more: str) -> httpx.Response:
        return await self.http.get(path, headers={"accept": "text/html", **more})


class Idle:
    async def start(self) -> None: ...
    async def stop(self) -> None: ...


def problem_page(request: Request, problem: CrcrError, status: int, told: Any) -> Response | None:
    if "text/html" not in request.headers.get("accept", "") or request.url.path.startswith("/api/v1"):
        return None
    return HTMLResponse(problem.detail, status, headers=dict(told))


def addresses() -> list[BaseRoute]:
    async def who(request: Request) -> Response:
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
        "/crcr/login": who,
        "/crcr/export.csv": who,
        "/crcr/{org}/{repo}": who,
        "/api/docs": long_page,
        "/api/v1/summary": who,
        "/api/v1/huge": huge,
        "/api/v1/events": stream,
        "/api/crcr/results": who,
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
async def test_a_public_dashboard_asks_nobody(path: str) -> None:
    async with guarded_app("public") as guarded:
        assert (await guarded.get(path)).status_code not in {303, 401, 403}


@pytest.mark.parametrize("path", PAGES)
async def test_a_stranger_is_sent_from_a_page_to_the_login_and_back(path: str) -> None:
    async with guarded_app("token") as guarded:
        answer = await guarded.get(path)
        assert answer.status_code == 303
        assert answer.headers["location"] == f"/crcr/login?next={path.replace('/', '%2F')}"


@pytest.mark.parametrize("path", DATA)
@pytest.mark.parametrize("accept", ["*/*", "application/json", "text/event-stream"])
async def test_a_stranger_gets_no_data_and_is_told_how(path: str, accept: str) -> None:
    async with guarded_app("token") as guarded:
        answer = await guarded.get(path, accept=accept)
        assert answer.status_code == 401
        assert answer.json()["error"]["code"] == "not_signed_in"
        assert answer.json()["error"]["request_id"]
        assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("mode", ["token", "proxy"])
@pytest.mark.parametrize("path", OPEN)
async def test_probes_and_what_a_login_needs_are_open_to_all(mode: Mode, path: str) -> None:
    async with guarded_app(mode) as guarded:
        assert (await guarded.get(path)).status_code == 200


@pytest.mark.parametrize("mode", ["public", "token", "proxy"])
@pytest.mark.parametrize(("token", "name", "admin"), [(ADMIN, "ann", True), (READER, "rob", False)])
async def test_a_bearer_token_names_its_holder(mode: Mode, token: str, name: str, admin: bool) -> None:
    async with guarded_app(mode) as guarded:
        answer = await guarded.get("/api/v1/summary", authorization=f"bearer {token}")
        assert answer.json() == {"name": name, "admin": admin, "csrf": None, "way": "token"}


@pytest.mark.parametrize("mode", ["public", "token", "proxy"])
@pytest.mark.parametrize("path", ["/crcr/org/repo", "/api/v1/summary"])
async def test_a_session_names_its_holder_on_pages_and_for_data(mode: Mode, path: str) -> None:
    async with guarded_app(mode) as guarded:
        found = (await guarded.get(path, **guarded.cookie())).json()
        assert (found["name"], found["admin"], found["way"]) == ("ann", True, "session")
        assert found["csrf"]


async def test_live_updates_come_with_the_session() -> None:
    async with guarded_app("token") as guarded:
        assert (await guarded.get("/api/v1/events", **guarded.cookie(READER))).status_code == 200


@pytest.mark.parametrize("mode", ["public", "token", "proxy"])
async def test_a_wrong_token_is_refused_even_with_a_good_session(mode: Mode) -> None:
    async with guarded_app(mode, peer="203.0.113.9") as guarded:
        answer = await guarded.get("/api/v1/summary", authorization="Bearer nonsense", **guarded.cookie())
        assert answer.status_code == 401
        assert "nonsense" not in answer.text


async def test_without_tokens_a_header_or_cookie_means_nothing() -> None:
    async with guarded_app("public", tokens=TokenStore(())) as guarded:
        answer = await guarded.get("/api/v1/summary", authorization="Bearer x", cookie="crcr_session=x.y")
        assert answer.json()["name"] is None


async def test_wrong_tokens_are_limited_and_a_good_one_waits_with_them() -> None:
    async with guarded_app("public") as guarded:
        for _ in range(3):
            assert (await guarded.get("/api/v1/summary", authorization="Bearer wrong")).status_code == 401
        answer = await guarded.get("/api/v1/summary", authorization=f"Bearer {ADMIN}")
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) > 0
        assert (await guarded.get("/api/v1/summary", **guarded.cookie())).status_code == 200
        guarded.clock.advance(61)
        assert (await guarded.get("/api/v1/summary", authorization=f"Bearer {ADMIN}")).status_code == 200


async def test_a_trusted_proxy_names_the_reader_who_may_never_act() -> None:
    async with guarded_app("proxy") as guarded:
        found = (await guarded.get("/api/v1/summary", **{"x-forwarded-user": "eve@example.org"})).json()
        assert found == {"name": "eve@example.org", "admin": False, "csrf": None, "way": "proxy"}


@pytest.mark.parametrize("peer", ["203.0.113.9", "::1", "unix", ""])
async def test_a_name_from_anybody_else_counts_for_nothing(peer: str) -> None:
    async with guarded_app("proxy", peer=peer) as guarded:
        told = {"x-forwarded-user": "ann", "x-forwarded-for": "10.0.0.1"}
        assert (await guarded.get("/api/v1/summary", **told)).status_code == 401


async def test_a_dual_stack_socket_knows_the_proxy_too() -> None:
    async with guarded_app("proxy", peer="::ffff:10.0.0.7") as guarded:
        assert (await guarded.get("/crcr", **{"x-forwarded-user": "eve"})).status_code == 200


@pytest.mark.parametrize(
    "names", [[], [""], [" "], ["x" * 129], ["eve", "ann"], ["e\tve"], ["eve, ann"], [",eve"]]
)
async def test_a_proxy_that_names_nobody_or_two_lets_nobody_in(names: list[str]) -> None:
    async with guarded_app("proxy") as guarded:
        told = [("x-forwarded-user", name) for name in names]
        answer = await guarded.http.get("/crcr", headers=[("accept", "text/html"), *told])
        assert answer.status_code == 401
        assert answer.headers["content-type"].startswith("text/html")


@pytest.mark.parametrize("mode", ["public", "token"])
async def test_where_no_proxy_is_set_up_its_header_is_only_text(mode: Mode) -> None:
    async with guarded_app(mode) as guarded:
        answer = await guarded.get("/api/v1/summary", **{"x-forwarded-user": "ann"})
        assert answer.status_code == 401 if mode == "token" else answer.json()["name"] is None


async def test_a_proxys_own_token_does_not_keep_its_reader_out() -> None:
    async with guarded_app("proxy") as guarded:
        told = {"x-forwarded-user": "eve", "authorization": "Bearer of.the.proxy"}
        for _ in range(5):
            assert (await guarded.get("/api/v1/summary", **told)).json()["name"] == "eve"
        assert (await guarded.get("/api/v1/summary", **told, **guarded.cookie())).json()["way"] == "session"
        alone = {"authorization": f"Bearer {ADMIN}"}
        assert (await guarded.get("/api/v1/summary", **alone)).json()["name"] == "ann"


async def test_tokens_cannot_be_guessed_through_the_proxy() -> None:
    async with guarded_app("proxy") as guarded:
        told = {"x-forwarded-user": "eve"}
        for number in range(3):
            await guarded.get("/api/v1/summary", **told, authorization=f"Bearer {number}")
        guessed = await guarded.get("/api/v1/summary", **told, authorization=f"Bearer {ADMIN}")
        assert guessed.json()["name"] == "eve"
        guarded.clock.advance(61)
        known = await guarded.get("/api/v1/summary", **told, authorization=f"Bearer {ADMIN}")
        assert known.json()["name"] == "ann"


@pytest.mark.parametrize("mode", ["public", "token", "proxy"])
async def test_fault_30_nobody_signed_in_is_known_to_the_ingest(mode: Mode) -> None:
    async with guarded_app(mode) as guarded:
        for told in (guarded.cookie(), {"authorization": f"Bearer {ADMIN}"}, {"x-forwarded-user": "ann"}):
            answer = await guarded.http.post("/api/crcr/results", headers=told)
            assert answer.json() == {"name": None, "admin": False, "csrf": None, "way": None}


@pytest.mark.parametrize(
    ("told", "taken"),
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
async def test_another_sites_page_sends_nothing_here(path: str, told: dict[str, str], taken: bool) -> None:
    async with guarded_app("public") as guarded:
        answer = await guarded.http.post(path, headers={**told, **guarded.cookie()})
        assert answer.status_code == (200 if taken else 403)
        assert taken or answer.json()["error"]["code"] == "cross_origin"


async def test_over_https_a_page_of_the_unencrypted_site_is_another() -> None:
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


@pytest.mark.parametrize("asked", HOSTILE)
def test_nobody_is_sent_away_from_this_site(asked: str) -> None:
    assert local_path(asked) == "/crcr"


@pytest.mark.parametrize(
    "asked", ["/crcr", "/", "/crcr/a/b?range=7d&upstream=o/r", "/crcr/pr/7?x=https://a//b"]
)
def test_a_page_of_this_site_is_gone_back_to(asked: str) -> None:
    assert local_path(asked) == asked


async def test_what_follows_the_address_is_kept_on_the_way_to_the_login() -> None:
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
async def test_no_answer_is_guessed_at_and_every_page_is_fenced_in(mode: Mode, path: str) -> None:
    async with guarded_app(mode) as guarded:
        for told in ({}, guarded.cookie()):
            answer = await guarded.get(path, **told)
            assert answer.headers["x-content-type-options"] == "nosniff"
            if answer.headers.get("content-type", "").startswith("text/html"):
                assert not [name for name in response_headers.PAGE_HEADERS if name not in answer.headers]
                assert "'unsafe-inline'" not in answer.headers["content-security-policy"]


async def test_only_an_encrypted_site_says_that_it_stays_so() -> None:
    async with guarded_app("public", url="https://hud.test") as guarded:
        assert "max-age" in (await guarded.get("/crcr")).headers["strict-transport-security"]
    async with guarded_app("public") as guarded:
        assert "strict-transport-security" not in (await guarded.get("/crcr")).headers


async def test_search_engines_find_pages_of_a_public_dashboard_only() -> None:
    async with guarded_app("public") as guarded:
        assert "x-robots-tag" not in (await guarded.get("/crcr")).headers
        assert (await guarded.get("/api/v1/summary")).headers["x-robots-tag"] == "noindex"
        assert "Disallow: /api/" in (await guarded.get("/robots.txt")).text
    async with guarded_app("token") as guarded:
        assert (await guarded.get("/crcr", **guarded.cookie())).headers["x-robots-tag"] == "noindex"


@pytest.mark.parametrize("path", ["/crcr", "/api/v1/summary"])
async def test_what_one_reader_sees_is_kept_for_that_reader_alone(path: str) -> None:
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
async def test_who_has_the_same_page_is_not_sent_it_again(path: str) -> None:
    async with guarded_app("public") as guarded:
        first = await guarded.get(path)
        tag = first.headers["etag"]
        for told in (tag, f'"other", {tag}', tag.removeprefix("W/"), "*"):
            again = await guarded.get(path, **{"if-none-match": told})
            assert (again.status_code, again.content) == (304, b"")
            assert again.headers["etag"] == tag
            assert again.headers["x-content-type-options"] == "nosniff"
        assert (await guarded.get(path, **{"if-none-match": '"other"'})).status_code == 200


async def test_another_reader_has_another_page() -> None:
    async with guarded_app("public") as guarded:
        tag = (await guarded.get("/api/v1/summary")).headers["etag"]
        assert (
            await guarded.get("/api/v1/summary", **guarded.cookie(), **{"if-none-match": tag})
        ).status_code == 200


@pytest.mark.parametrize("path", ["/api/v1/events", "/api/v1/huge", "/healthz"])
async def test_streams_and_what_is_not_to_be_kept_have_no_tag(path: str) -> None:
    async with guarded_app("public") as guarded:
        assert "etag" not in (await guarded.get(path)).headers


async def test_pages_are_packed_and_streams_go_out_as_they_come() -> None:
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
async def test_every_kind_of_text_is_packed_once_it_is_worth_it(kind: str) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await Response("x" * int(scope["path"][1:]), media_type=kind)(scope, receive, send)

    around = response_headers.wrap_app(app, public_url="http://hud.test", is_public=True)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(around), base_url="http://hud.test") as http:
        assert (await http.get("/5000")).headers["content-encoding"] == "gzip"
        assert "content-encoding" not in (await http.get("/50")).headers
        assert "content-encoding" not in (await http.get("/5000", headers={"accept-encoding": "br"})).headers


async def test_an_event_is_passed_on_before_the_next_is_there() -> None:
    """Neither tag nor packing nor headers hold a stream back."""
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

    doors = GuardedApp("public").doors
    around = response_headers.wrap_app(
        AccessMiddleware(app, doors), public_url="https://hud.test", is_public=True
    )
    accept = [(b"accept-encoding", b"gzip")]
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/api/v1/events",
        "query_string": b"",
        "headers": accept,
    }
    await around(
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
async def test_no_spelling_of_an_address_or_host_gets_past_the_door(path: str, host: bytes) -> None:
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
    await AccessMiddleware(app, GuardedApp("token").doors)({**scope, **more}, receive, send)
    assert reached == ["401"]


def make_request(query: str) -> Request:
    return Request({"type": "http", "query_string": query.encode(), "headers": [], "path": "/crcr"})


@pytest.mark.parametrize("code", NOTICES)
@pytest.mark.parametrize("number", [0, 1, 7])
def test_after_an_act_the_page_says_what_was_done(code: str, number: int) -> None:
    address = with_notice("/crcr/a/b?done=paused&n=1&range=7d", code, number)
    assert address.startswith("/crcr/a/b?range=7d&")
    said = read_notice(make_request(address.partition("?")[2]))
    assert said
    assert "{}" not in said


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
def test_nobody_puts_words_into_the_pages_mouth(query: str) -> None:
    assert read_notice(make_request(query)) is None
