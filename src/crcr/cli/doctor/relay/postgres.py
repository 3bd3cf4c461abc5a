"""Findings about a PostgreSQL store: schema, write access, server settings, clock, connections.

Changes nothing: the one row written to test write access is rolled back.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import asyncpg

from crcr.cli.doctor.relay.store import schema_finding
from crcr.errors import StoreUnavailable
from crcr.join.findings.finding import SetupFinding, ok, problem, warning
from crcr.record.migrations.run import head, revision
from crcr.record.store.database import PostgresLocation
from crcr.record.store.postgres.connection import FAULTS, WHAT_TO_CHECK, Connection, connect

_OLDEST_VERSION = 130000
_MAX_OFFSET = timedelta(seconds=10)
_MB = 1 << 20
_CLOSE_S = 3.0
_FACTS = """
SELECT current_setting('server_version') AS version, current_setting('server_version_num')::int AS number,
  current_setting('server_encoding') AS encoding, pg_is_in_recovery() AS copy,
  current_setting('fsync') AS fsync, current_setting('synchronous_commit') AS sync,
  current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int AS most,
  (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') - 1 AS used,
  pg_database_size(current_database()) AS size, clock_timestamp() AS now,
  (SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()) AS encrypted,
  coalesce(inet_server_addr() = inet_client_addr(), true) AS same_host
"""
_TEST_INSERT = "INSERT INTO watermarks (name, at) VALUES ('crcr doctor', 0)"


async def postgres_findings(location: PostgresLocation, name: str) -> tuple[SetupFinding, ...]:
    hint = f"{WHAT_TO_CHECK}; requests get 503 until it answers"
    try:
        connection = await connect(location)
        try:
            return await _examine(connection, location, name)
        finally:
            await connection.close(timeout=_CLOSE_S)
    except StoreUnavailable as fault:
        return (problem("store", f"{name} cannot be used: {fault.detail}.", hint),)
    except FAULTS as fault:
        return (problem("store", f"{name} cannot be examined: {fault}.", hint),)


def is_current(location: PostgresLocation) -> bool:
    try:
        return revision(location) == head()
    except StoreUnavailable:
        return False


async def _examine(connection: Connection, location: PostgresLocation, name: str) -> tuple[SetupFinding, ...]:
    before = datetime.now(UTC)
    [facts] = await connection.fetch(_FACTS)
    offset = facts["now"] - (before + (datetime.now(UTC) - before) / 2)
    schema_revision = revision(location)
    if schema_revision is None:
        lacking = problem(
            "store", f"There is no crcr database at {name}.", "`crcr serve` or `crcr migrate` creates it"
        )
        return (lacking, *_server_findings(facts))
    return (
        schema_finding(schema_revision, f"{name} (PostgreSQL {facts['version'].partition(' ')[0]})"),
        await _write_finding(connection, facts),
        *_server_findings(facts),
        *_clock_findings(offset),
        _connections_finding(facts, location),
        ok("size", f"Size: {facts['size'] // _MB:,} MB."),
    )


async def _write_finding(connection: Connection, facts: asyncpg.Record) -> SetupFinding:
    if facts["copy"]:
        return problem("writing", "It is a read-only standby.", "set CRCR_DATABASE_URL to the primary")
    transaction = connection.transaction()
    await transaction.start()
    try:
        await connection.execute(_TEST_INSERT)
    except asyncpg.PostgresError as fault:
        hint = "let the relay's user write all its tables, and check the server's disk space"
        return problem("writing", f"Not writable: {fault}.", hint)
    finally:
        await transaction.rollback()
    return ok("writing", "Writable.")


def _server_findings(facts: asyncpg.Record) -> Iterator[SetupFinding]:
    if facts["number"] < _OLDEST_VERSION:
        yield problem(
            "version", f"The server is PostgreSQL {facts['version']}.", "use PostgreSQL 13 or newer"
        )
    if facts["encoding"] != "UTF8":
        hint = "create a database with ENCODING 'UTF8'; other encodings cannot hold every text"
        yield problem("encoding", f"The database's encoding is {facts['encoding']}.", hint)
    if "off" in {facts["fsync"], facts["sync"]}:
        yield warning(
            "durability",
            "The server confirms writes before they are on disk (fsync or synchronous_commit is off).",
            "turn both on: a power cut loses data that the relay has acknowledged",
        )
    if not facts["encrypted"] and not facts["same_host"]:
        yield warning(
            "database_tls",
            "The connection to the database is not encrypted.",
            "add ?sslmode=verify-full unless the network in between is private",
        )


def _clock_findings(offset: timedelta) -> Iterator[SetupFinding]:
    if abs(offset) > _MAX_OFFSET:
        yield warning(
            "database_clock",
            f"The database's clock is {abs(offset).total_seconds():.0f} s {'ahead of' if offset > timedelta() else 'behind'} ours.",
            "set both clocks with NTP",
        )


def _connections_finding(facts: asyncpg.Record, location: PostgresLocation) -> SetupFinding:
    free, needed = max(facts["most"] - facts["used"], 0), location.connections + 1
    text = f"{free:,} of {facts['most']:,} connections are free; a process opens up to {needed}."
    if free < needed:
        return warning("connections", text, "raise max_connections, or lower CRCR_DATABASE_POOL")
    return ok("connections", text)
