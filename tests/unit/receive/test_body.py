"""Reading request bodies: in one or many chunks, within a limit per request and one for all."""

import asyncio
import gc
from collections.abc import Sequence
from typing import Self

import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from crcr.errors import BadRequest, RateLimited, TooLarge, Unavailable
from crcr.receive.http.body import LARGE_PER_ADDRESS, BodyReader
from crcr.show.http.forms import read_form


def request(*parts: bytes, length: str | None = None, ends: bool = True) -> Request:
    """A request whose body arrives in these parts; without `ends` the client then disconnects."""
    messages: list[Message] = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    if ends:
        messages[-1]["more_body"] = False
    messages.append({"type": "http.disconnect"})

    async def receive() -> Message:
        return messages.pop(0)

    headers = [] if length is None else [(b"content-length", length.encode())]
    return Request({"type": "http", "method": "POST", "headers": headers}, receive)


@pytest.mark.parametrize("parts", [[b""], [b"abc"], [b"ab", b"c"], [b"", b"abc", b""]])
async def test_a_body_is_the_same_in_any_number_of_chunks(parts: Sequence[bytes]) -> None:
    async with BodyReader(10).read(request(*parts), 5) as body:
        assert body == b"".join(parts)


@pytest.mark.parametrize("incoming", [request(b"123456"), request(b"123", b"456"), request(b"1", length="6")])
async def test_a_body_over_the_limit_is_refused_with_and_without_content_length(incoming: Request) -> None:
    with pytest.raises(TooLarge):
        async with BodyReader(10).read(incoming, 5):
            pass


@pytest.mark.parametrize("length", ["-1", "x", "1e3", "\xb2", "9" * 5000])
async def test_an_invalid_content_length_is_a_bad_request(length: str) -> None:
    incoming = Request(
        {"type": "http", "method": "POST", "headers": [(b"content-length", length.encode("latin-1"))]}
    )
    with pytest.raises(BadRequest):
        async with BodyReader(10).read(incoming, 5):
            pass


async def test_concurrent_bodies_share_one_limit_and_release_their_memory() -> None:
    bodies = BodyReader(8)
    async with bodies.read(request(b"12345"), 5):
        with pytest.raises(Unavailable):
            async with bodies.read(request(b"67890"), 5):
                pass
    async with bodies.read(request(b"67890"), 5) as body:
        assert body == b"67890"


async def test_the_memory_of_an_unfinished_body_is_released() -> None:
    bodies = BodyReader(5)
    with pytest.raises(ClientDisconnect):
        async with bodies.read(request(b"123", ends=False), 5):
            pass
    async with bodies.read(request(b"12345"), 5) as body:
        assert body == b"12345"


def slow(*parts: bytes) -> Request:
    """A form whose body begins with these parts and never ends."""
    messages: list[Message] = [{"type": "http.request", "body": part, "more_body": True} for part in parts]

    async def receive() -> Message:
        return messages.pop(0) if messages else await asyncio.get_running_loop().create_future()

    kind = (b"content-type", b"application/x-www-form-urlencoded")
    return Request({"type": "http", "method": "POST", "headers": [kind]}, receive)


@pytest.mark.parametrize("parts", [[], [b""], [b"a=1"], [b"a", b"="]])
async def test_a_body_or_form_that_does_not_arrive_in_time_is_a_bad_request(parts: Sequence[bytes]) -> None:
    bodies = BodyReader(5, deadline_s=0)
    with pytest.raises(BadRequest, match="did not arrive"):
        async with bodies.read(slow(*parts), 5):
            pass
    with pytest.raises(BadRequest, match="did not arrive"):
        await read_form(slow(*parts), deadline_s=0)
    async with bodies.read(request(b"12345"), 5) as body:
        assert body == b"12345"


class Sender:
    """A client that sends the chunks of the test one by one."""

    def __init__(self, bodies: BodyReader, address: str = "192.0.2.1", length: int | None = None) -> None:
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        headers = [] if length is None else [(b"content-length", str(length).encode())]
        scope = {"type": "http", "method": "POST", "headers": headers, "client": (address, 1)}
        self._task = asyncio.create_task(self._read(bodies, Request(scope, self._messages.get)))

    async def _read(self, bodies: BodyReader, incoming: Request) -> bytes:
        async with bodies.read(incoming, 100) as body:
            return body

    async def send(self, part: bytes, *, more: bool = True) -> None:
        self._messages.put_nowait({"type": "http.request", "body": part, "more_body": more})
        for _ in range(5):
            await asyncio.sleep(0)

    async def end(self) -> bytes:
        await self.send(b"", more=False)
        return await self._task

    async def refusal(self) -> BaseException:
        async with asyncio.timeout(5):
            [refused] = await asyncio.gather(self._task, return_exceptions=True)
        assert isinstance(refused, BaseException)
        return refused


async def test_when_memory_is_full_the_body_that_has_been_arriving_longest_is_refused() -> None:
    bodies = BodyReader(10)
    senders = [Sender(bodies) for _ in range(3)]
    for sender in senders:
        await sender.send(b"1234")
    assert isinstance(await senders[0].refusal(), Unavailable)
    assert [await sender.end() for sender in senders[1:]] == [b"1234"] * 2
    async with bodies.read(request(b"1234567890"), 10) as body:
        assert body == b"1234567890"


async def test_large_bodies_share_half_of_the_memory_and_evict_each_other_first() -> None:
    bodies = BodyReader(40, large_bytes=8)
    small = Sender(bodies)
    await small.send(b"small")
    large = [Sender(bodies, f"192.0.2.{number}") for number in range(3)]
    for sender in large:
        await sender.send(b"0123456789")
    assert isinstance(await large[0].refusal(), Unavailable)
    assert [await sender.end() for sender in (small, *large[1:])] == [b"small", b"0123456789", b"0123456789"]


async def test_a_body_larger_than_the_share_of_large_bodies_is_refused() -> None:
    bodies = BodyReader(40, large_bytes=8)
    with pytest.raises(Unavailable):
        async with bodies.read(request(b"x" * 21), 30):
            pass
    async with bodies.read(request(b"x" * 20), 30) as body:
        assert len(body) == 20


@pytest.mark.parametrize("length", [None, 9])
async def test_one_address_may_send_four_large_bodies_at_once(length: int | None) -> None:
    bodies = BodyReader(1000, large_bytes=8)
    senders = [Sender(bodies, length=length) for _ in range(LARGE_PER_ADDRESS)]
    for sender in senders:
        await sender.send(b"123456789" if length is None else b"1")
    fifth, other = Sender(bodies, length=length), Sender(bodies, "192.0.2.2", length=length)
    for sender in (fifth, other):
        await sender.send(b"123456789", more=False)
    assert isinstance(await fifth.refusal(), RateLimited)
    assert await other.end() == b"123456789"
    for sender in senders:
        await sender.end()
    again = Sender(bodies, length=length)
    await again.send(b"123456789")
    assert await again.end() == b"123456789"


class Piece(bytes):
    """A chunk of a body that counts its living instances."""

    alive = 0

    def __new__(cls, size: int) -> Self:
        cls.alive += 1
        return super().__new__(cls, size)

    def __del__(self) -> None:
        Piece.alive -= 1


@pytest.mark.parametrize(("reason", "code"), [("given up", "unavailable"), ("too late", "bad_request")])
async def test_the_memory_of_a_refused_body_is_freed_at_once(reason: str, code: str) -> None:
    """It waited for the garbage collector, so that 600 slow bodies took 900 MB of a budget of 128 MB."""
    bodies = BodyReader(100, deadline_s=0.01 if reason == "too late" else 60.0)
    never = asyncio.Event()

    async def receive() -> Message:
        if Piece.alive >= 3:
            await never.wait()
        return {"type": "http.request", "body": Piece(20), "more_body": True}

    async def read() -> str | None:
        try:
            async with bodies.read(Request({"type": "http", "method": "POST", "headers": []}, receive), 90):
                return None
        except (Unavailable, BadRequest) as refusal:
            return refusal.code

    gc.disable()
    try:
        reading = asyncio.create_task(read())
        if reason == "given up":
            await asyncio.sleep(0)
            async with bodies.read(request(b"x" * 90), 90):
                await reading
        assert await reading == code
        assert Piece.alive == 0
    finally:
        gc.enable()
