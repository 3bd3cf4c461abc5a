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
def test_the_help_lists_the_place_names_of_the_ci(ci: Ci) -> None:
    epilog = getattr(get_command(app), "commands")["init"].epilog  # noqa: B009  # a group, which mypy does not see
    [line] = [item.strip() for item in epilog.splitlines() if item.strip().startswith(f"{ci.value}: ")]
    names = [item.name + ("*" if item.required else "") for item in CI_LOCATION_PARTS[ci]]
    assert line == f"{ci.value}: {', '.join(names)}"


@pytest.mark.parametrize("ci", OTHERS)
def test_the_guide_lists_the_place_names_with_their_meaning(ci: Ci) -> None:
    [[required, optional]] = re.findall(rf"^\| `{ci.value}` \| (.*) \| (.*) \|$", GUIDE, re.MULTILINE)
    assert required == describe_parts([part for part in CI_LOCATION_PARTS[ci] if part.required])
    assert optional == describe_parts([part for part in CI_LOCATION_PARTS[ci] if not part.required])


def describe_parts(parts: list[LocationPart]) -> str:
    return ", ".join(f"`{part.name}` ({part.meaning.removeprefix('the ')})" for part in parts)


def test_an_unknown_ci_gets_a_hint_to_the_reporter_and_the_guide() -> None:
    result = CliRunner().invoke(app, ["init", "--ci", "jenkins"])
    output = " ".join(result.output.replace("│", " ").split())
    assert result.exit_code == 2
    assert "Value error" not in output
    assert "action/report.py" in output
    assert "docs/downstream.md" in output
    assert "### Another CI" in GUIDE


@pytest.mark.parametrize(
    ("ci", "words"),
    [
        (Ci.GITHUB, "GitHub Actions has no 'x': leave it out"),
        (Ci.GITLAB, "GitLab CI has no 'x': it has project_id, url"),
    ],
)
def test_an_unknown_place_name_is_refused_with_an_explanation(ci: Ci, words: str) -> None:
    good = join_request(ci)
    assert check_request(join_request(ci, place={**good.place, "x": "y"})) == (words,)
