"""Where `crcr init` writes: the top of the checkout, because GitHub reads workflows nowhere else; and what git knows of it.

Asks git and changes nothing. Where git knows nothing, the folder is taken as it is, with a warning.
"""

import subprocess
from dataclasses import dataclass
from pathlib import Path

import typer

from crcr.cli.printing import say, warn
from crcr.decide.model import RepoName, is_repo_name

_GIT_PATIENCE_S = 10
_USUAL_BRANCHES = ("main", "master")


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
    return Here(folder, _origin(folder), branch, known)


def _top(given: Path | None) -> Path:
    folder = given or Path()
    if not folder.is_dir():
        raise typer.BadParameter(f"{folder} is not a folder", param_hint="--folder")
    top = _git(folder, "rev-parse", "--show-toplevel")
    if not top:
        warn("git knows no repository here; GitHub reads workflows only at the top of one")
        return folder
    if Path(top).resolve() == folder.resolve():
        return folder
    if given is not None:
        raise typer.BadParameter(
            f"{given} is inside a repository, and GitHub reads workflows only at its top: say --folder {top}",
            param_hint="--folder",
        )
    say(f"this is inside a repository: the files go to its top, {top}")
    return Path(top)


def _origin(folder: Path) -> RepoName | None:
    """Return the name that the remote `origin` has: the last two parts of its address."""
    address = _git(folder, "remote", "get-url", "origin").removesuffix("/").removesuffix(".git")
    name = "/".join(address.replace(":", "/").split("/")[-2:])
    return RepoName(name) if is_repo_name(name) else None


def _branch(folder: Path) -> tuple[str, bool]:
    """Return the default branch, and whether that is known: only a clone has origin's own word."""
    if told := _git(folder, "symbolic-ref", "--short", "refs/remotes/origin/HEAD").removeprefix("origin/"):
        return told, True
    for usual in _USUAL_BRANCHES:
        if _git(folder, "rev-parse", "--verify", "--quiet", f"refs/remotes/origin/{usual}"):
            return usual, False
    return _git(folder, "symbolic-ref", "--short", "HEAD") or "main", False


def _git(folder: Path, *words: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603  # our own words
            ["git", "-C", str(folder), *words],  # noqa: S607  # the person's own git
            capture_output=True, text=True, check=False, timeout=_GIT_PATIENCE_S,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
