"""Help is complete and comes at once."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from crcr import __version__
from crcr.cli.main import app

HEAVY = {
    "fastapi",
    "sqlalchemy",
    "alembic",
    "httpx",
    "uvicorn",
    "pydantic",
    "structlog",
    "yaml",
    "cryptography",
}


def commands(command: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    command = command or get_command(app)
    children = getattr(command, "commands", {})
    for name, child in children.items():
        yield from commands(child, (*path, name))
    if not children:
        yield path, command


ALL = dict(commands())


def test_the_commands_are_these() -> None:
    assert set(map(" ".join, ALL)) == {
        *("serve", "worker", "migrate", "demo", "demo-join", "check-config", "suspend", "pause", "dispatch"),
        "bisect",
        *("reconcile", "init", "doctor", "backup", "status", "failing"),
        *("allowlist check", "allowlist diff", "allowlist refresh", "allowlist show"),
        *("deliveries list", "deliveries show", "deliveries replay", "effects list", "effects retry"),
        "history backfill",
        *("repos list", "repos rebind", "audit list", "admin token"),
    }


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_command_and_option_is_explained_with_examples(path: tuple[str, ...]) -> None:
    command = ALL[path]
    assert command.help
    assert "Examples:" in command.epilog
    assert f"crcr {' '.join(path)}" in command.epilog
    assert [each.name for each in command.params if not each.help] == []
    assert CliRunner().invoke(app, [*path, "--help"]).exit_code == 0


def test_help_imports_nothing_heavy() -> None:
    code = f"import sys, crcr.cli.main; print(sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_version_is_told() -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout.strip() == f"crcr {__version__}"
