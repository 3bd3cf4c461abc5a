"""Where `crcr init` writes, what it reads from git, and the next steps that it prints for existing files."""

from pathlib import Path

import pytest

from support.downstream.init_command import (
    FLAGS,
    WORKFLOW,
    checkout,
    git,
    plain_text,
    run_init,
    run_init_in,
    written_files,
)

BRIDGE = ".github/workflows/crcr-bridge.yml"
BUILDKITE = ("--ci", "buildkite", "--place", "organization=acme", "--place", "pipeline=crcr")


def next_steps(out: str) -> list[str]:
    return [line.partition(". ")[2] for line in out.splitlines() if line[:1].isdigit()]


def test_in_a_subfolder_it_writes_at_the_top_and_prints_the_path(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = repository / "sub" / "deep"
    deep.mkdir(parents=True)
    monkeypatch.chdir(deep)
    code, out = run_init(*FLAGS)
    assert code == 0
    assert f"writing to the top of the repository, {repository.resolve()}" in out
    assert (repository / WORKFLOW).is_file()
    assert list(deep.iterdir()) == []


def test_the_option_folder_below_the_top_is_refused(repository: Path) -> None:
    deep = repository / "sub"
    deep.mkdir()
    code, out = run_init_in(deep, *FLAGS)
    assert code == 2
    assert "only at its top" in plain_text(out)
    assert "--folder" in out
    assert written_files(repository) == {}


def test_outside_a_repository_it_writes_with_a_warning(tmp_path: Path) -> None:
    code, out = run_init_in(tmp_path, *FLAGS, "--repo", "org/backend")
    assert code == 0
    assert "not a git repository" in out
    assert "assumed to be main" in out
    assert (tmp_path / WORKFLOW).is_file()


def test_a_missing_folder_is_reported(tmp_path: Path) -> None:
    code, out = run_init_in(tmp_path / "nowhere", *FLAGS)
    assert (code, "is not a folder" in plain_text(out)) == (2, True)


def test_a_fresh_repository_uses_its_current_branch_and_says_that_it_is_assumed(tmp_path: Path) -> None:
    folder = checkout(tmp_path / "fresh", branch="trunk")
    code, out = run_init_in(folder, *FLAGS, *BUILDKITE)
    assert code == 0
    assert "commit the files to your default branch, assumed to be trunk because" in out
    assert "the remote `origin` did not answer" in out
    assert 'CRCR_BRIDGE_BRANCH: "trunk"' in written_files(folder)[BRIDGE]


def test_the_default_branch_of_a_clone_is_known(tmp_path: Path, repository: Path) -> None:
    author = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    git(repository, *author, "commit", "-q", "--allow-empty", "--message", "first")
    git(repository, "branch", "-q", "--move", "trunk")
    git(tmp_path, "clone", "-q", str(repository), "clone")
    git(tmp_path / "clone", "switch", "-q", "--create", "topic")
    _, out = run_init_in(tmp_path / "clone", *FLAGS, "--repo", "org/backend")
    assert "commit the files to trunk, your default branch" in out


def test_the_default_branch_is_the_remotes_head_and_not_a_stale_local_value(
    tmp_path: Path, repository: Path
) -> None:
    author = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    git(repository, *author, "commit", "-q", "--allow-empty", "--message", "first")
    git(repository, "branch", "-q", "--move", "master")
    git(tmp_path, "clone", "-q", str(repository), "clone")
    git(repository, "branch", "-q", "--move", "trunk")
    fresh = checkout(tmp_path / "fresh", branch="master")
    git(fresh, "remote", "set-url", "origin", str(repository))
    for folder in (tmp_path / "clone", fresh):
        _, out = run_init_in(folder, *FLAGS, "--repo", "org/backend")
        assert "commit the files to trunk, your default branch" in out


def test_an_assumed_branch_is_still_marked_as_assumed_in_a_second_run(repository: Path) -> None:
    run_init_in(repository, *FLAGS, *BUILDKITE, "--branch", "dev")
    assert "assumed to be dev" in run_init_in(repository, *FLAGS)[1]


def test_a_branch_given_as_an_option_is_not_marked_as_assumed(repository: Path) -> None:
    assert (
        "commit the files to dev, your default branch"
        in run_init_in(repository, *FLAGS, "--branch", "dev")[1]
    )


def test_a_missing_build_program_is_the_first_next_step(repository: Path) -> None:
    program = repository / "ci" / "build-and-test"
    assert next_steps(run_init_in(repository, *FLAGS)[1])[0].startswith(
        "write ./ci/build-and-test: the build command does not exist yet"
    )
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    assert next_steps(run_init_in(repository, *FLAGS)[1])[0].startswith(
        "make ./ci/build-and-test executable: chmod"
    )
    program.chmod(0o755)
    assert next_steps(run_init_in(repository, *FLAGS)[1])[0].startswith("commit")


@pytest.mark.parametrize(
    "command",
    ["make test", "/usr/bin/make", "bash ci/none", "../x/none", "$HOME/none", "~/none", "none", "cd a && ./none", "'"],
)  # fmt: skip
def test_other_commands_add_no_next_step(repository: Path, command: str) -> None:
    assert next_steps(run_init_in(repository, *FLAGS, "--command", command)[1])[0].startswith("commit")


@pytest.mark.parametrize("command", ["ci/none", "A=1 B=2 ./ci/none --fast", "./ci/none;true", "'./ci/none'"])
def test_a_program_of_the_repository_is_recognized_in_a_command(repository: Path, command: str) -> None:
    first = next_steps(run_init_in(repository, *FLAGS, "--command", command)[1])[0]
    assert first.startswith(("write ci/none:", "write ./ci/none:"))


def test_after_a_change_of_the_ci_the_leftover_files_are_listed_and_kept(repository: Path) -> None:
    run_init_in(repository, *FLAGS)
    code, out = run_init_in(repository, *FLAGS, *BUILDKITE)
    assert code == 0
    assert "remove the files of an earlier `crcr init`" in out
    assert f"     - {WORKFLOW}\n" in out
    assert WORKFLOW in written_files(repository)
    (repository / WORKFLOW).unlink()
    _, out = run_init_in(repository, *FLAGS, "--ci", "github")
    for path in (BRIDGE, ".buildkite/crcr.yml", ".crcr/bridge.py"):
        assert f"     - {path}\n" in out


def test_a_users_own_workflow_is_not_listed_as_leftover(repository: Path) -> None:
    (repository / BRIDGE).parent.mkdir(parents=True)
    (repository / BRIDGE).write_text("name: mine\n")
    assert "remove the files" not in run_init_in(repository, *FLAGS)[1]


def test_a_disabled_nightly_workflow_is_listed_as_leftover(repository: Path) -> None:
    run_init_in(repository, *FLAGS, "--nightly")
    assert "- .github/workflows/crcr-nightly.yml" in run_init_in(repository, *FLAGS, "--no-nightly")[1]
