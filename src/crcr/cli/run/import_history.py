"""`crcr import`: brings the history of another relay into the database, from DynamoDB, ClickHouse or files."""

import asyncio
import io
import json
import os
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from crcr.cli.command_line import CommandLine
from crcr.cli.options import ConfigOption, JsonOption, examples, read_settings
from crcr.cli.printing import console, print_json, print_line, print_table
from crcr.errors import BadSettings, NotPossible

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime

    from crcr.decide.model import RepoName
    from crcr.receive.ingest.import_sources import ImportSource, SourceBatch, SourceItem
    from crcr.record.jobs.imported import ImportedResults, ImportProgress
    from crcr.settings import Settings

    OpenSource = Callable[[Settings, AsyncExitStack], Awaitable[ImportSource]]

app = CommandLine(
    name="import",
    help="Bring another relay's history here, with the days of its results.",
    no_args_is_help=True,
)
_PASSWORD = "CLICKHOUSE_PASSWORD"  # noqa: S105  the name of ClickHouse's own variable

DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Read everything and print what would be taken; write nothing.")
]
AnewOption = Annotated[
    bool, typer.Option("--anew", help="Begin at the start, also where an earlier run was interrupted.")
]
RejectedOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Write a line of JSON for each result that was not taken.", show_default=False
    ),
]


@dataclass(frozen=True, slots=True)
class _Options:
    dry_run: bool
    anew: bool
    rejected: Path | None
    as_json: bool


@app.command(
    epilog=examples(
        "crcr import dynamodb --dry-run",
        "crcr import dynamodb --table torchci-oot-workflow-job --segments 8",
    )
)
def dynamodb(
    config: ConfigOption = None,
    table: Annotated[
        str, typer.Option(metavar="NAME", help="The table; its region is CRCR_DYNAMODB_REGION or AWS's own.")
    ] = "torchci-oot-workflow-job",
    segments: Annotated[
        int, typer.Option(min=1, max=64, help="Parts of the table that are read at once.")
    ] = 4,
    dry_run: DryRunOption = False,
    anew: AnewOption = False,
    rejected: RejectedOption = None,
    as_json: JsonOption = False,
) -> None:
    """Import the items of the DynamoDB table of PyTorch's HUD.

    An interrupted import continues where it stopped, and running it again changes nothing. The relay may run meanwhile.
    """

    async def open_source(settings: "Settings", _: AsyncExitStack) -> "ImportSource":
        from crcr.receive.ingest.import_sources import DynamoDbSource
        from crcr.wiring.drivers import require_aws

        require_aws("crcr import dynamodb")
        return DynamoDbSource(
            table, region=settings.dynamodb_region, endpoint=settings.dynamodb_endpoint, segments=segments
        )

    _import(config, open_source, _Options(dry_run, anew, rejected, as_json))


@app.command(epilog=examples("crcr import clickhouse --url clickhouses://reader@ch.example.org:8443/default"))
def clickhouse(
    config: ConfigOption = None,
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help=f"The server with the table crcr_workflow_job, without a password (that is {_PASSWORD}). "
            "Default: CRCR_CLICKHOUSE_URL.",
            show_default=False,
        ),
    ] = None,
    dry_run: DryRunOption = False,
    anew: AnewOption = False,
    rejected: RejectedOption = None,
    as_json: JsonOption = False,
) -> None:
    """Import the rows of ClickHouse's table crcr_workflow_job, by HTTP."""

    async def open_source(settings: "Settings", stack: AsyncExitStack) -> "ImportSource":
        from crcr.receive.ingest.import_sources import ClickHouseSource
        from crcr.record.clickhouse.connection import ClickHouseLink, ClickHouseLocation
        from crcr.record.clickhouse.workflow_jobs import WorkflowJobTable

        location = ClickHouseLocation(_clickhouse_url(settings, url), settings.clickhouse_ca)
        link = ClickHouseLink(location)
        stack.push_async_callback(link.close)
        return ClickHouseSource(WorkflowJobTable(link), str(location))

    _import(config, open_source, _Options(dry_run, anew, rejected, as_json))


@app.command(
    epilog=examples("crcr import files export/AWSDynamoDB/", "crcr import files results.jsonl --dry-run")
)
def files(
    paths: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="JSON files, or folders that have some.")
    ],
    config: ConfigOption = None,
    dry_run: DryRunOption = False,
    anew: AnewOption = False,
    rejected: RejectedOption = None,
    as_json: JsonOption = False,
) -> None:
    """Import files: an export of the DynamoDB table to S3, or lines of JSON in the form of the ingest or of ClickHouse's rows."""

    async def open_source(_: "Settings", __: AsyncExitStack) -> "ImportSource":
        from crcr.receive.ingest.import_sources import FileSource

        return FileSource(paths)

    _import(config, open_source, _Options(dry_run, anew, rejected, as_json))


def _clickhouse_url(settings: "Settings", url: str | None) -> str:
    from urllib.parse import quote, urlsplit

    from crcr.settings.readers.service_urls import clickhouse_url
    from crcr.settings.setting import InvalidValue, RawValue

    if url is None:
        if settings.clickhouse_url is None:
            raise NotPossible("no ClickHouse is named", hint="pass --url, or set CRCR_CLICKHOUSE_URL")
        return settings.clickhouse_url.get_secret_value()
    try:
        read = clickhouse_url(RawValue(url, "--url", Path.cwd())).get_secret_value()
    except InvalidValue as wrong:
        raise BadSettings([f"--url {wrong}"]) from None
    parts, password = urlsplit(read), os.environ.get(_PASSWORD, "")
    if not password or parts.scheme == "chdb":
        return read
    user = f"{parts.username or 'default'}:{quote(password, safe='')}"
    return parts._replace(netloc=f"{user}@{parts.netloc.rpartition('@')[2]}").geturl()


def _import(config: Path | None, open_source: "OpenSource", options: _Options) -> None:
    from crcr import log as logs
    from crcr.wiring.database import require_database

    logs.configure("console", "error", io.StringIO())  # the command prints the result itself
    settings = read_settings(config)
    require_database(settings)
    progress = asyncio.run(_run(settings, open_source, options))
    _print_report(progress, options)


async def _run(settings: "Settings", open_source: "OpenSource", options: _Options) -> "ImportProgress":
    from crcr.receive.allowlist_yaml import read_allowlist
    from crcr.record.jobs.imported import ImportedResults
    from crcr.record.repositories.allowlists import Allowlists
    from crcr.record.repositories.downstreams import Downstreams
    from crcr.record.store.signals import Signals
    from crcr.wiring.core import check_refresher
    from crcr.wiring.database import open_database

    async with AsyncExitStack() as stack:
        database = open_database(settings, Signals())
        stack.push_async_callback(database.close)
        refresher = check_refresher(settings)
        allowlists = Allowlists(database, Downstreams(database, refresher), refresher, read_allowlist)
        upstreams = tuple(upstream.name for upstream in settings.upstreams)
        source = await open_source(settings, stack)
        rejected = stack.enter_context(options.rejected.open("a")) if options.rejected else None
        results = ImportedResults(database, allowlists, upstreams)
        keep = timedelta(days=settings.keep_jobs_days) if settings.keep_jobs_days else None
        work = ImportRun(results, source, upstreams, keep, rejected)
        return await work.run(dry_run=options.dry_run, anew=options.anew)


class ImportRun:
    """Reads a source from where it was left, batch by batch, and shows how far it is."""

    def __init__(
        self,
        results: "ImportedResults",
        source: "ImportSource",
        upstreams: "tuple[RepoName, ...]",
        keep: timedelta | None,
        rejected: TextIO | None = None,
    ) -> None:
        """`keep` is how long results are kept here."""
        self._results = results
        self._source = source
        self._upstreams = upstreams
        self._keep = keep
        self._rejected = rejected

    async def run(self, *, dry_run: bool, anew: bool) -> "ImportProgress":
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        from crcr.cli.operator_session import user_name
        from crcr.clock import SystemClock
        from crcr.record.jobs.imported import READ, ImportProgress

        clock = SystemClock()
        progress = (
            ImportProgress(self._source.name)
            if dry_run
            else await self._results.begin(self._source.name, clock.now(), anew=anew)
        )
        if progress.counts[READ]:
            print_line(f"continuing after {progress.counts[READ]:,} results")
        elif self._rejected is not None:
            self._rejected.truncate(0)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console(stderr=True), transient=True) as bars:
            bar = bars.add_task("importing", total=await self._source.estimate())
            async for batch in self._source.batches(progress.position):
                progress = await self._take(progress, batch, clock.now(), dry_run=dry_run)
                bars.update(bar, completed=progress.counts[READ])
            if not dry_run:
                bars.update(bar, description="counting")
                await self._results.finish(progress, user_name(), clock.now())
        return progress

    async def _take(
        self, progress: "ImportProgress", batch: "SourceBatch", now: "datetime", *, dry_run: bool
    ) -> "ImportProgress":
        from crcr.decide.jobs.imported import ImportedJob, NotImported, plan_import

        oldest = now - self._keep if self._keep else None
        planned: list[ImportedJob | NotImported] = [
            plan_import(item.result, self._upstreams, oldest=oldest, now=now)
            if item.result
            else NotImported.UNREADABLE
            for item in batch.items
        ]
        progress, outcomes = await self._results.take(progress, planned, batch.position, now, dry_run=dry_run)
        for item, outcome in zip(batch.items, outcomes, strict=True):
            self._report(item, outcome)
        if self._rejected is not None:
            self._rejected.flush()  # a killed import is continued in the same file
        return progress

    def _report(self, item: "SourceItem", outcome: str) -> None:
        from crcr.record.jobs.imported import OUTCOMES

        if self._rejected is not None and outcome not in OUTCOMES:
            reason = f"{outcome}: {item.problem}" if item.problem else outcome
            self._rejected.write(json.dumps({"item": item.label, "reason": reason}) + "\n")


def _print_report(progress: "ImportProgress", options: _Options) -> None:
    from crcr.record.jobs.imported import OUTCOMES, READ

    counts = Counter(progress.counts)
    read = counts.pop(READ, 0)
    outcomes = {name: counts.pop(name, 0) for name in OUTCOMES}
    if options.as_json:
        print_json(
            {
                "source": progress.source,
                "dry_run": options.dry_run,
                "read": read,
                **outcomes,
                "not_taken": dict(sorted(counts.items())),
            }
        )
        return
    verb = "would be " if options.dry_run else ""
    print_line(
        f"{read:,} results read: {outcomes['taken']:,} {verb}taken, {outcomes['corrected']:,} {verb}corrected, "
        f"{outcomes['unchanged']:,} unchanged, {counts.total():,} not taken"
    )
    if counts:
        print_table(
            ["not taken because", "results"], [[reason, number] for reason, number in counts.most_common()]
        )
