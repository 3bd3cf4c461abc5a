"""`serve_relay`: a relay with a history, served over real HTTP from its own thread.

The relay itself makes the history from pull requests, runs and comments of the simulated GitHub, with a manual clock. A
crash while it is served fails the test.
"""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from hashlib import sha256
from pathlib import Path

import uvicorn

from support.downstream.sandbox_callers import report_from_sandbox
from support.github.commands import WAIVE, failing_pull
from support.github.gated_upstream import (
    GATED,
    GATING,
    INFORMING,
    LABEL,
    gated_upstream,
    newest_run,
    open_pull,
    run_all,
    write_comment,
)
from support.running_relay import UPSTREAM, RunningRelay

L1_BACKEND = "org/told"
HIDDEN_BACKEND = "org/secret"
LISTED = f"L1:\n  - {L1_BACKEND}\nL2:\n  - {HIDDEN_BACKEND}: {{visibility: hidden}}\n{GATED}"
ADMIN = "admin-" + "a" * 40
_STARTS_WITHIN_S = 30.0

OpenRelay = Callable[[Path], AbstractAsyncContextManager[RunningRelay]]


@asynccontextmanager
async def relay_with_history(folder: Path, **more: str) -> AsyncIterator[RunningRelay]:
    """A relay with a pull request that failed and was waived, one that was pushed to and passed, one that runs, and a push.

    It also has a refused report and a report from the sandbox.
    """
    admins = {"CRCR_ADMIN_TOKENS": f"root=sha256:{sha256(ADMIN.encode()).hexdigest()}", "CRCR_SANDBOX": "on"}
    downstreams = (GATING, INFORMING, L1_BACKEND, HIDDEN_BACKEND)
    async with gated_upstream(folder, LISTED, downstreams=downstreams, **{**admins, **more}) as relay:
        failed = await failing_pull(relay, title="=HYPERLINK(1)\r\n<b>fuse</b>", labels=[LABEL])
        await run_all(relay, INFORMING, test="timed_out")
        await run_all(relay, HIDDEN_BACKEND)
        await write_comment(relay, failed, WAIVE)
        passed = await open_pull(relay, title="Once more")
        await run_all(relay)
        relay.clock.advance(3600)
        await relay.github.push_to_pr(passed)
        await relay.drain()
        await run_all(relay)
        await run_all(relay, INFORMING)
        await relay.github.push(UPSTREAM)
        await relay.drain()
        await run_all(relay, INFORMING, build="cancelled", test="skipped")
        await open_pull(relay, title="Still running")
        relay.github.repository(L1_BACKEND).workflows = []
        await relay.github.report(newest_run(relay, GATING), "build", run_id="1")
        await report_from_sandbox(relay)
        yield relay


@contextmanager
def serve_relay(folder: Path, opened: OpenRelay = relay_with_history) -> Iterator[tuple[str, RunningRelay]]:
    """Serve the relay; yield its address and the relay itself."""
    thread = _ServerThread(folder, opened)
    thread.start()
    try:
        if not thread.ready.wait(_STARTS_WITHIN_S) or thread.relay is None:
            raise RuntimeError("the relay was not served") from thread.fault
        yield thread.address, thread.relay
    finally:
        thread.stop()
        thread.join(_STARTS_WITHIN_S)
    if thread.fault is not None:
        raise thread.fault


class _ServerThread(threading.Thread):
    def __init__(self, folder: Path, opened: OpenRelay) -> None:
        super().__init__(daemon=True)
        self._folder = folder
        self._opened = opened
        self._server: uvicorn.Server | None = None
        self.ready = threading.Event()
        self.relay: RunningRelay | None = None
        self.address = ""
        self.fault: BaseException | None = None

    def run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as fault:  # noqa: BLE001  raised again by `serve_relay`
            self.fault = fault
        finally:
            self.ready.set()

    def stop(self) -> None:
        if self._server is not None:
            self._server.should_exit = True

    async def _serve(self) -> None:
        # With the protocol named, asyncio sets TCP_NODELAY; otherwise small answers wait.
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listening:
            listening.bind(("127.0.0.1", 0))
            self.address = f"http://127.0.0.1:{listening.getsockname()[1]}"
            async with self._opened(self._folder) as relay:
                config = uvicorn.Config(relay.app, lifespan="off", log_config=None, access_log=False)
                self._server = uvicorn.Server(config)
                self.relay = relay
                self.ready.set()
                await self._server.serve(sockets=[listening])
