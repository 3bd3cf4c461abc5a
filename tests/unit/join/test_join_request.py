"""Join requests: valid ones, and the error text for each refused one."""

from typing import Any

import pytest

from crcr.decide.model import Level, RepoName
from crcr.join.request import Ci, check_request
from support.downstream.join_requests import ACTION, all_join_requests, join_request

HOSTILE = (
    "x\ny: z",
    "${{ secrets.TOKEN }}",
    "a${{github.token}}b",
    '"; curl evil; "',
    "'$(id)'",
    "`id`",
    "a: b # c",
    "[a, b]",
    "{a: b}",
    "& | ; <",
    "<< pipeline.id >>",
    "$[[ inputs.x ]]",
    "\u202etxt.exe",
    "\x00",
    " lead",
    "../../etc/passwd",
    "",
    "x" * 300,
)


def test_every_kind_of_valid_request_is_accepted() -> None:
    assert [problem for request in all_join_requests() for problem in check_request(request)] == []


@pytest.mark.parametrize("value", HOSTILE, ids=ascii)
@pytest.mark.parametrize(
    "name", ["audience", "job_name", "junit", "runs_on", "branch", "action", "relay_url", "device"]
)
def test_a_value_with_yaml_shell_or_expression_syntax_is_refused(name: str, value: str) -> None:
    level = Level.L3 if name == "device" else Level.L2
    changes: dict[str, Any] = {"level": level, name: value}
    [problem] = check_request(join_request(**changes))
    assert "cannot be used" in problem
    assert problem.isprintable()
    assert len(problem) < 300


@pytest.mark.parametrize("value", HOSTILE, ids=ascii)
def test_hostile_oncalls_and_places_are_refused(value: str) -> None:
    assert check_request(join_request(oncalls=(value,)))
    assert check_request(join_request(Ci.BUILDKITE, place={"organization": value, "pipeline": "crcr"}))
    assert check_request(join_request(Ci.GITLAB, place={"project_id": "42", "url": value or "x"}))
    assert check_request(join_request(Ci.CIRCLECI, place={"project": f"gh/org/{value}"}))


@pytest.mark.parametrize(
    "command",
    ["", "   ", "make\nmake install", "make ${{ github.token }}", "echo << x >>", "a\u202eb", "x" * 1001],
    ids=ascii,
)
def test_a_command_that_a_ci_would_expand_is_refused(command: str) -> None:
    assert check_request(join_request(command=command))


@pytest.mark.parametrize(
    "command",
    ["make test", 'pytest -k "not slow" && echo "$HOME"', "./ci/run --cuda=12 | tee log", "test '#' = '#'"],
)
def test_any_single_line_of_shell_is_an_accepted_command(command: str) -> None:
    assert check_request(join_request(command=command)) == ()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"level": Level.L3, "device": None}, "L3 needs a device"),
        ({"device": "npu"}, "a device is for L3 only"),
        ({"level": Level.L4, "oncalls": ()}, "L4 needs on-calls"),
        ({"upstream": RepoName("ORG/backend")}, "are the same"),
        ({"ci": Ci.GITLAB, "place": {"project_id": "42"}, "action": ACTION}, "GitHub Actions only"),
        ({"action": "pytorch/crcr/action@v1"}, "full commit SHA"),
        ({"relay_url": "http://relay.example.org"}, "https://host"),
        ({"relay_url": "https://user:secret@relay.example.org"}, "cannot be used"),
        ({"relay_url": "https://relay.example.org?x=1"}, "cannot be used"),
        ({"ci": Ci.BUILDKITE, "place": {"pipeline": "crcr"}}, "the organisation's slug"),
        ({"ci": Ci.BUILDKITE, "place": {}}, "the pipeline's slug"),
        ({"place": {"pipeline": "crcr"}}, "GitHub Actions has no 'pipeline'"),
    ],
)
def test_contradicting_values_are_refused_with_the_reason(changes: dict[str, Any], words: str) -> None:
    assert any(words in problem for problem in check_request(join_request(**changes)))


@pytest.mark.parametrize(
    "value", ["http://127.0.0.1:8000", "http://localhost:8000", "https://relay.example.org/crcr/"]
)
def test_a_relay_on_localhost_or_below_a_path_is_accepted(value: str) -> None:
    assert check_request(join_request(relay_url=value)) == ()
