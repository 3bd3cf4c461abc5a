"""`crcr serve`, `crcr worker`, `crcr migrate`: the relay's processes, and its database schema."""

from contextlib import ExitStack
from enum import StrEnum
from functools import partial
from typing import Annotated

import typer

from crcr.cli.command_line import PORT
from crcr.cli.options import RUN_PANEL, ConfigOption, JsonOption, examples, read_settings
from crcr.cli.printing import print_line
from crcr.errors import NotPossible

LINK_OPTION = "--link-fd"
"""Of the page process that `crcr serve` starts."""


class ServeRole(StrEnum):
    ALL = "all"
    INTAKE = "intake"
    HUD = "hud"


HostOption = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="Address to listen on, instead of CRCR_HOST.", show_default=False),
]
PortOption = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=65535,
        metavar=PORT,
        help="Port to listen on, instead of CRCR_PORT; 0: any free port.",
        show_default=False,
    ),
]
RoleOption = Annotated[
    ServeRole | None,
    typer.Option(
        help="What this process does, instead of CRCR_ROLE: all (default), intake, or hud.",
        show_default=False,
    ),
]
FromOption = Annotated[
    str | None,
    typer.Option("--from", metavar="URL", help="Move this database: sqlite:///path.", show_default=False),
]
ToOption = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="URL",
        help="Target: postgresql://user@host/name, with the password in PGPASSWORD or ~/.pgpass. "
        "Default: the database of the settings.",
        show_default=False,
    ),
]


def register(app: typer.Typer) -> None:
    app.command(
        rich_help_panel=RUN_PANEL,
        epilog=examples(
            "crcr serve",
            "crcr serve --config /etc/crcr.toml --host 0.0.0.0 --port 8080",
            "crcr serve --no-worker    (with a separate `crcr worker`)",
            "crcr serve --role hud     (pages only; webhooks go to `crcr serve --role intake`)",
        ),
    )(serve)
    app.command(rich_help_panel=RUN_PANEL, epilog=examples("crcr worker --config /etc/crcr.toml"))(worker)
    app.command(
        rich_help_panel=RUN_PANEL,
        epilog=examples(
            "crcr migrate --config /etc/crcr.toml",
            "crcr migrate --from sqlite:////var/lib/crcr/crcr.db    (into the database of the settings)",
            "crcr migrate --from sqlite:///crcr.db --to postgresql://crcr@db.example.org/crcr",
        ),
    )(migrate)


def serve(
    config: ConfigOption = None,
    host: HostOption = None,
    port: PortOption = None,
    no_worker: Annotated[
        bool, typer.Option("--no-worker", help="Serve requests only; run `crcr worker` separately.")
    ] = False,
    role: RoleOption = None,
    link: Annotated[
        int | None,
        typer.Option(LINK_OPTION, hidden=True, help="The link to the process that started this one."),
    ] = None,
) -> None:
    """Run the relay: webhooks, callbacks, pages and API, and the dispatch worker.

    The pages run in a process of their own, on the same port. Stops on SIGTERM or Ctrl-C after finishing running work.
    """
    from crcr.cli.run.page_process import (
        ignore_stop_signals,
        start_page_process,
        starting_page_process,
    )

    if link is not None:
        ignore_stop_signals()
    settings = read_settings(config)
    if link is not None:
        from crcr.cli.run import process

        process.configure_log(settings, warn=False)
        process.run_event_loop(process.run_page_process(settings, link))
        return
    role = role or ServeRole(settings.role)
    if role is not ServeRole.ALL and settings.uses_chdb:
        raise NotPossible(
            f"the role {role} does not work with chdb:///, which one process alone can open",
            hint="use a ClickHouse server, or the role all",
        )
    with ExitStack() as resources:
        pages = None
        if role is ServeRole.ALL and not settings.uses_chdb:
            pages = resources.enter_context(starting_page_process(config))
        from crcr.cli.run import process

        process.configure_log(settings)
        address = settings.host if host is None else host, settings.port if port is None else port
        listener = resources.enter_context(process.listen(*address))
        plan = process.ServePlan(role, not no_worker, pages, partial(start_page_process, config))
        process.run_event_loop(process.run_server(settings, listener, plan))


def worker(config: ConfigOption = None) -> None:
    """Run only the worker: dispatches, retries, periodic tasks and allowlists, without HTTP.

    For use with `crcr serve --no-worker` on the same database, whose commits wake it.
    """
    from crcr.cli.run import process

    settings = read_settings(config)
    process.configure_log(settings)
    process.run_event_loop(process.run_worker(settings))


def migrate(
    config: ConfigOption = None,
    source: FromOption = None,
    target: ToOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create the database, or migrate it to this release's schema. `crcr serve` also does this at start.

    With --from, move an installation from SQLite into an empty PostgreSQL database: all rows, verified, or nothing.
    Stop the relay first; the file is only read.
    """
    if source is not None or target is not None:
        from crcr.wiring.drivers import require_postgres

        require_postgres("moving to")
        from crcr.cli.run.move_database import move_database

        move_database(config, source, target, as_json=as_json)
        return
    from crcr.record.migrations.run import migrate as migrate_schema
    from crcr.wiring.database import database_location

    settings = read_settings(config)
    before, after = migrate_schema(database_location(settings))
    database = settings.database.display_name
    if as_json:
        from crcr.cli.printing import print_json

        print_json({"place": database, "before": before, "after": after})
    elif before == after:
        print_line(f"{database}: already at revision {after}")
    else:
        print_line(f"{database}: {before or 'empty'} → {after}")
