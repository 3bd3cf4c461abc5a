"""The manual steps of each CI: complete, and without promises that the CI does not keep."""

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


def test_github_actions_needs_no_manual_steps() -> None:
    assert manual_steps(join_request()) == ()
    assert "no secret is shared" in describe_effort(Ci.GITHUB)
    assert "without a token" in describe_safety(Ci.GITHUB)


@pytest.mark.parametrize("ci", PLACES)
def test_texts_for_other_cis_do_not_claim_the_properties_of_github_actions(ci: Ci) -> None:
    texts = f"{describe_effort(ci)} {describe_safety(ci)}"
    assert "one workflow" not in texts
    assert "Safe by default" not in texts
    for word in ("bridge", "secret of your repository", "registration"):
        assert word in describe_effort(ci)
    assert ("every" in describe_safety(ci)) is (ci is not Ci.GITLAB)


@pytest.mark.parametrize("ci", PLACES)
def test_every_secret_environment_and_context_of_the_files_is_in_the_steps(ci: Ci) -> None:
    request = join_request(ci=ci, place=PLACES[ci], branch="dev")
    steps_text = "\n".join(map(str, manual_steps(request)))
    text = "\n".join(item.text for item in generate(request))
    for secret in set(re.findall(r"secrets\.([A-Z_]+)", text)):
        assert f"secret {secret}" in steps_text
    for name in set(re.findall(r"^\s+environment: (\w+)$", text, re.MULTILINE)):
        assert f"environment {name}" in steps_text
    for name in set(re.findall(r"^\s+context: (\w+)$", text, re.MULTILINE)):
        assert f"context {name}" in steps_text
    assert "dev" in steps_text
    assert all(item.where and item.why for item in manual_steps(request))
    assert all(str(value) in steps_text for value in PLACES[ci].values())
