"""A few tasks that do what waits, as long as something does: called whenever something more has come."""

import asyncio
from collections.abc import Awaitable, Callable


class Crew:
    def __init__(self, most: int, work: Callable[[], Awaitable[None]]) -> None:
        self._most = most
        self._work = work
        self._at_work = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def call(self) -> None:
        """Have one more at work, if there may be one more; those at work look themselves before they go."""
        if self._at_work < self._most:
            self._at_work += 1
            task = asyncio.create_task(self._do())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def done(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks)  # which breaks nobody off when whoever waits here is broken off

    async def _do(self) -> None:
        try:
            await self._work()
        finally:
            # In the same breath as the last look. A task is done only a moment later, and who came in that moment
            # would wait for somebody who has gone.
            self._at_work -= 1
