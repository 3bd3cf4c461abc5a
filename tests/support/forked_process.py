"""`fork_crcr`: a `crcr` process that is forked from one with its modules imported, which are most of a start's time.

It has the interface of `asyncio.subprocess.Process`. An environment with other settings for Python needs a real start,
and with `CRCR_TEST_START=exec` in the tests' environment every process has one.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from support.services.cleanup import at_end

_FORKER = Path(__file__).with_name("process_forker.py")
_UNBUFFERED = {"PYTHONUNBUFFERED": "1"}
_OF_THE_INTERPRETER = ("PYTHON", "LD_", "MALLOC_", "TZ", "LANG", "LC_")


class ForkedProcess:
    def __init__(self, process_id: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.pid = process_id
        self.returncode: int | None = None
        self.stdout: asyncio.StreamReader | None = None
        self.stderr: asyncio.StreamReader | None = None
        self._end = asyncio.create_task(self._read_end(reader, writer))

    async def _read_end(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
        self.returncode = int(await reader.readline())
        writer.close()
        return self.returncode

    async def wait(self) -> int:
        return await asyncio.shield(self._end)

    def send_signal(self, which: int) -> None:
        if self.returncode is not None:
            raise ProcessLookupError
        os.kill(self.pid, which)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def is_forkable(environ: Mapping[str, str]) -> bool:
    """Whether a process with this environment begins as the one that forks it did."""
    if os.environ.get("CRCR_TEST_START") == "exec":
        return False
    return _of_the_interpreter(environ) == _of_the_interpreter(os.environ)


async def fork_crcr(
    words: Sequence[str],
    folder: Path,
    environ: Mapping[str, str],
    *,
    stdout: int,
    stderr: int,
    umask: int = -1,
) -> ForkedProcess:
    """Run a command with these file descriptors as its output."""
    ours, theirs = socket.socketpair()
    command = {"words": words, "folder": str(folder), "environ": dict(environ), "umask": umask}
    with theirs:
        socket.send_fds(_forker(), [json.dumps(command).encode()], [stdout, stderr, theirs.fileno()])
    reader, writer = await asyncio.open_connection(sock=ours)
    return ForkedProcess(int(await reader.readline()), reader, writer)


async def fork_crcr_with_pipes(
    words: Sequence[str], folder: Path, environ: Mapping[str, str], *, umask: int = -1
) -> ForkedProcess:
    """Run a command, and read its output from `stdout` and `stderr`."""
    (out, to_out), (errors, to_errors) = os.pipe(), os.pipe()
    process = await fork_crcr(words, folder, environ, stdout=to_out, stderr=to_errors, umask=umask)
    os.close(to_out)
    os.close(to_errors)
    process.stdout, process.stderr = await _open_reader(out), await _open_reader(errors)
    return process


async def _open_reader(descriptor: int) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", 0)
    )
    return reader


def _of_the_interpreter(environ: Mapping[str, str]) -> dict[str, str]:
    every = {**environ, **_UNBUFFERED}
    return {name: value for name, value in every.items() if name.startswith(_OF_THE_INTERPRETER)}


@cache
def _forker() -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, str(_FORKER), str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env={**os.environ, **_UNBUFFERED},
        )
    at_end(_forker.cache_clear)
    at_end(process.wait)
    at_end(ours.close)
    return ours
