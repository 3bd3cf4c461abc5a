"""Where `crcr init` writes: the top of the checkout, because GitHub reads workflows nowhere else; and what git knows of it.

Asks git, and through it the remote for its default branch; changes nothing. Where git knows nothing, the folder is taken as it is, with a warning.
"""

from dataclasses import dataclass
from pathlib import Path

import typer

from crcr.cli.git_checkout import (
    ask_remote_default_branch,
    find_local_default_branch,
    find_origin_name,
    find_top_folder,
    run_git,
)
from crcr.cli.printing import print_line, print_warning
from crcr.decide.model import RepoName


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
