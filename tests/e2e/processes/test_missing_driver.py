"""A package that is not installed is one clear sentence and an exit code, in every command that needs it."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.data.operator_database import relay_environment
from support.process import environment

pytestmark = pytest.mark.slow

HIDE = "import sys; sys.modules.update(dict.fromkeys(sys.argv.pop(1).split(','))); from crcr.__main__ import main; main()"
POSTGRES = {"CRCR_DATABASE_URL": "postgresql://crcr:hush-hush@127.0.0.1:9/crcr"}
REDIS = {"CRCR_REDIS_URL": "redis://127.0.0.1:9/0"}
CLICKHOUSE = {"CRCR_CLICKHOUSE_URL": "clickhouse://127.0.0.1:9/crcr"}
TRACES = {"CRCR_OTEL_ENDPOINT": "http://127.0.0.1:9"}
# `read_settings` asks for all commands but the doctor; each kind of start is tried with one package.
STARTING = (("serve", "--port", "0"), ("doctor",))
EVERY_KIND = (
    *STARTING,
    ("worker",),
    ("check-config",),
    ("migrate",),
    ("migrate", "--from", "sqlite:///crcr.db"),
    ("effects", "list"),
)


def run(folder: Path, hidden: str, words: tuple[str, ...], given: dict[str, str]) -> tuple[int, str]:
    """Run a command where a module cannot be imported; return its exit code and all that it printed."""
    environ = environment(relay_environment(folder, **given))
    done = subprocess.run(
        [sys.executable, "-c", HIDE, hidden, *words],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("hidden", "package", "commands", "given"),
    [
        ("greenlet", "greenlet", EVERY_KIND, POSTGRES),
        ("asyncpg", "asyncpg", (*STARTING, ("migrate", "--from", "sqlite:///crcr.db")), POSTGRES),
        ("redis", "redis", STARTING, REDIS),
        ("clickhouse_connect", "clickhouse-connect", STARTING, CLICKHOUSE),
        ("chdb", "chdb", STARTING, {"CRCR_CLICKHOUSE_URL": "chdb:///nowhere/history"}),
        ("opentelemetry.sdk", "opentelemetry-sdk", STARTING, TRACES),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_command_names_the_package_and_what_to_install(
    tmp_path: Path, hidden: str, package: str, commands: tuple[tuple[str, ...], ...], given: dict[str, str]
) -> None:
    for words in commands:
        code, told = run(tmp_path, hidden, words, given)
        assert code != 0, words
        lines = [line for line in told.splitlines() if f"needs the package {package}," in line]
        assert (len(lines), "Traceback" in told, "hush-hush" in told) == (1, False, False), (words, told)
        assert "install requirements/" in lines[0], words


def test_a_package_that_is_there_and_broken_is_a_sentence_too(tmp_path: Path) -> None:
    code, told = run(tmp_path, "alembic.command", ("migrate",), {})
    assert (code, "Traceback" in told) == (1, False), told
    assert "a package that crcr needs cannot be imported" in told
