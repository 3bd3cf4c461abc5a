"""Levels over months of simulated behaviour: they change according to the criteria, and do not flap."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from crcr.decide.levels.criteria import (
    CRITERIA,
    CriterionName,
    LevelCriteria,
    Measure,
    Measures,
    Met,
    Observation,
    evaluate,
    median_from_slots,
    share_over,
)
from crcr.decide.levels.standings import (
    DWELL,
    TRANSITIONS,
    Demotion,
    LevelChangeKind,
    LevelPolicy,
    LevelStanding,
    StandingChange,
    demotion_in_force,
    follow_evaluation,
)
from crcr.decide.model import Level

START = datetime(2026, 1, 1, 3, tzinfo=UTC)
DAY = timedelta(days=1)


@dataclass(frozen=True)
class Day:
    """One day of a backend: how many jobs, how many of them pass and time out, and whether it reports at all."""

    jobs: int = 40
    failed: int = 0
    upstream_caused: int = 0
    timed_out: int = 0
    hours: float = 1.0
    silent: bool = False


def measure(days: Sequence[Day], *, window: int, at_l2: float = 400) -> Measures:
    """Return what the relay would measure over the last days, by the definitions of the criteria."""
    last = days[-window:]
    reported = [day for day in last if not day.silent]
    jobs, failed = sum(day.jobs for day in reported), sum(day.failed for day in reported)
    decided = jobs - sum(day.upstream_caused for day in reported)
    silent_days = next((at for at, day in enumerate(reversed(days)) if not day.silent), len(days))
    hours = sorted(day.hours for day in reported)
    return {
        CriterionName.TIME_AT_L2: Measure(at_l2),
        CriterionName.RUN_TIME: Measure(hours[len(hours) // 2] if hours else None, len(reported) * 10),
        CriterionName.LONG_JOBS: Measure(0.0 if jobs else None, jobs),
        CriterionName.QUEUE_TIME: Measure(5.0 if jobs else None, jobs),
        CriterionName.TIMEOUTS: Measure(
            100 * sum(day.timed_out for day in reported) / jobs if jobs else None, jobs
        ),
        CriterionName.PASS_RATE: Measure(100 * (jobs - failed) / decided if decided else None, decided),
        CriterionName.ANSWERED: Measure(100 * len(reported) / len(last), len(last) * 10),
        CriterionName.SILENCE: Measure(24.0 * silent_days, 10 * silent_days),
    }


def simulate(
    days: Sequence[Day], level: Level = Level.L3
) -> Iterator[tuple[int, LevelStanding, StandingChange | None]]:
    """Evaluate once a day; yield the day's number, the standing and the change."""
    criteria, known = LevelCriteria(), None
    for number in range(1, len(days) + 1):
        history = days[:number]
        evaluation = evaluate(level, measure(history, window=14), measure(history, window=7), criteria)
        known, change = follow_evaluation(known, level, evaluation, START + number * DAY)
        yield number, known.standing, change


def changes(days: Sequence[Day], level: Level = Level.L3) -> list[tuple[int, LevelChangeKind]]:
    return [(number, change.kind) for number, _, change in simulate(days, level) if change]


GOOD, BAD, SILENT = Day(), Day(failed=12), Day(silent=True)
HISTORIES = {
    "good for a quarter": ([GOOD] * 90, Level.L3, []),
    # The fourth bad day makes the week fall below 85%, and the next evaluation confirms it. The fortnight is back at 90% when
    # no more than four bad days are in it.
    "a lasting breakage, and its repair": (
        [GOOD] * 30 + [BAD] * 10 + [GOOD] * 40,
        Level.L3,
        [(35, LevelChangeKind.DEMOTED), (51, LevelChangeKind.RECOVERED)],
    ),
    "one bad day": ([GOOD] * 30 + [Day(failed=40)] + [GOOD] * 30, Level.L3, []),
    "pass rates between the thresholds": ([GOOD] * 20 + [Day(failed=5)] * 60, Level.L3, []),
    # A day without reports is a seventh of the week.
    "unanswered for a day": (
        [GOOD] * 30 + [SILENT] + [GOOD] * 60,
        Level.L3,
        [(32, LevelChangeKind.DEMOTED), (46, LevelChangeKind.RECOVERED)],
    ),
    "silent for a week": (
        [GOOD] * 30 + [SILENT] * 7 + [GOOD] * 60,
        Level.L3,
        [(32, LevelChangeKind.DEMOTED), (52, LevelChangeKind.RECOVERED)],
    ),
    "the upstream breaks it for two weeks": (
        [GOOD] * 30 + [Day(failed=40, upstream_caused=40)] * 14 + [GOOD] * 30,
        Level.L3,
        [],
    ),
    "timeouts": ([GOOD] * 20 + [Day(failed=2, timed_out=2)] * 20, Level.L3, [(24, LevelChangeKind.DEMOTED)]),
    "slow runs": ([GOOD] * 20 + [Day(hours=4)] * 20, Level.L3, [(25, LevelChangeKind.DEMOTED)]),
    "at L2, eligible once it has shown enough": ([GOOD] * 30, Level.L2, [(6, LevelChangeKind.ELIGIBLE)]),
    "at L2, and no longer": (
        [GOOD] * 30 + [BAD] * 20,
        Level.L2,
        [(6, LevelChangeKind.ELIGIBLE), (35, LevelChangeKind.NOT_ELIGIBLE)],
    ),
    "an L4 is alarmed": ([GOOD] * 30 + [BAD] * 20, Level.L4, [(35, LevelChangeKind.ALARMED)]),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_levels_change_according_to_the_criteria(name: str) -> None:
    days, level, expected = HISTORIES[name]
    assert changes(days, level) == expected


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32),
    passes=st.floats(0.5, 1.0),
    jobs=st.integers(1, 60),
    answers=st.sampled_from([1.0, 0.97, 0.9, 0.5]),
    level=st.sampled_from([Level.L2, Level.L3, Level.L4]),
)
def test_constant_behaviour_changes_a_level_at_most_once_in_14_days(
    seed: int, passes: float, jobs: int, answers: float, level: Level
) -> None:
    generator = random.Random(seed)
    days = [
        Day(
            jobs=jobs,
            failed=sum(generator.random() > passes for _ in range(jobs)),
            silent=generator.random() > answers,
            timed_out=int(generator.random() > 0.9),
        )
        for _ in range(120)
    ]
    change_days = [number for number, _ in changes(days, level)]
    silences = {
        number
        for number in change_days
        if all(
            day.silent for day in days[number - 3 : number]
        )  # three days of silence are a change of behaviour
    }
    for first, second in pairwise(change_days):
        assert second - first >= 14 or second in silences


PERIODS = st.tuples(st.sampled_from([GOOD, BAD, SILENT, Day(failed=5)]), st.integers(1, 20))


@settings(max_examples=40)
@given(
    periods=st.lists(PERIODS, min_size=1, max_size=8),
    level=st.sampled_from([Level.L2, Level.L3, Level.L4]),
    often=st.booleans(),
)
@example(periods=[(GOOD, 30), (BAD, 10), (GOOD, 40)], level=Level.L2, often=True)
@example(periods=[(GOOD, 30), (BAD, 10), (GOOD, 40)], level=Level.L3, often=True)
def test_neither_one_evaluation_nor_many_on_one_day_change_a_level(
    periods: list[tuple[Day, int]], level: Level, often: bool
) -> None:
    criteria, known, observed = LevelCriteria(), None, list[Observation]()
    days = [day for day, length in periods for _ in range(length)]
    for number in range(1, len(days) + 1):
        evaluation = evaluate(
            level, measure(days[:number], window=14), measure(days[:number], window=7), criteria
        )
        observed.append(evaluation.observation)
        for repeat in range(5 if often else 1):
            now = START + number * DAY + repeat * timedelta(hours=1)
            known, change = follow_evaluation(known, level, evaluation, now)
            if change is not None:
                agreed = Observation.MEETS if change.after > change.before else Observation.BREAKS
                assert observed[-2:] == [agreed] * 2


@settings(max_examples=30)
@given(st.lists(st.integers(0, 40), min_size=40, max_size=80))
def test_failures_that_the_upstream_caused_demote_no_backend(failed: list[int]) -> None:
    assert changes([Day(failed=number, upstream_caused=number) for number in failed]) == []


def test_the_table_of_transitions_is_complete() -> None:
    assert set(TRANSITIONS) == {
        (standing, observation) for standing in LevelStanding for observation in Observation
    }
    for (standing, _), move in TRANSITIONS.items():
        if move.to.in_order is not standing.in_order:
            assert move.needs_confirmation


@pytest.mark.parametrize(
    ("level", "standing", "policy", "overridden", "expected"),
    [
        (Level.L3, LevelStanding.HOLDS, LevelPolicy(), False, None),
        (Level.L3, LevelStanding.DOUBTED, LevelPolicy(), False, None),
        (Level.L3, LevelStanding.FAILS, LevelPolicy(), False, Demotion.SILENT),
        (Level.L3, LevelStanding.RECOVERING, LevelPolicy(), False, Demotion.SILENT),
        (Level.L3, LevelStanding.FAILS, LevelPolicy(), True, None),
        (Level.L3, LevelStanding.FAILS, LevelPolicy(silent_mode=False), False, None),
        (Level.L4, LevelStanding.FAILS, LevelPolicy(), False, Demotion.ALARMED),
        (Level.L4, LevelStanding.FAILS, LevelPolicy(l4_downgrade=True), False, Demotion.DOWNGRADED),
        (Level.L4, LevelStanding.FAILS, LevelPolicy(l4_downgrade=True), True, Demotion.ALARMED),
        (Level.L4, LevelStanding.DOUBTED, LevelPolicy(l4_downgrade=True), False, None),
        (Level.L2, LevelStanding.FAILS, LevelPolicy(), False, None),
    ],
)
def test_each_standing_has_the_expected_demotion_under_each_policy(
    level: Level, standing: LevelStanding, policy: LevelPolicy, overridden: bool, expected: Demotion | None
) -> None:
    assert demotion_in_force(level, standing, policy, overridden=overridden) is expected


def test_met_since_is_the_first_uninterrupted_evaluation_and_a_new_level_starts_over() -> None:
    evaluation = evaluate(
        Level.L2, measure([GOOD] * 20, window=14), measure([GOOD] * 20, window=7), LevelCriteria()
    )
    known, _ = follow_evaluation(None, Level.L2, evaluation, START)
    known, _ = follow_evaluation(known, Level.L2, evaluation, START + DAY)
    assert known.standing is LevelStanding.HOLDS
    assert set(known.met_since.values()) == {START}
    worse = measure([BAD] * 20, window=14)
    known, _ = follow_evaluation(
        known, Level.L2, evaluate(Level.L2, worse, worse, LevelCriteria()), START + 2 * DAY
    )
    assert CriterionName.PASS_RATE not in known.met_since
    known, _ = follow_evaluation(known, Level.L2, evaluation, START + 3 * DAY)
    assert known.met_since[CriterionName.PASS_RATE] == START + 3 * DAY
    promoted, change = follow_evaluation(known, Level.L3, evaluation, START + 4 * DAY)
    assert (promoted.standing, promoted.changed_at, change) == (LevelStanding.HOLDS, None, None)


def test_too_few_results_break_no_criterion_but_do_not_make_an_l2_backend_eligible() -> None:
    few = measure([Day(jobs=2, failed=2)] * 14, window=14)
    week = measure([Day(jobs=2, failed=2)] * 14, window=7)
    at_l3 = evaluate(Level.L3, few, week, LevelCriteria())
    assert at_l3.observation is Observation.MEETS
    at_l2 = evaluate(Level.L2, few, week, LevelCriteria())
    assert at_l2.observation is Observation.BETWEEN
    assert {result.name for result in at_l2.lacking} >= {CriterionName.PASS_RATE}
    assert all(result.met is Met.TOO_FEW for result in at_l2.lacking)
    one_lost = {**week, CriterionName.SILENCE: Measure(100.0, 2)}
    assert evaluate(Level.L3, few, one_lost, LevelCriteria()).observation is not Observation.BREAKS


def test_a_figure_just_below_its_target_is_not_rounded_to_the_target() -> None:
    close = {CriterionName.PASS_RATE: Measure(89.999, 1000)}
    results = {result.name: result for result in evaluate(Level.L3, close, close, LevelCriteria()).results}
    assert results[CriterionName.PASS_RATE].measured == "89.9% of 1,000 jobs"
    assert results[CriterionName.PASS_RATE].met is Met.NOT_MET


def test_criteria_that_would_make_a_level_flap_are_refused() -> None:
    assert list(LevelCriteria().find_problems()) == []
    assert list(replace(LevelCriteria(), leave_pass_percent=90).find_problems()) == []
    for invalid in (
        {"leave_pass_percent": 91},
        {"leave_timeout_percent": 0.5},
        {"leave_silent_hours": 24},
        {"window_days": 15},
        {"jobs": -1},
    ):
        assert list(replace(LevelCriteria(), **invalid).find_problems())
    assert {criterion.name for criterion in CRITERIA} == set(CriterionName)


def test_medians_and_shares_of_slots() -> None:
    assert median_from_slots({}, 0.25) is None
    assert median_from_slots({4: 10}, 0.25) == pytest.approx(1.125)
    assert median_from_slots({0: 1, 20: 3}, 0.25) == pytest.approx(5 + 0.25 / 3)
    assert share_over({}, 0.25, 3) is None
    assert share_over({0: 99, 12: 1}, 0.25, 3) == pytest.approx(0.01)
    assert share_over({11: 4}, 0.25, 3) == 0
    assert timedelta(days=14) == DWELL
