"""`AwsServer`: moto's server for AWS on loopback, one for all tests of a process, with faults on request in front of it.

Clients are botocore's own, so every request and answer fits botocore's models of the services.
"""

import http.client
import json
import logging
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any

import pytest
from botocore.session import get_session
from moto.server import ThreadedMotoServer

from support.services.cleanup import at_end

REGION = "us-east-1"
_NUMBERS = count(1)
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "AKIATESTTESTTESTTEST",
    "AWS_SECRET_ACCESS_KEY": "an-aws-secret-access-key-of-tests",
    "AWS_REGION": REGION,
    "AWS_EC2_METADATA_DISABLED": "true",
}


@dataclass(frozen=True)
class AwsFault:
    """An answer instead of the service's; with `after`, the service has done what was requested before."""

    status: int
    code: str
    after: bool = False
    hang_s: float = 0.0


@dataclass
class AwsServer:
    port: int
    moto_port: int
    faults: deque[AwsFault] = field(default_factory=deque)
    """Taken from the left, one by each request."""
    targets: list[str] = field(default_factory=list)
    """The action of each request, such as `DynamoDB_20120810.UpdateItem`."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def set_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let clients of this process sign in here, and nowhere else."""
        for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": self.url}.items():
            monkeypatch.setenv(name, value)

    def client(self, service: str) -> Any:
        return get_session().create_client(
            service,
            region_name=REGION,
            endpoint_url=self.url,
            aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
        )

    def new_table(self, **options: Any) -> str:
        name = f"torchci-oot-workflow-job-{next(_NUMBERS)}"
        self.client("dynamodb").create_table(
            TableName=name,
            KeySchema=[{"AttributeName": "dynamoKey", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "dynamoKey", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
            **options,
        )
        return name

    @contextmanager
    def failing(self, *faults: AwsFault) -> Iterator[None]:
        self.faults.extend(faults)
        try:
            yield
        finally:
            self.faults.clear()


@cache
def shared_aws() -> AwsServer:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    moto.start()
    at_end(moto.stop)
    _, moto_port = moto.get_host_and_port()
    server = AwsServer(0, moto_port)

    class Handler(_Proxy):
        aws = server

    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    proxy.daemon_threads = True
    server.port = proxy.server_port
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    at_end(proxy.server_close)
    at_end(proxy.shutdown)
    return server


class _Proxy(BaseHTTPRequestHandler):
    aws: AwsServer
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.aws.targets.append(self.headers.get("x-amz-target", self.path))
        fault = self.aws.faults.popleft() if self.aws.faults else None
        if fault is None or fault.after:
            status, headers, answer = self._pass_on(body)
        if fault is not None:
            time.sleep(fault.hang_s)
            status, headers = fault.status, [("content-type", "application/x-amz-json-1.0")]
            answer = json.dumps({"__type": f"com.amazonaws#{fault.code}", "message": "made up"}).encode()
        try:
            self._answer(status, headers, answer)
        except OSError:
            self.close_connection = True  # the client gave up

    do_PUT = do_GET = do_POST  # noqa: N815

    def _pass_on(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.aws.moto_port, timeout=30)
        headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
        connection.request(self.command, self.path, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        dropped = {"content-length", "transfer-encoding", "connection", "date", "server"}
        return answer.status, [h for h in answer.getheaders() if h[0].lower() not in dropped], content

    def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None: ...
