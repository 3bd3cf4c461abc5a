"""The doctor requires exactly the App permissions that the manifest requests."""

import json

import pytest

from crcr.cli.doctor.relay.allowlists import _rights
from crcr.decide.allowlist.entries import AllowlistEntry
from crcr.decide.github import repository_setup
from crcr.decide.github.repository_setup import InstallationFacts
from crcr.decide.model import Level, RepoName
from crcr.join.findings.finding import State
from crcr.join.findings.github import _permissions
from support.paths import ROOT

REPO = RepoName("org/backend")

MANIFEST = json.loads((ROOT / "docs" / "examples" / "app-manifest.json").read_text())


def test_permissions_and_events_are_those_of_the_manifest() -> None:
    assert MANIFEST["default_permissions"] == {
        **repository_setup.PERMISSIONS_ALWAYS,
        **repository_setup.PERMISSIONS_FOR_CHECKS,
        **repository_setup.PERMISSIONS_FOR_KNOWN_FAILURES,
    }
    assert {
        *repository_setup.EVENTS_ALWAYS,
        *repository_setup.EVENTS_FOR_CHECKS,
        *repository_setup.EVENTS_FOR_KNOWN_FAILURES,
        *repository_setup.EVENTS_FOR_IN_TREE,
    } == set(MANIFEST["default_events"])


def test_a_higher_permission_satisfies_a_lower_one_and_not_vice_versa() -> None:
    granted = {"contents": "admin", "metadata": "read", "pull_requests": "read", "checks": "odd"}
    assert repository_setup.missing_permissions(granted, repository_setup.PERMISSIONS_ALWAYS) == (
        "pull_requests: write",
    )
    assert repository_setup.missing_permissions(granted, {"checks": "read", "none": "read"}) == (
        "checks: read",
        "none: read",
    )


@pytest.mark.parametrize(
    ("level", "jobs", "actions", "state"),
    [
        (Level.L2, None, "none", State.OK),
        (Level.L3, None, "none", State.WARNING),
        (Level.L3, None, "read", State.WARNING),
        (Level.L4, None, "none", State.PROBLEM),
        (Level.L4, ("build",), "none", State.WARNING),
        (Level.L4, ("build", "test*"), "none", State.PROBLEM),
        (Level.L4, None, "read", State.WARNING),
        (Level.L4, None, "write", State.OK),
    ],
)
def test_the_downstream_and_the_operator_get_the_same_state_of_its_permissions(
    level: Level, jobs: tuple[str, ...] | None, actions: str, state: State
) -> None:
    installation = InstallationFacts(installation_id=1, permissions={"contents": "write", "actions": actions})
    entry = AllowlistEntry(name=REPO, level=level, jobs=jobs)
    to_operator = _rights(REPO, "downstream", entry, installation, has_checks=True)
    assert (_permissions(installation, entry).state, to_operator.state) == (state, state)
    assert ("lacks actions: write" in to_operator.text) is (state is not State.OK)


@pytest.mark.parametrize("level", list(Level))
def test_without_contents_write_nothing_can_be_sent_at_any_level(level: Level) -> None:
    shortfall = repository_setup.downstream_shortfall(
        {"contents": "read"}, AllowlistEntry(name=REPO, level=level)
    )
    assert shortfall is not None
    assert (shortfall.is_fatal, shortfall.missing[0]) == (True, "contents: write")
