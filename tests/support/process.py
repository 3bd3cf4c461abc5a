"""`crcr` as a real process: start it, wait for a line of its output, stop it; it is killed at the end."""

import asyncio
import os
import random
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from support.forked_process import ForkedProcess, fork_crcr_with_pipes, is_forkable

STARTS_WITHIN_S = 60.0
Process = asyncio.subprocess.Process | ForkedProcess


_given_ports: set[int] = set()


def free_port() -> int:
    """Return a port that is free now, below those that the system gives to outgoing connections; never the same twice."""
    while True:
        port = random.SystemRandom().randrange(15_000, 32_000)
        if port in _given_ports:
            continue
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            _given_ports.add(port)
            return port


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Return the test's environment without settings of the relay, plus these."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("CRCR_", "COLUMNS"))}
    return {**clean, "PYTHONUNBUFFERED": "1", **extra}


def installed_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Like `environment`, for an installed program: without the checkout's Python settings."""
    ours = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    return {name: value for name, value in environment(extra).items() if name not in ours}


class Output:
    """What a process writes to one stream, read all the time: a full pipe would make the process wait."""

    def __init__(self, stream: asyncio.StreamReader | None) -> None:
        assert stream is not None
        self.lines: list[str] = []
        self._next = 0
        self._more = asyncio.Condition()
        self._reading = asyncio.create_task(self._read(stream))

    async def _read(self, stream: asyncio.StreamReader) -> None:
        while line := await stream.readline():
            async with self._more:
                self.lines.append(line.decode())
                self._more.notify_all()
        async with self._more:
            self._more.notify_all()

    async def next_line(self) -> str:
        """Wait for the line after the last one that was returned here, or return nothing at the end."""
        async with self._more:
            await self._more.wait_for(lambda: self._next < len(self.lines) or self._reading.done())
            if self._next == len(self.lines):
                return ""
            self._next += 1
            return self.lines[self._next - 1]

    async def rest(self) -> str:
        """Wait for the end, and return the lines that `next_line` did not."""
        await self._reading
        return "".join(self.lines[self._next :])


class CrcrProcess:
    def __init__(self, process: Process) -> None:
        self.process = process
        self.output = Output(process.stdout)
        self.error_output = Output(process.stderr)

    async def wait_for_line(self, words: str) -> str:
        """Wait for a line on stdout that holds these words."""
        async with asyncio.timeout(STARTS_WITHIN_S):
            while line := await self.output.next_line():
                if words in line:
                    return line
        raise AssertionError(f"ended without printing {words!r}: {self.lines} {await self.errors()}")

    @property
    def lines(self) -> list[str]:
        """What it has printed so far."""
        return self.output.lines

    async def next_error_line(self) -> str:
        """Wait for the next line on stderr; it must not end before."""
        line = await self.error_output.next_line()
        assert line, f"ended: {self.lines}"
        return line

    async def errors(self) -> str:
        """Wait for its end and return what it wrote to stderr after the lines that were waited for."""
        return await self.error_output.rest()

    async def stop(self, by: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(by)
        return await self.wait()

    async def wait(self) -> int:
        async with asyncio.timeout(2 * STARTS_WITHIN_S):  # a graceful stop may take 30 s
            return await self.process.wait()

    async def finish(self) -> tuple[int, str, str]:
        """Wait for its end; return its exit code, and what it wrote to stdout and stderr."""
        out, errors = await asyncio.gather(self.output.rest(), self.error_output.rest())
        return await self.wait(), out, errors


@asynccontextmanager
async def crcr(
    *words: str, folder: Path, environ: Mapping[str, str], program: Path | None = None, umask: int = -1
) -> AsyncIterator[CrcrProcess]:
    """Run a command of this checkout, or of an installed `program`, in `folder`; kill it at the end."""
    ours = environment(environ)
    if program is None and is_forkable(ours):
        process: Process = await fork_crcr_with_pipes(words, folder, ours, umask=umask)
    else:
        process = await asyncio.create_subprocess_exec(
            *((sys.executable, "-m", "crcr") if program is None else (program,)),
            *words,
            cwd=folder,
            env=ours if program is None else installed_environment(environ),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            umask=umask,
        )
    running = CrcrProcess(process)
    try:
        yield running
    finally:
        if process.returncode is None:
            process.kill()
        await running.finish()
