"""The tables behind the numbers: sums by hour, and by job and day; results of other relays; the queue for ClickHouse.

Sums are written in the transaction of the facts that they sum up (`sums`), so they are never behind; pages read them
instead of scanning millions of jobs. They have ended jobs only: running ones are few.
"""

from enum import StrEnum

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    SmallInteger,
    Table,
    Text,
    text,
)

from crcr.decide.statistics.figures import BUCKETS, COUNTING, EndedAs
from crcr.record.schema.main_tables import SERIAL, key, metadata


def number(name: str) -> Column[int]:
    return Column(name, Integer, nullable=False, server_default=text("0"))


def seconds(name: str) -> Column[float]:
    return Column(name, Double, nullable=False, server_default=text("0"))


ENDED = tuple(ended.value for ended in EndedAs)
QUEUE = tuple(f"q{bucket}" for bucket in range(BUCKETS))
EXECUTION = tuple(f"e{bucket}" for bucket in range(BUCKETS))

BACKEND_SUMS = (*ENDED, "sent", "delay_sum_s", "queue_sum_s", "execution_sum_s", *QUEUE, *EXECUTION)
LOWS, HIGHS = ("queue_low_s", "execution_low_s"), ("queue_high_s", "execution_high_s")
"""The shortest and longest duration of all results except cancelled and skipped ones. A result that is taken out of the
sums again does not change them. Other relays' results are not included: their times change with later reports."""


def backend_sums(name: str, at: str) -> Table:
    """A table with the sums of a backend's results and dispatches of one kind, for the period that starts at `at`."""
    return Table(
        name,
        metadata,
        key("upstream"),
        key("downstream"),
        key("kind"),
        Column(at, BigInteger, primary_key=True, autoincrement=False),
        *((seconds if name.endswith("_s") else number)(name) for name in BACKEND_SUMS),
        *(Column(name, Double) for name in (*LOWS, *HIGHS)),
        sqlite_with_rowid=False,
    )


hours = backend_sums("hours", "hour_at")
days = backend_sums("days", "day_at")
"""The same by the day (UTC), since a month of sixty backends is forty thousand hours."""

job_days = Table(
    "job_days",
    metadata,
    key("upstream"),
    key("downstream"),
    key("kind"),
    Column("day_at", BigInteger, primary_key=True, autoincrement=False),
    key("workflow"),
    key("job_name"),
    Column("workflow_name", Text, nullable=False),
    *(number(name) for name in ENDED),
    seconds("execution_sum_s"),
    number("execution_known"),
    sqlite_with_rowid=False,
)

_BEGUN = text("state = 'in_progress'")
COUNTED = "(" + ", ".join(f"'{ended}'" for ended in COUNTING) + ")"
"""The condition of the partial indexes of ended jobs: a query uses them only when it has the same text."""
_COUNTS = text(f"ended_as IN {COUNTED}")

# Another relay's results: shown, and read by no decision. `downstream` is the repository that it verified, `rank`
# orders the reports of one job (`decide.jobs.ingested`), `delivery_at` is when the delivery's first result was seen.
ingested = Table(
    "ingested",
    metadata,
    key("delivery"),
    key("downstream"),
    key("workflow_name"),
    key("job_name"),
    key("check_run"),
    Column("upstream", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("origin", Text, nullable=False),
    Column("level", SmallInteger),
    Column("rank", SmallInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("conclusion", Text),
    Column("disputed_conclusion", Text),
    Column("expected", Text),
    Column("event", Text, nullable=False),
    Column("action", Text),
    Column("number", Integer),
    Column("head_sha", Text),
    Column("ref", Text),
    Column("title", Text),
    Column("author", Text),
    Column("run_id", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("url", Text),
    Column("artifact_url", Text),
    Column("started_at", BigInteger),
    Column("completed_at", BigInteger),
    Column("seen_at", BigInteger, nullable=False),
    Column("delivery_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("queue_s", Double),
    Column("execution_s", Double),
    Column("tests_passed", Integer),
    Column("tests_failed", Integer),
    Column("tests_skipped", Integer),
    Column("tests_total", Integer),
    Column("failed_tests", Text),
    Column("failed_tests_cut", Integer),
    Column("log_excerpt", Text),
    Column("environment", Text),
    Column("ended_as", Text),
    Column("untrusted", LargeBinary, nullable=False),
    Index("ix_ingested_backend", "upstream", "downstream", "delivery_at", "delivery"),
    Index("ix_ingested_begun", "upstream", "downstream", sqlite_where=_BEGUN, postgresql_where=_BEGUN),
    Index(
        "ix_ingested_ended",
        "upstream",
        "downstream",
        "completed_at",
        sqlite_where=_COUNTS,
        postgresql_where=_COUNTS,
    ),
)

# When a backend came to a level; `level` is NULL from when it left the list.
levels = Table(
    "levels",
    metadata,
    key("upstream"),
    key("downstream"),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("level", SmallInteger),
    Column("at", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)


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


class FeedMark(StrEnum):
    """The names in `feeding`."""

    SINCE = "since"
    """Facts are noted from then on."""
    WHOLE = "whole"
    """From then on ClickHouse holds all."""
    BASE = "base"
    """Is added to versions."""
    BACKFILL = "backfill"
    """How far a backfill is that has not ended."""
