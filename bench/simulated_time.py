"""An event loop whose time is simulated: it jumps to the next timer as soon as nothing can run any more.

Everything that waits by asyncio (`sleep`, `timeout`, timers) runs in this time, so hours pass in minutes and code
under measurement needs no changes. Work in threads, such as a commit of SQLite, takes no simulated time: the clock
stands still until it is done. Sockets of other processes have no place here.
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
    """Asks for events without waiting, unless a thread is at work; `jump` moves the time instead."""

    def __init__(self) -> None:
        super().__init__()
        self.threads = 0
        self.jump: Callable[[float], None] = lambda _: None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        if self.threads:
            return super().select(None)
        self.jump(timeout)
        return super().select(0)


class SimulatedLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._passed_s = 0.0
        self._jumping = _JumpingSelector()
        self._jumping.jump = self._jump
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._passed_s

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        work = super().run_in_executor(executor, func, *args)
        self._jumping.threads += 1
        work.add_done_callback(self._thread_is_done)
        return work

    def _thread_is_done(self, _: object) -> None:
        self._jumping.threads -= 1

    def _jump(self, seconds: float) -> None:
        self._passed_s += seconds


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
