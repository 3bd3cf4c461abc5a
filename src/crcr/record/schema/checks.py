"""The tables of checks, the gate, its waivers and commands, merge groups, and recovery.

`recovered`, `watermarks` and `refused_webhooks` belong to the App as a whole and carry no `upstream`: one delivery log serves all.
"""

from sqlalchemy import BigInteger, Column, Index, Integer, Table, Text, text

from crcr.record.schema.main_tables import SERIAL, flag, key, metadata

_LIVE = text("destroyed_at IS NULL")

_REREAD = text("reread_at IS NOT NULL")

checks = Table(
    "checks",
    metadata,
    Column("check_id", SERIAL, primary_key=True),
    Column("upstream", Text, nullable=False),
    Column("head_sha", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("round", Integer, nullable=False),
    Column("tier", Text, nullable=False),
    Column("downstream", Text),
    Column("incarnation", Text, nullable=False),
    Column("attempted_at", BigInteger),
    Column("check_run_id", BigInteger),
    Column("status", Text, nullable=False),
    Column("conclusion", Text),
    Column("title", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Column("published_at", BigInteger),
    Column("reread_at", BigInteger),
    Index("uq_checks_round", "head_sha", "upstream", "name", "round", unique=True),
    Index("ix_checks_reread", "reread_at", sqlite_where=_REREAD, postgresql_where=_REREAD),
    sqlite_autoincrement=True,
)

_RECHECKED = text("recheck_at IS NOT NULL")

gates = Table(
    "gates",
    metadata,
    key("head_sha"),
    key("upstream"),
    Column("state", Text, nullable=False),
    Column("title", Text, nullable=False),
    Column("judged_at", BigInteger, nullable=False),
    Column("recheck_at", BigInteger),
    Column("decided_at", BigInteger),
    Index("ix_gates_recheck", "recheck_at", sqlite_where=_RECHECKED, postgresql_where=_RECHECKED),
    sqlite_with_rowid=False,
)

merge_groups = Table(
    "merge_groups",
    metadata,
    key("head_sha"),
    key("upstream"),
    Column("delivery", Text, nullable=False),
    Column("head_ref", Text, nullable=False),
    Column("base_sha", Text, nullable=False),
    Column("base_ref", Text, nullable=False),
    Column("numbers", Text),
    Column("reused_from", Text),
    Column("created_at", BigInteger, nullable=False),
    Column("destroyed_at", BigInteger),
    flag("merged"),
    Index("ix_merge_groups_live", "upstream", sqlite_where=_LIVE, postgresql_where=_LIVE),
    sqlite_with_rowid=False,
)

waivers = Table(
    "waivers",
    metadata,
    Column("waiver_id", SERIAL, primary_key=True),
    Column("upstream", Text, nullable=False),
    Column("number", Integer, nullable=False),
    Column("head_sha", Text, nullable=False),
    Column("until_at", BigInteger),
    Column("downstream", Text, nullable=False),
    Column("job", Text),
    Column("who", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
    Column("ended_by", Text),
    Column("used_at", BigInteger),
    Column("repository_id", BigInteger),
    Column("base_ref", Text),
    Index("ix_waivers_pull", "upstream", "number"),
    Index("ix_waivers_recent", "upstream", "created_at"),
    sqlite_autoincrement=True,
)

approvals = Table(
    "approvals",
    metadata,
    key("head_sha"),
    key("upstream"),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("who", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("base_ref", Text),
    sqlite_with_rowid=False,
)

commands = Table(
    "commands",
    metadata,
    Column("comment_id", BigInteger, primary_key=True, autoincrement=False),
    key("upstream"),
    Column("number", Integer, nullable=False),
    Column("who", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("answer", Text),
    Column("commands", Integer, nullable=False),
    Column("at", BigInteger, nullable=False),
    Index("ix_commands_person", "upstream", "who", "at"),
)

webhook_bodies = Table(
    "webhook_bodies",
    metadata,
    key("digest"),
    Column("guid", Text, nullable=False),
    Column("taken_at", BigInteger, nullable=False),
    Index("ix_webhook_bodies_age", "taken_at"),
    sqlite_with_rowid=False,
)
"""Bodies that were taken, by their SHA-256: a captured one must not be taken again under another GUID."""

refused_webhooks = Table(
    "refused_webhooks",
    metadata,
    key("reason"),
    Column("number", BigInteger, nullable=False),
    Column("since_at", BigInteger, nullable=False),
    Column("last_at", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
"""How many webhooks were refused since when, in the present spell; one row for each reason, of all processes together."""

recovered = Table(
    "recovered",
    metadata,
    key("guid"),
    Column("outcome", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
    Index("ix_recovered_age", "at"),
    sqlite_with_rowid=False,
)

watermarks = Table(
    "watermarks",
    metadata,
    key("name"),
    Column("at", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
