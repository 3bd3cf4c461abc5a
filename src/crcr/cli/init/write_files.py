"""Finds the target folder of `crcr init`, and writes the files there.

GitHub reads workflows only at the top of a repository, so that is the target. Existing files are compared, and
overwritten only after a diff and a confirmation. Files are written under temporary names and then renamed, so that each
is complete or unchanged.
"""

import difflib
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.text import Text

from crcr.cli.git_checkout import (
    ask_remote_default_branch,
    find_local_default_branch,
    find_origin_name,
    find_top_folder,
    run_git,
)
from crcr.cli.printing import console, escape_unprintable, print_error, print_line, print_warning
from crcr.decide.model import RepoName
from crcr.join.files import BRIDGE, REPORTER, NewFile

_STYLES = {"+": "green", "-": "red", "@": "cyan"}
_MAX_DIFF_LINES = 400
_READABLE = 0o644


@dataclass(frozen=True, slots=True)
class PlannedFile:
    file: NewFile
    path: Path
    before: str | None
    """None for a new file."""

    @property
    def changes(self) -> bool:
        return self.before != self.file.text

    def describe(self) -> dict[str, str]:
        change = "unchanged" if not self.changes else "written" if self.before is None else "changed"
        return {"path": self.file.path, "change": change, "why": self.file.why}


def write_files(
    files: Sequence[NewFile], folder: Path, *, dry_run: bool, ask: bool, force: bool
) -> list[PlannedFile]:
    """Write new and changed files; exit with 1 when a changed file may not be overwritten."""
    plan = [_plan_file(file, folder) for file in files]
    changing = [planned for planned in plan if planned.changes]
    for planned in plan:
        if not planned.changes:
            print_line(f"unchanged  {planned.file.path}")
    if dry_run:
        for planned in changing:
            print_line(f"would write  {planned.file.path}: {planned.file.why}")
            _show(planned)
        return plan
    _confirm([planned for planned in changing if planned.before is not None], ask=ask, force=force)
    _write(changing)
    for planned in changing:
        print_line(
            f"{'written  ' if planned.before is None else 'changed  '}  {planned.file.path}: {planned.file.why}"
        )
    return plan


def _plan_file(file: NewFile, folder: Path) -> PlannedFile:
    root, path = folder.resolve(), folder / file.path
    if not folder.is_dir():
        raise typer.BadParameter(f"{folder} is not a folder", param_hint="--folder")
    if not path.resolve().is_relative_to(root):
        print_error(f"{file.path} is outside {folder}", "remove the symbolic link")
        raise typer.Exit(1)
    try:
        return PlannedFile(file, path, path.read_bytes().decode(errors="replace"))
    except FileNotFoundError:
        return PlannedFile(file, path, None)
    except OSError as fault:
        print_error(f"{file.path} cannot be read: {fault.strerror}")
        raise typer.Exit(1) from None


def _confirm(changed: list[PlannedFile], *, ask: bool, force: bool) -> None:
    if force or not changed:
        return
    can_ask = ask and sys.stdin.isatty() and sys.stdout.isatty()
    for planned in changed:
        print_line(f"{planned.file.path} has changed:")
        _show(planned)
        if not can_ask:
            continue
        if not typer.confirm(f"overwrite {planned.file.path}?", default=False):
            print_line("nothing was written")
            raise typer.Exit(1)
    if not can_ask:
        names = ", ".join(planned.file.path for planned in changed)
        print_error(f"not overwritten: {names}; nothing was written", "check the diff, then pass --force")
        raise typer.Exit(1)


def _show(planned: PlannedFile) -> None:
    name = planned.file.path
    if planned.before is None and name in (REPORTER, BRIDGE):
        return  # the same program everywhere: no diff
    before = [] if planned.before is None else planned.before.splitlines()
    lines = list(
        difflib.unified_diff(before, planned.file.text.splitlines(), f"a/{name}", f"b/{name}", lineterm="")
    )
    out = console()
    for line in lines[:_MAX_DIFF_LINES]:
        out.print(Text(escape_unprintable(line), _STYLES.get(line[:1], "")), soft_wrap=True)
    if len(lines) > _MAX_DIFF_LINES:
        print_line(f"… and {len(lines) - _MAX_DIFF_LINES:,} more lines")


def _write(plan: Sequence[PlannedFile]) -> None:
    ready: list[tuple[str, Path]] = []
    try:
        for planned in plan:
            planned.path.parent.mkdir(parents=True, exist_ok=True)
            ready.append((_write_temporary(planned), planned.path))
        while ready:
            temporary, path = ready[0]
            Path(temporary).replace(path)
            ready.pop(0)
    except OSError as fault:
        print_error(f"{fault.filename or 'a file'} cannot be written: {fault.strerror}")
        raise typer.Exit(1) from None
    finally:
        for temporary, _ in ready:
            Path(temporary).unlink(missing_ok=True)


def _write_temporary(planned: PlannedFile) -> str:
    """Write the text to a temporary file in the same folder."""
    handle, name = tempfile.mkstemp(dir=planned.path.parent, prefix=".crcr-init-")
    with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
        file.write(planned.file.text)
        os.fchmod(file.fileno(), _READABLE)
    return name


@dataclass(frozen=True, slots=True)
class TargetFolder:
    folder: Path
    repository: RepoName | None
    """From the remote `origin`."""
    branch: str
    branch_is_known: bool
    """False when it is a guess."""


def find_target_folder(chosen: Path | None) -> TargetFolder:
    """Return where to write: the given folder, which must be a top, or the current repository's top."""
    folder = _find_top(chosen)
    branch, is_known = _find_branch(folder)
    return TargetFolder(folder, find_origin_name(folder), branch, is_known)


def _find_top(chosen: Path | None) -> Path:
    folder = chosen or Path()
    if not folder.is_dir():
        raise typer.BadParameter(f"{folder} is not a folder", param_hint="--folder")
    top = find_top_folder(folder)
    if top is None:
        print_warning("not a git repository; GitHub reads workflows only at the top of one")
        return folder
    if top.resolve() == folder.resolve():
        return folder
    if chosen is not None:
        raise typer.BadParameter(
            f"{chosen} is inside a repository, but GitHub reads workflows only at its top: pass --folder {top}",
            param_hint="--folder",
        )
    print_line(f"writing to the top of the repository, {top}")
    return top


def _find_branch(folder: Path) -> tuple[str, bool]:
    """Return the default branch, and whether it is known; without origin, the branch checked out."""
    default_branch = ask_remote_default_branch(folder) or find_local_default_branch(folder)
    if default_branch is not None:
        return default_branch.name, default_branch.is_known
    return run_git(folder, "symbolic-ref", "--short", "HEAD") or "main", False
