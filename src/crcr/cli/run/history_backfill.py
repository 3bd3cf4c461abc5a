"""`crcr history`: what ClickHouse holds, filled up from the main store."""

import asyncio
from typing import Annotated

import typer

from crcr.cli.options import ConfigOption, JsonOption, examples
from crcr.cli.printing import print_error, print_json, print_table

app = typer.Typer(
    name="history", help="History in ClickHouse: fill it from the main store.", no_args_is_help=True
)


@app.callback()
def history() -> None:
    """So that `backfill` stays a word of its own."""


@app.command(epilog=examples("crcr history backfill", "crcr history backfill --anew"))
def backfill(
    config: ConfigOption = None,
    anew: Annotated[
        bool, typer.Option("--anew", help="Empty ClickHouse's tables first; what only they hold is lost.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Tell ClickHouse all that the main store holds.

    The relay may run meanwhile, but not on chdb:///, which one process owns. A run that was broken off goes on where it
    stopped; one too many does no harm.
    """
    from crcr.cli.run.history_backfill_work import backfill_now

    counted = asyncio.run(backfill_now(config, anew=anew))
    if as_json:
        print_json(counted)
    else:
        print_table(
            ["table", "main store", "ClickHouse"], [[each.table, each.here, each.there] for each in counted]
        )
    if any(each.there < each.here for each in counted):
        hint = "what came meanwhile is fed by the worker; if less stays there, run this again"
        print_error("ClickHouse holds less than the main store", hint)
        raise typer.Exit(1)
