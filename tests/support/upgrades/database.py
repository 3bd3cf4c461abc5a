"""`write_database`: a database with an older release's schema and rows.

The rows of every release use the pull requests, deliveries and backends that are named here.
"""

import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from alembic import command
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.pool import NullPool

from crcr.record.migrations.run import _on_postgres, alembic_config
from crcr.record.store.database import DatabaseLocation, PostgresLocation

Row = dict[str, Any]
AT = 1_767_225_600_000_000
"""When the rows were written: the moment at which a test's clock begins."""
UP, GATING, REPORTER, NEWCOMER = "pytorch-like/core", "org/gating", "org/reporter", "org/newcomer"
DECIDED, SENT, DOUBTED, REPORTED, AGAIN, GROUPED, SAID, PRESSED = (
    f"00000000-0000-4000-8000-00000000000{number}" for number in range(1, 9)
)
"""Deliveries: of pull requests 1 to 5, of a merge group, of a comment, and of a press on the gate's button."""
_NAME = re.compile(r"\$(\w+)")


@dataclass(frozen=True)
class Packed:
    """A webhook body, compressed as the store keeps it."""

    body: str


@dataclass(frozen=True, kw_only=True)
class OldRelease:
    """The rows of one release: facts, and effects in any state."""

    revision: str
    facts: Sequence[tuple[str, Row]]
    effects: Sequence[Row]
    states: Mapping[str, Row]
    """The columns of an effect in each state."""
    dispatches: Mapping[str, Row]
    """The columns of a dispatch to be sent whose effect is in that state."""

    def rows(self, state: str, names: Mapping[str, Any]) -> list[tuple[str, Row]]:
        """Everything, with every effect once done and once in `state`."""
        facts = [
            (table, row | self.dispatches[state] if _is_to_be_sent(table, row) else row)
            for table, row in self.facts
        ]
        effects = [("effects", row | self.states[each]) for each in ("done", state) for row in self.effects]
        return [
            (table, {column: _filled(value, names) for column, value in row.items()})
            for table, row in (*facts, *effects)
        ]


def _is_to_be_sent(table: str, row: Row) -> bool:
    return table == "dispatches" and row["state"] == "waiting"


def write_database(place: DatabaseLocation, revision: str, rows: Sequence[tuple[str, Row]]) -> None:
    """Bring an empty database to a release's schema, and write the release's rows."""

    def write(connection: Connection) -> None:
        command.upgrade(alembic_config(connection), revision)
        for table, row in rows:
            columns, marks = ", ".join(row), ", ".join(f":{column}" for column in row)
            connection.execute(text(f"INSERT INTO {table} ({columns}) VALUES ({marks})"), row)  # noqa: S608

    if isinstance(place, PostgresLocation):
        _on_postgres(place, write)
        return
    engine = create_engine(f"sqlite:///{place}", poolclass=NullPool)
    with engine.begin() as connection:
        write(connection)
    engine.dispose()


def _filled(value: Any, names: Mapping[str, Any]) -> Any:
    """Replace `$name`; a text that is only `$name` becomes the value with its type."""
    if isinstance(value, Packed):
        return zlib.compress(_text(value.body, names).encode(), 1)
    if isinstance(value, bytes):
        return _text(value.decode(), names).encode()
    if not isinstance(value, str):
        return value
    whole = _NAME.fullmatch(value)
    return names[whole[1]] if whole else _text(value, names)


def _text(value: str, names: Mapping[str, Any]) -> str:
    return _NAME.sub(lambda found: str(names[found[1]]), value)
