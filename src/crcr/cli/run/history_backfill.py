"""`crcr history backfill`: copies the main store's history into ClickHouse, with a progress bar per table."""

import asyncio
import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crcr.cli.command_line import CommandLine
from crcr.cli.options import ConfigOption, JsonOption, examples, read_settings
from crcr.cli.printing import console, print_error, print_json, print_table

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from crcr.record.clickhouse.backfill import RowCounts
    from crcr.settings import Settings
    from crcr.wiring.clickhouse import ClickHouse

app = CommandLine(
    name="history", help="History in ClickHouse: fill it from the main store.", no_args_is_help=True
)


@app.callback()
def history() -> None:
    """Keep `backfill` a subcommand: Typer would drop the name of a group's only command."""


@app.command(epilog=examples("crcr history backfill", "crcr history backfill --anew"))
def backfill(
    config: ConfigOption = None,
    anew: Annotated[
        bool,
        typer.Option("--anew", help="Empty ClickHouse's tables first; rows that only they hold are lost."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Copy everything in the main store to ClickHouse.

    The relay may keep running, except on chdb:///, which only one process can open. An interrupted run continues where
    it stopped, and running it again is safe.
    """
    tables = asyncio.run(_backfill(config, anew=anew))
    if as_json:
        print_json(tables)
    else:
        print_table(
            ["table", "main store", "ClickHouse"],
            [[table.table, table.here, table.there] for table in tables],
        )
    if any(table.there < table.here for table in tables):
        hint = "the worker feeds rows that arrived meanwhile; if the difference stays, run this again"
        print_error("ClickHouse holds less than the main store", hint)
        raise typer.Exit(1)


async def _backfill(config: Path | None, *, anew: bool) -> "tuple[RowCounts, ...]":
    from crcr import log as logs
    from crcr.record.store.signals import Signals
    from crcr.wiring.clickhouse import open_clickhouse
    from crcr.wiring.database import open_database, require_database

    logs.configure("console", "error", io.StringIO())  # the command prints the result itself
    settings = read_settings(config)
    require_database(settings)
    database = open_database(settings, Signals())
    clickhouse = open_clickhouse(settings, database)
    try:
        return await _fill(settings, clickhouse, anew=anew)
    finally:
        await clickhouse.close()
        await database.close()


async def _fill(settings: "Settings", clickhouse: "ClickHouse", *, anew: bool) -> "tuple[RowCounts, ...]":
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from crcr.clock import SystemClock
    from crcr.errors import NotPossible
    from crcr.record.clickhouse.backfill import Backfill

    if clickhouse.link is None or clickhouse.feeder is None:
        raise NotPossible("ClickHouse is not used here", hint="set CRCR_CLICKHOUSE_URL")
    now = SystemClock().now()
    await clickhouse.record_switch([upstream.name for upstream in settings.upstreams], now)
    work = Backfill(clickhouse.database, clickhouse.feeding, clickhouse.feeder, clickhouse.link)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as progress:
        return await work.run(_ProgressBars(progress).show, now, anew=anew)


class _ProgressBars:
    """One bar per table, added when the table is started."""

    def __init__(self, progress: "Progress") -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}

    def show(self, table: str, done: int, total: int) -> None:
        if table not in self._tasks:
            self._tasks[table] = self._progress.add_task(table, total=total)
        self._progress.update(self._tasks[table], completed=done, total=total)
