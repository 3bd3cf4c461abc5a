"""The work behind `crcr history backfill`, with a bar for each table while it runs."""

import io
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from crcr import log as logs
from crcr.cli.operator_session import read_settings
from crcr.cli.printing import console
from crcr.clock import SystemClock
from crcr.errors import NotPossible
from crcr.record.clickhouse.backfill import Backfill, Counted
from crcr.record.store.signals import Signals
from crcr.settings import Settings
from crcr.wiring.clickhouse import ClickHouse, open_clickhouse
from crcr.wiring.database import open_database, require_database


class ProgressBars:
    """A bar for each table, from when it is begun."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}

    def show(self, table: str, done: int, total: int) -> None:
        if table not in self._tasks:
            self._tasks[table] = self._progress.add_task(table, total=total)
        self._progress.update(self._tasks[table], completed=done, total=total)


async def backfill_now(config: Path | None, *, anew: bool) -> tuple[Counted, ...]:
    logs.configure("console", "error", io.StringIO())  # the command tells all of it itself
    settings = read_settings(config)
    require_database(settings)
    database = open_database(settings, Signals())
    clickhouse = open_clickhouse(settings, database)
    try:
        return await _fill(settings, clickhouse, anew=anew)
    finally:
        await clickhouse.close()
        await database.close()


async def _fill(settings: Settings, clickhouse: ClickHouse, *, anew: bool) -> tuple[Counted, ...]:
    if clickhouse.link is None or clickhouse.feeder is None:
        raise NotPossible("ClickHouse is not used here", hint="set CRCR_CLICKHOUSE_URL")
    now = SystemClock().now()
    await clickhouse.begin([each.name for each in settings.upstreams], now)
    work = Backfill(clickhouse.database, clickhouse.feeding, clickhouse.feeder, clickhouse.link)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as progress:
        return await work.run(ProgressBars(progress).show, now, anew=anew)
