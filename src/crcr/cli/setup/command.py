"""`crcr setup`: from an empty folder to a checked relay, with one command and one click."""

import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer

from crcr.cli.options import RUN_PANEL, JsonOption, examples, parse_repo_name
from crcr.cli.printing import print_error
from crcr.cli.setup import options
from crcr.decide.github.repository_setup import MOST_NAME_CHARACTERS
from crcr.errors import NotPossible

if TYPE_CHECKING:
    from crcr.cli.setup.files import SettingsContent
    from crcr.cli.setup.new_app import GitHubAddresses, NewApp
    from crcr.decide.model import RepoName

T = TypeVar("T")

_INTERRUPTED = 130


def register(app: typer.Typer) -> None:
    app.command(
        rich_help_panel=RUN_PANEL,
        epilog=examples(
            "crcr setup --upstream org/framework --public-url https://relay.example.org",
            "crcr setup -u org/framework --public-url https://relay.example.org --org org --serve",
            "crcr setup --github-url https://github.example.org --no-browser",
        ),
    )(setup)


def setup(
    upstream: options.UpstreamOption = None,
    public_url: options.PublicUrlOption = None,
    config: options.ConfigFileOption = Path("crcr.toml"),
    allowlist: options.AllowlistOption = "allowlist.yml",
    audience: options.AudienceOption = None,
    host: options.HostOption = "127.0.0.1",
    port: options.PortOption = 8000,
    serve: options.ServeOption = False,
    github_url: options.GitHubOption = "https://github.com",
    organization: options.OrganizationOption = None,
    name: options.NameOption = None,
    private_app: options.PrivateOption = False,
    no_browser: options.NoBrowserOption = False,
    redirect_port: options.RedirectPortOption = 0,
    patience: options.TimeoutOption = "15m",  # type: ignore[assignment]  # read by the parser
    app_id: options.AppIdOption = None,
    private_key: options.KeyFileOption = None,
    webhook_secret: options.SecretFileOption = None,
    replace: options.ReplaceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Set up a relay: create its GitHub App, write settings and secrets, install the App, check everything.

    A page on this machine has one button, which creates the App with the right permissions; GitHub asks you to confirm it
    and where to install it. Then the relay runs for a check with `crcr doctor`, whose result is the exit code. Run it
    again after an interruption: what is done already is found and left alone.
    """
    from crcr.cli.setup.files import SetupFiles
    from crcr.cli.setup.steps import SetupRequest, has_settings, run_setup

    files, environ = SetupFiles(config), dict(os.environ)
    content = None
    if replace or not has_settings(files, environ):
        flags = _RelayFlags(upstream, public_url, allowlist, audience, host, port, github_url)
        content = _gather_content(flags, asks=sys.stdin.isatty() and not as_json)
    request = SetupRequest(
        files=files, content=content, requested={"upstream": str(upstream) if upstream else None, "public_url": public_url},
        organization=organization, app_name=name or _default_name(content),
        public_app=not private_app, given_app=_read_given_app(app_id, private_key, webhook_secret),
        redirect_port=redirect_port, opens_browser=not no_browser, timeout_s=patience.total_seconds(),
        replaces=replace, serves=serve, as_json=as_json,
    )  # fmt: skip
    try:
        run_setup(request, environ)
    except KeyboardInterrupt:
        print_error("interrupted", "run the same command again: it continues where it stopped")
        raise typer.Exit(_INTERRUPTED) from None


@dataclass(frozen=True, slots=True)
class _RelayFlags:
    """What the command line says about the relay."""

    upstream: "RepoName | None"
    public_url: str | None
    allowlist: str
    audience: str | None
    host: str
    port: int
    github_url: str


def _gather_content(flags: _RelayFlags, *, asks: bool) -> "SettingsContent":
    from crcr.cli.setup.files import SettingsContent, default_audience
    from crcr.cli.setup.new_app import GitHubAddresses

    github = GitHubAddresses.from_web_url(flags.github_url)
    upstream = flags.upstream or _ask("Upstream (owner/repo)", "--upstream", parse_repo_name, asks=asks)
    address = flags.public_url or _ask(
        "Public address of the relay", "--public-url", options.parse_address, asks=asks
    )
    _require_reachable(address, github)
    return SettingsContent(
        upstream=str(upstream),
        public_url=address,
        allowlist=flags.allowlist,
        audience=flags.audience or default_audience(address),
        host=flags.host,
        port=flags.port,
        github=github,
    )


def _ask(question: str, option: str, read: Callable[[str], T], *, asks: bool) -> T:
    if not asks:
        raise typer.BadParameter(f"{option} is missing")
    answer: T = typer.prompt(question, value_proc=lambda text: read(text.strip()))
    return answer


def _require_reachable(address: str, github: "GitHubAddresses") -> None:
    from crcr.cli.http_client import is_on_this_machine  # loads the HTTP client

    if is_on_this_machine(address) and not is_on_this_machine(github.web):
        raise NotPossible(
            f"GitHub cannot reach {address}: it is this machine's own address",
            hint="pass the address that a reverse proxy or a tunnel will forward to the relay",
        )


def _default_name(content: "SettingsContent | None") -> str:
    words = re.sub(r"[^A-Za-z0-9]+", "-", f"crcr-{content.upstream if content else 'relay'}")
    return words[:MOST_NAME_CHARACTERS].strip("-")


def _read_given_app(app_id: str | None, key: Path | None, secret: Path | None) -> "NewApp | None":
    from crcr.cli.setup.new_app import NewApp

    if app_id is None and key is None and secret is None:
        return None
    if app_id is None or key is None or secret is None:
        raise typer.BadParameter(
            "--app-id, --private-key and --webhook-secret belong together: pass all three"
        )
    try:
        texts = [path.read_text("utf-8") for path in (key, secret)]
    except (OSError, ValueError) as fault:
        raise NotPossible(f"the App's key or secret cannot be read: {fault}") from None
    if not texts[0].startswith("-----BEGIN ") or not texts[1].strip():
        raise NotPossible(
            f"{key} holds no PEM key, or {secret} nothing", hint="pass the files that GitHub gave you"
        )
    return NewApp(app_id=app_id.strip(), private_key=texts[0], webhook_secret=texts[1].strip())
