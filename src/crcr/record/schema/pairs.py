"""The table of pairs: an upstream pull request with each pull request of a backend that it depends on.

The results of a pair belong to a delivery of its own, of the event `crcr_pair`: what reads the deliveries, dispatches or jobs of
a pull request or commit does not find them.
"""

from sqlalchemy import BigInteger, Column, Index, Integer, Table, Text, text

from crcr.record.schema.main_tables import flag, key, metadata, partial_index

pairs = Table(
    "pairs",
    metadata,
    key("upstream"),
    Column("number", Integer, primary_key=True, autoincrement=False),
    key("downstream"),
    Column("dependency", Integer, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False),
    Column("place", Integer, nullable=False),
    flag("in_text"),
    Column("requested_by", Text),
    Column("round", Integer, nullable=False, server_default=text("0")),
    Column("created_at", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("refusal", Text),
    Column("head_sha", Text),
    Column("clone_url", Text),
    Column("approved_by", Text),
    Column("read_at", BigInteger),
    Column("changed_at", BigInteger, nullable=False),
    Column("due_at", BigInteger),
    Column("merged_seen_at", BigInteger),
    Column("retested", Text),
    Column("delivery", Text),
    Column("plain", Text),
    Column("tested_sha", Text),
    Column("tested_round", Integer),
    Index("ix_pairs_dependency", "downstream", "dependency"),
    partial_index("ix_pairs_due", "due_at", where=text("due_at IS NOT NULL")),
    partial_index("ix_pairs_delivery", "delivery", "upstream", where=text("delivery IS NOT NULL")),
    sqlite_with_rowid=False,
)
"""`dependency` is the number of the backend's pull request, `name` its repository as it was written. `delivery` is the newest
dispatch of the pair: for the plain delivery `plain` and the other head `tested_sha`. `due_at` is when it is looked at again; none
where nothing is waited for."""
