"""`crcr` as a real process: start it, wait for a line of its output, stop it; it is killed at the end."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

STARTS_WITHIN_S = 30.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Return the test's environment without settings of the relay, plus these."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("CRCR_", "COLUMNS"))}
    return {**clean, "PYTHONUNBUFFERED": "1", **extra}


def installed_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Like `environment`, for an installed program: without the checkout's Python settings."""
    ours = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    return {name: value for name, value in environment(extra).items() if name not in ours}


class CrcrProcess:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []

    async def wait_for_line(self, words: str) -> str:
        """Wait for a line on stdout that holds these words."""
        assert self.process.stdout is not None
        async with asyncio.timeout(STARTS_WITHIN_S):
            while line := (await self.process.stdout.readline()).decode():
                self.lines.append(line)
                if words in line:
                    return line
        raise AssertionError(f"ended without printing {words!r}: {self.lines} {await self.errors()}")

    async def next_error_line(self) -> str:
        """Wait for the next line on stderr; it must not end before."""
        assert self.process.stderr is not None
        line = (await self.process.stderr.readline()).decode()
        assert line, f"ended: {self.lines}"
        return line

    async def errors(self) -> str:
        """Wait for its end and return what it wrote to stderr."""
        assert self.process.stderr is not None
        return (await self.process.stderr.read()).decode()

    async def stop(self, by: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(by)
        return await self.wait()

    async def wait(self) -> int:
        async with asyncio.timeout(2 * STARTS_WITHIN_S):  # a graceful stop may take 30 s
            return await self.process.wait()


@asynccontextmanager
async def crcr(
    *words: str, folder: Path, environ: Mapping[str, str], program: Path | None = None, umask: int = -1
) -> AsyncIterator[CrcrProcess]:
    """Run a command of this checkout, or of an installed `program`, in `folder`; kill it at the end."""
    process = await asyncio.create_subprocess_exec(
        *((sys.executable, "-m", "crcr") if program is None else (program,)),
        *words,
        cwd=folder,
        env=environment(environ) if program is None else installed_environment(environ),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        umask=umask,
    )
    try:
        yield CrcrProcess(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
