"""The baseline: a bare ASGI app that verifies RS256, decodes the body and commits in groups. Nothing else.

It has no allowlist, no limits, no lifecycle, no records but the body: the difference to the relay is the cost
of those.
"""

import asyncio
import json
import sqlite3
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import asyncpg
import jwt
import uvicorn

_ANSWER = b'{"ok":true}'
_HEADERS = [(b"content-type", b"application/json"), (b"content-length", str(len(_ANSWER)).encode())]


ReportRow = tuple[str, bytes]


class ReportStore(Protocol):
    async def insert(self, rows: list[ReportRow]) -> None:
        """Commit the rows in one transaction."""
        ...


class SqliteReports:
    def __init__(self, database: str) -> None:
        self._connection = sqlite3.connect(database, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=FULL")
        self._connection.execute("CREATE TABLE reports (id INTEGER PRIMARY KEY, job TEXT, body BLOB)")
        self._thread = ThreadPoolExecutor(1)

    async def insert(self, rows: list[ReportRow]) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany("INSERT INTO reports (job, body) VALUES (?, ?)", rows)
        await asyncio.get_running_loop().run_in_executor(self._thread, self._connection.execute, "COMMIT")


class PostgresReports:
    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None

    async def insert(self, rows: list[ReportRow]) -> None:
        if self._connection is None:
            self._connection = await asyncpg.connect(self._url)
            await self._connection.execute(
                "CREATE TABLE IF NOT EXISTS reports (id bigserial PRIMARY KEY, job text, body bytea)"
            )
        await self._connection.executemany("INSERT INTO reports (job, body) VALUES ($1, $2)", rows)


class BareApp:
    def __init__(self, store: ReportStore, public_key: str, audience: str) -> None:
        self._key = jwt.PyJWK(json.loads(public_key)).key
        self._audience = audience
        self._store = store
        self._waiting: list[tuple[ReportRow, asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        headers = dict(scope["headers"])
        parts = []
        while True:
            message = await receive()
            parts.append(message.get("body", b""))
            if not message.get("more_body"):
                break
        token = headers[b"authorization"].decode().removeprefix("Bearer ")
        jwt.decode(token, self._key, algorithms=["RS256"], audience=self._audience)
        body = b"".join(parts)
        report = json.loads(body)
        await self._commit(report["workflow"]["job_name"], json.dumps(report["workflow"]).encode())
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": _HEADERS,
            }
        )
        await send({"type": "http.response.body", "body": _ANSWER})

    async def _commit(self, job: str, body: bytes) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(((job, body), done))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._commit_groups())
        await done

    async def _commit_groups(self) -> None:
        while self._waiting:
            await asyncio.sleep(0)
            group, self._waiting = self._waiting, []
            await self._store.insert([row for row, _ in group])
            for _, done in group:
                if not done.done():
                    done.set_result(None)


if __name__ == "__main__":
    port, database, public_key, audience = sys.argv[1:]
    store: ReportStore = (
        PostgresReports(database) if database.startswith("postgresql:") else SqliteReports(database)
    )
    app = BareApp(store, public_key, audience)
    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="error", access_log=False, lifespan="off")
