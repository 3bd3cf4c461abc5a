"""The gate against a second, simpler implementation of its rules, over random facts and random histories."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from random import Random
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from crcr.decide.checks.commit import (
    BackendPair,
    BackendResults,
    CommitFacts,
    DispatchRun,
    GrantedWaiver,
    JobResult,
    MergeSubject,
    Verification,
)
from crcr.decide.checks.gate import GateJudgement, GateState, judge_gate
from crcr.decide.checks.status import GateStatus
from crcr.decide.failures.verdict import Confidence, Verdict, VerdictKind
from crcr.decide.model import Conclusion, DispatchState, JobState, Level, RepoName
from crcr.decide.pairs.depends_on import PullReference
from crcr.decide.pairs.pair import DependencyState, Refusal
from support.data.commits import (
    HOUR,
    MINUTE,
    NOW,
    POLICY,
    a_backend,
    a_commit,
    a_job,
    a_run,
    a_subject,
    a_verdict,
    a_waiver,
    an_entry,
    an_unsent_backend,
)

# The oracle: gate.md, section 3, implemented again without regard to reasons, precedence or speed

GOOD = {Conclusion.SUCCESS, Conclusion.SKIPPED, Conclusion.NEUTRAL}
BAD = {Conclusion.FAILURE, Conclusion.ACTION_REQUIRED, Conclusion.NONE}


def is_member(backend: BackendResults) -> bool:
    """Whether the backend gated and still does, or may be a new entry under another name."""
    listed = backend.entry is not None and backend.entry.level == 4
    return backend.level == 4 and (listed or bool(backend.possible_renames))


def waiver_matches(waiver: GrantedWaiver, backend: BackendResults) -> bool:
    """The repository id decides if both have one, because names change."""
    if waiver.repository_id and backend.repository_id:
        return waiver.repository_id == backend.repository_id
    return waiver.downstream == backend.name


def effective_waivers(subject: MergeSubject, backend: BackendResults, now: datetime) -> list[GrantedWaiver]:
    pulls = [subject.number] if subject.number is not None else list(subject.numbers or [])
    if subject.number is None and {own.number for own in subject.own_heads} != set(pulls):
        return []  # in these facts, a pull request whose own head is known has passed everything there
    return [
        waiver
        for waiver in subject.waivers
        if waiver_matches(waiver, backend)
        and waiver.number in pulls
        and not (waiver.until_at is not None and waiver.until_at <= now)
    ]


def last_results(backend: BackendResults) -> list[JobResult]:
    live = [job for job in backend.jobs if not job.superseded]
    return [
        job
        for job in live
        if not any(
            (other.workflow, other.name, other.run_id) == (job.workflow, job.name, job.run_id)
            and other.attempt > job.attempt
            for other in live
        )
    ]


def is_late(backend: BackendResults, now: datetime) -> bool:
    if backend.sent_at is None or backend.entry is None:
        return False
    begun = [backend.sent_at]
    for run in backend.runs:
        begun += [run.rerun_at] if run.rerun_at else []
        begun += [run.attempt_at] if run.attempt > 1 and not run.superseded else []
    gate_s = backend.entry.gate_timeout_s or POLICY.gate_timeout.total_seconds()
    job_s = backend.entry.job_timeout_s or POLICY.job_timeout.total_seconds()
    return (now - max(begun)).total_seconds() >= max(gate_s, job_s)


def has_to_run_again(job: JobResult, backend: BackendResults) -> bool:
    run = next((run for run in backend.runs if run.run_id == job.run_id and not run.superseded), None)
    return run is not None and (run.attempt > job.attempt or (run.rerun_from or 0) >= job.attempt)


def is_harmless(job: JobResult, backend: BackendResults) -> bool:
    """Whether the job passed as expected, or failed in a way that the policy excuses."""
    if job.state is not JobState.COMPLETED:
        return False
    expected = (
        [outcome for glob, outcome in backend.entry.expect if fnmatchcase(job.name, glob)]
        if backend.entry
        else []
    )
    if expected:
        passed, failed = job.conclusion is expected[0], job.conclusion is not expected[0]
    else:
        passed = job.conclusion in GOOD
        failed = (job.conclusion or Conclusion.NONE) in BAD
    if passed:
        disputed = job.verification is Verification.DISPUTED and bool(expected)
        return not disputed and not is_refuted(job, backend) and is_confirmed(job, backend)
    return failed and not expected and is_excused(job, backend)


def is_excused(job: JobResult, backend: BackendResults) -> bool:
    """Whether it is a plain failure, reported in full, undisputed, with a sure verdict, of a backend that names its jobs."""
    sure = job.verdict is not None and job.verdict.confidence is Confidence.HIGH
    kind = job.verdict.kind if job.verdict is not None else None
    names = backend.entry.jobs if backend.entry is not None else None
    return (
        sure
        and kind in {VerdictKind.PRE_EXISTING, VerdictKind.FLAKY}
        and kind in POLICY.excuses
        and job.conclusion is Conclusion.FAILURE
        and not job.unlisted_failures
        and names is not None
        and not any("*" in name for name in names)
        and job.verification is not Verification.DISPUTED
        and is_confirmed(job, backend)
        and not has_to_run_again(job, backend)
    )


def has_github_job(job: JobResult, backend: BackendResults) -> bool:
    return job.verification is not Verification.SELF_REPORTED and backend.readable is not False


def run_conclusions(job: JobResult, backend: BackendResults) -> list[Conclusion | None]:
    """Return the conclusion of the run of a job that GitHub does not list under its name."""
    return [
        run.conclusion for run in backend.runs if run.run_id == job.run_id and run.over and not run.superseded
    ]


def is_confirmed(job: JobResult, backend: BackendResults) -> bool:
    """Whether GitHub agrees, by its job or, if it has none of that name, by the run; or cannot be queried."""
    if not has_github_job(job, backend) or job.verification in {
        Verification.CONFIRMED,
        Verification.DISPUTED,
    }:
        return True
    good = {job.conclusion} | ({Conclusion.SUCCESS} if job.conclusion in GOOD else set())
    return job.verification is Verification.NOT_VERIFIABLE and any(
        end in good for end in run_conclusions(job, backend)
    )


def is_refuted(job: JobResult, backend: BackendResults) -> bool:
    by_run = job.verification is Verification.NOT_VERIFIABLE and has_github_job(job, backend)
    return by_run and any(run_conclusions(job, backend)) and not is_confirmed(job, backend)


def is_open(job: JobResult, backend: BackendResults, now: datetime) -> bool:
    """Whether a job's result may still change: it runs, has to run again, or GitHub has not confirmed it yet."""
    if job.state is JobState.IN_PROGRESS:
        return not is_late(backend, now)
    if is_late(backend, now):
        return False
    unconfirmed = not is_confirmed(job, backend) and not is_refuted(job, backend)
    may_count = passes_as_reported(job, backend) or is_excused(
        replace(job, verification=Verification.CONFIRMED), backend
    )
    return has_to_run_again(job, backend) or (may_count and unconfirmed)


def passes_as_reported(job: JobResult, backend: BackendResults) -> bool:
    return job.state is JobState.COMPLETED and is_harmless(
        replace(job, verification=Verification.CONFIRMED, verdict=None), backend
    )


def is_complete(backend: BackendResults, waived: set[str | None], now: datetime) -> bool:
    runs = [run for run in backend.runs if not run.superseded]
    names = [job.name for job in last_results(backend)]
    named = backend.entry.jobs if backend.entry is not None else None
    literal = named is not None and not any("*" in pattern for pattern in named)
    if not literal and (backend.readable is False or any(not run.on_github for run in runs)):
        return False
    if named is not None:
        missing = [glob for glob in named if not any(fnmatchcase(name, glob) for name in names)]
        if missing:
            return is_late(backend, now) and set(missing) <= waived
        return backend.readable is False or all(run.over for run in runs if run.on_github)
    if backend.listed_at is None or not runs:
        return False
    quiet = min(backend.listed_at - run.first_seen_at for run in runs)
    return all(run.over for run in runs) and quiet >= timedelta(minutes=2)


def fails_unreported(run: DispatchRun, backend: BackendResults) -> bool:
    """Whether the run failed on GitHub, and no reported job accounts for it."""
    jobs = [job for job in last_results(backend) if job.run_id == run.run_id]
    if run.superseded or not run.over or not jobs or run.conclusion in {None, Conclusion.NONE, *GOOD}:
        return False
    newest = [job for job in jobs if job.attempt == max(other.attempt for other in jobs)]
    named = backend.entry.jobs if backend.entry else None
    if (
        named is not None
        and not any("*" in pattern for pattern in named)
        and newest[0].attempt == run.attempt
    ):
        return False
    return all(job.conclusion in GOOD for job in newest)


def may_pass(subject: MergeSubject, backend: BackendResults, now: datetime) -> bool:
    """Whether the backend passed, or is not concerned, excused or waived."""
    waived = {waiver.job for waiver in effective_waivers(subject, backend, now)}
    if None in waived or (backend.state is DispatchState.LEFT_OUT and not backend.possible_renames):
        return True
    if backend.possible_renames:
        return False
    if backend.state is not DispatchState.SENT:
        return False
    jobs = last_results(backend)
    troubling = [job for job in jobs if not is_harmless(job, backend)]
    for job in troubling:
        if job.name not in waived or is_open(job, backend, now):
            return False
    if not is_complete(backend, waived, now):
        return False
    if backend.readable is not False and any(fails_unreported(run, backend) for run in backend.runs):
        return False
    named = backend.entry.jobs if backend.entry else None
    if not jobs:
        return bool(named)  # every one of them is waived, or it would not be complete
    skipped = all(
        job.conclusion in GOOD - {Conclusion.SUCCESS}
        and not any(
            fnmatchcase(job.name, glob) for glob, _ in (backend.entry.expect if backend.entry else ())
        )
        for job in jobs
    )
    missing_and_waived = any(not any(fnmatchcase(job.name, glob) for job in jobs) for glob in named or ())
    return not skipped or missing_and_waived or bool(backend.entry and backend.entry.may_skip)


def oracle_passes(commit: CommitFacts, now: datetime) -> bool:
    return all(
        not subject.in_doubt
        and (
            subject.reused_from is not None
            or all(may_pass(subject, backend, now) for backend in subject.backends if is_member(backend))
        )
        for subject in commit.subjects
    )


# Properties that hold for any facts at any time


STRICT = replace(POLICY, excuses=frozenset())


def check_passing(commit: CommitFacts, now: datetime, judgement: GateJudgement) -> None:
    assert (judgement.state is GateState.PASSED) is oracle_passes(commit, now)


def check_excuses(commit: CommitFacts, now: datetime, judgement: GateJudgement) -> None:
    """Without excuses in the policy, verdicts open nothing; with them, only a sure verdict of the two kinds does."""
    strict_judgement = judge_gate(commit, STRICT, now)
    without_verdicts = map_jobs(commit, lambda job: replace(job, verdict=None))
    assert strict_judgement.state is judge_gate(without_verdicts, POLICY, now).state
    assert not excused_jobs(strict_judgement)
    for job in excused_jobs(judgement):
        assert job.verdict is not None
        assert (job.conclusion, job.verdict.confidence) == (Conclusion.FAILURE, Confidence.HIGH)
        assert job.verdict.kind in {VerdictKind.PRE_EXISTING, VerdictKind.FLAKY}


def excused_jobs(judgement: GateJudgement) -> list[JobResult]:
    return [
        part.job
        for subject in judgement.subjects
        for backend in subject.backends
        for part in backend.parts
        if part.standing is GateStatus.EXCUSED and part.job is not None
    ]


def map_jobs(commit: CommitFacts, change: Callable[[JobResult], JobResult]) -> CommitFacts:
    def changed(subject: MergeSubject) -> MergeSubject:
        backends = tuple(
            replace(backend, jobs=tuple(map(change, backend.jobs))) for backend in subject.backends
        )
        return replace(subject, backends=backends, own_heads=tuple(map(changed, subject.own_heads)))

    return replace(commit, subjects=tuple(map(changed, commit.subjects)))


def check_pairs_never_open_the_gate(commit: CommitFacts, now: datetime, judgement: GateJudgement) -> None:
    """With pairs the gate passes exactly where it passes without them; they only turn a failure into a wait."""
    unpaired = replace(commit, subjects=tuple(replace(subject, pairs=()) for subject in commit.subjects))
    alone = judge_gate(unpaired, POLICY, now)
    assert (judgement.state is GateState.PASSED) is (alone.state is GateState.PASSED)
    for subject, subject_alone in zip(judgement.subjects, alone.subjects, strict=True):
        for backend, backend_alone in zip(subject.backends, subject_alone.backends, strict=True):
            if backend.standing is backend_alone.standing:
                continue
            assert backend_alone.standing is GateStatus.FAILED
            assert backend.standing in {GateStatus.HELD, GateStatus.WAITING}
            assert any(
                pair.pair.state is DependencyState.OPEN and pair.pair.refusal is None and pair.passes
                for pair in backend.pairs
            )


def check_no_open_job_is_ignored(commit: CommitFacts, now: datetime, judgement: GateJudgement) -> None:
    if judgement.state is not GateState.PASSED:
        return
    for subject in (candidate for candidate in commit.subjects if candidate.reused_from is None):
        for backend in filter(is_member, subject.backends):
            if backend.state is not DispatchState.SENT:
                continue
            waived = {waiver.job for waiver in effective_waivers(subject, backend, now)}
            running = {job.name for job in last_results(backend) if job.state is JobState.IN_PROGRESS}
            assert None in waived or running <= waived


def check_no_open_run_is_ignored(commit: CommitFacts, now: datetime, judgement: GateJudgement) -> None:
    """A live run that is not over on GitHub passes only by a waiver, if GitHub can be queried."""
    if judgement.state is not GateState.PASSED:
        return
    for subject in (candidate for candidate in commit.subjects if candidate.reused_from is None):
        for backend in filter(is_member, subject.backends):
            if backend.state is not DispatchState.SENT or backend.readable is False:
                continue
            has_open_run = any(run.on_github and not run.over and not run.superseded for run in backend.runs)
            assert not has_open_run or effective_waivers(subject, backend, now)


def shuffled(commit: CommitFacts, random: Random) -> CommitFacts:
    def shuffle_items(items: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(random.sample(items, len(items)))

    def shuffle_backend(backend: BackendResults) -> BackendResults:
        return replace(backend, runs=shuffle_items(backend.runs), jobs=shuffle_items(backend.jobs))

    subjects = [
        replace(
            subject,
            backends=shuffle_items(tuple(map(shuffle_backend, subject.backends))),
            waivers=shuffle_items(subject.waivers),
        )
        for subject in commit.subjects
    ]
    return replace(commit, subjects=shuffle_items(tuple(subjects)))


def comparable_judgement(judgement: GateJudgement) -> tuple[object, ...]:
    """Return all relevant fields of a judgement in a canonical order."""
    lines = [
        (
            subject.subject.delivery,
            backend.backend.name.key,
            backend.standing,
            backend.deadline,
            part.name,
            part.standing,
            part.reason,
        )
        for subject in judgement.subjects
        for backend in subject.backends
        for part in backend.parts
    ]
    return judgement.state, judgement.recheck_at, sorted(lines, key=repr)


def check_order_does_not_matter(
    commit: CommitFacts, now: datetime, judgement: GateJudgement, random: Random
) -> None:
    expected = comparable_judgement(judgement)
    assert comparable_judgement(judge_gate(commit, POLICY, now)) == expected
    assert comparable_judgement(judge_gate(shuffled(commit, random), POLICY, now)) == expected


def standings(judgement: GateJudgement) -> tuple[object, ...]:
    parts = [
        (backend.standing, {part.standing for part in backend.parts})
        for subject in judgement.subjects
        for backend in subject.backends
    ]
    return judgement.state, parts


def check_time_alone_changes_nothing_before_the_recheck(
    commit: CommitFacts, now: datetime, judgement: GateJudgement, percent: int
) -> None:
    end = judgement.recheck_at or now + timedelta(days=365)
    assert end > now
    expected = standings(judgement)
    for later in (now + (end - now) * percent // 100, end - timedelta.resolution):
        assert standings(judge_gate(commit, POLICY, later)) == expected


# Random facts. Strategies are built once, not in each draw: building and validating one takes longer than drawing.

BACKENDS = ("org/one", "org/two")
JOBS = ("build", "test-1", "test-2")
WORKFLOWS = ("ci.yml", "nightly.yml")
times = st.integers(0, 60 * 9).map(lambda minutes: NOW - minutes * MINUTE)
conclusions = st.sampled_from(list(Conclusion))
verdicts: st.SearchStrategy[Verdict] = st.builds(
    a_verdict, st.sampled_from(list(VerdictKind)), confidence=st.sampled_from([*Confidence, Confidence.HIGH])
)
verifications = st.sampled_from([*Verification, *[Verification.CONFIRMED] * 4])
job_states = st.sampled_from(
    [JobState.IN_PROGRESS, JobState.COMPLETED, JobState.COMPLETED, JobState.TIMED_OUT]
)
options = st.fixed_dictionaries(
    {},
    optional={
        "jobs": st.sampled_from([("build",), ("test-*",), ("build", "test-2")]),
        "may_skip": st.booleans(),
        "expect": st.sampled_from([(("test-2", Conclusion.FAILURE),), (("test-*", Conclusion.SKIPPED),)]),
        "gate_timeout_s": st.sampled_from([3600, 4 * 3600]),
        "job_timeout_s": st.sampled_from([1800, 8 * 3600]),
    },
)
entries = st.builds(
    lambda level, more: an_entry(level=level, **more), st.sampled_from([4, 4, 4, 3]).map(Level), options
)


run_ids = st.sampled_from(["10", "11", "12"])
job_names = st.sampled_from(JOBS)
backend_names = st.sampled_from(BACKENDS)
attempts = st.integers(1, 3)
some_conclusions = st.none() | conclusions
some_times = st.none() | times
unlisted_failures = st.sampled_from([0, 0, 0, 1])
mostly_false = st.sampled_from([False, False, True])


@st.composite
def some_jobs(draw: st.DrawFn) -> JobResult:
    state = draw(job_states)
    # The workflow follows from the run: no store has two rows with one key.
    run_id = draw(run_ids)
    return a_job(
        None if state is not JobState.COMPLETED else draw(some_conclusions),
        draw(job_names),
        state=state,
        run_id=run_id,
        workflow=WORKFLOWS[run_id == "12"],
        attempt=draw(attempts),
        verdict=draw(verdicts),
        unlisted_failures=draw(unlisted_failures),
        superseded=draw(mostly_false),
        verification=draw(verifications),
    )


runs = st.builds(
    a_run,
    run_ids,
    attempt=attempts,
    attempt_at=times,
    first_seen_at=times,
    over=st.booleans(),
    conclusion=some_conclusions,
    on_github=st.sampled_from([True, True, True, False]),
    superseded=mostly_false,
    rerun_from=st.none() | st.integers(1, 3),
    rerun_at=some_times,
)


def by_run(run: Any) -> str:
    return str(run.run_id)


def by_row(job: JobResult) -> tuple[str, int, str]:
    return job.run_id, job.attempt, job.name


dispatch_states = st.sampled_from(
    [DispatchState.SENT, DispatchState.SENT, DispatchState.SENT, *DispatchState]
)
some_entries = st.none() | entries | entries | entries
levels = st.sampled_from([Level.L4, Level.L4, Level.L3])
reasons = st.sampled_from([None, "draft", "approval", "paths", "head in doubt"])
readable = st.sampled_from([None, True, True, False])
repository_ids = st.sampled_from([None, 1, 2])
possible_renames = st.sampled_from([(), (), (), (), (RepoName("org/new"),)])
lists_of_runs = st.lists(runs, max_size=3, unique_by=by_run)
lists_of_jobs = st.lists(some_jobs(), max_size=6, unique_by=by_row)


@st.composite
def some_backends(draw: st.DrawFn, name: str) -> BackendResults:
    state = draw(dispatch_states)
    entry = draw(some_entries)
    return BackendResults(
        name=RepoName(name),
        entry=entry and replace(entry, name=RepoName(name)),
        level=draw(levels),
        state=state,
        reason=draw(reasons),
        created_at=NOW - 10 * HOUR,
        sent_at=draw(times if state is DispatchState.SENT else some_times),
        listed_at=draw(some_times),
        readable=draw(readable),
        repository_id=draw(repository_ids),
        possible_renames=draw(possible_renames),
        runs=tuple(draw(lists_of_runs)),
        jobs=tuple(draw(lists_of_jobs)),
    )


backends = {name: some_backends(name) for name in BACKENDS}
lists_of_backend_names = st.lists(backend_names, unique=True)
waivers = st.builds(
    a_waiver,
    backend_names,
    st.sampled_from([None, *JOBS, "test-*"]),
    number=st.sampled_from([7, 8]),
    repository_id=st.sampled_from([None, None, 1, 2]),
    until_at=st.none() | st.integers(-60, 600).map(lambda minutes: NOW + minutes * MINUTE),
)


def passed_everything(number: int) -> MergeSubject:
    jobs = [a_job(name=name) for name in JOBS]
    return a_subject(*(a_backend(*jobs, name=name) for name in BACKENDS), number=number)


pair_results = {
    name: st.none() | st.just(a_backend(*(a_job(name=job) for job in JOBS), name=name)) | backends[name]
    for name in BACKENDS
}
pull_numbers = st.integers(1, 9)
dependency_states = st.sampled_from([DependencyState.OPEN, *DependencyState])
refusals = st.sampled_from([None, None, *Refusal])


@st.composite
def some_pairs(draw: st.DrawFn) -> BackendPair:
    name = draw(backend_names)
    return BackendPair(
        downstream=RepoName(name).key,
        reference=PullReference(RepoName(name), draw(pull_numbers)),
        state=draw(dependency_states),
        refusal=draw(refusals),
        results=draw(pair_results[name]),
    )


own_numbers = st.sampled_from([7, 8, None])
group_numbers = st.sampled_from([None, (7,), (7, 8)])
known_numbers = {numbers: st.sets(st.sampled_from(numbers)) for numbers in ((7,), (7, 8))}
rarely_true = st.sampled_from([False, False, False, True])
lists_of_waivers = st.lists(waivers, max_size=3)
reused = st.sampled_from([None, None, "b" * 40])
lists_of_pairs = st.lists(some_pairs(), max_size=2)


@st.composite
def some_subjects(draw: st.DrawFn, delivery: str) -> MergeSubject:
    number = draw(own_numbers)
    numbers = draw(group_numbers) if number is None else None
    known = draw(known_numbers[numbers]) if numbers else set()
    return a_subject(
        *(draw(backends[name]) for name in draw(lists_of_backend_names)),
        number=number,
        numbers=numbers,
        own_heads=tuple(map(passed_everything, sorted(known))),
        delivery=delivery,
        in_doubt=draw(rarely_true),
        waivers=tuple(draw(lists_of_waivers)),
        reused_from=draw(reused) if number is None else None,
        pairs=tuple(draw(lists_of_pairs)) if number is not None else (),
    )


first_subjects = some_subjects("first")
commits = st.builds(a_commit, first_subjects) | st.builds(a_commit, first_subjects, some_subjects("second"))
percents = st.integers(0, 99)
seeds = st.integers(0, 2**32)


def check_every_rule(commit: CommitFacts, now: datetime, random: Random, percent: int) -> None:
    judgement = judge_gate(commit, POLICY, now)
    check_passing(commit, now, judgement)
    check_pairs_never_open_the_gate(commit, now, judgement)
    check_no_open_job_is_ignored(commit, now, judgement)
    check_excuses(commit, now, judgement)
    check_no_open_run_is_ignored(commit, now, judgement)
    check_order_does_not_matter(commit, now, judgement, random)
    check_time_alone_changes_nothing_before_the_recheck(commit, now, judgement, percent)


@settings(max_examples=600, deadline=None)
@given(commits, seeds, percents)
def test_every_rule_holds_for_any_commit(commit: CommitFacts, seed: int, percent: int) -> None:
    """Check all rules for each commit: generating a commit takes longer than checking it."""
    check_every_rule(commit, NOW, Random(seed), percent)


# Random histories


class CommitStory:
    """Two pull requests on one head with a backend each, and #7 with one more; each step records new facts.

    #7 is also tested with a pull request of its first backend: the last of the backends has those results.
    """

    def __init__(self) -> None:
        self.now = NOW
        self.backends = [
            an_unsent_backend(DispatchState.WAITING, name=name, created_at=NOW)
            for name in ("org/one", "org/two", "org/one", "org/one")
        ]
        self.dependency = DependencyState.OPEN
        self.refusal: Refusal | None = None
        self.waivers: list[GrantedWaiver] = []
        self.doubt = False
        self.run_ids = 9

    def commit(self) -> CommitFacts:
        one, two, three, paired = self.backends
        pair = BackendPair(
            downstream=one.name.key,
            reference=PullReference(one.name, 3),
            state=self.dependency,
            refusal=self.refusal,
            results=paired,
        )
        seven = tuple(waiver for waiver in self.waivers if waiver.number == 7)
        eight = tuple(waiver for waiver in self.waivers if waiver.number == 8)
        return a_commit(
            a_subject(one, two, waivers=seven, in_doubt=self.doubt, pairs=(pair,)),
            a_subject(three, number=8, delivery="guid-8", waivers=eight),
        )

    def set(self, at: int, **facts: Any) -> None:
        self.backends[at] = replace(self.backends[at], **facts)

    def set_run(self, at: int, nth: int, **facts: Any) -> None:
        known = list(self.backends[at].runs)
        if known:
            known[nth % len(known)] = replace(known[nth % len(known)], **facts)
            self.set(at, runs=tuple(known))


Step = Callable[[CommitStory], None]


def send(at: int) -> Step:
    return lambda world: world.set(at, state=DispatchState.SENT, sent_at=world.now)


def refuse(at: int, state: DispatchState, reason: str) -> Step:
    def step(world: CommitStory) -> None:
        if world.backends[at].state is not DispatchState.SENT:
            world.set(at, state=state, reason=reason)

    return step


def begin_run(at: int, workflow: str) -> Step:
    def step(world: CommitStory) -> None:
        world.run_ids += 1
        begun = a_run(
            str(world.run_ids), workflow=workflow, over=False, attempt_at=world.now, first_seen_at=world.now
        )
        backend = world.backends[at]
        older = tuple(
            replace(run, superseded=run.superseded or run.workflow == workflow) for run in backend.runs
        )
        jobs = tuple(
            replace(job, superseded=job.superseded or job.workflow == workflow) for job in backend.jobs
        )
        world.set(at, runs=(*older, begun), jobs=jobs)

    return step


def report(at: int, nth: int, name: str, conclusion: Conclusion | None, new_attempt: bool) -> Step:
    """Start a job, or complete it if there is a conclusion, in the run's newest attempt or in a new one."""

    def step(world: CommitStory) -> None:
        known = world.backends[at].runs
        if not known:
            return
        run = known[nth % len(known)]
        if new_attempt:
            run = replace(run, attempt=run.attempt + 1, attempt_at=world.now, over=False)
            world.set_run(at, nth, attempt=run.attempt, attempt_at=run.attempt_at, over=False)
        job = a_job(
            conclusion,
            name,
            state=JobState.IN_PROGRESS if conclusion is None else JobState.COMPLETED,
            run_id=run.run_id,
            workflow=run.workflow,
            attempt=run.attempt,
            superseded=run.superseded,
            began_at=world.now,
            verification=Verification.UNCHECKED,
        )
        others = tuple(other for other in world.backends[at].jobs if by_row(other) != by_row(job))
        world.set(at, jobs=(*others, job))

    return step


def go_silent(at: int, name: str) -> Step:
    def step(world: CommitStory) -> None:
        jobs = (
            replace(job, state=JobState.TIMED_OUT)
            if job.name == name and job.state is JobState.IN_PROGRESS
            else job
            for job in world.backends[at].jobs
        )
        world.set(at, jobs=tuple(jobs))

    return step


def judge_failures(at: int, verdict: Verdict) -> Step:
    return lambda world: world.set(
        at, jobs=tuple(replace(job, verdict=verdict) for job in world.backends[at].jobs)
    )


def request_rerun(at: int, nth: int) -> Step:
    def step(world: CommitStory) -> None:
        known = world.backends[at].runs
        if known:
            world.set_run(at, nth, rerun_from=known[nth % len(known)].attempt, rerun_at=world.now)

    return step


def end_run(at: int, nth: int, conclusion: Conclusion = Conclusion.SUCCESS) -> Step:
    return lambda world: world.set_run(at, nth, over=True, conclusion=conclusion)


def verify(at: int, name: str, verification: Verification) -> Step:
    """GitHub's view of a completed job becomes known."""

    def step(world: CommitStory) -> None:
        jobs = (
            replace(job, verification=verification)
            if job.name == name and job.state is JobState.COMPLETED
            else job
            for job in world.backends[at].jobs
        )
        world.set(at, jobs=tuple(jobs))

    return step


def query_github(at: int, readable: bool) -> Step:
    def step(world: CommitStory) -> None:
        world.set(at, readable=readable, **({"listed_at": world.now} if readable else {}))

    return step


def wait(minutes: int) -> Step:
    def step(world: CommitStory) -> None:
        world.now += minutes * MINUTE

    return step


def waive(name: str, job: str | None, number: int, minutes: int | None) -> Step:
    def step(world: CommitStory) -> None:
        until = None if minutes is None else world.now + minutes * MINUTE
        world.waivers.append(a_waiver(name, job, number=number, until_at=until))

    return step


def unwaive(world: CommitStory) -> None:
    world.waivers = world.waivers[1:]


def relist(at: int, level: Level | None, more: dict[str, Any]) -> Step:
    def step(world: CommitStory) -> None:
        name = world.backends[at].name.full_name
        world.set(at, entry=None if level is None else an_entry(name, level=level, **more))

    return step


def doubt(world: CommitStory) -> None:
    world.doubt = not world.doubt


def change_dependency(state: DependencyState, refusal: Refusal | None) -> Step:
    def step(world: CommitStory) -> None:
        world.dependency, world.refusal = state, refusal

    return step


backend_indexes = st.integers(0, 3)
nth = st.integers(0, 2)
steps: st.SearchStrategy[Step] = st.one_of(
    st.builds(send, backend_indexes),
    st.builds(
        refuse,
        backend_indexes,
        st.sampled_from([DispatchState.HELD, DispatchState.PARKED, DispatchState.LEFT_OUT]),
        st.sampled_from(["draft", "paths"]),
    ),
    st.builds(begin_run, backend_indexes, st.sampled_from(WORKFLOWS)),
    st.builds(report, backend_indexes, nth, job_names, st.none() | conclusions, st.booleans()),
    st.builds(report, backend_indexes, nth, job_names, st.just(Conclusion.SUCCESS), st.just(False)),
    st.builds(go_silent, backend_indexes, job_names),
    st.builds(judge_failures, backend_indexes, verdicts),
    st.builds(request_rerun, backend_indexes, nth),
    st.builds(end_run, backend_indexes, nth, conclusions),
    st.builds(verify, backend_indexes, job_names, verifications),
    st.builds(query_github, backend_indexes, st.sampled_from([True, True, False])),
    st.builds(wait, st.sampled_from([1, 2, 30, 180, 360])),
    st.builds(
        waive,
        st.sampled_from(BACKENDS),
        st.none() | job_names,
        st.sampled_from([7, 8]),
        st.sampled_from([None, 5, 400]),
    ),
    st.just(unwaive),
    st.builds(
        relist, backend_indexes, st.sampled_from([None, Level.L3, Level.L4, Level.L4, Level.L4]), options
    ),
    st.just(doubt),
    st.builds(
        change_dependency, st.sampled_from(list(DependencyState)), st.none() | st.sampled_from(Refusal)
    ),
)


def green(at: int) -> list[Step]:
    """Return the steps of a backend that passes."""
    return [
        send(at),
        begin_run(at, "ci.yml"),
        report(at, -1, "build", None, new_attempt=False),
        report(at, -1, "build", Conclusion.SUCCESS, new_attempt=False),
        verify(at, "build", Verification.CONFIRMED),
        end_run(at, -1),
        wait(2),
        query_github(at, readable=True),
    ]


ALL_GREEN = [step for at in range(3) for step in green(at)]


# The first backend fails alone, and passes with its own pull request.
PAIR_GREEN = [*ALL_GREEN, *green(3), report(0, -1, "build", Conclusion.FAILURE, new_attempt=False)]


base_histories = st.sampled_from([ALL_GREEN, PAIR_GREEN, []])
random_steps = st.lists(steps, max_size=20)


@st.composite
def histories(draw: st.DrawFn) -> list[Step]:
    """Return a passing history with random steps inserted; random steps alone would hardly ever pass."""
    history = list(draw(base_histories))
    for step in draw(random_steps):
        history.insert(draw(st.integers(0, len(history))), step)
    return history


def test_the_gate_passes_only_at_the_last_step_of_a_passing_history() -> None:
    world = CommitStory()
    states = []
    for step in ALL_GREEN:
        step(world)
        states.append(judge_gate(world.commit(), POLICY, world.now).state)
    assert set(states[:-1]) == {GateState.PENDING}
    assert states[-1] is GateState.PASSED


def test_a_pair_that_passes_keeps_the_gate_waiting_and_never_opens_it() -> None:
    world = CommitStory()
    states = []
    for step in PAIR_GREEN:
        step(world)
        states.append(judge_gate(world.commit(), POLICY, world.now).state)
    assert states[-2:] == [GateState.PASSED, GateState.PENDING]
    change_dependency(DependencyState.MERGED, None)(world)
    assert judge_gate(world.commit(), POLICY, world.now).state is GateState.FAILED


@settings(max_examples=300, deadline=None)
@given(histories(), seeds, percents)
@example(ALL_GREEN, 1, 50)
def test_every_rule_holds_after_every_step_of_any_history(
    history: list[Step], seed: int, percent: int
) -> None:
    world, random = CommitStory(), Random(seed)
    checked = None
    for step in history:
        step(world)
        facts = world.commit(), world.now
        if facts != checked:  # many random steps change nothing
            check_every_rule(*facts, random, percent)
        checked = facts
