"""An undecided check is published at once only for changes that a merge or a person depends on."""

from dataclasses import replace
from typing import Any

import pytest

from crcr.decide.checks.commit import BackendResults, MergeSubject
from crcr.decide.checks.gate import judge_for_subject, judge_gate
from crcr.decide.checks.publication import backend_brief, gate_brief
from crcr.decide.model import Conclusion, DispatchState, Level
from support.data.commits import (
    NOW,
    POLICY,
    a_backend,
    a_commit,
    a_job,
    a_run,
    a_subject,
    a_waiver,
    an_entry,
    an_open_job,
    an_unsent_backend,
)

IN_PROGRESS = (a_run(over=False),)
OTHER = a_backend(an_open_job(), runs=IN_PROGRESS, name="org/two")


def gate_brief_for(*backends: BackendResults, incarnation: str = "1", **facts: Any) -> str | None:
    subject = a_subject(*backends, **facts)
    return gate_brief(judge_gate(a_commit(subject), POLICY, NOW), incarnation)


def backend_brief_for(backend: BackendResults, **facts: Any) -> str | None:
    subject: MergeSubject = a_subject(backend, **facts)
    return backend_brief(judge_for_subject(subject, backend, POLICY, NOW))


def running_backend(*jobs: Any, **facts: Any) -> BackendResults:
    return a_backend(*jobs, runs=IN_PROGRESS, **facts)


WAITING = a_backend(runs=(), listed_at=None)
RUNNING = running_backend(an_open_job(), an_open_job("test"))
PASSED_ONE = running_backend(a_job(), an_open_job("test"))
FAILED_ONE = running_backend(a_job(Conclusion.FAILURE), an_open_job("test"))
FAILED_TWO = running_backend(
    a_job(Conclusion.FAILURE), a_job(Conclusion.FAILURE, name="lint"), an_open_job("test")
)
FIXED_ONE = running_backend(a_job(Conclusion.FAILURE), replace(a_job(), attempt=2), an_open_job("test"))
HELD = an_unsent_backend(DispatchState.HELD, "approval")

SAME = [
    pytest.param(WAITING, RUNNING, id="its jobs start"),
    pytest.param(RUNNING, PASSED_ONE, id="a job passes"),
    pytest.param(FAILED_ONE, FAILED_TWO, id="another job fails"),
]
DIFFERENT = [
    pytest.param(RUNNING, FAILED_ONE, id="a job fails"),
    pytest.param(HELD, RUNNING, id="a hold ends"),
    pytest.param(HELD, an_unsent_backend(DispatchState.HELD, "draft"), id="another hold"),
    pytest.param(PASSED_ONE, FIXED_ONE, id="a failed job passes in a rerun"),
]


@pytest.mark.parametrize(("before", "after"), SAME)
def test_progress_of_an_undecided_check_is_not_published_at_once(
    before: BackendResults, after: BackendResults
) -> None:
    assert backend_brief_for(before) == backend_brief_for(after) is not None
    assert gate_brief_for(before, OTHER) == gate_brief_for(after, OTHER) is not None


@pytest.mark.parametrize(("before", "after"), DIFFERENT)
def test_changes_of_failures_and_holds_are_published_at_once(
    before: BackendResults, after: BackendResults
) -> None:
    assert backend_brief_for(before) != backend_brief_for(after)
    assert gate_brief_for(before, OTHER) != gate_brief_for(after, OTHER)


def test_a_second_failing_backend_does_not_publish_a_red_gate_again() -> None:
    third = a_backend(an_open_job(), runs=IN_PROGRESS, name="org/three")
    failing = a_backend(a_job(Conclusion.FAILURE), name="org/two")
    assert gate_brief_for(FAILED_ONE, OTHER, third) == gate_brief_for(FAILED_ONE, failing, third) is not None


def test_a_waiver_is_published_at_once() -> None:
    assert backend_brief_for(FAILED_ONE) != backend_brief_for(FAILED_ONE, waivers=(a_waiver(),))
    failed_too = a_backend(a_job(Conclusion.FAILURE), name="org/two")
    assert gate_brief_for(FAILED_ONE, failed_too) != gate_brief_for(
        FAILED_ONE, failed_too, waivers=(a_waiver(),)
    )


CHANGED: list[dict[str, Any]] = [{"incarnation": "2"}, {"in_doubt": True}]


@pytest.mark.parametrize("changed", CHANGED)
def test_a_new_incarnation_or_an_in_doubt_push_publishes_the_gate_again(changed: dict[str, Any]) -> None:
    assert gate_brief_for(RUNNING) != gate_brief_for(RUNNING, **changed)


def test_a_backend_that_joins_or_leaves_the_gate_publishes_it_again() -> None:
    removed = replace(OTHER, entry=None)
    demoted = replace(OTHER, entry=an_entry(level=Level.L3))
    promoted = replace(OTHER, level=Level.L3)
    briefs = {gate_brief_for(RUNNING, backend) for backend in (OTHER, removed, demoted, promoted)}
    assert len(briefs) == 4


def test_a_decided_check_has_no_brief_so_every_change_is_published() -> None:
    assert backend_brief_for(a_backend(a_job())) is None
    assert backend_brief_for(a_backend(a_job(Conclusion.FAILURE))) is None
    assert gate_brief_for(a_backend(a_job()), HELD) is None
