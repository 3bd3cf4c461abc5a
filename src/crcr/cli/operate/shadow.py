"""`crcr shadow`: where this relay and the one that it runs beside differ."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from crcr.cli.command_line import CommandLine
from crcr.cli.options import ConfigOption, JsonOption, UpstreamOption, examples, parse_time
from crcr.cli.printing import print_json, print_line, print_table, print_warning
from crcr.decide.model import RepoName
from crcr.errors import NotPossible

if TYPE_CHECKING:
    from crcr.cli.operator_session import OperatorSession
    from crcr.decide.shadow import RecordedResult, ShadowComparison, ShadowDifference
    from crcr.receive.ingest.result_lines import UnreadLines

app = CommandLine(
    name="shadow",
    help="Shadow mode: compare this relay with the one that it runs beside.",
    no_args_is_help=True,
)

_SINCE, _UNTIL = timedelta(hours=24), timedelta(hours=1)
_SHOWN = 200
_TABLE = "default.crcr_workflow_job"
_TABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,100}(?:\.[A-Za-z_][A-Za-z0-9_]{0,100})?", re.ASCII)
_PASSWORD = "CLICKHOUSE_PASSWORD"  # noqa: S105  the name of a variable
_COLUMNS = (
    "delivery_id, downstream_repo, upstream_repo, workflow_name, job_name, check_run_id, run_attempt, status, conclusion,"
    " toString(jobs.started_at) AS started_at, toString(jobs.completed_at) AS completed_at"
)


OldFileOption = Annotated[
    Path | None,
    typer.Option(
        "--old",
        metavar="FILE",
        allow_dash=True,
        help="The old relay's results as JSON lines: envelopes of the ingest, or rows of its table of jobs; - is stdin.",
    ),
]
OldUrlOption = Annotated[
    str | None,
    typer.Option(
        "--old-url",
        metavar="URL",
        help=f"The HTTP address of the old relay's ClickHouse; its password may be in {_PASSWORD}.",
    ),
]
SinceOption = Annotated[
    datetime | None,
    typer.Option(parser=parse_time, metavar="TIME", help="From this time, or age; default 24h."),
]
UntilOption = Annotated[
    datetime | None,
    typer.Option(
        parser=parse_time,
        metavar="TIME",
        help="Until this time, or age; default 1h, so that jobs have ended.",
    ),
]


@app.command(
    epilog=examples(
        "crcr shadow compare --old results.jsonl --since 24h",
        "crcr shadow compare --old-url https://reader@clickhouse.example.org:8443 --fail",
        "crcr shadow compare --old - --json < results.jsonl",
    )
)
def compare(
    old: OldFileOption = None,
    old_url: OldUrlOption = None,
    table: Annotated[str, typer.Option("--table", help="Its table of jobs, for --old-url.")] = _TABLE,
    since: SinceOption = None,
    until: UntilOption = None,
    fail: Annotated[bool, typer.Option("--fail", help="Exit with 1 if there are differences.")] = False,
    config: ConfigOption = None,
    upstream: UpstreamOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say which dispatches and results one of the two relays has and the other has not. Reads only.

    A dispatch of the old relay is known from its results: backends that never report to it are listed as not compared.
    """
    from crcr.cli.operator_session import run_in_session
    from crcr.receive.ingest.result_lines import UnreadLines

    if (old is None) == (old_url is None):
        raise typer.BadParameter("pass either --old or --old-url")
    unread = UnreadLines()

    async def act(session: "OperatorSession") -> "ShadowComparison":
        begin, end = since or session.now() - _SINCE, until or session.now() - _UNTIL
        if begin >= end:
            raise typer.BadParameter("--since must be before --until")
        name = session.upstream_to_read(upstream)
        results = _read_results(old, old_url, table, (begin, end), unread)
        return await _compare(session, name, results, (begin, end))

    comparison = run_in_session(config, act)
    if as_json:
        _print_json(comparison, unread)
    else:
        _print_comparison(comparison, unread)
    if fail and comparison.differences:
        raise typer.Exit(1)


async def _compare(
    session: "OperatorSession",
    upstream: RepoName,
    results: "list[RecordedResult]",
    times: tuple[datetime, datetime],
) -> "ShadowComparison":
    from crcr.decide.shadow import compare_relays, select_results

    named = {result.delivery for result in results}
    own = await session.views.own_records(upstream, *times, named)
    return compare_relays(select_results(results, own, upstream, *times), own)


def _read_results(
    file: Path | None, url: str | None, table: str, times: tuple[datetime, datetime], unread: "UnreadLines"
) -> "list[RecordedResult]":
    from crcr.receive.ingest.result_lines import read_result_lines

    with _open_file(file) if file else _query_clickhouse(url or "", table, times) as lines:
        return list(read_result_lines(lines, unread))


@contextmanager
def _open_file(file: Path) -> Iterator[Iterator[bytes]]:
    from crcr.receive.ingest.result_lines import MOST_LINE_BYTES

    def read(stream: BinaryIO) -> Iterator[bytes]:
        # A line that is longer than any result is read in pieces, each of which is no result.
        while line := stream.readline(MOST_LINE_BYTES + 2):
            yield line

    if str(file) == "-":
        yield read(sys.stdin.buffer)
        return
    try:
        stream = file.open("rb")
    except OSError as fault:
        raise NotPossible(f"{file} cannot be read: {fault.strerror}") from None
    with stream:
        yield read(stream)


@contextmanager
def _query_clickhouse(url: str, table: str, times: tuple[datetime, datetime]) -> Iterator[Iterator[bytes]]:
    """Ask the HTTP interface, which may change nothing: `readonly` is part of the request."""
    import httpx

    if not _TABLE_NAME.fullmatch(table):
        raise typer.BadParameter(f"{table!r} is not the name of a table", param_hint="--table")
    try:
        parts = httpx.URL(url)
    except (httpx.InvalidURL, UnicodeError):
        raise typer.BadParameter("it is not an address", param_hint="--old-url") from None
    user, password = parts.username or "default", parts.password or os.environ.get(_PASSWORD, "")
    # A job begins after its delivery: two days are room for what waits.
    bounds = {
        "param_since": f"{times[0].timestamp():.0f}",
        "param_until": f"{(times[1] + timedelta(days=2)).timestamp():.0f}",
    }
    query = (
        f"SELECT {_COLUMNS} FROM {table} AS jobs FINAL WHERE jobs.started_at >= toDateTime64({{since:Int64}}, 3)"  # noqa: S608  checked above
        " AND jobs.started_at < toDateTime64({until:Int64}, 3) FORMAT JSONEachRow"
    )
    address = parts.copy_with(username=None, password=None)
    try:
        with (
            httpx.Client(timeout=60.0, trust_env=False, auth=(user, password)) as client,
            client.stream("POST", address, params={"readonly": "1", **bounds}, content=query) as answer,
        ):
            if answer.status_code != 200:
                text = answer.read()[:300].decode(errors="replace").strip()
                raise NotPossible(f"ClickHouse answered {answer.status_code}: {text}")
            yield (line.encode() for line in answer.iter_lines())
    except httpx.HTTPError as fault:
        raise NotPossible(f"{address.host} did not answer: {type(fault).__name__}") from None


def _print_json(comparison: "ShadowComparison", unread: "UnreadLines") -> None:
    print_json(
        {
            "differences": [
                {
                    "kind": difference.kind.name.lower(),
                    "backend": str(difference.backend),
                    "delivery": difference.delivery,
                    "workflow": difference.workflow,
                    "job": difference.job,
                    "old": difference.old,
                    "new": difference.new,
                    "why": difference.why,
                }
                for difference in comparison.differences
            ],
            "compared": {"dispatches": comparison.dispatches, "results": comparison.results},
            "not_compared": {
                "backends_without_old_records": [str(name) for name in comparison.unread_backends],
                "backends_without_own_results": [str(name) for name in comparison.unreported_backends],
                "self_reports": comparison.self_reports,
                "lines": {"number": unread.number, "problems": unread.problems},
            },
        }
    )


def _print_comparison(comparison: "ShadowComparison", unread: "UnreadLines") -> None:
    found = comparison.differences
    if found:
        print_table(
            ["difference", "backend", "delivery", "~job", "old", "new", "~why"], map(_cells, found[:_SHOWN])
        )
    if len(found) > _SHOWN:
        print_line(f"and {len(found) - _SHOWN:,} more; --json prints all")
    for names, why in (
        (comparison.unread_backends, "the old relay has no record of them"),
        (comparison.unreported_backends, "only their dispatches: their results do not reach this relay"),
    ):
        if names:
            print_line(f"not compared ({why}): {', '.join(map(str, names))}")
    if comparison.self_reports:
        print_line(f"not compared: {comparison.self_reports:,} nightly or periodic results")
    for problem in unread.problems:
        print_warning(problem)
    if unread.number > len(unread.problems):
        print_warning(f"and {unread.number - len(unread.problems):,} more lines that are no results")
    print_line(
        f"{len(found):,} differences in {comparison.dispatches:,} dispatches and {comparison.results:,} results"
    )


def _cells(difference: "ShadowDifference") -> list[str | None]:
    job = f"{difference.workflow} / {difference.job}" if difference.job else None
    return [
        difference.kind.value,
        str(difference.backend),
        difference.delivery,
        job,
        difference.old,
        difference.new,
        difference.why or None,
    ]
