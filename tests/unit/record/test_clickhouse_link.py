"""Threads for ClickHouse: slow feeding takes none from the pages, and whole-table queries get a longer time-out."""

import asyncio
import logging
from threading import Event
from typing import Any

import pytest
from clickhouse_connect.driver.exceptions import OperationalError
from urllib3.exceptions import HTTPError

from crcr.errors import OutsideUnreachable
from crcr.record.clickhouse.connection import (
    INSERT_TIMEOUT_S,
    SCAN_TIMEOUT_S,
    ClickHouseLink,
    ClickHouseLocation,
)


class QueryResult:
    column_names = ("one",)
    result_rows = ((1,),)


class BlockedClient:
    """A client that answers queries at once and blocks inserts until `may_insert` is set."""

    def __init__(self) -> None:
        self.may_insert = Event()

    def query(self, *_: Any, **__: Any) -> QueryResult:
        return QueryResult()

    def insert(self, *_: Any, **__: Any) -> None:
        self.may_insert.wait(INSERT_TIMEOUT_S)

    def close(self) -> None: ...


async def test_a_query_is_answered_while_all_inserts_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = BlockedClient()
    monkeypatch.setattr("clickhouse_connect.get_client", lambda **_: blocked)
    link = ClickHouseLink(ClickHouseLocation("clickhouse://127.0.0.1:1"))
    inserts = [asyncio.create_task(link.insert("t", {"a": "String"}, [["b"]])) for _ in range(20)]
    await asyncio.sleep(0)
    assert await link.query("SELECT 1 AS one") == [{"one": 1}]
    assert not [insert for insert in inserts if insert.done()]
    blocked.may_insert.set()
    await asyncio.gather(*inserts)
    await link.close()


async def test_a_whole_table_query_uses_a_client_with_a_longer_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timeouts: list[int] = []

    def get_client(**options: Any) -> BlockedClient:
        timeouts.append(options["send_receive_timeout"])
        return BlockedClient()

    monkeypatch.setattr("clickhouse_connect.get_client", get_client)
    link = ClickHouseLink(ClickHouseLocation("clickhouse://127.0.0.1:1"))
    await link.query_slowly("SELECT 1")
    await link.query_slowly("SELECT 1", SCAN_TIMEOUT_S)
    assert timeouts == [INSERT_TIMEOUT_S, SCAN_TIMEOUT_S]
    assert logging.getLogger("clickhouse_connect").level == logging.CRITICAL
    await link.close()


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (TimeoutError("timed out"), "timed out"),
        (ConnectionRefusedError(111, "Connection refused"), "connection refused"),
        (OSError(f"{'x' * 5_000}\nsecond line"), "x" * 200),
        (None, "error HTTPConnectionPool: Max retries exceeded"),
    ],
)
async def test_an_outage_is_reported_with_the_url_without_password_and_the_innermost_reason(
    monkeypatch: pytest.MonkeyPatch, fault: OSError | None, reason: str
) -> None:
    def wrapped(**_: Any) -> BlockedClient:
        http = HTTPError("Max retries exceeded with url: /?query_id=1")
        http.__cause__ = fault
        raise OperationalError("Error HTTPConnectionPool: Max retries exceeded\nand more") from http

    monkeypatch.setattr("clickhouse_connect.get_client", wrapped)
    link = ClickHouseLink(ClickHouseLocation("clickhouse://ada:hunter2@ch.example:8123/relay"))
    with pytest.raises(OutsideUnreachable) as caught:
        await link.query("SELECT 1")
    assert caught.value.detail == (
        f"ClickHouse at clickhouse://ch.example:8123/relay does not answer: {reason}"
    )
    await link.close()
