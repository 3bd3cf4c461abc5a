"""Same-site checks: local addresses to redirect to, and requests that our own pages sent."""

import re
from urllib.parse import urlsplit

from starlette.requests import Request

HOME = "/crcr"
_PATH = re.compile(r"/(?![/\\])[!-\[\]-~]{0,1999}")  # printable ASCII without the backslash
_NOT_BACK_TO = ("/crcr/login", "/crcr/logout", "/crcr/admin/")
_OWN = frozenset({"same-origin", "none"})


def local_path(path: str | None) -> str:
    """Return the address if it is a path of a page of this site, else the first page."""
    if not path or not _PATH.fullmatch(path):
        return HOME
    parts = urlsplit(path)
    if parts.scheme or parts.netloc or parts.path.startswith(_NOT_BACK_TO):
        return HOME
    return path


def is_cross_site(request: Request, public_url: str) -> bool:
    """Return whether a browser's headers say that another site sent this; other programs send no such header."""
    site = request.headers.get("sec-fetch-site")
    if site is not None and site.lower() not in _OWN:
        return True
    origins = request.headers.getlist("origin")
    if not origins:
        return False
    public = urlsplit(public_url.lower())
    # The host that the browser addressed: a page of another site cannot have an equal origin.
    hosts = {public.netloc, request.headers.get("host", "").lower()}
    ours = {f"{scheme}://{host}" for scheme in {"https", public.scheme} for host in hosts}
    return any(origin.lower() not in ours for origin in origins)
