"""The search of a bisection for any results: it ends, it blames no commit that passed, and it never excludes the culprit."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crcr.decide.bisection.search import (
    MOST_RUNS_OF_COMMIT,
    AwaitRun,
    BisectionOutcome,
    CommitFinding,
    FinishSearch,
    RunResult,
    SearchLimits,
    SearchRun,
    TestCommit,
    judge_commits,
    next_step,
)

ANY_RESULT = st.sampled_from(RunResult)
ENOUGH_RUNS = 2_000
Oracle = Callable[[int], RunResult]
"""What a run of the commit at a position shows."""


@dataclass(frozen=True)
class Search:
    """A search that was simulated to its end."""

    limits: SearchLimits
    runs: tuple[SearchRun, ...]
    end: FinishSearch

    @property
    def blamed(self) -> int | None:
        return self.end.left.bad if self.end.outcome is BisectionOutcome.FOUND else None

    def results_of(self, position: int) -> list[RunResult | None]:
        return [run.result for run in self.runs if run.position == position]


def simulate(limits: SearchLimits, oracle: Oracle) -> Search:
    runs: list[SearchRun] = []
    while isinstance(step := next_step(limits, runs), TestCommit):
        assert len(runs) < limits.most_runs
        runs.append(SearchRun(step.position, oracle(step.position)))
    assert isinstance(step, FinishSearch)
    return Search(limits, tuple(runs), step)


def bound(commits: int) -> int:
    """⌈log2 commits⌉, and the two ends."""
    return (commits - 1).bit_length() + 2


def fails_from(culprit: int) -> Oracle:
    return lambda position: RunResult.FAILED if position >= culprit else RunResult.PASSED


def cycle_results(results: Sequence[RunResult]) -> Oracle:
    """Return an oracle that cycles through the results, whichever commit is tested."""
    answered = 0

    def oracle(_: int) -> RunResult:
        nonlocal answered
        answered += 1
        return results[(answered - 1) % len(results)]

    return oracle


@st.composite
def any_search(draw: st.DrawFn) -> Search:
    limits = SearchLimits(
        commits=draw(st.integers(1, 120)),
        most_runs=draw(st.integers(3, 100)),
        flake_rate=draw(st.floats(0, 1)),
    )
    return simulate(limits, cycle_results(draw(st.lists(ANY_RESULT, min_size=1, max_size=40))))


@given(any_search())
def test_the_search_ends_within_its_run_limit_for_any_results(search: Search) -> None:
    assert len(search.runs) <= search.limits.most_runs
    assert 0 <= search.end.left.good < search.end.left.bad <= search.limits.commits


@given(any_search())
def test_no_commit_gets_more_runs_than_the_limit_per_commit(search: Search) -> None:
    tested = {run.position for run in search.runs}
    assert all(len(search.results_of(position)) <= MOST_RUNS_OF_COMMIT for position in tested)


@given(any_search())
def test_a_blamed_commit_never_passed_and_the_commit_before_it_passed(search: Search) -> None:
    if search.blamed is not None:
        blamed, before = search.results_of(search.blamed), search.results_of(search.blamed - 1)
        assert RunResult.PASSED not in blamed
        assert blamed.count(RunResult.FAILED) >= search.limits.failures_needed
        assert RunResult.PASSED in before


@given(any_search(), st.data())
def test_a_restart_after_any_run_continues_with_the_same_step(search: Search, data: st.DataObject) -> None:
    done = data.draw(st.integers(0, len(search.runs)))
    runs = list(search.runs[:done])
    step = next_step(search.limits, runs)
    assert runs == list(search.runs[:done])
    if done < len(search.runs):
        assert isinstance(step, TestCommit)
        assert step.position == search.runs[done].position
    else:
        assert step == search.end


@given(any_search(), st.data())
def test_no_run_is_sent_while_another_is_awaited(search: Search, data: st.DataObject) -> None:
    waiting = data.draw(st.integers(0, len(search.runs) - 1))
    runs = list(search.runs[: waiting + 1])
    runs[waiting] = SearchRun(runs[waiting].position, None)
    assert isinstance(next_step(search.limits, runs), AwaitRun)


@given(st.data())
def test_any_results_of_any_commits_have_a_next_step(data: st.DataObject) -> None:
    """A result may be corrected after later runs were sent: the history then has runs that the search would not send."""
    commits = data.draw(st.integers(1, 30))
    run = st.builds(SearchRun, st.integers(0, commits), st.none() | ANY_RESULT)
    runs = data.draw(st.lists(run, max_size=40))
    limits = SearchLimits(commits=commits, most_runs=data.draw(st.integers(3, 50)))
    step = next_step(limits, runs)
    findings = judge_commits(limits, runs)
    assert step.left.good < step.left.bad
    assert findings.get(step.left.good, CommitFinding.GOOD) is not CommitFinding.BAD or step.left.good == 0
    if isinstance(step, TestCommit):
        assert len(runs) < limits.most_runs
        assert findings.get(step.position, CommitFinding.OPEN) is CommitFinding.OPEN
    if isinstance(step, FinishSearch) and step.outcome is BisectionOutcome.FOUND:
        assert findings[step.left.bad] is CommitFinding.BAD
        assert findings[step.left.good] is CommitFinding.GOOD


@given(st.integers(1, 500), st.data())
def test_the_culprit_of_a_deterministic_job_is_found_within_the_bound(
    commits: int, data: st.DataObject
) -> None:
    culprit = data.draw(st.integers(1, commits))
    search = simulate(SearchLimits(commits=commits, most_runs=bound(commits)), fails_from(culprit))
    assert search.blamed == culprit
    assert len(search.runs) <= bound(commits)


@pytest.mark.parametrize("commits", range(1, 41))
def test_every_culprit_of_a_small_range_is_found_within_the_bound(commits: int) -> None:
    limits = SearchLimits(commits=commits, most_runs=bound(commits))
    assert [simulate(limits, fails_from(culprit)).blamed for culprit in range(1, commits + 1)] == list(
        range(1, commits + 1)
    )


@given(st.lists(st.booleans(), max_size=60))
def test_a_job_that_was_fixed_in_between_is_blamed_on_a_commit_that_broke_it(inside: list[bool]) -> None:
    fails = [False, *inside, True]
    commits = len(fails) - 1
    search = simulate(
        SearchLimits(commits=commits, most_runs=bound(commits)),
        lambda position: RunResult.FAILED if fails[position] else RunResult.PASSED,
    )
    assert search.blamed is not None
    assert (fails[search.blamed - 1], fails[search.blamed]) == (False, True)


@given(st.integers(1, 200), st.floats(0, 1), st.data())
def test_confirming_failures_costs_at_most_three_times_the_runs(
    commits: int, flake_rate: float, data: st.DataObject
) -> None:
    culprit = data.draw(st.integers(1, commits))
    limits = SearchLimits(commits=commits, most_runs=ENOUGH_RUNS, flake_rate=flake_rate)
    search = simulate(limits, fails_from(culprit))
    assert search.blamed == culprit
    assert len(search.runs) <= MOST_RUNS_OF_COMMIT * bound(commits)


@given(st.integers(2, 80), st.floats(0, 0.5), st.data())
def test_random_failures_mislead_only_if_every_run_of_an_earlier_commit_fails(
    commits: int, flake_rate: float, data: st.DataObject
) -> None:
    culprit = data.draw(st.integers(1, commits))
    limits = SearchLimits(commits=commits, most_runs=ENOUGH_RUNS, flake_rate=flake_rate)
    random_failures = data.draw(st.lists(st.booleans(), min_size=1, max_size=30))
    flaky_oracle = cycle_results(
        [RunResult.FAILED if fails else RunResult.PASSED for fails in random_failures]
    )
    search = simulate(
        limits, lambda position: RunResult.FAILED if position >= culprit else flaky_oracle(position)
    )
    if search.blamed is not None and search.blamed != culprit:
        assert search.blamed < culprit
        assert search.results_of(search.blamed) == [RunResult.FAILED] * limits.failures_needed


@given(st.integers(2, 80), st.data())
def test_inconclusive_commits_never_exclude_the_culprit(commits: int, data: st.DataObject) -> None:
    culprit = data.draw(st.integers(1, commits))
    inconclusive_results = st.sampled_from((RunResult.NO_RESULT, RunResult.FAILED_OTHERWISE))
    inconclusive = data.draw(st.dictionaries(st.integers(1, commits - 1), inconclusive_results))
    true_result = fails_from(culprit)
    limits = SearchLimits(commits=commits, most_runs=ENOUGH_RUNS)
    search = simulate(limits, lambda position: inconclusive.get(position, true_result(position)))
    assert search.end.left.good < culprit <= search.end.left.bad
    assert search.end.outcome in (
        BisectionOutcome.FOUND,
        BisectionOutcome.NARROWED,
        BisectionOutcome.NO_ANSWER,
    )
    if search.end.outcome is BisectionOutcome.NARROWED:
        assert set(range(search.end.left.good + 1, search.end.left.bad)) <= set(inconclusive)
    if (
        not inconclusive.keys() & {culprit, culprit - 1}
        and search.end.outcome is not BisectionOutcome.NO_ANSWER
    ):
        assert search.blamed == culprit


@given(
    st.integers(1, 80), st.sampled_from((RunResult.PASSED, RunResult.NO_RESULT, RunResult.FAILED_OTHERWISE))
)
def test_a_bad_end_that_does_not_fail_ends_the_search(commits: int, shown: RunResult) -> None:
    search = simulate(SearchLimits(commits=commits, most_runs=ENOUGH_RUNS), lambda _: shown)
    passes = shown is RunResult.PASSED
    assert search.end.outcome is (BisectionOutcome.NOT_REPRODUCED if passes else BisectionOutcome.NO_ANSWER)
    assert {run.position for run in search.runs} == {commits}


@given(
    st.integers(1, 80), st.sampled_from((RunResult.FAILED, RunResult.NO_RESULT, RunResult.FAILED_OTHERWISE))
)
def test_a_good_end_that_does_not_pass_ends_the_search(commits: int, shown: RunResult) -> None:
    search = simulate(
        SearchLimits(commits=commits, most_runs=ENOUGH_RUNS),
        lambda position: RunResult.FAILED if position == commits else shown,
    )
    assert search.end.outcome is BisectionOutcome.DOWNSTREAM_CHANGED
    assert {run.position for run in search.runs} == {0, commits}
