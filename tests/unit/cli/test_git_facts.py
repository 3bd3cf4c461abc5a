"""Facts that `crcr init` and `crcr doctor` read from git."""

import subprocess
from pathlib import Path

import pytest

from crcr.cli.git_checkout import DefaultBranch, find_local_default_branch, find_origin_name, find_top_folder


def git(folder: Path, *words: str) -> None:
    names = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(("git", *names, *words), cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--initial-branch", "topic", ".")
    return tmp_path


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("https://github.com/Org/back.end", "Org/back.end"),
        ("https://github.com/Org/backend.git/", "Org/backend"),
        ("git@github.com:Org/backend.git", "Org/backend"),
        ("ssh://git@github.com:22/Org/backend.git", "Org/backend"),
        ("https://github.com/", None),
        ("backend", None),
    ],
)
def test_the_repository_name_is_parsed_from_the_url_of_origin(
    repository: Path, address: str, name: str | None
) -> None:
    git(repository, "remote", "add", "origin", address)
    origin_name = find_origin_name(repository)
    assert (str(origin_name) if origin_name else None) == name


def test_a_folder_without_git_has_no_facts(tmp_path: Path) -> None:
    assert (find_top_folder(tmp_path), find_origin_name(tmp_path), find_local_default_branch(tmp_path)) == (
        None,
        None,
        None,
    )


def test_origin_head_takes_precedence_over_a_guessed_default_branch(repository: Path) -> None:
    assert find_local_default_branch(repository) is None
    git(repository, "commit", "--allow-empty", "-m", "first")
    git(repository, "update-ref", "refs/remotes/origin/master", "HEAD")
    assert find_local_default_branch(repository) == DefaultBranch("master", is_known=False)
    git(repository, "update-ref", "refs/remotes/origin/trunk", "HEAD")
    git(repository, "symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/trunk")
    assert find_local_default_branch(repository) == DefaultBranch("trunk", is_known=True)
