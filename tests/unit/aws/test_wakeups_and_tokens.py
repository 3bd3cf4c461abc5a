"""Messages that wake workers, tokens that sign in to PostgreSQL, and the settings of both."""

import asyncio
import struct
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from botocore.session import Session

from crcr.errors import BadSettings, StoreUnavailable
from crcr.record.store.database import PostgresLocation
from crcr.record.store.postgres.connection import connect
from crcr.record.store.postgres.iam_token import IamTokens
from crcr.record.store.signals import ALLOWLIST, EFFECTS, Signals
from crcr.record.store.sqs_wakeups import MESSAGE, SqsWakeups, region_of
from crcr.settings import load_settings
from support.data.operator_database import relay_environment

QUEUE = "https://sqs.eu-central-1.amazonaws.com/123456789012/crcr"


class Sqs:
    """Accepts messages, or fails."""

    def __init__(self, fault: Exception | None = None) -> None:
        self.fault = fault
        self.delays: list[int] = []

    def send_message(self, **request: Any) -> None:
        if self.fault:
            raise self.fault
        assert (request["QueueUrl"], request["MessageBody"]) == (QUEUE, MESSAGE)
        self.delays.append(request["DelaySeconds"])


async def test_commits_of_one_moment_share_a_message_and_later_ones_get_their_own() -> None:
    sqs, signals = Sqs(), Signals()
    wakeups = SqsWakeups(QUEUE, lambda: cast("Any", sqs), signals)
    signals.notify(ALLOWLIST)
    for _ in range(20):
        signals.notify(EFFECTS)
    await wakeups.flush()
    assert sqs.delays == [0]
    signals.notify(EFFECTS)
    signals.notify(EFFECTS)
    await wakeups.flush()
    assert sqs.delays == [0, 0]
    wakeups.paused = True
    signals.notify(EFFECTS)
    await wakeups.flush()
    assert sqs.delays == [0, 0]


async def test_a_delay_is_clamped_to_the_range_of_sqs() -> None:
    sqs = Sqs()
    wakeups = SqsWakeups(QUEUE, lambda: cast("Any", sqs))
    assert all([await wakeups.send(delay_s) for delay_s in (-5.0, 0.2, 59.0, 100_000.0)])
    assert sqs.delays == [0, 1, 59, 900]


@pytest.mark.parametrize(
    "fault",
    [
        EndpointConnectionError(endpoint_url="https://sqs"),
        ClientError({"Error": {"Code": "AWS.SimpleQueueService.NonExistentQueue"}}, "SendMessage"),
    ],
)
async def test_a_message_that_cannot_be_sent_raises_no_error(fault: Exception) -> None:
    signals = Signals()
    wakeups = SqsWakeups(QUEUE, lambda: cast("Any", Sqs(fault)), signals)
    signals.notify(EFFECTS)
    await wakeups.flush()
    assert await wakeups.send() is False


def test_the_region_is_parsed_from_the_queue_url() -> None:
    assert region_of(QUEUE) == "eu-central-1"
    assert region_of("http://127.0.0.1:4566/queue") is None


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, f"testing/{name}")


async def test_a_token_equals_the_one_that_botocore_generates_for_rds(credentials: None) -> None:
    host, user = "proxy.eu-central-1.rds.amazonaws.com", "crcr user"
    tokens = IamTokens(f"postgresql://crcr%20user@{host}/crcr", "eu-central-1")
    rds: Any = Session().create_client("rds", region_name="eu-central-1")
    for _ in range(5):  # both have to be signed in the same second
        ours = await tokens()
        theirs = rds.generate_db_auth_token(host, 5432, user, "eu-central-1")
        if _parts(ours)["X-Amz-Date"] == _parts(theirs)["X-Amz-Date"]:
            break
    assert ours.partition("?")[0] == theirs.partition("?")[0]
    assert _parts(ours) == _parts(theirs)


def _parts(token: str) -> Mapping[str, list[str]]:
    return parse_qs(urlsplit(f"https://{token}").query, strict_parsing=True)


async def test_each_connection_gets_its_own_token() -> None:
    passwords: list[str] = []
    numbers = iter(range(9))

    async def request_password(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A server that requests a cleartext password, as RDS does over TLS, and refuses it."""
        [length] = struct.unpack("!i", await reader.readexactly(4))
        if (await reader.readexactly(length - 4))[:4] == struct.pack("!i", 80877103):
            writer.write(b"N")
            [length] = struct.unpack("!i", await reader.readexactly(4))
            await reader.readexactly(length - 4)
        writer.write(b"R" + struct.pack("!ii", 8, 3))
        _, length = struct.unpack("!ci", await reader.readexactly(5))
        passwords.append((await reader.readexactly(length - 4)).rstrip(b"\0").decode())
        refusal = b"SFATAL\0C28P01\0Mno\0\0"
        writer.write(b"E" + struct.pack("!i", len(refusal) + 4) + refusal)
        writer.close()

    async def new_password() -> str:
        return f"token {next(numbers)}"

    server = await asyncio.start_server(request_password, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    location = PostgresLocation(f"postgresql://crcr@127.0.0.1:{port}/crcr", new_password=new_password)
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await connect(location)
    server.close()
    assert passwords == ["token 0", "token 1"]


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"CRCR_DATABASE_URL": "postgresql://crcr@host/crcr?sslmode=verify-full"}, None),
        ({"CRCR_DATABASE_URL": "postgresql://crcr@host/crcr"}, "need TLS"),
        ({"CRCR_DATABASE_URL": "postgresql://crcr@host/crcr?sslmode=prefer"}, "need TLS"),
        ({"CRCR_DATABASE_URL": "postgresql://crcr:word@host/crcr?sslmode=require"}, "no password"),
        ({"CRCR_DATABASE_URL": "postgresql://host/crcr?sslmode=require"}, "name a user"),
        ({}, "is SQLite"),
    ],
)
def test_iam_requires_postgresql_a_user_and_tls(
    tmp_path: Path, more: dict[str, str], problem: str | None
) -> None:
    environ = {**relay_environment(tmp_path), "CRCR_DATABASE_AUTH": "aws-iam", **more}
    if problem is None:
        assert load_settings(config=None, environ=environ, cwd=tmp_path).database_auth == "aws-iam"
        return
    with pytest.raises(BadSettings, match=problem):
        load_settings(config=None, environ=environ, cwd=tmp_path)


@pytest.mark.parametrize(("queue", "is_accepted"), [(QUEUE, True), (f"{QUEUE}.fifo", False)])
def test_the_wakeup_queue_must_be_a_standard_queue(tmp_path: Path, queue: str, is_accepted: bool) -> None:
    environ = {**relay_environment(tmp_path), "CRCR_WAKEUP_QUEUE_URL": queue}
    with nullcontext() if is_accepted else pytest.raises(BadSettings, match="standard queue"):
        load_settings(config=None, environ=environ, cwd=tmp_path)
