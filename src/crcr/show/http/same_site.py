"""Same-site checks: local addresses to redirect to, and requests that our own pages sent."""

import re
from urllib.parse import urlsplit

from starlette.requests import Request

HOME = "/crcr"
_PATH = re.compile(r"/(?![/\\])[!-\[\]-~]{0,1999}")  # printable ASCII without the backslash
_NOT_BACK_TO = ("/crcr/login", "/crcr/logout", "/crcr/admin/")
_OWN = frozenset({"same-origin", "none"})


def local_path(asked: str | None) -> str:
    """Return the address if it is a path of this site that can be looked at, else the first page."""
    if not asked or not _PATH.fullmatch(asked):
        return HOME
    parts = urlsplit(asked)
    if parts.scheme or parts.netloc or parts.path.startswith(_NOT_BACK_TO):
        return HOME
    return asked


def is_cross_site(request: Request, public_url: str) -> bool:
    """Return whether a browser says that another site's page sent this; programs say nothing."""
    site = request.headers.get("sec-fetch-site")
    if site is not None and site.lower() not in _OWN:
        return True
    origins = request.headers.getlist("origin")
    if not origins:
        return False
    public = urlsplit(public_url.lower())
    # The host is what the browser took us for: a page elsewhere cannot make its own origin equal to it.
    hosts = {public.netloc, request.headers.get("host", "").lower()}
    ours = {f"{scheme}://{host}" for scheme in {"https", public.scheme} for host in hosts}
    return any(origin.lower() not in ours for origin in origins)
