"""`crcr init` in a repository: what it writes, keeps and refuses, and the next steps that it prints."""

from pathlib import Path

import pytest

from crcr.join.files import generate
from support.downstream.init_command import (
    FLAGS,
    LOCAL_RELAY,
    REPORTER,
    UNREACHABLE_RELAY,
    WORKFLOW,
    plain_text,
    run_init_in,
    written_files,
)
from support.downstream.join_requests import join_request


def test_it_writes_the_generated_files_and_prints_the_next_steps(repository: Path, relay_url: str) -> None:
    code, out = run_init_in(repository, "--relay", relay_url)
    assert code == 0
    assert written_files(repository) == {
        each.path: each.text for each in generate(join_request(relay_url=LOCAL_RELAY))
    }
    for words in (
        f"written    {WORKFLOW}",
        "https://github.com/apps/crcr",
        "- org/backend",
        f"crcr doctor --relay {LOCAL_RELAY} --repo org/backend",
    ):
        assert words in out


def test_a_second_run_changes_no_file(repository: Path) -> None:
    run_init_in(repository, *FLAGS)
    before = {path: (repository / path).stat().st_mtime_ns for path in written_files(repository)}
    code, out = run_init_in(repository, *FLAGS)
    assert code == 0
    assert "written" not in out
    assert f"unchanged  {WORKFLOW}" in out
    assert {path: (repository / path).stat().st_mtime_ns for path in written_files(repository)} == before


def test_edited_files_are_shown_as_a_diff_and_kept_without_force(repository: Path) -> None:
    run_init_in(repository, *FLAGS)
    edited = repository / WORKFLOW
    edited.write_text(edited.read_text().replace("timeout-minutes: 360", "timeout-minutes: 60"))
    (repository / REPORTER).unlink()
    code, out = run_init_in(repository, *FLAGS)
    assert code == 1
    assert "-    timeout-minutes: 60" in out
    assert "+    timeout-minutes: 360" in out
    assert "--force" in out
    assert "timeout-minutes: 60" in edited.read_text()
    assert not (repository / REPORTER).exists()  # all or nothing
    assert run_init_in(repository, *FLAGS, "--force")[0] == 0
    assert written_files(repository) == {
        each.path: each.text for each in generate(join_request(relay_url=UNREACHABLE_RELAY))
    }


def test_a_dry_run_shows_all_files_and_writes_none(repository: Path) -> None:
    code, out = run_init_in(repository, *FLAGS, "--nightly", "--dry-run")
    assert code == 0
    assert written_files(repository) == {}
    assert "+name: upstream nightly" in out
    assert "nothing was written" in out


def test_it_writes_files_for_another_ci_and_prints_what_to_register(repository: Path) -> None:
    options = ("--place", "organization=acme", "--place", "pipeline=crcr")
    code, out = run_init_in(repository, *FLAGS, "--ci", "buildkite", *options)
    assert code == 0
    assert set(written_files(repository)) == {
        *(".github/workflows/crcr-bridge.yml", ".buildkite/crcr.yml", ".crcr/bridge.py", REPORTER)
    }
    assert "[[oidc.registration]]" in out
    assert "secret BUILDKITE_API_TOKEN (in that environment)" in out
    assert "Buildkite, pipeline acme/crcr" in out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "--relay"),
        (("--relay", UNREACHABLE_RELAY), "--upstream"),
        (("--relay", UNREACHABLE_RELAY, "--upstream", "pytorch/pytorch"), "--audience"),
        ((*FLAGS, "--ci", "gitlab"), "--place project_id=…"),
        ((*FLAGS, "--level", "L3"), "--device"),
        ((*FLAGS, "--level", "L4"), "--oncall"),
        ((*FLAGS, "--level", "L9"), "L1, L2, L3, L4"),
        ((*FLAGS, "--place", "nonsense"), "NAME=VALUE"),
        ((*FLAGS, "--job-name", "a${{ secrets.X }}"), "the job's name"),
        ((*FLAGS, "--branch", "x\ny", "--audience", "a b"), "the branch"),
        ((*FLAGS, "--repo", "nonsense"), "is not owner/repo"),
    ],
)
def test_missing_or_invalid_options_are_reported_and_nothing_is_written(
    repository: Path, words: tuple[str, ...], expected: str
) -> None:
    code, out = run_init_in(repository, *words)
    assert code == 2
    assert expected in plain_text(out)
    assert written_files(repository) == {}


def test_a_symlink_out_of_the_repository_is_not_followed(repository: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (repository / ".crcr").symlink_to(outside)
    code, out = run_init_in(repository, *FLAGS)
    assert code == 1
    assert "is outside" in out
    assert list(outside.iterdir()) == []
    assert written_files(repository) == {}


def test_a_folder_at_the_path_of_a_file_aborts_without_leftover_files(repository: Path) -> None:
    (repository / REPORTER).mkdir(parents=True)
    code, out = run_init_in(repository, *FLAGS)
    assert code == 1
    assert "cannot be read" in out
    assert written_files(repository) == {}


def test_an_unwritable_path_leaves_no_partial_file(repository: Path) -> None:
    (repository / ".crcr").write_text("a file where the folder should be")
    code, _ = run_init_in(repository, *FLAGS)
    assert code == 1
    assert set(written_files(repository)) == {".crcr"}
