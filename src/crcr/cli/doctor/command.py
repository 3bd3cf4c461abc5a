"""`crcr doctor`: findings with advice, for downstream maintainers and for operators."""

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


RelayOption = Annotated[
    str | None,
    typer.Option("--relay", metavar="URL", help="The relay to ask. Default: check this machine's own relay."),
]
RepositoryOption = Annotated[
    RepoName | None,
    typer.Option(
        "--repo",
        metavar="OWNER/REPO",
        parser=parse_repo_name,
        help="The downstream. Default: the repository of the current checkout.",
    ),
]
TestOption = Annotated[
    bool, typer.Option("--test", help="Send a test dispatch and follow it until its result is recorded.")
]
TokenOption = Annotated[
    str | None,
    typer.Option(
        "--token",
        envvar=TOKEN,
        show_default=False,
        help="Administrator's or reader's token, or an OIDC token of the repository; preferably in the variable.",
    ),
]
TimeoutOption = Annotated[
    timedelta,
    typer.Option(
        "--timeout", parser=parse_duration, metavar="DURATION", help="How long --test waits for the result."
    ),
]
NoWaitOption = Annotated[
    bool,
    typer.Option(
        "--no-wait",
        help="Do not wait until GitHub can be asked again (once a minute). Scripts never wait.",
    ),
]


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
    relay: RelayOption = None,
    repository: RepositoryOption = None,
    upstream: UpstreamOption = None,
    test: TestOption = False,
    token: TokenOption = None,
    patience: TimeoutOption = "10m",  # type: ignore[assignment]  # read by the parser
    no_wait: NoWaitOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check a set-up and print what to do.

    With --relay: a downstream, as the relay and GitHub see it. Without: this relay's settings, store and App. The exit
    code is 1 when there is a problem; warnings do not change it.
    """
    if relay is None:
        if repository is not None or test:
            raise typer.BadParameter("--repo and --test need --relay")
        _examine_relay(config, upstream, as_json=as_json)
    else:
        waits = not (no_wait or as_json) and sys.stderr.isatty()
        test_timeout = patience if test else None
        _examine_downstream(
            relay, repository, upstream, token=token, patience=test_timeout, waits=waits, as_json=as_json
        )


def _examine_relay(config: Path | None, upstream: RepoName | None, *, as_json: bool) -> None:
    from crcr.cli.doctor.output import print_sections
    from crcr.cli.doctor.relay.examine import examine_relay

    # CRCR_TOKEN is not a setting of the relay.
    environ = {name: value for name, value in os.environ.items() if name != TOKEN}
    print_sections(examine_relay(config, upstream, environ, shown=not as_json), as_json=as_json)


def _examine_downstream(
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
    downstream = repository or (checkout.repository if checkout else None)
    if downstream is None:
        raise typer.BadParameter("pass --repo OWNER/REPO, or run this in a checkout of it")
    request = DownstreamRequest(
        parse_relay_url(url),
        downstream,
        upstream,
        token=token.strip() if token else None,
        patience=patience,
        waits=waits,
    )
    sections = examine_downstream(request, checkout, shown=not as_json)
    print_sections(sections, as_json=as_json, relay=request.url, repository=str(downstream))
