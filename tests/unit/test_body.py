"""Reading bodies: in one piece or many, within a cap of their own and a common one."""

import asyncio
from collections.abc import Sequence

import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from crcr.errors import BadRequest, TooLarge, Unavailable
from crcr.receive.body import Bodies
from crcr.show.forms import read_form


def request(*parts: bytes, length: str | None = None, ends: bool = True) -> Request:
    """A request whose body comes in these parts; without `ends` its sender then goes away."""
    messages: list[Message] = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    if ends:
        messages[-1]["more_body"] = False
    messages.append({"type": "http.disconnect"})

    async def receive() -> Message:
        return messages.pop(0)

    headers = [] if length is None else [(b"content-length", length.encode())]
    return Request({"type": "http", "method": "POST", "headers": headers}, receive)


@pytest.mark.parametrize("parts", [[b""], [b"abc"], [b"ab", b"c"], [b"", b"abc", b""]])
async def test_a_body_is_the_same_in_however_many_parts_it_comes(parts: Sequence[bytes]) -> None:
    async with Bodies(10).read(request(*parts), 5) as body:
        assert body == b"".join(parts)


@pytest.mark.parametrize("asked", [request(b"123456"), request(b"123", b"456"), request(b"1", length="6")])
async def test_more_than_the_cap_is_refused_announced_or_not(asked: Request) -> None:
    with pytest.raises(TooLarge):
        async with Bodies(10).read(asked, 5):
            pass


@pytest.mark.parametrize("length", ["-1", "x", "1e3", "\xb2"])
async def test_a_length_that_is_no_number_is_a_bad_request(length: str) -> None:
    asked = Request(
        {"type": "http", "method": "POST", "headers": [(b"content-length", length.encode("latin-1"))]}
    )
    with pytest.raises(BadRequest):
        async with Bodies(10).read(asked, 5):
            pass


async def test_bodies_share_a_cap_while_they_are_held_and_give_it_back() -> None:
    bodies = Bodies(8)
    async with bodies.read(request(b"12345"), 5):
        with pytest.raises(Unavailable):
            async with bodies.read(request(b"67890"), 5):
                pass
    async with bodies.read(request(b"67890"), 5) as body:
        assert body == b"67890"


async def test_what_a_sender_left_unfinished_is_given_back() -> None:
    bodies = Bodies(5)
    with pytest.raises(ClientDisconnect):
        async with bodies.read(request(b"123", ends=False), 5):
            pass
    async with bodies.read(request(b"12345"), 5) as body:
        assert body == b"12345"


def slow(*parts: bytes) -> Request:
    """A form whose body begins with these parts, and never ends."""
    messages: list[Message] = [{"type": "http.request", "body": part, "more_body": True} for part in parts]

    async def receive() -> Message:
        return messages.pop(0) if messages else await asyncio.get_running_loop().create_future()

    kind = (b"content-type", b"application/x-www-form-urlencoded")
    return Request({"type": "http", "method": "POST", "headers": [kind]}, receive)


@pytest.mark.parametrize("parts", [[], [b""], [b"a=1"], [b"a", b"="]])
async def test_a_body_or_form_that_does_not_arrive_in_time_is_given_up(parts: Sequence[bytes]) -> None:
    bodies = Bodies(5, deadline_s=0)
    with pytest.raises(BadRequest, match="did not arrive"):
        async with bodies.read(slow(*parts), 5):
            pass
    with pytest.raises(BadRequest, match="did not arrive"):
        await read_form(slow(*parts), deadline_s=0)
    async with bodies.read(request(b"12345"), 5) as body:
        assert body == b"12345"
