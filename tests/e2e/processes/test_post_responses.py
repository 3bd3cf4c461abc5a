"""Responses to POST requests, whose head and body are one write, as a client reads them from its socket."""

import asyncio

from starlette.types import Receive, Scope, Send

from crcr.cli.run.http_limits import HttpLimits
from support.deploy.slow_clients import RawClient, open_raw_client, serve_with_limits

EXPECTING = b"POST %s HTTP/1.1\r\nHost: relay.test\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n"


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Send the body back: whole, in two chunks, or not at all."""
    body = (await receive())["body"]
    whole = {"/whole": body, "/empty": b""}.get(scope["path"])
    headers = [] if whole is None else [(b"content-length", b"%d" % len(whole))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    if whole is None:
        await send({"type": "http.response.body", "body": body[:2], "more_body": True})
    await send({"type": "http.response.body", "body": body[2:] if whole is None else whole})


async def read_head(client: RawClient) -> bytes:
    async with asyncio.timeout(20):
        return await client.reader.readuntil(b"\r\n\r\n")


async def test_posts_on_one_connection_get_100_continue_and_then_a_complete_response() -> None:
    async with serve_with_limits(echo, HttpLimits()) as (port, _), open_raw_client(port) as client:
        for path, answer in ((b"/whole", b"ping"), (b"/empty", b""), (b"/whole", b"pong")):
            await client.send(EXPECTING % path)
            assert await read_head(client) == b"HTTP/1.1 100 Continue\r\n\r\n"
            await client.send(answer or b"none")
            assert await client.answer() == (200, answer)
        await client.send(EXPECTING % b"/chunks")
        await read_head(client)
        await client.send(b"ping")
        assert b"transfer-encoding: chunked" in await read_head(client)
        assert await client.reader.readexactly(19) == b"2\r\npi\r\n2\r\nng\r\n0\r\n\r\n"
