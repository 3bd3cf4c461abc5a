"""Lambda functions in this process: events, limits of size and time, idle periods, periodic tasks, SIGTERM."""

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import os
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from awslambdaric.bootstrap import LambdaLoggerHandler  # type: ignore[import-untyped]
from sqlalchemy import text
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from crcr.decide.jobs.workflow_job_record import write_attributes
from crcr.record.store.database import Database
from crcr.record.store.statement import Statement
from crcr.settings import load_settings
from crcr.wiring.aws_lambda.background_functions import (
    StreamFunction,
    TickFunction,
    WorkerFunction,
    leased_for,
)
from crcr.wiring.aws_lambda.environment import LambdaEnvironment, read_settings
from crcr.wiring.aws_lambda.handlers import FunctionFailed, guard
from crcr.wiring.aws_lambda.http_functions import MOST_RESPONSE_BYTES, LambdaApp, http_function
from crcr.wiring.core import Seams
from crcr.wiring.intake_app import build_intake_app
from crcr.wiring.secret_rotation import READ_EVERY
from github_sim.github import GitHub
from support.aws.lambda_runtime import API_GATEWAY
from support.clock import ManualClock
from support.data.operator_database import relay_environment, restore_logging
from support.running_relay import UPSTREAM, place_empty_database

SECRET = "a-secret-that-nobody-sees"


@dataclass
class Context:
    remaining_s: float = 30.0

    def get_remaining_time_in_millis(self) -> int:
        return int(self.remaining_s * 1_000)


@dataclass
class Started:
    environment: LambdaEnvironment
    clock: ManualClock


@contextmanager
def start_lambda(folder: Path, **more: Any) -> Iterator[Started]:
    environ = relay_environment(folder, CRCR_UPSTREAM=UPSTREAM)
    place_empty_database(folder / "crcr.db")
    settings = load_settings(config=None, environ=environ | more.pop("environ", {}), cwd=folder)
    clock = ManualClock()
    environment = LambdaEnvironment(settings, Seams(clock=clock, sqlite_durable=False, **more))
    try:
        environment.start()
        yield Started(environment, clock)
    finally:
        environment.run(environment.close())
        environment.loop.close()


def sign_event(body: bytes, *, secret: str = SECRET, encoded: bool) -> dict[str, Any]:
    signature = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    headers = {
        **API_GATEWAY["headers"],
        "x-github-event": "ping",
        "x-github-delivery": "72d3162e-cc78-11e3-81ab-4c9367dc0958",
        "x-hub-signature-256": f"sha256={signature}",
    }
    text = base64.b64encode(body).decode() if encoded else body.decode()
    return {**API_GATEWAY, "headers": headers, "body": text, "isBase64Encoded": encoded}


@pytest.mark.parametrize(
    ("event", "status"),
    [
        (sign_event(b'{"zen":"\xc3\xa4","hook_id":1}', encoded=True), 200),
        (sign_event(b'{"zen":"\xc3\xa4","hook_id":1}', encoded=False), 200),
        (sign_event(b'{"zen":"x"}', secret="wrong", encoded=True), 401),
        ({**API_GATEWAY, "isBase64Encoded": False}, 401),
        ({**API_GATEWAY, "body": "%%%", "isBase64Encoded": True}, 401),
    ],
)
def test_an_event_of_api_gateway_is_handled_as_a_request(tmp_path: Path, event: Any, status: int) -> None:
    with start_lambda(tmp_path) as lambda_:
        function = http_function(LambdaApp(lambda_.environment, lambda s: build_intake_app(s, work=False)))
        answer = function(event, Context())
        assert (answer["statusCode"], answer["isBase64Encoded"]) == (status, False)
        assert json.loads(answer["body"])["ok"] is (status == 200)


@pytest.mark.parametrize(
    "path", ["/metrics", "/metrics/", "/healthz", "/readyz", "/readyz/callback", "/%6detrics"]
)
def test_probes_and_metrics_are_not_public(tmp_path: Path, path: str) -> None:
    http = {**API_GATEWAY["requestContext"]["http"], "method": "GET", "path": path}
    event = {
        **API_GATEWAY,
        "rawPath": path,
        "requestContext": {**API_GATEWAY["requestContext"], "http": http},
    }
    with start_lambda(tmp_path) as lambda_:
        function = http_function(LambdaApp(lambda_.environment, lambda s: build_intake_app(s, work=False)))
        assert function(event, Context())["statusCode"] == 404


HOSTILE: list[Any] = [
    None,
    [],
    {},
    {"Records": []},
    {**API_GATEWAY, "requestContext": {}},
    {**API_GATEWAY, "headers": {"host": "a", "x-forwarded-port": "443; DROP"}},
    {**API_GATEWAY, "headers": {"host": "a:b:c"}},
    {**API_GATEWAY, "headers": {"x": "\ud800"}},
    {**API_GATEWAY, "headers": {"x": None}},
    {**API_GATEWAY, "body": "A", "isBase64Encoded": True},
    {**API_GATEWAY, "body": {"not": "text"}},
]


def test_an_event_that_is_no_request_gets_a_400(tmp_path: Path) -> None:
    with start_lambda(tmp_path) as lambda_:
        function = http_function(LambdaApp(lambda_.environment, lambda s: build_intake_app(s, work=False)))
        for event in HOSTILE:
            assert function(event, Context())["statusCode"] == 400, event


async def never_respond(_: Scope, receive: Receive, __: Send) -> None:
    while True:
        await receive()


def respond_with(size: int, kind: str, filled_with: bytes = b"x") -> ASGIApp:
    return Response(filled_with * size, media_type=kind)


@pytest.mark.parametrize(
    ("app", "status"),
    [
        (never_respond, 503),
        (respond_with(MOST_RESPONSE_BYTES, "application/json"), 200),
        (respond_with(MOST_RESPONSE_BYTES + 1, "application/json"), 500),
        (respond_with(MOST_RESPONSE_BYTES * 2 // 3, "application/json", b'"'), 500),
        (respond_with(MOST_RESPONSE_BYTES * 3 // 4 - 8, "image/png"), 200),
        (respond_with(MOST_RESPONSE_BYTES * 3 // 4 + 8, "image/png"), 500),
    ],
)
def test_a_response_stays_within_lambdas_time_and_size(tmp_path: Path, app: ASGIApp, status: int) -> None:
    with start_lambda(tmp_path) as lambda_:
        function = http_function(LambdaApp(lambda_.environment, lambda _: app))
        answer = function(API_GATEWAY, Context(remaining_s=1.05))
        assert answer["statusCode"] == status
        assert len(json.dumps(answer)) <= 6 * 1024 * 1024


@dataclass
class PassingTime(Context):
    """The remaining time of an invocation, by the real clock."""

    began: float = field(default_factory=time.monotonic)

    def get_remaining_time_in_millis(self) -> int:
        return int((self.began + self.remaining_s - time.monotonic()) * 1_000)


def test_a_task_that_never_ends_delays_no_response_and_is_awaited_once(tmp_path: Path) -> None:
    """Lambda kills a function at its timeout: the sender would then get no response to a committed event."""
    stuck: list[asyncio.Task[Any]] = []

    async def respond_and_leave_task(scope: Scope, receive: Receive, send: Send) -> None:
        stuck.append(asyncio.create_task(asyncio.Event().wait()))
        await Response(b"{}")(scope, receive, send)

    with start_lambda(tmp_path) as lambda_:
        function = http_function(LambdaApp(lambda_.environment, lambda _: respond_and_leave_task))
        for _ in range(3):
            context = PassingTime(remaining_s=0.5)
            assert function(API_GATEWAY, context)["statusCode"] == 200
            assert context.get_remaining_time_in_millis() > 0
        assert not any(task.done() for task in stuck)
        worker = WorkerFunction(lambda_.environment)
        context = PassingTime(remaining_s=30.0)
        worker({}, context)
        assert context.get_remaining_time_in_millis() > 27_000
        for task in stuck:
            task.cancel()


def test_during_a_store_outage_a_function_starts_and_answers_503(tmp_path: Path) -> None:
    environ = {"CRCR_DATABASE_URL": "postgresql://crcr@127.0.0.1:9/crcr"}
    with start_lambda(tmp_path, environ=environ) as lambda_:
        function = http_function(LambdaApp(lambda_.environment, lambda s: build_intake_app(s, work=False)))
        answer = function(API_GATEWAY, Context())
        assert (answer["statusCode"], json.loads(answer["body"])["error"]["code"]) == (
            503,
            "store_unavailable",
        )
        with pytest.raises(Exception, match="PostgreSQL"):
            WorkerFunction(lambda_.environment)({"source": "aws.scheduler"}, Context())
        messages = {"Records": [{"messageId": "1"}, {"messageId": "2"}, "hostile", {}]}
        failed = WorkerFunction(lambda_.environment)(messages, Context())["batchItemFailures"]
        assert failed == [{"itemIdentifier": "1"}, {"itemIdentifier": "2"}]


class RenewCounter:
    """A database that counts how often its connections were renewed."""

    def __init__(self, inner: Database) -> None:
        self._inner = inner
        self.renewed = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def renew_connections(self) -> None:
        self.renewed += 1


@pytest.mark.parametrize(("pause_s", "renewed"), [(0, 0), (29, 0), (31, 1), (86_400, 1)])
def test_connections_are_renewed_after_an_idle_period(tmp_path: Path, pause_s: float, renewed: int) -> None:
    with start_lambda(tmp_path) as lambda_:
        environment = lambda_.environment
        services = environment.run(environment.services())
        database = RenewCounter(services.database)
        environment._services = replace(services, database=cast("Database", database))
        function = http_function(LambdaApp(environment, lambda _: Response(b"")))
        function(API_GATEWAY, Context())
        lambda_.clock.advance(pause_s)
        function(API_GATEWAY, Context())
        assert database.renewed == renewed


def test_a_rotated_secret_is_read_by_the_first_invocation_after_the_interval(tmp_path: Path) -> None:
    """No task runs between invocations, so nothing else could read it."""
    secret_file = tmp_path / "webhook-secret"
    secret_file.write_text(SECRET)
    from_file = {"CRCR_GITHUB_WEBHOOK_SECRET": "", "CRCR_GITHUB_WEBHOOK_SECRET_FILE": str(secret_file)}
    body, new = b'{"zen":"x"}', "the-secret-after-the-rotation"
    with start_lambda(tmp_path, environ=from_file) as lambda_:
        function = http_function(LambdaApp(lambda_.environment, lambda s: build_intake_app(s, work=False)))
        secret_file.write_text(new)
        answers = [function(sign_event(body, secret=new, encoded=True), Context())["statusCode"]]
        lambda_.clock.advance(READ_EVERY.total_seconds())
        answers.append(function(sign_event(body, secret=new, encoded=True), Context())["statusCode"])
        assert answers == [401, 200]


def test_secrets_that_cannot_be_read_in_time_stay_unchanged(tmp_path: Path) -> None:
    secret_file = tmp_path / "webhook-secret"
    secret_file.write_text(SECRET)
    from_file = {"CRCR_GITHUB_WEBHOOK_SECRET": "", "CRCR_GITHUB_WEBHOOK_SECRET_FILE": str(secret_file)}
    with start_lambda(tmp_path, environ=from_file) as lambda_:
        function = http_function(LambdaApp(lambda_.environment, lambda s: build_intake_app(s, work=False)))
        secret_file.unlink()
        os.mkfifo(secret_file)  # reading it blocks, like a service that does not respond
        lambda_.clock.advance(READ_EVERY.total_seconds())
        context = PassingTime(remaining_s=1.8)
        assert function(sign_event(b'{"zen":"x"}', encoded=True), context)["statusCode"] == 200
        assert context.get_remaining_time_in_millis() > 1_000
        os.close(os.open(secret_file, os.O_WRONLY))


class Lines(list[str]):
    """Records the lines of the log handler of Lambda's runtime."""

    def log(self, line: str, **_: object) -> None:
        self.append(line)


def test_lambdas_log_and_errors_contain_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place_empty_database(tmp_path / "crcr.db")
    for name, value in relay_environment(tmp_path, CRCR_UPSTREAM=UPSTREAM).items():
        monkeypatch.setenv(name, value)
    written, root = Lines(), logging.getLogger()

    def failing(_: Any, __: Any) -> None:
        raise OSError(f"cannot send {SECRET}")

    with restore_logging():
        root.addHandler(LambdaLoggerHandler(written))
        assert SECRET in read_settings().secrets()
        root.warning("a library says %s", SECRET)
        with pytest.raises(FunctionFailed, match=r"OSError: cannot send \*\*\*") as caught:
            guard("worker", failing)({}, Context())
    assert (written, caught.value.__cause__, caught.value.__suppress_context__) == ([], None, True)
    logged = capsys.readouterr().err
    assert "a library says ***" in logged
    assert "function_failed" in logged
    assert SECRET not in logged


def test_a_stream_batch_is_stored_and_is_returned_for_retry_during_a_store_outage(tmp_path: Path) -> None:
    item: dict[str, str | int | float] = {
        "status": "completed",
        "downstream_repo": "org/backend",
        "upstream_repo": UPSTREAM,
        "pr_number": 7,
    }
    item |= {
        "delivery_id": "72d3162e-cc78-11e3-81ab-4c9367dc0958",
        "workflow_name": "CI",
        "job_name": "build",
    }
    item |= {"check_run_id": "11", "run_id": "5", "run_attempt": 1, "conclusion": "success"}
    image = write_attributes({**item, "dynamoKey": "org/backend/72d3162e/CI/build/11"})
    change = {"SequenceNumber": "100", "NewImage": image}
    batch = {"Records": [{"eventName": "MODIFY", "eventSource": "aws:dynamodb", "dynamodb": change}]}
    with start_lambda(tmp_path) as lambda_:
        function = StreamFunction(lambda_.environment)
        assert function(batch, Context()) == {"batchItemFailures": []}
        assert function({}, Context()) == {"batchItemFailures": []}
        services = lambda_.environment.run(lambda_.environment.services())
        lambda_.environment.run(services.database.close())
        assert function(batch, Context()) == {"batchItemFailures": [{"itemIdentifier": "100"}]}
    with closing(sqlite3.connect(tmp_path / "crcr.db")) as store:
        assert store.execute("SELECT downstream, job_name, conclusion FROM ingested").fetchall() == [
            ("org/backend", "build", "success")
        ]


def test_the_tick_runs_each_task_once_per_period(tmp_path: Path) -> None:
    with start_lambda(tmp_path) as lambda_:
        tick = TickFunction(lambda_.environment)
        ran = []
        for pause_s in (0, 5, 55, 60, 180, 3600):
            lambda_.clock.advance(pause_s)
            ran.append(set(tick({}, Context(300))["ran"]))
        everything = ran[0]
        assert {"refresh", "sweep", "bisect", "evaluate_levels", "forget", "reconcile"} <= everything
        assert ran[1] == set()  # an event that Lambda delivered twice
        assert "sweep" in ran[2]
        assert "look_at_base" in ran[2]
        assert not {"refresh", "forget"} & ran[2]
        assert {"sweep", "bisect"} <= ran[3]
        assert "refresh" in ran[4]
        assert ran[5] == everything


def test_a_tasks_lease_ends_before_the_next_scheduled_event_of_its_period() -> None:
    periods = (30.0, 60.0, 120.0, 300.0, 3600.0)
    assert [leased_for(every_s) for every_s in periods] == [
        timedelta(seconds=seconds) for seconds in (10, 30, 90, 270, 3570)
    ]


def test_after_sigterm_a_worker_finishes_its_call_and_releases_the_rest(tmp_path: Path) -> None:
    clock = ManualClock()
    github = GitHub(clock=clock, seed=7, base_url="http://127.0.0.1:9")
    names = [f"owner{number}/backend" for number in range(3)]

    async def terminating(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"].endswith("/dispatches"):
            os.kill(os.getpid(), signal.SIGTERM)
        await github.app(scope, receive, send)

    def open_http(_: str) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.ASGITransport(terminating))

    environ = {
        "CRCR_GITHUB_APP_ID": str(github.app_id),
        "CRCR_GITHUB_APP_PRIVATE_KEY": github.private_key_pem,
        "CRCR_GITHUB_WEBHOOK_SECRET": github.webhook_secret,
        "CRCR_GITHUB_API_URL": "http://127.0.0.1:9",
        "CRCR_WORKER_CONCURRENCY": "1",
    }
    with start_lambda(tmp_path, environ=environ, http=open_http) as lambda_:
        (tmp_path / "allowlist.yml").write_text("L1:\n" + "".join(f"  - {name}\n" for name in names))
        environment = lambda_.environment
        for name in (UPSTREAM, *names):
            github.create_repository(name)
        services = environment.run(environment.services())
        TickFunction(environment)({}, Context(300))
        github.webhook_url = "http://relay.test/github/webhook"
        github.use_transport(httpx.ASGITransport(build_intake_app(services, work=False)))
        environment.run(github.open_pr(UPSTREAM))
        assert WorkerFunction(environment)({}, Context(120)) == {"batchItemFailures": []}
        assert len(github.dispatches()) == 1
        assert states(environment) == ["done", "waiting", "waiting"]
        WorkerFunction(environment)({}, Context(120))
        WorkerFunction(environment)({}, Context(120))
        assert states(environment) == ["done"] * 3
        assert [len(github.dispatches(name)) for name in names] == [1, 1, 1]


def states(environment: LambdaEnvironment) -> list[str]:
    query = Statement(text("SELECT state FROM effects WHERE kind = 'send_dispatch'"))
    services = environment.run(environment.services())
    rows = environment.run(services.database.quick_read(lambda tx: tx.all(query)))
    return sorted(row["state"] for row in rows)
