"""The recorded facts about one upstream commit that may be merged; checks and gate are computed from them.

A commit is judged through its subjects: the open pull requests that have it as their head, and the merge groups whose
commit it is. Facts, and which of them count; `gate` and `wanted_checks` draw the conclusions.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from crcr.decide.allowlist.entries import AllowlistEntry
from crcr.decide.failures.verdict import Verdict
from crcr.decide.jobs.log_excerpt import LogExcerpt
from crcr.decide.model import Conclusion, DispatchState, JobState, Level, RepoName
from crcr.decide.pairs.depends_on import PullReference
from crcr.decide.pairs.pair import DependencyState, Refusal


class Verification(StrEnum):
    """Whether GitHub's own view agrees with a reported conclusion."""

    UNCHECKED = "unchecked"
    CONFIRMED = "confirmed"
    DISPUTED = "disputed"
    NOT_VERIFIABLE = "not verifiable"
    SELF_REPORTED = "self-reported"
    """The job ran in a CI that only its owner can query."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedTestExcerpt:
    name: str
    file: str | None
    message: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    workflow: str
    workflow_name: str
    run_id: str
    attempt: int
    name: str
    state: JobState
    conclusion: Conclusion | None
    verification: Verification = Verification.UNCHECKED
    verdict: Verdict | None = None
    """What the rules say of its failure, never what a person says; None for a job that did not fail."""
    superseded: bool = False
    unreported: bool = False
    """It succeeded on GitHub, and was not reported."""
    device: str | None = None
    url: str | None = None
    artifact_url: str | None = None
    began_at: datetime
    ended_at: datetime | None = None
    tests: tuple[int | None, int | None, int | None] = (None, None, None)
    """Passed, failed, skipped."""
    failed_tests: tuple[FailedTestExcerpt, ...] = ()
    failed_tests_cut: int = 0
    log_excerpt: LogExcerpt | None = None
    """For the texts of checks only: nothing is judged by it."""
    unlisted_failures: int = 0
    """Failed tests that its report counts and does not list: no verdict knows them."""
    unseen_failures: int = 0
    """Failed tests that failed in no result of the base that a sure verdict cites: their messages are known there, not they."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchRun:
    """A run that answers the dispatch, by its signed id or by the delivery's id in its name."""

    run_id: str
    workflow: str
    attempt: int
    """The highest attempt that was reported or that GitHub showed."""
    attempt_at: datetime
    """When that attempt was first seen."""
    first_seen_at: datetime
    superseded: bool = False
    over: bool = False
    """GitHub says that its highest attempt has ended."""
    conclusion: Conclusion | None = None
    """Its conclusion on GitHub; `Conclusion.NONE` for a run that was deleted there."""
    on_github: bool = True
    """Whether it is a run of GitHub Actions, which can be looked up."""
    rerun_from: int | None = None
    """The attempt for which a re-run was requested."""
    rerun_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendResults:
    """One downstream as a delivery concerns it."""

    name: RepoName
    entry: AllowlistEntry | None
    """Its entry in the allowlist in force; None when it has left."""
    level: Level
    """Its level when the delivery was recorded."""
    state: DispatchState
    reason: str | None = None
    created_at: datetime
    sent_at: datetime | None = None
    listed_at: datetime | None = None
    """When GitHub last listed the runs of this dispatch."""
    readable: bool | None = None
    """Whether the App could read its Actions when it was dispatched; None when that was not known."""
    runs: tuple[DispatchRun, ...] = ()
    jobs: tuple[JobResult, ...] = ()
    repository_id: int | None = None
    """The id of the repository that it was dispatched to, where it is known."""
    dispatched_as: RepoName | None = None
    """The name that it was dispatched under, where it has been renamed since."""
    downgraded: bool = False
    """It was listed at L4 when the delivery was recorded, and recorded at L3: it fails the criteria of L3."""
    possible_renames: tuple[RepoName, ...] = ()
    """It left L4, and one of these new L4 entries may be this repository under another name."""

    @property
    def gates(self) -> bool:
        """Whether it is a member of the gate: at L4 when the delivery was recorded, and still, or possibly renamed."""
        listed = self.entry is not None and self.entry.level is Level.L4
        return self.level is Level.L4 and (listed or bool(self.possible_renames))

    @property
    def recorded_name(self) -> RepoName:
        """The name under which its dispatch, runs and jobs are recorded."""
        return self.dispatched_as or self.name

    def is_same(self, other: "BackendResults") -> bool:
        """Whether both are the same repository, by its id where both are known."""
        if self.repository_id is not None and other.repository_id is not None:
            return self.repository_id == other.repository_id
        return self.name == other.name

    @property
    def live_runs(self) -> tuple[DispatchRun, ...]:
        return tuple(run for run in self.runs if not run.superseded)

    @property
    def counted_jobs(self) -> tuple[JobResult, ...]:
        """The highest attempt of every job of every workflow; superseded runs do not count.

        Attempts of two runs cannot be compared: if two runs of a workflow count, the job counts in both.
        """
        newest: dict[tuple[str, str, str], JobResult] = {}
        for job in self.jobs:
            key = (job.workflow, job.name, job.run_id)
            known = newest.get(key)
            if not job.superseded and (known is None or job.attempt > known.attempt):
                newest[key] = job
        return tuple(newest[key] for key in sorted(newest))

    def runs_again(self, job: JobResult) -> bool:
        """Whether a later attempt was requested, or seen, in which this job has not reported yet."""
        return any(
            run.run_id == job.run_id
            and (run.attempt > job.attempt or (run.rerun_from is not None and run.rerun_from >= job.attempt))
            for run in self.live_runs
        )

    def expected(self, job_name: str) -> Conclusion | None:
        """Return the conclusion that its entry expects of the job, if any."""
        return self.entry.expected(job_name) if self.entry else None


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantedWaiver:
    """A person's permission to merge without a backend, or without one job of it, until it expires."""

    downstream: RepoName
    job: str | None
    who: str
    reason: str
    number: int
    """The pull request that it was given in."""
    until_at: datetime | None = None
    repository_id: int | None = None
    """The downstream's id when it was given: the waiver follows a renamed repository."""

    def covers(self, backend: BackendResults, job: str | None) -> bool:
        if self.job not in (None, job):
            return False
        if self.repository_id is not None and backend.repository_id is not None:
            return self.repository_id == backend.repository_id
        return self.downstream in (backend.name, backend.recorded_name)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendPair:
    """A pull request of a backend that the change depends on, with the backend's results for both together.

    It may hold a backend that fails alone; it never lets anything pass.
    """

    downstream: str
    """The backend's key."""
    reference: PullReference
    state: DependencyState
    refusal: Refusal | None = None
    results: BackendResults | None = None
    """Of its dispatch for the heads that both have now; None while there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeSubject:
    """A pull request, or a merge group of several, that would merge this commit."""

    number: int | None
    """None for a merge group."""
    numbers: tuple[int, ...] | None = None
    """The pull requests of a merge group; None while they are unknown."""
    base_ref: str | None = None
    """The branch to merge into."""
    delivery: str
    in_doubt: bool = False
    received_at: datetime
    labels: tuple[str, ...] = ()
    backends: tuple[BackendResults, ...] = ()
    waivers: tuple[GrantedWaiver, ...] = ()
    reused_from: str | None = None
    """The head with the same tree whose gate passed."""
    own_heads: "tuple[MergeSubject, ...]" = ()
    """The pull requests of a merge group at their own heads, where the group was made from these heads."""
    pairs: tuple[BackendPair, ...] = ()
    """Of a pull request, never of a merge group: what is merged there is tested as it is."""

    def pairs_of(self, backend: BackendResults) -> tuple[BackendPair, ...]:
        keys = {backend.name.key, backend.recorded_name.key}
        return tuple(pair for pair in self.pairs if pair.downstream in keys)

    def unexpired_waivers(self, now: datetime) -> tuple[GrantedWaiver, ...]:
        """Return the unexpired waivers of its own pull requests; none for a group whose pull requests are unknown."""
        numbers = (self.numbers or ()) if self.number is None else (self.number,)
        return tuple(
            waiver
            for waiver in self.waivers
            if waiver.number in numbers and (waiver.until_at is None or now < waiver.until_at)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitFacts:
    upstream: RepoName
    head_sha: str
    subjects: tuple[MergeSubject, ...]
    """Empty for a commit that is no longer to be merged."""
    landed: bool = False
    """A pull request with this head, or the merge group of this commit, was merged."""

    def is_for(self, base_ref: str | None) -> bool:
        """Whether it is to be merged into this branch: a result for another base does not count there."""
        return any(subject.base_ref == base_ref for subject in self.subjects)
