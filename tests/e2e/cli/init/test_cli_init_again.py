"""A second `crcr init` reuses the answers in the existing files, and nothing else of them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crcr.cli.init.previous_files import find_previous_ci, read_previous_answers
from crcr.decide.model import Level
from crcr.join.ci_kinds import Ci
from crcr.join.files import generate
from crcr.join.request import JoinRequest
from support.downstream.init_command import FLAGS, REPORTER, WORKFLOW, run_init_in, written_files
from support.downstream.join_requests import all_join_requests, join_request

ANSWERS = (
    "--command",
    'make test A="$B" # all',
    "--job-name",
    "build (cuda, 3.12)",
    "--junit",
    "out/**/*.xml",
)
PLACES = {
    Ci.GITHUB: (),
    Ci.BUILDKITE: ("--place", "organization=acme", "--place", "pipeline=crcr"),
    Ci.GITLAB: ("--place", "project_id=42", "--place", "url=https://gitlab.example.org"),
    Ci.CIRCLECI: ("--place", "project=gh/org/backend"),
}


def write(folder: Path, join: JoinRequest) -> None:
    for each in generate(join):
        (folder / each.path).parent.mkdir(parents=True, exist_ok=True)
        (folder / each.path).write_text(each.text, encoding="utf-8")


@pytest.mark.parametrize("ci", Ci)
def test_a_second_run_without_flags_keeps_all_previous_answers(repository: Path, ci: Ci) -> None:
    first = ("--ci", ci.value, *PLACES[ci], *ANSWERS, "--runs-on", "gpu", "--branch", "dev", "--nightly")
    assert run_init_in(repository, *FLAGS, *first)[0] == 0
    before = written_files(repository)
    code, out = run_init_in(repository, *FLAGS)
    assert (code, written_files(repository)) == (0, before), out
    assert "written" not in out
    assert "from the files here" in out
    assert "--runs-on gpu" in out


@pytest.mark.parametrize("ci", Ci)
def test_flags_take_precedence_over_previous_answers(repository: Path, ci: Ci) -> None:
    run_init_in(repository, *FLAGS, "--ci", ci.value, *PLACES[ci], *ANSWERS, "--runs-on", "gpu")
    now = ("--command", "make", "--job-name", "x", "--junit", "", "--runs-on", "cpu", "--force")
    assert run_init_in(repository, *FLAGS, *now)[0] == 0
    assert (
        "from the files here"
        not in run_init_in(repository, *FLAGS, *now, "--ci", ci.value, *PLACES[ci], "--branch", "main")[1]
    )
    values = read_previous_answers(repository, ci).values
    assert {name: values.get(name) for name in ("command", "job_name", "junit", "runs_on")} == {
        "command": "make",
        "job_name": "x",
        "junit": None,
        "runs_on": "cpu",
    }


def test_switching_the_ci_keeps_the_command_and_drops_the_runner(repository: Path) -> None:
    run_init_in(repository, *FLAGS, *ANSWERS, "--runs-on", "gpu")
    code, _ = run_init_in(repository, *FLAGS, "--ci", "buildkite", *PLACES[Ci.BUILDKITE])
    assert code == 0
    values = read_previous_answers(repository, Ci.BUILDKITE).values
    assert (values["command"], values["job_name"], values["junit"]) == ANSWERS[1::2]
    assert "runs_on" not in values


@pytest.mark.parametrize(
    "edit",
    [
        lambda text: text.replace("Made by `crcr init`", "Mine"),
        lambda text: text + "\n}: [",
        lambda text: text.replace("          make\n", "          make\n          make install\n"),
        lambda text: text.replace("          make\n", "          make ${{ github.event.x }}\n"),
        lambda text: text + "#" * 300_000,
        lambda _: "# Made by `crcr init`\n" + "[" * 5000,
        lambda _: "# Made by `crcr init`\njobs: {build: {steps: [7, {name: [Build]}]}}\n",
    ],
    ids=["not ours", "not YAML", "two lines", "an expression", "long", "deep", "another shape"],
)
def test_a_file_in_an_unknown_form_gives_no_previous_answers(repository: Path, edit: object) -> None:
    assert callable(edit)
    run_init_in(repository, *FLAGS, "--command", "make")
    path = repository / WORKFLOW
    path.write_text(edit(path.read_text()))
    (repository / REPORTER).unlink()
    assert "command" not in read_previous_answers(repository, Ci.GITHUB).values
    assert run_init_in(repository, *FLAGS)[0] == 1  # it differs, and the difference is shown
    assert not (repository / REPORTER).exists()


def test_a_gate_is_not_removed_silently(repository: Path) -> None:
    run_init_in(repository, *FLAGS, "--level", "L4", "--oncall", "ada")
    code, out = run_init_in(repository, *FLAGS)
    assert (code, "pass --level L4 to keep that" in out) == (1, True), out
    assert "--level L4" not in run_init_in(repository, *FLAGS, "--level", "L2", "--force")[1]


def test_the_answers_are_read_back_from_every_kind_of_file(tmp_path: Path) -> None:
    for number, plain in enumerate(all_join_requests()):
        expected = replace(plain, command="make $X", job_name="a b", runs_on="gpu, big", branch="dev")
        folder = tmp_path / str(number)
        write(folder, expected)
        previous = read_previous_answers(folder, expected.ci)
        assert find_previous_ci(folder) is expected.ci
        assert previous.nightly is expected.nightly
        assert previous.gates is (expected.level is Level.L4)
        answers: dict[str, Any] = {
            "branch": "dev",
            "place": previous.place,
            "nightly": previous.nightly,
            **previous.values,
        }
        again = join_request(expected.ci, level=expected.level, **answers)
        assert generate(again) == generate(expected)
