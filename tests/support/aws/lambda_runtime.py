"""Lambda as the tests serve it: the Runtime API on loopback, functions as processes of the real runtime interface client.

A function's process has the unpacked package and the client on its path, and nothing else: no environment of the tests.
`Gateway` turns HTTP requests into events, as a function URL and API Gateway do.
"""

import asyncio
import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import uuid4
from zipfile import ZipFile

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from github_sim.rest.server import Server
from support.paths import ROOT

HANDLERS = "crcr.wiring.aws_lambda.handlers"
_API = "/2018-06-01/runtime"
_CLIENT = ("awslambdaric", "runtime_client", "simplejson", "snapshot_restore_py")
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def build_package(dist: Path) -> Path:
    """Run `make lambda`'s tool for the Python of the tests; return the package."""
    command = (
        sys.executable,
        str(ROOT / "tools" / "lambda_package.py"),
        "--python",
        PYTHON,
        "--dist",
        str(dist),
    )
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    [package] = dist.glob("*.zip")
    return package


def unpack(package: Path, folder: Path) -> "Code":
    """Unpack the package, and put the client, which Lambda itself brings, beside it."""
    with ZipFile(package) as packed:
        packed.extractall(folder / "task")
    client = folder / "client"
    client.mkdir()
    for name in _CLIENT:
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        if spec.submodule_search_locations:
            shutil.copytree(Path(spec.origin).parent, client / name)
        else:
            shutil.copy(spec.origin, client)
    return Code(folder / "task", client)


@dataclass(frozen=True)
class Code:
    task: Path
    client: Path


class FunctionFailed(Exception):
    """The function raised, or its process ended."""


@dataclass(eq=False)
class _Invocation:
    event: object
    timeout_s: float
    result: asyncio.Future[Any]
    request_id: str = field(default_factory=lambda: str(uuid4()))


class LambdaFunction:
    """One function with at most one execution environment, which is started when it is needed."""

    def __init__(self, name: str, code: Code, environ: Mapping[str, str]) -> None:
        self.name = name
        self._code = code
        self._environ = environ
        self._waiting: asyncio.Queue[_Invocation] = asyncio.Queue()
        self._taken: dict[str, _Invocation] = {}
        self._polled = asyncio.Event()
        self._init_error: str | None = None
        self._one_at_a_time = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._log: asyncio.Task[bytes] | None = None
        self.init_s = 0.0
        self.logs: list[str] = []
        routes = [
            Route(f"{_API}/invocation/next", self._next),
            Route(f"{_API}/invocation/{{request_id}}/response", self._respond, methods=["POST"]),
            Route(f"{_API}/invocation/{{request_id}}/error", self._fail, methods=["POST"]),
            Route(f"{_API}/init/error", self._fail_init, methods=["POST"]),
        ]
        self._server = Server(Starlette(routes=routes), "127.0.0.1", 0)

    async def invoke(self, event: object, *, timeout_s: float = 30.0) -> Any:
        async with self._one_at_a_time:
            await self.start()
            invocation = _Invocation(event, timeout_s, asyncio.get_running_loop().create_future())
            self._waiting.put_nowait(invocation)
            try:
                async with asyncio.timeout(timeout_s + 30):
                    return await invocation.result
            finally:
                self._taken.pop(invocation.request_id, None)

    async def start(self) -> None:
        """Start the process unless it runs; return when it waits for its first event."""
        if self._process is not None:
            return
        self._polled.clear()
        began = time.perf_counter()
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-S", "-m", "awslambdaric", f"{HANDLERS}.{self.name}"),
            cwd=self._code.task,
            env=self._variables(),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        assert self._process.stderr is not None
        self._log = asyncio.create_task(self._read_log(self._process.stderr))
        ended = asyncio.create_task(self._process.wait())
        polled = asyncio.create_task(self._polled.wait())
        async with asyncio.timeout(60):
            await asyncio.wait({ended, polled}, return_when=asyncio.FIRST_COMPLETED)
        polled.cancel()
        if not self._polled.is_set():
            self._process = None
            raise FunctionFailed(self._init_error or "".join(self.logs))
        self.init_s = time.perf_counter() - began
        ended.add_done_callback(lambda _: self._end_invocations())

    def _variables(self) -> dict[str, str]:
        """What Lambda gives a function."""
        api = self._server.url.removeprefix("http://")
        return {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": f"{self._code.task}:{self._code.client}",
            "LANG": "en_US.UTF-8",
            "TZ": ":UTC",
            "LAMBDA_TASK_ROOT": str(self._code.task),
            "_HANDLER": f"{HANDLERS}.{self.name}",
            "AWS_LAMBDA_RUNTIME_API": api,
            "AWS_LAMBDA_FUNCTION_NAME": f"crcr-{self.name}",
            "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "512",
            "AWS_REGION": "eu-central-1",
            "AWS_DEFAULT_REGION": "eu-central-1",
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_SESSION_TOKEN": "testing",
            **self._environ,
        }

    async def _read_log(self, stream: asyncio.StreamReader) -> bytes:
        while line := await stream.readline():
            self.logs.append(line.decode())
        return b""

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def send_signal(self, which: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(which)

    def freeze(self) -> None:
        self.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.send_signal(signal.SIGCONT)

    async def end(self, how: signal.Signals = signal.SIGKILL) -> int:
        """End the process; the next invocation starts a new one."""
        assert self._process is not None
        process, self._process = self._process, None
        if process.returncode is None:
            process.send_signal(how)
        code = await process.wait()
        if self._log is not None:
            await self._log
        return code

    def _end_invocations(self) -> None:
        for invocation in self._taken.values():
            if not invocation.result.done():
                invocation.result.set_exception(FunctionFailed(f"{self.name} ended during an invocation"))

    async def _next(self, request: Request) -> Response:
        self._polled.set()
        waiting = asyncio.create_task(self._waiting.get())
        gone = asyncio.create_task(_disconnected(request))
        await asyncio.wait({waiting, gone}, return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        if not waiting.done():
            waiting.cancel()
            return Response(status_code=500)
        invocation = waiting.result()
        self._taken[invocation.request_id] = invocation
        headers = {
            "Lambda-Runtime-Aws-Request-Id": invocation.request_id,
            "Lambda-Runtime-Deadline-Ms": str(int((time.time() + invocation.timeout_s) * 1000)),
            "Lambda-Runtime-Invoked-Function-Arn": f"arn:aws:lambda:eu-central-1:123456789012:function:{self.name}",
            "Lambda-Runtime-Trace-Id": "Root=1-5bef4de7-ad49b0e87f6ef6c87fc2e700;Sampled=0",
        }
        return JSONResponse(invocation.event, headers=headers)

    async def _respond(self, request: Request) -> Response:
        if (
            invocation := self._taken.get(request.path_params["request_id"])
        ) and not invocation.result.done():
            invocation.result.set_result(json.loads(await request.body()))
        return JSONResponse({"status": "OK"}, 202)

    async def _fail(self, request: Request) -> Response:
        if (
            invocation := self._taken.get(request.path_params["request_id"])
        ) and not invocation.result.done():
            invocation.result.set_exception(FunctionFailed((await request.body()).decode()))
        return JSONResponse({"status": "OK"}, 202)

    async def _fail_init(self, request: Request) -> Response:
        self._init_error = (await request.body()).decode()
        return JSONResponse({"status": "OK"}, 202)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["LambdaFunction"]:
        await self._server.start()
        try:
            yield self
        finally:
            if self._process is not None:
                self.thaw()
                await self.end()
            await self._server.stop()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class Gateway:
    """An ASGI app that invokes a function for each request; `choose` picks it by the path."""

    def __init__(self, choose: Callable[[str], LambdaFunction]) -> None:
        self._choose = choose
        self.events: list[dict[str, Any]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        event = http_event(request, await request.body())
        try:
            answer = await self._choose(scope["path"]).invoke(event)
        except FunctionFailed:
            await JSONResponse({"message": "Internal Server Error"}, 502)(scope, receive, send)
            return
        body = answer.get("body", "")
        content = base64.b64decode(body) if answer.get("isBase64Encoded") else body.encode()
        response = Response(content, answer["statusCode"], answer.get("headers"))
        for cookie in answer.get("cookies", ()):
            response.headers.append("set-cookie", cookie)
        await response(scope, receive, send)


def http_event(request: Request, body: bytes) -> dict[str, Any]:
    """The event of a function URL: https://docs.aws.amazon.com/lambda/latest/dg/urls-invocation.html."""
    text = request.headers.get("content-type", "").startswith(("application/json", "text/"))
    host = request.headers.get("host", "")
    return {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": request.url.path,
        "rawQueryString": request.url.query,
        "headers": {
            **{name: ",".join(request.headers.getlist(name)) for name in request.headers if name != "cookie"},
            "x-forwarded-for": "127.0.0.1",
            "x-forwarded-port": "443",
            "x-forwarded-proto": "https",
            "x-amzn-trace-id": "Root=1-5bef4de7-ad49b0e87f6ef6c87fc2e700",
        },
        **({"cookies": request.headers["cookie"].split("; ")} if "cookie" in request.headers else {}),
        "requestContext": {
            "accountId": "anonymous",
            "apiId": "abcdefghij",
            "domainName": host,
            "domainPrefix": "abcdefghij",
            "http": {
                "method": request.method,
                "path": request.url.path,
                "protocol": "HTTP/1.1",
                "sourceIp": "127.0.0.1",
                "userAgent": request.headers.get("user-agent", ""),
            },
            "requestId": str(uuid4()),
            "routeKey": "$default",
            "stage": "$default",
            "time": "18/Nov/2026:10:00:00 +0000",
            "timeEpoch": 1794996000000,
        },
        **(
            {"body": body.decode() if text else base64.b64encode(body).decode(), "isBase64Encoded": not text}
            if body
            else {"isBase64Encoded": False}
        ),
    }


API_GATEWAY: dict[str, Any] = {
    "version": "2.0",
    "routeKey": "POST /github/webhook",
    "rawPath": "/github/webhook",
    "rawQueryString": "",
    "headers": {"content-type": "application/json", "host": "relay.example.org", "x-forwarded-port": "443"},
    "requestContext": {
        "accountId": "123456789012",
        "apiId": "api-id",
        "authentication": None,
        "domainName": "id.execute-api.eu-central-1.amazonaws.com",
        "http": {
            "method": "POST",
            "path": "/github/webhook",
            "protocol": "HTTP/1.1",
            "sourceIp": "192.0.2.7",
            "userAgent": "GitHub-Hookshot/1",
        },
        "requestId": "id",
        "routeKey": "POST /github/webhook",
        "stage": "$default",
        "time": "18/Nov/2026:10:00:00 +0000",
        "timeEpoch": 1794996000000,
    },
}
"""https://docs.aws.amazon.com/apigateway/latest/developerguide/http-api-develop-integrations-lambda.html"""


def schedule_event() -> dict[str, Any]:
    """https://docs.aws.amazon.com/lambda/latest/dg/with-eventbridge-scheduler.html"""
    return {
        "version": "0",
        "id": "53dc4d37-cffa-4f76-80c9-8b7d4a4d2eaa",
        "detail-type": "Scheduled Event",
        "source": "aws.scheduler",
        "account": "123456789012",
        "time": "2026-11-18T10:00:00Z",
        "region": "eu-central-1",
        "resources": ["arn:aws:scheduler:eu-central-1:123456789012:schedule/default/crcr-worker"],
        "detail": "{}",
    }
