"""The Unix socket between the intake process and the page process: messages with a kind, a payload and at most one socket.

A message never waits for the other process: what does not fit into the socket's buffer is queued here. A passed socket
is recognised by its inode, so that a lost descriptor can never lead to another client's connection.
"""

import asyncio
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Mapping
from enum import IntEnum

import structlog

log = structlog.get_logger(__name__)

_HEAD = struct.Struct("!BIQ")
"""Kind, length of the payload, and inode of the passed socket or 0."""
_READ_BYTES = 256 * 1024
_MOST_DESCRIPTORS = 32
_READS_AT_ONCE = 16
_MOST_QUEUED = 1000


class MessageKind(IntEnum):
    OPEN = 1
    """To the page process: the database has its schema and may be opened."""
    READY = 2
    """From the page process: it serves pages."""
    CONNECTION = 3
    """A client's connection, with the bytes of its next request that were read."""
    SIGNAL = 4
    """A wake-up: `record.store.signals`."""
    METRICS = 5
    """To the page process: send your samples; from it: the samples."""
    STOP = 6
    """To the page process: finish the running requests and end."""


Receiver = Callable[[bytes, socket.socket | None], None]


class ProcessLink:
    def __init__(
        self,
        channel: socket.socket,
        receivers: Mapping[MessageKind, Receiver],
        on_close: Callable[[], None],
    ) -> None:
        self._channel = channel
        self._receivers = receivers
        self._on_close = on_close
        self._loop = asyncio.get_running_loop()
        self._received = bytearray()
        self._descriptors: deque[int] = deque()
        self._queued: deque[tuple[bytes, int | None, bytes | None]] = deque()
        """Bytes to send, a descriptor to pass with the first of them, and the name of the signal if it is one."""
        self._queued_signals: set[bytes] = set()
        self.is_open = True
        channel.setblocking(False)
        self._loop.add_reader(channel, self._read)

    @property
    def is_congested(self) -> bool:
        """Whether the other process is so far behind that it should get no more connections."""
        return len(self._queued) >= _MOST_QUEUED

    def send(self, kind: MessageKind, payload: bytes = b"", passed: int | None = None) -> None:
        """Send the message soon, with the socket of this descriptor; the caller may close its own then."""
        if not self.is_open:
            return
        descriptor = None if passed is None else os.dup(passed)
        inode = 0 if descriptor is None else os.fstat(descriptor).st_ino
        signal = payload if kind is MessageKind.SIGNAL else None
        self._queued.append((_HEAD.pack(kind, len(payload), inode) + payload, descriptor, signal))
        if len(self._queued) == 1:
            self._write()

    def send_signal(self, name: str) -> None:
        """Send a wake-up, unless the same one waits to be sent."""
        payload = name.encode()
        if payload not in self._queued_signals:
            self.send(MessageKind.SIGNAL, payload)
            if self._queued:
                self._queued_signals.add(payload)

    def receive(self) -> None:
        """Handle what has arrived, now."""
        if self.is_open:
            self._read()

    def close(self) -> None:
        if not self.is_open:
            return
        self.is_open = False
        self._loop.remove_reader(self._channel)
        self._loop.remove_writer(self._channel)
        self._channel.close()
        for _, descriptor, _ in self._queued:
            _close_descriptor(descriptor)
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._queued.clear()
        self._descriptors.clear()
        self._on_close()

    def _write(self) -> None:
        while self._queued:
            data, descriptor, signal = self._queued[0]
            try:
                sent = self._send_part(data, descriptor)
            except BlockingIOError:
                self._loop.add_writer(self._channel, self._write)
                return
            except OSError:  # the other process has ended
                self.close()
                return
            _close_descriptor(descriptor)
            if sent < len(data):
                self._queued[0] = data[sent:], None, signal
                continue
            self._queued.popleft()
            if signal is not None:
                self._queued_signals.discard(signal)
        self._loop.remove_writer(self._channel)

    def _send_part(self, data: bytes, descriptor: int | None) -> int:
        if descriptor is None:
            return self._channel.send(data)
        return socket.send_fds(self._channel, [data], [descriptor])

    def _read(self) -> None:
        for _ in range(_READS_AT_ONCE):
            try:
                data, descriptors, _, _ = socket.recv_fds(self._channel, _READ_BYTES, _MOST_DESCRIPTORS)
            except BlockingIOError:
                return
            except OSError:
                data, descriptors = b"", []
            if not data:
                self.close()
                return
            self._descriptors.extend(descriptors)
            self._received += data
            self._deliver()
            if not self.is_open:
                return

    def _deliver(self) -> None:
        at = 0
        while len(self._received) - at >= _HEAD.size:
            kind, length, inode = _HEAD.unpack_from(self._received, at)
            end = at + _HEAD.size + length
            if end > len(self._received):
                break
            payload = bytes(self._received[at + _HEAD.size : end])
            at = end
            passed = self._take_socket(inode) if inode else None
            if inode and passed is None:
                log.warning("passed_connection_lost")
            else:
                self._receivers[MessageKind(kind)](payload, passed)
        del self._received[:at]

    def _take_socket(self, inode: int) -> socket.socket | None:
        """Return the next received socket if it is the expected one; the kernel drops a descriptor past our limit."""
        if not self._descriptors or os.fstat(self._descriptors[0]).st_ino != inode:
            return None
        return socket.socket(fileno=self._descriptors.popleft())


def _close_descriptor(descriptor: int | None) -> None:
    if descriptor is not None:
        os.close(descriptor)
