"""HTTP client of the commands, on the standard library: to ask a relay or GitHub, no package is installed.

Any server may answer. A request has one time limit for everything from the connection to the last byte, and the body is
read up to a size limit. Every status is a value; what prevents an answer is an `HttpError`. TLS is verified with the
system's trust store, or with that of `SSL_CERT_FILE`. Requests to this machine ignore the environment's proxy. An
`Authorization` header never goes to another origin after a redirect.
"""

import io
import json
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, InvalidURL
from time import monotonic
from typing import Any
from urllib.error import URLError
from urllib.parse import SplitResult, quote, urljoin, urlsplit
from urllib.request import (
    AbstractHTTPHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    getproxies,
    proxy_bypass,
)

from crcr import __version__
from crcr.errors import OutsideFault

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_MOST_BYTES = 8 * 1024 * 1024
_PART_BYTES = 64 * 1024
_MOST_CHARACTERS = 200
"""Of a reason, which may quote what a server sent."""
_TIMED_OUT = "timed out"
_DEFAULT_PORTS = {"http": 80, "https": 443}
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_UNQUOTED = "/%:@!$&'()*+,;=~?[]"
"""Characters that stay as they are in the path and the query of an address."""


def is_on_this_machine(url: str) -> bool:
    return urlsplit(url).hostname in LOOPBACK


def is_private_connection(url: str) -> bool:
    """Whether the connection is encrypted or stays on this machine."""
    return urlsplit(url).scheme == "https" or is_on_this_machine(url)


class HttpError(OutsideFault):
    """There is no answer."""


class ConnectionFailed(HttpError):
    """The server was not reached: the request has had no effect."""


class CertificateNotTrusted(ConnectionFailed):
    """The server's certificate is expired, for another name, or of an unknown issuer."""


class TimedOut(HttpError):
    """The time for the request is over; it may have had its effect."""


class AnswerBroken(HttpError):
    """The connection was lost before the end of the answer, or the answer is not HTTP."""


class AnswerTooLarge(HttpError):
    """The answer is larger than the client reads."""


class TooManyRedirects(HttpError):
    """Every answer leads to another address."""


class InvalidRequest(HttpError):
    """The request cannot be sent: its address, a header or the environment's proxy is invalid."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    ends_at: float = 0.0
    """When the time for it is over, by the client's clock."""
    most_bytes: int = _MOST_BYTES


@dataclass(frozen=True, slots=True)
class HttpResponse:
    status_code: int
    headers: Mapping[str, str] = field(default_factory=dict)
    """By their names in lower case."""
    content: bytes = b""

    @property
    def is_success(self) -> bool:
        return 200 <= self.status_code < 300

    @property
    def is_redirect(self) -> bool:
        return self.status_code in _REDIRECTS and "location" in self.headers

    def json(self) -> Any:
        """Return the decoded body; raise ValueError or RecursionError when it cannot be decoded."""
        return json.loads(self.content)


Exchange = Callable[[HttpRequest], HttpResponse]
"""Sends one request and returns its answer, a redirect as it is; raises HttpError."""


class HttpClient:
    """Requests below one address, or to full addresses. It keeps no connection, so there is nothing to close."""

    def __init__(
        self,
        base_url: str = "",
        *,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
        most_redirects: int = 0,
        most_bytes: int = _MOST_BYTES,
        exchange: Exchange | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self._timeout_s = timeout_s
        self._headers = {"User-Agent": f"crcr/{__version__}", **(headers or {})}
        self._most_redirects = most_redirects
        self._most_bytes = most_bytes
        self._exchange = exchange or self._send
        self._clock = clock

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> HttpResponse:
        return self.request("GET", path, headers)

    def post(
        self, path: str, headers: Mapping[str, str] | None = None, *, json_body: Any = None
    ) -> HttpResponse:
        return self.request("POST", path, headers, json_body=json_body)

    def request(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, *, json_body: Any = None
    ) -> HttpResponse:
        sent = {**self._headers, **(headers or {})}
        body = None
        if json_body is not None:
            body, sent["Content-Type"] = json.dumps(json_body).encode(), "application/json"
        url = f"{self.base_url}{path}" if path.startswith("/") else path
        ends_at = self._clock() + self._timeout_s
        request = HttpRequest(method, _encode(url).geturl(), sent, body, ends_at, self._most_bytes)
        for _ in range(self._most_redirects):
            answer = self._exchange(request)
            if method != "GET" or not answer.is_redirect:
                return answer
            request = _redirect(request, answer.headers["location"])
        answer = self._exchange(request)
        if self._most_redirects and method == "GET" and answer.is_redirect:
            raise TooManyRedirects(f"more than {self._most_redirects} redirects")
        return answer

    def _send(self, request: HttpRequest) -> HttpResponse:
        opener = OpenerDirector()
        opener.addheaders = []
        opener.add_handler(ProxyHandler(_find_proxy(request.url)))
        opener.add_handler(_Connections(lambda: self._remaining_s(request), lambda: self._tls))
        prepared = Request(  # noqa: S310  only http and https have a handler
            request.url, request.body, dict(request.headers), method=request.method
        )
        try:
            with opener.open(prepared, timeout=self._remaining_s(request)) as answer:
                headers = {
                    name.lower(): " ".join(value.splitlines()) for name, value in answer.headers.items()
                }
                return HttpResponse(answer.status, headers, _read(answer, request.most_bytes))
        except URLError as fault:
            raise _connection_error(fault.reason) from fault
        except TimeoutError as fault:
            raise TimedOut(_TIMED_OUT) from fault
        except (InvalidURL, ValueError) as fault:
            raise InvalidRequest from fault  # its own text may quote a token
        except (OSError, HTTPException) as fault:
            raise AnswerBroken(_describe(fault)) from fault

    def _remaining_s(self, request: HttpRequest) -> float:
        remaining_s = request.ends_at - self._clock()
        if remaining_s <= 0:
            raise TimeoutError
        return remaining_s

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context()


def _encode(url: str) -> SplitResult:
    """Return an address in ASCII, as it is sent: other characters of the path are quoted, those of the host are IDNA."""
    try:
        parts = urlsplit(url)
        _ = parts.port
        if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or "@" in parts.netloc:
            raise InvalidRequest("it is not an http:// or https:// address")
        return parts._replace(
            netloc=parts.netloc if parts.netloc.isascii() else parts.netloc.encode("idna").decode(),
            path=quote(parts.path, _UNQUOTED),
            query=quote(parts.query, _UNQUOTED),
            fragment="",
        )
    except ValueError as fault:
        raise InvalidRequest(f"it is not an address: {fault}") from fault


def _redirect(request: HttpRequest, location: str) -> HttpRequest:
    try:
        target = _encode(urljoin(request.url, location))
    except ValueError as fault:
        raise InvalidRequest(f"it redirects to what is not an address: {fault}") from fault
    if _origin(target) == _origin(urlsplit(request.url)):
        return replace(request, url=target.geturl())
    headers = {name: value for name, value in request.headers.items() if name.lower() != "authorization"}
    return replace(request, url=target.geturl(), headers=headers)


def _origin(parts: SplitResult) -> tuple[str, str | None, int]:
    return parts.scheme, parts.hostname, parts.port or _DEFAULT_PORTS[parts.scheme]


def _find_proxy(url: str) -> dict[str, str]:
    parts = urlsplit(url)
    if is_on_this_machine(url) or proxy_bypass(parts.netloc):
        return {}
    configured = getproxies()
    proxy = configured.get(parts.scheme) or configured.get("all")
    if not proxy:
        return {}
    if "://" in proxy and not proxy.lower().startswith("http://"):
        raise InvalidRequest("the environment's proxy is not an http:// address; no other kind can be used")
    return {parts.scheme: proxy}


def _connection_error(reason: object) -> HttpError:
    if isinstance(reason, TimeoutError):
        return TimedOut(_TIMED_OUT)
    if isinstance(reason, ssl.SSLCertVerificationError):
        return CertificateNotTrusted(_describe(reason))
    return ConnectionFailed(_describe(reason))


def _describe(reason: object) -> str:
    return str(reason)[:_MOST_CHARACTERS] or type(reason).__name__


def _read(answer: HTTPResponse, most_bytes: int) -> bytes:
    content = bytearray()
    while part := answer.read(_PART_BYTES):
        content += part
        if len(content) > most_bytes:
            raise AnswerTooLarge(f"the answer has more than {most_bytes:,} bytes")
    if answer.length:
        raise AnswerBroken("the connection was lost before the end of the answer")
    return bytes(content)


class _Connections(AbstractHTTPHandler):
    """Opens a connection whose answer is read within the remaining time."""

    def __init__(self, remaining_s: Callable[[], float], tls: Callable[[], ssl.SSLContext]) -> None:
        super().__init__()
        self._remaining_s = remaining_s
        self._tls = tls

    http_request = https_request = AbstractHTTPHandler.do_request_

    def http_open(self, request: Request) -> HTTPResponse:
        return self.do_open(self._limited(HTTPConnection), request)

    def https_open(self, request: Request) -> HTTPResponse:
        return self.do_open(self._limited(HTTPSConnection), request, context=self._tls())

    def _limited(self, kind: type[HTTPConnection]) -> Callable[..., HTTPConnection]:
        remaining_s = self._remaining_s

        class LimitedResponse(HTTPResponse):
            def __init__(self, sock: socket.socket, *words: Any, **more: Any) -> None:
                super().__init__(sock, *words, **more)
                self.fp = io.BufferedReader(_LimitedReader(sock, self.fp.detach(), remaining_s))

        def connect(host: str, **more: Any) -> HTTPConnection:
            connection = kind(host, **more)
            connection.response_class = LimitedResponse
            return connection

        return connect


class _LimitedReader(io.RawIOBase):
    """Reads from a socket until the time is over; a time-out of the socket alone begins anew with every byte."""

    def __init__(self, sock: socket.socket, raw: Any, remaining_s: Callable[[], float]) -> None:
        self._sock = sock
        self._raw = raw
        self._remaining_s = remaining_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(self._remaining_s())
        count: int | None = self._raw.readinto(buffer)
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()
