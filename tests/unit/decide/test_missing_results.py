"""The verdict on a backend whose results are missing."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from crcr.decide.failures.verdict import Confidence, VerdictKind
from crcr.decide.model import DispatchState, Level, RepoName
from crcr.decide.views.commit import BackendState, CommitBackend, Spell
from crcr.decide.views.missing_results import (
    BackendReporting,
    judge_missing_jobs,
    judge_silence,
    reports_nothing,
)
from crcr.decide.views.overview import DispatchView
from support.data.backend_views import a_job_view

SENT = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOUR, LIMIT = timedelta(hours=1), timedelta(hours=8)
UPSTREAM = RepoName("up/stream")
S = BackendState


def a_dispatch(**facts: Any) -> DispatchView:
    dispatch = DispatchView(
        delivery="d",
        downstream="org/one",
        level=Level.L2,
        state=DispatchState.SENT,
        reason=None,
        event="pull_request",
        action="opened",
        number=7,
        head_sha="a" * 40,
        test=False,
        unsure=False,
        created_at=SENT,
        sent_at=SENT,
        superseded_at=None,
    )
    return replace(dispatch, **facts)


def a_backend(
    state: BackendState, *jobs: str, dispatch: DispatchView | None = None, **facts: Any
) -> CommitBackend:
    backend = CommitBackend(
        name=RepoName("org/one"),
        level=Level.L2,
        level_now=Level.L2,
        device=None,
        oncalls=(),
        state=state,
        delivery="d",
        event="pull_request",
        dispatch=dispatch or a_dispatch(),
        spell=Spell(),
        jobs=tuple(a_job_view(name=name) for name in jobs),
        jobs_left_out=0,
    )
    return replace(backend, **facts)


@pytest.mark.parametrize("state", list(BackendState))
def test_results_are_missing_only_in_states_that_should_have_reported(state: BackendState) -> None:
    missing_states = {S.NEVER_STARTED, S.UNANSWERED, S.UNREPORTED}
    assert reports_nothing(a_backend(state), LIMIT, SENT) is (state in missing_states)
    missing_states |= {S.NO_REPORT}
    assert reports_nothing(a_backend(state), LIMIT, SENT + HOUR) is (state in missing_states)
    assert reports_nothing(a_backend(state), LIMIT, SENT + LIMIT) is (state in {*missing_states, S.STARTED})


NOT_AWAITED: list[dict[str, Any]] = [
    {"superseded_at": SENT},
    {"test": True},
    {"action": "closed"},
    {"sent_at": None},
]


@pytest.mark.parametrize("facts", NOT_AWAITED)
def test_no_report_is_expected_for_superseded_test_closed_or_unsent_dispatches(facts: dict[str, Any]) -> None:
    late = SENT + 100 * HOUR
    dispatch = a_dispatch(**facts)
    assert not reports_nothing(a_backend(S.NEVER_STARTED, dispatch=dispatch), LIMIT, late)
    passed = a_backend(S.PASSED, "build", dispatch=dispatch)
    assert judge_missing_jobs(passed, ("test",), LIMIT, UPSTREAM, late) is None


WHERE = [
    (SENT + HOUR, False, "Only here: it has reported for others since, last at 01 Jan 13:00 UTC.", Confidence.HIGH),
    (SENT - HOUR, True, "It is silent for everybody: no report since 01 Jan 11:00 UTC.", Confidence.HIGH),
    (None, True, "It is silent for everybody: no report ever.", Confidence.HIGH),
    (SENT - HOUR, False, "No other report has come since; the last one came at 01 Jan 11:00 UTC.", Confidence.MEDIUM),
    (None, False, "No other report has come since; there never was one.", Confidence.MEDIUM),
]  # fmt: skip


@pytest.mark.parametrize(("last_at", "silent", "words", "confidence"), WHERE)
def test_the_verdict_states_whether_the_backend_is_silent_for_everybody(
    last_at: datetime | None, silent: bool, words: str, confidence: Confidence
) -> None:
    verdict = judge_silence(a_backend(S.UNANSWERED), BackendReporting(last_at, silent), UPSTREAM)
    assert (verdict.kind, verdict.confidence) == (VerdictKind.MISSING, confidence)
    assert verdict.sentence == f"No run answered the dispatch. {words}"
    assert verdict.evidence[0].url == "/crcr/org/one?upstream=up/stream"


def test_an_expected_job_that_never_reported_is_named_after_the_time_limit() -> None:
    backend = a_backend(S.PASSED, "build", "shard (1)")
    expected = ("build", "shard (*)", "a", "b", "c", "d")
    assert judge_missing_jobs(backend, expected, LIMIT, UPSTREAM, SENT + LIMIT - HOUR) is None
    verdict = judge_missing_jobs(backend, expected, LIMIT, UPSTREAM, SENT + LIMIT)
    assert verdict is not None
    assert verdict.sentence.startswith("Expected and never reported: a, b, c and 1 more. Other jobs")
    assert judge_missing_jobs(backend, expected[:2], LIMIT, UPSTREAM, SENT + LIMIT) is None
    assert judge_missing_jobs(backend, (), LIMIT, UPSTREAM, SENT + LIMIT) is None
    truncated = replace(backend, jobs_left_out=1)
    assert judge_missing_jobs(truncated, expected, LIMIT, UPSTREAM, SENT + LIMIT) is None
