"""The tables of levels: daily sums that only levels need, the standing of each backend, its evaluations and changes, proposals."""

from sqlalchemy import BigInteger, Column, Index, Integer, SmallInteger, Table, Text

from crcr.record.schema.main_tables import SERIAL, key, metadata

level_days = Table(
    "level_days",
    metadata,
    key("upstream"),
    key("downstream"),
    Column("day_at", BigInteger, primary_key=True, autoincrement=False),
    Column("runs", Text, nullable=False),
    Column("jobs", Text, nullable=False),
    Column("expected", Integer, nullable=False),
    Column("answered", Integer, nullable=False),
    Column("counted_at", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
"""A backend's pull requests of one day (UTC): how many runs and jobs took how long (JSON objects from a slot of 15 minutes to a
number), how many dispatches expected an answer, and how many were answered in time. Computed from that day's rows alone."""

level_standings = Table(
    "level_standings",
    metadata,
    key("upstream"),
    key("downstream"),
    Column("level", SmallInteger, nullable=False),
    Column("standing", Text, nullable=False),
    Column("since_at", BigInteger, nullable=False),
    Column("changed_at", BigInteger),
    Column("evaluated_at", BigInteger, nullable=False),
    Column("results", Text, nullable=False),
    Column("left_out", Integer, nullable=False),
    Column("reason", Text),
    Column("override_until_at", BigInteger),
    Column("override_who", Text),
    Column("override_reason", Text),
    sqlite_with_rowid=False,
)
"""The present standing with the criteria of the last evaluation as a JSON list, why it last turned, and a maintainer's override of its
demotion."""

level_evaluations = Table(
    "level_evaluations",
    metadata,
    key("upstream"),
    key("downstream"),
    Column("at", BigInteger, primary_key=True, autoincrement=False),
    Column("level", SmallInteger, nullable=False),
    Column("standing", Text, nullable=False),
    Column("observation", Text, nullable=False),
    sqlite_with_rowid=False,
)

level_changes = Table(
    "level_changes",
    metadata,
    Column("level_change_id", SERIAL, primary_key=True),
    Column("upstream", Text, nullable=False),
    Column("downstream", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("kind", Text, nullable=False),
    Column("before", SmallInteger, nullable=False),
    Column("after", SmallInteger, nullable=False),
    Column("reason", Text, nullable=False),
    Index("ix_level_changes_recent", "upstream", "level_change_id"),
    sqlite_autoincrement=True,
)

level_proposals = Table(
    "level_proposals",
    metadata,
    key("digest"),
    key("upstream"),
    Column("at", BigInteger, nullable=False),
    Column("who", Text, nullable=False),
    Column("url", Text, nullable=False),
    sqlite_with_rowid=False,
)
"""The pull request of each proposal that was opened: the same proposal is opened once."""
