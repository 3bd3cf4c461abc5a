"""The ref that a run must have for its report to count (fault 61)."""

from dataclasses import replace

import pytest

from crcr.decide.jobs.judge import check_ref
from crcr.decide.model import RepoName
from support.data.events_and_reports import a_caller, ref_claims

OTHER = RepoName("org/else")


def code(
    event: str | None, *refs: str, default: str | None = "main", ref: str = "refs/heads/main"
) -> str | None:
    found = check_ref(a_caller(event_name=event, **ref_claims(ref)), default, refs)
    return found.code if found else None


@pytest.mark.parametrize("event", ["workflow_dispatch", "push", "workflow_run", "pull_request_target"])
@pytest.mark.parametrize(
    ("ref", "expected"),
    [
        ("refs/heads/main", None),
        ("refs/heads/evil", "wrong_ref"),
        ("refs/heads/Main", "wrong_ref"),
        ("refs/heads/x/main", "wrong_ref"),
        ("refs/tags/main", "wrong_ref"),
        ("refs/pull/7/merge", "wrong_ref"),
        ("main", "wrong_ref"),
    ],
)
def test_fault_61_a_run_speaks_from_the_default_branch_only(
    event: str, ref: str, expected: str | None
) -> None:
    assert code(event, ref=ref) == expected


@pytest.mark.parametrize("event", ["repository_dispatch", "schedule", None])
def test_what_github_always_takes_from_the_default_branch_needs_no_record_of_it(event: str | None) -> None:
    assert code(event, default=None) is None
    assert code(event, default="trunk") is None


def test_an_unknown_default_branch_is_asked_about_and_refuses_nobody_for_good() -> None:
    assert code("push", default=None) == "default_branch_unknown"
    assert code("push", "refs/heads/main", default=None) is None


@pytest.mark.parametrize(
    ("glob", "ref", "expected"),
    [
        ("refs/heads/nightly", "refs/heads/nightly", None),
        ("refs/heads/nightly", "refs/heads/nightly2", "wrong_ref"),
        ("refs/tags/v*", "refs/tags/v1.2", None),
        ("refs/tags/v*", "refs/heads/v1.2", "wrong_ref"),
        ("refs/heads/release/*", "refs/heads/release/1/x", "wrong_ref"),
    ],
)
def test_self_reports_may_come_from_the_refs_of_the_entry(glob: str, ref: str, expected: str | None) -> None:
    assert code("push", glob, ref=ref) == expected


@pytest.mark.parametrize("event", ["repository_dispatch", "schedule", "workflow_dispatch"])
def test_fault_61_the_workflow_file_is_the_repositorys_own_and_of_the_ref_that_ran(event: str) -> None:
    caller = a_caller(event_name=event, **ref_claims())
    for changes in ({"workflow_at": "refs/heads/evil"}, {"workflow_at": "a" * 40}, {"workflow_from": OTHER}):
        found = check_ref(replace(caller, **changes), "main")
        assert found is not None
        assert found.code == "wrong_ref"
    assert check_ref(replace(caller, workflow_from=RepoName("ORG/Backend")), "main") is None


@pytest.mark.parametrize("missing", [{"ref": None}, {"workflow_at": None, "workflow_from": None}])
def test_what_is_not_signed_proves_nothing(missing: dict[str, None]) -> None:
    caller = a_caller(event_name="workflow_dispatch", **{**ref_claims(), **missing})
    found = check_ref(caller, "main", ("refs/heads/main",))
    assert found is not None
    assert found.code == "wrong_ref"
    assert check_ref(replace(caller, event_name="schedule"), "main") is None
