"""Events, callers and reports: complete defaults, changed by keyword."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from crcr.decide.events import PullRequestEvent, PushEvent
from crcr.decide.jobs.judge import RejectedReport
from crcr.decide.jobs.report import Report, ReportStatus
from crcr.decide.model import RepoName
from crcr.decide.oidc.identity import Identity, IssuerKind

NOW = datetime(2026, 1, 1, tzinfo=UTC)
UPSTREAM = RepoName("up/stream")
BACKEND = RepoName("org/backend")

_PULL = PullRequestEvent(
    upstream=UPSTREAM,
    repository_id=1,
    action="opened",
    number=7,
    head_sha="a" * 40,
    before=None,
    base_ref="main",
    updated_at=NOW,
    is_open=True,
    merged=False,
    draft=False,
    labels=(),
    title="Fix it",
    author="ann",
    author_association="NONE",
    installation_id=1,
)
_PUSH = PushEvent(
    upstream=UPSTREAM,
    repository_id=1,
    ref="refs/heads/main",
    before="a" * 40,
    after="b" * 40,
    deleted=False,
    changed_paths=frozenset(),
    installation_id=1,
)
_CALLER = Identity(
    issuer="https://issuer.example",
    kind=IssuerKind.GITHUB,
    repository=BACKEND,
    repository_id=5,
    owner_id=6,
    run_id="10",
    run_attempt=1,
    check_run_id="100",
    workflow_path=".github/workflows/ci.yml",
    event_name="repository_dispatch",
    expires_at=NOW,
)
_START = Report(
    event_type="pull_request",
    delivery_id="guid",
    status=ReportStatus.IN_PROGRESS,
    conclusion=None,
    workflow_name="CI",
    run_id="10",
    run_attempt=1,
    job_name="build",
    url=None,
    artifact_url=None,
    check_run_text=None,
    started_at=None,
    completed_at=None,
    late=False,
    tests=None,
    failed_tests=(),
    failed_tests_cut=0,
    environment=None,
    untrusted=b"{}",
)


def a_pull(**changes: Any) -> PullRequestEvent:
    return replace(_PULL, **changes)


def a_push(**changes: Any) -> PushEvent:
    return replace(_PUSH, **changes)


def a_caller(**changes: Any) -> Identity:
    return replace(_CALLER, **changes)


def ref_claims(ref: str = "refs/heads/main", repository: RepoName | None = None) -> dict[str, Any]:
    """The ref claims of a token: the run and its workflow file on the same ref."""
    return {"ref": ref, "workflow_at": ref, "workflow_from": repository or BACKEND}


def a_start(**changes: Any) -> Report:
    return replace(_START, **changes)


def count_outcomes(outcomes: Iterable[object]) -> Counter[str]:
    """Count outcomes by their type, rejections by their code."""
    return Counter(
        outcome.code if isinstance(outcome, RejectedReport) else type(outcome).__name__
        for outcome in outcomes
    )
