"""`/docs`: the documentation site that `make site` built into this package, for installations without internet access.

A file is served if its whole path was in the folder when the process first looked, so that no address leads out of the
folder. The generator writes inline scripts into its pages: each page's policy allows exactly the scripts that this page had
when it was built, by their hashes. All other pages of the relay keep their policy without inline scripts.
"""

import asyncio
import json
import re
from base64 import b64encode
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from importlib.resources import files
from pathlib import Path, PurePosixPath

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from crcr.errors import NotFound
from crcr.show.http.response_headers import has_tag

_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
}
_POLICY_FILE = "policy.json"
"""Written by tools/build_site.py: hashes of the style sheets that the site's script adds to a page."""
_COPIES = "files/"
"""Files of the repository that pages link to: text, whatever their names are."""
_VERSIONED = re.compile(r"assets/.*\.[0-9a-f]{8}\.min\.(?:css|js)")
_SCRIPT = re.compile(
    rb"<script(?![^>]*\ssrc=)(?![^>]*\stype=.?application/json)[^>]*>(.*?)</script>", re.DOTALL
)
_PAGE_POLICY = (
    "default-src 'none'; script-src 'self'{scripts}; style-src 'self'{styles}; img-src 'self' data:; connect-src 'self'; "
    "worker-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_SCRIPT_POLICY = "default-src 'none'; script-src 'self'; connect-src 'self'"
"""The search is a worker, and a worker has the policy of its own file."""
_FILE_POLICY = "default-src 'none'; sandbox"


@dataclass(frozen=True, slots=True)
class SiteFile:
    media_type: str
    tag: str
    policy: str
    cache_control: str


def routes(folder: Path | None = None) -> list[BaseRoute]:
    site = DocsSite(folder or Path(str(files("crcr.show") / "help" / "site")))
    return [Route("/docs", site.redirect_to_front), Route("/docs/{path:path}", site.serve)]


class DocsSite:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, SiteFile] = {}
        """Files that were requested before."""

    @cached_property
    def _styles(self) -> tuple[str, ...]:
        path = self._folder / _POLICY_FILE
        return tuple(json.loads(path.read_bytes())["styles"]) if path.is_file() else ()

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(
            path.relative_to(self._folder).as_posix()
            for path in self._folder.rglob("*")
            if path.is_file() and not path.is_symlink() and path.name != _POLICY_FILE
        )

    async def redirect_to_front(self, _: Request) -> Response:
        return RedirectResponse("/docs/", status_code=308)

    async def serve(self, request: Request) -> Response:
        path = request.path_params["path"]
        name = f"{path}index.html" if path == "" or path.endswith("/") else path
        if name not in self._names and f"{name}/index.html" in self._names:
            return RedirectResponse(f"/docs/{name}/", status_code=308)
        if name not in self._names:
            raise self._missing()
        file, body = await asyncio.to_thread(self._read, name)
        headers = {
            "ETag": file.tag,
            "Cache-Control": file.cache_control,
            "Content-Security-Policy": file.policy,
            "X-Content-Type-Options": "nosniff",
        }
        if has_tag(request.headers.get("if-none-match", ""), file.tag):
            return Response(status_code=304, headers=headers)
        return Response(body, media_type=file.media_type, headers=headers)

    def _missing(self) -> NotFound:
        if "index.html" in self._names:
            return NotFound("The documentation has no such page.", hint="its front page is /docs/")
        return NotFound(
            "The documentation is not built into this installation.",
            hint="in a checkout, run make site and restart the relay; /crcr/help explains the pages",
        )

    def _read(self, name: str) -> tuple[SiteFile, bytes]:
        body = (self._folder / name).read_bytes()
        if name not in self._files:
            self._files[name] = _describe(name, body, self._styles)
        return self._files[name], body


def _describe(name: str, body: bytes, styles: tuple[str, ...]) -> SiteFile:
    is_copy = name.startswith(_COPIES) and not name.endswith("/index.html")
    media_type = "text/plain" if is_copy else _TYPES.get(PurePosixPath(name).suffix, "text/plain")
    is_versioned = _VERSIONED.fullmatch(name) is not None
    return SiteFile(
        media_type,
        tag=f'W/"{sha256(body).hexdigest()[:32]}"',
        policy=_policy(media_type, body, styles),
        cache_control="public, max-age=31536000, immutable" if is_versioned else "no-cache",
    )


def _policy(media_type: str, body: bytes, styles: tuple[str, ...]) -> str:
    if media_type == "text/javascript":
        return _SCRIPT_POLICY
    if media_type != "text/html":
        return _FILE_POLICY
    scripts = dict.fromkeys(_SCRIPT.findall(body))
    hashes = (f"sha256-{b64encode(sha256(script).digest()).decode()}" for script in scripts)
    return _PAGE_POLICY.format(scripts=_sources(hashes), styles=_sources(styles))


def _sources(hashes: Iterable[str]) -> str:
    return "".join(f" '{value}'" for value in hashes)
