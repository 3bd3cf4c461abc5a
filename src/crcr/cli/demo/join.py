"""`crcr demo-join`: a repository of yours takes part in the running demo, with its real workflow files."""

from pathlib import Path
from typing import Annotated

import typer

from crcr.cli.options import RUN_PANEL, RepoArgument, examples
from crcr.cli.printing import print_line


def register(app: typer.Typer) -> None:
    app.command(
        "demo-join",
        rich_help_panel=RUN_PANEL,
        epilog=examples(
            "crcr demo-join me/my-backend",
            "crcr demo-join me/my-backend --folder ~/src/my-backend --level L1",
            "crcr demo-join me/newcomer --unlisted",
        ),
    )(demo_join)


def demo_join(
    repository: RepoArgument,
    folder: Annotated[
        Path,
        typer.Option(
            exists=True, file_okay=False, metavar="DIR", help="Its files, with .github/workflows in them."
        ),
    ] = Path(),
    level: Annotated[str, typer.Option(help="L1: is told of changes. L2: and its results are shown.")] = "L2",
    unlisted: Annotated[
        bool,
        typer.Option(
            "--unlisted", help="Without an allowlist entry and the App: send it one test, for the sandbox."
        ),
    ] = False,
    github: Annotated[
        str, typer.Option(metavar="URL", help="The demo's simulated GitHub, as the demo prints it.")
    ] = "http://127.0.0.1:8001",
) -> None:
    """Join a repository to the demo that runs on this machine: for each change upstream its workflows are really run.

    Nothing but a shell stands between the files and this machine: join only what you would run yourself. After a
    change of the files, join again.
    """
    from crcr.cli.demo import join_call

    joined = join_call.ask(github, str(repository), folder.resolve(), level.upper(), listed=not unlisted)
    if unlisted:
        print_line(f"{repository} is on no allowlist; a test dispatch was sent to it, for which these run:")
    else:
        print_line(f"{repository} has joined the demo at {joined['level']}; these run for each dispatch:")
    for path in joined["workflows"]:
        print_line(f"  {path}")
    print_line(f"its runs:    {github.rstrip('/')}/{repository}")
    print_line(f"its results: {joined['relay']}/crcr/{'sandbox' if unlisted else repository}")
