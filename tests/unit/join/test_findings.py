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


HERE = hint_links("https://relay.example.org", UPSTREAM, REPO, audience="crcr", several=False)


def examine(facts: SetupFacts, now: datetime) -> tuple[SetupFinding, ...]:
    return examine_for(facts, now, HERE)


def find_finding(name: str, facts: SetupFacts) -> SetupFinding:
    return next(each for each in examine(facts, NOW) if each.name == name)


def at_level(level: Level, **more: Any) -> AllowlistEntry:
    return AllowlistEntry(name=REPO, level=level, events=frozenset({"pull_request", "push"}), **more)


def workflows(*each: WorkflowFacts, **more: Any) -> Inspection:
    return replace(INSPECTION, workflows=each, **more)


def rights(**permissions: str) -> Inspection:
    return replace(INSPECTION, installation=InstallationFacts(installation_id=1, permissions=permissions))


def test_a_good_set_up_is_all_ok() -> None:
    findings = examine(GOOD, NOW)
    assert {each.state for each in findings} == {State.OK}
    names = [each.name for each in findings]
    assert names == [
        *("allowlist", "standing", "app", "permissions", "identity", "workflow", "events", "id_token"),
        "pins",
        *("dispatch", "callback", "refusal"),
    ]
    assert "at L2" in findings[0].text
    assert "up/stream@main:allowlist.yml" in findings[0].text


def test_of_who_is_not_listed_nothing_is_looked_at_and_that_is_said() -> None:
    only, *rest = examine(replace(GOOD, entry=None), NOW)
    assert (only.name, only.state) == ("allowlist", State.PROBLEM)
    assert "not on the allowlist" in only.text
    assert [(each.name, each.state) for each in rest] == [
        ("app", State.UNKNOWN),
        ("workflow", State.UNKNOWN),
    ]
    assert all("once you are listed" in each.text for each in rest)
    none, *_ = examine(replace(GOOD, entry=None, has_allowlist=False), NOW)
    assert "no valid allowlist" in none.text


def test_hints_are_complete_addresses_and_commands_and_on_the_page_its_own_steps() -> None:
    new = replace(GOOD, entry=None)
    page = "https://relay.example.org/crcr/onboarding?repository=Org/backend"
    assert page in (examine(new, NOW)[0].hint or "")
    assert "step 2" in (examine_for(new, NOW, page_hint_links(PIN))[0].hint or "")
    quiet = replace(GOOD, last_dispatch=None)
    command = "crcr doctor --relay https://relay.example.org --repo Org/backend"
    assert f"`{command} --test`" in (find_finding("dispatch", quiet).hint or "")
    named = hint_links("https://relay.example.org", UPSTREAM, REPO, audience="crcr", several=True)
    [told] = [each for each in examine_for(quiet, NOW, named) if each.name == "dispatch"]
    assert f"{command} --upstream up/stream --test" in (told.hint or "")


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
    ("identity", State.PROBLEM, "id 9; the one that was admitted has the id 7", {"inspection": Inspection(installed=None, other_id=9)}),
    # It was rebound since.
    ("app", State.UNKNOWN, "were not checked yet", {"inspection": Inspection(installed=None, other_id=7)}),
    ("identity", State.OK, "Bound to", {"inspection": Inspection(installed=None, other_id=7)}),
    ("permissions", State.PROBLEM, "may not write Contents", {"inspection": rights(contents="read", metadata="read")}),
    ("permissions", State.OK, "", {"inspection": rights(contents="write", metadata="read")}),
    ("permissions", State.WARNING, "may not read Actions", {"inspection": rights(contents="write"), "entry": at_level(Level.L3)}),
    ("permissions", State.PROBLEM, "gate cannot know", {"inspection": rights(contents="write"), "entry": at_level(Level.L4)}),
    (
        "permissions",
        State.WARNING,
        "may not read Actions",
        {"inspection": rights(contents="write"), "entry": at_level(Level.L4, jobs=("build",))},
    ),
    (
        "permissions",
        State.WARNING,
        "fresh dispatches",
        {"inspection": rights(contents="admin", actions="read"), "entry": at_level(Level.L4)},
    ),
    ("identity", State.PROBLEM, "identity changed", {"alarm": "identity_changed"}),
    ("identity", State.UNKNOWN, "does not know", {"repository_id": None, "confirmed": False}),
    ("identity", State.WARNING, "first report", {"confirmed": False}),
    ("workflow", State.PROBLEM, "There is no workflow on main", {"inspection": workflows()}),
    ("workflow", State.PROBLEM, "The only workflow on main does not listen", {"inspection": workflows(replace(WORKFLOW, dispatch_types=None))}),
    (
        "workflow",
        State.PROBLEM,
        "it is not YAML",
        {"inspection": workflows(WorkflowFacts(path=PATH, sha="1", problem="it is not YAML"))},
    ),
    ("workflow", State.PROBLEM, "disabled manually", {"inspection": workflows(replace(WORKFLOW, state="disabled_manually"))}),
    ("workflow", State.OK, PATH, {"inspection": workflows(replace(WORKFLOW, state=None))}),
    (
        "workflow",
        State.UNKNOWN,
        "4 more",
        {"inspection": workflows(replace(WORKFLOW, dispatch_types=None), files_left=4)},
    ),
    ("workflow", State.UNKNOWN, "could not be read", {"inspection": replace(INSPECTION, workflows=None)}),
    ("events", State.PROBLEM, "pull_request and push", {"inspection": workflows(replace(WORKFLOW, dispatch_types=("other",)))}),
    ("events", State.WARNING, "No workflow listens to push", {"inspection": workflows(replace(WORKFLOW, dispatch_types=("pull_request",)))}),
    ("events", State.OK, "pull_request", {"inspection": workflows(replace(WORKFLOW, dispatch_types=()))}),
    ("id_token", State.PROBLEM, "may not request an OIDC token", {"inspection": workflows(replace(WORKFLOW, id_token=False))}),
    ("id_token", State.UNKNOWN, "reusable", {"inspection": workflows(replace(WORKFLOW, id_token=False, calls_others=True))}),
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
    ("dispatch", State.OK, "cancelled (suspended)", {"last_dispatch": replace(SENT, state=DispatchState.CANCELLED, reason="suspended")}),
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
def test_each_finding_is_told_as_it_is(name: str, state: State, words: str, facts: dict[str, Any]) -> None:
    finding = find_finding(name, replace(GOOD, **facts))
    assert (finding.state, words in finding.text) == (state, True), finding.text
    assert finding.hint or state is State.OK or "more were not read" in finding.text


def test_every_text_is_a_sentence_and_no_hint_points_to_nowhere() -> None:
    odd = replace(REFUSED, detail="no in_progress was recorded for run 1 attempt 1")
    cases: list[dict[str, Any]] = [facts for *_, facts in CASES]
    cases.append({"last_refusal": odd, "last_callback": replace(TAKEN, at=NOW)})
    for facts in cases:
        for each in examine(replace(GOOD, **facts), NOW):
            assert each.text.endswith("."), each.text
            assert "attempt 1 Later" not in each.text
            assert not (each.hint or "").endswith((".", ";")), each.hint
            for word in ("crcr doctor`", " /crcr/onboarding", "(/crcr/onboarding"):
                assert word not in (each.hint or "")


def test_every_problem_says_what_to_do() -> None:
    problems = [
        find_finding(name, replace(GOOD, **facts))
        for name, state, _, facts in CASES
        if state is State.PROBLEM
    ]
    assert all(each.hint for each in problems)


def test_an_l1_backend_needs_no_reports() -> None:
    told = replace(
        GOOD,
        entry=at_level(Level.L1),
        last_callback=None,
        inspection=workflows(replace(WORKFLOW, id_token=False)),
    )
    names = {each.name for each in examine(told, NOW)}
    assert names.isdisjoint({"id_token", "callback", "refusal", "silence"})
    assert {each.state for each in examine(told, NOW)} == {State.OK}


OTHER_CIS = [ci for ci in Ci if ci is not Ci.GITHUB]


def generated(ci: Ci) -> Inspection:
    files = [each for each in generate(join_request(ci)) if each.path.startswith(".github/workflows/")]
    return workflows(*(workflow_facts(each.path, "1", each.text) for each in files))


@pytest.mark.parametrize("ci", OTHER_CIS)
def test_behind_a_bridge_reports_come_from_the_other_ci_and_nobody_is_sent_to_give_the_bridge_a_token(
    ci: Ci,
) -> None:
    told = replace(GOOD, inspection=generated(ci))
    finding = find_finding("id_token", told)
    assert (finding.state, finding.hint) == (State.OK, None), finding
    assert finding.text.startswith(f"Reports come from {ci.title}; its tokens count once the operator")
    assert {each.state for each in examine(told, NOW)} == {State.OK}


@pytest.mark.parametrize("ci", list(Ci))
def test_the_doctor_says_how_to_test_a_generated_workflow_without_a_token(ci: Ci) -> None:
    finding = find_finding("test run", replace(GOOD, inspection=generated(ci)))
    assert (finding.state, "press Run workflow" in finding.text, "no token" in finding.text) == (
        State.OK,
        True,
        True,
    )
    older = replace(WORKFLOW, requests_tests=None)
    assert "test run" not in {each.name for each in examine(replace(GOOD, inspection=workflows(older)), NOW)}


def test_generated_workflows_of_github_report_themselves() -> None:
    assert (
        "may request an OIDC token"
        in find_finding("id_token", replace(GOOD, inspection=generated(Ci.GITHUB))).text
    )


@pytest.mark.parametrize(
    ("bridge_to", "private"), [("buildkite", True), ("<b>x", False), ("${{ vars.CI }}", False)]
)
def test_neither_a_private_repositorys_ci_nor_a_word_of_its_file_is_told(
    bridge_to: str, private: bool
) -> None:
    branch = BranchFacts(repository_id=7, full_name="Org/backend", default_branch="main", private=private)
    bridge = replace(WORKFLOW, id_token=False, bridge_to=bridge_to)
    finding = find_finding("id_token", replace(GOOD, inspection=workflows(bridge, branch=branch)))
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
def test_what_pins_no_relay_or_another_is_found_in_every_workflow_that_reports(
    pinning: Pinning, pins: tuple[str, ...], state: State, words: str, *, private: bool
) -> None:
    """A nightly listens to no dispatch, and is told of all the same."""
    nightly = replace(WORKFLOW, path="n.yml", dispatch_types=None, pinning=pinning, pins=pins)
    branch = BranchFacts(repository_id=7, full_name="Org/backend", default_branch="main", private=private)
    finding = find_finding("pins", replace(GOOD, inspection=workflows(WORKFLOW, nightly, branch=branch)))
    assert finding.state is state
    assert ("n.yml" in finding.text) is not private
    if state is not State.OK:
        assert words in finding.text
    if state is State.PROBLEM:
        assert f'CRCR_RELAYS: "{PIN}"' in (finding.hint or "")


def test_of_pins_that_nobody_looked_for_nothing_is_told() -> None:
    for pinning in (None, Pinning.NONE):
        told = replace(GOOD, inspection=workflows(replace(WORKFLOW, pinning=pinning, pins=())))
        assert "pins" not in {each.name for each in examine(told, NOW)}


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
def test_what_github_answered_is_understood_as_the_client_words_it(status: int, words: str) -> None:
    fault = error_from_response(
        create_dispatch(REPO, b"{}"), Response(status, {}, b'{"message": "secret"}'), NOW
    )
    assert fault is not None
    for said in (fault.detail, str(fault)):
        parked = replace(SENT, state=DispatchState.PARKED, error=said)
        assert (
            f"is undelivered: {words}." in find_finding("dispatch", replace(GOOD, last_dispatch=parked)).text
        )


def test_what_github_said_is_for_administrators_only() -> None:
    said = "GitHub answered 422 to POST /repos/org/backend/dispatches: secret words"
    parked = replace(GOOD, last_dispatch=replace(SENT, state=DispatchState.PARKED, error=said))
    public, admin = (
        find_finding("dispatch", parked),
        find_finding("dispatch", replace(parked, for_admin=True)),
    )
    assert "secret words" not in public.text
    assert "secret words" in admin.text


def test_a_workflow_that_does_not_seem_to_report_is_a_hint_and_no_more() -> None:
    long_ago = NOW - timedelta(days=1)
    quiet = replace(
        GOOD,
        last_callback=None,
        first_sent_at=long_ago,
        inspection=workflows(replace(WORKFLOW, reports=False)),
    )
    finding = find_finding("callback", quiet)
    assert finding.state is State.WARNING
    assert "crcr init" in (finding.hint or "")


def test_the_test_event_is_offered_where_nobody_listens_to_it() -> None:
    only = workflows(replace(WORKFLOW, dispatch_types=("pull_request", "push")))
    finding = find_finding("events", replace(GOOD, inspection=only))
    assert (finding.state, "crcr_test" in (finding.hint or "")) == (State.OK, True)


@pytest.mark.parametrize(
    ("past", "words"),
    [
        (timedelta(seconds=3), "just now"),
        (timedelta(minutes=1), "1 minute ago"),
        (timedelta(hours=5), "5 hours ago"),
        (timedelta(days=2, hours=3), "2 days ago"),
        (-timedelta(minutes=3), "just now"),
    ],
)
def test_times_are_told_as_people_say_them(past: timedelta, words: str) -> None:
    assert format_age(NOW - past, NOW) == words
