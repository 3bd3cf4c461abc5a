"""Which changes of an undecided check are published at once: what a merge or a person depends on, and nothing else."""

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

GOING = (a_run(over=False),)
OTHER = a_backend(an_open_job(), runs=GOING, name="org/two")


def of_gate(*backends: BackendResults, incarnation: str = "1", **facts: Any) -> str | None:
    subject = a_subject(*backends, **facts)
    return gate_brief(judge_gate(a_commit(subject), POLICY, NOW), incarnation)


def of_backend(backend: BackendResults, **facts: Any) -> str | None:
    subject: MergeSubject = a_subject(backend, **facts)
    return backend_brief(judge_for_subject(subject, backend, POLICY, NOW))


def going(*jobs: Any, **facts: Any) -> BackendResults:
    return a_backend(*jobs, runs=GOING, **facts)


WAITING = a_backend(runs=(), listed_at=None)
RUNNING = going(an_open_job(), an_open_job("test"))
PASSED_ONE = going(a_job(), an_open_job("test"))
FAILED_ONE = going(a_job(Conclusion.FAILURE), an_open_job("test"))
FAILED_TWO = going(a_job(Conclusion.FAILURE), a_job(Conclusion.FAILURE, name="lint"), an_open_job("test"))
MENDED = going(a_job(Conclusion.FAILURE), replace(a_job(), attempt=2), an_open_job("test"))
HELD = an_unsent_backend(DispatchState.HELD, "approval")

SAME = [
    pytest.param(WAITING, RUNNING, id="its jobs begin"),
    pytest.param(RUNNING, PASSED_ONE, id="a job passes"),
    pytest.param(FAILED_ONE, FAILED_TWO, id="another job fails"),
]
DIFFERENT = [
    pytest.param(RUNNING, FAILED_ONE, id="a job fails"),
    pytest.param(HELD, RUNNING, id="a hold ends"),
    pytest.param(HELD, an_unsent_backend(DispatchState.HELD, "draft"), id="another hold"),
    pytest.param(PASSED_ONE, MENDED, id="a failed job was mended"),
]


@pytest.mark.parametrize(("before", "after"), SAME)
def test_what_moves_while_a_check_is_undecided_is_not_published(
    before: BackendResults, after: BackendResults
) -> None:
    assert of_backend(before) == of_backend(after) is not None
    assert of_gate(before, OTHER) == of_gate(after, OTHER) is not None


@pytest.mark.parametrize(("before", "after"), DIFFERENT)
def test_what_people_depend_on_is_published_at_once(before: BackendResults, after: BackendResults) -> None:
    assert of_backend(before) != of_backend(after)
    assert of_gate(before, OTHER) != of_gate(after, OTHER)


def test_a_second_failing_backend_does_not_write_the_red_gate_again() -> None:
    third = a_backend(an_open_job(), runs=GOING, name="org/three")
    failing = a_backend(a_job(Conclusion.FAILURE), name="org/two")
    assert of_gate(FAILED_ONE, OTHER, third) == of_gate(FAILED_ONE, failing, third) is not None


def test_a_waiver_is_published_at_once() -> None:
    assert of_backend(FAILED_ONE) != of_backend(FAILED_ONE, waivers=(a_waiver(),))
    failed_too = a_backend(a_job(Conclusion.FAILURE), name="org/two")
    assert of_gate(FAILED_ONE, failed_too) != of_gate(FAILED_ONE, failed_too, waivers=(a_waiver(),))


CHANGED: list[dict[str, Any]] = [{"incarnation": "2"}, {"in_doubt": True}]


@pytest.mark.parametrize("changed", CHANGED)
def test_another_delivery_and_a_doubt_write_the_gate_again(changed: dict[str, Any]) -> None:
    assert of_gate(RUNNING) != of_gate(RUNNING, **changed)


def test_who_joins_or_leaves_the_gate_writes_it_again() -> None:
    gone = replace(OTHER, entry=None)
    lowered = replace(OTHER, entry=an_entry(level=Level.L3))
    risen = replace(OTHER, level=Level.L3)
    briefs = {of_gate(RUNNING, each) for each in (OTHER, gone, lowered, risen)}
    assert len(briefs) == 4


def test_once_nothing_is_awaited_every_word_counts() -> None:
    assert of_backend(a_backend(a_job())) is None
    assert of_backend(a_backend(a_job(Conclusion.FAILURE))) is None
    assert of_gate(a_backend(a_job()), HELD) is None
