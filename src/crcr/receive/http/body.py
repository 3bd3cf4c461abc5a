"""Reads request bodies within limits, and decodes JSON.

There is a cap for each body, a cap for all bodies in memory, and a deadline. Large bodies take at most half of the memory,
and few per address, so that small ones always find room. When the memory is full, the body that has been arriving for the
longest is dropped: slow senders lose their place to fast ones and cannot block anybody by waiting. JSON is decoded by
narrow decoders that skip undeclared fields; skipped parts are still checked for JSON's grammar, and the whole body for
UTF-8, so that decoding the same bytes in full later does not fail.
"""

import asyncio
from collections import Counter
from ipaddress import IPv4Network, IPv6Network
from typing import TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from crcr.errors import BadRequest, CrcrError, RateLimited, TooLarge, Unavailable
from crcr.receive.http.client_address import client_address, limit_subject

LARGE_BYTES = 1024 * 1024
"""Bodies above this are large. Nearly all webhooks and reports have some tens of kilobytes."""
LARGE_PER_ADDRESS = 4
_DEADLINE_S = 20.0
_LENGTH_DIGITS = 18


class BodyReader:
    """Limits the memory of all bodies together, and the time that each may take to arrive."""

    def __init__(
        self,
        most_bytes: int,
        deadline_s: float = _DEADLINE_S,
        *,
        trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = (),
        large_bytes: int = LARGE_BYTES,
    ) -> None:
        self.deadline_s = deadline_s
        self.large_bytes = large_bytes
        self._trusted_proxies = trusted_proxies
        self._most = most_bytes
        self._held = 0
        self._most_large = most_bytes // 2
        self._held_large = 0
        self._large_of: Counter[str] = Counter()
        # Both in the order in which the first bytes arrived.
        self._arriving: dict[BodyInProgress, None] = {}
        self._arriving_large: dict[BodyInProgress, None] = {}

    def read(self, request: Request, cap: int) -> "BodyInProgress":
        """Return the body for `async with`: its bytes count against the common cap until the block ends."""
        return BodyInProgress(self, request, cap)

    def take(self, body: "BodyInProgress", size: int) -> None:
        """Count bytes that have arrived; raise `Unavailable` when there is no room for them."""
        body.held += size
        self._held += size
        if body.address is not None:
            self._held_large += size
            self._make_room_among_large(body)
        while self._held > self._most:
            self._drop(next(iter(self._arriving), body), body)

    def take_large(self, body: "BodyInProgress", request: Request) -> None:
        """Count the body as large from now on; raise `RateLimited` when its address has too many already."""
        peer = request.client.host if request.client else None
        forwarded_for = request.headers.getlist("x-forwarded-for")
        address = limit_subject(client_address(peer, forwarded_for, self._trusted_proxies))
        if self._large_of[address] >= LARGE_PER_ADDRESS:
            raise RateLimited(
                f"your address is sending {LARGE_PER_ADDRESS} bodies of more than {self.large_bytes:,} bytes already",
                retry_after_s=Unavailable.retry_after_s,
                hint="send large bodies one after the other",
            )
        self._large_of[address] += 1
        body.address = address
        self._held_large += body.held
        if body in self._arriving:
            self._arriving_large[body] = None
        self._make_room_among_large(body)

    def wait_for_more(self, body: "BodyInProgress") -> None:
        """Mark the body as incomplete: until it has arrived, it can be dropped for another one."""
        self._arriving[body] = None
        if body.address is not None:
            self._arriving_large[body] = None

    def arrived(self, body: "BodyInProgress") -> None:
        self._arriving.pop(body, None)
        self._arriving_large.pop(body, None)

    def release(self, body: "BodyInProgress") -> None:
        """Release the body's memory. Idempotent."""
        self.arrived(body)
        self._held -= body.held
        if body.address is not None:
            self._held_large -= body.held
            self._large_of[body.address] -= 1
            if not self._large_of[body.address]:
                del self._large_of[body.address]
        body.held, body.address = 0, None

    def _make_room_among_large(self, body: "BodyInProgress") -> None:
        while self._held_large > self._most_large:
            self._drop(next(iter(self._arriving_large), body), body)

    def _drop(self, oldest: "BodyInProgress", newcomer: "BodyInProgress") -> None:
        full = Unavailable("too many bodies are being read at once")
        if oldest is newcomer:
            raise full
        self.release(oldest)
        oldest.abort(full)


class BodyInProgress:
    """One body being read. A class, not a generator, because every callback pays for it."""

    __slots__ = ("_abort_reason", "_bodies", "_cap", "_reading", "_request", "address", "held")

    def __init__(self, bodies: BodyReader, request: Request, cap: int) -> None:
        self._bodies = bodies
        self._request = request
        self._cap = cap
        self._reading: asyncio.Task[object] | None = None
        self._abort_reason: CrcrError | None = None
        self.held = 0
        self.address: str | None = None
        """The sender's address, once the body counts as large."""

    async def __aenter__(self) -> bytes:
        # What `asyncio.timeout` does, at a fifth of its cost.
        self._reading = asyncio.current_task()
        timer = asyncio.get_running_loop().call_later(self._bodies.deadline_s, self._time_out)
        try:
            self._check_content_length()
            body = await self._read()
        except BaseException as fault:
            self._bodies.release(self)
            if isinstance(fault, asyncio.CancelledError) and self._abort_reason and self._reading is not None:
                self._reading.uncancel()
                raise self._pop_reason() from None
            raise
        finally:
            timer.cancel()
        self._bodies.arrived(self)
        return body

    async def __aexit__(self, *_: object) -> None:
        self._bodies.release(self)

    def abort(self, reason: CrcrError) -> None:
        """End the reading with this error. Only for a body that is still arriving."""
        if self._abort_reason is None and self._reading is not None:
            self._abort_reason = reason
            self._reading.cancel()

    def _pop_reason(self) -> CrcrError:
        """Return and forget the error: its traceback holds this body, and a reference cycle would delay the release."""
        reason, self._abort_reason = self._abort_reason, None
        return reason or Unavailable()

    def _time_out(self) -> None:
        self.abort(BadRequest(f"the body did not arrive within {self._bodies.deadline_s:g} s"))

    def _check_content_length(self) -> None:
        length = _content_length(self._request)
        if length is None:
            return
        self._check(length)
        if length > self._bodies.large_bytes:
            self._bodies.take_large(self, self._request)

    async def _read(self) -> bytes:
        """Read the whole body; nearly all bodies arrive in one part."""
        first, more = await self._part()
        if not more:
            return first
        self._bodies.wait_for_more(self)
        parts = [first]
        try:
            while more:
                part, more = await self._part()
                parts.append(part)
            return b"".join(parts)
        finally:
            parts.clear()  # an error's traceback keeps this frame alive

    async def _part(self) -> tuple[bytes, bool]:
        message = await self._request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part: bytes = message.get("body", b"")
        self._bodies.take(self, len(part))
        self._check(self.held)
        if self.address is None and self.held > self._bodies.large_bytes:
            self._bodies.take_large(self, self._request)
        return part, message.get("more_body", False)

    def _check(self, size: int) -> None:
        if size > self._cap:
            raise TooLarge(f"the body has {size:,} bytes or more, at most {self._cap:,} are taken")


def _content_length(request: Request) -> int | None:
    text = request.headers.get("content-length")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= _LENGTH_DIGITS):
        raise BadRequest("Content-Length is not a number")
    return int(text)


# JSON

T = TypeVar("T")


def decode(decoder: msgspec.json.Decoder[T], body: bytes, refuse: type[BadRequest]) -> T:
    """Decode `body` or raise `refuse` with the field's path (`$.repository.id`)."""
    try:
        if not body.isascii():
            body.decode()
        return decoder.decode(body)
    except msgspec.ValidationError as exc:
        raise refuse(str(exc)) from None
    except msgspec.DecodeError as exc:
        raise refuse(f"the body is not JSON: {exc}") from None
    except UnicodeDecodeError as exc:
        raise refuse(f"the body is not UTF-8: {exc.reason} at byte {exc.start}") from None
    except RecursionError:
        raise refuse("the body is nested too deeply") from None
