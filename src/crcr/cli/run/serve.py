"""`crcr serve`, `crcr worker`, `crcr migrate`: the relay's processes, and its database schema."""

from typing import Annotated

import typer

from crcr.cli.options import RUN_PANEL, ConfigOption, JsonOption, examples
from crcr.cli.printing import print_line

HostOption = Annotated[
    str | None, typer.Option(help="Address to listen on, instead of CRCR_HOST.", show_default=False)
]
PortOption = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=65535,
        help="Port to listen on, instead of CRCR_PORT; 0: any free port.",
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
) -> None:
    """Run the relay: webhooks, callbacks, pages and API, and the dispatch worker.

    Stops on SIGTERM or Ctrl-C after finishing running work.
    """
    from crcr.cli.operator_session import read_settings
    from crcr.cli.run import process

    settings = read_settings(config)
    process.configure_log(settings)
    host, port = settings.host if host is None else host, settings.port if port is None else port
    with process.listen(host, port) as listener:
        process.run_event_loop(process.run_server(settings, listener, work=not no_worker))


def worker(config: ConfigOption = None) -> None:
    """Run only the worker: dispatches, retries, periodic tasks and allowlists, without HTTP.

    For use with `crcr serve --no-worker` on the same database, whose commits wake it.
    """
    from crcr.cli.operator_session import read_settings
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
    from crcr.cli.operator_session import read_settings
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
