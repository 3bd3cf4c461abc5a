"""Options that many commands share, the settings they lead to, and parsers of repository names, durations and times.

Without heavy imports, so that `--help` is fast.
"""

import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crcr.decide.model import RepoName, is_repo_name

if TYPE_CHECKING:
    from crcr.settings import Settings

RUN_PANEL = "Run"
OPERATE_PANEL = "Operate"
"""The two panels of `crcr --help`."""

_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)\s?([smhd]?)", re.ASCII)
_UNIT_S = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def read_settings(config: Path | None) -> "Settings":
    """Read the settings of this process; raise `BadSettings` with every problem and missing package."""
    from crcr.settings import load_settings
    from crcr.wiring.drivers import require_drivers

    settings = load_settings(config=config, environ=os.environ, cwd=Path.cwd())
    require_drivers(settings)
    return settings


def parse_repo_name(text: str) -> RepoName:
    if not is_repo_name(text):
        raise typer.BadParameter(f"{text!r} is not owner/repo")
    return RepoName(text)


def parse_duration(text: str) -> timedelta:
    match = _DURATION.fullmatch(text.strip())
    length = timedelta(seconds=float(match[1]) * _UNIT_S[match[2]]) if match else timedelta()
    if not length:
        raise typer.BadParameter(f"{text!r} is not a duration such as 30s, 15m, 6h or 2d")
    return length


def parse_time(text: str) -> datetime:
    """Parse a time or an age; a time without a zone is UTC."""
    if _DURATION.fullmatch(text.strip()):
        return datetime.now(UTC) - parse_duration(text)
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not a time such as 2026-08-03T09:00 or an age such as 2h"
        ) from None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def examples(*lines: str) -> str:
    """Return an epilog for a command's help."""
    return "\n".join(("Examples:", *(f"  {line}" for line in lines)))


ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", metavar="FILE", help="TOML file with settings. Default: crcr.toml, if it exists."
    ),
]
UpstreamOption = Annotated[
    RepoName | None,
    typer.Option(
        "--upstream",
        "-u",
        metavar="OWNER/REPO",
        parser=parse_repo_name,
        help="The upstream, if there are several.",
    ),
]
PublicRelayOption = Annotated[
    str | None,
    typer.Option(
        "--relay",
        metavar="URL",
        help="The address of a relay: read its public API, without settings, database or token.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON only, for scripts.")]
LimitOption = Annotated[
    int, typer.Option("--limit", "-n", min=1, max=10_000, help="Maximum number of rows, newest first.")
]
ReasonOption = Annotated[
    str | None, typer.Option("--reason", help="Reason, for the audit log.", show_default=False)
]
RepoArgument = Annotated[
    RepoName, typer.Argument(metavar="OWNER/REPO", parser=parse_repo_name, help="The downstream repository.")
]
