"""A second `crcr init`: what was said before and stands in the files is taken up, and nothing else is."""

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

TOLD = ("--command", 'make test A="$B" # all', "--job-name", "build (cuda, 3.12)", "--junit", "out/**/*.xml")
PLACES = {
    Ci.GITHUB: (),
    Ci.BUILDKITE: ("--place", "organization=acme", "--place", "pipeline=crcr"),
    Ci.GITLAB: ("--place", "project_id=42", "--place", "url=https://gitlab.example.org"),
    Ci.CIRCLECI: ("--place", "project=gh/org/backend"),
}


def write(folder: Path, wanted: JoinRequest) -> None:
    for each in generate(wanted):
        (folder / each.path).parent.mkdir(parents=True, exist_ok=True)
        (folder / each.path).write_text(each.text, encoding="utf-8")


@pytest.mark.parametrize("ci", Ci)
def test_without_flags_it_reverts_nothing(repository: Path, ci: Ci) -> None:
    first = ("--ci", ci.value, *PLACES[ci], *TOLD, "--runs-on", "gpu", "--branch", "dev", "--nightly")
    assert run_init_in(repository, *FLAGS, *first)[0] == 0
    before = written_files(repository)
    code, out = run_init_in(repository, *FLAGS)
    assert (code, written_files(repository)) == (0, before), out
    assert "written" not in out
    assert "from the files here" in out
    assert "--runs-on gpu" in out


@pytest.mark.parametrize("ci", Ci)
def test_what_is_said_now_counts_more(repository: Path, ci: Ci) -> None:
    run_init_in(repository, *FLAGS, "--ci", ci.value, *PLACES[ci], *TOLD, "--runs-on", "gpu")
    now = ("--command", "make", "--job-name", "x", "--junit", "", "--runs-on", "cpu", "--force")
    assert run_init_in(repository, *FLAGS, *now)[0] == 0
    assert (
        "from the files here"
        not in run_init_in(repository, *FLAGS, *now, "--ci", ci.value, *PLACES[ci], "--branch", "main")[1]
    )
    found = read_previous_answers(repository, ci).values
    assert {name: found.get(name) for name in ("command", "job_name", "junit", "runs_on")} == {
        "command": "make",
        "job_name": "x",
        "junit": None,
        "runs_on": "cpu",
    }


def test_the_build_moves_to_another_ci_with_its_command_and_not_with_its_machine(repository: Path) -> None:
    run_init_in(repository, *FLAGS, *TOLD, "--runs-on", "gpu")
    code, _ = run_init_in(repository, *FLAGS, "--ci", "buildkite", *PLACES[Ci.BUILDKITE])
    assert code == 0
    found = read_previous_answers(repository, Ci.BUILDKITE).values
    assert (found["command"], found["job_name"], found["junit"]) == TOLD[1::2]
    assert "runs_on" not in found


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
def test_what_is_not_as_we_write_it_is_not_taken_up(repository: Path, edit: object) -> None:
    assert callable(edit)
    run_init_in(repository, *FLAGS, "--command", "make")
    path = repository / WORKFLOW
    path.write_text(edit(path.read_text()))
    (repository / REPORTER).unlink()
    assert "command" not in read_previous_answers(repository, Ci.GITHUB).values
    assert run_init_in(repository, *FLAGS)[0] == 1  # it is different, and is shown
    assert not (repository / REPORTER).exists()


def test_a_gate_is_not_lost_in_silence(repository: Path) -> None:
    run_init_in(repository, *FLAGS, "--level", "L4", "--oncall", "ada")
    code, out = run_init_in(repository, *FLAGS)
    assert (code, "pass --level L4 to keep that" in out) == (1, True), out
    assert "--level L4" not in run_init_in(repository, *FLAGS, "--level", "L2", "--force")[1]


def test_every_kind_of_file_is_read_back(tmp_path: Path) -> None:
    for number, plain in enumerate(all_join_requests()):
        wanted = replace(plain, command="make $X", job_name="a b", runs_on="gpu, big", branch="dev")
        folder = tmp_path / str(number)
        write(folder, wanted)
        found = read_previous_answers(folder, wanted.ci)
        assert find_previous_ci(folder) is wanted.ci
        assert found.nightly is wanted.nightly
        assert found.gates is (wanted.level is Level.L4)
        told: dict[str, Any] = {
            "branch": "dev",
            "place": found.place,
            "nightly": found.nightly,
            **found.values,
        }
        again = join_request(wanted.ci, level=wanted.level, **told)
        assert generate(again) == generate(wanted)
