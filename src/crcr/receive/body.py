"""Reading a request's body within limits: a cap for each, and a cap for all that are being read at once."""

import asyncio

from starlette.requests import ClientDisconnect, Request

from crcr.errors import BadRequest, TooLarge, Unavailable

_DEADLINE_S = 20.0


class Bodies:
    """The memory that unfinished bodies may take together, and the time that each may take to arrive."""

    def __init__(self, most_bytes: int, deadline_s: float = _DEADLINE_S) -> None:
        self.deadline_s = deadline_s
        self._most = most_bytes
        self._held = 0

    def read(self, request: Request, cap: int) -> "Body":
        """The body, for `async with`: its bytes count against the common cap until the caller is done with it."""
        return Body(self, request, cap)

    def take(self, size: int) -> None:
        self._held += size
        if self._held > self._most:
            raise Unavailable("too many large bodies are being read at once")

    def give_back(self, size: int) -> None:
        self._held -= size


class Body:
    """One body being read. A class and not a generator, because every callback pays for it."""

    __slots__ = ("_bodies", "_cap", "_held", "_late", "_request")

    def __init__(self, bodies: Bodies, request: Request, cap: int) -> None:
        self._bodies = bodies
        self._request = request
        self._cap = cap
        self._held = 0
        self._late = False

    async def __aenter__(self) -> bytes:
        announced = _announced(self._request)
        if announced is not None:
            self._check(announced)
        # By hand what `asyncio.timeout` does, at a fifth of its price.
        reading = asyncio.current_task()
        timer = asyncio.get_running_loop().call_later(self._bodies.deadline_s, self._give_up, reading)
        try:
            return await self._read()
        except BaseException as fault:
            self._bodies.give_back(self._held)
            if isinstance(fault, asyncio.CancelledError) and self._late and reading is not None:
                reading.uncancel()
                why = f"the body did not arrive within {self._bodies.deadline_s:g} s"
                raise BadRequest(why) from None
            raise
        finally:
            timer.cancel()

    def _give_up(self, reading: "asyncio.Task[object] | None") -> None:
        self._late = True
        if reading is not None:
            reading.cancel()

    async def _read(self) -> bytes:
        """Read it all; nearly everything comes in one piece."""
        first, more = await self._part()
        if not more:
            return first
        parts = [first]
        while more:
            part, more = await self._part()
            parts.append(part)
        return b"".join(parts)

    async def _part(self) -> tuple[bytes, bool]:
        message = await self._request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part: bytes = message.get("body", b"")
        self._held += len(part)
        self._bodies.take(len(part))
        self._check(self._held)
        return part, message.get("more_body", False)

    def _check(self, size: int) -> None:
        if size > self._cap:
            raise TooLarge(f"the body has {size} bytes or more, at most {self._cap} are taken")

    async def __aexit__(self, *_: object) -> None:
        self._bodies.give_back(self._held)


def _announced(request: Request) -> int | None:
    text = request.headers.get("content-length")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        raise BadRequest("Content-Length is not a number")
    return int(text)
