"""The flags of `crcr init`, one declaration each; `init` itself stays readable beside them."""

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


_WHOSE = "Whose build it is"
_BUILD = "The build"
_WRITING = "Writing"

RelayOption = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Where the relay is.", rich_help_panel=_WHOSE, show_default=False),
]
UpstreamOption = Annotated[
    RepoName | None,
    typer.Option(
        metavar="OWNER/REPO",
        parser=parse_repo_name,
        help="Whose changes are tested; the relay's own, if it has only one.",
        rich_help_panel=_WHOSE,
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
        help="This repository, as GitHub names it; else taken from the remote `origin`.",
        rich_help_panel=_WHOSE,
        show_default=False,
    ),
]
AudienceOption = Annotated[
    str | None,
    typer.Option(
        help="The audience of tokens for the relay; else the relay is asked.",
        rich_help_panel=_WHOSE,
        show_default=False,
    ),
]
LevelOption = Annotated[
    Level | None,
    typer.Option(
        parser=parse_level,
        metavar="L1|L2|L3|L4",
        help="How far it takes part; L2 unless it says otherwise.",
        rich_help_panel=_WHOSE,
        show_default=False,
    ),
]
DeviceOption = Annotated[
    str | None,
    typer.Option(help="For L3: what its label is called after.", rich_help_panel=_WHOSE, show_default=False),
]
OncallOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Whom to call, a login or org/team; may be repeated.",
        rich_help_panel=_WHOSE,
        show_default=False,
    ),
]
CiOption = Annotated[
    Ci | None,
    typer.Option(
        parser=parse_ci,
        metavar="|".join(Ci),
        help="Where the build runs; GitHub Actions unless it says otherwise.",
        rich_help_panel=_BUILD,
        show_default=False,
    ),
]
PlaceOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="Where the other CI's build is; may be repeated. The names are listed below.",
        rich_help_panel=_BUILD,
        show_default=False,
    ),
]
CommandOption = Annotated[
    str | None,
    typer.Option(help="What builds and tests, one line.", rich_help_panel=_BUILD, show_default=False),
]
JobNameOption = Annotated[
    str | None,
    typer.Option(
        help="What the job is called in reports; `build` unless it says otherwise.",
        rich_help_panel=_BUILD,
        show_default=False,
    ),
]
JunitOption = Annotated[
    str | None,
    typer.Option(
        metavar="GLOB",
        help="Where the build leaves JUnit files; empty for none.",
        rich_help_panel=_BUILD,
        show_default=False,
    ),
]
RunsOnOption = Annotated[
    str | None,
    typer.Option(
        help="The runner's label, or several with commas; elsewhere its queue, tag or class. "
        "`ubuntu-latest` unless it says otherwise.",
        rich_help_panel=_BUILD,
        show_default=False,
    ),
]
BranchOption = Annotated[
    str | None,
    typer.Option(
        help="The default branch; else the HEAD of git's remote origin, or the one that is checked out.",
        rich_help_panel=_BUILD,
        show_default=False,
    ),
]
NightlyOption = Annotated[
    bool | None,
    typer.Option(
        "--nightly/--no-nightly",
        help="Also test the upstream's newest commit every night.",
        rich_help_panel=_BUILD,
        show_default=False,
    ),
]
ActionOption = Annotated[
    str | None,
    typer.Option(
        metavar="OWNER/REPO/PATH@SHA",
        help="Use that action instead of a copy of the reporter.",
        rich_help_panel=_BUILD,
        show_default=False,
    ),
]
FolderOption = Annotated[
    Path | None,
    typer.Option(
        help="The top of the repository; else that of the one you are in.",
        rich_help_panel=_WRITING,
        show_default=False,
    ),
]
DryRunOption = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="Show what would be written, and write nothing.", rich_help_panel=_WRITING
    ),
]
YesOption = Annotated[
    bool,
    typer.Option(
        "--yes", "-y", help="Ask nothing; what is not said is as by default.", rich_help_panel=_WRITING
    ),
]
ForceOption = Annotated[
    bool,
    typer.Option(
        "--force", help="Overwrite files that are different, without asking.", rich_help_panel=_WRITING
    ),
]
