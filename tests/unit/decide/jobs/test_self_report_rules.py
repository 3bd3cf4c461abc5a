"""Rules of self-reports: the upstream, the caller, the trigger, and a second report."""

from dataclasses import replace
from typing import Any

import pytest

from crcr.decide.allowlist.entries import AllowlistEntry
from crcr.decide.github.commit_origin import MOST_RELEASES, branches_to_ask
from crcr.decide.jobs.judge import (
    AdmittedCaller,
    BuildFacts,
    CallerStanding,
    IgnoredReport,
    RejectedReport,
    RepeatedReport,
)
from crcr.decide.jobs.match_job import JobFacts
from crcr.decide.jobs.report import Report, ReportStatus
from crcr.decide.jobs.self_report import (
    SELF_REPORT_TRIGGERS,
    SelfReportedJob,
    SelfReportFacts,
    admit_self_report,
    choose_upstream,
    judge_self_report,
)
from crcr.decide.model import Binding, Conclusion, JobState, Level, RepoName
from crcr.errors import BadReport
from support.data.events_and_reports import BACKEND, NOW, a_caller, a_start, ref_claims

UP, SECOND, THIRD = RepoName("Up/stream"), RepoName("other/stream"), RepoName("third/stream")
ENTRY = AllowlistEntry(name=BACKEND, level=Level.L2)
CALLER = a_caller(event_name="schedule", **ref_claims())


def a_self_report(**changes: Any) -> Report:
    return a_start(
        **{
            "event_type": "nightly",
            "status": ReportStatus.COMPLETED,
            "conclusion": Conclusion.SUCCESS,
            **changes,
        }
    )


def a_standing(upstream: RepoName = UP, *, listed: bool = True, **changes: Any) -> CallerStanding:
    return replace(CallerStanding(upstream, ENTRY if listed else None, None, suspended=False), **changes)


def a_known_job(first: Conclusion = Conclusion.SUCCESS, **changes: Any) -> JobFacts:
    facts = JobFacts(
        job_name="build",
        reported_name="build",
        state=JobState.COMPLETED,
        first_conclusion=first,
        conclusion=first,
        opened_by="100",
        in_progress_at=NOW,
        late_start=False,
    )
    return replace(facts, **changes)


def judge(*jobs: JobFacts, report: Report | None = None, entry: AllowlistEntry = ENTRY, **claims: Any) -> Any:
    caller, facts = replace(CALLER, **claims), SelfReportFacts(jobs=jobs, default_branch="main")
    return judge_self_report(report or a_self_report(), caller, entry, facts)


@pytest.mark.parametrize(
    ("reported", "listing", "chosen"),
    [
        (None, (UP,), UP),
        ("up/STREAM", (UP,), UP),
        ("someone/else", (UP,), UP),
        ("other/stream", (UP,), UP),
        ("other/stream", (UP, SECOND), SECOND),
        ("UP/stream", (UP, SECOND), UP),
    ],
)
def test_the_upstream_is_the_named_one_else_the_only_one_that_lists_the_sender(
    reported: str | None, listing: tuple[RepoName, ...], chosen: RepoName
) -> None:
    standings = [a_standing(name, listed=name in listing) for name in (UP, SECOND, THIRD)]
    standing = choose_upstream(a_self_report(said_upstream=reported), CALLER, standings)
    assert isinstance(standing, CallerStanding)
    assert standing.upstream == chosen


@pytest.mark.parametrize("reported", [None, "someone/else", "third/stream"])
def test_one_of_several_upstreams_must_be_named(reported: str | None) -> None:
    standings = [a_standing(UP), a_standing(SECOND), a_standing(THIRD, listed=False)]
    with pytest.raises(BadReport, match=r"payload\.repository\.full_name names no upstream") as refusal:
        choose_upstream(a_self_report(said_upstream=reported), CALLER, standings)
    for secret in (UP, SECOND):
        assert str(secret) not in f"{refusal.value.detail} {refusal.value.hint}", "its listing may be hidden"


def test_an_unlisted_caller_is_refused_so_that_a_sandbox_can_accept_it() -> None:
    refusal = choose_upstream(a_self_report(said_upstream=str(UP)), CALLER, [a_standing(listed=False)])
    assert isinstance(refusal, RejectedReport)
    assert refusal.code == "not_allowlisted"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"binding": Binding(999, None, confirmed=True)}, "identity_changed"),
        ({"suspended": True}, "suspended"),
        ({"entry": replace(ENTRY, events=frozenset({"pull_request", "periodic"}))}, "not_allowlisted"),
        ({"entry": replace(ENTRY, level=Level.L1)}, None),
    ],
)
def test_a_caller_that_may_not_self_report_is_refused_or_ignored(
    changes: dict[str, Any], code: str | None
) -> None:
    verdict = admit_self_report(a_self_report(), CALLER, a_standing(**changes))
    assert isinstance(verdict, IgnoredReport) if code is None else isinstance(verdict, RejectedReport)
    assert getattr(verdict, "code", None) == code


def test_a_listed_caller_may_self_report() -> None:
    assert admit_self_report(a_self_report(), CALLER, a_standing()) == AdmittedCaller(ENTRY)
    bound = a_standing(binding=Binding(5, None, confirmed=True))
    assert admit_self_report(a_self_report(), CALLER, bound) == AdmittedCaller(ENTRY)


@pytest.mark.parametrize("event", [*sorted(SELF_REPORT_TRIGGERS), None])
def test_a_run_with_an_allowed_trigger_may_self_report(event: str | None) -> None:
    assert judge(event_name=event) == SelfReportedJob(
        "build", Conclusion.SUCCESS, unsigned=False, warning=None
    )


@pytest.mark.parametrize("event", ["pull_request", "pull_request_target", "workflow_run", ""])
def test_a_run_with_another_trigger_may_self_report_only_if_the_entry_allows_it(event: str) -> None:
    refusal = judge(event_name=event)
    assert refusal.code == "wrong_event"
    allowed = replace(ENTRY, allow_events=frozenset({event}))
    assert isinstance(judge(event_name=event, entry=allowed), SelfReportedJob)


@pytest.mark.parametrize(
    ("claims", "reported", "refused"),
    [
        ({}, {}, False),
        ({}, {"run_id": "11"}, True),
        ({}, {"run_attempt": 2}, True),
        ({"run_attempt": None}, {"run_attempt": 2}, False),
        ({"run_attempt": None}, {"run_id": "11"}, True),
        ({"run_id": None, "run_attempt": None}, {"run_id": "any"}, False),
    ],
)
def test_signed_claims_about_the_run_must_match_the_report(
    claims: dict[str, Any], reported: dict[str, Any], refused: bool
) -> None:
    outcome = judge(report=a_self_report(**reported), **claims)
    assert isinstance(outcome, RejectedReport) is refused
    assert not refused or outcome.code == "claim_mismatch"


def test_a_build_may_report_only_the_run_that_it_named_first() -> None:
    caller = a_caller(run_id=None, run_attempt=None, check_run_id=None, event_name=None, build="42")
    bound = SelfReportFacts(jobs=(), build=BuildFacts(run_id="other", build=None))
    refusal = judge_self_report(a_self_report(run_id="b-1"), caller, ENTRY, bound)
    assert isinstance(refusal, RejectedReport)
    assert refusal.code == "claim_mismatch"
    free = judge_self_report(
        a_self_report(run_id="b-1"), caller, ENTRY, SelfReportFacts(jobs=(), build=BuildFacts(None, None))
    )
    assert free == SelfReportedJob("build", Conclusion.SUCCESS, unsigned=False, warning=None)


def test_an_unproven_run_is_marked_as_unsigned() -> None:
    assert judge(report=a_self_report(run_id="b-1"), run_id=None, run_attempt=None, event_name=None).unsigned


def test_a_result_without_a_conclusion_is_kept_as_none() -> None:
    assert judge(report=a_self_report(conclusion=None)).conclusion is Conclusion.NONE


@pytest.mark.parametrize("first", Conclusion)
@pytest.mark.parametrize("second", Conclusion)
def test_a_second_report_is_a_repeat_or_a_dispute(first: Conclusion, second: Conclusion) -> None:
    outcome = judge(a_known_job(first), report=a_self_report(conclusion=second))
    if first is second:
        assert outcome == RepeatedReport("build")
    else:
        assert outcome.code == "conflicting_result"
        assert outcome.dispute.claimed is second
        assert outcome.dispute.counts in (first, second)


def test_the_first_result_stays_a_repeat_after_a_dispute() -> None:
    disputed = a_known_job(Conclusion.SUCCESS, conclusion=Conclusion.FAILURE)
    assert judge(disputed) == RepeatedReport("build")


@pytest.mark.parametrize(
    ("signed", "opened_by", "job_name"),
    [("100", "100", None), ("200", "100", "build (2)"), (None, "100", None), ("200", None, None)],
)
def test_only_two_signed_ids_make_two_legs(
    signed: str | None, opened_by: str | None, job_name: str | None
) -> None:
    outcome = judge(a_known_job(opened_by=opened_by), check_run_id=signed)
    if job_name is None:
        assert isinstance(outcome, RepeatedReport)
    else:
        assert outcome.job_name == job_name
        assert "matrix" in outcome.warning


def test_a_leg_skips_names_that_are_taken() -> None:
    taken = a_known_job(job_name="build (2)", reported_name="build (2)", opened_by="300")
    assert judge(a_known_job(), taken, check_run_id="200").job_name == "build (3)"
    leg = judge(
        a_known_job(job_name="build (2)"), report=a_self_report(job_name="build (2)"), check_run_id="400"
    )
    assert leg.job_name == "build (2) (2)"


@pytest.mark.parametrize(
    ("releases", "expected"),
    [
        ((), ()),
        (
            ("release/2.9", "release/2.10", "release/1.13.1"),
            ("release/2.10", "release/2.9", "release/1.13.1"),
        ),
        (("release/next", "release/2.0", "release-notes"), ("release/2.0", "release/next")),
        (
            ("release/2.1", "release/2.1.1", "release/2.1-rc2"),
            ("release/2.1.1", "release/2.1", "release/2.1-rc2"),
        ),
    ],
)
def test_branches_are_queried_in_order_of_likelihood(
    releases: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    assert branches_to_ask("main", releases) == ("main", "nightly", *expected)


def test_old_releases_are_not_queried_and_no_branch_is_queried_twice() -> None:
    many = [f"release/{number}" for number in range(40)]
    newest = [f"release/{number}" for number in range(39, 39 - MOST_RELEASES, -1)]
    assert branches_to_ask("nightly", many) == ("nightly", *newest)
    for default in (newest[0], newest[4], newest[-1]):
        others = [branch for branch in newest if branch != default]
        assert branches_to_ask(default, many) == (default, "nightly", *others)
