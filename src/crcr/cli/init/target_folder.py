"""Where `crcr init` writes: the top of the checkout, because GitHub reads workflows nowhere else; and what git knows of it.

Asks git, and through it the remote for its default branch; changes nothing. Where git knows nothing, the folder is taken as it is, with a warning.
"""

from dataclasses import dataclass
from pathlib import Path

import typer

from crcr.cli.git_checkout import default_branch, git, origin_of, remote_branch, top_of
from crcr.cli.printing import say, warn
from crcr.decide.model import RepoName


@dataclass(frozen=True, slots=True)
class Here:
    folder: Path
    repository: RepoName | None
    """As the remote `origin` names it."""
    branch: str
    branch_is_known: bool
    """False when nothing but a guess says that it is the default one."""


def find_here(given: Path | None) -> Here:
    """Return where to write; a folder that was named must be the top, an unnamed one leads there."""
    folder = _top(given)
    branch, known = _branch(folder)
    return Here(folder, origin_of(folder), branch, known)


def _top(given: Path | None) -> Path:
    folder = given or Path()
    if not folder.is_dir():
        raise typer.BadParameter(f"{folder} is not a folder", param_hint="--folder")
    top = top_of(folder)
    if top is None:
        warn("git knows no repository here; GitHub reads workflows only at the top of one")
        return folder
    if top.resolve() == folder.resolve():
        return folder
    if given is not None:
        raise typer.BadParameter(
            f"{given} is inside a repository, and GitHub reads workflows only at its top: say --folder {top}",
            param_hint="--folder",
        )
    say(f"this is inside a repository: the files go to its top, {top}")
    return top


def _branch(folder: Path) -> tuple[str, bool]:
    """Return the default branch, and whether that is known; where no origin says it, it is the one that is checked out."""
    found = remote_branch(folder) or default_branch(folder)
    if found is not None:
        return found.name, found.is_known
    return git(folder, "symbolic-ref", "--short", "HEAD") or "main", False
