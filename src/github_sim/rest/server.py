"""Serves an ASGI app on a loopback port inside the running event loop.

A lost answer becomes a connection that closes in the middle of the answer, as on a real network.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from github_sim.github import GitHub
from github_sim.rest.app import AnswerLost


class _Uvicorn(uvicorn.Server):
    """Uvicorn without its grip on the process's signals, and with a moment when it is ready."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        finally:
            self.ready.set()


class Server:
    """One running server; `url` is where it answers."""

    def __init__(self, app: ASGIApp, host: str, port: int) -> None:
        config = uvicorn.Config(
            _Breaking(app),
            log_config=None,  # the process that we live in has its own logging
            log_level="critical",
            lifespan="off",
            access_log=False,
            timeout_graceful_shutdown=1,
        )
        self._server = _Uvicorn(config)
        # Named as TCP, or asyncio leaves Nagle's delay on: 40 ms for every small answer.
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((host, port))
        # A wildcard address is one to listen on, not one to call.
        display_host = "127.0.0.1" if host == "0.0.0.0" else host  # noqa: S104
        self.url = f"http://{display_host}:{self._socket.getsockname()[1]}"
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._server.serve([self._socket]))
        await self._server.ready.wait()

    async def stop(self) -> None:
        self._server.should_exit = True
        if self._task is not None:
            await self._task
        self._socket.close()


@asynccontextmanager
async def serve(github: GitHub, *, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[Server]:
    """Serve the simulated GitHub; its `base_url`, and so its issuer, become the server's address."""
    server = Server(github.app, host, port)
    github.base_url = server.url
    await server.start()
    try:
        yield server
    finally:
        github.faults.clear()
        await server.stop()


class _Breaking:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        except AnswerLost:
            # Promise a body and send none: the server closes the connection on the caller.
            headers = [(b"content-length", b"64")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
