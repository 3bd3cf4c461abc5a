"""The checks that a commit should have, their content, and the calls that bring GitHub to that state."""

from dataclasses import replace
from datetime import datetime
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crcr.decide.checks.check_run import GATE_NAME, CheckContent, CheckStatus, Tier, WantedCheck
from crcr.decide.checks.commit import BackendResults, GrantedWaiver, JobResult, MergeSubject
from crcr.decide.checks.gate import GateState, judge_gate
from crcr.decide.checks.publication import CheckAction, PublishedCheck, ending_content, next_action
from crcr.decide.checks.wanted_checks import CheckPolicy, JobChecks, is_labelled, wanted_checks
from crcr.decide.failures.verdict import VerdictKind
from crcr.decide.model import Conclusion, DispatchState, Level
from support.data.commits import (
    HEAD,
    HOUR,
    LONG_AGO,
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

C, D = Conclusion, DispatchState
QUEUED, IN_PROGRESS, COMPLETED = CheckStatus.QUEUED, CheckStatus.IN_PROGRESS, CheckStatus.COMPLETED
RULES = CheckPolicy(
    gate=POLICY,
    gate_on=True,
    label_prefixes=("ciflow/crcr/",),
    l3_fails_red=False,
    show_l3_pending=True,
    job_checks=JobChecks.ALL,
    hud_url="https://hud.example",
)
LABEL = "ciflow/crcr/npu"
BACKEND, JOB = "crcr/org/one", "crcr/org/one/CI/build"
StatusAndConclusion = tuple[CheckStatus, Conclusion | None]


def checks_by_name(
    *subjects: MergeSubject, rules: CheckPolicy = RULES, now: datetime = NOW
) -> dict[str, WantedCheck]:
    commit = a_commit(*subjects)
    judgement = judge_gate(commit, rules.gate, now) if subjects else None
    checks = wanted_checks(commit, judgement, rules, now)
    names = [check.name for check in checks]
    assert len(set(names)) == len(names), "two checks of one name would take turns for ever"
    return {check.name: check for check in checks}


def shown_by_name(
    backend: BackendResults, *waivers: GrantedWaiver, rules: CheckPolicy = RULES, **facts: Any
) -> dict[str, StatusAndConclusion]:
    """Return status and conclusion of every check but the gate's."""
    facts = {"labels": (LABEL,), "waivers": waivers} | facts
    checks = checks_by_name(a_subject(backend, **facts), rules=rules)
    return {
        name: (check.shown.status, check.shown.conclusion)
        for name, check in checks.items()
        if name != GATE_NAME
    }


def at_l3(*jobs: JobResult, **facts: Any) -> BackendResults:
    return a_backend(*jobs, level=Level.L3, options={"level": Level.L3}, **facts)


def sent_at_l3() -> BackendResults:
    return at_l3(runs=(), listed_at=None)


# Which check exists when

UNLABELLED: dict[str, Any] = {"labels": ()}


def test_at_dispatch_a_backend_has_one_check_in_progress() -> None:
    sent = a_backend(runs=(), listed_at=None)
    assert shown_by_name(sent) == {BACKEND: (IN_PROGRESS, None)}
    assert shown_by_name(sent, **UNLABELLED) == {BACKEND: (IN_PROGRESS, None)}
    assert shown_by_name(sent_at_l3()) == {BACKEND: (IN_PROGRESS, None)}


@pytest.mark.parametrize("jobs", [(), (an_open_job(),), (a_job(),), (a_job(C.FAILURE),)])
def test_an_l3_backend_without_its_label_has_no_checks(jobs: tuple[JobResult, ...]) -> None:
    assert shown_by_name(at_l3(*jobs), **UNLABELLED) == {}


def test_a_label_added_later_shows_all_checks_in_their_current_state() -> None:
    backend = at_l3(a_job(), an_open_job("test"), runs=(a_run(over=False),))
    assert shown_by_name(backend, **UNLABELLED) == {}
    assert shown_by_name(backend) == {
        BACKEND: (IN_PROGRESS, None),
        JOB: (COMPLETED, C.SUCCESS),
        "crcr/org/one/CI/test": (IN_PROGRESS, None),
    }


@pytest.mark.parametrize("level", [Level.L3, Level.L4])
def test_the_backend_check_follows_its_jobs(level: Level) -> None:
    def at(*jobs: JobResult, over: bool) -> StatusAndConclusion:
        backend = a_backend(*jobs, level=level, options={"level": level}, runs=(a_run(over=over),))
        return shown_by_name(backend)[BACKEND]

    assert at(an_open_job(), over=False) == (IN_PROGRESS, None)
    assert at(a_job(), over=False) == (IN_PROGRESS, None)
    assert at(a_job(), over=True) == (COMPLETED, C.SUCCESS)


@pytest.mark.parametrize(
    ("recorded", "listed", "label", "is_shown"),
    [
        (Level.L4, Level.L4, False, True),
        (Level.L4, Level.L3, False, False),
        (Level.L4, Level.L3, True, True),
        (Level.L3, Level.L3, True, True),
        (Level.L3, Level.L2, True, False),
        (Level.L2, Level.L3, True, False),
        (Level.L2, Level.L4, True, False),
        (Level.L1, Level.L1, True, False),
        (Level.L4, None, True, False),
        (Level.L3, None, True, False),
    ],
)
def test_whether_a_check_is_shown_depends_on_the_recorded_and_the_current_level(
    recorded: Level, listed: Level | None, label: bool, is_shown: bool
) -> None:
    backend = a_backend(a_job(), level=recorded, entry=an_entry(level=listed) if listed else None)
    assert bool(shown_by_name(backend, labels=(LABEL,) if label else ())) is is_shown


def test_a_backend_that_is_not_concerned_has_no_check() -> None:
    for state in (D.LEFT_OUT, D.CANCELLED):
        assert shown_by_name(an_unsent_backend(state, "paths")) == {}


@pytest.mark.parametrize(("state", "status"), [(D.HELD, QUEUED), (D.WAITING, IN_PROGRESS)])
def test_only_a_held_dispatch_is_shown_as_queued(state: DispatchState, status: CheckStatus) -> None:
    assert shown_by_name(an_unsent_backend(state, "draft")) == {BACKEND: (status, None)}


def test_a_commit_without_subjects_has_no_checks() -> None:
    assert checks_by_name() == {}


def test_without_a_gate_the_other_checks_stay() -> None:
    commit = a_commit(a_subject(a_backend(a_job())))
    assert [check.name for check in wanted_checks(commit, None, RULES, NOW)] == [BACKEND, JOB]


def test_the_newest_delivery_of_two_pull_requests_decides_the_backend_check() -> None:
    old = a_subject(a_backend(a_job(C.FAILURE)), received_at=SENT - HOUR)
    new = a_subject(a_backend(a_job()), number=8, delivery="guid-8")
    for order in ((old, new), (new, old)):
        assert checks_by_name(*order)[BACKEND].shown.conclusion is C.SUCCESS


def test_a_label_on_one_of_two_pull_requests_shows_the_l3_check_for_both() -> None:
    labelled = a_subject(at_l3(a_job()), labels=(LABEL,), received_at=SENT - HOUR)
    plain = a_subject(at_l3(a_job()), number=8, delivery="guid-8")
    assert BACKEND in checks_by_name(labelled, plain)


def test_a_group_that_reuses_a_result_shows_its_gate_only() -> None:
    assert list(checks_by_name(a_group(a_backend(), reused_from="b" * 40))) == [GATE_NAME]


# Labels


@pytest.mark.parametrize(
    ("labels", "prefixes", "labelled"),
    [
        (("ciflow/crcr/npu",), ("ciflow/crcr/",), True),
        (("CIFlow/CRCR/NPU",), ("ciflow/crcr/",), True),
        (("ciflow/crcr/npu",), ("CIFLOW/crcr/",), True),
        (("bug", "ciflow/crcr/npu"), ("ciflow/crcr/",), True),
        (("ciflow/npu",), ("ciflow/crcr/", "ciflow/"), True),
        (("ciflow/crcr/npu",), ("ciflow/",), False),
        (("ciflow/crcr/npu2",), ("ciflow/crcr/",), False),
        (("ciflow/crcr/",), ("ciflow/crcr/",), False),
        (("npu",), ("ciflow/crcr/",), False),
        (("ciflow/crcr/npu",), (), False),
        ((), ("ciflow/crcr/",), False),
    ],
)
def test_the_label_is_a_known_prefix_and_the_device_in_any_case(
    labels: tuple[str, ...], prefixes: tuple[str, ...], labelled: bool
) -> None:
    assert is_labelled(an_entry(device="NPU"), labels, prefixes) is labelled


def test_an_entry_without_a_device_has_no_label() -> None:
    assert not is_labelled(an_entry(device=None), ("ciflow/crcr/", "ciflow/crcr/None"), ("ciflow/crcr/",))


# Checks of L3 backends

BAD_JOBS = [
    a_job(conclusion) for conclusion in (C.FAILURE, C.ACTION_REQUIRED, C.NONE, C.CANCELLED, C.TIMED_OUT)
]
BAD_JOBS += [a_silent_job(), a_job(None)]
OPEN = [sent_at_l3(), at_l3(an_open_job()), at_l3(a_job(C.FAILURE), runs=(a_run(rerun_from=1),))]


@pytest.mark.parametrize("job", BAD_JOBS, ids=lambda job: str(job.conclusion or job.state))
def test_an_l3_failure_is_neutral_and_marked_as_non_blocking(job: JobResult) -> None:
    checks = checks_by_name(a_subject(at_l3(job), labels=(LABEL,)))
    for name in (BACKEND, JOB):
        assert checks[name].shown.conclusion is C.NEUTRAL
        assert checks[name].shown.title.endswith("(non-blocking)")


@pytest.mark.parametrize("job", BAD_JOBS, ids=lambda job: str(job.conclusion or job.state))
def test_an_upstream_can_configure_l3_failures_as_red(job: JobResult) -> None:
    red = shown_by_name(at_l3(job), rules=replace(RULES, l3_fails_red=True))
    assert red[BACKEND] == (COMPLETED, C.FAILURE)
    assert red[JOB][1] not in {C.SUCCESS, C.NEUTRAL, C.SKIPPED, C.NONE, None}


@pytest.mark.parametrize("backend", [at_l3(runs=(), sent_at=LONG_AGO), at_l3(a_job(C.SKIPPED))])
def test_an_l3_backend_that_is_missing_or_declined_is_neutral_too(backend: BackendResults) -> None:
    assert shown_by_name(backend)[BACKEND] == (COMPLETED, C.NEUTRAL)


@pytest.mark.parametrize("backend", OPEN, ids=["sent", "running", "running again"])
def test_l3_is_completed_neutral_while_running_if_pending_checks_are_hidden(backend: BackendResults) -> None:
    checks = checks_by_name(a_subject(backend, labels=(LABEL,)), rules=replace(RULES, show_l3_pending=False))
    for name in checks.keys() - {GATE_NAME}:
        shown = checks[name].shown
        assert (shown.status, shown.conclusion) == (COMPLETED, C.NEUTRAL)
        assert shown.title.endswith("(non-blocking)")


@pytest.mark.parametrize("backend", OPEN, ids=["sent", "running", "running again"])
def test_l3_is_open_while_running_if_pending_checks_are_shown(backend: BackendResults) -> None:
    assert {status for status, _ in shown_by_name(backend).values()} <= {QUEUED, IN_PROGRESS}


def test_the_result_of_a_job_shown_neutral_while_running_updates_the_same_check() -> None:
    rules = replace(RULES, show_l3_pending=False)
    running, done = (
        checks_by_name(a_subject(at_l3(job), labels=(LABEL,)), rules=rules)[JOB]
        for job in (an_open_job(), a_job())
    )
    published = PublishedCheck(
        tier=Tier.JOB, incarnation=running.incarnation, is_open=False, digest="running"
    )
    assert next_action(published, done, "done") is CheckAction.UPDATE
    assert done.shown.conclusion is C.SUCCESS


def test_l3_options_do_not_affect_l4() -> None:
    rules = replace(RULES, show_l3_pending=False, l3_fails_red=False)
    assert shown_by_name(a_backend(an_open_job()), rules=rules)[JOB] == (IN_PROGRESS, None)
    assert shown_by_name(a_backend(a_job(C.FAILURE)), rules=rules)[JOB] == (COMPLETED, C.FAILURE)
    assert "non-blocking" not in checks_by_name(a_subject(a_backend(a_job(C.FAILURE))))[JOB].shown.title


def test_a_backend_recorded_at_l3_is_non_blocking_even_at_l4_now() -> None:
    promoted = a_backend(a_job(C.FAILURE), level=Level.L3)
    assert shown_by_name(promoted)[BACKEND] == (COMPLETED, C.NEUTRAL)


# Jobs


@pytest.mark.parametrize(
    ("job", "conclusion"),
    [
        (a_job(), C.SUCCESS),
        (a_job(C.SKIPPED), C.SKIPPED),
        (a_job(C.NEUTRAL), C.NEUTRAL),
        (a_job(C.FAILURE), C.FAILURE),
        (a_job(C.ACTION_REQUIRED), C.ACTION_REQUIRED),
        (a_job(C.CANCELLED), C.CANCELLED),
        (a_job(C.TIMED_OUT), C.TIMED_OUT),
        (a_silent_job(), C.TIMED_OUT),
        (a_job(C.NONE), C.FAILURE),
        (a_job(None), C.FAILURE),
        (a_job(C.NONE, verdict=a_verdict(VerdictKind.INFRASTRUCTURE)), C.FAILURE),
        (a_job(C.FAILURE, verdict=a_verdict(VerdictKind.INFRASTRUCTURE)), C.FAILURE),
        (a_job(C.FAILURE, verdict=a_verdict(VerdictKind.FLAKY)), C.NEUTRAL),
    ],
)
def test_an_l4_job_shows_its_conclusion_and_an_excused_one_neutral(
    job: JobResult, conclusion: Conclusion
) -> None:
    assert shown_by_name(a_backend(job, options={"jobs": ("build",)}))[JOB] == (COMPLETED, conclusion)


@pytest.mark.parametrize("job", BAD_JOBS, ids=lambda job: str(job.conclusion or job.state))
@pytest.mark.parametrize("waived", ["build", None])
def test_a_waived_job_is_neutral(job: JobResult, waived: str | None) -> None:
    shown = shown_by_name(a_backend(job), a_waiver(job=waived))
    assert (shown[JOB], shown[BACKEND]) == ((COMPLETED, C.NEUTRAL), (COMPLETED, C.NEUTRAL))


def test_a_waiver_that_expired_or_is_of_another_pull_request_has_no_effect() -> None:
    for waiver in (a_waiver(until_at=NOW), a_waiver(number=8)):
        assert shown_by_name(a_backend(a_job(C.FAILURE)), waiver)[JOB] == (COMPLETED, C.FAILURE)


def test_a_probe_succeeds_only_with_its_expected_conclusion() -> None:
    expect = {"expect": (("build", C.FAILURE),)}
    assert shown_by_name(a_backend(a_job(C.FAILURE), options=expect))[JOB] == (COMPLETED, C.SUCCESS)
    assert shown_by_name(a_backend(a_job(), options=expect))[JOB] == (COMPLETED, C.FAILURE)


def test_a_rerun_job_is_queued_in_a_new_check_and_passed_jobs_keep_theirs() -> None:
    before = checks_by_name(a_subject(a_backend(a_job(C.FAILURE), a_job(name="test"))))
    rerun = a_backend(a_job(C.FAILURE), a_job(name="test"), runs=(a_run(rerun_from=1),))
    after = checks_by_name(a_subject(rerun))
    assert (after[JOB].shown.status, after[BACKEND].shown.status) == (QUEUED, IN_PROGRESS)
    assert after[JOB].incarnation != before[JOB].incarnation
    assert after[BACKEND].incarnation != before[BACKEND].incarnation
    assert after["crcr/org/one/CI/test"] == before["crcr/org/one/CI/test"]


def test_a_rerun_keeps_its_new_check_when_it_starts_and_ends() -> None:
    requested = a_backend(a_job(C.FAILURE), runs=(a_run(rerun_from=1),))
    started = replace(requested, runs=(a_run(rerun_from=1, attempt=2, over=False),))
    done = replace(started, jobs=(a_job(C.FAILURE), a_job(attempt=2)), runs=(a_run(rerun_from=1, attempt=2),))
    stages = [checks_by_name(a_subject(backend)) for backend in (requested, started, done)]
    for name in (BACKEND, JOB):
        assert len({checks[name].incarnation for checks in stages}) == 1
    assert stages[-1][JOB].shown.conclusion is C.SUCCESS


def make_jobs(count: int, *, bad: int, **facts: Any) -> list[JobResult]:
    return [a_job(C.FAILURE if at < bad else C.SUCCESS, f"job-{at}", **facts) for at in range(count)]


def job_checks(backend: BackendResults, *waivers: GrantedWaiver) -> set[str]:
    return {name.rpartition("/")[2] for name in shown_by_name(backend, *waivers) if name.count("/") > 2}


def test_each_of_up_to_twenty_jobs_has_a_check() -> None:
    assert len(job_checks(a_backend(*make_jobs(20, bad=2)))) == 20


def test_above_twenty_only_failed_jobs_have_a_check() -> None:
    jobs = [
        *make_jobs(20, bad=2),
        an_open_job("open"),
        a_job(C.CANCELLED, "cancelled"),
        a_silent_job("silent"),
    ]
    assert job_checks(a_backend(*jobs)) == {"job-0", "job-1", "cancelled", "silent"}
    assert job_checks(at_l3(*jobs)) == {"job-0", "job-1", "cancelled", "silent"}


def test_above_twenty_a_failed_job_keeps_its_check_when_waived_rerun_or_fixed() -> None:
    failed = make_jobs(21, bad=1)
    waived = shown_by_name(a_backend(*failed), a_waiver(job="job-0"))
    assert waived["crcr/org/one/CI/job-0"] == (COMPLETED, C.NEUTRAL)
    runs_again = shown_by_name(a_backend(*failed, runs=(a_run(rerun_from=1),)))
    assert runs_again["crcr/org/one/CI/job-0"] == (QUEUED, None)
    fixed = shown_by_name(a_backend(*failed, a_job(C.SUCCESS, "job-0", attempt=2), runs=(a_run(attempt=2),)))
    assert fixed["crcr/org/one/CI/job-0"] == (COMPLETED, C.SUCCESS)
    assert len(fixed) == 2


def test_above_twenty_an_expected_failure_is_no_failure() -> None:
    backend = a_backend(*make_jobs(21, bad=3), options={"expect": (("job-0", C.FAILURE),)})
    assert job_checks(backend) == {"job-1", "job-2"}


OTHER_FILE = {"workflow": "other.yml", "run_id": "11"}


def test_one_job_name_in_two_workflows_makes_two_checks() -> None:
    named = a_backend(a_job(), a_job(C.FAILURE, workflow_name="Nightly", **OTHER_FILE))
    shown = shown_by_name(named)
    assert shown[JOB] == (COMPLETED, C.SUCCESS)
    assert shown["crcr/org/one/Nightly/build"] == (COMPLETED, C.FAILURE)


def test_workflows_with_the_same_name_are_distinguished_by_file() -> None:
    shown = shown_by_name(a_backend(a_job(), a_job(C.FAILURE, **OTHER_FILE), a_job(name="lint")))
    assert shown["crcr/org/one/.github/workflows/ci.yml/build"] == (COMPLETED, C.SUCCESS)
    assert shown["crcr/org/one/other.yml/build"] == (COMPLETED, C.FAILURE)
    assert "crcr/org/one/CI/lint" in shown


def test_a_check_name_does_not_change_when_other_jobs_are_left_out() -> None:
    twin = a_job(C.SUCCESS, "job-0", **OTHER_FILE)
    for count in (10, 30):
        shown = shown_by_name(a_backend(*make_jobs(count, bad=1), twin))
        assert "crcr/org/one/.github/workflows/ci.yml/job-0" in shown


def test_names_that_differ_only_beyond_the_length_limit_stay_distinct() -> None:
    twins = [a_job(name="x" * 300 + end) for end in "ab"]
    shown = shown_by_name(a_backend(*twins, a_job(name="in\u200bvisible"), a_job(name="invisible")))
    assert len(shown) == 5
    assert max(map(len, shown)) <= 200


def test_a_job_check_links_to_its_run_only_if_the_url_is_safe() -> None:
    def details(url: str | None) -> str | None:
        return checks_by_name(a_subject(a_backend(a_job(url=url))))[JOB].shown.details_url

    assert (
        details("https://github.com/org/one/actions/runs/10") == "https://github.com/org/one/actions/runs/10"
    )
    for bad in (None, "javascript:alert(1)"):
        assert details(bad) == "https://hud.example/crcr/org/one"


# The gate's check

GATES = {
    GateState.PASSED: (a_backend(a_job()), (COMPLETED, C.SUCCESS)),
    GateState.PENDING: (a_backend(an_open_job()), (IN_PROGRESS, None)),
    GateState.FAILED: (a_backend(a_job(C.FAILURE)), (COMPLETED, C.FAILURE)),
}


@pytest.mark.parametrize("state", GateState)
def test_the_gate_check_shows_the_state_of_the_gate(state: GateState) -> None:
    backend, expected = GATES[state]
    shown = checks_by_name(a_subject(backend))[GATE_NAME].shown
    assert (shown.status, shown.conclusion) == expected


def test_every_commit_has_a_gate_check_even_without_a_gating_backend() -> None:
    for subject in (a_subject(), a_subject(at_l3(a_job(C.FAILURE))), a_group()):
        shown = checks_by_name(subject)[GATE_NAME].shown
        assert (shown.conclusion, "no gating backend" in shown.title) == (C.SUCCESS, True)


def test_the_gate_check_links_to_its_pull_request_or_commit() -> None:
    pull, group = (
        checks_by_name(subject)[GATE_NAME].shown.details_url for subject in (a_subject(), a_group())
    )
    assert pull == "https://hud.example/crcr/pr/7?upstream=up/stream"
    assert group == f"https://hud.example/crcr/commit/{HEAD}?upstream=up/stream"


def test_another_delivery_for_the_commit_creates_a_new_gate_check() -> None:
    first, second = (checks_by_name(a_subject(delivery=guid))[GATE_NAME] for guid in ("guid-1", "guid-2"))
    ended = PublishedCheck(tier=Tier.GATE, incarnation=first.incarnation, is_open=False, digest="same")
    assert next_action(ended, second, "same") is CheckAction.CREATE


states = st.sampled_from([D.SENT, *D])
conclusions = st.none() | st.sampled_from(list(C))
jobs = st.builds(a_job, conclusions, st.sampled_from(["build", "test"])) | st.builds(an_open_job)
backends = st.builds(
    lambda jobs, state, level, sent_at, over: a_backend(
        *jobs, state=state, level=level, sent_at=sent_at, runs=(a_run(over=over),)
    ),
    st.lists(jobs, max_size=3, unique_by=lambda job: job.name),
    states,
    st.sampled_from([Level.L3, Level.L4]),
    st.sampled_from([None, SENT, LONG_AGO]),
    st.booleans(),
)
subjects = st.builds(
    lambda backend, waived, in_doubt: a_subject(
        backend, waivers=(a_waiver(),) if waived else (), in_doubt=in_doubt, labels=(LABEL,)
    ),
    backends,
    st.booleans(),
    st.booleans(),
)
policies = st.builds(
    lambda red, pends: replace(RULES, l3_fails_red=red, show_l3_pending=pends), st.booleans(), st.booleans()
)


@given(subjects, policies)
def test_the_gate_is_green_only_when_passed_and_never_neutral_or_skipped(
    subject: MergeSubject, rules: CheckPolicy
) -> None:
    judgement = judge_gate(a_commit(subject), rules.gate, NOW)
    shown = checks_by_name(subject, rules=rules)[GATE_NAME].shown
    assert shown.conclusion in {None, C.SUCCESS, C.FAILURE}
    assert (shown.conclusion is C.SUCCESS) is (judgement.state is GateState.PASSED)


@given(subjects, policies)
def test_a_check_has_a_conclusion_known_to_github_exactly_when_completed(
    subject: MergeSubject, rules: CheckPolicy
) -> None:
    for check in checks_by_name(subject, rules=rules).values():
        assert (check.shown.status is COMPLETED) is (check.shown.conclusion is not None)
        assert check.shown.conclusion is not C.NONE


@given(subjects)
def test_a_non_gating_check_never_looks_like_a_blocker(subject: MergeSubject) -> None:
    checks = checks_by_name(subject, rules=replace(RULES, show_l3_pending=False))
    if not subject.backends[0].gates:
        shown = {check.shown.conclusion for check in checks.values() if check.tier is not Tier.GATE}
        assert shown <= {C.SUCCESS, C.NEUTRAL, C.SKIPPED}


# From wanted and published checks to actions


def a_wanted_check(*, opens: bool, incarnation: str = "1", tier: Tier = Tier.JOB) -> WantedCheck:
    shown = CheckContent(
        status=IN_PROGRESS if opens else COMPLETED,
        conclusion=None if opens else C.SUCCESS,
        title="title",
        summary="summary",
    )
    return WantedCheck(name="name", tier=tier, incarnation=incarnation, shown=shown)


def a_published_check(*, is_open: bool, tier: Tier = Tier.JOB) -> PublishedCheck:
    return PublishedCheck(tier=tier, incarnation="1", is_open=is_open, digest="same")


PUBLISHED = {
    "none": None,
    "open": a_published_check(is_open=True),
    "completed": a_published_check(is_open=False),
}
WANTED_OPEN = {"none": None, "open": True, "completed": False}
# published, wanted, incarnation, digest
ACTIONS = {
    ("none", "none", "same", "same"): CheckAction.NOTHING,
    ("none", "none", "same", "other"): CheckAction.NOTHING,
    ("none", "none", "other", "same"): CheckAction.NOTHING,
    ("none", "none", "other", "other"): CheckAction.NOTHING,
    ("none", "open", "same", "same"): CheckAction.CREATE,
    ("none", "open", "same", "other"): CheckAction.CREATE,
    ("none", "open", "other", "same"): CheckAction.CREATE,
    ("none", "open", "other", "other"): CheckAction.CREATE,
    ("none", "completed", "same", "same"): CheckAction.CREATE,
    ("none", "completed", "same", "other"): CheckAction.CREATE,
    ("none", "completed", "other", "same"): CheckAction.CREATE,
    ("none", "completed", "other", "other"): CheckAction.CREATE,
    ("open", "none", "same", "same"): CheckAction.END,
    ("open", "none", "same", "other"): CheckAction.END,
    ("open", "none", "other", "same"): CheckAction.END,
    ("open", "none", "other", "other"): CheckAction.END,
    ("open", "open", "same", "same"): CheckAction.NOTHING,
    ("open", "open", "same", "other"): CheckAction.UPDATE,
    ("open", "open", "other", "same"): CheckAction.NOTHING,
    ("open", "open", "other", "other"): CheckAction.UPDATE,
    ("open", "completed", "same", "same"): CheckAction.NOTHING,
    ("open", "completed", "same", "other"): CheckAction.UPDATE,
    ("open", "completed", "other", "same"): CheckAction.NOTHING,
    ("open", "completed", "other", "other"): CheckAction.UPDATE,
    ("completed", "none", "same", "same"): CheckAction.NOTHING,
    ("completed", "none", "same", "other"): CheckAction.NOTHING,
    ("completed", "none", "other", "same"): CheckAction.NOTHING,
    ("completed", "none", "other", "other"): CheckAction.NOTHING,
    ("completed", "open", "same", "same"): CheckAction.CREATE,
    ("completed", "open", "same", "other"): CheckAction.CREATE,
    ("completed", "open", "other", "same"): CheckAction.CREATE,
    ("completed", "open", "other", "other"): CheckAction.CREATE,
    ("completed", "completed", "same", "same"): CheckAction.NOTHING,
    ("completed", "completed", "same", "other"): CheckAction.UPDATE,
    ("completed", "completed", "other", "same"): CheckAction.CREATE,
    ("completed", "completed", "other", "other"): CheckAction.CREATE,
}


def test_the_table_of_actions_is_complete() -> None:
    same = ("same", "other")
    assert ACTIONS.keys() == set(product(PUBLISHED, WANTED_OPEN, same, same))


@pytest.mark.parametrize("case", ACTIONS, ids=" ".join)
@pytest.mark.parametrize("tier", Tier)
def test_the_next_action_for_a_check_follows_the_table(case: tuple[str, str, str, str], tier: Tier) -> None:
    published_state, wanted_state, incarnation, digest = case
    before = PUBLISHED[published_state]
    published = replace(before, tier=tier) if before else None
    opens = WANTED_OPEN[wanted_state]
    wanted_check = None
    if opens is not None:
        wanted_check = a_wanted_check(
            opens=opens, incarnation="1" if incarnation == "same" else "2", tier=tier
        )
    assert next_action(published, wanted_check, digest) is ACTIONS[case]


@given(st.text(), st.text(), st.text(), st.text())
def test_a_completed_check_is_never_updated_to_an_open_one(
    incarnation: str, next_incarnation: str, digest: str, next_digest: str
) -> None:
    published = PublishedCheck(tier=Tier.GATE, incarnation=incarnation, is_open=False, digest=digest)
    wanted_check = a_wanted_check(opens=True, incarnation=next_incarnation)
    assert next_action(published, wanted_check, next_digest) is CheckAction.CREATE


def published_after(
    action: CheckAction, before: PublishedCheck | None, wanted_check: WantedCheck | None, digest: str
) -> PublishedCheck | None:
    """Return the published check after GitHub has executed the action."""
    if action is CheckAction.NOTHING:
        return before
    if wanted_check is None:
        return PublishedCheck(tier=Tier.JOB, incarnation="", is_open=False, digest="ended")
    opens = wanted_check.shown.status is not COMPLETED
    return PublishedCheck(
        tier=wanted_check.tier, incarnation=wanted_check.incarnation, is_open=opens, digest=digest
    )


@given(
    st.lists(st.tuples(st.sampled_from([None, True, False]), st.sampled_from("12"), st.sampled_from("xy")))
)
def test_one_action_brings_a_check_up_to_date_and_a_second_has_nothing_to_do(
    history: list[tuple[bool | None, str, str]],
) -> None:
    published: PublishedCheck | None = None
    for opens, incarnation, words in history:
        wanted_check = None if opens is None else a_wanted_check(opens=opens, incarnation=incarnation)
        digest = f"{opens} {words}"
        action = next_action(published, wanted_check, digest)
        published = published_after(action, published, wanted_check, digest)
        assert next_action(published, wanted_check, digest) is CheckAction.NOTHING
        assert wanted_check is None or (published is not None and published.digest == digest)
        assert wanted_check is not None or published is None or not published.is_open


@pytest.mark.parametrize(
    ("tier", "conclusion"), [(Tier.GATE, C.CANCELLED), (Tier.BACKEND, C.NEUTRAL), (Tier.JOB, C.NEUTRAL)]
)
def test_an_ended_gate_is_cancelled_and_other_checks_are_neutral(tier: Tier, conclusion: Conclusion) -> None:
    shown = ending_content(tier, "superseded or closed")
    assert (shown.status, shown.conclusion) == (COMPLETED, conclusion)
    assert "superseded or closed" in shown.title
