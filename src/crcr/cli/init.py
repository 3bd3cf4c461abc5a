"""`crcr init`: write the files that make a repository a downstream, and say what is to be done next."""

from pathlib import Path
from typing import Annotated

import typer

from crcr.cli.init_questions import read_ci, read_level
from crcr.cli.options import RUN_IT, examples, repo_name
from crcr.cli.printing import complain
from crcr.decide.model import Level, RepoName
from crcr.join.place import PLACES, Ci

_WHOSE = "Whose build it is"
_BUILD = "The build"
_WRITING = "Writing"


def register(app: typer.Typer) -> None:
    app.command(
        rich_help_panel=RUN_IT,
        epilog=examples(
            "crcr init",
            "crcr init --relay https://relay.example.org --command ./ci/test --junit 'out/*.xml'",
            "crcr init --ci buildkite --place organization=acme --place pipeline=crcr --dry-run",
        )
        + "\n\n"
        + _place_names(),
    )(init)


def _place_names() -> str:
    """Return the names for --place, by CI."""
    lines = ["Names for --place (* is needed):"]
    for ci, parts in PLACES.items():
        names = ", ".join(f"{each.name}{'*' if each.required else ''}" for each in parts)
        lines += [f"  {ci.value}: {names}"] if parts else []
    return "\n".join(lines)


def init(
    relay: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Where the relay is.", rich_help_panel=_WHOSE, show_default=False),
    ] = None,
    upstream: Annotated[
        RepoName | None,
        typer.Option(
            metavar="OWNER/REPO",
            parser=repo_name,
            help="Whose changes are tested; the relay's own, if it has only one.",
            rich_help_panel=_WHOSE,
            show_default=False,
        ),
    ] = None,
    repository: Annotated[
        RepoName | None,
        typer.Option(
            "--repo",
            "--repository",
            metavar="OWNER/REPO",
            parser=repo_name,
            help="This repository, as GitHub names it; else taken from the remote `origin`.",
            rich_help_panel=_WHOSE,
            show_default=False,
        ),
    ] = None,
    audience: Annotated[
        str | None,
        typer.Option(
            help="The audience of tokens for the relay; else the relay is asked.",
            rich_help_panel=_WHOSE,
            show_default=False,
        ),
    ] = None,
    level: Annotated[
        Level | None,
        typer.Option(
            parser=read_level,
            metavar="L1|L2|L3|L4",
            help="How far it takes part; L2 unless it says otherwise.",
            rich_help_panel=_WHOSE,
            show_default=False,
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            help="For L3: what its label is called after.", rich_help_panel=_WHOSE, show_default=False
        ),
    ] = None,
    oncall: Annotated[
        list[str] | None,
        typer.Option(
            help="Whom to call, a login or org/team; may be repeated.",
            rich_help_panel=_WHOSE,
            show_default=False,
        ),
    ] = None,
    ci: Annotated[
        Ci | None,
        typer.Option(
            parser=read_ci,
            metavar="|".join(Ci),
            help="Where the build runs; GitHub Actions unless it says otherwise.",
            rich_help_panel=_BUILD,
            show_default=False,
        ),
    ] = None,
    place: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Where the other CI's build is; may be repeated. The names are listed below.",
            rich_help_panel=_BUILD,
            show_default=False,
        ),
    ] = None,
    command: Annotated[
        str | None,
        typer.Option(help="What builds and tests, one line.", rich_help_panel=_BUILD, show_default=False),
    ] = None,
    job_name: Annotated[
        str | None,
        typer.Option(
            help="What the job is called in reports; `build` unless it says otherwise.",
            rich_help_panel=_BUILD,
            show_default=False,
        ),
    ] = None,
    junit: Annotated[
        str | None,
        typer.Option(
            metavar="GLOB",
            help="Where the build leaves JUnit files; empty for none.",
            rich_help_panel=_BUILD,
            show_default=False,
        ),
    ] = None,
    runs_on: Annotated[
        str | None,
        typer.Option(
            help="The runner's label, or several with commas; elsewhere its queue, tag or class. "
            "`ubuntu-latest` unless it says otherwise.",
            rich_help_panel=_BUILD,
            show_default=False,
        ),
    ] = None,
    branch: Annotated[
        str | None,
        typer.Option(
            help="The default branch; else the remote's, or the one that is checked out.",
            rich_help_panel=_BUILD,
            show_default=False,
        ),
    ] = None,
    nightly: Annotated[
        bool | None,
        typer.Option(
            "--nightly/--no-nightly",
            help="Also test the upstream's newest commit every night.",
            rich_help_panel=_BUILD,
            show_default=False,
        ),
    ] = None,
    action: Annotated[
        str | None,
        typer.Option(
            metavar="OWNER/REPO/PATH@SHA",
            help="Use that action instead of a copy of the reporter.",
            rich_help_panel=_BUILD,
            show_default=False,
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            help="The top of the repository; else that of the one you are in.",
            rich_help_panel=_WRITING,
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Show what would be written, and write nothing.", rich_help_panel=_WRITING
        ),
    ] = False,
    yes: Annotated[
        bool,
        typer.Option(
            "--yes", "-y", help="Ask nothing; what is not said is as by default.", rich_help_panel=_WRITING
        ),
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Overwrite files that are different, without asking.", rich_help_panel=_WRITING
        ),
    ] = False,
) -> None:
    """Write the workflow that tests an upstream's changes in this repository, and reports the results.

    Run it in the repository. It is safe to run again: what was said before and stands in the files is taken up, files
    that are as they should be stay untouched, and others are shown as a diff before they are overwritten.
    """
    from crcr.cli.init_folder import find_here
    from crcr.cli.init_next import say_next
    from crcr.cli.placing import place_files
    from crcr.cli.wishing import Said, gather
    from crcr.join.files import generate
    from crcr.join.wanted import check_wanted

    said = Said(
        ci=ci, relay=relay, audience=audience, upstream=upstream, repository=repository, level=level,
        device=device, oncalls=tuple(oncall or ()), place=tuple(place or ()), command=command, job_name=job_name,
        junit=junit, runs_on=runs_on, branch=branch, nightly=nightly, action=action,
    )  # fmt: skip
    here = find_here(folder)
    wish = gather(said, here, ask=not yes)
    if problems := check_wanted(wish.wanted):
        complain("\n".join(problems))
        raise typer.Exit(2)
    files = generate(wish.wanted)
    place_files(files, here.folder, dry_run=dry_run, ask=not yes, force=force)
    say_next(wish, here.folder, [each.path for each in files], dry_run=dry_run)
