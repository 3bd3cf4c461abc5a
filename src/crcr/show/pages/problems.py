"""Problems as pages: what the JSON API says in its one error shape, said to somebody who looks."""

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

from crcr.errors import CrcrError
from crcr.show.pages.frame import Frame

_TITLES: Mapping[int, str] = {
    400: "Not understood",
    401: "Not signed in",
    403: "Not allowed",
    404: "Not found",
    405: "Not possible here",
    409: "Not possible now",
    413: "Too large",
    429: "Too many attempts",
    503: "The data cannot be read right now",
}


class ProblemPages:
    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    def page(
        self, request: Request, problem: CrcrError, status: int, headers: Mapping[str, str]
    ) -> Response | None:
        if not _is_page(request):
            return None
        title = _TITLES.get(status, "Something went wrong")
        here = self._frame.here(request)
        answer = self._frame.page(request, "problem.html", here, title=title, problem=problem)
        answer.status_code = status
        answer.headers.update(headers)
        return answer


def _is_page(request: Request) -> bool:
    """Whether people look at this address, and this caller can show a page."""
    path = str(request.scope["path"])
    looked_at = path in {"/", "/crcr", "/api/docs"} or path.startswith("/crcr/")
    return looked_at and _shows_pages(request.headers.get("accept", ""))


def _shows_pages(accept: str) -> bool:
    """A browser says so, in whichever case; who takes anything gets what stands at such addresses: a page."""
    kinds = {part.partition(";")[0].strip().lower() for part in accept.split(",")}
    return "text/html" in kinds or (bool(kinds & {"*/*", "text/*", ""}) and "application/json" not in kinds)
