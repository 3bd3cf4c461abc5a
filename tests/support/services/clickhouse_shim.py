"""A program that serves chDB over ClickHouse's HTTP interface: one process can hold only one engine.

It implements what the driver uses: statements in the body or in `query`, bound parameters, settings, a
database, basic authentication, data after `FORMAT Native`, errors with their code. Run by `support.services.clickhouse`.
"""

import argparse
import base64
import re
import ssl
import sys
import tempfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import chdb

_TRANSPORT_PARAMETERS = frozenset(
    {
        *("query", "query_id", "session_id", "session_timeout", "session_check", "wait_end_of_query"),
        *("buffer_size", "compress", "decompress", "client_protocol_version", "quota_key", "role"),
        *("database", "user", "password", "send_progress_in_http_headers", "enable_http_compression"),
        *("http_headers_progress_interval_ms", "cancel_http_readonly_queries_on_client_close"),
    }
)
_WITH_DATA = re.compile(rb"\s*(INSERT\s+INTO\s.+?)\s+FORMAT\s+(\w+)[ ]*\n", re.IGNORECASE | re.DOTALL)
_FORMAT = re.compile(r"\bFORMAT\s+(\w+)\s*;?\s*$", re.IGNORECASE)
_CODE = re.compile(r"Code: (\d+)")


_connect: Callable[[str], Any] = chdb.connect


class Engine:
    """One engine; each request has its own handle, so that settings and databases stay apart."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self._open = _connect(self._folder)  # keeps the engine alive between requests
        self._lock = Lock()

    def run(self, body: bytes, parameters: dict[str, str]) -> tuple[bytes, str | None]:
        with self._lock:
            handle = _connect(self._folder)
            try:
                return self._run(handle, body, parameters)
            finally:
                handle.close()

    def _run(self, handle: Any, body: bytes, parameters: dict[str, str]) -> tuple[bytes, str | None]:
        if "database" in parameters:
            handle.query(f"USE `{parameters['database']}`")
        for name, value in parameters.items():
            if name not in _TRANSPORT_PARAMETERS and not name.startswith("param_"):
                handle.query(f"SET {name} = '{value}'")
        query = parameters.get("query", "").encode()
        found = _WITH_DATA.match(query + b"\n") or _WITH_DATA.match(body)
        if found is not None:
            self._insert(handle, found, body if query else body[found.end() :])
            return b"", None
        text = (query + body).decode()
        params = {
            name.removeprefix("param_"): value
            for name, value in parameters.items()
            if name.startswith("param_")
        }
        named = _FORMAT.search(text)
        if named is not None:
            return handle.query(text, named[1], params=params).bytes() or b"", named[1]
        # Only a statement with a result has column names: this tells an empty result from none.
        answer = handle.query(text, "TabSeparatedWithNames", params=params).bytes() or b""
        return (answer.partition(b"\n")[2], "TabSeparated") if answer else (b"", None)

    def _insert(self, handle: Any, statement: re.Match[bytes], data: bytes) -> None:
        with tempfile.NamedTemporaryFile() as file:
            file.write(data)
            file.flush()
            handle.query(f"{statement[1].decode()} FROM INFILE '{file.name}' FORMAT {statement[2].decode()}")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    engine: Engine
    password: str | None

    def do_GET(self) -> None:
        if urlsplit(self.path).path == "/ping":
            self._answer(200, b"Ok.\n")
        else:
            self._serve(b"")

    def do_POST(self) -> None:
        self._serve(b"".join(self._body()))

    def log_message(self, *_: Any) -> None:
        """Log nothing: errors are in the response."""

    def _serve(self, body: bytes) -> None:
        parameters = dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))
        if not self._is_known():
            refused = b"Code: 516. DB::Exception: default: Authentication failed. (AUTHENTICATION_FAILED)"
            self._answer(403, refused, {"X-ClickHouse-Exception-Code": "516"})
            return
        try:
            answer, named = self.engine.run(body, parameters)
        except Exception as error:  # noqa: BLE001 - answered as ClickHouse answers it
            code = _CODE.search(str(error))
            headers = {"X-ClickHouse-Exception-Code": code[1] if code else "1002"}
            self._answer(500, str(error).encode(), headers)
            return
        self._answer(200, answer, {"X-ClickHouse-Format": named} if named else {})

    def _is_known(self) -> bool:
        if self.password is None:
            return True
        given = self.headers.get("Authorization", "").removeprefix("Basic ")
        return base64.b64decode(given).decode().partition(":")[2] == self.password

    def _body(self) -> Iterator[bytes]:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            yield self.rfile.read(int(self.headers.get("Content-Length") or 0))
            return
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {
            "X-ClickHouse-Summary": "{}",
            "X-ClickHouse-Timezone": "UTC",
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("port", type=int)
    parser.add_argument("--password")
    parser.add_argument("--certificate")
    parser.add_argument("--key")
    given = parser.parse_args()
    Handler.engine, Handler.password = Engine(given.folder), given.password
    server = ThreadingHTTPServer(("127.0.0.1", given.port), Handler)
    if given.certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(given.certificate, given.key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
