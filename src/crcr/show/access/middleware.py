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
from crcr.ports import RequestLimiter
from crcr.show.access.reader import ANYONE, Reader, SignInMethod
from crcr.show.access.sessions import Sessions, TokenStore
from crcr.show.http.same_site import is_cross_site, local_path

log = structlog.get_logger(__name__)

FAILED_SIGN_IN = "failed_sign_in"
_UNASKED = frozenset(
    {"/healthz", "/readyz", "/readyz/callback", "/metrics", "/robots.txt", "/api/crcr/results"}
)
"""Nobody is looked for here: probes, and the ingest, which has a token of its own and no other way in."""
_STATIC = re.compile(r"/static/[^/]*")
_OWN_PROOF = re.compile(r"/api/v1/setup/[^/]+/[^/]+/test")
"""Takes tokens that no door knows, and looks at each itself."""
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_LONGEST_NAME = 128

LOGIN = "/crcr/login"


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSettings:
    """How readers become known."""

    access: Literal["public", "token", "proxy"]
    tokens: TokenStore
    sessions: Sessions
    proxy_header: str
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...]
    public_url: str
    limits: RequestLimiter
    subject_of: Callable[[Request], str]
    """What a caller's failures are counted by."""
    refuse: Callable[[Request, CrcrError], Response]


class AccessMiddleware:
    def __init__(self, app: ASGIApp, access_settings: AccessSettings) -> None:
        self._app = app
        self._settings = access_settings
        self._nobody = replace(ANYONE, may_sign_in=bool(access_settings.tokens))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            reader = await self._admitted(request)
        except (NotSignedIn, CrossOrigin, RateLimited, LimiterUnavailable) as problem:
            await self._kept_out(request, problem)(scope, receive, self._private(send))
            return
        scope.setdefault("state", {})["reader"] = reader
        shared = self._settings.access == "public" and reader.name is None
        await self._app(scope, receive, self._varying(send) if shared else self._private(send))

    async def _admitted(self, request: Request) -> Reader:
        if request.method not in _SAFE and is_cross_site(request, self._settings.public_url):
            raise CrossOrigin(hint="use the forms of this site, opened from its own pages")
        path = _path(request)
        if path in _UNASKED or _STATIC.fullmatch(path) or _OWN_PROOF.fullmatch(path):
            return ANYONE
        if path == LOGIN:
            return self._by_session(request) or self._nobody
        reader = await self._known(request)
        if reader is None and self._settings.access != "public":
            raise NotSignedIn(hint=self._how())
        return reader or self._nobody

    async def _known(self, request: Request) -> Reader | None:
        by_proxy = self._by_proxy(request)
        known = self._by_session(request) or by_proxy
        token = _bearer(request) if self._settings.tokens else None
        if token is None:
            return known
        # A proxy may pass on the token that it was itself shown.
        return await self._by_token(request, token, known=known if by_proxy else None)

    async def _by_token(self, request: Request, unverified_token: str, known: Reader | None) -> Reader | None:
        """Only failures count against an address; over the limit not even a good token is looked at."""
        subject = self._settings.subject_of(request)
        # Counted apart: where the proxy's own token is in every request, people must still be able to sign in.
        counted = subject if known is None else f"{subject} by proxy"
        try:
            await self._settings.limits.check(FAILED_SIGN_IN, counted)
            holder = self._settings.tokens.holder(unverified_token)
            if holder is not None:
                return Reader(holder.name, holder.admin, None, SignInMethod.TOKEN, may_sign_in=True)
            await self._settings.limits.take(FAILED_SIGN_IN, counted)
        except (RateLimited, LimiterUnavailable):
            if known is None:
                raise
        if known is not None:
            return known
        log.info("token_refused", address=subject)
        raise NotSignedIn("the bearer token is not known here", hint=self._how())

    def _by_session(self, request: Request) -> Reader | None:
        cookie = request.cookies.get(self._settings.sessions.cookie_name)
        session = self._settings.sessions.read(cookie) if cookie and self._settings.tokens else None
        if session is None:
            return None
        holder = session.holder
        return Reader(holder.name, holder.admin, session.csrf, SignInMethod.SESSION, may_sign_in=True)

    def _by_proxy(self, request: Request) -> Reader | None:
        """The header counts only on a connection that a trusted proxy made, and only if there is one of it."""
        if self._settings.access != "proxy" or not self._is_from_proxy(request):
            return None
        names = request.headers.getlist(self._settings.proxy_header)
        name = names[0].strip() if len(names) == 1 else ""
        # A comma joins the headers of several proxies: nobody can tell whose the first one is.
        if not name.isprintable() or "," in name or not 0 < len(name) <= _LONGEST_NAME:
            return None
        return Reader(name, way=SignInMethod.PROXY, may_sign_in=bool(self._settings.tokens))

    def _is_from_proxy(self, request: Request) -> bool:
        try:
            peer = ip_address(request.client.host if request.client else "")
        except ValueError:
            return False
        peer = getattr(peer, "ipv4_mapped", None) or peer
        return any(peer in network for network in self._settings.trusted_proxies)

    def _how(self) -> str:
        if self._settings.access == "proxy":
            return "come through the proxy that signs people in"
        return f"sign in at {LOGIN}, or send Authorization: Bearer with a token"

    def _kept_out(self, request: Request, problem: CrcrError) -> Response:
        if isinstance(problem, NotSignedIn) and self._settings.access == "token" and _is_looked_at(request):
            query = request.scope["query_string"].decode("latin-1")
            back = quote(_path(request)) + (f"?{query}" if query else "")
            asked = local_path(back) if request.method in _SAFE else local_path(None)
            return RedirectResponse(f"{LOGIN}?{urlencode({'next': asked})}", status_code=303)
        return self._settings.refuse(request, problem)

    def _private(self, send: Send) -> Send:
        return _with_headers(send, private=True)

    def _varying(self, send: Send) -> Send:
        return _with_headers(send, private=False) if self._settings.tokens else send


def _path(request: Request) -> str:
    """The path as the app is routed by it; `request.url` is built with the caller's `Host`, which may hold one."""
    return str(request.scope["path"])


def _bearer(request: Request) -> str | None:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def _is_looked_at(request: Request) -> bool:
    """Whether a person waits for a page here: not a script for a part of one, nor a program for data."""
    path, asked = _path(request), request.query_params
    if (
        "fragment" in asked
        or "format" in asked
        or path.rpartition("/")[2].endswith((".csv", ".json", ".svg"))
    ):
        return False
    return path in {"/", "/crcr", "/api/docs"} or path.startswith("/crcr/")


def _with_headers(send: Send, *, private: bool) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": list(message["headers"])}  # the app may send a list it keeps
            headers = MutableHeaders(raw=message["headers"])
            kept = headers.get("cache-control", "")
            if "immutable" not in kept:
                headers.add_vary_header("Cookie, Authorization")
                if private and "no-store" not in kept:
                    headers["cache-control"] = "private, no-cache"
        await send(message)

    return sent
