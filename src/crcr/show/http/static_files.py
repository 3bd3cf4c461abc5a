"""The style sheets, scripts and icon of the pages, read once and served from memory.

Their addresses carry a digest of the content, so that browsers can cache them for ever and never use an old one.
"""

import hashlib
from functools import cache
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from crcr.errors import NotFound

_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


@cache
def load_static_files() -> "StaticFiles":
    return StaticFiles()


class StaticFiles:
    def __init__(self) -> None:
        folder = files("crcr.show") / "static"
        self._content = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
        self._digests = {
            name: hashlib.sha256(content).hexdigest()[:16] for name, content in self._content.items()
        }

    def address(self, name: str) -> str:
        return f"/static/{name}?v={self._digests[name]}"

    def route(self) -> Route:
        return Route("/static/{name}", self._serve)

    async def _serve(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._content:
            raise NotFound("there is no such file")
        is_current = request.query_params.get("v") == self._digests[name]
        headers = {
            "Cache-Control": "public, max-age=31536000, immutable" if is_current else "no-cache",
            "X-Content-Type-Options": "nosniff",
            "Content-Security-Policy": "default-src 'none'; sandbox",
        }
        return Response(self._content[name], media_type=_TYPES[name.rpartition(".")[2]], headers=headers)
