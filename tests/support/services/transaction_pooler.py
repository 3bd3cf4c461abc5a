"""`TransactionPooler`: a connection pooler in front of PostgreSQL, as RDS Proxy and PgBouncer in transaction mode are.

Each transaction gets the session that was idle for the longest, so that two transactions of a client never share one by
chance. It notes what such a pooler does not carry from one transaction to the next: named statements, settings, LISTEN.
"""

import asyncio
import re
import struct
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

_SSL_REQUEST = 80877103
_SESSION_STATE = re.compile(
    rb"\b(PREPARE|EXECUTE|LISTEN|DEALLOCATE|DISCARD|SET(?! LOCAL| TRANSACTION))\b[^=]", re.IGNORECASE
)
_WRITES = re.compile(rb"\s*(UPDATE|INSERT|DELETE|WITH|SELECT)\b", re.IGNORECASE)
_KNOWN = {b"user", b"database", b"client_encoding", b"application_name"}


@dataclass
class _Session:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


@dataclass
class TransactionPooler:
    server_url: str
    refused: list[str] = field(default_factory=list)
    """What a client asked for that does not work behind a pooler."""
    is_down: bool = False
    sessions: int = 4
    url: str = ""
    transactions: int = 0
    _idle: deque[_Session] = field(default_factory=deque)
    _free: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    _greeting: bytes = b""
    _clients: set[asyncio.StreamWriter] = field(default_factory=set)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def open(self) -> asyncio.Server:
        for _ in range(self.sessions):
            self._idle.append(await self._connect())
            self._free.release()
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        parts, port = urlsplit(self.server_url), server.sockets[0].getsockname()[1]
        self.url = f"postgresql://{parts.username}@127.0.0.1:{port}{parts.path}"
        return server

    def drop_clients(self) -> int:
        """Close all connections of clients, as a pooler does with idle ones; return how many there were."""
        dropped = len(self._clients)
        for client in self._clients:
            client.transport.abort()
        return dropped

    def close(self) -> None:
        self.drop_clients()
        for session in self._idle:
            session.writer.close()

    async def _connect(self) -> _Session:
        parts = urlsplit(self.server_url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        names = b"user\0%b\0database\0%b\0client_encoding\0utf-8\0\0" % (
            str(parts.username).encode(),
            parts.path.strip("/").encode(),
        )
        writer.write(struct.pack("!ii", len(names) + 8, 196608) + names)
        greeting = b""
        while True:
            kind, body = await _read(reader)
            greeting += _pack(kind, body)
            assert kind != b"E", body
            if kind == b"Z":
                self._greeting = greeting
                return _Session(reader, writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_down:
            writer.transport.abort()
            return
        self._clients.add(writer)
        try:
            await self._start(reader, writer)
            while True:
                await self._transaction(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._clients.discard(writer)
            writer.close()

    async def _start(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            [length] = struct.unpack("!i", await reader.readexactly(4))
            body = await reader.readexactly(length - 4)
            if struct.unpack("!i", body[:4]) != (_SSL_REQUEST,):
                break
            writer.write(b"N")
        names = body[4:].rstrip(b"\0").split(b"\0")[::2]
        self.refused += [f"start with {name.decode()}" for name in names if name not in _KNOWN]
        writer.write(self._greeting)

    async def _transaction(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass messages on until the session is outside of a transaction again."""
        kind, body = await _read(reader)
        if kind == b"X":
            raise ConnectionResetError
        async with self._session() as session:
            self.transactions += 1
            expected, status = 0, b"T"
            while True:
                self._check(kind, body)
                session.writer.write(_pack(kind, body))
                expected += kind in (b"S", b"Q")
                waits = kind in (b"S", b"Q", b"H")
                while waits:
                    answer, content = await _read(session.reader)
                    writer.write(_pack(answer, content))
                    if answer == b"Z":
                        expected, status = expected - 1, content
                    # After a flush no end is announced: the description, or an error, is the last answer.
                    waits = expected > 0 if kind != b"H" else answer not in (b"T", b"n", b"E")
                if not expected and status == b"I" and kind != b"H":
                    return
                kind, body = await _read(reader)
                if kind == b"X":
                    raise ConnectionResetError

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[_Session]:
        async with self._free:
            session = self._idle.popleft()
            try:
                yield session
            except (asyncio.IncompleteReadError, ConnectionError):
                session.writer.close()  # the client has left a transaction open
                with suppress(OSError):
                    session = await self._connect()
                raise
            finally:
                self._idle.append(session)

    def _check(self, kind: bytes, body: bytes) -> None:
        if kind == b"P" and not body.startswith(b"\0"):
            self.refused.append(f"named statement {body[:80]!r}")
        text = body.partition(b"\0")[2] if kind == b"P" else body
        if kind in (b"P", b"Q") and not _WRITES.match(text) and (found := _SESSION_STATE.search(text)):
            self.refused.append(f"{found[0].decode()}in {text[:80]!r}")


async def _read(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    kind = await reader.readexactly(1)
    [length] = struct.unpack("!i", await reader.readexactly(4))
    return kind, await reader.readexactly(length - 4)


def _pack(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


@asynccontextmanager
async def run_pooler(server_url: str) -> AsyncIterator[TransactionPooler]:
    pooler = TransactionPooler(server_url)
    server = await pooler.open()
    try:
        yield pooler
    finally:
        server.close()
        pooler.close()
        await asyncio.sleep(0)
