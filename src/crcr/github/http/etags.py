"""Answers to reads, kept with GitHub's ETag so that the same question costs nothing of the hour.

GitHub answers 304 while nothing has changed and does not count that against the primary limit. An ETag belongs to the
token's scope as well as to the address, as GitHub makes it from both; a token that was minted anew only costs one whole
answer. Kept in memory, up to a number of bytes, the least recently used first to go.
https://docs.github.com/en/rest/using-the-rest-api/best-practices-for-using-the-rest-api#use-conditional-requests-if-appropriate
"""

from collections import OrderedDict
from dataclasses import replace

from crcr.github.api.core import Request, Response
from crcr.github.auth.installation_tokens import Scope

_Key = tuple[str, str, Scope]
MOST_BYTES = 16 << 20
LARGEST_BYTES = 512 << 10
_OVERHEAD_BYTES = 1024


class KeptAnswers:
    def __init__(self, *, most_bytes: int = MOST_BYTES, largest_bytes: int = LARGEST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._largest_bytes = largest_bytes
        self._bytes = 0
        self._answers: OrderedDict[_Key, Response] = OrderedDict()

    def find(self, request: Request, scope: Scope) -> Response | None:
        """The answer that GitHub last gave; None where there is none, or the request names one itself."""
        if not _may_keep(request):
            return None
        key = _key(request, scope)
        if key in self._answers:
            self._answers.move_to_end(key)
        return self._answers.get(key)

    def settle(self, request: Request, scope: Scope, answer: Response, kept: Response | None) -> Response:
        """The whole answer: `kept`, which `find` gave before, where GitHub says that it still holds."""
        if kept is not None and answer.status == 304:
            return kept
        if _may_keep(request):
            self._drop(_key(request, scope))
            if answer.status == 200 and answer.headers.get("etag") and not answer.cut:
                self._keep(_key(request, scope), answer)
        return answer

    def _keep(self, key: _Key, response: Response) -> None:
        if len(response.body) > self._largest_bytes:
            return
        self._answers[key] = response
        self._bytes += _size(response)
        while self._bytes > self._most_bytes:
            self._drop(next(iter(self._answers)))

    def _drop(self, key: _Key) -> None:
        known = self._answers.pop(key, None)
        if known is not None:
            self._bytes -= _size(known)


def conditional(request: Request, kept: Response | None) -> Request:
    """The same request, for a whole answer only if it is another than the one that is kept."""
    return request if kept is None else replace(request, etag=kept.headers["etag"])


def _may_keep(request: Request) -> bool:
    return request.method == "GET" and request.etag is None


def _key(request: Request, scope: Scope) -> _Key:
    return request.path, request.accept, scope


def _size(response: Response) -> int:
    return len(response.body) + _OVERHEAD_BYTES
