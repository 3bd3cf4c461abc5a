"""`ScanServer`: a table of DynamoDB that can only be scanned, in segments and pages, for histories that moto is too slow for.

moto reads its whole table for each page. Clients are botocore's, which validate the answers.
"""

import json
import threading
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from zlib import crc32

Attributes = Mapping[str, Mapping[str, str]]


class ScanServer:
    def __init__(self, items: Iterable[Attributes]) -> None:
        self._items = {item["dynamoKey"]["S"]: item for item in items}
        self._segments: dict[int, list[list[str]]] = {}
        self._lock = threading.Lock()
        self.pages = 0
        self.url = ""

    def answer(self, action: str, request: Mapping[str, Any]) -> dict[str, Any]:
        if action == "DescribeTable":
            return {"Table": {"TableName": request["TableName"], "ItemCount": len(self._items)}}
        if action != "Scan":
            raise ValueError(action)
        keys = self._keys(request.get("TotalSegments", 1))[request.get("Segment", 0)]
        after = request.get("ExclusiveStartKey", {}).get("dynamoKey", {}).get("S")
        start = 0 if after is None else bisect_right(keys, after)
        page = keys[start : start + request.get("Limit", 1000)]
        more = start + len(page) < len(keys)
        self.pages += 1
        return {
            "Items": [self._items[key] for key in page],
            "Count": len(page),
            "ScannedCount": len(page),
            **({"LastEvaluatedKey": {"dynamoKey": {"S": page[-1]}}} if more else {}),
        }

    def _keys(self, segments: int) -> list[list[str]]:
        with self._lock:
            if segments not in self._segments:
                parts: list[list[str]] = [[] for _ in range(segments)]
                for key in sorted(self._items):
                    parts[crc32(key.encode()) % segments].append(key)
                self._segments[segments] = parts
            return self._segments[segments]


@contextmanager
def serve_table(items: Iterable[Attributes]) -> Iterator[ScanServer]:
    table = ScanServer(items)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            answer = json.dumps(table.answer(self.headers["x-amz-target"].rpartition(".")[2], body)).encode()
            self.send_response(200)
            self.send_header("content-type", "application/x-amz-json-1.0")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    table.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield table
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
