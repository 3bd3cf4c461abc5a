"""The search of a bisection: which commit to test next, or how it ends, from the results of its runs so far.

Commits of the range are numbered: 0 is the good end, `commits` is the bad end, and every commit but 0 is a candidate. The two
ends are tested first, with the downstream as it is today. Then the middle of what is left is tested until one commit is left:
⌈log2 commits⌉ + 2 runs where each commit needs one run.

- A pass is a pass: a commit that passed in any run is good, and is never blamed.
- A failure may be chance. It is repeated until the chance is at most one percent under the job's flake rate, at most three runs;
  at the good end, where it would end the search, at least once.
- A commit whose runs tell nothing is skipped. Its neighbours are tested, and it stays a candidate.

Nothing is remembered between two calls: the same results always lead to the same step, after a restart and in any process.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

LOWEST_FLAKE_RATE = 0.01
MOST_RUNS_OF_COMMIT = 3
_CHANCE = 0.01
_MOST_SILENT_OF_COMMIT = 2
_MOST_SILENT_IN_A_ROW = 5
"""Two commits that cannot be tested, and one run more."""
_FAILURES_OF_GOOD_END = 2
"""At least: a failure there ends the search, and costs no run where the search succeeds."""


class RunResult(StrEnum):
    """What one run says about the failure."""

    PASSED = "passed"
    FAILED = "failed"
    """It shows the failure."""
    FAILED_OTHERWISE = "failed_otherwise"
    """It failed in another way, and may not have come as far as this failure."""
    NO_RESULT = "no_result"
    """It never started, never reported, or was cancelled."""


@dataclass(frozen=True, slots=True)
class SearchRun:
    position: int
    result: RunResult | None
    """None while it runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchLimits:
    commits: int
    """How many candidates there are; the position of the bad end."""
    most_runs: int
    flake_rate: float = LOWEST_FLAKE_RATE

    def __post_init__(self) -> None:
        if self.commits < 1:
            raise ValueError("a range has at least one candidate")

    @property
    def failures_needed(self) -> int:
        """How many failures of one commit are no chance."""
        rate, needed = max(self.flake_rate, LOWEST_FLAKE_RATE), 1
        while round(rate**needed, 6) > _CHANCE and needed < MOST_RUNS_OF_COMMIT:
            needed += 1
        return needed


class CommitFinding(StrEnum):
    """What all runs of one commit say together."""

    GOOD = "good"
    BAD = "bad"
    UNCLEAR = "unclear"
    OPEN = "open"
    """It needs another run."""


class BisectionOutcome(StrEnum):
    FOUND = "found"
    DOWNSTREAM_CHANGED = "downstream_changed"
    """The good end fails with today's downstream."""
    NOT_REPRODUCED = "not_reproduced"
    """The bad end passes with today's downstream."""
    NARROWED = "narrowed"
    """The commits that are left cannot be tested."""
    BUDGET_SPENT = "budget_spent"
    NO_ANSWER = "no_answer"
    """Runs have no result."""
    STOPPED = "stopped"
    """By a person."""
    WITHDRAWN = "withdrawn"
    """The backend left the allowlist, is suspended, or does not allow bisection any more."""


@dataclass(frozen=True, slots=True)
class CommitsLeft:
    """What is left of the range: the culprit is after `good`, up to `bad`."""

    good: int
    bad: int

    @property
    def number(self) -> int:
        return self.bad - self.good


@dataclass(frozen=True, slots=True)
class TestCommit:
    """Run this commit next."""

    __test__ = False  # not a pytest class

    position: int
    left: CommitsLeft


@dataclass(frozen=True, slots=True)
class AwaitRun:
    """A run has not ended yet."""

    left: CommitsLeft


@dataclass(frozen=True, slots=True)
class FinishSearch:
    outcome: BisectionOutcome
    left: CommitsLeft


SearchStep = TestCommit | AwaitRun | FinishSearch


def next_step(limits: SearchLimits, runs: Sequence[SearchRun]) -> SearchStep:
    """`runs` in the order in which they were sent."""
    findings = judge_commits(limits, runs)
    left = _find_left(limits, findings)
    if any(run.result is None for run in runs):
        return AwaitRun(left)
    step = _next_test(limits, findings, left)
    if isinstance(step, FinishSearch):
        return step
    if _has_no_answer(runs):
        return FinishSearch(BisectionOutcome.NO_ANSWER, left)
    if len(runs) >= limits.most_runs:
        return FinishSearch(BisectionOutcome.BUDGET_SPENT, left)
    return step


def judge_commits(limits: SearchLimits, runs: Sequence[SearchRun]) -> dict[int, CommitFinding]:
    """The tested commits with what their runs say."""
    results: dict[int, list[RunResult]] = {}
    for run in runs:
        of_commit = results.setdefault(run.position, [])
        if run.result is not None:
            of_commit.append(run.result)
    return {
        position: _judge_commit(of_commit, _failures_needed(limits, position))
        for position, of_commit in results.items()
    }


def _failures_needed(limits: SearchLimits, position: int) -> int:
    return max(limits.failures_needed, _FAILURES_OF_GOOD_END) if position == 0 else limits.failures_needed


def _judge_commit(results: Sequence[RunResult], failures_needed: int) -> CommitFinding:
    if RunResult.PASSED in results:
        return CommitFinding.GOOD
    failed, otherwise = results.count(RunResult.FAILED), results.count(RunResult.FAILED_OTHERWISE)
    if failed >= failures_needed:
        return CommitFinding.BAD
    is_silent = results.count(RunResult.NO_RESULT) >= _MOST_SILENT_OF_COMMIT
    fails_otherwise = otherwise >= failures_needed
    if is_silent or fails_otherwise or len(results) >= MOST_RUNS_OF_COMMIT:
        return CommitFinding.UNCLEAR
    return CommitFinding.OPEN


def _next_test(
    limits: SearchLimits, findings: dict[int, CommitFinding], left: CommitsLeft
) -> TestCommit | FinishSearch:
    ends = (
        (limits.commits, CommitFinding.BAD, BisectionOutcome.NOT_REPRODUCED, BisectionOutcome.NO_ANSWER),
        (0, CommitFinding.GOOD, BisectionOutcome.DOWNSTREAM_CHANGED, BisectionOutcome.DOWNSTREAM_CHANGED),
    )
    for position, expected, contradicted, unclear in ends:
        finding = findings.get(position, CommitFinding.OPEN)
        if finding is CommitFinding.OPEN:
            return TestCommit(position, left)
        if finding is not expected:
            return FinishSearch(unclear if finding is CommitFinding.UNCLEAR else contradicted, left)
    if left.number == 1:
        return FinishSearch(BisectionOutcome.FOUND, left)
    middle = left.good + left.number // 2
    inside = range(left.good + 1, left.bad)
    testable = [position for position in inside if findings.get(position) is not CommitFinding.UNCLEAR]
    if not testable:
        return FinishSearch(BisectionOutcome.NARROWED, left)
    # A commit that needs another run comes before all others, so that its run is not in vain.
    begun = [position for position in testable if position in findings]
    return TestCommit(min(begun or testable, key=lambda position: (abs(position - middle), position)), left)


def _find_left(limits: SearchLimits, findings: dict[int, CommitFinding]) -> CommitsLeft:
    """The narrowest gap between a good commit and a bad one after it; of two, the newer.

    The ends of the range count as good and bad until they are tested. There is more than one gap only where a result was
    corrected later.
    """
    ends = {0: CommitFinding.GOOD, limits.commits: CommitFinding.BAD}
    clear = (CommitFinding.GOOD, CommitFinding.BAD)
    tested = {position: finding for position, finding in findings.items() if finding in clear}
    decided = sorted({**tested, **ends}.items())
    gaps = [
        CommitsLeft(good, bad)
        for (good, before), (bad, after) in pairwise(decided)
        if (before, after) == clear
    ]
    return min(gaps, key=lambda gap: (gap.number, -gap.bad))


def _has_no_answer(runs: Sequence[SearchRun]) -> bool:
    last = [run.result for run in runs[-_MOST_SILENT_IN_A_ROW:]]
    return len(last) == _MOST_SILENT_IN_A_ROW and set(last) == {RunResult.NO_RESULT}


def measure_flake_rate(*, flaky: int, passed: int, chance: float = 0.0) -> float:
    """The share of a job's results that failed by chance; `chance` is the rate of the failure itself, where it is known."""
    rate = flaky / (flaky + passed) if flaky else 0.0
    return max(rate, chance, LOWEST_FLAKE_RATE)
