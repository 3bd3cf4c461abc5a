"""The status of each L4 backend by the recorded facts, and the gate over all of them."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import product
from typing import Any, NamedTuple

import pytest

from crcr.decide.checks.commit import (
    BackendResults,
    DispatchRun,
    GrantedWaiver,
    JobResult,
    MergeSubject,
    Verification,
)
from crcr.decide.checks.gate import BackendJudgement, GateJudgement, GatePolicy, GateState, judge_gate
from crcr.decide.checks.status import GateStatus
from crcr.decide.failures.verdict import Confidence, VerdictKind
from crcr.decide.model import Conclusion, DispatchState, Level, RepoName
from support.data.commits import (
    HOUR,
    LONG_AGO,
    MINUTE,
    NOW,
    POLICY,
    SENT,
    a_backend,
    a_commit,
    a_group,
    a_job,
    a_run,
    a_silent_job,
    a_subject,
    a_verdict,
    a_waiver,
    an_entry,
    an_open_job,
    an_unsent_backend,
)

C, D, S, G = Conclusion, DispatchState, GateStatus, GateState
SECOND = timedelta(seconds=1)
DEADLINE = SENT + 6 * HOUR


def judge(
    *backends: BackendResults, now: datetime = NOW, policy: GatePolicy = POLICY, **facts: Any
) -> GateJudgement:
    return judge_gate(a_commit(a_subject(*backends, **facts)), policy, now)


def judge_one(
    backend: BackendResults, *waivers: GrantedWaiver, now: datetime = NOW, policy: GatePolicy = POLICY
) -> BackendJudgement:
    return judge(backend, waivers=waivers, now=now, policy=policy).subjects[0].backends[0]


def judge_status(
    backend: BackendResults, *waivers: GrantedWaiver, now: datetime = NOW, policy: GatePolicy = POLICY
) -> GateStatus:
    return judge_one(backend, *waivers, now=now, policy=policy).standing


# Every status, and every pair of statuses

Facts = Callable[[str], BackendResults]


class Case(NamedTuple):
    label: str
    standing: GateStatus
    backend: Facts
    waiver: Callable[[str], GrantedWaiver] | None = None


def jobs(*reported: JobResult, **facts: Any) -> Facts:
    return lambda name: a_backend(*reported, name=name, **facts)


def unsent(state: DispatchState, reason: str | None = None) -> Facts:
    return lambda name: an_unsent_backend(state, reason, name=name)


def silence(**facts: Any) -> Facts:
    return jobs(**({"runs": (), "listed_at": None} | facts))


def for_job(job: str | None) -> Callable[[str], GrantedWaiver]:
    return lambda name: a_waiver(name, job)


FLAKY = a_job(C.FAILURE, verdict=a_verdict())
PRE_EXISTING = a_job(C.FAILURE, verdict=a_verdict(VerdictKind.PRE_EXISTING))
UNCHECKED: dict[str, Any] = {"verification": Verification.UNCHECKED}
SELF_REPORTED: dict[str, Any] = {"verification": Verification.SELF_REPORTED}
XFAIL = {"expect": (("*xfail*", C.FAILURE),)}
LATE = {"sent_at": LONG_AGO}
BUILD: dict[str, Any] = {"options": {"jobs": ("build",)}}
OPEN_RUN = a_run(over=False, conclusion=None)
FAILED_RUN = a_run(conclusion=C.FAILURE)
CANCELLED_RUN = a_run(conclusion=C.CANCELLED)
NEVER_EXCUSED: dict[str, dict[str, Any]] = {
    "of medium confidence": {"verdict": a_verdict(confidence=Confidence.MEDIUM)},
    "of low confidence": {"verdict": a_verdict(confidence=Confidence.LOW)},
    "with unlisted failures": {"unlisted_failures": 1},
    "disputed by GitHub": {"verification": Verification.DISPUTED},
    "as action required": {"conclusion": C.ACTION_REQUIRED},
    "without a conclusion": {"conclusion": C.NONE},
}
FOREIGN = (a_run(over=False, conclusion=None, on_github=False),)
ELSEWHERE = a_job(verification=Verification.SELF_REPORTED)
UNCONFIRMED = a_job(verification=Verification.UNCHECKED)
UNNAMED = a_job(verification=Verification.NOT_VERIFIABLE)
UNCONFIRMED_XFAIL = a_job(C.FAILURE, "a xfail b", verification=Verification.UNCHECKED)
DISPUTED_XFAIL = a_job(C.FAILURE, "a xfail b", verification=Verification.DISPUTED)
SKIPPED: dict[str, Any] = {"conclusion": C.SKIPPED, "name": "test"}
CASES = [
    Case("one success", S.PASSED, jobs(a_job())),
    Case(
        "success beside skipped and neutral",
        S.PASSED,
        jobs(a_job(), a_job(C.SKIPPED, "x"), a_job(C.NEUTRAL, "y")),
    ),
    Case("success past the deadline", S.PASSED, jobs(a_job(), **LATE)),
    Case(
        "named jobs, runs unknown",
        S.PASSED,
        jobs(a_job(), options={"jobs": ("build",)}, runs=(), listed_at=None),
    ),
    Case("the failure that is expected", S.PASSED, jobs(a_job(C.FAILURE, "a xfail b"), options=XFAIL)),
    Case("as reported", S.PASSED, jobs(UNCONFIRMED, **BUILD, readable=False, runs=(OPEN_RUN,))),
    Case("another CI", S.PASSED, jobs(ELSEWHERE, **BUILD, runs=FOREIGN)),
    Case("a name that GitHub lacks, in a run that succeeded", S.PASSED, jobs(UNNAMED)),
    Case("a glob, its runs over", S.PASSED, jobs(a_job(), options={"jobs": ("b*",)})),
    Case("all skipped, as it may", S.PASSED, jobs(a_job(C.SKIPPED), options={"may_skip": True})),
    *(
        Case(f"left out by {reason}", S.NOT_CONCERNED, unsent(D.LEFT_OUT, reason))
        for reason in ("events", "paths", "refs", "labels")
    ),
    Case("pre-existing", S.EXCUSED, jobs(PRE_EXISTING, **BUILD)),
    Case("flaky", S.EXCUSED, jobs(a_job(), replace(FLAKY, name="test"), **BUILD)),
    Case("flaky in another CI", S.EXCUSED, jobs(replace(FLAKY, **SELF_REPORTED), **BUILD, runs=FOREIGN)),
    Case("flaky, Actions unreadable", S.EXCUSED, jobs(replace(FLAKY, **UNCHECKED), **BUILD, readable=False)),
    Case("flaky past the deadline", S.EXCUSED, jobs(FLAKY, **BUILD, **LATE)),
    Case("failed, job waived", S.WAIVED, jobs(a_job(C.FAILURE)), for_job("build")),
    Case("failed, backend waived", S.WAIVED, jobs(a_job(C.FAILURE)), for_job(None)),
    Case("errored, job waived", S.WAIVED, jobs(a_job(C.CANCELLED)), for_job("build")),
    Case("silent, backend waived", S.WAIVED, silence(**LATE), for_job(None)),
    Case("a missing job waived", S.WAIVED, jobs(options={"jobs": ("build",)}, **LATE), for_job("build")),
    Case("parked, backend waived", S.WAIVED, unsent(D.PARKED, "404"), for_job(None)),
    Case("to be sent", S.WAITING, unsent(D.WAITING)),
    Case("held for a doubtful head", S.WAITING, unsent(D.HELD, "head in doubt")),
    Case("held for its files", S.WAITING, unsent(D.HELD, "paths")),
    Case("held for who knows what", S.WAITING, unsent(D.HELD)),
    Case("nothing has come yet", S.WAITING, silence()),
    Case("a job runs", S.WAITING, jobs(an_open_job(), runs=(a_run(over=False),))),
    Case("a job runs beside a success", S.WAITING, jobs(a_job(), an_open_job("test"))),
    Case("a named job is to come", S.WAITING, jobs(a_job(), options={"jobs": ("build", "test")})),
    Case("a run goes on", S.WAITING, jobs(a_job(), runs=(a_run(over=False),))),
    Case("a run with no report goes on", S.WAITING, jobs(runs=(a_run(over=False),))),
    Case("runs over, nobody reported yet", S.WAITING, jobs()),
    Case("nobody asked whether the runs are over", S.WAITING, jobs(a_job(), readable=None, listed_at=None)),
    Case("asked to run again", S.WAITING, jobs(a_job(C.FAILURE), runs=(a_run(rerun_from=1),))),
    Case("GitHub has not confirmed", S.WAITING, jobs(UNCONFIRMED)),
    Case("GitHub was not asked", S.WAITING, jobs(UNCONFIRMED, **BUILD, readable=None)),
    Case("GitHub has not confirmed, job waived", S.WAITING, jobs(UNCONFIRMED), for_job("build")),
    Case("a skipped job is not confirmed", S.WAITING, jobs(a_job(), replace(UNCONFIRMED, **SKIPPED))),
    Case("an expected failure is not confirmed", S.WAITING, jobs(UNCONFIRMED_XFAIL, options=XFAIL)),
    Case("a name that GitHub lacks, in a run that goes on", S.WAITING, jobs(UNNAMED, runs=(OPEN_RUN,))),
    Case("named jobs, a run goes on", S.WAITING, jobs(a_job(), **BUILD, runs=(OPEN_RUN,))),
    Case("a glob, a run goes on", S.WAITING, jobs(a_job(), options={"jobs": ("b*",)}, runs=(OPEN_RUN,))),
    Case("draft", S.HELD, unsent(D.HELD, "draft")),
    Case("approval", S.HELD, unsent(D.HELD, "approval")),
    Case("all skipped", S.DECLINED, jobs(a_job(C.SKIPPED))),
    Case("all skipped or neutral", S.DECLINED, jobs(a_job(C.SKIPPED), a_job(C.NEUTRAL, "test"))),
    Case("nothing in time", S.MISSING, silence(**LATE)),
    Case("nothing in time, Actions unasked", S.MISSING, silence(readable=None, **LATE)),
    Case("runs over, nobody reported", S.MISSING, jobs(**LATE)),
    Case("a run without reports goes on too long", S.MISSING, jobs(runs=(a_run(over=False),), **LATE)),
    Case("parked", S.MISSING, unsent(D.PARKED, "404")),
    Case("cancelled before it was sent", S.MISSING, unsent(D.CANCELLED)),
    Case("a named job did not come", S.MISSING, jobs(a_job(), options={"jobs": ("build", "test")}, **LATE)),
    Case("cancelled", S.ERRORED, jobs(a_job(), a_job(C.CANCELLED, "test"))),
    Case("timed out", S.ERRORED, jobs(a_job(C.TIMED_OUT))),
    Case("went silent", S.ERRORED, jobs(a_silent_job())),
    Case("flaky, and GitHub has not confirmed", S.WAITING, jobs(replace(FLAKY, **UNCHECKED), **BUILD)),
    Case(
        "flaky, and to run again", S.WAITING, jobs(FLAKY, **BUILD, runs=(a_run(rerun_from=1, rerun_at=NOW),))
    ),
    Case("cancelled is not excused", S.ERRORED, jobs(replace(FLAKY, conclusion=C.CANCELLED), **BUILD)),
    Case("timed out is not excused", S.ERRORED, jobs(replace(FLAKY, conclusion=C.TIMED_OUT), **BUILD)),
    Case("silent is not excused", S.ERRORED, jobs(a_silent_job(verdict=a_verdict()), **BUILD)),
    Case("infrastructure", S.ERRORED, jobs(a_job(C.FAILURE, verdict=a_verdict(VerdictKind.INFRASTRUCTURE)))),
    Case("running past the time-out", S.ERRORED, jobs(an_open_job(), **LATE)),
    Case("runs not over in time", S.ERRORED, jobs(a_job(), runs=(a_run(over=False),), **LATE)),
    Case(
        "was to run again and did not",
        S.ERRORED,
        jobs(a_job(C.FAILURE), runs=(a_run(attempt=2, attempt_at=LONG_AGO),), **LATE),
    ),
    Case("unreadable Actions, no `jobs`", S.ERRORED, jobs(a_job(), readable=False)),
    Case("unreadable Actions, a glob", S.ERRORED, jobs(a_job(), options={"jobs": ("b*",)}, readable=False)),
    Case("a glob over another CI", S.ERRORED, jobs(ELSEWHERE, options={"jobs": ("b*",)}, runs=FOREIGN)),
    Case("its run was deleted", S.ERRORED, jobs(UNNAMED, runs=(a_run(conclusion=C.NONE),))),
    Case("not confirmed in time", S.ERRORED, jobs(UNCONFIRMED, **LATE)),
    Case("named jobs, a run goes on too long", S.ERRORED, jobs(a_job(), **BUILD, runs=(OPEN_RUN,), **LATE)),
    Case("unreadable Actions, nothing reported", S.ERRORED, silence(readable=False)),
    Case("a name that GitHub lacks, in a run that failed", S.FAILED, jobs(UNNAMED, runs=(FAILED_RUN,))),
    Case("an expected failure that GitHub disputes", S.FAILED, jobs(DISPUTED_XFAIL, options=XFAIL)),
    Case("failure", S.FAILED, jobs(a_job(), a_job(C.FAILURE, "test"))),
    Case("a new failure", S.FAILED, jobs(a_job(C.FAILURE, verdict=a_verdict(VerdictKind.NEW)))),
    *(
        Case(f"a flaky failure, {label}", S.FAILED, jobs(replace(FLAKY, **facts), **BUILD))
        for label, facts in NEVER_EXCUSED.items()
    ),
    Case("a flaky failure without named jobs", S.FAILED, jobs(FLAKY)),
    Case("a flaky failure and a glob", S.FAILED, jobs(FLAKY, options={"jobs": ("b*",)})),
    Case(
        "a flaky failure where skipping is expected",
        S.FAILED,
        jobs(FLAKY, options={"jobs": ("build",), "expect": (("build", C.SKIPPED),)}),
    ),
    Case(
        "a flaky failure of a name that GitHub lacks, in a run that was cancelled",
        S.FAILED,
        jobs(replace(FLAKY, verification=Verification.NOT_VERIFIABLE), **BUILD, runs=(CANCELLED_RUN,)),
    ),
    Case(
        "a flaky failure, not confirmed in time", S.FAILED, jobs(replace(FLAKY, **UNCHECKED), **BUILD, **LATE)
    ),
    Case("action required", S.FAILED, jobs(a_job(C.ACTION_REQUIRED))),
    Case("no conclusion", S.FAILED, jobs(a_job(C.NONE))),
    Case("conclusion not recorded", S.FAILED, jobs(a_job(None))),
    Case("success where failure is expected", S.FAILED, jobs(a_job(C.SUCCESS, "a xfail b"), options=XFAIL)),
    Case("failed past the deadline", S.FAILED, jobs(a_job(C.FAILURE), **LATE)),
]
FAILING = [S.FAILED, S.ERRORED, S.MISSING, S.DECLINED]
PENDING = [S.WAITING, S.HELD]
PASSING = [S.WAIVED, S.EXCUSED, S.NOT_CONCERNED, S.PASSED]
WORST_FIRST = [*FAILING, *PENDING, *PASSING]


def expected_gate(*standings: GateStatus) -> GateState:
    worst = min(standings, key=WORST_FIRST.index)
    return G.FAILED if worst in FAILING else G.PENDING if worst in PENDING else G.PASSED


def test_the_cases_cover_every_gate_status() -> None:
    assert {case.standing for case in CASES} == set(GateStatus)


@pytest.mark.parametrize("case", CASES, ids=[case.label for case in CASES])
def test_the_gate_has_the_worst_state_of_every_pair_of_backends(case: Case) -> None:
    for other in CASES:
        candidates = (case.waiver and case.waiver("org/one"), other.waiver and other.waiver("org/two"))
        waivers = tuple(waiver for waiver in candidates if waiver)
        judgement = judge(case.backend("org/one"), other.backend("org/two"), waivers=waivers)
        assert [backend.standing for backend in judgement.subjects[0].backends] == [
            case.standing,
            other.standing,
        ]
        assert judgement.state is expected_gate(case.standing, other.standing), other.label


@pytest.mark.parametrize("case", CASES, ids=[case.label for case in CASES])
def test_each_judgement_has_deciding_parts_with_a_reason(case: Case) -> None:
    waivers = (case.waiver("org/one"),) if case.waiver else ()
    deciding_parts = judge_one(case.backend("org/one"), *waivers).deciding_parts
    assert deciding_parts
    assert all(
        part.reason and (part.waiver in waivers) is (case.standing is S.WAIVED) for part in deciding_parts
    )


# Jobs of one backend

OUTCOMES: dict[str, tuple[dict[str, Any], GateStatus]] = {
    "success": ({"conclusion": C.SUCCESS}, S.PASSED),
    "skipped": ({"conclusion": C.SKIPPED}, S.PASSED),
    "neutral": ({"conclusion": C.NEUTRAL}, S.PASSED),
    "failure": ({"conclusion": C.FAILURE}, S.FAILED),
    "action_required": ({"conclusion": C.ACTION_REQUIRED}, S.FAILED),
    "none": ({"conclusion": C.NONE}, S.FAILED),
    "cancelled": ({"conclusion": C.CANCELLED}, S.ERRORED),
    "timed_out": ({"conclusion": C.TIMED_OUT}, S.ERRORED),
    "flaky": ({"conclusion": C.FAILURE, "verdict": a_verdict()}, S.EXCUSED),
}
SKIPS = {"skipped", "neutral"}
WAIVERS = {
    "nothing waived": (),
    "one job waived": (a_waiver(job="one"),),
    "other job waived": (a_waiver(job="two"),),
    "both jobs waived": (a_waiver(job="one"), a_waiver(job="two")),
    "backend waived": (a_waiver(),),
    "another backend waived": (a_waiver("org/two"), a_waiver("org/two", "one")),
}


def outcome(kind: str, name: str) -> JobResult:
    return a_job(name=name, **OUTCOMES[kind][0])


@pytest.mark.parametrize("waived", WAIVERS)
@pytest.mark.parametrize(("one", "two"), list(product(OUTCOMES, repeat=2)))
def test_waivers_and_excuses_apply_per_job_before_the_worst_counts(one: str, two: str, waived: str) -> None:
    waivers = WAIVERS[waived]
    expected = []
    for name, kind in (("one", one), ("two", two)):
        alone = OUTCOMES[kind][1]
        covered = any(waiver.downstream.key == "org/one" and waiver.job in {None, name} for waiver in waivers)
        expected.append(S.WAIVED if alone in FAILING and covered else alone)
    if {one, two} <= SKIPS:
        expected.append(S.WAIVED if waived == "backend waived" else S.DECLINED)
    backend = a_backend(outcome(one, "one"), outcome(two, "two"), options={"jobs": ("one", "two")})
    assert judge_status(backend, *waivers) is min(expected, key=WORST_FIRST.index)


@pytest.mark.parametrize("confidence", list(Confidence))
@pytest.mark.parametrize("kind", list(VerdictKind))
def test_only_verdicts_named_in_the_policy_with_high_confidence_are_excused(
    kind: VerdictKind, confidence: Confidence
) -> None:
    backend = a_backend(a_job(C.FAILURE, verdict=a_verdict(kind, confidence=confidence)), **BUILD)
    blocked = S.ERRORED if kind is VerdictKind.INFRASTRUCTURE else S.FAILED
    for excuses in (
        frozenset[VerdictKind](),
        *(frozenset({excused_kind}) for excused_kind in VerdictKind),
        frozenset(VerdictKind),
    ):
        excusable = kind in excuses and kind in {VerdictKind.PRE_EXISTING, VerdictKind.FLAKY}
        expected = S.EXCUSED if excusable and confidence is Confidence.HIGH else blocked
        assert judge_status(backend, policy=replace(POLICY, excuses=excuses)) is expected


def test_an_excused_job_does_not_pass_a_backend_that_still_runs() -> None:
    assert judge_status(a_backend(FLAKY, an_open_job("test"), **BUILD)) is S.WAITING


def test_an_excuse_ends_when_its_verdict_changes() -> None:
    assert judge_status(a_backend(FLAKY, **BUILD)) is S.EXCUSED
    for verdict in (None, a_verdict(VerdictKind.NEW), a_verdict(confidence=Confidence.MEDIUM)):
        assert judge_status(a_backend(replace(FLAKY, verdict=verdict), **BUILD)) is S.FAILED


def test_in_a_merge_group_only_its_own_results_are_excused_not_those_of_its_heads() -> None:
    excused, new = a_backend(FLAKY, **BUILD), a_backend(a_job(C.FAILURE), **BUILD)
    heads = (a_subject(excused), a_subject(excused, number=8))
    for backend, state in ((excused, G.PASSED), (new, G.FAILED)):
        assert judge_gate(a_commit(a_group(backend, own_heads=heads)), POLICY, NOW).state is state


def test_an_excuse_at_another_head_of_the_group_does_not_make_a_waiver_count() -> None:
    waivers = (a_waiver(),)
    heads = (a_subject(waivers=waivers), a_subject(a_backend(FLAKY, **BUILD), number=8))
    group = a_group(a_backend(a_job(C.FAILURE), **BUILD), waivers=waivers, own_heads=heads)
    judged = judge_gate(a_commit(group), POLICY, NOW).subjects[0].backends[0]
    assert judged.standing is S.FAILED
    assert "excused for #8 at its own head" in judged.parts[0].reason


def test_a_waiver_of_a_job_waits_for_its_result_and_a_waiver_of_the_backend_does_not() -> None:
    running = a_backend(an_open_job())
    assert judge_status(running, a_waiver(job="build")) is S.WAITING
    assert judge_status(running, a_waiver()) is S.WAIVED
    assert judge_status(running, a_waiver(job="build"), now=DEADLINE) is S.WAIVED


@pytest.mark.parametrize("reason", ["draft", "approval"])
def test_a_waiver_of_the_backend_also_covers_its_hold(reason: str) -> None:
    held = an_unsent_backend(D.HELD, reason)
    assert judge_status(held, a_waiver()) is S.WAIVED
    assert judge_status(held, a_waiver(job="build")) is S.HELD


def test_a_waiver_names_its_backend_in_any_case() -> None:
    assert judge_status(a_backend(a_job(C.FAILURE)), a_waiver("Org/ONE")) is S.WAIVED


@pytest.mark.parametrize("conclusion", [C.SKIPPED, C.NEUTRAL])
def test_one_success_is_enough_beside_skipped_jobs(conclusion: Conclusion) -> None:
    skipped = a_job(conclusion, "x")
    assert judge_status(a_backend(skipped)) is S.DECLINED
    assert judge_status(a_backend(skipped, a_job())) is S.PASSED
    assert judge_status(a_backend(skipped, options={"may_skip": True})) is S.PASSED


def test_a_backend_that_may_skip_must_still_report() -> None:
    silent = a_backend(runs=(), listed_at=None, options={"may_skip": True}, sent_at=LONG_AGO)
    assert judge_status(silent) is S.MISSING


@pytest.mark.parametrize("conclusion", list(C))
def test_an_expected_outcome_is_the_only_one_that_passes(conclusion: Conclusion) -> None:
    for expected in (outcome for outcome in C if outcome is not C.NONE):
        backend = a_backend(a_job(conclusion, "probe 1"), options={"expect": (("probe *", expected),)})
        assert judge_status(backend) is (S.PASSED if conclusion is expected else S.FAILED)


def test_an_expectation_applies_only_to_the_jobs_it_names() -> None:
    backend = a_backend(a_job(C.FAILURE, "a xfail b"), a_job(C.FAILURE, "build"), options=XFAIL)
    judged = judge_one(backend)
    assert {part.name: part.standing for part in judged.parts} == {"a xfail b": S.PASSED, "build": S.FAILED}


def test_a_probe_that_is_expected_to_be_skipped_does_not_count_as_declined() -> None:
    backend = a_backend(a_job(C.SKIPPED, "probe"), options={"expect": (("probe", C.SKIPPED),)})
    assert judge_status(backend) is S.PASSED


# Complete by names

NAMES = [
    (("build",), ["build"], True),
    (("build", "test"), ["build"], False),
    (("build", "test"), ["build", "test"], True),
    ((r"a\*b",), ["axb"], False),
    ((r"a\*b",), ["a*b"], True),
    ((r"win\x64",), [r"win\x64"], True),
    (("Build",), ["build"], False),
]


@pytest.mark.parametrize(("job_names", "reported", "complete"), NAMES)
def test_without_readable_actions_job_names_alone_decide_completeness(
    job_names: tuple[str, ...], reported: list[str], complete: bool
) -> None:
    results = [a_job(name=name) for name in reported]
    backend = a_backend(*results, options={"jobs": job_names}, runs=(a_run(over=False),), readable=False)
    assert judge_status(backend) is (S.PASSED if complete else S.WAITING)
    assert judge_status(backend, now=DEADLINE) is (S.PASSED if complete else S.MISSING)


GLOBS = [
    (("test-*",), ["test-1"], True),
    (("test-*",), ["build"], False),
    (("test-*", "build"), ["test-1", "test-2"], False),
    (("test [a, *]",), ["test [a, b]"], True),
    (("a*b",), ["a*b"], True),
]


@pytest.mark.parametrize(("job_names", "reported", "complete"), NAMES + GLOBS)
def test_a_backend_is_complete_when_each_name_or_glob_has_a_result_and_its_runs_are_over(
    job_names: tuple[str, ...], reported: list[str], complete: bool
) -> None:
    results = [a_job(name=name) for name in reported]
    backend = a_backend(*results, options={"jobs": job_names})
    assert judge_status(backend) is (S.PASSED if complete else S.WAITING)
    assert judge_status(backend, now=DEADLINE) is (S.PASSED if complete else S.MISSING)
    assert judge_status(replace(backend, runs=(OPEN_RUN,))) is S.WAITING


def test_a_running_job_is_no_final_result_for_its_name() -> None:
    backend = a_backend(an_open_job("test-1"), options={"jobs": ("test-*",)})
    assert judge_status(backend) is S.WAITING


def test_a_reported_job_that_is_not_named_counts_too() -> None:
    named = {"jobs": ("build",)}
    assert judge_status(a_backend(a_job(), an_open_job("lint"), options=named)) is S.WAITING
    assert judge_status(a_backend(a_job(), a_job(C.FAILURE, "lint"), options=named)) is S.FAILED


def test_a_missing_job_is_reported_by_name() -> None:
    judged = judge_one(a_backend(a_job(), options={"jobs": ("build", "test-*")}), now=DEADLINE)
    assert [part.name for part in judged.deciding_parts] == ["test-*"]


# Complete by runs

FIRST_SEEN = SENT + MINUTE


@pytest.mark.parametrize(
    ("quiet", "expected"),
    [
        (timedelta(0), S.WAITING),
        (2 * MINUTE - SECOND, S.WAITING),
        (2 * MINUTE, S.PASSED),
        (HOUR / 2, S.PASSED),
    ],
)
def test_runs_are_complete_once_github_has_listed_no_new_run_for_two_minutes(
    quiet: timedelta, expected: GateStatus
) -> None:
    assert judge_status(a_backend(a_job(), listed_at=FIRST_SEEN + quiet)) is expected


def test_two_quiet_minutes_count_from_the_newest_run() -> None:
    newest = a_run("11", workflow="other.yml", first_seen_at=NOW - MINUTE)
    backend = a_backend(a_job(), runs=(a_run(), newest), listed_at=NOW)
    assert judge_status(backend) is S.WAITING
    assert judge_status(replace(backend, listed_at=NOW + MINUTE), now=NOW + MINUTE) is S.PASSED


def test_a_run_seen_later_makes_a_passed_gate_pending_again() -> None:
    passed = a_backend(a_job(), listed_at=NOW - 5 * MINUTE)
    later = replace(passed, runs=(*passed.runs, a_run("11", over=False, first_seen_at=NOW)))
    assert (judge(passed).state, judge(later).state) == (G.PASSED, G.PENDING)


def test_every_run_must_be_over() -> None:
    open_run = a_run("11", workflow="other.yml", over=False)
    assert judge_status(a_backend(a_job(), runs=(a_run(), open_run))) is S.WAITING


def test_superseded_runs_and_their_jobs_are_ignored() -> None:
    old_job = a_job(C.FAILURE, run_id="9", superseded=True, attempt=3)
    old_run = a_run("9", superseded=True, over=False, attempt=4)
    backend = a_backend(a_job(), old_job, an_open_job("x", superseded=True), runs=(a_run(), old_run))
    assert judge_status(backend) is S.PASSED


def test_two_runs_of_a_workflow_that_both_count_must_both_pass() -> None:
    runs = (a_run("10", attempt=2), a_run("11"))
    for other, expected in ((a_job(run_id="11"), S.PASSED), (an_open_job(run_id="11"), S.WAITING)):
        backend = a_backend(a_job(attempt=2), other, runs=runs)
        assert judge_status(backend) is expected
    failed = a_job(C.FAILURE, run_id="11")
    for order in ((a_job(), failed), (failed, a_job())):
        assert judge_status(a_backend(*order, runs=(a_run("10"), a_run("11")))) is S.FAILED


def test_clock_skew_against_the_listing_of_runs_does_not_hang_the_gate() -> None:
    assert judge(a_backend(a_job(), listed_at=NOW + SECOND)).state is G.PASSED


def test_the_waiting_reason_depends_on_the_progress_of_the_runs() -> None:
    def reason(**facts: Any) -> str:
        return judge_one(a_backend(**facts)).parts[0].reason

    assert reason(runs=()) == reason(runs=(a_run(superseded=True),)) == "no run has answered yet"
    assert reason(runs=(a_run(over=False),)) == "GitHub has not confirmed yet that its runs are over"
    assert reason() == "its runs are over, and no report has arrived"


# Attempts and re-runs


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (C.FAILURE, C.SUCCESS, S.PASSED),
        (C.CANCELLED, C.SUCCESS, S.PASSED),
        (C.SUCCESS, C.FAILURE, S.FAILED),
        (C.FAILURE, C.CANCELLED, S.ERRORED),
    ],
)
def test_the_highest_attempt_of_a_job_counts(
    first: Conclusion, second: Conclusion, expected: GateStatus, order: tuple[int, int]
) -> None:
    attempts = (a_job(first, attempt=1), a_job(second, attempt=2))
    assert judge_status(a_backend(*(attempts[at] for at in order), runs=(a_run(attempt=2),))) is expected


RERUNS: dict[str, DispatchRun] = {
    "asked for": a_run(rerun_from=1, rerun_at=NOW),
    "seen": a_run(attempt=2, attempt_at=NOW, over=False),
    "asked for and seen": a_run(attempt=2, attempt_at=NOW, over=False, rerun_from=1, rerun_at=NOW),
}


@pytest.mark.parametrize("kind", RERUNS)
@pytest.mark.parametrize("bad", [C.FAILURE, C.ACTION_REQUIRED, C.NONE, C.CANCELLED, C.TIMED_OUT])
def test_jobs_that_failed_before_a_rerun_wait_and_those_that_passed_stay_passed(
    kind: str, bad: Conclusion
) -> None:
    backend = a_backend(a_job(), a_job(bad, "test"), a_job(C.SKIPPED, "x"), runs=(RERUNS[kind],))
    parts = {part.name: part.standing for part in judge_one(backend).parts}
    assert parts == {"build": S.PASSED, "test": S.WAITING, "x": S.PASSED}


@pytest.mark.parametrize("kind", RERUNS)
def test_a_job_that_went_silent_or_was_excused_waits_for_its_rerun_too(kind: str) -> None:
    flaky = replace(FLAKY, name="test")
    judged = judge_one(a_backend(a_silent_job(), flaky, **BUILD, runs=(RERUNS[kind],)))
    assert {part.standing for part in judged.parts} == {S.WAITING}


def test_a_job_that_reported_in_its_rerun_no_longer_waits() -> None:
    rerun = a_run(attempt=2, rerun_from=1)
    backend = a_backend(a_job(C.FAILURE), a_job(C.FAILURE, attempt=2), runs=(rerun,))
    assert judge_status(backend) is S.FAILED
    assert judge_status(a_backend(a_job(C.FAILURE), a_job(attempt=2), runs=(rerun,))) is S.PASSED


def test_a_rerun_of_one_run_does_not_affect_failures_of_another() -> None:
    other = a_job(C.FAILURE, "other", run_id="11")
    backend = a_backend(a_job(C.FAILURE), other, runs=(a_run(rerun_from=1), a_run("11")))
    assert {part.name: part.standing for part in judge_one(backend).parts} == {
        "build": S.WAITING,
        "other": S.FAILED,
    }


@pytest.mark.parametrize("kind", RERUNS)
def test_the_deadline_of_a_rerun_counts_from_the_rerun(kind: str) -> None:
    backend = a_backend(a_job(C.FAILURE), runs=(RERUNS[kind],), sent_at=LONG_AGO)
    judged = judge_one(backend)
    assert (judged.standing, judged.deadline) == (S.WAITING, NOW + 6 * HOUR)
    assert judge_status(backend, now=NOW + 6 * HOUR - SECOND) is S.WAITING
    assert judge_status(backend, now=NOW + 6 * HOUR) is S.ERRORED


def test_an_attempt_of_a_superseded_run_does_not_move_the_deadline() -> None:
    old = a_run("9", superseded=True, attempt=2, attempt_at=NOW)
    assert judge_one(a_backend(an_open_job(), runs=(a_run(), old))).deadline == DEADLINE


# Deadlines


@pytest.mark.parametrize(
    ("options", "hours"),
    [
        ({}, 6),
        ({"gate_timeout_s": 4 * 3600}, 4),
        ({"gate_timeout_s": 3600}, 3),
        ({"job_timeout_s": 8 * 3600}, 8),
        ({"job_timeout_s": 3600, "gate_timeout_s": 7200}, 2),
        ({"job_timeout_s": 3600}, 6),
    ],
)
def test_each_entry_has_its_own_deadline_never_before_its_job_timeout(
    options: dict[str, int], hours: int
) -> None:
    backend = a_backend(an_open_job(), options=options)
    assert judge_one(backend).deadline == SENT + hours * HOUR
    assert judge_status(backend, now=SENT + hours * HOUR - SECOND) is S.WAITING
    assert judge_status(backend, now=SENT + hours * HOUR) is S.ERRORED


@pytest.mark.parametrize("state", [D.HELD, D.WAITING])
@pytest.mark.parametrize("reason", ["draft", "approval", "head in doubt", "paths"])
def test_an_unsent_dispatch_has_no_deadline(state: DispatchState, reason: str) -> None:
    backend = an_unsent_backend(state, reason)
    judgement = judge(backend, now=NOW + timedelta(days=365))
    assert (judgement.state, judgement.recheck_at) == (G.PENDING, None)
    assert judgement.subjects[0].backends[0].deadline is None


def test_the_gate_is_rechecked_at_the_first_deadline() -> None:
    short = a_backend(an_open_job(), name="org/two", options={"gate_timeout_s": 4 * 3600})
    assert judge(a_backend(an_open_job(), runs=()), replace(short, runs=())).recheck_at == SENT + 4 * HOUR


def test_a_failed_gate_is_rechecked_at_the_deadline_of_a_job_that_still_waits() -> None:
    judgement = judge(a_backend(a_job(C.FAILURE), an_open_job("test"), runs=()))
    assert (judgement.state, judgement.recheck_at) == (G.FAILED, DEADLINE)


def test_a_decided_gate_has_no_recheck_time() -> None:
    for backend in (a_backend(a_job()), a_backend(a_job(C.FAILURE)), a_backend(a_job(C.SKIPPED))):
        assert judge(backend).recheck_at is None


# Waivers and their pull requests


def test_a_waiver_counts_for_its_own_pull_request_only() -> None:
    failed = a_backend(a_job(C.FAILURE))
    seven = a_subject(failed, waivers=(a_waiver(number=7),))
    eight = a_subject(failed, number=8, delivery="guid-8")
    states = [subject.state for subject in judge_gate(a_commit(seven, eight), POLICY, NOW).subjects]
    assert states == [G.PASSED, G.FAILED]
    assert judge_gate(a_commit(seven, eight), POLICY, NOW).state is G.FAILED


def test_a_waiver_of_another_pull_request_is_ignored_even_if_passed_in() -> None:
    assert judge_status(a_backend(a_job(C.FAILURE)), a_waiver(number=8)) is S.FAILED


def test_a_waiver_expires_to_the_second_and_the_gate_is_rechecked_then() -> None:
    until = NOW + HOUR
    backend = a_backend(a_job(C.FAILURE))
    waiver = a_waiver(until_at=until)
    assert judge(backend, waivers=(waiver,)).recheck_at == until
    assert judge_status(backend, waiver, now=until - SECOND) is S.WAIVED
    assert judge_status(backend, waiver, now=until) is S.FAILED
    assert judge(backend, waivers=(waiver,), now=until).recheck_at is None


def test_an_unlimited_waiver_keeps_the_gate_open_after_another_expires() -> None:
    backend = a_backend(a_job(C.FAILURE))
    waivers = (a_waiver(until_at=NOW + HOUR), a_waiver(job="build"))
    assert judge_status(backend, *waivers, now=NOW + 2 * HOUR) is S.WAIVED


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ((S.PASSED, S.PASSED), G.PASSED),
        ((S.PASSED, S.WAITING), G.PENDING),
        ((S.WAITING, S.FAILED), G.FAILED),
        ((S.FAILED, S.PASSED), G.FAILED),
    ],
)
def test_the_worst_of_several_pull_requests_on_one_head_decides(
    states: tuple[GateStatus, GateStatus], expected: GateState
) -> None:
    backends = {
        S.PASSED: a_backend(a_job()),
        S.WAITING: a_backend(an_open_job()),
        S.FAILED: a_backend(a_job(C.FAILURE)),
    }
    one, two = (
        a_subject(backends[state], number=number, delivery=str(number)) for number, state in enumerate(states)
    )
    assert judge_gate(a_commit(one, two), POLICY, NOW).state is expected


# Merge groups


AT_ITS_OWN_HEAD = {
    "it failed": (a_backend(a_job(C.FAILURE)), (), False),
    "it runs": (a_backend(an_open_job()), (), False),
    "the job was skipped": (a_backend(a_job(C.SKIPPED), a_job(name="test")), (), False),
    "the job did not run": (a_backend(a_job(name="test")), (), False),
    "it was not concerned": (an_unsent_backend(D.LEFT_OUT, "paths"), (), False),
    "it does not gate": (replace(a_backend(a_job()), level=Level.L3), (), False),
    "it passed the job and failed another": (a_backend(a_job(), a_job(C.FAILURE, "test")), (), True),
    "it passed": (a_backend(a_job()), (), True),
    "it is waived": (a_backend(a_job(C.FAILURE)), (a_waiver(number=8),), True),
    "another job is waived": (a_backend(a_job(C.FAILURE)), (a_waiver(job="test", number=8),), False),
    "the waiver ran out": (a_backend(a_job(C.FAILURE)), (a_waiver(number=8, until_at=NOW),), False),
    "it is waived, and not concerned": (
        an_unsent_backend(D.LEFT_OUT, "paths"),
        (a_waiver(number=8, job="build"),),
        True,
    ),
}


@pytest.mark.parametrize("case", AT_ITS_OWN_HEAD)
def test_in_a_group_a_waiver_counts_if_every_other_pull_request_passed_or_has_it_waived(case: str) -> None:
    backend, waivers, counts = AT_ITS_OWN_HEAD[case]
    own = a_subject(a_backend(a_job(C.FAILURE)), number=7), a_subject(backend, number=8, waivers=waivers)
    group = a_group(a_backend(a_job(C.FAILURE)), waivers=(a_waiver(number=7), *waivers), own_heads=own)
    [subject] = judge_gate(a_commit(group), POLICY, NOW).subjects
    assert (subject.state is G.PASSED) is counts
    if not counts:
        assert "the waiver of #7 does not count here" in subject.backends[0].parts[0].reason


@pytest.mark.parametrize("own", [(), (7,), (8,)])
def test_in_a_group_no_waiver_counts_while_a_pull_request_has_another_head_than_the_group(
    own: tuple[int, ...],
) -> None:
    heads = tuple(a_subject(a_backend(a_job()), number=number) for number in own)
    group = a_group(a_backend(a_job(C.FAILURE)), waivers=(a_waiver(number=7),), own_heads=heads)
    assert judge_gate(a_commit(group), POLICY, NOW).state is G.FAILED


# Renames


@pytest.mark.parametrize(
    "backend", [a_backend(a_job()), a_backend(a_job(C.FAILURE)), an_unsent_backend(D.HELD)]
)
def test_the_gate_waits_for_a_removed_backend_that_may_have_been_renamed(backend: BackendResults) -> None:
    removed = replace(backend, entry=None, possible_renames=(RepoName("org/new"),))
    judgement = judge_gate(a_commit(a_subject(removed)), POLICY, NOW + timedelta(days=30))
    assert judgement.state is G.PENDING
    assert "checking for a rename" in judgement.subjects[0].backends[0].parts[0].reason


WAIVED_IDS = {
    "the same id under another name": (5, "org/old", True),
    "another id under the same name": (6, "org/one", False),
    "no id, the same name": (None, "org/one", True),
    "no id, the name of the dispatch": (None, "org/was", True),
    "no id, another name": (None, "org/old", False),
}


@pytest.mark.parametrize("case", WAIVED_IDS)
def test_a_waiver_follows_the_repository_id_and_not_the_name(case: str) -> None:
    repository_id, name, covers = WAIVED_IDS[case]
    waiver = a_waiver(name, repository_id=repository_id)
    backend = a_backend(a_job(C.FAILURE), repository_id=5, dispatched_as=RepoName("org/was"))
    judgement = judge_gate(a_commit(a_subject(backend, waivers=(waiver,))), POLICY, NOW)
    assert (judgement.state is G.PASSED) is covers


@pytest.mark.parametrize("number", [7, 8])
def test_a_waiver_of_any_pull_request_of_a_group_covers_the_same_job_in_the_group(number: int) -> None:
    passed = tuple(a_subject(a_backend(a_job()), number=pull) for pull in (7, 8))
    group = a_group(
        a_backend(a_job(C.FAILURE)), waivers=(a_waiver(job="build", number=number),), own_heads=passed
    )
    assert judge_gate(a_commit(group), POLICY, NOW).state is G.PASSED


@pytest.mark.parametrize("numbers", [None, (), (8, 9)])
def test_no_waiver_applies_to_a_group_that_is_not_known_to_hold_its_pull_request(
    numbers: tuple[int, ...] | None,
) -> None:
    group = a_group(a_backend(a_job(C.FAILURE)), numbers=numbers, waivers=(a_waiver(number=7),))
    assert judge_gate(a_commit(group), POLICY, NOW).state is G.FAILED


@pytest.mark.parametrize("backend", [an_unsent_backend(D.WAITING), a_backend(a_job(C.FAILURE))])
def test_a_group_whose_tree_passed_before_needs_no_second_run(backend: BackendResults) -> None:
    reused = a_group(backend, reused_from="b" * 40)
    assert judge_gate(a_commit(reused), POLICY, NOW).state is G.PASSED
    assert judge_gate(a_commit(replace(reused, reused_from=None)), POLICY, NOW).state is not G.PASSED


def test_a_reused_result_does_not_pass_the_commit_for_another_pull_request() -> None:
    reused = a_group(reused_from="b" * 40)
    other = a_subject(a_backend(an_open_job()))
    assert judge_gate(a_commit(reused, other), POLICY, NOW).state is G.PENDING


# Membership


@pytest.mark.parametrize(
    ("recorded", "listed", "counts"),
    [
        (Level.L4, Level.L4, True),
        (Level.L4, Level.L3, False),
        (Level.L4, None, False),
        (Level.L3, Level.L4, False),
        (Level.L3, Level.L3, False),
        (Level.L1, Level.L4, False),
    ],
)
def test_a_backend_gates_only_if_it_was_l4_when_recorded_and_still_is(
    recorded: Level, listed: Level | None, counts: bool
) -> None:
    entry = an_entry(level=listed) if listed else None
    judgement = judge(a_backend(a_job(C.FAILURE), level=recorded, entry=entry))
    assert judgement.state is (G.FAILED if counts else G.PASSED)
    assert len(judgement.subjects[0].backends) == counts


def test_without_an_l4_backend_the_gate_passes() -> None:
    judgement = judge()
    assert (judgement.state, judgement.recheck_at) == (G.PASSED, None)


# Doubt


@pytest.mark.parametrize("backends", [(), (a_backend(a_job()),), (a_backend(an_open_job()),)])
@pytest.mark.parametrize("facts", [{}, {"reused_from": "b" * 40}])
def test_the_gate_never_passes_for_a_subject_in_doubt(
    backends: tuple[BackendResults, ...], facts: dict[str, Any]
) -> None:
    assert judge(*backends, in_doubt=True, **facts).state is G.PENDING


def test_doubt_about_one_pull_request_keeps_the_commit_pending() -> None:
    sure = a_subject(a_backend(a_job()))
    doubtful: MergeSubject = replace(sure, number=8, delivery="guid-8", in_doubt=True)
    assert judge_gate(a_commit(sure, doubtful), POLICY, NOW).state is G.PENDING


def test_judging_a_commit_without_a_subject_raises_an_error() -> None:
    with pytest.raises(ValueError, match="without a subject"):
        judge_gate(a_commit(), POLICY, NOW)
