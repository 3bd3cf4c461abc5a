"""Failures and histories as `judge_failure` takes them: the judged failure is pull request 7, built on the base's commit 10."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from crcr.decide.failures.history import BackendHour, BaseResult, FailedAs, JobHistory, RecordedFailure
from crcr.decide.failures.judge import judge_failure
from crcr.decide.failures.verdict import JobVerdict, VerdictPolicy
from crcr.decide.statistics.window import ResultKind

NOON = datetime(2026, 11, 10, 12, tzinfo=UTC)
OWN, OTHER = "own-failure", "other-failure"


def own(**facts: Any) -> RecordedFailure:
    """The judged failure: pull request 7, built on the base's commit 10."""
    values: dict[str, Any] = {
        "failure_id": 1,
        "kind": ResultKind.PULLS,
        "number": 7,
        "head_sha": "head-7",
        "base_ref": "main",
        "position": 10,
        "exact": True,
        "author": "ada",
        "trusted": True,
        "at": NOON,
        "ended": FailedAs.FAILURE,
        "fingerprints": frozenset({OWN}),
        "run_id": "1",
    }
    return RecordedFailure(**(values | facts))


def other(number: int, position: int | None = 10, **facts: Any) -> RecordedFailure:
    """The same failure on another author's pull request."""
    values = {
        "failure_id": 100 + number,
        "number": number,
        "head_sha": f"head-{number}",
        "author": f"author-{number}",
    }
    return own(**({**values, "position": position, "at": NOON - timedelta(hours=20 - number)} | facts))


def flip(position: int, **facts: Any) -> RecordedFailure:
    """The same failure on a commit of the base that passed when it was run again."""
    values = {"kind": ResultKind.PUSH, "number": None, "author": None, "on_branch": True, "passed_at": NOON}
    return own(
        **(
            {**values, "failure_id": 500 + position, "head_sha": f"base-{position}", "position": position}
            | facts
        )
    )


def base(states: str, first: int = 1, fingerprint: str = OWN) -> tuple[BaseResult, ...]:
    """Results of consecutive commits: `.` passed, `F` failed, a blank was not tested; an hour apart, long before noon."""
    return tuple(
        BaseResult(
            sha=f"base-{first + index}",
            position=first + index,
            at=NOON - timedelta(days=2) + timedelta(hours=index),
            passed=state == ".",
            fingerprints=frozenset() if state == "." else frozenset({fingerprint}),
        )
        for index, state in enumerate(states)
        if state != " "
    )


def judge(
    failure: RecordedFailure | None = None,
    states: str | Sequence[BaseResult] = "",
    *others: RecordedFailure,
    hour: BackendHour | None = None,
    **facts: Any,
) -> JobVerdict:
    failure = failure or own()
    history = JobHistory(
        base=base(states) if isinstance(states, str) else tuple(states), failures=(failure, *others), **facts
    )
    return judge_failure(failure, history, hour or BackendHour(), VerdictPolicy())


def kind(judged: JobVerdict) -> tuple[str, str]:
    return judged.verdict.kind.value, judged.verdict.confidence.value
