"""`crcr migrate --from … --to …`: moves an installation from SQLite to PostgreSQL.

Every user of the machine can see command-line arguments. So `--to` defaults to the database of the settings, and may
leave the password to `PGPASSWORD` or `~/.pgpass`.
"""

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import typer

from crcr.cli.options import read_settings
from crcr.cli.printing import ProgressLine, print_json, print_line, print_warning
from crcr.record.sqlite_to_postgres.copy import CopyProgress, CopyResult, move
from crcr.record.store.database import PostgresLocation
from crcr.settings import PostgresSetting
from crcr.settings.readers import single_values
from crcr.settings.readers.locations import sqlite_file
from crcr.settings.readers.service_urls import ca_file, postgres_url
from crcr.settings.setting import InvalidValue, RawValue
from crcr.wiring.database import database_location

T = TypeVar("T")

_CA = "CRCR_DATABASE_CA"


@dataclass(frozen=True, slots=True)
class MoveTarget:
    location: PostgresLocation
    name: str


def move_database(config: Path | None, source: str | None, target: str | None, *, as_json: bool) -> None:
    path = _parse_source(source)
    to = _read_target(config) if target is None else _parse_target(target)
    began = time.monotonic()
    with ProgressLine(shown=not as_json) as line:
        progress = _MoveProgress(line)
        moved = asyncio.run(move(path, to.location, progress.show))
    took_s = time.monotonic() - began
    if as_json:
        print_json(_as_json(path, to, moved, took_s))
    else:
        _print_result(path, to, moved, took_s)


def _parse_source(written: str | None) -> Path:
    if written is None:
        raise typer.BadParameter("--to needs --from, the SQLite database to move")
    if written.strip().startswith("postgres"):
        raise typer.BadParameter(
            "--from must be sqlite:///path; to move a PostgreSQL database, use pg_dump and pg_restore"
        )
    return _read(sqlite_file, written, "--from").path


def _parse_target(written: str) -> MoveTarget:
    if not written.strip().startswith("postgres"):
        raise typer.BadParameter(
            "--to must be postgresql://user@host/name; to copy a SQLite file, use `crcr backup`"
        )
    setting = _read(_postgres, written, "--to")
    return MoveTarget(PostgresLocation(setting.url.get_secret_value(), ca=_read_ca()), setting.display_name)


def _read_target(config: Path | None) -> MoveTarget:
    settings = read_settings(config)
    location = database_location(settings)
    if not isinstance(location, PostgresLocation):
        raise typer.BadParameter(
            "pass --to postgresql://user@host/name, or set CRCR_DATABASE_URL to it (now a SQLite file)"
        )
    return MoveTarget(location, settings.database.display_name)


def _postgres(raw: RawValue) -> PostgresSetting:
    return PostgresSetting(postgres_url(single_values.text(raw)))


def _read(reader: Callable[[RawValue], T], written: str, option: str) -> T:
    try:
        return reader(RawValue(written, option, Path.cwd()))
    except InvalidValue as wrong:
        raise typer.BadParameter(f"{option} {wrong}") from None


def _read_ca() -> Path | None:
    written = os.environ.get(_CA, "").strip()
    try:
        return ca_file(RawValue(written, _CA, Path.cwd())) if written else None
    except InvalidValue as wrong:
        raise typer.BadParameter(f"{_CA} {wrong}") from None


class _MoveProgress:
    """Progress of the move, with the rate of the current table's copy or check."""

    def __init__(self, line: ProgressLine) -> None:
        self._line = line
        self._phase: tuple[str, bool] | None = None
        self._began = 0.0

    def show(self, at: CopyProgress) -> None:
        phase = (at.table, at.checking)
        if phase != self._phase:
            self._phase, self._began = phase, time.monotonic()
        over = at.checking and at.done == at.rows
        if not at.rows:
            return
        took_s = time.monotonic() - self._began
        rate = f", {at.done / took_s:,.0f} rows/s" if at.done and took_s > 1 else ""
        act = "moved and compared" if over else "comparing" if at.checking else "moving"
        self._line.show(f"{at.table}: {act} {at.done:,} of {at.rows:,} rows{rate}", final=over)


def _print_result(path: Path, to: MoveTarget, moved: CopyResult, took_s: float) -> None:
    filled = sum(1 for table in moved.tables if table.rows)
    print_line(f"{path} → {to.name}: {moved.rows:,} rows of {filled:,} tables in {took_s:.1f} s")
    print_line("verified every table: row counts and checksums agree")
    if moved.replaced:
        names = ", ".join(f"{table.name} {table.replaced:,}" for table in moved.tables if table.replaced)
        print_warning(f"PostgreSQL cannot store NUL in texts; replaced by U+FFFD in: {names}")
    if moved.claimed:
        print_warning(
            f"{moved.claimed:,} effects were running when the relay stopped; they will be retried, marked unsure"
        )
    if moved.left:
        print_warning(f"not moved, because they are not the relay's: {', '.join(moved.left)}")
    print_line(
        "next: set CRCR_DATABASE_URL to the new address for every process, start them, and run `crcr doctor`"
    )
    print_line(f"{path} is unchanged; keep it as long as you may want to go back")


def _as_json(path: Path, to: MoveTarget, moved: CopyResult, took_s: float) -> dict[str, object]:
    return {
        "from": str(path),
        "to": to.name,
        "rows": moved.rows,
        "replaced": moved.replaced,
        "claimed_effects": moved.claimed,
        "left_tables": moved.left,
        "took_s": round(took_s, 3),
        "tables": moved.tables,
    }
