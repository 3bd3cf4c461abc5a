"""`crcr demo`: the whole relay with a simulated GitHub, in one process and without the network."""

from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from crcr.cli.options import RUN_PANEL, examples, parse_duration

SEED, SPEED = 1, 1.0


def register(app: typer.Typer) -> None:
    app.command(
        rich_help_panel=RUN_PANEL,
        epilog=examples("crcr demo", "crcr demo --history 90d", "crcr demo --for 30s --speed 5 --port 9000"),
    )(demo)


def demo(
    seed: Annotated[int, typer.Option(min=0, help="Another number, another story.")] = SEED,
    speed: Annotated[float, typer.Option(min=0.1, max=50, help="How many times faster life goes.")] = SPEED,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the relay; 0 takes a free one.")
    ] = 8000,
    github_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Port of the simulated GitHub; 0 takes a free one.",
            show_default="8001, or a free one",
        ),
    ] = None,
    length: Annotated[
        timedelta | None,
        typer.Option(
            "--for", parser=parse_duration, metavar="DURATION", help="Stop after so long, such as 30s."
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep the data in this folder; else a temporary one is used."),
    ] = None,
    history: Annotated[
        timedelta | None,
        typer.Option(
            parser=parse_duration,
            metavar="DURATION",
            help="Begin with a made-up past, such as 90d, so that charts and matrices have something to show.",
        ),
    ] = None,
    jobs_an_hour: Annotated[
        int, typer.Option(min=1, max=20_000, help="About how many jobs each hour of that past has.")
    ] = 50,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Log everything, not only warnings.")
    ] = False,
) -> None:
    """Run the relay against a simulated GitHub with a handful of lively backends, to look around.

    Pull requests open, change, are blocked, waived and merged; backends queue, pass, fail and fall silent. Never
    needs the network.
    """
    from crcr.cli.run import process
    from crcr.demo import run

    generated = run.GeneratedHistory(history, jobs_an_hour) if history else None
    show = run.DemoOptions(
        seed=seed,
        speed=speed,
        github_port=github_port,
        length=length,
        data=data,
        history=generated,
        verbose=verbose,
    )
    with process.listen(host, port) as listener:
        process.run_event_loop(run.run_demo(show, listener))
