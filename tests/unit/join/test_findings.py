"""Findings about a set-up: each state of each finding, from its facts."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from crcr.decide.allowlist.entries import AllowlistEntry
from crcr.decide.github.repository_setup import (
    BranchFacts,
    Inspection,
    InstallationFacts,
    LastCallback,
    LastDispatch,
    LastRefusal,
    Pinning,
    SetupFacts,
    WorkflowFacts,
)
from crcr.decide.model import Conclusion, DispatchState, JobState, Level, RepoName
from crcr.decide.views.overview import DispatchAnswer
from crcr.deliver.handlers.workflow_yaml import workflow_facts
from crcr.github.api.request_response import Response, create_dispatch
from crcr.github.http.errors import error_from_response
from crcr.join.ci_kinds import Ci
from crcr.join.files import generate
from crcr.join.findings.examine import State
from crcr.join.findings.examine import examine as examine_for
from crcr.join.findings.finding import SetupFinding, format_age
from crcr.join.help_links import hint_links, page_hint_links
from support.downstream.join_requests import join_request

NOW = datetime(2026, 8, 3, 12, tzinfo=UTC)
EARLIER = NOW - timedelta(hours=2)
REPO, UPSTREAM = RepoName("Org/backend"), RepoName("up/stream")
PATH = ".github/workflows/crcr.yml"
PIN = "https://relay.example.org/github/callback crcr"
RIGHTS = {"contents": "write", "metadata": "read", "actions": "write"}
WORKFLOW = WorkflowFacts(
    path=PATH,
    sha="1",
    dispatch_types=("pull_request", "push", "crcr_test"),
    id_token=True,
    reports=True,
    pinning=Pinning.PINNED,
    pins=(PIN,),
    state="active",
)
INSPECTION = Inspection(
    installed=True,
    installation=InstallationFacts(installation_id=1, permissions=RIGHTS),
    branch=BranchFacts(repository_id=7, full_name="Org/backend", default_branch="main"),
    workflows=(WORKFLOW,),
)
SENT = LastDispatch(
    delivery="d", event="pull_request", state=DispatchState.SENT, created_at=EARLIER, sent_at=EARLIER
)
TAKEN = LastCallback(
    at=EARLIER,
    job_name="build",
    event="pull_request",
    state=JobState.COMPLETED,
    conclusion=Conclusion.SUCCESS,
)
REFUSED = LastRefusal(
    at=NOW - timedelta(hours=1), code="claim_mismatch", detail="run_id differs.", hint="do this"
)
GOOD = SetupFacts(
    upstream=UPSTREAM,
    repository=REPO,
    entry=AllowlistEntry(name=REPO, level=Level.L2, events=frozenset({"pull_request", "push", "nightly"})),
    allowlist_source="up/stream@main:allowlist.yml",
    repository_id=7,
    confirmed=True,
    asked_at=EARLIER,
    inspected_at=EARLIER,
    inspection=INSPECTION,
    last_dispatch=SENT,
    last_callback=TAKEN,
)


HINT_LINKS = hint_links("https://relay.example.org", UPSTREAM, REPO, audience="crcr", several=False)


def examine(facts: SetupFacts, now: datetime) -> tuple[SetupFinding, ...]:
    return examine_for(facts, now, HINT_LINKS)


def find_finding(name: str, facts: SetupFacts) -> SetupFinding:
    return next(finding for finding in examine(facts, NOW) if finding.name == name)


def entry_at_level(level: Level, **more: Any) -> AllowlistEntry:
    return AllowlistEntry(name=REPO, level=level, events=frozenset({"pull_request", "push"}), **more)


def inspection_of(*workflow_facts_list: WorkflowFacts, **more: Any) -> Inspection:
    return replace(INSPECTION, workflows=workflow_facts_list, **more)


def inspection_with(**permissions: str) -> Inspection:
    return replace(INSPECTION, installation=InstallationFacts(installation_id=1, permissions=permissions))


def test_a_complete_set_up_is_ok_in_every_finding() -> None:
    findings = examine(GOOD, NOW)
    assert {finding.state for finding in findings} == {State.OK}
    names = [finding.name for finding in findings]
    assert names == [
        *("allowlist", "standing", "app", "permissions", "identity", "workflow", "events", "id_token"),
        "pins",
        *("dispatch", "callback", "refusal"),
    ]
    assert "at L2" in findings[0].text
    assert "up/stream@main:allowlist.yml" in findings[0].text


def test_an_unlisted_repository_is_not_inspected_and_the_findings_explain_it() -> None:
    only, *rest = examine(replace(GOOD, entry=None), NOW)
    assert (only.name, only.state) == ("allowlist", State.PROBLEM)
    assert "not on the allowlist" in only.text
    assert [(finding.name, finding.state) for finding in rest] == [
        ("app", State.UNKNOWN),
        ("workflow", State.UNKNOWN),
    ]
    assert all("once you are listed" in finding.text for finding in rest)
    none, *_ = examine(replace(GOOD, entry=None, has_allowlist=False), NOW)
    assert "no valid allowlist" in none.text


def test_hints_have_full_urls_and_commands_and_on_the_page_step_numbers() -> None:
    new = replace(GOOD, entry=None)
    page = "https://relay.example.org/crcr/onboarding?repository=Org/backend"
    assert page in (examine(new, NOW)[0].hint or "")
    assert "step 2" in (examine_for(new, NOW, page_hint_links(PIN))[0].hint or "")
    quiet = replace(GOOD, last_dispatch=None)
    command = "crcr doctor --relay https://relay.example.org --repo Org/backend"
    assert f"`{command} --test`" in (find_finding("dispatch", quiet).hint or "")
    named = hint_links("https://relay.example.org", UPSTREAM, REPO, audience="crcr", several=True)
    [dispatch_finding] = [finding for finding in examine_for(quiet, NOW, named) if finding.name == "dispatch"]
    assert f"{command} --upstream up/stream --test" in (dispatch_finding.hint or "")


CASES: list[tuple[str, State, str, dict[str, Any]]] = [
    ("standing", State.PROBLEM, "Suspended", {"suspended_at": EARLIER}),
    ("standing", State.WARNING, "paused 2 hours ago", {"paused_at": EARLIER}),
    ("app", State.UNKNOWN, "were not checked yet", {"inspection": None, "asked_at": None, "inspected_at": None}),
    ("app", State.UNKNOWN, "is in progress", {"inspection": None, "inspected_at": None}),
    ("app", State.UNKNOWN, "cannot be reached", {"inspection": Inspection(installed=None, trouble="GitHub cannot be reached")}),
    ("app", State.PROBLEM, "not installed on Org/backend", {"inspection": Inspection(installed=False)}),
    (
        "app",
        State.PROBLEM,
        "suspended",
        {"inspection": Inspection(installed=True, installation=InstallationFacts(installation_id=1, suspended=True))},
    ),
    (
        "app",
        State.PROBLEM,
        "archived",
        {"inspection": replace(INSPECTION, branch=replace(INSPECTION.branch, archived=True))},  # type: ignore[type-var]
    ),
    ("app", State.UNKNOWN, "another repository has the name", {"inspection": Inspection(installed=None, other_id=9)}),
    (
        "identity",
        State.PROBLEM,
        "id 9; the one that was admitted has the id 7",
        {"inspection": Inspection(installed=None, other_id=9)},
    ),
    # It was rebound since.
    ("app", State.UNKNOWN, "were not checked yet", {"inspection": Inspection(installed=None, other_id=7)}),
    ("identity", State.OK, "Bound to", {"inspection": Inspection(installed=None, other_id=7)}),
    ("permissions", State.PROBLEM, "may not write Contents", {"inspection": inspection_with(contents="read", metadata="read")}),
    ("permissions", State.OK, "", {"inspection": inspection_with(contents="write", metadata="read")}),
    (
        "permissions",
        State.WARNING,
        "may not read Actions",
        {"inspection": inspection_with(contents="write"), "entry": entry_at_level(Level.L3)},
    ),
    (
        "permissions",
        State.PROBLEM,
        "gate cannot know",
        {"inspection": inspection_with(contents="write"), "entry": entry_at_level(Level.L4)},
    ),
    (
        "permissions",
        State.WARNING,
        "may not read Actions",
        {"inspection": inspection_with(contents="write"), "entry": entry_at_level(Level.L4, jobs=("build",))},
    ),
    (
        "permissions",
        State.WARNING,
        "fresh dispatches",
        {"inspection": inspection_with(contents="admin", actions="read"), "entry": entry_at_level(Level.L4)},
    ),
    ("identity", State.PROBLEM, "identity changed", {"alarm": "identity_changed"}),
    ("identity", State.UNKNOWN, "does not know", {"repository_id": None, "confirmed": False}),
    ("identity", State.WARNING, "first report", {"confirmed": False}),
    ("workflow", State.PROBLEM, "There is no workflow on main", {"inspection": inspection_of()}),
    (
        "workflow",
        State.PROBLEM,
        "The only workflow on main does not listen",
        {"inspection": inspection_of(replace(WORKFLOW, dispatch_types=None))},
    ),
    (
        "workflow",
        State.PROBLEM,
        "it is not YAML",
        {"inspection": inspection_of(WorkflowFacts(path=PATH, sha="1", problem="it is not YAML"))},
    ),
    ("workflow", State.PROBLEM, "disabled manually", {"inspection": inspection_of(replace(WORKFLOW, state="disabled_manually"))}),
    ("workflow", State.OK, PATH, {"inspection": inspection_of(replace(WORKFLOW, state=None))}),
    (
        "workflow",
        State.UNKNOWN,
        "4 more",
        {"inspection": inspection_of(replace(WORKFLOW, dispatch_types=None), files_left=4)},
    ),
    ("workflow", State.UNKNOWN, "could not be read", {"inspection": replace(INSPECTION, workflows=None)}),
    ("events", State.PROBLEM, "pull_request and push", {"inspection": inspection_of(replace(WORKFLOW, dispatch_types=("other",)))}),
    (
        "events",
        State.WARNING,
        "No workflow listens to push",
        {"inspection": inspection_of(replace(WORKFLOW, dispatch_types=("pull_request",)))},
    ),
    ("events", State.OK, "pull_request", {"inspection": inspection_of(replace(WORKFLOW, dispatch_types=()))}),
    ("id_token", State.PROBLEM, "may not request an OIDC token", {"inspection": inspection_of(replace(WORKFLOW, id_token=False))}),
    ("id_token", State.UNKNOWN, "reusable", {"inspection": inspection_of(replace(WORKFLOW, id_token=False, calls_others=True))}),
    ("dispatch", State.UNKNOWN, "Nothing has been sent", {"last_dispatch": None}),
    ("dispatch", State.OK, "crcr test", {"last_dispatch": None, "last_test": replace(SENT, event="crcr_test")}),
    ("dispatch", State.OK, "started no run", {"last_dispatch": replace(SENT, answer=DispatchAnswer.NEVER_STARTED)}),
    ("dispatch", State.WARNING, "3 earlier dispatches are undelivered", {"parked": 3}),
    ("dispatch", State.OK, "is queued", {"last_dispatch": replace(SENT, state=DispatchState.WAITING)}),
    (
        "dispatch",
        State.WARNING,
        "GitHub has an outage",
        {"last_dispatch": replace(SENT, state=DispatchState.WAITING, error="GitHub answered 502 to POST /x: y")},
    ),
    (
        "dispatch",
        State.PROBLEM,
        "the App is not installed there",
        {"last_dispatch": replace(SENT, state=DispatchState.PARKED, error="GitHub answered 404 to POST /x: y")},
    ),
    (
        "dispatch",
        State.PROBLEM,
        "the App is not installed there",
        {"last_dispatch": replace(SENT, state=DispatchState.PARKED, error="The App is not installed on org/backend.")},
    ),
    (
        "dispatch",
        State.OK,
        "cancelled (suspended)",
        {"last_dispatch": replace(SENT, state=DispatchState.CANCELLED, reason="suspended")},
    ),
    ("callback", State.WARNING, "no report ever came back", {"last_callback": None, "first_sent_at": NOW - timedelta(hours=2)}),
    (
        "callback",
        State.WARNING,
        "no report ever came back",
        {
            "last_callback": None,
            "first_sent_at": NOW - timedelta(minutes=20),
            "last_dispatch": replace(SENT, answer=DispatchAnswer.NEVER_STARTED),
        },
    ),
    (
        "callback",
        State.WARNING,
        "No report was accepted yet",
        {"last_callback": None, "first_sent_at": NOW, "last_refusal": REFUSED},
    ),
    (
        "callback",
        State.UNKNOWN,
        f"first dispatch is in progress since {NOW - timedelta(minutes=20):%Y-%m-%d %H:%M} UTC (20 minutes ago)",
        {"last_callback": None, "first_sent_at": NOW - timedelta(minutes=20)},
    ),
    (
        "callback",
        State.UNKNOWN,
        f"first run is in progress since {NOW - timedelta(minutes=3):%Y-%m-%d %H:%M} UTC (3 minutes ago)",
        {"last_callback": None, "first_sent_at": NOW - timedelta(hours=2), "first_run_at": NOW - timedelta(minutes=3)},
    ),
    (
        "callback",
        State.WARNING,
        "has not reported its start",
        {"last_callback": None, "first_sent_at": NOW - timedelta(hours=2), "first_run_at": NOW - timedelta(hours=2)},
    ),
    ("callback", State.UNKNOWN, "No report yet", {"last_callback": None, "last_dispatch": None}),
    ("callback", State.OK, "build (pull_request) ended as success", {}),
    ("callback", State.OK, "still runs", {"last_callback": replace(TAKEN, state=JobState.IN_PROGRESS, conclusion=None)}),
    ("refusal", State.PROBLEM, "claim_mismatch: run_id differs.", {"last_refusal": REFUSED}),
    ("refusal", State.WARNING, "Later reports were accepted", {"last_refusal": REFUSED, "last_callback": replace(TAKEN, at=NOW)}),
    ("refusal", State.OK, "settled: the result was accepted.", {"last_refusal": replace(REFUSED, settled=True)}),
    (
        "refusal",
        State.OK,
        "3 days ago",
        {"last_refusal": replace(REFUSED, at=NOW - timedelta(days=3)), "last_callback": TAKEN},
    ),
    ("silence", State.PROBLEM, "two weeks", {"silent": True, "last_dispatch": replace(SENT, answer=DispatchAnswer.NOT_LISTENING)}),
    ("nightly", State.OK, "2 hours ago", {"last_nightly": TAKEN}),
    ("nightly", State.WARNING, "nightly runs have stopped", {"last_nightly": replace(TAKEN, at=NOW - timedelta(days=3))}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "state", "words", "facts"), CASES)
def test_each_finding_has_the_state_and_text_of_its_facts(
    name: str, state: State, words: str, facts: dict[str, Any]
) -> None:
    finding = find_finding(name, replace(GOOD, **facts))
    assert (finding.state, words in finding.text) == (state, True), finding.text
    assert finding.hint or state is State.OK or "more were not read" in finding.text


def test_every_text_is_a_sentence_and_hints_have_full_commands_and_urls() -> None:
    unpunctuated = replace(REFUSED, detail="no in_progress was recorded for run 1 attempt 1")
    cases: list[dict[str, Any]] = [facts for *_, facts in CASES]
    cases.append({"last_refusal": unpunctuated, "last_callback": replace(TAKEN, at=NOW)})
    for facts in cases:
        for finding in examine(replace(GOOD, **facts), NOW):
            assert finding.text.endswith("."), finding.text
            assert "attempt 1 Later" not in finding.text
            assert not (finding.hint or "").endswith((".", ";")), finding.hint
            for word in ("crcr doctor`", " /crcr/onboarding", "(/crcr/onboarding"):
                assert word not in (finding.hint or "")


def test_every_problem_has_a_hint() -> None:
    problems = [
        find_finding(name, replace(GOOD, **facts))
        for name, state, _, facts in CASES
        if state is State.PROBLEM
    ]
    assert all(problem.hint for problem in problems)


def test_an_l1_backend_needs_no_reports() -> None:
    l1_facts = replace(
        GOOD,
        entry=entry_at_level(Level.L1),
        last_callback=None,
        inspection=inspection_of(replace(WORKFLOW, id_token=False)),
    )
    names = {finding.name for finding in examine(l1_facts, NOW)}
    assert names.isdisjoint({"id_token", "callback", "refusal", "silence"})
    assert {finding.state for finding in examine(l1_facts, NOW)} == {State.OK}


OTHER_CIS = [ci for ci in Ci if ci is not Ci.GITHUB]


def inspection_of_generated(ci: Ci) -> Inspection:
    files = [file for file in generate(join_request(ci)) if file.path.startswith(".github/workflows/")]
    return inspection_of(*(workflow_facts(file.path, "1", file.text) for file in files))


@pytest.mark.parametrize("ci", OTHER_CIS)
def test_behind_a_bridge_a_missing_oidc_permission_is_ok_without_a_hint(
    ci: Ci,
) -> None:
    facts = replace(GOOD, inspection=inspection_of_generated(ci))
    finding = find_finding("id_token", facts)
    assert (finding.state, finding.hint) == (State.OK, None), finding
    assert finding.text.startswith(f"Reports come from {ci.title}; its tokens count once the operator")
    assert {other_finding.state for other_finding in examine(facts, NOW)} == {State.OK}


@pytest.mark.parametrize("ci", list(Ci))
def test_a_finding_explains_how_to_test_a_generated_workflow_without_a_token(ci: Ci) -> None:
    finding = find_finding("test run", replace(GOOD, inspection=inspection_of_generated(ci)))
    assert (finding.state, "press Run workflow" in finding.text, "no token" in finding.text) == (
        State.OK,
        True,
        True,
    )
    older = replace(WORKFLOW, requests_tests=None)
    assert "test run" not in {
        other_finding.name for other_finding in examine(replace(GOOD, inspection=inspection_of(older)), NOW)
    }


def test_generated_github_workflows_may_request_an_oidc_token() -> None:
    assert (
        "may request an OIDC token"
        in find_finding("id_token", replace(GOOD, inspection=inspection_of_generated(Ci.GITHUB))).text
    )


@pytest.mark.parametrize(
    ("bridge_to", "private"), [("buildkite", True), ("<b>x", False), ("${{ vars.CI }}", False)]
)
def test_the_ci_of_a_private_repository_and_unknown_ci_names_are_not_shown(
    bridge_to: str, private: bool
) -> None:
    branch = BranchFacts(repository_id=7, full_name="Org/backend", default_branch="main", private=private)
    bridge = replace(WORKFLOW, id_token=False, bridge_to=bridge_to)
    finding = find_finding("id_token", replace(GOOD, inspection=inspection_of(bridge, branch=branch)))
    assert (finding.state, "come from another CI;" in finding.text) == (State.OK, True), finding.text


@pytest.mark.parametrize(
    ("pinning", "pins", "state", "words"),
    [
        (Pinning.PINNED, (PIN,), State.OK, "pins this relay"),
        (
            Pinning.PINNED,
            ("https://other.example.org/github/callback x", PIN),
            State.OK,
            "pins this relay",
        ),
        (Pinning.PINNED, (PIN.upper(),), State.PROBLEM, "pins other relays and not this one"),
        (Pinning.MISSING, (), State.PROBLEM, "pins no relay, so the reporter stops"),
        (Pinning.EVENT, (), State.PROBLEM, "so a dispatch decides who gets a token"),
        (Pinning.FOREIGN, (), State.WARNING, "through an action that pins no relay"),
        (Pinning.UNKNOWN, (), State.UNKNOWN, "by an expression"),
    ],
)
@pytest.mark.parametrize("private", [False, True])
def test_missing_or_foreign_pins_are_found_in_every_reporting_workflow(
    pinning: Pinning, pins: tuple[str, ...], state: State, words: str, *, private: bool
) -> None:
    """A nightly workflow is included although it listens to no dispatch."""
    nightly = replace(WORKFLOW, path="n.yml", dispatch_types=None, pinning=pinning, pins=pins)
    branch = BranchFacts(repository_id=7, full_name="Org/backend", default_branch="main", private=private)
    finding = find_finding("pins", replace(GOOD, inspection=inspection_of(WORKFLOW, nightly, branch=branch)))
    assert finding.state is state
    assert ("n.yml" in finding.text) is not private
    if state is not State.OK:
        assert words in finding.text
    if state is State.PROBLEM:
        assert f'CRCR_RELAYS: "{PIN}"' in (finding.hint or "")


def test_without_pin_facts_there_is_no_pin_finding() -> None:
    for pinning in (None, Pinning.NONE):
        facts = replace(GOOD, inspection=inspection_of(replace(WORKFLOW, pinning=pinning, pins=())))
        assert "pins" not in {finding.name for finding in examine(facts, NOW)}


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (401, "GitHub rejected the App's token"),
        (403, "the App lacks a permission there"),
        (404, "the App is not installed there, or the repository is gone"),
        (410, "the repository is gone"),
        (422, "GitHub rejected the dispatch"),
        (409, "GitHub refused it"),
        (502, "GitHub has an outage"),
    ],
)
def test_error_texts_of_the_github_client_are_translated_in_the_finding(status: int, words: str) -> None:
    fault = error_from_response(
        create_dispatch(REPO, b"{}"), Response(status, {}, b'{"message": "secret"}'), NOW
    )
    assert fault is not None
    for error_text in (fault.detail, str(fault)):
        parked = replace(SENT, state=DispatchState.PARKED, error=error_text)
        assert (
            f"is undelivered: {words}." in find_finding("dispatch", replace(GOOD, last_dispatch=parked)).text
        )


def test_error_texts_of_github_are_shown_to_administrators_only() -> None:
    error_text = "GitHub answered 422 to POST /repos/org/backend/dispatches: secret words"
    parked = replace(GOOD, last_dispatch=replace(SENT, state=DispatchState.PARKED, error=error_text))
    public, admin = (
        find_finding("dispatch", parked),
        find_finding("dispatch", replace(parked, for_admin=True)),
    )
    assert "secret words" not in public.text
    assert "secret words" in admin.text


def test_a_workflow_that_seems_not_to_report_is_a_warning_with_a_hint() -> None:
    long_ago = NOW - timedelta(days=1)
    quiet = replace(
        GOOD,
        last_callback=None,
        first_sent_at=long_ago,
        inspection=inspection_of(replace(WORKFLOW, reports=False)),
    )
    finding = find_finding("callback", quiet)
    assert finding.state is State.WARNING
    assert "crcr init" in (finding.hint or "")


def test_the_test_event_is_recommended_when_no_workflow_listens_to_it() -> None:
    only = inspection_of(replace(WORKFLOW, dispatch_types=("pull_request", "push")))
    finding = find_finding("events", replace(GOOD, inspection=only))
    assert (finding.state, "crcr_test" in (finding.hint or "")) == (State.OK, True)


@pytest.mark.parametrize(
    ("age", "words"),
    [
        (timedelta(seconds=3), "just now"),
        (timedelta(minutes=1), "1 minute ago"),
        (timedelta(hours=5), "5 hours ago"),
        (timedelta(days=2, hours=3), "2 days ago"),
        (-timedelta(minutes=3), "just now"),
    ],
)
def test_ages_are_shown_in_words(age: timedelta, words: str) -> None:
    assert format_age(NOW - age, NOW) == words
