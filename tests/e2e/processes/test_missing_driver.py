"""A package that is not installed gives one clear sentence and an exit code, in every command that needs it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.data.operator_database import relay_environment
from support.process import environment

pytestmark = pytest.mark.slow

HIDE = "import sys; sys.modules.update(dict.fromkeys(sys.argv.pop(1).split(','))); from crcr.__main__ import main; main()"
HIDE_FROM_ALL = """
import json, sys
hidden, commands = json.loads(sys.argv[1])
sys.modules.update(dict.fromkeys(hidden))
from typer.testing import CliRunner
from crcr.cli.main import app
for words, given in commands:
    result = CliRunner().invoke(app, words, env=given)
    unforeseen = None if isinstance(result.exception, SystemExit) else repr(result.exception)
    print(json.dumps([result.exit_code, result.output, unforeseen]))
"""
"""Runs several commands in one process, each with settings of its own; prints their exit codes and outputs."""
POSTGRES = {"CRCR_DATABASE_URL": "postgresql://crcr:hush-hush@127.0.0.1:9/crcr"}
REDIS = {"CRCR_REDIS_URL": "redis://127.0.0.1:9/0"}
CLICKHOUSE = {"CRCR_CLICKHOUSE_URL": "clickhouse://127.0.0.1:9/crcr"}
TRACES = {"CRCR_OTEL_ENDPOINT": "http://127.0.0.1:9"}
# `read_settings` checks for all commands except the doctor; each kind of start is tried with one package.
STARTING = (("serve", "--port", "0"), ("doctor",))
EVERY_KIND = (
    *STARTING,
    ("worker",),
    ("check-config",),
    ("migrate",),
    ("migrate", "--from", "sqlite:///crcr.db"),
    ("effects", "list"),
)


def run(folder: Path, script: str, *words: str, **given: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, *words],
        cwd=folder,
        env=environment(relay_environment(folder, **given)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


Needing = tuple[str, str, tuple[tuple[str, ...], ...], dict[str, str]]
"""A module, its package, the commands that need it, and the settings with which they do."""

GREENLET: Needing = ("greenlet", "greenlet", EVERY_KIND, POSTGRES)
OTHERS: tuple[Needing, ...] = (
    ("asyncpg", "asyncpg", (*STARTING, ("migrate", "--from", "sqlite:///crcr.db")), POSTGRES),
    ("redis", "redis", STARTING, REDIS),
    ("clickhouse_connect", "clickhouse-connect", STARTING, CLICKHOUSE),
    ("chdb", "chdb", STARTING, {"CRCR_CLICKHOUSE_URL": "chdb:///nowhere/history"}),
    ("opentelemetry.sdk", "opentelemetry-sdk", STARTING, TRACES),
)


@pytest.mark.parametrize("needing", [(GREENLET,), OTHERS], ids=["greenlet", "others"])
def test_a_command_names_the_missing_package_and_what_to_install(
    tmp_path: Path, needing: tuple[Needing, ...]
) -> None:
    """When several packages are missing, the one needed by the settings is named. Without greenlet, asyncpg cannot be used."""
    cases = [(package, words, given) for _, package, commands, given in needing for words in commands]
    given_to_all = ([module for module, *_ in needing], [(words, given) for _, words, given in cases])
    done = run(tmp_path, HIDE_FROM_ALL, json.dumps(given_to_all))
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    for (package, words, _), (code, output, unforeseen) in zip(cases, results, strict=True):
        assert (code != 0, unforeseen) == (True, None), words
        lines = [line for line in output.splitlines() if f"needs the package {package}," in line]
        assert (len(lines), "Traceback" in output, "hush-hush" in output) == (1, False, False), (
            words,
            output,
        )
        assert re.search(r"install crcr\[\w+\], or requirements/\w+\.txt", lines[0]), words


def test_a_broken_package_is_reported_in_a_sentence(tmp_path: Path) -> None:
    done = run(tmp_path, HIDE, "alembic.command", "migrate")
    output = done.stdout + done.stderr
    assert (done.returncode, "Traceback" in output) == (1, False), output
    assert "a package that crcr needs cannot be imported" in output


def test_a_process_without_the_package_exits_with_the_same_sentence(tmp_path: Path) -> None:
    done = run(tmp_path, HIDE, "asyncpg", "serve", "--port", "0", **POSTGRES)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
    assert "needs the package asyncpg," in done.stderr
