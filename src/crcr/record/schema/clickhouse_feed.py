"""The tables through which ClickHouse is fed: what has moved the sums and is not told there yet, and how far it is.

A row of `unfed` names a fact and does not copy it: whoever feeds reads the fact as it is by then. Its number is the
version of what is fed, so that of two feedings of one fact the later one wins.
"""

from enum import StrEnum

from sqlalchemy import BigInteger, Column, Index, Integer, Table, Text, text

from crcr.record.schema.core import SERIAL, key, metadata

unfed = Table(
    "unfed",
    metadata,
    Column("seq", SERIAL, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("upstream", Text, nullable=False),
    Column("downstream", Text, nullable=False),
    Column("delivery", Text, nullable=False),
    Column("workflow", Text, nullable=False, server_default=text("''")),
    Column("run_id", Text, nullable=False, server_default=text("''")),
    Column("attempt", Integer, nullable=False, server_default=text("0")),
    Column("job_name", Text, nullable=False, server_default=text("''")),
    Column("check_run", Text, nullable=False, server_default=text("''")),
    Column("was_at", BigInteger, nullable=False, server_default=text("0")),
    Column("due_at", BigInteger, nullable=False),
    Index("ix_unfed_queue", "upstream", "seq"),
    sqlite_autoincrement=True,
)
"""`was_at` is where in time the fact stood before, if it stood elsewhere; 0 otherwise."""

feeding = Table(
    "feeding",
    metadata,
    key("name"),
    Column("value", Text, nullable=False),
    sqlite_with_rowid=False,
)


class Mark(StrEnum):
    """The names in `feeding`."""

    SINCE = "since"
    """Facts are noted from then on."""
    WHOLE = "whole"
    """From then on ClickHouse holds all."""
    BASE = "base"
    """Is added to versions."""
    BACKFILL = "backfill"
    """How far a backfill is that has not ended."""
