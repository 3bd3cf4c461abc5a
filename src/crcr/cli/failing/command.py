"""`crcr failing`: the jobs that fail on the base branch, or at night, without a pass since.

With --hud it reads a relay's public API and needs neither settings nor a database nor a token.
"""

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crcr.cli.failing.output import OutputFormat, print_failing
from crcr.cli.options import OPERATE_PANEL, ConfigOption, JsonOption, UpstreamOption, examples
from crcr.cli.printing import print_error
from crcr.decide.views.failing import FailingKind, FailingQuery

if TYPE_CHECKING:
    from crcr.cli.operator_session import OperatorSession
    from crcr.decide.views.failing import FailingPage

_MOST = 10_000

HudOption = Annotated[
    str | None,
    typer.Option(
        "--hud",
        metavar="URL",
        help="The address of a relay: read its public API, without settings, database or token.",
    ),
]
KindOption = Annotated[
    FailingKind, typer.Option("--kind", help="Pushes to the base branch, or nightly and periodic runs.")
]
BranchOption = Annotated[
    str | None,
    typer.Option("--branch", metavar="NAME", help="The base branch. Default: the default branch."),
]
BackendOption = Annotated[
    str | None,
    typer.Option("--backend", metavar="NAME", help="Only backends whose owner/repo contains this name."),
]
KnownOption = Annotated[
    bool | None,
    typer.Option("--known/--not-known", help="Only failures that are linked to an issue, or only others."),
]
FormatOption = Annotated[OutputFormat, typer.Option("--format", help="How to print the jobs.")]
FailOnOption = Annotated[
    int | None,
    typer.Option(
        "--fail-on", metavar="NUMBER", min=1, help="Exit with 1 when so many jobs are listed, for scripts."
    ),
]
NoCacheOption = Annotated[
    bool, typer.Option("--no-cache", help="With --hud: ask the relay, and keep nothing on this machine.")
]


def register(app: typer.Typer) -> None:
    shown = examples(
        "crcr failing --kind nightly",
        "crcr failing --hud https://crcr.example.com --format markdown",
        "crcr failing --hud https://crcr.example.com --backend org/repo --fail-on 1",
    )
    app.command(rich_help_panel=OPERATE_PANEL, epilog=shown)(failing)


def failing(
    hud: HudOption = None,
    kind: KindOption = FailingKind.PUSH,
    branch: BranchOption = None,
    backend: BackendOption = None,
    known: KnownOption = None,
    form: FormatOption = OutputFormat.TABLE,
    as_json: JsonOption = False,
    fail_on: FailOnOption = None,
    no_cache: NoCacheOption = False,
    config: ConfigOption = None,
    upstream: UpstreamOption = None,
) -> None:
    """List the jobs that fail without a pass since: since when, how many in a row, first bad commit, on-calls.

    Without --hud: from this relay's database, hidden backends included. The exit code is 1 with --fail-on when so many
    jobs are listed, and when the relay cannot be read.
    """
    if hud is not None and config is not None:
        raise typer.BadParameter("--config is about this machine's relay; leave it out with --hud")
    asked = {"kind": kind, "branch": branch, "backend": backend, "known": known}
    if hud is None:
        items = _read_database(config, upstream, asked)
    else:
        items = _read_relay(hud, {**asked, "upstream": upstream}, cached=not no_cache)
    print_failing(items, OutputFormat.JSON if as_json else form, hud=hud)
    if fail_on is not None and len(items) >= fail_on:
        print_error(f"{len(items)} failing job{'' if len(items) == 1 else 's'}, --fail-on {fail_on}")
        raise typer.Exit(1)


def _read_database(config: Any, upstream: Any, asked: dict[str, Any]) -> list[dict[str, Any]]:
    from crcr.cli.operator_session import run_in_session
    from crcr.show.api.models.commit import FAILING_JOB

    async def read(session: "OperatorSession") -> "FailingPage":
        query = FailingQuery(upstream=session.upstream_to_read(upstream), limit=_MOST, **asked)
        return await session.views.failing(query, session.now())

    page = run_in_session(config, read)
    return [FAILING_JOB.model_validate(job).model_dump(mode="json") for job in page.items]


def _read_relay(hud: str, asked: dict[str, Any], *, cached: bool) -> list[dict[str, Any]]:
    from crcr.cli.failing.relay_api import RelayApi, relay_address
    from crcr.cli.failing.response_cache import ResponseCache, cache_folder

    address = relay_address(hud)
    texts = {name: str(value) for name, value in asked.items() if value is not None}
    if "known" in texts:
        texts["known"] = texts["known"].lower()
    folder = cache_folder(os.environ) if cached else None
    cache = ResponseCache(folder) if folder else None
    return RelayApi(address, cache=cache).read_list("failing", texts)
