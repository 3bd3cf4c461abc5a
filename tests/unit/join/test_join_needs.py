"""What each CI needs beside the files: complete, and without promises that the CI does not keep."""

import re
from typing import Any

import pytest

from crcr.join.files import generate
from crcr.join.manual_steps import describe_effort, describe_safety, manual_steps
from crcr.join.request import Ci
from support.downstream.join_requests import join_request

PLACES: dict[Ci, dict[str, Any]] = {
    Ci.BUILDKITE: {"organization": "acme", "pipeline": "crcr"},
    Ci.GITLAB: {"project_id": "42"},
    Ci.CIRCLECI: {"project": "gh/org/backend"},
}


def test_github_actions_takes_nothing_more() -> None:
    assert manual_steps(join_request()) == ()
    assert "no secret is shared" in describe_effort(Ci.GITHUB)
    assert "without a token" in describe_safety(Ci.GITHUB)


@pytest.mark.parametrize("ci", PLACES)
def test_elsewhere_nothing_is_claimed_that_does_not_hold(ci: Ci) -> None:
    said = f"{describe_effort(ci)} {describe_safety(ci)}"
    assert "one workflow" not in said
    assert "Safe by default" not in said
    for word in ("bridge", "secret of your repository", "registration"):
        assert word in describe_effort(ci)
    assert ("every" in describe_safety(ci)) is (ci is not Ci.GITLAB)


@pytest.mark.parametrize("ci", PLACES)
def test_every_secret_and_environment_of_the_files_is_listed(ci: Ci) -> None:
    wanted = join_request(ci=ci, place=PLACES[ci], branch="dev")
    told = "\n".join(map(str, manual_steps(wanted)))
    text = "\n".join(each.text for each in generate(wanted))
    for secret in set(re.findall(r"secrets\.([A-Z_]+)", text)):
        assert f"secret {secret}" in told
    for name in set(re.findall(r"^\s+environment: (\w+)$", text, re.MULTILINE)):
        assert f"environment {name}" in told
    for name in set(re.findall(r"^\s+context: (\w+)$", text, re.MULTILINE)):
        assert f"context {name}" in told
    assert "dev" in told
    assert all(each.where and each.why for each in manual_steps(wanted))
    assert all(str(value) in told for value in PLACES[ci].values())
