"""`crcr serve`, `crcr worker`, `crcr migrate`: the relay as a process, whole or in two halves."""

from typing import Annotated

import typer

from crcr.cli.options import RUN_IT, ConfigOption, examples
from crcr.cli.printing import say

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


def register(app: typer.Typer) -> None:
    app.command(
        rich_help_panel=RUN_IT,
        epilog=examples(
            "crcr serve",
            "crcr serve --config /etc/crcr.toml --host 0.0.0.0 --port 8080",
            "crcr serve --no-worker    (with `crcr worker` beside it)",
        ),
    )(serve)
    app.command(rich_help_panel=RUN_IT, epilog=examples("crcr worker --config /etc/crcr.toml"))(worker)
    app.command(rich_help_panel=RUN_IT, epilog=examples("crcr migrate --config /etc/crcr.toml"))(migrate)


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
    from crcr.cli import serving
    from crcr.cli.opening import read_settings

    settings = read_settings(config)
    serving.start_log(settings)
    host, port = settings.host if host is None else host, settings.port if port is None else port
    with serving.listen(host, port) as listener:
        serving.run(serving.serve(settings, listener, work=not no_worker))


def worker(config: ConfigOption = None) -> None:
    """Run the worker alone: dispatches, retries, sweeps and allowlists, without HTTP.

    For `crcr serve --no-worker` on the same database; it is woken by what that process commits.
    """
    from crcr.cli import serving
    from crcr.cli.opening import read_settings

    settings = read_settings(config)
    serving.start_log(settings)
    serving.run(serving.work(settings))


def migrate(config: ConfigOption = None) -> None:
    """Make the database, or bring it to this release's schema. `crcr serve` does it too when it starts."""
    from crcr.cli.opening import read_settings
    from crcr.record.migrate import migrate as bring_up_to_date

    path = read_settings(config).database.path
    before, after = bring_up_to_date(path)
    if before == after:
        say(f"{path}: at revision {after}, nothing to do")
    else:
        say(f"{path}: {before or 'empty'} → {after}")
