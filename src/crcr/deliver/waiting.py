"""Waits that end early: when the process stops, or when the first of several things happens."""

import asyncio
from collections.abc import Awaitable

from crcr.ports import Clock


async def sleep_until_stopping(seconds: float, clock: Clock, stopping: asyncio.Event) -> None:
    """Sleep, but no longer than until the process begins to stop."""
    await first_completed(clock.sleep(seconds), stopping.wait())


async def first_completed(*awaitables: Awaitable[object]) -> None:
    """Wait for the first to complete. Tasks of the caller go on; what was only passed to be awaited is cancelled."""
    callers_tasks = {awaitable for awaitable in awaitables if isinstance(awaitable, asyncio.Task)}
    tasks = {asyncio.ensure_future(awaitable) for awaitable in awaitables}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks - callers_tasks:
            task.cancel()
