"""`crcr demo`: the relay and a simulated GitHub in one process, without the network.

`crcr demo-join` adds a repository with its own workflow files to a running demo. It calls the demo with a key that only
the user who started it can read.
"""

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from crcr.cli.options import RUN_PANEL, JsonOption, RepoArgument, examples, parse_duration
from crcr.cli.printing import print_json, print_line

if TYPE_CHECKING:
    from crcr.cli.http_client import HttpResponse

SEED, SPEED = 1, 1.0
_JOIN_PATH = "/_sim/repositories"

SeedOption = Annotated[int, typer.Option(min=0, help="Random seed.")]
SpeedOption = Annotated[float, typer.Option(min=0.1, max=50, help="Speed factor.")]
HostOption = Annotated[str, typer.Option(help="Address to listen on.")]
PortOption = Annotated[int, typer.Option(min=0, max=65535, help="Port of the relay; 0: any free port.")]
GitHubPortOption = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=65535,
        help="Port of the simulated GitHub; 0: any free port.",
        show_default="8001, or a free one",
    ),
]
LengthOption = Annotated[
    timedelta | None,
    typer.Option(
        "--for", parser=parse_duration, metavar="DURATION", help="Stop after this time, such as 30s."
    ),
]
DataOption = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Keep the data in this folder. Default: a temporary folder."),
]
HistoryOption = Annotated[
    timedelta | None,
    typer.Option(
        parser=parse_duration,
        metavar="DURATION",
        help="Start with generated history of this length, so that charts and matrices have data.",
        show_default="14d",
    ),
]
NoHistoryOption = Annotated[bool, typer.Option("--no-history", help="Start without any history.")]
JobsOption = Annotated[
    int, typer.Option(min=1, max=20_000, help="Jobs per hour in the generated history, approximately.")
]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Log everything, not only warnings.")]
FolderOption = Annotated[
    Path,
    typer.Option(
        exists=True, file_okay=False, metavar="DIR", help="The repository's files, with .github/workflows."
    ),
]
LevelOption = Annotated[str, typer.Option(help="L1: receives dispatches. L2: its results are shown as well.")]
UnlistedOption = Annotated[
    bool,
    typer.Option(
        "--unlisted", help="Without allowlist entry and App: send one test dispatch, to try the sandbox."
    ),
]
GitHubOption = Annotated[
    str, typer.Option(metavar="URL", help="The demo's simulated GitHub; the demo prints its address.")
]


def register(app: typer.Typer) -> None:
    app.command(
        rich_help_panel=RUN_PANEL,
        epilog=examples(
            "crcr demo", "crcr demo --history 90d", "crcr demo --no-history --for 30s --speed 5 --port 9000"
        ),
    )(demo)
    app.command(
        "demo-join",
        rich_help_panel=RUN_PANEL,
        epilog=examples(
            "crcr demo-join me/my-backend",
            "crcr demo-join me/my-backend --folder ~/src/my-backend --level L1",
            "crcr demo-join me/newcomer --unlisted",
        ),
    )(demo_join)


def demo(
    seed: SeedOption = SEED,
    speed: SpeedOption = SPEED,
    host: HostOption = "127.0.0.1",
    port: PortOption = 8000,
    github_port: GitHubPortOption = None,
    length: LengthOption = None,
    data: DataOption = None,
    history: HistoryOption = None,
    no_history: NoHistoryOption = False,
    jobs_an_hour: JobsOption = 50,
    verbose: VerboseOption = False,
) -> None:
    """Run the relay against a simulated GitHub with several backends, to look around.

    Pull requests open, change, are blocked, waived and merged; backends queue, pass, fail and fall silent. Time is
    short: a job takes seconds, in the generated history as well. Never needs the network.
    """
    from crcr.cli.run import process
    from crcr.demo.run import HISTORY, DemoOptions, GeneratedHistory, run_demo

    options = DemoOptions(
        seed=seed,
        speed=speed,
        github_port=github_port,
        length=length,
        data=data,
        history=None if no_history else GeneratedHistory(history or HISTORY, jobs_an_hour),
        verbose=verbose,
    )
    with process.listen(host, port) as listener:
        process.run_event_loop(run_demo(options, listener))


def demo_join(
    repository: RepoArgument,
    folder: FolderOption = Path(),
    level: LevelOption = "L2",
    unlisted: UnlistedOption = False,
    github: GitHubOption = "http://127.0.0.1:8001",
    as_json: JsonOption = False,
) -> None:
    """Add a repository to the demo on this machine: its workflows are executed for each upstream change.

    The files run in a plain shell on this machine, without isolation: join only what you would run yourself. After
    changing the files, join again.
    """
    body = {
        "name": str(repository),
        "folder": str(folder.resolve()),
        "level": level.upper(),
        "listed": not unlisted,
    }
    joined = _post_join(github, body)
    if as_json:
        print_json({"repository": str(repository), "listed": not unlisted, **joined})
        return
    if unlisted:
        print_line(f"{repository} is not on the allowlist; a test dispatch was sent to it and runs:")
    else:
        print_line(f"{repository} joined the demo at {joined['level']}; each dispatch runs:")
    for path in joined["workflows"]:
        print_line(f"  {path}")
    print_line(f"its runs:    {github.rstrip('/')}/{repository}")
    print_line(f"its results: {joined['relay']}/crcr/{'sandbox' if unlisted else repository}")


def _post_join(github: str, body: dict[str, Any]) -> dict[str, Any]:
    from http import HTTPStatus

    from crcr.cli.http_client import HttpClient, HttpError, is_on_this_machine
    from crcr.demo.join_key import read_key
    from crcr.errors import BadRequest, NotPossible

    address = urlsplit(github)
    if not is_on_this_machine(github) or not address.port:
        raise BadRequest(f"{github} is not a demo on this machine", hint="use http://127.0.0.1:8001")
    headers = {"Authorization": f"Bearer {read_key(address.port)}"}
    try:
        answer = HttpClient(github, timeout_s=30).post(_JOIN_PATH, headers, json_body=body)
    except HttpError:
        raise NotPossible(f"nothing answers at {github}", hint="start the demo with `crcr demo`") from None
    if answer.status_code != HTTPStatus.CREATED:
        raise NotPossible(_reason(answer), hint=_hint(answer))
    joined: dict[str, Any] = answer.json()
    return joined


def _reason(answer: "HttpResponse") -> str:
    try:
        return str(answer.json()["message"])
    except (ValueError, LookupError, TypeError):
        return f"the demo answered with {answer.status_code}"


def _hint(answer: "HttpResponse") -> str | None:
    try:
        return str(answer.json()["errors"][0]["message"])
    except (ValueError, LookupError, TypeError):
        return None
