"""The tables of the upstream's own CI: one row for each commit, and one for each check of a commit that is not quiet yet.

A commit's row has its counts and, once its checks are quiet, all of them in one packed value. A check that changes later has a
row again until the commit is quiet the next time; that row then counts in place of the packed one.
"""

from sqlalchemy import BigInteger, Column, Index, Integer, LargeBinary, Table, Text, text

from crcr.record.schema.main_tables import flag, key, metadata, partial_index

_UNPACKED = text("unpacked = 1")


def _count(name: str) -> Column[int]:
    return Column(name, Integer, nullable=False, server_default=text("0"))


in_tree_commits = Table(
    "in_tree_commits",
    metadata,
    key("sha"),
    key("upstream"),
    _count("passed"),
    _count("failed"),
    _count("running"),
    flag("unpacked"),
    Column("changed_at", BigInteger, nullable=False),
    Column("announced_at", BigInteger, nullable=False, server_default=text("0")),
    Column("change_id", BigInteger),
    Column("packed", LargeBinary),
    Index("ix_in_tree_commits_age", "upstream", "changed_at"),
    partial_index("ix_in_tree_commits_unpacked", "changed_at", where=_UNPACKED),
)
"""`unpacked`: it has rows in `in_tree_checks`. `change_id` is its entry of the change log, of which it has one at a time."""

in_tree_checks = Table(
    "in_tree_checks",
    metadata,
    key("sha"),
    key("upstream"),
    Column("app_id", BigInteger, primary_key=True, autoincrement=False),
    key("name"),
    Column("check_id", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
    Column("conclusion", Text),
    Column("url", Text),
    sqlite_with_rowid=False,
)
"""The newest check of each App and name; `ended_at` is in seconds, as GitHub has it."""
