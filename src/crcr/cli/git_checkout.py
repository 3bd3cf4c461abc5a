"""Reads a git checkout: its top folder, the repository name of `origin`, its default branch.

Changes nothing; only `ask_remote_default_branch` contacts the remote. Without git, or outside a checkout, results are
empty.
"""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from crcr.decide.model import RepoName, is_repo_name

_TIMEOUT_S = 10
_REMOTE_HEAD = "ref: refs/heads/"
_NO_PROMPTS = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "true",  # the program of that name, which prints no password
    "SSH_ASKPASS_REQUIRE": "never",
    "GCM_INTERACTIVE": "never",
}
"""A remote that asks for a password counts as not answering."""
_COMMON_BRANCHES = ("main", "master")


@dataclass(frozen=True, slots=True)
class DefaultBranch:
    name: str
    is_known: bool
    """Recorded by a clone; otherwise a guess."""


def run_git(folder: Path, *arguments: str, environ: Mapping[str, str] | None = None) -> str:
    try:
        done = subprocess.run(  # noqa: S603  # fixed arguments
            ["git", "-C", str(folder), *arguments],  # noqa: S607  # the user's own git
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False,
            timeout=_TIMEOUT_S, env={**os.environ, **(environ or {})},
            start_new_session=environ is not None,  # without a terminal, ssh cannot prompt either
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def find_top_folder(folder: Path) -> Path | None:
    top = run_git(folder, "rev-parse", "--show-toplevel")
    return Path(top) if top else None


def find_origin_name(folder: Path) -> RepoName | None:
    """Return the repository name of the remote `origin`: the last two parts of its address."""
    address = run_git(folder, "remote", "get-url", "origin").removesuffix("/").removesuffix(".git")
    name = "/".join(address.replace(":", "/").split("/")[-2:])
    return RepoName(name) if is_repo_name(name) else None


def ask_remote_default_branch(folder: Path) -> DefaultBranch | None:
    """Ask the remote for the branch of its HEAD.

    A clone's own record (`refs/remotes/origin/HEAD`) goes stale when the branch is renamed at the remote.
    """
    for line in run_git(folder, "ls-remote", "--symref", "origin", "HEAD", environ=_NO_PROMPTS).splitlines():
        ref, _, name = line.partition("\t")
        if name == "HEAD" and ref.startswith(_REMOTE_HEAD):
            return DefaultBranch(ref.removeprefix(_REMOTE_HEAD), is_known=True)
    return None


def find_local_default_branch(folder: Path) -> DefaultBranch | None:
    """Return origin's default branch as recorded in this checkout."""
    recorded = run_git(folder, "symbolic-ref", "--quiet", "--short", "refs/remotes/origin/HEAD")
    if recorded:
        return DefaultBranch(recorded.removeprefix("origin/"), is_known=True)
    for branch in _COMMON_BRANCHES:
        if run_git(folder, "rev-parse", "--verify", "--quiet", f"refs/remotes/origin/{branch}"):
            return DefaultBranch(branch, is_known=False)
    return None
