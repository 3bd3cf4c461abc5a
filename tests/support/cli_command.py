"""A command of `crcr` run inside the test's process: its exit code, output and errors, without the start of an interpreter."""

import os
from collections.abc import Mapping
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path

from typer.testing import CliRunner

from crcr.cli.main import app
from support.data.operator_database import restore_logging


@dataclass(frozen=True)
class CommandResult:
    code: int
    out: str
    errors: str


def run_in_process(*words: str, folder: Path, environ: Mapping[str, str]) -> CommandResult:
    """Run a command in `folder` with no settings of the relay but these; an exception that it raises fails the test."""
    unset = {name: None for name in os.environ if name.startswith(("CRCR_", "COLUMNS"))}
    with chdir(folder), restore_logging():
        result = CliRunner().invoke(app, words, env={**unset, **environ})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise AssertionError(f"crcr {' '.join(words)} failed") from result.exception
    return CommandResult(result.exit_code, result.stdout, result.stderr)
