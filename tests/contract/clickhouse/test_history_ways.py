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


async def test_chdb_in_process_returns_the_same_figures_as_the_server(stores: Stores, tmp_path: Path) -> None:
    fed = await ClickHouseFeed.begin(stores, new_database(), 3)
    await fed.steps(80)
    batch = await fed.feeding.batch(CORE.key, 10_000)
    rows = {table.name: table_rows for table, table_rows in batch.rows}
    now, folder = fed.walk.now, tmp_path / "engine"
    request = {"url": f"chdb://{folder}", "rows": rows, "now": to_us(now), "upstream": CORE.key}
    response = json.loads(await _run_chdb_program(json.dumps(request)))
    await fed.feed(1_000)
    for kind in ResultKind:
        figures = await fed.history.figures(CORE.key, kind, Window.of(Span.QUARTER, now))
        assert _ordered(response[kind.value]) == _ordered(figures)
    await fed.link.close()


async def _run_chdb_program(request: str) -> str:
    command = (sys.executable, chdb_program.__file__)
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate(request.encode())
    return output.decode().splitlines()[-1]


def _ordered(figures: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """Sorted by time and rounded: floats that were added in another order differ in the last digits."""
    return {name: [_rounded(row) for row in sorted(rows, key=_part)] for name, rows in figures.items()}


def _part(row: dict[str, Any]) -> int:
    part: int = row["part"]
    return part


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in row.items()}


async def query_fault(location: ClickHouseLocation) -> OutsideFault:
    link = ClickHouseLink(location)
    with pytest.raises(OutsideFault) as caught:
        await link.query("SELECT 1 AS one")
    await link.close()
    assert "hunter2" not in caught.value.detail
    return caught.value


async def test_a_tls_server_requires_the_right_ca_and_the_right_password(tmp_path: Path) -> None:
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


async def test_an_unreachable_server_is_reported_at_once_without_the_password() -> None:
    fault = await query_fault(ClickHouseLocation("clickhouse://default:hunter2@127.0.0.1:1/crcr"))
    assert isinstance(fault, OutsideUnreachable)
    assert fault.detail == "ClickHouse at clickhouse://127.0.0.1:1/crcr does not answer: connection refused"
    assert "hunter2" not in repr(ClickHouseLocation("clickhouse://default:hunter2@ch"))
