"""A page as it is kept and sent: its bytes, compressed once, with an ETag, and how long it may be served."""

import gzip
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import Send

from crcr.show.http.response_headers import has_tag

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MAX_AGE_S = 1.0
"""How long a page is served without a change in the log: some of its facts are not logged, others run out with time."""
_SMALLEST_COMPRESSED = 1_024
_ENTRY_BYTES = 5_000
"""What a kept page takes beside its body: its address of up to 2,000 characters, and the objects that hold it."""
_ENCODERS: Mapping[str, Callable[[bytes], bytes]] = {
    "zstd": lambda body: zstd.compress(body, 3),
    "gzip": lambda body: gzip.compress(body, 5, mtime=0),
}
"""By preference."""
_KEPT_TYPES = (
    "text/html",
    "application/json",
    "image/svg+xml",
    "application/atom+xml",
    "image/png",
    "text/plain",
)
_LEFT_OUT_OF_304 = ("content-length", "content-type", "content-encoding")
_SHARED = {
    "Cache-Control": "public, max-age=0, must-revalidate, s-maxage=10",
    "CDN-Cache-Control": "public, max-age=10, stale-while-revalidate=10",
}
"""For caches between the relay and its readers. A browser asks each time, and mostly gets a 304: it must not be allowed
`stale-while-revalidate`, since it would show an old page to a reader who follows a link or a live event."""


@dataclass(frozen=True, slots=True)
class RenderedPage:
    """The whole answer to a request. `version` is a change that the page is not older than."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    tag: str | None
    """The ETag of an answer that may be kept."""
    version: int
    rendered_at: datetime
    expires_at: datetime
    _encoded: dict[str, bytes] = field(default_factory=dict)
    """The body in each encoding that a client asked for."""

    @property
    def size(self) -> int:
        """How much it takes at most, with both encodings."""
        return 2 * len(self.body) + _ENTRY_BYTES

    def is_current(self, version: int, now: datetime) -> bool:
        """Also False after the clock was set back: the page would be served until its time comes again."""
        return self.version >= version and self.rendered_at <= now < self.expires_at

    async def send(self, send: Send, request: Headers, *, may_be_shared: bool) -> None:
        """Send it, or 304 to a client that has it; `may_be_shared` with caches between."""
        headers = MutableHeaders(raw=list(self.headers))
        if self.tag is not None and may_be_shared and headers.get("cache-control", "no-cache") == "no-cache":
            headers.update(_SHARED)
        if self.tag is not None and has_tag(request.get("if-none-match", ""), self.tag):
            for name in _LEFT_OUT_OF_304:
                del headers[name]
            await send({"type": "http.response.start", "status": 304, "headers": headers.raw})
            await send({"type": "http.response.body", "body": b""})
            return
        body, encoding = self._encode(request.get("accept-encoding", ""))
        if encoding is not None:
            headers["Content-Encoding"] = encoding
        headers["Content-Length"] = str(len(body))
        await send({"type": "http.response.start", "status": self.status, "headers": headers.raw})
        await send({"type": "http.response.body", "body": body})

    def _encode(self, accepted: str) -> tuple[bytes, str | None]:
        """Return the body in the best encoding that the client accepts, and its name; each is made once."""
        encoding = next((name for name in _ENCODERS if name in accepted), None)
        if encoding is None or len(self.body) < _SMALLEST_COMPRESSED:
            return self.body, None
        if encoding not in self._encoded:
            self._encoded[encoding] = _ENCODERS[encoding](self.body)
        return self._encoded[encoding], encoding


def make_page(
    status: int,
    raw_headers: list[tuple[bytes, bytes]],
    body: bytes,
    *,
    version: int,
    rendered_at: datetime,
    expires_at: datetime,
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
    if len(body) >= _SMALLEST_COMPRESSED:
        headers.add_vary_header("Accept-Encoding")
    return RenderedPage(status, tuple(headers.raw), body, tag, version, rendered_at, expires_at)


def expiry(now: datetime, max_age_s: float) -> datetime:
    """Return when a page of this time is rendered again; its windows begin at full hours."""
    next_hour = now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    return min(now + timedelta(seconds=max_age_s), next_hour)
