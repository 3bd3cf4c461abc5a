"""What git knows of a folder: the checkout's top, the name of `origin`, its default branch.

Asks git and changes nothing; only `ask_remote_default_branch` makes git ask the remote. Where there is no git, or it knows
nothing, the answer is empty.
"""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from crcr.decide.model import RepoName, is_repo_name

_PATIENCE_S = 10
_REMOTE_HEAD = "ref: refs/heads/"
_ASKING_NOBODY = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "true",  # the program of that name, which prints no password
    "SSH_ASKPASS_REQUIRE": "never",
    "GCM_INTERACTIVE": "never",
}
"""A remote that wants a password is one that does not answer."""
_USUAL_BRANCHES = ("main", "master")


@dataclass(frozen=True, slots=True)
class DefaultBranch:
    name: str
    is_known: bool
    """Origin's own word, which only a clone has; otherwise a guess."""


def run_git(folder: Path, *words: str, environ: Mapping[str, str] | None = None) -> str:
    try:
        done = subprocess.run(  # noqa: S603  # our own words
            ["git", "-C", str(folder), *words],  # noqa: S607  # the person's own git
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False,
            timeout=_PATIENCE_S, env={**os.environ, **(environ or {})},
            start_new_session=environ is not None,  # without a terminal ssh cannot ask either
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def find_top_folder(folder: Path) -> Path | None:
    found = run_git(folder, "rev-parse", "--show-toplevel")
    return Path(found) if found else None


def find_origin_name(folder: Path) -> RepoName | None:
    """Return the name that the remote `origin` has: the last two parts of its address."""
    address = run_git(folder, "remote", "get-url", "origin").removesuffix("/").removesuffix(".git")
    name = "/".join(address.replace(":", "/").split("/")[-2:])
    return RepoName(name) if is_repo_name(name) else None


def ask_remote_default_branch(folder: Path) -> DefaultBranch | None:
    """Return the branch that origin's HEAD is, asked of the remote itself.

    What a clone remembers of it (`refs/remotes/origin/HEAD`) stays when the branch is renamed over there.
    """
    for line in run_git(
        folder, "ls-remote", "--symref", "origin", "HEAD", environ=_ASKING_NOBODY
    ).splitlines():
        ref, _, name = line.partition("\t")
        if name == "HEAD" and ref.startswith(_REMOTE_HEAD):
            return DefaultBranch(ref.removeprefix(_REMOTE_HEAD), is_known=True)
    return None


def find_local_default_branch(folder: Path) -> DefaultBranch | None:
    """Return origin's default branch, as far as this checkout knows it."""
    told = run_git(folder, "symbolic-ref", "--quiet", "--short", "refs/remotes/origin/HEAD")
    if told:
        return DefaultBranch(told.removeprefix("origin/"), is_known=True)
    for usual in _USUAL_BRANCHES:
        if run_git(folder, "rev-parse", "--verify", "--quiet", f"refs/remotes/origin/{usual}"):
            return DefaultBranch(usual, is_known=False)
    return None
