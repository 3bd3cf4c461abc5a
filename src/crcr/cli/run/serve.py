"""`crcr serve`, `crcr worker`, `crcr migrate`: the relay as a process, whole or in two halves."""

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
        help="Port to listen on, instead of CRCR_PORT; 0 takes a free one.",
        show_default=False,
    ),
]
FromOption = Annotated[
    str | None,
    typer.Option("--from", metavar="URL", help="Move this installation: sqlite:///path.", show_default=False),
]
ToOption = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="URL",
        help="Where to: postgresql://user@host/name, the password in PGPASSWORD or ~/.pgpass. "
        "Left out: the database of the settings.",
        show_default=False,
    ),
]


def register(app: typer.Typer) -> None:
    app.command(
        rich_help_panel=RUN_PANEL,
        epilog=examples(
            "crcr serve",
            "crcr serve --config /etc/crcr.toml --host 0.0.0.0 --port 8080",
            "crcr serve --no-worker    (with `crcr worker` beside it)",
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
        bool, typer.Option("--no-worker", help="Answer requests only; `crcr worker` does the rest.")
    ] = False,
) -> None:
    """Run the relay: webhooks and callbacks in, pages and API out, dispatches beside them.

    Stops on SIGTERM or Ctrl-C after finishing what is under way.
    """
    from crcr.cli.operator_session import read_settings
    from crcr.cli.run import process

    settings = read_settings(config)
    process.configure_log(settings)
    host, port = settings.host if host is None else host, settings.port if port is None else port
    with process.listen(host, port) as listener:
        process.run_event_loop(process.run_server(settings, listener, work=not no_worker))


def worker(config: ConfigOption = None) -> None:
    """Run the worker alone: dispatches, retries, sweeps and allowlists, without HTTP.

    For `crcr serve --no-worker` on the same database; it is woken by what that process commits.
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
    """Make the database, or bring it to this release's schema. `crcr serve` does it too when it starts.

    With --from, move a whole installation from SQLite into an empty PostgreSQL database: all rows, compared, or
    nothing. Stop the relay first; the file is only read.
    """
    if source is not None or target is not None:
        from crcr.wiring.drivers import require_postgres

        require_postgres("moving to")
        from crcr.cli.run.move_database import move_database

        move_database(config, source, target, as_json=as_json)
        return
    from crcr.cli.operator_session import read_settings
    from crcr.record.migrations.run import migrate as bring_up_to_date
    from crcr.wiring.database import database_location

    settings = read_settings(config)
    before, after = bring_up_to_date(database_location(settings))
    place = settings.database.place
    if as_json:
        from crcr.cli.printing import print_json

        print_json({"place": place, "before": before, "after": after})
    elif before == after:
        print_line(f"{place}: at revision {after}, nothing to do")
    else:
        print_line(f"{place}: {before or 'empty'} → {after}")
