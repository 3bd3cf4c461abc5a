"""One child process: a command in a clean environment, with limits on time and output, killed with its process group."""

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MOST_OUTPUT_BYTES = 1_000_000
_GRACE_S = 2.0


@dataclass(frozen=True)
class ProcessResult:
    code: int
    output: str
    stop_reason: str = ""
    """Empty when it ended by itself; else `cancelled` or `timed_out`."""


async def run_child(
    command: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    limit_s: float,
    cancelled: asyncio.Event | None = None,
) -> ProcessResult:
    """Run it to its end, or to ours: when `cancelled` is set or its time is over."""
    child = await asyncio.create_subprocess_exec(
        *command,
        cwd=cwd,
        env=dict(env),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    reading = asyncio.ensure_future(_output(child))
    ending = asyncio.ensure_future(child.wait())
    stopping = asyncio.ensure_future((cancelled or asyncio.Event()).wait())
    try:
        await asyncio.wait({ending, stopping}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        why = "" if ending.done() else "cancelled" if stopping.done() else "timed_out"
        if why:
            await _end(child, ending)
        code = await ending
        # Whatever it left running shares its output; it gets a moment to say the last words.
        await asyncio.wait({reading}, timeout=_GRACE_S)
        _signal(child, signal.SIGKILL)
        return ProcessResult(code, await reading, why)
    finally:
        stopping.cancel()
        reading.cancel()
        _signal(child, signal.SIGKILL)
        await ending


async def _end(child: asyncio.subprocess.Process, ending: "asyncio.Future[int]") -> None:
    """Ask it to end, as a runner does, and then make it end."""
    for sign in (signal.SIGINT, signal.SIGTERM):
        _signal(child, sign)
        await asyncio.wait({ending}, timeout=_GRACE_S / 2)
        if ending.done():
            return
    _signal(child, signal.SIGKILL)


def _signal(child: asyncio.subprocess.Process, sign: signal.Signals) -> None:
    """To the whole group: what the script started must not outlive it."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, sign)


async def _output(child: asyncio.subprocess.Process) -> str:
    """Read the output until the process and all that share its output have ended; too much is cut."""
    output = bytearray()
    assert child.stdout is not None  # noqa: S101 - a pipe was asked for
    while piece := await child.stdout.read(65_536):
        output += piece[: max(MOST_OUTPUT_BYTES - len(output), 0)]
    return output.decode(errors="replace")
