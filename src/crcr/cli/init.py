"""`crcr init`: write the files that make a repository a downstream, and say what is to be done next."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crcr.cli.options import RUN_IT, examples, repo_name
from crcr.cli.printing import complain, say
from crcr.decide.model import Level, RepoName
from crcr.join.place import Ci

if TYPE_CHECKING:
    from crcr.cli.wishing import Relay
    from crcr.join.wanted import Wanted

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
        ),
    )(init)


def _level(text: str) -> Level:
    if text.upper() not in Level.__members__:
        raise typer.BadParameter(f"{text!r} is not one of {', '.join(Level.__members__)}")
    return Level[text.upper()]


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
            parser=_level,
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
            help="Where the build runs; GitHub Actions unless it says otherwise.",
            rich_help_panel=_BUILD,
            show_default=False,
        ),
    ] = None,
    place: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Where the other CI's build is; may be repeated.",
            rich_help_panel=_BUILD,
            show_default=False,
        ),
    ] = None,
    command: Annotated[
        str | None,
        typer.Option(help="What builds and tests, one line.", rich_help_panel=_BUILD, show_default=False),
    ] = None,
    job_name: Annotated[
        str, typer.Option(help="What the job is called in reports.", rich_help_panel=_BUILD)
    ] = "build",
    junit: Annotated[
        str | None,
        typer.Option(
            metavar="GLOB",
            help="Where the build leaves JUnit files.",
            rich_help_panel=_BUILD,
            show_default=False,
        ),
    ] = None,
    runs_on: Annotated[
        str,
        typer.Option(
            help="The runner's label, or several with commas; elsewhere its queue, tag or class.",
            rich_help_panel=_BUILD,
        ),
    ] = "ubuntu-latest",
    branch: Annotated[
        str | None,
        typer.Option(
            help="The default branch; else taken from the remote.", rich_help_panel=_BUILD, show_default=False
        ),
    ] = None,
    nightly: Annotated[
        bool,
        typer.Option(
            "--nightly", help="Also test the upstream's newest commit every night.", rich_help_panel=_BUILD
        ),
    ] = False,
    action: Annotated[
        str | None,
        typer.Option(
            metavar="OWNER/REPO/PATH@SHA",
            help="Use that action instead of a copy of the reporter.",
            rich_help_panel=_BUILD,
            show_default=False,
        ),
    ] = None,
    folder: Annotated[Path, typer.Option(help="The repository's folder.", rich_help_panel=_WRITING)] = Path(),
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

    Run it in the repository. It is safe to run again: files that are as they should be stay untouched, and others
    are shown as a diff before they are overwritten.
    """
    from crcr.cli.placing import place_files
    from crcr.cli.wishing import Said, gather
    from crcr.join.files import generate
    from crcr.join.wanted import check_wanted

    said = Said(
        ci=ci, relay=relay, audience=audience, upstream=upstream, repository=repository, level=level,
        device=device, oncalls=tuple(oncall or ()), place=tuple(place or ()), command=command, job_name=job_name,
        junit=junit, runs_on=runs_on, branch=branch, nightly=nightly, action=action,
    )  # fmt: skip
    wanted, told = gather(said, folder, ask=not yes)
    if problems := check_wanted(wanted):
        complain("\n".join(problems))
        raise typer.Exit(2)
    place_files(generate(wanted), folder, dry_run=dry_run, ask=not yes, force=force)
    _say_next(wanted, told, dry_run=dry_run)


def _say_next(wanted: "Wanted", told: "Relay | None", *, dry_run: bool) -> None:
    from crcr.join.files import allowlist_entry, registration

    app = told.app_url if told and told.app_url else "ask the operator of the relay for its address"
    steps = [
        (f"commit the files to {wanted.branch}, your default branch", None),
        (f"install the relay's GitHub App on {wanted.repository}: {app}", None),
        (f"ask {wanted.upstream} to add this to its allowlist:", allowlist_entry(wanted)),
    ]
    if told_operator := registration(wanted):
        steps.append(("send this to the operator, who registers your pipeline:", told_operator))
        steps.append((f"do what the comments in the files say about {wanted.ci.title} and its token", None))
    steps.append(
        (
            f"see what is still missing: crcr doctor --relay {wanted.relay_url} --repo {wanted.repository}",
            None,
        )
    )
    say("")
    say("nothing was written; next would be:" if dry_run else "next:")
    for number, (words, text) in enumerate(steps, start=1):
        say(f"{number}. {words}")
        for line in (text or "").splitlines():
            say(f"     {line}")
