"""The files that `crcr setup` writes: `crcr.toml`, the App's key and webhook secret, a first allowlist.

Each file is complete or absent, readable by its owner only, and never replaces another unless that was requested; then the
old one stays beside it. What GitHub says only once is written to one file first, so that an interruption loses nothing.
"""

import json
import os
import secrets
import time
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from crcr.cli.setup.new_app import CODE_LIFE_S, GitHubAddresses, NewApp
from crcr.errors import NotPossible

ALLOWLIST = "allowlist.yml"
_STARTING_ALLOWLIST = """\
# The downstreams of {upstream}: which repositories are notified, and what their results mean.
# Levels: docs/upstream.md#levels; every key: docs/protocol.md#allowlist. Check it with `crcr allowlist check {name}`.
# An example of an entry, which takes the place of []:
#
# L1:
#   - example-org/backend
L1: []
"""


@dataclass(frozen=True, slots=True)
class SetupFiles:
    """Where the files are: beside the settings file."""

    config: Path

    @property
    def folder(self) -> Path:
        return self.config.parent

    @property
    def secrets(self) -> Path:
        return self.folder / "secrets"

    @property
    def private_key(self) -> Path:
        return self.secrets / "app.pem"

    @property
    def webhook_secret(self) -> Path:
        return self.secrets / "webhook"

    @property
    def unfinished(self) -> Path:
        """What GitHub said about an App whose other files are not written yet."""
        return self.secrets / "new-app.json"

    def content(self) -> Mapping[str, Any]:
        """Return the settings file as it is; empty without one."""
        try:
            return tomllib.loads(self.config.read_text("utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as fault:
            raise NotPossible(
                f"{self.config} cannot be read: {fault}", hint="correct it, or pass --replace"
            ) from None

    def existing(self) -> list[Path]:
        return [path for path in (self.config, self.private_key, self.webhook_secret) if path.exists()]


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsContent:
    """What the settings file says, beside the App."""

    upstream: str
    public_url: str
    allowlist: str
    audience: str
    host: str
    port: int
    github: GitHubAddresses


def open_secrets(files: SetupFiles) -> None:
    """Make the folder of the secrets, for its owner only."""
    files.folder.mkdir(parents=True, exist_ok=True)
    files.secrets.mkdir(mode=0o700, exist_ok=True)
    if files.secrets.stat().st_mode & 0o077:
        files.secrets.chmod(0o700)


def set_aside(files: SetupFiles) -> list[Path]:
    """Rename the files of an earlier set-up, so that new ones can be written; return their new names."""
    kept = []
    for path in files.existing():
        number = 1
        while (aside := path.with_name(f"{path.name}.old{number}")).exists():
            number += 1
        path.rename(aside)
        kept.append(aside)
    with suppress(FileNotFoundError):
        files.unfinished.unlink()
    return kept


def write_new(path: Path, text: str) -> None:
    """Write a file that must not exist yet, for its owner only: it appears complete or not at all."""
    _write(path, text, os.link)


def _write(path: Path, text: str, publish: Callable[[Path, Path], object]) -> None:
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        publish(part, path)
    except FileExistsError:
        raise NotPossible(
            f"{path} exists already", hint="pass --replace to keep it aside and write a new one"
        ) from None
    finally:
        part.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A code that is not exchanged yet, or an App whose files are not written yet."""

    code: str | None = field(default=None, repr=False)
    app: NewApp | None = None


def keep_code(files: SetupFiles, code: str, now: float | None = None) -> None:
    _keep(files, {"code": code, "at": time.time() if now is None else now})


def keep_app(files: SetupFiles, app: NewApp) -> None:
    _keep(files, {"app": asdict(app)})


def _keep(files: SetupFiles, content: Mapping[str, Any]) -> None:
    _write(files.unfinished, json.dumps(content), os.replace)


def read_unfinished(files: SetupFiles) -> Unfinished:
    """Return what an interrupted set-up left; a code that is too old counts no more."""
    try:
        match json.loads(files.unfinished.read_text("utf-8")):
            case {"app": dict(app)}:
                return Unfinished(app=NewApp(**app))
            case {"code": str(code), "at": int() | float() as at} if 0 <= time.time() - at < CODE_LIFE_S:
                return Unfinished(code=code)
    except (OSError, ValueError, TypeError):
        pass
    return Unfinished()


def write_settings(files: SetupFiles, app: NewApp, content: SettingsContent) -> list[Path]:
    """Write the App's secrets, then the settings that name them; return what was written."""
    written = []
    for path, text in (
        (files.private_key, app.private_key),
        (files.webhook_secret, f"{app.webhook_secret}\n"),
        (files.config, settings_text(files, app, content)),
    ):
        if path.exists() and path != files.config and path.read_text("utf-8") == text:
            continue  # an interrupted set-up wrote it
        write_new(path, text)
        written.append(path)
    files.unfinished.unlink(missing_ok=True)
    return written


def settings_text(files: SetupFiles, app: NewApp, content: SettingsContent) -> str:
    github = content.github
    app_id = app.app_id if app.app_id.isdigit() else json.dumps(app.app_id)
    lines = [
        "# Written by `crcr setup`. Every setting: docs/configuration.md. A CRCR_* variable overrides the same setting here.",
        "# Relative paths are relative to the folder of this file.",
        "",
        f"public_url = {json.dumps(content.public_url)}",
        'database_url = "sqlite:///crcr.db"',
        f"host = {json.dumps(content.host)}",
        f"port = {content.port}",
        "",
        "[github]",
        f"app_id = {app_id}",
        f"app_private_key_file = {json.dumps(_relative(files, files.private_key))}",
        f"webhook_secret_file = {json.dumps(_relative(files, files.webhook_secret))}",
        *([] if github.is_public else [f"api_url = {json.dumps(github.api)}"]),
        "",
        "[oidc]",
        f"audience = [{json.dumps(content.audience)}]",
    ]
    if github.issuer is not None:
        lines += ["", "[[oidc.issuer]]", f"issuer = {json.dumps(github.issuer)}", 'kind = "github"']
    lines += ["", "[[upstream]]", f"name = {json.dumps(content.upstream)}"]
    lines += [f"allowlist = {json.dumps(content.allowlist)}", ""]
    return "\n".join(lines)


def _relative(files: SetupFiles, path: Path) -> str:
    return path.relative_to(files.folder).as_posix()


def write_allowlist(files: SetupFiles, name: str, upstream: str) -> Path | None:
    """Write a first allowlist, without entries, where a local one is missing; None where there is nothing to do."""
    path = files.folder / name
    if "://" in name or path.exists():
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    write_new(path, _STARTING_ALLOWLIST.format(upstream=upstream, name=path))
    return path


def default_audience(public_url: str) -> str:
    return urlsplit(public_url).netloc
