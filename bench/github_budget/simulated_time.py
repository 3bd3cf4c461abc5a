"""An event loop whose time is simulated: it jumps to the next timer as soon as nothing can run any more.

Everything that waits by asyncio (`sleep`, `timeout`, timers) runs in this time, so hours pass in minutes and code
under measurement needs no changes. Work for a thread, such as SQLite's commit, runs at once and takes no time. Sockets
and other processes do not work in it.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

START = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)


class _JumpingSelector(selectors.DefaultSelector):
    """Polls without waiting: where the loop would wait for a timer, its time moves on instead."""

    def __init__(self) -> None:
        super().__init__()
        self.passed_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.passed_s += max(timeout or 0.0, 0.0)
        return super().select(None if timeout is None else 0)


class SimulatedLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.passed_s

    def run_in_executor(
        self,
        executor: Executor | None,  # noqa: ARG002  there are no threads
        func: Callable[[*Ts], T],
        *args: *Ts,
    ) -> asyncio.Future[T]:
        """Call the function at once: in simulated time it takes none."""
        work: asyncio.Future[T] = self.create_future()
        try:
            work.set_result(func(*args))
        except Exception as error:  # noqa: BLE001  the awaiting task gets it
            work.set_exception(error)
        return work


class SimulatedClock:
    """The loop's time as a date: a `Clock` for the relay and for the simulated GitHub."""

    def __init__(self, start: datetime = START) -> None:
        self.start = start

    def now(self) -> datetime:
        return self.start + timedelta(seconds=asyncio.get_running_loop().time())

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def run_simulated(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end in simulated time."""
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(main)
