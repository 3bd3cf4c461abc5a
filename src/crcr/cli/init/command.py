"""`crcr init`: writes the files that make a repository a downstream, and prints the next steps."""

import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from crcr.cli.init.options import (
    ActionOption,
    AudienceOption,
    BranchOption,
    CiOption,
    CommandOption,
    DeviceOption,
    DryRunOption,
    FolderOption,
    ForceOption,
    JobNameOption,
    JunitOption,
    LevelOption,
    NightlyOption,
    OncallOption,
    PlaceOption,
    RelayOption,
    RepositoryOption,
    RunsOnOption,
    UpstreamOption,
    YesOption,
)
from crcr.cli.options import RUN_PANEL, JsonOption, examples
from crcr.cli.printing import print_error, print_json
from crcr.join.ci_kinds import CI_LOCATION_PARTS

if TYPE_CHECKING:
    from crcr.cli.init.gather import InitFlags


def register(app: typer.Typer) -> None:
    app.command(
        rich_help_panel=RUN_PANEL,
        epilog=examples(
            "crcr init",
            "crcr init --relay https://relay.example.org --command ./ci/test --junit 'out/*.xml'",
            "crcr init --ci buildkite --place organization=acme --place pipeline=crcr --dry-run",
        )
        + "\n\n"
        + _place_names(),
    )(init)


def _place_names() -> str:
    """Return the names for --place, per CI."""
    lines = ["Names for --place (* required):"]
    for ci, parts in CI_LOCATION_PARTS.items():
        names = ", ".join(f"{part.name}{'*' if part.required else ''}" for part in parts)
        lines += [f"  {ci.value}: {names}"] if parts else []
    return "\n".join(lines)


def init(
    relay: RelayOption = None,
    upstream: UpstreamOption = None,
    repository: RepositoryOption = None,
    audience: AudienceOption = None,
    level: LevelOption = None,
    device: DeviceOption = None,
    oncall: OncallOption = None,
    ci: CiOption = None,
    place: PlaceOption = None,
    command: CommandOption = None,
    job_name: JobNameOption = None,
    junit: JunitOption = None,
    runs_on: RunsOnOption = None,
    branch: BranchOption = None,
    nightly: NightlyOption = None,
    action: ActionOption = None,
    folder: FolderOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write the workflow that tests an upstream's changes in this repository and reports the results.

    Run it in the repository. It is safe to run again: earlier answers are read from the files, unchanged files are
    left alone, and a diff is shown before a file is overwritten. With --json it never prompts, as with --yes.
    """
    from crcr.cli.init.gather import InitFlags

    flags = InitFlags(
        ci=ci, relay=relay, audience=audience, upstream=upstream, repository=repository, level=level,
        device=device, oncalls=tuple(oncall or ()), place=tuple(place or ()), command=command, job_name=job_name,
        junit=junit, runs_on=runs_on, branch=branch, nightly=nightly, action=action,
    )  # fmt: skip
    options = _WriteOptions(folder, dry_run, not (yes or as_json), force, as_json)
    _write_workflow(flags, options)


@dataclass(frozen=True, slots=True)
class _WriteOptions:
    folder: Path | None
    dry_run: bool
    asks: bool
    force: bool
    as_json: bool


def _write_workflow(flags: "InitFlags", options: _WriteOptions) -> None:
    from crcr.cli.init.gather import gather_request
    from crcr.cli.init.next_steps import next_steps, print_next_steps
    from crcr.cli.init.write_files import find_target_folder, write_files
    from crcr.join.files import generate
    from crcr.join.request import check_request

    target, dry_run = find_target_folder(options.folder), options.dry_run
    # Scripts get the JSON alone on stdout, and what people read on stderr.
    with redirect_stdout(sys.stderr if options.as_json else sys.stdout):
        gathered = gather_request(flags, target, ask=options.asks)
        if problems := check_request(gathered.request):
            print_error("\n".join(problems))
            raise typer.Exit(2)
        files = generate(gathered.request)
        plan = write_files(files, target.folder, dry_run=dry_run, ask=options.asks, force=options.force)
    paths = [file.path for file in files]
    if options.as_json:
        described = [planned.describe() for planned in plan]
        steps = [{"text": text, "paste": paste} for text, paste in next_steps(gathered, target.folder, paths)]
        print_json({"files": described, "dry_run": dry_run, "next": steps})
    else:
        print_next_steps(gathered, target.folder, paths, dry_run=dry_run)
