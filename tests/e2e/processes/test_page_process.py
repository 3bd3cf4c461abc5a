"""The page process beside the intake process: one port, connections handed over between them, and its crash."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from github_sim.github import GitHub
from support.deploy.slow_clients import RawClient, open_raw_client
from support.process import CrcrProcess, crcr, free_port
from support.replicas import DATABASE_URLS, TARGETS, github_with_backends, query_value, replica_environment
from support.running_relay import UPSTREAM

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

ROBOTS, HEALTHZ = (
    b"GET /robots.txt HTTP/1.1\r\nHost: relay\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: relay\r\n\r\n",
)
PULLS = "SELECT count(*) FROM deliveries WHERE event = 'pull_request'"


@dataclass
class TwoProcesses:
    process: CrcrProcess
    github: GitHub
    port: int
    url: str
    http: httpx.AsyncClient

    @property
    def page_pid(self) -> int | None:
        """The pid of the process that serves the pages; None while there is none."""
        pid = self.process.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(children[0]) if children else None

    async def kill_pages(self) -> None:
        assert self.page_pid is not None
        os.kill(self.page_pid, signal.SIGKILL)

    async def webhook(self) -> int | None:
        """Open a pull request; return the status that GitHub got for it."""
        pull = await self.github.open_pr(UPSTREAM)
        assert pull.last_delivery is not None
        return pull.last_delivery.status_code

    async def scraped(self, name: str) -> float | None:
        lines = (await self.http.get("/metrics")).text.splitlines()
        return next((float(line.split()[-1]) for line in lines if line.startswith(f"{name} ")), None)

    async def until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        async with asyncio.timeout(30):
            while not await condition():
                await asyncio.sleep(0.02)

    async def serves_pages(self) -> bool:
        return (await self.http.get("/robots.txt")).status_code == 200


@asynccontextmanager
async def relay(folder: Path, kind: str = "sqlite", **more: str) -> AsyncIterator[TwoProcesses]:
    port, url = free_port(), DATABASE_URLS[kind](folder)
    async with (
        github_with_backends() as github,
        httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(), base_url=f"http://127.0.0.1:{port}") as http,
    ):
        github.webhook_url = f"http://127.0.0.1:{port}/github/webhook"
        env = replica_environment(folder, github, url, CRCR_PORT=str(port), **more)
        async with crcr("serve", folder=folder, environ=env) as process:
            await process.wait_for_line("crcr is listening on")
            yield TwoProcesses(process, github, port, url, http)
            if process.process.returncode is None:
                assert await process.stop() == 0


def post(path: str) -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: relay\r\nContent-Length: 2\r\n\r\n".encode() + b"{}"


async def send_request(client: RawClient, request: bytes, step: int | None = None) -> int:
    for at in range(0, len(request), step or len(request)):
        await client.send(request[at : at + (step or len(request))])
    return (await client.answer())[0]


async def test_a_connection_moves_between_pages_and_intake_at_every_request(tmp_path: Path) -> None:
    encoded = post("/%67ithub/callback?x=1")
    absolute = b"GET http://relay/robots.txt HTTP/1.1\r\nHost: relay\r\n\r\n"
    requests = [
        *((ROBOTS, 200), (HEALTHZ, 200), (ROBOTS, 200), (post("/github/webhook"), 401), (absolute, 200)),
        *(
            (post("/github/callback"), 401),
            (post("/crcr/login"), 404),
            (encoded, 401),
            (b"\r\n" + ROBOTS, 200),
        ),
        (post("/api/crcr/results"), 404),
    ]
    async with relay(tmp_path) as two, AsyncExitStack() as stack:
        for step in (None, 1):  # at once, and byte by byte
            async with open_raw_client(two.port) as client:
                assert [await send_request(client, request, step) for request, _ in requests] == [
                    status for _, status in requests
                ]
        async with open_raw_client(two.port) as client:  # a large head
            await client.send(b"GET /crcr HTTP/1.1\r\nx: " + b"y" * 70_000)
            assert (await client.answer())[0] == 431
        async with open_raw_client(two.port) as client:
            await client.send(
                ROBOTS + HEALTHZ
            )  # pipelined: the first is answered, then the client must repeat
            assert (await client.answer())[0] == 200
            assert await client.rest() == b""

        clients = [await stack.enter_async_context(open_raw_client(two.port)) for _ in range(100)]
        halves = [(ROBOTS, HEALTHZ)[number % 2] for number in range(100)]
        for client, request in zip(clients, halves, strict=True):
            await client.send(request[:6])  # half a request line, then nothing for a while
        assert await two.webhook() == 202
        answers = await asyncio.gather(
            *(send_request(each, half[6:]) for each, half in zip(clients, halves, strict=True))
        )
        assert answers == [200] * 100
        assert '"level":"error"' not in "".join(two.process.error_output.lines)


async def test_a_killed_page_process_loses_no_webhook_and_is_restarted(tmp_path: Path) -> None:
    async with relay(tmp_path) as two:
        assert (await two.scraped("crcr_page_process_up"), await two.scraped("crcr_live_streams")) == (1, 0)
        # The intake has the higher priority when both need the processor.
        assert os.getpriority(os.PRIO_PROCESS, two.page_pid or 0) > os.getpriority(os.PRIO_PROCESS, 0)
        async with two.http.stream("GET", "/api/v1/events") as stream:
            lines = stream.aiter_lines()
            assert await anext(lines) == "retry: 2000"
            await two.until(lambda: _equals(two.scraped("crcr_live_streams"), 1))
            assert await two.webhook() == 202
            async with asyncio.timeout(5):
                assert await _first_id(lines) > 0
            await two.until(lambda: _equals(two.scraped("crcr_live_delay_seconds_count"), None, above=0))
            counted = await two.scraped("crcr_live_delay_seconds_count")

            await two.kill_pages()
            await two.until(lambda: _equals(two.scraped("crcr_page_process_up"), 0))
            refused = await two.http.get("/crcr", headers={"Accept": "text/html"})
            statuses = {await two.webhook() for _ in range(5)}
            with suppress(httpx.RemoteProtocolError, httpx.ReadError):
                assert not [line async for line in lines if line.startswith("id:")]
        assert statuses == {202}
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert "The process that serves the pages is starting" in refused.text
        assert refused.headers["content-type"].startswith("text/html")

        await two.until(two.serves_pages)
        assert (
            await two.scraped("crcr_page_process_restarts_total"),
            await two.scraped("crcr_page_process_up"),
        ) == (1, 1)
        assert await two.scraped("crcr_live_streams") == 0
        assert counted is not None
        assert (await two.scraped("crcr_live_delay_seconds_count") or 0) >= counted  # a count never falls
        assert (await two.http.get(f"/crcr/{UPSTREAM}")).status_code in (200, 303, 404)
        log = "".join(two.process.error_output.lines)
        assert log.count('"event":"page_process_ended"') == 1


async def _equals(
    figure: Awaitable[float | None], expected: float | None, above: float | None = None
) -> bool:
    value = await figure
    return value is not None and (value == expected if above is None else value > above)


async def _first_id(lines: AsyncIterator[str]) -> int:
    async for line in lines:
        if line.startswith("id:"):
            return int(line[3:])
    raise AssertionError("the stream ended")


@pytest.mark.parametrize("kind", DATABASE_URLS)
async def test_a_stop_under_load_loses_no_acknowledged_webhook(tmp_path: Path, kind: str) -> None:
    async with relay(tmp_path, kind) as two:
        stop, statuses = asyncio.Event(), Counter[int | None]()

        async def send() -> None:
            while not stop.is_set():
                statuses[await two.webhook()] += 1

        async def read() -> None:
            async with httpx.AsyncClient(base_url=str(two.http.base_url)) as http:
                with suppress(httpx.HTTPError):
                    while not stop.is_set():
                        assert (await http.get("/crcr", follow_redirects=True)).status_code in (200, 503)
                        await http.post("/github/callback", content=b"{}")

        load = [asyncio.create_task(each()) for each in (send, send, send, read, read)]
        await two.until(lambda: _is(statuses[202] >= 10))
        assert await two.process.stop() == 0
        stop.set()
        await asyncio.gather(*load)
        assert '"level":"error"' not in await two.process.errors()
        assert set(statuses) <= {202, 503, 502}  # 502: GitHub got no answer
        assert query_value(two.url, PULLS) >= statuses[202] > 0


async def _is(holds: bool) -> bool:
    return holds


@pytest.mark.parametrize("kind", DATABASE_URLS)
async def test_intake_and_hud_run_as_separate_processes_on_separate_ports(tmp_path: Path, kind: str) -> None:
    intake_port, hud_port, url = free_port(), free_port(), DATABASE_URLS[kind](tmp_path)
    async with github_with_backends() as github:
        github.webhook_url = f"http://127.0.0.1:{intake_port}/github/webhook"
        env = replica_environment(tmp_path, github, url)
        async with (
            crcr(
                "serve", "--role", "intake", "--port", str(intake_port), folder=tmp_path, environ=env
            ) as intake,
            crcr(
                "serve", "--port", str(hud_port), folder=tmp_path, environ={**env, "CRCR_ROLE": "hud"}
            ) as hud,
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{intake_port}") as at_intake,
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{hud_port}") as at_hud,
        ):
            assert "without pages" in await intake.wait_for_line("crcr is listening on")
            assert "without intake, without a worker" in await hud.wait_for_line("crcr is listening on")
            no_page, no_intake = await at_intake.get("/crcr"), await at_hud.post("/github/webhook")
            assert (no_page.status_code, no_page.json()["error"]["code"]) == (404, "not_found")
            assert (no_intake.status_code, no_intake.json()["error"]["code"]) == (503, "unavailable")
            assert (await at_hud.post("/api/crcr/results")).status_code == 503
            async with at_hud.stream("GET", "/api/v1/events") as stream:
                lines = stream.aiter_lines()
                assert await anext(lines) == "retry: 2000"
                pull = await github.open_pr(UPSTREAM)
                async with asyncio.timeout(10):
                    assert await _first_id(lines) > 0
            assert pull.last_delivery is not None
            assert pull.last_delivery.status_code == 202
            assert (await at_hud.get("/readyz")).json()["store"] == "answers"
            assert (await at_hud.get("/api/v1/summary", params={"upstream": UPSTREAM})).status_code == 200
            async with asyncio.timeout(20):
                while not github.runs(TARGETS[0]):
                    await asyncio.sleep(0.05)
            assert (await hud.stop(), await intake.stop()) == (0, 0)
