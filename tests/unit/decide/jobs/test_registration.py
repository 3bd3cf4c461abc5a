"""Registrations of other CIs: valid settings, and the error for each missing field."""

import json
from pathlib import Path
from typing import Any

import pytest

from crcr.decide.model import RepoName
from crcr.decide.oidc.identity import IssuerKind
from crcr.decide.oidc.registration import (
    Registration,
    find_registration,
    make_registration,
    registration_example,
    unmet_requirement,
)
from crcr.settings.readers.registrations import registrations
from crcr.settings.setting import InvalidValue, RawValue

BUILDKITE = {
    "issuer": "https://agent.buildkite.com",
    "repository": "org/backend",
    "organization_id": "o-1",
    "pipeline_id": "p-1",
    "branches": ["main"],
}
GITLAB = {"issuer": "https://gitlab.com", "repository": "org/backend", "project_id": 42}
CIRCLE = {
    "issuer": "https://oidc.circleci.com/org/123",
    "repository": "Org/Backend",
    "project_id": "c-1",
    "branches": "main",
}
GENERIC = {
    "issuer": "https://ci.example.org",
    "kind": "generic",
    "repository": "org/backend",
    "ids": {"project": "7"},
}


def parse_registrations(*tables: dict[str, Any]) -> tuple[Registration, ...]:
    return registrations(RawValue(json.dumps(list(tables)), "CRCR_OIDC_REGISTRATIONS", Path()))


def error_for(*tables: Any) -> str:
    with pytest.raises(InvalidValue) as caught:
        registrations(RawValue(list(tables), "oidc.registration", Path()))
    return str(caught.value)


def test_each_kind_is_parsed_with_the_claims_that_exclude_forks() -> None:
    buildkite, gitlab, circle, generic = parse_registrations(BUILDKITE, GITLAB, CIRCLE, GENERIC)
    assert (buildkite.kind, dict(buildkite.ids)) == (
        IssuerKind.BUILDKITE,
        {"organization_id": "o-1", "pipeline_id": "p-1"},
    )
    assert dict(buildkite.required) == {"build_branch": ("main",)}
    assert (dict(gitlab.ids), dict(gitlab.required)) == ({"project_id": "42"}, {"ref_protected": ("true",)})
    assert dict(circle.required) == {
        "oidc.circleci.com/vcs-ref": ("refs/heads/main",),
        "oidc.circleci.com/vcs-origin": ("github.com/Org/Backend",),
    }
    assert (dict(generic.ids), dict(generic.required)) == ({"project": "7"}, {})


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("x", "must be a table"),
        ({}, "must have an issuer"),
        ({**BUILDKITE, "issuer": "agent.buildkite.com"}, "must have an issuer"),
        ({**BUILDKITE, "repository": "backend"}, "owner/name"),
        ({**BUILDKITE, "branches": []}, "builds of forks"),
        ({**BUILDKITE, "branches": [""]}, "branches must be text"),
        ({**BUILDKITE, "branches": {"a": 1}}, "branches must be a list"),
        ({**CIRCLE, "branches": []}, "builds of forks"),
        ({**BUILDKITE, "pipeline_id": None}, "pipeline_id must be text"),
        ({**BUILDKITE, "pipeline": "x"}, "needs organization_id and pipeline_id or organization_slug"),
        ({**GITLAB, "project_id": True}, "project_id must be text"),
        ({**GITLAB, "claims": ["x"]}, "claims must be a table"),
        ({**GITLAB, "claims": {"ref_protected": ["false"]}}, "cannot say ref_protected"),
        ({**BUILDKITE, "claims": {"build_branch": ["x"]}}, "cannot say build_branch"),
        ({**GENERIC, "ids": {}}, "needs ids"),
        ({**GENERIC, "project": "7"}, "name claims under ids"),
        ({**GENERIC, "branches": ["main"]}, "name the claim that holds them"),
        ({**GENERIC, "kind": None}, "must have a kind"),
        ({**GENERIC, "kind": "jenkins"}, "kind must be one of"),
        ({**GENERIC, "kind": "github"}, "needs no registration"),
    ],
)
def test_an_invalid_registration_is_reported_with_its_problem_and_number(table: Any, message: str) -> None:
    error = error_for(GITLAB, table)
    assert message in error
    assert "(number 2)" in error


def test_a_pipeline_is_registered_once() -> None:
    assert "twice" in error_for(GITLAB, {**GITLAB, "repository": "org/other"})


def test_slugs_are_accepted_and_marked_as_weaker() -> None:
    ids = {"organization_slug": "acme", "pipeline_slug": "backend"}
    registration = make_registration(
        issuer="https://agent.buildkite.com",
        kind=IssuerKind.BUILDKITE,
        repository=RepoName("org/backend"),
        ids=ids,
        branches=["main"],
    )
    assert registration.by_slugs
    assert not parse_registrations(BUILDKITE)[0].by_slugs


def test_numbers_and_booleans_in_a_token_are_compared_by_their_text() -> None:
    (gitlab,) = parse_registrations(GITLAB)
    assert find_registration([gitlab], {"project_id": 42}) is gitlab
    assert find_registration([gitlab], {"project_id": "42"}) is gitlab
    assert find_registration([gitlab], {"project_id": True}) is None
    assert find_registration([gitlab], {"project_id": ["42"]}) is None
    assert find_registration([gitlab], {}) is None
    assert unmet_requirement(gitlab, {"project_id": "42", "ref_protected": True}) is None
    assert "missing" in str(unmet_requirement(gitlab, {"project_id": "42"}))


def test_the_registration_example_cannot_be_manipulated_by_token_claims() -> None:
    claims = {"organization_id": 'x"\nrepository = "mallory/x', "pipeline_id": "p" * 1000}
    lines = registration_example(IssuerKind.BUILDKITE, "https://agent.buildkite.com", claims)
    assert "\n" not in lines
    assert lines.count('repository = "') == 1
    assert len(lines) < 600


def test_a_registration_that_accepts_the_token_of_any_step_is_detected() -> None:
    buildkite, gitlab = parse_registrations(BUILDKITE, GITLAB)
    (strict,) = parse_registrations({**BUILDKITE, "claims": {"step_key": ["crcr-started"]}})
    assert [registration.tells_steps_apart for registration in (buildkite, gitlab, strict)] == [
        False,
        True,
        True,
    ]
