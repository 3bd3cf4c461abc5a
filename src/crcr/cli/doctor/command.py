"""`crcr doctor`: what is right, what is wrong, and what to do, for downstream maintainers and for operators."""

import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from crcr.cli.options import (
    OPERATE_PANEL,
    ConfigOption,
    JsonOption,
    UpstreamOption,
    examples,
    parse_duration,
    parse_repo_name,
)
from crcr.decide.model import RepoName

TOKEN = "CRCR_TOKEN"  # noqa: S105  the variable's name


def register(app: typer.Typer) -> None:
    app.command(
        rich_help_panel=OPERATE_PANEL,
        epilog=examples(
            "crcr doctor --relay https://relay.example.org --repo org/backend",
            "crcr doctor --relay https://relay.example.org --repo org/backend --test",
            "crcr doctor --config /etc/crcr.toml --json",
        ),
    )(doctor)


def doctor(
    relay: Annotated[
        str | None,
        typer.Option(
            "--relay",
            metavar="URL",
            help="The relay to ask; without it, this machine's own relay is checked.",
        ),
    ] = None,
    repository: Annotated[
        RepoName | None,
        typer.Option(
            "--repo",
            metavar="OWNER/REPO",
            parser=parse_repo_name,
            help="The downstream; in a checkout of it, it is known from there.",
        ),
    ] = None,
    upstream: UpstreamOption = None,
    test: Annotated[
        bool, typer.Option("--test", help="Send a test dispatch and follow it until its result is here.")
    ] = False,
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            envvar=TOKEN,
            show_default=False,
            help="An administrator's or reader's token, or an OIDC token of the repository; better in the variable.",
        ),
    ] = None,
    patience: Annotated[
        timedelta,
        typer.Option(
            "--timeout",
            parser=parse_duration,
            metavar="DURATION",
            help="How long --test waits for the result.",
        ),
    ] = "10m",  # type: ignore[assignment]  # read by the parser
    no_wait: Annotated[
        bool,
        typer.Option(
            "--no-wait",
            help="Do not wait until GitHub may be asked again, which is once a minute; scripts never do.",
        ),
    ] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find out what is wrong with a set-up, and what to do.

    With --relay: a downstream's side, as the relay and GitHub see it. Without it: this relay, its settings, its store,
    its App. The exit code is 1 when there is a problem; warnings leave it at 0.
    """
    if relay is None:
        if repository is not None or test:
            raise typer.BadParameter("--repo and --test go with --relay")
        _operator(config, upstream, as_json=as_json)
    else:
        waits = not (no_wait or as_json) and sys.stderr.isatty()
        took = patience if test else None
        _downstream(relay, repository, upstream, token=token, patience=took, waits=waits, as_json=as_json)


def _operator(config: Path | None, upstream: RepoName | None, *, as_json: bool) -> None:
    from crcr.cli.doctor.output import print_sections
    from crcr.cli.doctor.relay.examine import examine_relay

    # Our own variable is no setting of the relay.
    environ = {name: value for name, value in os.environ.items() if name != TOKEN}
    print_sections(examine_relay(config, upstream, environ, shown=not as_json), as_json=as_json)


def _downstream(
    url: str,
    repository: RepoName | None,
    upstream: RepoName | None,
    *,
    token: str | None,
    patience: timedelta | None,
    waits: bool,
    as_json: bool,
) -> None:
    from crcr.cli.doctor.downstream.checkout import find_checkout
    from crcr.cli.doctor.downstream.examine import examine_downstream
    from crcr.cli.doctor.downstream.relay_api import DownstreamRequest, parse_relay_url
    from crcr.cli.doctor.output import print_sections

    checkout = find_checkout(Path.cwd())
    wanted = repository or (checkout.repository if checkout else None)
    if wanted is None:
        raise typer.BadParameter("say --repo OWNER/REPO, or run this in a checkout of it")
    asked = DownstreamRequest(
        parse_relay_url(url),
        wanted,
        upstream,
        token=token.strip() if token else None,
        patience=patience,
        waits=waits,
    )
    found = examine_downstream(asked, checkout, shown=not as_json)
    print_sections(found, as_json=as_json, relay=asked.url, repository=str(wanted))
