"""Fault 65: request heads without a limit in size, fields or time, and connections that never send one."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from crcr.cli.run.http_limits import HttpLimits, WaitingConnections
from github_sim.github import GitHub
from github_sim.rest.server import serve
from support.deploy.slow_clients import RawClient, open_raw_client, serve_passing_on, serve_with_limits
from support.process import crcr, free_port
from support.running_relay import UPSTREAM, environment

GET = b"GET / HTTP/1.1\r\nHost: relay.test\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nHost: relay.test\r\nTransfer-Encoding: chunked\r\n\r\n"
MIB = 1024 * 1024
Serving = Callable[[ASGIApp, HttpLimits], AbstractAsyncContextManager[tuple[int, WaitingConnections]]]
QUICK = HttpLimits(head_s=0.2, drain_s=0.2, waiting=20, sweep_s=0.05)


@pytest.fixture(params=[serve_with_limits, serve_passing_on], ids=["kept", "passed on"])
def serve_raw(request: pytest.FixtureRequest) -> Serving:
    """One server; and two servers, of which one passes all connections on, as the intake process does with those for pages."""
    serving: Serving = request.param
    return serving


async def respond_with_field_names(scope: Scope, receive: Receive, send: Send) -> None:
    """Read the body, and answer with the names of the header fields."""
    while scope["path"] != "/unread" and (await receive()).get("more_body"):
        pass
    body = json.dumps([name.decode() for name, _ in scope["headers"]]).encode()
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def client(serving: Serving, limits: HttpLimits = QUICK) -> AsyncIterator[RawClient]:
    async with serving(respond_with_field_names, limits) as (port, _), open_raw_client(port) as made:
        yield made


def code(answer: tuple[int, bytes]) -> tuple[int, str]:
    return answer[0], json.loads(answer[1])["error"]["code"]


def fields(count: int) -> bytes:
    return b"".join(b"x-%d: y\r\n" % number for number in range(count))


@pytest.mark.parametrize(
    ("head", "refusal"),
    [
        (GET + b"x: " + b"y" * 70_000 + b"\r\n\r\n", (431, "head_too_large")),
        (GET + fields(100) + b"\r\n", (431, "head_too_large")),
        (GET + b"x" * 70_000, (431, "head_too_large")),
        (b"GET /" + b"y" * 9_000 + b" HTTP/1.1\r\n\r\n", (414, "target_too_long")),
        (b"\r\n" * 40_000, (431, "head_too_large")),
        (b"\x16\x03\x01 no HTTP at all", (400, "bad_request")),
    ],
)
async def test_fault_65_a_head_over_the_limits_is_refused_and_its_connection_closed(
    serve_raw: Serving, head: bytes, refusal: tuple[int, str]
) -> None:
    async with client(serve_raw, HttpLimits()) as one:
        await one.send(head)
        assert code(await one.answer()) == refusal
        assert await one.rest() == b""


async def test_fault_65_a_head_within_the_limits_passes_in_one_piece_or_many(serve_raw: Serving) -> None:
    head = GET + fields(98) + b"large: " + b"y" * 60_000 + b"\r\n\r\n"
    async with client(serve_raw, HttpLimits()) as one:
        for size in (len(head), 1000):
            for start in range(0, len(head), size):
                await one.send(head[start : start + size])
            status, names = await one.answer()
            assert (status, len(json.loads(names))) == (200, 100)


@pytest.mark.parametrize("part", [b"y" * 65536, b"x: y\r\n" * 10_000, b"\r\nx:" + b" " * 65533])
@pytest.mark.parametrize("start", [GET + b"x: ", CHUNKED + b"0\r\nx: ", CHUNKED + b"1;x="])
async def test_fault_65_an_endless_head_or_trailer_is_not_buffered(
    serve_raw: Serving, start: bytes, part: bytes
) -> None:
    """120 MB would be sent; only what fits into the sockets' own buffers is taken."""
    async with client(serve_raw, HttpLimits()) as one:
        await one.send(start)
        assert await one.send_until_refused(part, 120 * MIB) < 16 * MIB
        received = await one.rest()
        assert received.startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 400 ")) or received == b""


async def test_fault_65_a_trailer_field_is_not_a_header(serve_raw: Serving) -> None:
    async with client(serve_raw) as one:
        await one.send(CHUNKED + b"1\r\nx\r\n0\r\nX-Forwarded-User: root\r\n\r\n")
        assert json.loads((await one.answer())[1]) == ["host", "transfer-encoding"]


@pytest.mark.parametrize("before", [b"", GET + b"\r\n"], ids=["first", "kept alive"])
@pytest.mark.parametrize("sent", [b"", b"\r\n", b"GET / HT", GET + b"x: "])
async def test_fault_65_a_head_that_does_not_end_in_time_closes_the_connection(
    serve_raw: Serving, before: bytes, sent: bytes
) -> None:
    async with client(serve_raw) as one:
        if before:
            await one.send(before)
            assert (await one.answer())[0] == 200
        await one.send(sent)
        if sent.startswith(b"GET"):
            assert code(await one.answer()) == (408, "head_too_slow")
        assert await one.rest() == b""


async def test_fault_65_sending_a_byte_now_and_then_does_not_extend_the_time(serve_raw: Serving) -> None:
    async with client(serve_raw) as one:
        await one.send(GET + b"x: ")
        assert await one.send_until_refused(b"y", 60_000) < 60_000
        assert code(await one.answer()) == (408, "head_too_slow")


async def test_fault_65_the_rest_of_an_unread_body_is_not_waited_for(serve_raw: Serving) -> None:
    async with client(serve_raw) as one:
        await one.send(CHUNKED.replace(b"POST /", b"POST /unread"))
        assert (await one.answer())[0] == 200
        assert await one.rest() == b""


async def test_fault_65_a_connection_can_be_reused_after_an_unread_body(
    serve_raw: Serving,
) -> None:
    async with client(serve_raw, HttpLimits()) as one:
        for _ in range(2):
            await one.send(CHUNKED.replace(b"POST /", b"POST /unread"))
            assert (await one.answer())[0] == 200
            await one.send(b"1\r\nx\r\n0\r\n\r\n")


async def test_fault_65_a_response_in_flight_is_not_mixed_with_a_refusal(serve_raw: Serving) -> None:
    """The second request is refused while the first one is being answered: the connection closes without a response."""
    ready = asyncio.Event()

    async def wait(scope: Scope, receive: Receive, send: Send) -> None:
        await ready.wait()
        await respond_with_field_names(scope, receive, send)

    async with serve_raw(wait, HttpLimits()) as (port, _), open_raw_client(port) as one:
        await one.send(GET + b"\r\n" + b"GET /" + b"y" * 9_000 + b" HTTP/1.1\r\n\r\n")
        assert await one.rest() == b""
        ready.set()


async def test_fault_65_a_client_that_does_not_read_its_response_is_disconnected(serve_raw: Serving) -> None:
    gone = asyncio.Event()

    async def pour(_: Scope, receive: Receive, send: Send) -> None:
        async def fill() -> None:
            for _ in range(64):
                await send({"type": "http.response.body", "body": b"x" * MIB, "more_body": True})

        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        filling = asyncio.create_task(fill())
        if (await receive())["type"] == "http.disconnect":
            gone.set()
        await filling

    async with serve_raw(pour, HttpLimits(unread_s=0.2)) as (port, _), open_raw_client(port) as one:
        one.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await one.send(GET + b"\r\n")
        async with asyncio.timeout(20):
            await gone.wait()


async def wait_until_at_most(waiting: WaitingConnections, most: int) -> None:
    async with asyncio.timeout(20):
        while len(waiting) > most:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("sent", [b"", GET, CHUNKED, GET + b"\r\n"], ids=["nothing", "head", "body", "idle"])
async def test_fault_65_the_oldest_of_many_waiting_connections_are_closed(
    serve_raw: Serving, sent: bytes
) -> None:
    patient = HttpLimits(waiting=20, sweep_s=0.05)
    async with serve_raw(respond_with_field_names, patient) as (port, waiting), AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(open_raw_client(port)) for _ in range(30)]
        for each in clients:
            await each.send(sent)
        await wait_until_at_most(waiting, 20)
        await asyncio.gather(*(each.rest() for each in clients[:10]))
        newest = clients[-1]
        await newest.send({b"": GET + b"\r\n", GET: b"\r\n", CHUNKED: b"0\r\n\r\n"}.get(sent, GET + b"\r\n"))
        assert (await newest.answer())[0] == 200


async def test_fault_65_the_number_of_connections_is_limited(serve_raw: Serving) -> None:
    few = HttpLimits(connections=5)
    async with serve_raw(respond_with_field_names, few) as (port, waiting), AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(open_raw_client(port)) for _ in range(8)]
        await asyncio.gather(*(each.rest() for each in clients[:3]))
        await clients[-1].send(GET + b"\r\n")
        assert (await clients[-1].answer())[0] == 200
        assert len(waiting) == 5


@asynccontextmanager
async def relay(folder: Path, role: str, **more: str) -> AsyncIterator[tuple[GitHub, int]]:
    """`crcr serve` as a process, and a GitHub that sends its webhooks to it."""
    port = free_port()
    (folder / "allowlist.yml").write_text("L1:\n  - org/backend\n")
    async with GitHub(seed=7, webhook_url=f"http://127.0.0.1:{port}/github/webhook") as github, serve(github):
        github.create_repository(UPSTREAM)
        github.create_repository("org/backend")
        github.use_transport(httpx.AsyncHTTPTransport())
        environ = {**environment(folder, github, folder / "allowlist.yml"), "CRCR_PORT": str(port), **more}
        async with crcr("serve", "--role", role, folder=folder, environ=environ) as process:
            await process.wait_for_line("crcr is listening on")
            yield github, port
            assert await process.stop() == 0
            assert '"level":"error"' not in await process.errors()


async def webhook_status(github: GitHub) -> int | None:
    pull = await github.open_pr(UPSTREAM)
    assert pull.last_delivery is not None
    return pull.last_delivery.status_code


@pytest.mark.slow
async def test_fault_65_three_thousand_half_open_requests_do_not_block_a_webhook(tmp_path: Path) -> None:
    async with relay(tmp_path, "all") as (github, port), AsyncExitStack() as stack:
        clients = []
        for number in range(3000):
            clients.append(await stack.enter_async_context(open_raw_client(port)))
            await clients[-1].send(GET)
            if number % 1000 == 999:
                assert await webhook_status(github) == 202
        await asyncio.gather(*(each.rest() for each in clients[:2000]))
        assert await webhook_status(github) == 202


@pytest.mark.slow
async def test_fault_65_a_relay_and_the_metrics_of_a_worker_refuse_a_large_head(tmp_path: Path) -> None:
    metrics_port = free_port()
    async with relay(tmp_path, "intake") as (github, port):
        environ = {
            **environment(tmp_path, github, tmp_path / "allowlist.yml"),
            "CRCR_METRICS_PORT": str(metrics_port),
        }
        async with crcr("worker", folder=tmp_path, environ=environ) as worker:
            await worker.wait_for_line("/metrics")
            for target_port in (port, metrics_port):
                async with open_raw_client(target_port) as one:
                    await one.send(GET + fields(300))
                    assert code(await one.answer()) == (431, "head_too_large")
        assert await webhook_status(github) == 202
