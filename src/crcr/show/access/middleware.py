"""Access control: finds the reader of each request, and refuses requests that need a known reader and have none.

It wraps the whole app except the two intakes, and admits nothing that is not listed as open here. A reader is proved by a
bearer token, a session cookie, or the header of a trusted proxy; a request with an invalid token is refused, whatever else
it carries.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Literal
from urllib.parse import quote, urlencode

import structlog
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from crcr.errors import CrcrError, CrossOrigin, LimiterUnavailable, NotSignedIn, RateLimited
from crcr.ports import FAILED_SIGN_IN, RequestLimiter
from crcr.show.access.reader import ANYONE, Reader, SignInMethod
from crcr.show.access.sessions import Sessions, TokenStore
from crcr.show.http.same_site import is_cross_site, local_path

log = structlog.get_logger(__name__)

_OPEN_PATHS = frozenset(
    {"/healthz", "/readyz", "/readyz/callback", "/metrics", "/robots.txt", "/api/crcr/results"}
)
"""Served without looking for a reader: probes, and the ingest, which checks a token of its own."""
_STATIC = re.compile(r"/static/[^/]*")
_CHECKS_OWN_TOKEN = re.compile(r"/api/v1/setup/[^/]+/[^/]+/test")
"""Accepts OIDC tokens, which are unknown here, and verifies them itself."""
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_LONGEST_NAME = 128

LOGIN = "/crcr/login"


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSettings:
    """How readers are identified."""

    access: Literal["public", "token", "proxy"]
    tokens: TokenStore
    sessions: Sessions
    proxy_header: str
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...]
    public_url: str
    limits: RequestLimiter
    subject_of: Callable[[Request], str]
    """The key by which a caller's failures are counted."""
    refuse: Callable[[Request, CrcrError], Response]


class AccessMiddleware:
    def __init__(self, app: ASGIApp, access_settings: AccessSettings) -> None:
        self._app = app
        self._settings = access_settings
        self._anonymous = replace(ANYONE, may_sign_in=bool(access_settings.tokens))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            reader = await self._find_reader(request)
        except (NotSignedIn, CrossOrigin, RateLimited, LimiterUnavailable) as problem:
            await self._respond_refused(request, problem)(scope, receive, self._send_private(send))
            return
        scope.setdefault("state", {})["reader"] = reader
        shared = self._settings.access == "public" and reader.name is None and not _has_credentials(request)
        await self._app(scope, receive, self._send_varying(send) if shared else self._send_private(send))

    async def _find_reader(self, request: Request) -> Reader:
        if request.method not in _SAFE and is_cross_site(request, self._settings.public_url):
            raise CrossOrigin(hint="use the forms of this site, opened from its own pages")
        path = _path(request)
        if path in _OPEN_PATHS or _STATIC.fullmatch(path) or _CHECKS_OWN_TOKEN.fullmatch(path):
            return ANYONE
        if path == LOGIN:
            return self._read_session(request) or self._anonymous
        reader = await self._find_known_reader(request)
        if reader is None and self._settings.access != "public":
            raise NotSignedIn(hint=self._sign_in_hint())
        return reader or self._anonymous

    async def _find_known_reader(self, request: Request) -> Reader | None:
        by_proxy = self._read_proxy_header(request)
        reader = self._read_session(request) or by_proxy
        token = _bearer_token(request) if self._settings.tokens else None
        if token is None:
            return reader
        # A proxy may pass on the token that the client sent to it.
        return await self._read_token(request, token, proxy_reader=reader if by_proxy else None)

    async def _read_token(
        self, request: Request, unverified_token: str, proxy_reader: Reader | None
    ) -> Reader | None:
        """Only failures count against an address; over the limit even a valid token is refused."""
        subject = self._settings.subject_of(request)
        # Counted separately: where the proxy adds its own token to every request, people must still be able to sign in.
        failure_key = subject if proxy_reader is None else f"{subject} by proxy"
        try:
            await self._settings.limits.check(FAILED_SIGN_IN, failure_key)
            holder = self._settings.tokens.find_holder(unverified_token)
            if holder is not None:
                return Reader(holder.name, holder.admin, None, SignInMethod.TOKEN, may_sign_in=True)
            await self._settings.limits.take(FAILED_SIGN_IN, failure_key)
        except (RateLimited, LimiterUnavailable):
            if proxy_reader is None:
                raise
        if proxy_reader is not None:
            return proxy_reader
        log.info("token_refused", address=subject)
        raise NotSignedIn("the bearer token is not known here", hint=self._sign_in_hint())

    def _read_session(self, request: Request) -> Reader | None:
        cookie = request.cookies.get(self._settings.sessions.cookie_name)
        session = self._settings.sessions.read(cookie) if cookie and self._settings.tokens else None
        if session is None:
            return None
        holder = session.holder
        return Reader(holder.name, holder.admin, session.csrf, SignInMethod.SESSION, may_sign_in=True)

    def _read_proxy_header(self, request: Request) -> Reader | None:
        """The header counts only on a connection from a trusted proxy, and only if it appears once."""
        if self._settings.access != "proxy" or not self._is_from_proxy(request):
            return None
        names = request.headers.getlist(self._settings.proxy_header)
        name = names[0].strip() if len(names) == 1 else ""
        # A comma joins the headers of several proxies: the first value may be forged.
        if not name.isprintable() or "," in name or not 0 < len(name) <= _LONGEST_NAME:
            return None
        return Reader(name, method=SignInMethod.PROXY, may_sign_in=bool(self._settings.tokens))

    def _is_from_proxy(self, request: Request) -> bool:
        try:
            peer = ip_address(request.client.host if request.client else "")
        except ValueError:
            return False
        peer = getattr(peer, "ipv4_mapped", None) or peer
        return any(peer in network for network in self._settings.trusted_proxies)

    def _sign_in_hint(self) -> str:
        if self._settings.access == "proxy":
            return "come through the proxy that signs people in"
        return f"sign in at {LOGIN}, or send Authorization: Bearer with a token"

    def _respond_refused(self, request: Request, problem: CrcrError) -> Response:
        if (
            isinstance(problem, NotSignedIn)
            and self._settings.access == "token"
            and _is_page_request(request)
        ):
            query = request.scope["query_string"].decode("latin-1")
            back = quote(_path(request)) + (f"?{query}" if query else "")
            destination = local_path(back) if request.method in _SAFE else local_path(None)
            return RedirectResponse(f"{LOGIN}?{urlencode({'next': destination})}", status_code=303)
        return self._settings.refuse(request, problem)

    def _send_private(self, send: Send) -> Send:
        return _with_headers(send, private=True)

    def _send_varying(self, send: Send) -> Send:
        return _with_headers(send, private=False) if self._settings.tokens else send


def _path(request: Request) -> str:
    """The path that routes the request; `request.url` is built with the caller's `Host`, which may contain a path."""
    return str(request.scope["path"])


def _has_credentials(request: Request) -> bool:
    return "cookie" in request.headers or "authorization" in request.headers


def _bearer_token(request: Request) -> str | None:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def _is_page_request(request: Request) -> bool:
    """Whether a person requests a page, and not a script a part of one, nor a program data."""
    path, parameters = _path(request), request.query_params
    if (
        "fragment" in parameters
        or "format" in parameters
        or path.rpartition("/")[2].endswith((".csv", ".json", ".svg", ".atom", ".png"))
    ):
        return False
    return path in {"/", "/crcr", "/docs", "/api/docs"} or path.startswith(("/crcr/", "/docs/"))


def _with_headers(send: Send, *, private: bool) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": list(message["headers"])}  # the app may send a list it keeps
            headers = MutableHeaders(raw=message["headers"])
            cache_control = headers.get("cache-control", "")
            if "immutable" not in cache_control:
                headers.add_vary_header("Cookie, Authorization")
                if private and "no-store" not in cache_control:
                    headers["cache-control"] = "private, no-store"
                    del headers["cdn-cache-control"]  # a CDN that knows it ignores the other one
        await send(message)

    return send_with_headers
