"""The page process, seen from the intake process that started it: start, restart, connections, wake-ups, metrics, stop.

It is started by exec, not by fork, so that it inherits no thread, no database and no port. It ends when its end of the
link closes: it cannot outlive the intake process. The intake process never waits for it.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import structlog

from crcr.cli.run.process_link import MessageKind, ProcessLink, Receiver
from crcr.cli.run.serve import LINK_OPTION
from crcr.record.store.signals import EFFECTS, NAMES, Signals

if TYPE_CHECKING:
    from crcr.show.metrics.page_process import PageProcessMetrics

log = structlog.get_logger(__name__)

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_HEALTHY_AFTER_S = 30.0
"""A process that lived for this long is restarted without a pause."""
_METRICS_WITHIN_S = 0.5
_NICENESS = 5
"""Of two busy processes the intake gets three times the processor time of the pages."""
_FOR_PAGES = NAMES - {EFFECTS}

Adopt = Callable[[socket.socket, bytes], None]
"""Continues a connection that the other process passed on."""


@dataclass(frozen=True, slots=True)
class StartedProcess:
    process: subprocess.Popen[bytes]
    channel: socket.socket


def start_page_process(config: Path | None) -> StartedProcess:
    """Start the page process; it imports its modules, and opens nothing before it is told to."""
    ours, theirs = socket.socketpair()
    with theirs:
        words = [*(["--config", str(config)] if config else []), LINK_OPTION, str(theirs.fileno())]
        process = subprocess.Popen(  # noqa: S603  our own program
            [sys.executable, "-m", "crcr", "serve", *words],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
    return StartedProcess(process, ours)


@contextmanager
def starting_page_process(config: Path | None) -> Iterator[StartedProcess]:
    """Start the page process, and end it when this process fails before it can supervise it."""
    started = start_page_process(config)
    try:
        yield started
    finally:
        started.channel.close()
        if started.process.poll() is None:
            started.process.kill()
            started.process.wait()


def forward_signals(signals: Signals, names: frozenset[str], link: Callable[[], ProcessLink | None]) -> None:
    """Send this process's wake-ups to the other process, before the callers of a commit are answered.

    So a page that is read after an answer is not older than what was answered.
    """

    def forward(name: str) -> None:
        current = link()
        if current is not None and name in names:
            current.send_signal(name)

    signals.forward_to(forward)


def wake_from(signals: Signals, payload: bytes) -> None:
    name = payload.decode()
    if name in NAMES:
        signals.wake(name)


class PageProcess:
    def __init__(self, start: Callable[[], StartedProcess], first: StartedProcess) -> None:
        """`first` is the process that was started before this one opened its database."""
        self._start = start
        self._started: StartedProcess | None = first
        self._link: ProcessLink | None = None
        self._is_ready = False
        self._first_ready = asyncio.Event()
        self._stopping = asyncio.Event()
        self._supervision: asyncio.Task[None] | None = None
        self._samples: asyncio.Future[bytes] | None = None
        self.adopt: Adopt = lambda _, __: None

    def open(self, signals: Signals, metrics: "PageProcessMetrics") -> None:
        """Let it open the database, and keep it running until `stop`."""
        self._signals = signals
        self._metrics = metrics
        metrics.request = self._request_samples
        forward_signals(signals, _FOR_PAGES, lambda: self._link)
        self._supervision = asyncio.create_task(self._supervise())

    async def wait_until_ready(self) -> None:
        """Wait until pages are served, or until the first attempt to start has failed."""
        await self._first_ready.wait()

    def pass_on(self, descriptor: int, start: bytes) -> bool:
        """Pass a connection on; False while no pages are served, or too many connections wait to be passed."""
        link = self._link
        if link is None or not self._is_ready or link.is_congested or self._stopping.is_set():
            return False
        try:
            link.send(MessageKind.CONNECTION, start, descriptor)
        except OSError:  # no descriptor is left
            return False
        return True

    async def _request_samples(self) -> None:
        """Request the samples of its metrics and wait for them for a short time."""
        if self._link is None or not self._is_ready:
            return
        if self._samples is None or self._samples.done():
            self._samples = asyncio.get_running_loop().create_future()
            self._link.send(MessageKind.METRICS)
        await asyncio.wait([self._samples], timeout=_METRICS_WITHIN_S)

    async def stop(self, within_s: float) -> None:
        """Let it finish its requests and end; kill it when it takes too long."""
        self._stopping.set()
        if self._link is not None:
            self._link.send(MessageKind.STOP)
        if self._supervision is None:
            return
        _, late = await asyncio.wait([self._supervision], timeout=within_s)
        if late and self._started is not None:
            log.warning("page_process_killed", after_s=within_s)
            self._started.process.kill()
            await asyncio.wait([self._supervision])

    async def _supervise(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            began = monotonic()
            started = self._started = self._started or self._start()
            code = await self._follow(started)
            self._started = None
            self._metrics.ended(by_itself=not self._stopping.is_set())
            self._first_ready.set()
            if self._stopping.is_set():
                return
            pause_s = _FIRST_PAUSE_S if monotonic() - began > _HEALTHY_AFTER_S else pause_s
            log.error("page_process_ended", exit_code=code, restart_after_s=pause_s)
            await self._pause(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            if self._stopping.is_set():
                return

    async def _pause(self, seconds: float) -> None:
        waiting = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait([waiting], timeout=seconds)
        waiting.cancel()

    async def _follow(self, started: StartedProcess) -> int:
        """Stay linked with the process until it ends; return its exit code."""
        ended = asyncio.Event()
        receivers = {
            MessageKind.READY: self._on_ready,
            MessageKind.CONNECTION: self._on_connection,
            MessageKind.SIGNAL: lambda payload, _: wake_from(self._signals, payload),
            MessageKind.METRICS: self._on_metrics,
        }
        self._link = ProcessLink(started.channel, receivers, ended.set)
        self._link.send(MessageKind.STOP if self._stopping.is_set() else MessageKind.OPEN)
        try:
            await ended.wait()
        finally:
            self._link, self._is_ready = None, False
        return await asyncio.to_thread(started.process.wait)

    def _on_ready(self, _: bytes, __: socket.socket | None) -> None:
        self._is_ready = True
        self._first_ready.set()
        self._metrics.started()
        log.info("page_process_ready")

    def _on_connection(self, start: bytes, passed: socket.socket | None) -> None:
        if passed is not None:
            self.adopt(passed, start)

    def _on_metrics(self, samples: bytes, _: socket.socket | None) -> None:
        self._metrics.receive(samples)
        if self._samples is not None and not self._samples.done():
            self._samples.set_result(samples)


class IntakeLink:
    """The intake process, seen from the page process."""

    def __init__(self, channel: socket.socket) -> None:
        self.opened = asyncio.Event()
        """Set when the database may be opened, and when `ended`."""
        self.ended = asyncio.Event()
        """Set when the intake process stops or has ended: this process ends too."""
        self.adopt: Adopt = lambda _, __: None
        self._sample: Callable[[], bytes] | None = None
        self._signals: Signals | None = None
        receivers: dict[MessageKind, Receiver] = {
            MessageKind.OPEN: lambda _, __: self.opened.set(),
            MessageKind.CONNECTION: self._on_connection,
            MessageKind.SIGNAL: self._on_signal,
            MessageKind.METRICS: lambda _, __: self._send_samples(),
            MessageKind.STOP: lambda _, __: self._end(),
        }
        self._link = ProcessLink(channel, receivers, self._end)

    def ready(self, signals: Signals, sample: Callable[[], bytes]) -> None:
        """Tell the intake process that pages are served here; `sample` returns the samples of its metrics."""
        self._signals = signals
        self._sample = sample
        forward_signals(signals, NAMES, lambda: self._link)
        self._link.send(MessageKind.READY)

    def pass_on(self, descriptor: int, start: bytes) -> bool:
        try:
            self._link.send(MessageKind.CONNECTION, start, descriptor)
        except OSError:
            return False
        return self._link.is_open

    def receive(self) -> None:
        """Handle what the intake process has sent, now: a wake-up may concern the request that is read next."""
        self._link.receive()

    def close(self) -> None:
        self._send_samples()
        self._link.close()

    def _end(self) -> None:
        self.ended.set()
        self.opened.set()

    def _on_connection(self, start: bytes, passed: socket.socket | None) -> None:
        if passed is not None:
            self.adopt(passed, start)

    def _send_samples(self) -> None:
        if self._sample is not None:
            self._link.send(MessageKind.METRICS, self._sample())

    def _on_signal(self, name: bytes, _: socket.socket | None) -> None:
        if self._signals is not None:
            wake_from(self._signals, name)


def yield_to_intake() -> None:
    """Run the pages at a lower priority: where both need the processor, webhooks and callbacks come first.

    Threads that exist already keep theirs. A sandbox may forbid it; then both have the same.
    """
    with suppress(OSError):
        os.nice(_NICENESS)


def ignore_stop_signals() -> None:
    """A terminal and some supervisors signal all processes: the intake process tells this one when to stop."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def linked_socket(descriptor: int) -> socket.socket:
    """Return the inherited end of the link; processes that this one starts do not inherit it."""
    os.set_inheritable(descriptor, False)
    return socket.socket(fileno=descriptor)
