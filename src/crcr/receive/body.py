"""Reading a request's body within limits: a cap for each, and a cap for all that are being read at once."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import Request

from crcr.errors import BadRequest, TooLarge, Unavailable


class Bodies:
    """The memory that unfinished bodies may take together."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._held = 0

    @asynccontextmanager
    async def read(self, request: Request, cap: int) -> AsyncIterator[bytes]:
        """Give the body; its bytes count against the common cap until the caller is done with it."""
        announced = _announced(request)
        if announced is not None and announced > cap:
            raise TooLarge(f"the body has {announced} bytes, at most {cap} are taken")
        held = 0
        parts: list[bytes] = []
        try:
            async for part in request.stream():
                held += len(part)
                self._held += len(part)
                if held > cap:
                    raise TooLarge(f"the body has more than {cap} bytes")
                if self._held > self._most:
                    raise Unavailable("too many large bodies are being read at once")
                parts.append(part)
            yield parts[0] if len(parts) == 1 else b"".join(parts)
        finally:
            self._held -= held


def _announced(request: Request) -> int | None:
    text = request.headers.get("content-length")
    if text is None:
        return None
    if not text.isdigit():
        raise BadRequest("Content-Length is not a number")
    return int(text)
