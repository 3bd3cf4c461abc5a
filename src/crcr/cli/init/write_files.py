"""Files put into a folder: what is there already is compared, shown as a diff and overwritten only when that is wanted.

All of them are written beside their places first and then renamed, so a file is there whole or as it was before.
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
_MOST_SHOWN = 400
_READABLE = 0o644


@dataclass(frozen=True, slots=True)
class PlannedFile:
    file: NewFile
    path: Path
    before: str | None
    """None when there is nothing yet."""

    @property
    def changes(self) -> bool:
        return self.before != self.file.text


def write_files(files: Sequence[NewFile], folder: Path, *, dry_run: bool, ask: bool, force: bool) -> None:
    """Write what is new or different; exit with 1 if a file that is different must stay."""
    places = [_place(each, folder) for each in files]
    changing = [each for each in places if each.changes]
    for each in places:
        if not each.changes:
            print_line(f"unchanged  {each.file.path}")
    if dry_run:
        for each in changing:
            print_line(f"would write  {each.file.path}: {each.file.why}")
            _show(each)
        return
    _agree([each for each in changing if each.before is not None], ask=ask, force=force)
    _write(changing)
    for each in changing:
        print_line(
            f"{'written  ' if each.before is None else 'changed  '}  {each.file.path}: {each.file.why}"
        )


def _place(file: NewFile, folder: Path) -> PlannedFile:
    root, path = folder.resolve(), folder / file.path
    if not folder.is_dir():
        raise typer.BadParameter(f"{folder} is not a folder", param_hint="--folder")
    if not path.resolve().is_relative_to(root):
        print_error(f"{file.path} leads out of {folder}", "a link is in the way: remove it")
        raise typer.Exit(1)
    try:
        return PlannedFile(file, path, path.read_bytes().decode(errors="replace"))
    except FileNotFoundError:
        return PlannedFile(file, path, None)
    except OSError as fault:
        print_error(f"{file.path} cannot be read: {fault.strerror}")
        raise typer.Exit(1) from None


def _agree(different: list[PlannedFile], *, ask: bool, force: bool) -> None:
    if force or not different:
        return
    can_ask = ask and sys.stdin.isatty() and sys.stdout.isatty()
    for each in different:
        print_line(f"{each.file.path} is different:")
        _show(each)
        if not can_ask:
            continue
        if not typer.confirm(f"overwrite {each.file.path}?", default=False):
            print_line("nothing was written")
            raise typer.Exit(1)
    if not can_ask:
        names = ", ".join(each.file.path for each in different)
        print_error(f"not overwritten: {names}; nothing was written", "look at the diff, then use --force")
        raise typer.Exit(1)


def _show(place: PlannedFile) -> None:
    name = place.file.path
    if place.before is None and name in (REPORTER, BRIDGE):
        return  # a program that is the same for everybody
    before = [] if place.before is None else place.before.splitlines()
    lines = list(
        difflib.unified_diff(before, place.file.text.splitlines(), f"a/{name}", f"b/{name}", lineterm="")
    )
    out = console()
    for line in lines[:_MOST_SHOWN]:
        out.print(Text(escape_unprintable(line), _STYLES.get(line[:1], "")), soft_wrap=True)
    if len(lines) > _MOST_SHOWN:
        print_line(f"… and {len(lines) - _MOST_SHOWN} lines more")


def _write(places: Sequence[PlannedFile]) -> None:
    ready: list[tuple[str, Path]] = []
    try:
        for each in places:
            each.path.parent.mkdir(parents=True, exist_ok=True)
            ready.append((_beside(each), each.path))
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


def _beside(place: PlannedFile) -> str:
    """Write the text next to its place, under a name that nobody looks for."""
    handle, name = tempfile.mkstemp(dir=place.path.parent, prefix=".crcr-init-")
    with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
        file.write(place.file.text)
        os.fchmod(file.fileno(), _READABLE)
    return name


@dataclass(frozen=True, slots=True)
class TargetFolder:
    folder: Path
    repository: RepoName | None
    """As the remote `origin` names it."""
    branch: str
    branch_is_known: bool
    """False when nothing but a guess says that it is the default one."""


def find_target_folder(given: Path | None) -> TargetFolder:
    """Return where to write; a folder that was named must be the top, an unnamed one leads there."""
    folder = _top(given)
    branch, known = _branch(folder)
    return TargetFolder(folder, find_origin_name(folder), branch, known)


def _top(given: Path | None) -> Path:
    folder = given or Path()
    if not folder.is_dir():
        raise typer.BadParameter(f"{folder} is not a folder", param_hint="--folder")
    top = find_top_folder(folder)
    if top is None:
        print_warning("git knows no repository here; GitHub reads workflows only at the top of one")
        return folder
    if top.resolve() == folder.resolve():
        return folder
    if given is not None:
        raise typer.BadParameter(
            f"{given} is inside a repository, and GitHub reads workflows only at its top: say --folder {top}",
            param_hint="--folder",
        )
    print_line(f"this is inside a repository: the files go to its top, {top}")
    return top


def _branch(folder: Path) -> tuple[str, bool]:
    """Return the default branch, and whether that is known; where no origin says it, it is the one that is checked out."""
    found = ask_remote_default_branch(folder) or find_local_default_branch(folder)
    if found is not None:
        return found.name, found.is_known
    return run_git(folder, "symbolic-ref", "--short", "HEAD") or "main", False
