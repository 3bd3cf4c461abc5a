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
    refusal = check_ref(a_caller(event_name=event, **ref_claims(ref)), default, refs)
    return refusal.code if refusal else None


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
def test_fault_61_a_run_may_report_only_from_the_default_branch(
    event: str, ref: str, expected: str | None
) -> None:
    assert code(event, ref=ref) == expected


@pytest.mark.parametrize("event", ["repository_dispatch", "schedule", None])
def test_events_that_github_runs_on_the_default_branch_need_no_known_default_branch(
    event: str | None,
) -> None:
    assert code(event, default=None) is None
    assert code(event, default="trunk") is None


def test_an_unknown_default_branch_has_its_own_code_unless_the_entry_allows_the_ref() -> None:
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
def test_fault_61_the_workflow_file_must_come_from_the_same_repository_and_ref(event: str) -> None:
    caller = a_caller(event_name=event, **ref_claims())
    for changes in ({"workflow_at": "refs/heads/evil"}, {"workflow_at": "a" * 40}, {"workflow_from": OTHER}):
        refusal = check_ref(replace(caller, **changes), "main")
        assert refusal is not None
        assert refusal.code == "wrong_ref"
    assert check_ref(replace(caller, workflow_from=RepoName("ORG/Backend")), "main") is None


@pytest.mark.parametrize("missing", [{"ref": None}, {"workflow_at": None, "workflow_from": None}])
def test_a_missing_ref_claim_is_refused_unless_github_fixes_the_ref(missing: dict[str, None]) -> None:
    caller = a_caller(event_name="workflow_dispatch", **{**ref_claims(), **missing})
    refusal = check_ref(caller, "main", ("refs/heads/main",))
    assert refusal is not None
    assert refusal.code == "wrong_ref"
    assert check_ref(replace(caller, event_name="schedule"), "main") is None
