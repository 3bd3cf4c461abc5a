"""`crcr init` on a terminal: its prompts, and the second prompt with the reason after an invalid answer."""

from pathlib import Path

import pytest

from support.downstream.init_command import (
    FLAGS,
    UNREACHABLE_RELAY,
    WORKFLOW,
    Terminal,
    run_init_in,
    written_files,
)

NIGHTLY = ".github/workflows/crcr-nightly.yml"


def test_it_prompts_for_missing_options(repository: Path, relay_url: str) -> None:
    with Terminal(repository, "init") as terminal:
        terminal.answer("the relay's URL", relay_url)
        terminal.answer("the CI that runs the build", "")
        terminal.answer("the level", "L4")
        terminal.answer("this repository, as owner/name [org/backend]", "")
        terminal.answer("the upstream (pytorch/pytorch)", "")
        terminal.answer("on-calls", "ada, org/team")
        terminal.answer("the command that builds and tests", "make test")
        terminal.answer("JUnit files of the build, such as out/**/*.xml [none]", "out/*.xml")
        terminal.answer("every night too? [y/N]", "y")
        terminal.answer("the default branch [main]", "")
        assert terminal.end() == 0
    assert "make test" in written_files(repository)[WORKFLOW]
    assert "merge_group" in written_files(repository)[WORKFLOW]
    assert 'path: "out/*.xml"' in written_files(repository)[WORKFLOW]
    assert NIGHTLY in written_files(repository)
    assert "assumed" not in terminal.seen


def test_an_invalid_answer_is_prompted_for_again_with_the_reason(repository: Path, relay_url: str) -> None:
    with Terminal(repository, "init") as terminal:
        terminal.answer("the relay's URL", "relay")
        terminal.answer("write https://host", UNREACHABLE_RELAY)
        terminal.answer("cannot be reached", "n")
        terminal.answer("the relay's URL", relay_url)
        terminal.answer("the CI that runs the build", "jenkins")
        terminal.answer("which runs anywhere", "buildkite")
        terminal.answer("the level", "L9")
        terminal.answer("'L9' is not one of", "L3")
        terminal.answer("this repository", "backend")
        terminal.answer("'backend' is not owner/repo", "")
        terminal.answer("the upstream", "other/upstream")
        terminal.answer("it serves pytorch/pytorch", "")
        terminal.answer("the device", "n p u")
        terminal.answer("the device 'n p u' cannot be used", "npu")
        terminal.answer("the organisation's slug", "a/b")
        terminal.answer("the organisation's slug 'a/b' cannot be used", "acme")
        terminal.answer("the pipeline's slug", "crcr")
        terminal.answer("the command", "make ${{ x }}")
        terminal.answer("take the value from the environment", "make")
        terminal.answer("JUnit", "/etc/*")
        terminal.answer("a path inside the repository", "")
        terminal.answer("every night too?", "maybe")
        terminal.answer("every night too?", "")
        terminal.answer("the default branch", "a b")
        terminal.answer("the branch 'a b' cannot be used", "dev")
        assert terminal.end() == 0
    assert 'CRCR_BRIDGE_BRANCH: "dev"' in written_files(repository)[".github/workflows/crcr-bridge.yml"]


def test_an_unreachable_relay_can_be_used_after_confirmation(repository: Path) -> None:
    with Terminal(repository, "init", "--ci", "github", "--level", "L2", "--command", "make") as terminal:
        terminal.answer("the relay's URL", UNREACHABLE_RELAY)
        terminal.answer("use it anyway? [y/N]", "y")
        terminal.answer("this repository", "")
        terminal.answer("the upstream (owner/name)", "pytorch/pytorch")
        terminal.answer("the audience", "a b")
        terminal.answer("the audience 'a b' cannot be used", "crcr")
        terminal.answer("JUnit", "")
        terminal.answer("every night too?", "")
        terminal.answer("the default branch", "")
        assert terminal.end() == 0
    assert UNREACHABLE_RELAY in written_files(repository)[WORKFLOW]


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 1)])
def test_it_prompts_before_it_overwrites_a_file(repository: Path, answer: str, code: int) -> None:
    run_init_in(repository, *FLAGS)
    edited = repository / WORKFLOW
    edited.write_text("mine\n")
    given = ("--ci", "github", "--level", "L2", "--command", "make", "--junit", "", "--no-nightly")
    with Terminal(repository, "init", *FLAGS, *given, "--branch", "main") as terminal:
        terminal.answer("this repository", "")
        terminal.answer(f"overwrite {WORKFLOW}? [y/N]", answer)
        assert terminal.end() == code
    assert (edited.read_text() == "mine\n") is (answer == "n")


def test_previous_answers_are_offered_as_defaults(repository: Path, relay_url: str) -> None:
    run_init_in(
        repository, "--relay", relay_url, "--command", "make test", "--junit", "out/*.xml", "--nightly"
    )
    before = written_files(repository)
    with Terminal(repository, "init", "--relay", relay_url) as terminal:
        terminal.answer("the CI that runs the build (github, buildkite, gitlab, circleci) [github]", "")
        terminal.answer("the level", "")
        terminal.answer("this repository", "")
        terminal.answer("the upstream", "")
        terminal.answer("the command that builds and tests [make test]", "")
        terminal.answer("[out/*.xml]", "")
        terminal.answer("every night too? [Y/n]", "")
        terminal.answer("the default branch", "")
        assert terminal.end() == 0
    assert written_files(repository) == before
