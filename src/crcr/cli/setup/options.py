"""The options of `crcr setup`, and their parsers."""

from datetime import timedelta
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from crcr.cli.command_line import PORT
from crcr.cli.options import parse_duration, parse_repo_name
from crcr.decide.github.repository_setup import MOST_NAME_CHARACTERS
from crcr.decide.model import RepoName

_APP_PANEL, _RELAY_PANEL, _OWN_APP_PANEL = "GitHub App", "Relay", "An App that exists already"


def parse_address(text: str) -> str:
    try:
        parts = urlsplit(text.strip())
        good = parts.scheme in {"http", "https"} and parts.hostname and (parts.port is None or parts.port)
    except ValueError:
        good = None
    if not good or parts.query or parts.fragment or parts.username is not None:
        raise typer.BadParameter(f"{text!r} is not an address such as https://relay.example.org")
    return text.strip().rstrip("/")


def parse_name(text: str) -> str:
    if not 1 <= len(text.strip()) <= MOST_NAME_CHARACTERS:
        raise typer.BadParameter(f"a name has 1 to {MOST_NAME_CHARACTERS} characters")
    return text.strip()


UpstreamOption = Annotated[
    RepoName | None,
    typer.Option(
        "--upstream",
        "-u",
        metavar="OWNER/REPO",
        parser=parse_repo_name,
        help="The repository whose changes are relayed.",
    ),
]
PublicUrlOption = Annotated[
    str | None,
    typer.Option(
        "--public-url",
        metavar="URL",
        parser=parse_address,
        help="The address at which GitHub and downstreams reach the relay.",
        rich_help_panel=_RELAY_PANEL,
    ),
]
ConfigFileOption = Annotated[
    Path,
    typer.Option(
        "--config", "-c", metavar="FILE", help="The settings file to write; secrets go to a folder beside it.",
        rich_help_panel=_RELAY_PANEL,
    ),
]  # fmt: skip
AllowlistOption = Annotated[
    str,
    typer.Option(
        metavar="FILE|URL",
        help="The upstream's allowlist: a file beside the settings, begun if it is missing, or its address on GitHub.",
        rich_help_panel=_RELAY_PANEL,
    ),
]
AudienceOption = Annotated[
    str | None,
    typer.Option(
        help="Audience of downstreams' tokens. Default: the public address's host.",
        rich_help_panel=_RELAY_PANEL,
    ),
]
HostOption = Annotated[
    str, typer.Option(metavar="ADDRESS", help="Address to listen on.", rich_help_panel=_RELAY_PANEL)
]
PortOption = Annotated[
    int, typer.Option(min=1, max=65535, metavar=PORT, help="Port to listen on.", rich_help_panel=_RELAY_PANEL)
]
ServeOption = Annotated[
    bool,
    typer.Option("--serve", help="Continue as `crcr serve` after the check.", rich_help_panel=_RELAY_PANEL),
]
GitHubOption = Annotated[
    str,
    typer.Option(
        "--github-url", metavar="URL", parser=parse_address,
        help="GitHub, or the address of a GitHub Enterprise Server.", rich_help_panel=_APP_PANEL,
    ),
]  # fmt: skip
OrganizationOption = Annotated[
    str | None,
    typer.Option(
        "--organization",
        "--org",
        metavar="NAME",
        help="The organisation that owns the App. Default: your own account.",
        rich_help_panel=_APP_PANEL,
    ),
]
NameOption = Annotated[
    str | None,
    typer.Option(
        "--name", metavar="NAME", parser=parse_name,
        help="The App's name, unique on its GitHub. Default: crcr and the upstream's name.",
        rich_help_panel=_APP_PANEL,
    ),
]  # fmt: skip
PrivateOption = Annotated[
    bool,
    typer.Option(
        "--private-app",
        help="Only its owner can install the App, so downstreams of other owners cannot take part.",
        rich_help_panel=_APP_PANEL,
    ),
]
NoBrowserOption = Annotated[
    bool, typer.Option("--no-browser", help="Print the page's address only.", rich_help_panel=_APP_PANEL)
]
RedirectPortOption = Annotated[
    int,
    typer.Option(
        min=0, max=65535, metavar=PORT, help="Port of the page on this machine; 0: any free port.",
        rich_help_panel=_APP_PANEL,
    ),
]  # fmt: skip
TimeoutOption = Annotated[
    timedelta,
    typer.Option(
        "--timeout", parser=parse_duration, metavar="DURATION", help="How long to wait for you at GitHub, each time.",
        rich_help_panel=_APP_PANEL,
    ),
]  # fmt: skip
AppIdOption = Annotated[
    str | None,
    typer.Option(
        "--app-id",
        metavar="ID",
        help="Id of the App; nothing is created then.",
        rich_help_panel=_OWN_APP_PANEL,
    ),
]
KeyFileOption = Annotated[
    Path | None,
    typer.Option(
        "--private-key", metavar="FILE", help="Its private key; it is copied.", rich_help_panel=_OWN_APP_PANEL
    ),
]
SecretFileOption = Annotated[
    Path | None,
    typer.Option(
        "--webhook-secret", metavar="FILE", help="A file with its webhook secret; it is copied.",
        rich_help_panel=_OWN_APP_PANEL,
    ),
]  # fmt: skip
ReplaceOption = Annotated[
    bool, typer.Option("--replace", help="Begin anew; the files of an earlier set-up are kept aside.")
]
