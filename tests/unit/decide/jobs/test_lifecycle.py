"""The transition table of a job, compared with the one of the protocol."""

from itertools import product

import pytest

from crcr.decide.jobs.lifecycle import (
    LIFECYCLE,
    Apply,
    JobEvent,
    Reject,
    Repeat,
    Transition,
    lifecycle_diagram,
    worse_conclusion,
)
from crcr.decide.model import Conclusion, JobMark, JobState

S, E = JobState, JobEvent

# State / in_progress / completed / another conclusion / silence: the table of the protocol, and the sweeper's row.
EXPECTED: dict[JobState, tuple[Transition, Transition, Transition, Transition]] = {
    S.DISPATCHED: (Apply(S.IN_PROGRESS), Reject("no_in_progress"), Reject("no_in_progress"), Repeat()),
    S.IN_PROGRESS: (Repeat(), Apply(S.COMPLETED), Apply(S.COMPLETED), Apply(S.TIMED_OUT)),
    S.COMPLETED: (Repeat(), Repeat(), Reject("conflicting_result", JobMark.DISPUTED), Repeat()),
    S.TIMED_OUT: (Repeat(), Apply(S.COMPLETED, JobMark.LATE), Apply(S.COMPLETED, JobMark.LATE), Repeat()),
}


def test_every_state_has_a_verdict_for_every_event() -> None:
    assert set(LIFECYCLE) == set(product(JobState, JobEvent))


@pytest.mark.parametrize("state", JobState)
def test_the_table_equals_the_table_of_the_protocol(state: JobState) -> None:
    events = (E.STARTED, E.FINISHED, E.FINISHED_OTHERWISE, E.WENT_SILENT)
    assert tuple(LIFECYCLE[state, event] for event in events) == EXPECTED[state]


def test_no_state_is_skipped_or_left_backwards() -> None:
    moves = {(state, v.state) for (state, _), v in LIFECYCLE.items() if isinstance(v, Apply)}
    assert moves == {
        (S.DISPATCHED, S.IN_PROGRESS),
        (S.IN_PROGRESS, S.COMPLETED),
        (S.IN_PROGRESS, S.TIMED_OUT),
        (S.TIMED_OUT, S.COMPLETED),
    }


def test_completed_is_final() -> None:
    assert not any(isinstance(LIFECYCLE[S.COMPLETED, event], Apply) for event in JobEvent)


@pytest.mark.parametrize("bad", [Conclusion.FAILURE, Conclusion.NONE, Conclusion.TIMED_OUT])
@pytest.mark.parametrize("good", [Conclusion.SUCCESS, Conclusion.NEUTRAL, Conclusion.SKIPPED])
def test_the_worse_of_two_results_counts(good: Conclusion, bad: Conclusion) -> None:
    assert worse_conclusion(good, bad) is worse_conclusion(bad, good) is bad


def test_any_two_conclusions_have_a_worse_one_that_does_not_depend_on_their_order() -> None:
    for one, other in product(Conclusion, Conclusion):
        assert worse_conclusion(one, other) is worse_conclusion(other, one)
        assert worse_conclusion(one, other) in {one, other}


def test_the_diagram_shows_each_move_once() -> None:
    lines = lifecycle_diagram().splitlines()
    moves = [verdict for verdict in LIFECYCLE.values() if isinstance(verdict, Apply)]
    assert lines[0] == "stateDiagram-v2"
    assert len(lines) == len(set(lines)) == len(moves) + 2
    assert "    timed_out --> completed: completed (late)" in lines
