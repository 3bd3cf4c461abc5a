"""Bringing a database to this release's schema, and telling whether it is there."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, create_engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import ConnectionPoolEntry, NullPool

from crcr.errors import StoreUnavailable

_HERE = Path(__file__).parent / "migrations"


def migrate(path: Path) -> tuple[str | None, str]:
    """Apply what is missing; return the revisions before and after."""
    engine = create_engine(f"sqlite:///{path}", poolclass=NullPool)
    event.listen(engine, "connect", _prepare)
    try:
        with engine.connect() as connection:
            # Held over all steps, so that of two starting processes one migrates and the other finds it done.
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            before = current(connection)
            command.upgrade(_config(connection), "head")
            connection.commit()
            return before, current(connection) or ""
    except DBAPIError as fault:
        raise StoreUnavailable(f"the database {path} cannot be opened for writing: {fault.orig}") from fault
    except CommandError as fault:
        hint = "a newer release may have written it: use that one, or another database"
        raise StoreUnavailable(f"the database {path} cannot be migrated: {fault}", hint=hint) from fault
    finally:
        engine.dispose()


def head() -> str:
    return ScriptDirectory.from_config(_config(None)).get_current_head() or ""


def current(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _prepare(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
    connection.isolation_level = None  # we begin and commit ourselves
    cursor = connection.cursor()
    cursor.execute("PRAGMA busy_timeout=30000")
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.close()


def _config(connection: Connection | None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(_HERE))
    config.attributes["connection"] = connection
    return config
