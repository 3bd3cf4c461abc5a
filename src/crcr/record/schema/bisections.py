"""The tables of bisections: one row for each, and one for each of its runs.

A bisection's row has its range as it was when it began: a push that arrives late moves commits, and no run may change its place
by that. Each run is a delivery of its own, of the event `crcr_bisection`, which nothing counts.
"""

from sqlalchemy import BigInteger, Column, Double, Index, Integer, Table, Text, text

from crcr.record.schema.main_tables import SERIAL, key, metadata, partial_index

_RUNNING = text("state = 'running'")

bisections = Table(
    "bisections",
    metadata,
    Column("bisection_id", SERIAL, primary_key=True),
    Column("upstream", Text, nullable=False),
    Column("downstream", Text, nullable=False),
    Column("workflow", Text, nullable=False),
    Column("job_name", Text, nullable=False),
    Column("ref", Text, nullable=False),
    Column("flake_rate", Double, nullable=False),
    Column("most_runs", Integer, nullable=False),
    Column("who", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("ends_at", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("outcome", Text),
    Column("reason", Text),
    Column("left_good", Integer, nullable=False),
    Column("left_bad", Integer, nullable=False),
    Column("culprit", Text),
    Column("finished_at", BigInteger),
    Column("fingerprints", Text),
    Column("commits", Text, nullable=False),
    Index(
        "uq_bisections_running",
        *("upstream", "downstream", "workflow", "job_name"),
        unique=True,
        sqlite_where=_RUNNING,
        postgresql_where=_RUNNING,
    ),
    Index("ix_bisections_job", "upstream", "downstream", "job_name", "bisection_id"),
    Index("ix_bisections_recent", "upstream", "bisection_id"),
    partial_index("ix_bisections_culprit", "culprit", "upstream", where=text("culprit IS NOT NULL")),
    sqlite_autoincrement=True,
)
"""`commits` is the range as a JSON list of `[sha, number, title]`: the good end first, the bad end last. The culprit is after the
commit at `left_good`, up to the one at `left_bad`. The long column is the last: SQLite reads over it to reach those behind it."""

bisection_runs = Table(
    "bisection_runs",
    metadata,
    Column("bisection_id", BigInteger, primary_key=True, autoincrement=False),
    Column("number", Integer, primary_key=True, autoincrement=False),
    key("upstream"),
    Column("delivery", Text, nullable=False),
    Column("position", Integer, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("result", Text),
    Column("sample", Text),
    Column("url", Text),
    Column("finished_at", BigInteger),
    Column("failed_run", Text),
    Column("fingerprints", Text),
    Index("ix_bisection_runs_delivery", "delivery", "upstream"),
    Index("ix_bisection_runs_recent", "upstream", "created_at"),
    sqlite_with_rowid=False,
)
"""`position` is the commit's place in the bisection's `commits`; `fingerprints` are of the failed job in the run and attempt of
`failed_run`."""
