"""Database statements per event, counted from the webhook until no effect is left."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from crcr.record.store.sqlite.database import SqliteDatabase
from support.running_relay import UPSTREAM, RunningRelay, running_relay

FIRST, SECOND = "org/first", "org/second"
MOST = 40
LISTED = {
    "two at L1": f"L1:\n  - {FIRST}\n  - {SECOND}\n",
    "one at L3 without its label": f"L1:\n  - {FIRST}\nL3:\n  npu:\n    {SECOND}: [ann]\n",
    "two at L3 without their labels": f"L3:\n  npu:\n    {FIRST}: [bob]\n    {SECOND}: [ann]\n",
}


@contextmanager
def record_statements(relay: RunningRelay) -> Iterator[list[str]]:
    """Every statement that SQLite executes, each row of a batch as one; BEGIN and COMMIT are left out."""
    database = relay.services.database
    assert isinstance(database, SqliteDatabase)
    statements: list[str] = []

    def record(sql: str) -> None:
        if not sql.startswith(("BEGIN", "COMMIT")):
            statements.append(sql)

    connections = (database._writing, database._key_reader)
    for connection in connections:
        connection.set_trace_callback(record)
    yield statements
    for connection in connections:
        connection.set_trace_callback(None)


@pytest.mark.parametrize("allowlist", LISTED.values(), ids=LISTED)
async def test_an_opened_event_sent_to_two_downstreams_costs_at_most_forty_statements(
    tmp_path: Path, allowlist: str
) -> None:
    # Always on SQLite, which reports every statement that it executes.
    url = f"sqlite:///{tmp_path / 'counted.db'}"
    async with running_relay(
        tmp_path, allowlist, downstreams=(FIRST, SECOND), CRCR_DATABASE_URL=url
    ) as relay:
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        with record_statements(relay) as statements:
            await relay.github.open_pr(UPSTREAM)
            await relay.drain()

        assert [len(relay.github.dispatches(name)) for name in (FIRST, SECOND)] == [2, 2]
        assert relay.rows("SELECT kind FROM effects WHERE state <> 'done' OR kind = 'publish_checks'") == []
        assert len(statements) <= MOST, "\n".join(statements)
