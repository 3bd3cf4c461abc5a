"""Help is complete and imports nothing heavy."""

import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
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


def list_commands(command: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    command = command or get_command(app)
    children = getattr(command, "commands", {})
    for name, child in children.items():
        yield from list_commands(child, (*path, name))
    if not children or getattr(command, "invoke_without_command", False):
        yield path, command


ALL = dict(list_commands())


def test_the_list_of_commands_is_complete() -> None:
    assert set(map(" ".join, ALL)) == {
        *("setup", "serve", "worker", "migrate", "demo", "demo-join", "check-config"),
        *("suspend", "pause", "resume", "dispatch", "bisect"),
        *("reconcile", "init", "doctor", "backup", "status", "pr", "failing"),
        *("allowlist check", "allowlist diff", "allowlist refresh", "allowlist show"),
        *("deliveries list", "deliveries show", "deliveries replay", "effects list", "effects retry"),
        *("history backfill", "import dynamodb", "import clickhouse", "import files"),
        *("notices test", "notices list"),
        *("levels", "levels propose", "levels override", "shadow compare"),
        *("repos list", "repos rebind", "audit list", "admin token"),
    }


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_command_and_option_is_explained_with_examples(path: tuple[str, ...]) -> None:
    command = ALL[path]
    assert command.help
    assert "Examples:" in command.epilog
    assert f"crcr {' '.join(path)}" in command.epilog
    assert [parameter.name for parameter in command.params if not parameter.help] == []
    assert CliRunner().invoke(app, [*path, "--help"]).exit_code == 0


RUNS_ON = {"serve", "worker", "demo"}
"""Commands that run until they are stopped."""
PYTHON_WORDS = re.compile(
    r"<\w+|(?<!/)\b(TEXT|PATH|INTEGER|FLOAT|BOOLEAN|RANGE|STR|INT|BOOL|DIRECTORY|CHOICE)\b|x[<>]="
)


@pytest.mark.parametrize("path", [(), *ALL], ids=" ".join)
def test_help_has_no_python_type_names_and_wraps_without_truncation(path: tuple[str, ...]) -> None:
    text = CliRunner().invoke(app, [*path, "--help"]).stdout
    assert PYTHON_WORDS.findall(text) == []
    body, _, _ = text.partition("Examples:")
    assert [line for line in body.splitlines() if len(line) > 100 and " " in line.strip()] == []
    assert "…" not in body
    # A line that ends early, with a word that would have fitted from the next one, was broken by the source.
    prose = body.partition("\n\n")[2].partition("Options:")[0].split("\n\n")
    for paragraph in (part for part in prose if not part.endswith(":") and "  " not in part):
        lines = paragraph.strip().splitlines()
        assert all(len(f"{line} {next_line.split()[0]}") > 100 for line, next_line in pairwise(lines)), (
            paragraph
        )


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_command_that_ends_has_a_json_option(path: tuple[str, ...]) -> None:
    has_json = any("--json" in parameter.opts for parameter in ALL[path].params)
    assert has_json is (" ".join(path) not in RUNS_ON)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nothing",), "error: no such command 'nothing'\nhint: see crcr --help\n"),
        (("suspend",), "error: OWNER/REPO is missing\nhint: see crcr suspend --help\n"),
        (("suspend", "x"), "error: OWNER/REPO: 'x' is not owner/repo\nhint: see crcr suspend --help\n"),
        (
            ("serve", "--port", "x"),
            "error: --port must be a whole number from 0 to 65535\nhint: see crcr serve --help\n",
        ),
        (
            ("serve", "--role", "x"),
            "error: --role: 'x' is not one of 'all', 'intake', 'hud'\nhint: see crcr serve --help\n",
        ),
        (
            ("status", "--jso"),
            "error: no such option: --jso\nhint: did you mean --json? see crcr status --help\n",
        ),
        (
            ("status", "--relay", "ftp://x"),
            (
                "error: 'ftp://x' is not the address of a relay, such as https://crcr.example.com\n"
                "hint: see crcr status --help\n"
            ),
        ),
    ],
)
def test_wrong_usage_prints_an_error_and_a_hint(words: tuple[str, ...], message: str) -> None:
    result = CliRunner().invoke(app, words)
    assert (result.exit_code, result.stderr, result.stdout) == (2, message, "")


def test_help_imports_nothing_heavy() -> None:
    code = f"import sys, crcr.cli.main; print(sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_version_is_printed() -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout.strip() == f"crcr {__version__}"
