"""`crcr backup`: a copy of the SQLite database while the relay runs."""

from pathlib import Path
from typing import Annotated

import typer

from crcr.cli.options import RUN_PANEL, ConfigOption, JsonOption, examples, read_settings
from crcr.cli.printing import print_outcome

TargetArgument = Annotated[Path, typer.Argument(metavar="FILE", help="The copy; must not exist yet.")]


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel=RUN_PANEL, epilog=examples("crcr backup /backup/crcr-2026-08-03.db"))(backup)


def backup(target: TargetArgument, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Copy the SQLite database while the relay runs, and check the copy. For PostgreSQL use its own tools."""
    from crcr.errors import NotPossible
    from crcr.record.store.sqlite.file import copy_database
    from crcr.settings import SqliteSetting
    from crcr.wiring.database import require_database

    settings = read_settings(config)
    database = settings.database
    if not isinstance(database, SqliteSetting):
        hint = "use pg_dump or pg_basebackup; docs/maintain.md says how"
        raise NotPossible(f"the data is in PostgreSQL at {database.display_name}", hint=hint)
    require_database(settings)
    size = copy_database(database.path, target)
    outcome = {"source": str(database.path), "target": str(target), "bytes": size}
    print_outcome(f"{database.path} → {target}: {size:,} bytes, checked", outcome, as_json=as_json)
