"""Connections to ClickHouse: chDB in process, TLS with a password, and the error when it cannot be reached."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from crcr.decide.statistics.window import ResultKind, Span, Window
from crcr.errors import OutsideFault, OutsideRefused, OutsideUnreachable
from crcr.record.clickhouse.connection import ClickHouseLink, ClickHouseLocation
from crcr.record.store.times import to_us
from support.data import chdb_program
from support.data.clickhouse_feed import ClickHouseFeed
from support.deploy.certificates import Authority
from support.services.clickhouse import ClickHouseServer, new_database
from support.stores.databases import CORE, Stores

PASSWORD = "hunter2 / and % more"


async def test_chdb_in_process_answers_as_the_server_does(stores: Stores, tmp_path: Path) -> None:
    fed = await ClickHouseFeed.begin(stores, new_database(), 3)
    await fed.steps(80)
    batch = await fed.feeding.batch(CORE.key, 10_000)
    rows = {table.name: each for table, each in batch.rows}
    now, folder = fed.walk.now, tmp_path / "engine"
    asked = {"url": f"chdb://{folder}", "rows": rows, "now": to_us(now), "upstream": CORE.key}
    told = json.loads(await _run_chdb_program(json.dumps(asked)))
    await fed.feed(1_000)
    for kind in ResultKind:
        found = await fed.history.figures(CORE.key, kind, Window.of(Span.QUARTER, now))
        assert _ordered(told[kind.value]) == _ordered(found)
    await fed.link.close()


async def _run_chdb_program(asked: str) -> str:
    command = (sys.executable, chdb_program.__file__)
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate(asked.encode())
    return said.decode().splitlines()[-1]


def _ordered(figures: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """By time; of seconds that were added in another order the last digits differ."""
    return {name: [_rounded(row) for row in sorted(rows, key=_part)] for name, rows in figures.items()}


def _part(row: dict[str, Any]) -> int:
    part: int = row["part"]
    return part


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in row.items()}


async def query_fault(place: ClickHouseLocation) -> OutsideFault:
    link = ClickHouseLink(place)
    with pytest.raises(OutsideFault) as caught:
        await link.query("SELECT 1 AS one")
    await link.close()
    assert "hunter2" not in caught.value.detail
    return caught.value


async def test_a_server_is_proved_by_its_ca_and_we_by_our_password(tmp_path: Path) -> None:
    authority = Authority.make()
    ca = tmp_path / "ca.pem"
    ca.write_bytes(authority.pem)
    server = ClickHouseServer(tmp_path / "engine", password=PASSWORD, certificate=authority.serve(tmp_path))
    server.start()
    try:
        link = ClickHouseLink(ClickHouseLocation(server.url, ca))
        assert await link.query("SELECT 1 AS one") == [{"one": 1}]
        await link.close()
        assert isinstance(await query_fault(ClickHouseLocation(server.url)), OutsideUnreachable)
        wrong = server.url.replace("more", "less")
        assert isinstance(await query_fault(ClickHouseLocation(wrong, ca)), OutsideRefused)
    finally:
        server.stop()


async def test_what_is_not_there_is_told_at_once() -> None:
    fault = await query_fault(ClickHouseLocation("clickhouse://default:hunter2@127.0.0.1:1/crcr"))
    assert isinstance(fault, OutsideUnreachable)
    assert fault.detail == "ClickHouse at clickhouse://127.0.0.1:1/crcr does not answer: connection refused"
    assert "hunter2" not in repr(ClickHouseLocation("clickhouse://default:hunter2@ch"))
