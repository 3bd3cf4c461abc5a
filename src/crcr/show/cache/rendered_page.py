"""A page as it is kept and sent: its bytes, compressed once, with an ETag, and how long it may be served."""

import gzip
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import Send

from crcr.show.http.response_headers import has_tag

MAX_AGE_S = 1.0
"""How long a page is served without a change in the log: some of its facts are not logged, others run out with time."""
_SMALLEST_COMPRESSED = 1_024
_COMPRESSION_LEVEL = 5
_KEPT_TYPES = ("text/html", "application/json", "image/svg+xml")
_LEFT_OUT_OF_304 = ("content-length", "content-type", "content-encoding")
SHARED = "public, max-age=0, s-maxage=10, stale-while-revalidate=10"
"""For caches between the relay and its readers; a browser asks each time, and mostly gets a 304."""


@dataclass(frozen=True, slots=True)
class RenderedPage:
    """The whole answer to a request. `version` is a change that the page is not older than."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    is_gzip: bool
    tag: str | None
    """The ETag of an answer that may be kept."""
    version: int
    expires_at: datetime

    @property
    def size(self) -> int:
        return len(self.body) + sum(len(name) + len(value) for name, value in self.headers)

    def is_current(self, version: int, now: datetime) -> bool:
        return self.version >= version and now < self.expires_at

    async def send(self, send: Send, request: Headers, *, may_be_shared: bool) -> None:
        """Send it, or 304 to a client that has it; `may_be_shared` with caches between."""
        headers = MutableHeaders(raw=list(self.headers))
        if self.tag is not None and may_be_shared and headers.get("cache-control", "no-cache") == "no-cache":
            headers["Cache-Control"] = SHARED
        if self.tag is not None and has_tag(request.get("if-none-match", ""), self.tag):
            for name in _LEFT_OUT_OF_304:
                del headers[name]
            await send({"type": "http.response.start", "status": 304, "headers": headers.raw})
            await send({"type": "http.response.body", "body": b""})
            return
        body = self.body
        if self.is_gzip and _accepts_gzip(request):
            headers["Content-Encoding"] = "gzip"
        elif self.is_gzip:
            body = gzip.decompress(body)
        headers["Content-Length"] = str(len(body))
        await send({"type": "http.response.start", "status": self.status, "headers": headers.raw})
        await send({"type": "http.response.body", "body": body})


def make_page(
    status: int, raw_headers: list[tuple[bytes, bytes]], body: bytes, *, version: int, expires_at: datetime
) -> RenderedPage:
    headers = MutableHeaders(raw=list(raw_headers))
    del headers["content-length"]
    is_kept = (
        status == 200
        and headers.get("content-type", "").startswith(_KEPT_TYPES)
        and "no-store" not in headers.get("cache-control", "")
        and "set-cookie" not in headers
    )
    tag = f'W/"{sha256(body).hexdigest()[:32]}"' if is_kept else None
    if tag is not None:
        headers["ETag"] = tag
    is_gzip = len(body) >= _SMALLEST_COMPRESSED
    if is_gzip:
        headers.add_vary_header("Accept-Encoding")
        body = gzip.compress(body, _COMPRESSION_LEVEL, mtime=0)
    return RenderedPage(
        status, tuple(headers.raw), body, is_gzip=is_gzip, tag=tag, version=version, expires_at=expires_at
    )


def expiry(now: datetime, max_age_s: float) -> datetime:
    """Return when a page of this time is rendered again; its windows begin at full hours."""
    next_hour = now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    return min(now + timedelta(seconds=max_age_s), next_hour)


def _accepts_gzip(request: Headers) -> bool:
    return "gzip" in request.get("accept-encoding", "")
