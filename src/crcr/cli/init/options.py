"""The flags of `crcr init`, and their parsers."""

from pathlib import Path
from typing import Annotated

import typer

from crcr.cli.options import parse_repo_name
from crcr.cli.printing import escape_unprintable
from crcr.decide.model import Level, RepoName
from crcr.join.ci_kinds import Ci


def parse_ci(text: str) -> Ci:
    if text.lower() not in set(Ci):
        raise typer.BadParameter(
            f"{escape_unprintable(text)!r} is not one of {', '.join(Ci)}. Any other CI can report with action/report.py, "
            f'which runs anywhere: see "Another CI" in docs/downstream.md'
        )
    return Ci(text.lower())


def parse_level(text: str) -> Level:
    if text.upper() not in Level.__members__:
        raise typer.BadParameter(f"{escape_unprintable(text)!r} is not one of {', '.join(Level.__members__)}")
    return Level[text.upper()]


_REPOSITORY_PANEL = "Repository and relay"
_BUILD_PANEL = "Build"
_FILES_PANEL = "Files"

RelayOption = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="Address of the relay.", rich_help_panel=_REPOSITORY_PANEL, show_default=False
    ),
]
UpstreamOption = Annotated[
    RepoName | None,
    typer.Option(
        metavar="OWNER/REPO",
        parser=parse_repo_name,
        help="Upstream whose changes are tested. Default: the relay's, if it has only one.",
        rich_help_panel=_REPOSITORY_PANEL,
        show_default=False,
    ),
]
RepositoryOption = Annotated[
    RepoName | None,
    typer.Option(
        "--repo",
        "--repository",
        metavar="OWNER/REPO",
        parser=parse_repo_name,
        help="This repository on GitHub. Default: from the remote `origin`.",
        rich_help_panel=_REPOSITORY_PANEL,
        show_default=False,
    ),
]
AudienceOption = Annotated[
    str | None,
    typer.Option(
        help="Audience of tokens for the relay. Default: as the relay says.",
        rich_help_panel=_REPOSITORY_PANEL,
        show_default=False,
    ),
]
LevelOption = Annotated[
    Level | None,
    typer.Option(
        parser=parse_level,
        metavar="L1|L2|L3|L4",
        help="Level of participation. Default: L2.",
        rich_help_panel=_REPOSITORY_PANEL,
        show_default=False,
    ),
]
DeviceOption = Annotated[
    str | None,
    typer.Option(
        help="For L3: the device in its label.", rich_help_panel=_REPOSITORY_PANEL, show_default=False
    ),
]
OncallOption = Annotated[
    list[str] | None,
    typer.Option(
        help="On-call login or org/team; repeatable.",
        rich_help_panel=_REPOSITORY_PANEL,
        show_default=False,
    ),
]
CiOption = Annotated[
    Ci | None,
    typer.Option(
        parser=parse_ci,
        metavar="|".join(Ci),
        help="CI that runs the build. Default: github.",
        rich_help_panel=_BUILD_PANEL,
        show_default=False,
    ),
]
PlaceOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="Location of the build at another CI; repeatable. Names: see below.",
        rich_help_panel=_BUILD_PANEL,
        show_default=False,
    ),
]
CommandOption = Annotated[
    str | None,
    typer.Option(help="Build and test command, one line.", rich_help_panel=_BUILD_PANEL, show_default=False),
]
JobNameOption = Annotated[
    str | None,
    typer.Option(
        help="Job name in reports. Default: build.",
        rich_help_panel=_BUILD_PANEL,
        show_default=False,
    ),
]
JunitOption = Annotated[
    str | None,
    typer.Option(
        metavar="GLOB",
        help="JUnit files of the build; empty for none.",
        rich_help_panel=_BUILD_PANEL,
        show_default=False,
    ),
]
RunsOnOption = Annotated[
    str | None,
    typer.Option(
        metavar="LABEL",
        help="Runner label, or several with commas; at other CIs its queue, tag or class. "
        "Default: ubuntu-latest.",
        rich_help_panel=_BUILD_PANEL,
        show_default=False,
    ),
]
BranchOption = Annotated[
    str | None,
    typer.Option(
        help="Default branch. Default: HEAD of the remote `origin`, else the branch checked out.",
        rich_help_panel=_BUILD_PANEL,
        show_default=False,
    ),
]
NightlyOption = Annotated[
    bool | None,
    typer.Option(
        "--nightly/--no-nightly",
        help="Also test the upstream's newest commit every night.",
        rich_help_panel=_BUILD_PANEL,
        show_default=False,
    ),
]
ActionOption = Annotated[
    str | None,
    typer.Option(
        metavar="OWNER/REPO/PATH@SHA",
        help="Use this action instead of a copy of the reporter.",
        rich_help_panel=_BUILD_PANEL,
        show_default=False,
    ),
]
FolderOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Top folder of the repository. Default: of the current one.",
        rich_help_panel=_FILES_PANEL,
        show_default=False,
    ),
]
DryRunOption = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="Show what would be written; write nothing.", rich_help_panel=_FILES_PANEL
    ),
]
YesOption = Annotated[
    bool,
    typer.Option("--yes", "-y", help="Never prompt; use defaults.", rich_help_panel=_FILES_PANEL),
]
ForceOption = Annotated[
    bool,
    typer.Option("--force", help="Overwrite changed files without asking.", rich_help_panel=_FILES_PANEL),
]
