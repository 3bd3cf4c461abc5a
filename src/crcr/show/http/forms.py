"""Reads small request bodies, HTML forms or JSON orders, within limits of size, fields and time."""

import asyncio
from urllib.parse import parse_qsl

from starlette.requests import Request

from crcr.errors import BadRequest, TooLarge

DEADLINE_S = 20.0
_MOST_BYTES = 16 * 1024
_MOST_FIELDS = 20


async def read_form(request: Request, *, deadline_s: float = DEADLINE_S) -> dict[str, str]:
    """Return the fields; of a repeated one the last. Raises `BadRequest` or `TooLarge`."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise BadRequest("this address takes a form")
    body = await read_small(request, deadline_s=deadline_s)
    try:
        return dict(parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=_MOST_FIELDS))
    except ValueError:
        raise BadRequest("the form cannot be read") from None


async def read_small(request: Request, *, deadline_s: float = DEADLINE_S) -> bytes:
    """Return the body. A slow client holds one connection until the deadline, and nothing else."""
    body = bytearray()
    try:
        async with asyncio.timeout(deadline_s):
            async for part in request.stream():
                body += part
                if len(body) > _MOST_BYTES:
                    raise TooLarge(f"the body may have at most {_MOST_BYTES:,} bytes")
    except TimeoutError:
        raise BadRequest(f"the body did not arrive within {deadline_s:g} s") from None
    return bytes(body)
