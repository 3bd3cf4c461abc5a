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


class Answer:
    column_names = ("one",)
    result_rows = ((1,),)


class Slow:
    """A client that answers questions at once and takes rows when it is let."""

    def __init__(self) -> None:
        self.lets = Event()

    def query(self, *_: Any, **__: Any) -> Answer:
        return Answer()

    def insert(self, *_: Any, **__: Any) -> None:
        self.lets.wait(INSERT_TIMEOUT_S)

    def close(self) -> None: ...


async def test_a_page_is_answered_while_all_inserts_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow()
    monkeypatch.setattr("clickhouse_connect.get_client", lambda **_: slow)
    link = ClickHouseLink(ClickHouseLocation("clickhouse://127.0.0.1:1"))
    feeding = [asyncio.create_task(link.insert("t", {"a": "String"}, [["b"]])) for _ in range(20)]
    await asyncio.sleep(0)
    assert await link.query("SELECT 1 AS one") == [{"one": 1}]
    assert not [each for each in feeding if each.done()]
    slow.lets.set()
    await asyncio.gather(*feeding)
    await link.close()


async def test_who_waits_for_a_whole_table_has_a_client_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []

    def made(**options: Any) -> Slow:
        opened.append(options["send_receive_timeout"])
        return Slow()

    monkeypatch.setattr("clickhouse_connect.get_client", made)
    link = ClickHouseLink(ClickHouseLocation("clickhouse://127.0.0.1:1"))
    await link.query_slowly("SELECT 1")
    await link.query_slowly("SELECT 1", SCAN_TIMEOUT_S)
    assert opened == [INSERT_TIMEOUT_S, SCAN_TIMEOUT_S]
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
async def test_what_is_told_of_an_outage_is_the_place_and_the_innermost_reason(
    monkeypatch: pytest.MonkeyPatch, fault: OSError | None, reason: str
) -> None:
    def wrapped(**_: Any) -> Slow:
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
