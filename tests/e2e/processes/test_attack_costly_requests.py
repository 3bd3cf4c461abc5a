"""Requests of a few bytes with a high cost: pipelined requests, and bodies in chunks of one byte.

400 KB of such requests took 40 MB of memory, and hid the client's disconnect. A chunk costs a hundred times as much as a byte of
its body.
"""

import asyncio
from contextlib import suppress

import pytest
from starlette.types import Receive, Scope, Send

from crcr.cli.run.http_limits import HttpLimits
from support.deploy.slow_clients import open_raw_client, serve_with_limits

GET = b"GET / HTTP/1.1\r\nHost: relay.test\r\n\r\n"


async def answer(send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def test_endless_pipelined_requests_behind_an_unfinished_response_close_the_connection() -> None:
    begun = 0

    async def never(_: Scope, receive: Receive, __: Send) -> None:
        nonlocal begun
        begun += 1
        while (await receive())["type"] != "http.disconnect":
            pass

    async with serve_with_limits(never, HttpLimits()) as (port, _), open_raw_client(port) as one:
        await one.send(GET * 10_000)
        assert await one.rest() == b""
    assert begun == 1


async def test_a_few_pipelined_requests_are_answered_in_order() -> None:
    async def at_leisure(_: Scope, __: Receive, send: Send) -> None:
        await asyncio.sleep(0)
        await answer(send)

    limits = HttpLimits()
    async with serve_with_limits(at_leisure, limits) as (port, _), open_raw_client(port) as one:
        await one.send(GET * (limits.pipelined + 1))
        for _ in range(limits.pipelined + 1):
            assert await one.answer() == (200, b"ok")


async def test_a_live_stream_detects_a_disconnect_while_another_request_is_queued() -> None:
    """Nothing is read while a request is queued, so the next event detects it; it was logged as a crash."""
    started, gone = asyncio.Event(), asyncio.Event()

    async def stream(_: Scope, receive: Receive, send: Send) -> None:
        async def read_end() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            gone.set()

        reading = asyncio.create_task(read_end())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        started.set()
        while not gone.is_set():
            await send({"type": "http.response.body", "body": b"event", "more_body": True})
            await asyncio.sleep(0.01)
        await reading

    async with serve_with_limits(stream, HttpLimits()) as (port, _), asyncio.timeout(10):
        async with open_raw_client(port) as one:
            await one.send(GET)
            await started.wait()
            await one.send(GET)
        await gone.wait()


@pytest.mark.parametrize(
    ("size", "count", "is_taken"), [(1, 900, True), (1, 10_000, False), (300, 3000, True)]
)
async def test_a_body_may_have_many_chunks_or_small_ones_but_not_both(
    size: int, count: int, is_taken: bool
) -> None:
    async def read(_: Scope, receive: Receive, send: Send) -> None:
        while (message := await receive()).get("more_body"):
            pass
        if message["type"] == "http.request":
            await answer(send)

    chunk = b"%x\r\n%s\r\n" % (size, b"x" * size)
    async with serve_with_limits(read, HttpLimits()) as (port, _), open_raw_client(port) as one:
        await one.send(b"POST / HTTP/1.1\r\nHost: relay.test\r\nTransfer-Encoding: chunked\r\n\r\n")
        with suppress(ConnectionError):
            await one.send(chunk * count + b"0\r\n\r\n")
        if is_taken:
            assert await one.answer() == (200, b"ok")
        else:
            assert await one.rest() == b""
