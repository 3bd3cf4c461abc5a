"""The tables that several processes of one relay share among themselves."""

from sqlalchemy import BigInteger, Column, Table, Text

from crcr.record.schema.core import key, metadata

# Who does what only one process may do at a time (`leaders`); a holder that died loses it when `until_at` is over.
leaders = Table(
    "leaders",
    metadata,
    key("duty"),
    Column("holder", Text, nullable=False),
    Column("since_at", BigInteger, nullable=False),
    Column("until_at", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
