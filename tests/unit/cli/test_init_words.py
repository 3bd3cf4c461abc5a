"""Texts of `crcr init` about other CIs: the names of --place in help and docs, and the advice for an unknown CI."""

import re

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from crcr.cli.main import app
from crcr.join.ci_kinds import CI_LOCATION_PARTS, Ci, LocationPart
from crcr.join.request import check_request
from support.downstream.join_requests import join_request
from support.paths import ROOT

GUIDE = (ROOT / "docs" / "downstream.md").read_text(encoding="utf-8")
OTHERS = [ci for ci in Ci if CI_LOCATION_PARTS[ci]]


@pytest.mark.parametrize("ci", OTHERS)
def test_the_help_lists_the_names_of_its_place(ci: Ci) -> None:
    epilog = getattr(get_command(app), "commands")["init"].epilog  # noqa: B009  # a group, which mypy does not see
    [line] = [each.strip() for each in epilog.splitlines() if each.strip().startswith(f"{ci.value}: ")]
    names = [each.name + ("*" if each.required else "") for each in CI_LOCATION_PARTS[ci]]
    assert line == f"{ci.value}: {', '.join(names)}"


@pytest.mark.parametrize("ci", OTHERS)
def test_the_guide_lists_them_with_their_meaning(ci: Ci) -> None:
    [[needed, later]] = re.findall(rf"^\| `{ci.value}` \| (.*) \| (.*) \|$", GUIDE, re.MULTILINE)
    assert needed == describe_parts([each for each in CI_LOCATION_PARTS[ci] if each.required])
    assert later == describe_parts([each for each in CI_LOCATION_PARTS[ci] if not each.required])


def describe_parts(parts: list[LocationPart]) -> str:
    return ", ".join(f"`{each.name}` ({each.meaning.removeprefix('the ')})" for each in parts)


def test_who_has_another_ci_is_told_what_works_anywhere() -> None:
    result = CliRunner().invoke(app, ["init", "--ci", "jenkins"])
    told = " ".join(result.output.replace("│", " ").split())
    assert result.exit_code == 2
    assert "Value error" not in told
    assert "action/report.py" in told
    assert "docs/downstream.md" in told
    assert "### Another CI" in GUIDE


@pytest.mark.parametrize(
    ("ci", "words"),
    [
        (Ci.GITHUB, "GitHub Actions has no 'x': leave it out"),
        (Ci.GITLAB, "GitLab CI has no 'x': it has project_id, url"),
    ],
)
def test_a_place_that_a_ci_does_not_have_is_told_in_words(ci: Ci, words: str) -> None:
    good = join_request(ci)
    assert check_request(join_request(ci, place={**good.place, "x": "y"})) == (words,)
