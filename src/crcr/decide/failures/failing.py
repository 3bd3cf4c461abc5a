"""Continuously failing jobs: the row of failures of a job at the end of the base branch, or of its nights.

A row goes back from the newest result to the last pass. Results are in the order of the base's commits, not in the order in
which they arrived; nights are in the order of time.

- A commit (or a night) counts once, however often the job ran there. It counts as passed if any run or re-run of it passed.
- A time-out, and a job that never reported its end, are failures as in all figures: a job that hangs on every commit gives
  nobody a result.
- A failure that the backend's sick machines explain (judged `infrastructure`) neither breaks nor extends a row.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby

from crcr.decide.failures.history import NO_DETAILS


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchCommit:
    """One result of the job on a commit of the base, or of a night."""

    __test__ = False  # not a pytest class

    order: tuple[int, str]
    """The position of the commit, or the time of the night, and what tells it from others: the commit or the run."""
    sha: str | None
    at: datetime
    passed: bool
    sick: bool = False
    """It failed because the backend's machines were sick."""
    delivery: str | None = None
    fingerprint: str | None = None
    fingerprints: frozenset[str] = NO_DETAILS
    sample: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailingRow:
    since: datetime
    """When the job first failed in the row."""
    number: int
    """How many commits or nights the row has."""
    first: BranchCommit
    newest: BranchCommit
    last_good: BranchCommit | None
    """None where no pass is recorded."""


def find_failing_row(results: Iterable[BranchCommit]) -> FailingRow | None:
    """Return the row of failures that has no pass after it; None where the newest result passed, or there is none."""
    told = sorted(
        (result for result in results if not result.sick), key=lambda one: (one.order, one.at), reverse=True
    )
    row: list[BranchCommit] = []
    since: datetime | None = None
    last_good: BranchCommit | None = None
    for _, group in groupby(told, key=lambda result: result.order):
        of_commit = list(group)
        last_good = next((result for result in of_commit if result.passed), None)
        if last_good is not None:
            break
        row.append(of_commit[0])
        began = min(result.at for result in of_commit)
        since = began if since is None else min(since, began)
    if not row or since is None:
        return None
    return FailingRow(since=since, number=len(row), first=row[-1], newest=row[0], last_good=last_good)
