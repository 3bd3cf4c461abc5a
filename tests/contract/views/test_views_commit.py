"""The views of a pull request and of a commit: the gate and its reasons, jobs, waivers, visibility."""

import json
from datetime import timedelta
from typing import Any

import pytest

from crcr.decide.checks.commit import Verification
from crcr.decide.checks.status import GateStatus
from crcr.decide.dispatch.webhook_body import compress_body
from crcr.decide.github.commit_origin import ELSEWHERE, UNCHECKED, CommitPlace, CommitStanding
from crcr.decide.model import DispatchState, Level
from crcr.decide.statistics.window import Span
from crcr.decide.views.commit import (
    Arrival,
    BackendState,
    CommitBackend,
    CommitView,
    GateShown,
    MomentKind,
    PullState,
    PullView,
    WaiverState,
)
from crcr.decide.views.overview import DispatchAnswer
from crcr.errors import BadRequest, NotFound
from crcr.record.schema.joining import commits
from crcr.record.schema.main_tables import pulls
from support.data.store_rows import OTHER, UPSTREAM, StoreRows

HEAD = f"{7:040x}"
GATED = """
L1:
  - listen/only
L2:
  - Good/Backend: {oncalls: [ada]}
L4:
  - Gate/One: {oncalls: [bob], jobs: [build, test]}
  - gate/two: {oncalls: [eve], jobs: [build]}
"""


@pytest.fixture
async def store(store: StoreRows) -> StoreRows:
    store.allowlist(GATED)
    return store


async def read_pull(store: StoreRows, number: int = 7) -> PullView:
    return await store.views.pull(UPSTREAM, number, store.clock.now())


async def read_commit(store: StoreRows, sha: str = HEAD, **more: Any) -> CommitView:
    return await store.views.commit(UPSTREAM, sha, store.clock.now(), **more)


OLD_PULL = {
    "upstream": UPSTREAM.key,
    "number": 8,
    "updated_at": 1,
    "is_open": 1,
    "draft": 0,
    "labels": "[]",
    "base_ref": "main",
    "title": "Fuse it",
    "author": "ada",
}


def add_gating_dispatch(store: StoreRows, delivery: str, downstream: str = "gate/one", **more: Any) -> None:
    store.dispatch(delivery, downstream, level=4, head_sha=HEAD, **more)


def find_backend(view: PullView | CommitView, name: str) -> CommitBackend:
    return next(shown for shown in view.backends if str(shown.name) == name)


def arrivals(view: PullView | CommitView) -> list[Arrival]:
    return [moment.arrival for moment in view.timeline if moment.arrival]


async def test_a_pull_request_page_has_its_recorded_facts(store: StoreRows) -> None:
    store.pull(draft=1)
    view = await read_pull(store)
    assert (view.title, view.author, view.labels) == ("Fuse it", "ada", ("ciflow/crcr/npu",))
    assert (view.state, view.draft, view.head_sha, view.base_ref) == (PullState.OPEN, True, HEAD, "main")
    assert (view.gate, view.backends, view.waivers, view.checks, view.groups) == (None, (), (), (), ())


@pytest.mark.parametrize(("merged", "state"), [(0, PullState.CLOSED), (1, PullState.MERGED)])
async def test_a_closed_pull_request_shows_its_recorded_gate(
    store: StoreRows, merged: int, state: PullState
) -> None:
    delivery = store.pull(is_open=0, merged=merged)
    add_gating_dispatch(store, delivery)
    store.gate(HEAD, "over")
    closed = store.delivery(action="closed", head_sha=HEAD, hours_ago=1)
    store.dispatch(closed, "good/backend")
    store.job(closed, "failure", hours_ago=0.5)
    view = await read_pull(store)
    assert view.state is state
    assert view.gate is not None
    assert (view.gate.state, view.gate.title, view.gate.subjects) == (GateShown.OVER, "recorded words", ())
    assert [str(shown.name) for shown in view.backends] == ["Gate/One"]
    assert [(str(shown.name), shown.state) for shown in view.after_closing] == [
        ("Good/Backend", BackendState.FAILED)
    ]


async def test_the_gate_of_an_open_pull_request_is_judged_again_with_all_reasons(store: StoreRows) -> None:
    delivery = store.pull()
    add_gating_dispatch(store, delivery)
    add_gating_dispatch(store, delivery, "gate/two", state="left_out", reason="paths", sent_at=None)
    store.job(delivery, "failure", downstream="gate/one", job_name="build", level=4)
    store.gate(HEAD)
    gate = (await read_pull(store)).gate
    assert gate is not None
    assert gate.state is GateShown.FAILED
    assert gate.title == "gate/one failed (build)"
    [subject] = gate.subjects
    assert [(str(row.backend), row.standing) for row in subject.rows] == [
        ("Gate/One", GateStatus.FAILED),
        ("gate/two", GateStatus.NOT_CONCERNED),
    ]
    failed = subject.rows[0]
    assert [(part.name, part.reason) for part in failed.parts] == [
        ("build", "failure"),
        ("test", "has not reported yet"),
    ]
    assert failed.advice is not None
    assert "/crcr retry gate/one" in failed.advice
    assert (failed.oncalls, failed.deadline) == (("bob",), None)
    assert subject.rows[1].advice is None


async def test_a_waiting_backend_has_a_deadline(store: StoreRows) -> None:
    delivery = store.pull()
    add_gating_dispatch(store, delivery)
    store.gate(HEAD)
    gate = (await read_pull(store)).gate
    assert gate is not None
    [row] = gate.subjects[0].rows
    assert gate.state is GateShown.PENDING
    assert row.deadline == row.since + timedelta(hours=8)


@pytest.mark.parametrize(("base", "rows"), [("main", 1), ("stack", 0)])
async def test_a_delivery_of_an_older_release_counts_for_the_base_in_its_webhook_body(
    store: StoreRows, base: str, rows: int
) -> None:
    store.pull(head_sha="f" * 40)
    body = compress_body(json.dumps({"pull_request": {"base": {"ref": base}}}).encode())
    delivery = store.delivery(number=8, head_sha=HEAD, base_ref=None, body=body)
    store.add(pulls, {**OLD_PULL, "head_sha": HEAD})
    add_gating_dispatch(store, delivery)
    store.gate(HEAD)
    gate = (await read_commit(store, HEAD)).gate
    assert gate is not None
    [subject] = gate.subjects
    assert (subject.in_doubt, len(subject.rows)) == (not rows, rows)


async def test_the_gate_of_a_head_shared_by_two_pull_requests_has_both_subjects(store: StoreRows) -> None:
    add_gating_dispatch(store, store.pull(7))
    add_gating_dispatch(
        store, store.pull(8, head_sha=HEAD), number=8, state="held", reason="approval", sent_at=None
    )
    store.gate(HEAD)
    gate = (await read_pull(store)).gate
    assert gate is not None
    assert [subject.number for subject in gate.subjects] == [7, 8]
    assert (await read_commit(store)).numbers == (7, 8)


async def test_a_pull_request_without_a_gate_shows_the_state_none(store: StoreRows) -> None:
    store.pull()
    store.gate(HEAD, "none", "")
    gate = (await read_pull(store)).gate
    assert gate is not None
    assert (gate.state, gate.title) == (GateShown.NONE, None)


@pytest.mark.parametrize(
    ("facts", "state"),
    [
        ({"state": "held", "reason": "draft", "sent_at": None}, BackendState.HELD),
        ({"state": "waiting", "sent_at": None}, BackendState.WAITING),
        ({"state": "left_out", "reason": "paths", "sent_at": None}, BackendState.NOT_CONCERNED),
        ({"state": "parked", "sent_at": None}, BackendState.PARKED),
        ({"state": "cancelled", "sent_at": None}, BackendState.CANCELLED),
        ({}, BackendState.NO_REPORT),
        ({"answer": "running"}, BackendState.STARTED),
        ({"answer": "never_started"}, BackendState.NEVER_STARTED),
        ({"answer": "unanswered"}, BackendState.UNANSWERED),
        ({"answer": "unreported"}, BackendState.UNREPORTED),
        ({"answer": "not_listening"}, BackendState.NOT_LISTENING),
    ],
)
async def test_a_backend_without_jobs_shows_the_state_of_its_dispatch(
    store: StoreRows, facts: dict[str, Any], state: BackendState
) -> None:
    store.dispatch(store.pull(), "good/backend", **facts)
    shown = find_backend(await read_pull(store), "Good/Backend")
    assert shown.state is state
    assert shown.dispatch is not None
    assert shown.dispatch.answer == (DispatchAnswer(facts["answer"]) if "answer" in facts else None)


@pytest.mark.parametrize(
    ("conclusions", "state"),
    [
        (("success", "failure", None), BackendState.FAILED),
        (("success", None), BackendState.RUNNING),
        (("success", "skipped"), BackendState.PASSED),
        (("skipped", "cancelled"), BackendState.INCONCLUSIVE),
    ],
)
async def test_a_backend_has_the_state_of_its_worst_job(
    store: StoreRows, conclusions: tuple[str | None, ...], state: BackendState
) -> None:
    delivery = store.pull()
    store.dispatch(delivery, "good/backend", answer="never_started")
    for index, conclusion in enumerate(conclusions):
        store.job(delivery, conclusion, job_name=f"job {index}")
    assert find_backend(await read_pull(store), "Good/Backend").state is state


async def test_jobs_are_listed_failed_first_with_failed_tests_and_verification(store: StoreRows) -> None:
    delivery = store.pull()
    store.dispatch(delivery, "good/backend")
    store.job(delivery, "success", job_name="a", attempt=2, verification="self-reported")
    store.job(delivery, "failure", job_name="a", attempt=1)
    store.job(delivery, "failure", job_name="old", superseded=1, run_id="0")
    tests = '[{"name":"t","file":null,"message":"m"}]'
    doubt = {"verification": "disputed", "github_conclusion": "failure"}
    store.job(delivery, "failure", job_name="z", failed_tests=tests, **doubt)
    store.job(delivery, None, job_name="b")
    jobs = find_backend(await read_pull(store), "Good/Backend").jobs
    assert [(job.job_name, job.attempt) for job in jobs] == [("z", 1), ("b", 1), ("a", 2)]
    assert jobs[0].failed_tests[0].message == "m"
    assert (jobs[0].verification, jobs[0].github_conclusion) == (Verification.DISPUTED, "failure")
    assert jobs[2].verification is Verification.SELF_REPORTED


async def test_an_l1_backend_is_shown_as_notified_without_its_jobs(store: StoreRows) -> None:
    delivery = store.pull()
    store.dispatch(delivery, "listen/only", level=1)
    store.job(delivery, "failure", downstream="listen/only", level=1)
    shown = find_backend(await read_pull(store), "listen/only")
    assert (shown.state, shown.level, shown.jobs) == (BackendState.NOTIFIED, Level.L1, ())


async def test_backends_are_ordered_by_level_then_worst_state(store: StoreRows) -> None:
    delivery = store.pull()
    store.dispatch(delivery, "listen/only", level=1)
    add_gating_dispatch(store, delivery, "gate/one", state="left_out", reason="paths", sent_at=None)
    add_gating_dispatch(store, delivery, "gate/two", state="parked", sent_at=None)
    assert [str(shown.name) for shown in (await read_pull(store)).backends] == [
        "gate/two",
        "Gate/One",
        "listen/only",
    ]


async def test_non_public_backends_are_not_shown_and_the_gate_is_marked_as_incomplete(
    store: StoreRows,
) -> None:
    hidden = GATED.replace("{oncalls: [bob]", "{visibility: hidden, oncalls: [bob]")
    non_public = hidden.replace("{oncalls: [eve]", "{visibility: name, oncalls: [eve]")
    store.allowlist(non_public, version=2)
    delivery = store.pull()
    for name in ("gate/one", "gate/two"):
        add_gating_dispatch(store, delivery, name)
        store.job(delivery, "failure", downstream=name, level=4, job_name="secret job")
        store.waiver(name, head_sha="0" * 40)
        store.check(f"crcr/{name}", name)
    store.check("crcr/gate", title="Gate/One failed")
    store.gate(HEAD, "failed", "Gate/One failed")
    for view in (await read_pull(store), await read_commit(store)):
        assert view.gate is not None
        assert (view.gate.state, view.gate.title, view.gate.whole) == (GateShown.FAILED, None, False)
        assert [subject.rows for subject in view.gate.subjects] == [()]
        assert (view.backends, view.waivers, [item.dispatches for item in arrivals(view)]) == ((), (), [()])
        assert [(item.name, item.title) for item in view.checks] == [("crcr/gate", None)]
        assert not any(word in repr(view).lower() for word in ("gate/one", "gate/two", "secret", "bob"))
    page = await store.views.waivers(UPSTREAM, store.clock.now(), after=None, limit=5)
    assert page.waivers == ()


async def test_the_recorded_gate_title_of_a_hidden_backend_is_not_shown(store: StoreRows) -> None:
    store.allowlist(GATED.replace("{oncalls: [bob]", "{visibility: hidden, oncalls: [bob]"), version=2)
    add_gating_dispatch(store, store.pull(is_open=0))
    store.gate(HEAD, "failed", "Gate/One failed")
    gate = (await read_pull(store)).gate
    assert gate is not None
    assert (gate.title, gate.whole) == (None, False)


async def test_each_waiver_has_its_state(store: StoreRows) -> None:
    store.pull()
    soon, past = store.ago(hours=-1), store.ago(minutes=1)
    store.waiver(used_at=past)
    store.waiver(until_at=soon, head_sha="0" * 40, job="build")
    store.waiver(until_at=past)
    store.waiver(head_sha="0" * 40)
    store.waiver(until_at=soon, base_ref="stack")
    store.waiver(ended_at=past, ended_by="zoe")
    waivers = (await read_pull(store)).waivers
    assert [waiver.state for waiver in sorted(waivers, key=lambda waiver: waiver.waiver_id)] == [
        WaiverState.IN_FORCE,
        WaiverState.IN_FORCE,
        WaiverState.RUN_OUT,
        WaiverState.OTHER_COMMIT,
        WaiverState.OTHER_BASE,
        WaiverState.TAKEN_BACK,
    ]
    assert waivers[-1].used_at is not None
    assert {waiver.downstream for waiver in waivers} == {"Gate/One"}


async def test_a_waiver_of_a_closed_pull_request_has_the_state_over(store: StoreRows) -> None:
    store.pull(is_open=0, merged=1)
    store.waiver()
    assert [waiver.state for waiver in (await read_pull(store)).waivers] == [WaiverState.OVER]


async def test_pages_of_waivers_contain_each_once_newest_first(store: StoreRows) -> None:
    store.allowlist(GATED.replace("{oncalls: [eve]", "{visibility: hidden, oncalls: [eve]"), version=2)
    for number in range(9):
        store.waiver("gate/two" if number % 3 else "gate/one", number=number, created_at=store.ago(hours=1))
    numbers: list[int] = []
    after: tuple[str | int, ...] | None = None
    while True:
        page = await store.views.waivers(UPSTREAM, store.clock.now(), after=after, limit=2)
        numbers += [waiver.number for waiver in page.waivers]
        after = page.next
        if after is None:
            break
    assert numbers == [6, 3, 0]
    with pytest.raises(BadRequest):
        await store.views.waivers(UPSTREAM, store.clock.now(), after=("x", 1), limit=2)


async def test_the_timeline_counts_dispatches_and_marks_older_heads(store: StoreRows) -> None:
    old = store.delivery(head_sha="0" * 40, hours_ago=5, action="opened")
    store.dispatch(old, "good/backend", superseded_at=store.ago(hours=2))
    new = store.pull()
    store.dispatch(new, "good/backend")
    store.dispatch(new, "listen/only", level=1)
    add_gating_dispatch(store, new, state="left_out", sent_at=None)
    arrival_list = arrivals(await read_pull(store))
    assert [(arrival.guid, arrival.superseded) for arrival in arrival_list] == [(new, False), (old, True)]
    counts = {count.state: count.number for count in arrival_list[0].dispatches}
    assert counts == {DispatchState.SENT: 2, DispatchState.LEFT_OUT: 1}


async def test_the_timeline_has_all_moments_from_the_webhook_to_the_waiver(store: StoreRows) -> None:
    delivery = store.pull()
    store.dispatch(delivery, "good/backend", hours_ago=1.9)
    add_gating_dispatch(store, delivery, hours_ago=1.8)
    store.job(delivery, "success", hours_ago=1.7)
    store.job(delivery, "success", job_name="longest", hours_ago=1.6)
    silent = {"state": "timed_out", "swept_at": store.ago(hours=1)}
    store.job(delivery, None, downstream="gate/one", level=4, hours_ago=1.65, **silent)
    store.waiver()
    store.check("crcr/gate", conclusion="failure", published_at=store.ago(minutes=50))
    now = store.clock.now()
    assert [
        (moment.kind, moment.subject, round((now - moment.at) / timedelta(hours=1), 2))
        for moment in (await read_pull(store)).timeline
    ] == [
        (MomentKind.WAIVED, "Gate/One", 0.5),
        (MomentKind.PUBLISHED, None, 0.83),
        (MomentKind.ENDED, "Gate/One", 1.0),
        (MomentKind.ENDED, "Good/Backend", 1.5),
        (MomentKind.STARTED, "Good/Backend", 1.7),
        (MomentKind.LAST_SENT, None, 1.8),
        (MomentKind.FIRST_SENT, None, 1.9),
        (MomentKind.ARRIVED, None, 2.0),
    ]


async def test_a_job_beyond_the_page_limit_still_counts_in_the_timeline(store: StoreRows) -> None:
    delivery = store.pull()
    store.dispatch(delivery, "good/backend")
    for number in range(201):
        store.job(delivery, job_name=f"job {number:03d}", hours_ago=1.5 - number / 1000)
    shown = find_backend(await read_pull(store), "Good/Backend")
    assert shown.jobs_left_out == 1
    assert shown.spell.ended_at is not None
    assert shown.spell.ended_at > max(job.completed_at for job in shown.jobs if job.completed_at)


async def test_only_the_newest_round_of_a_check_is_shown(store: StoreRows) -> None:
    store.pull()
    store.check("crcr/gate/one", "gate/one", title="first")
    store.check("crcr/gate/one", "gate/one", round=2, title="second")
    store.check("crcr/never", "gate/one", check_run_id=None)
    store.check("crcr/secret", "left/list")
    assert [(check.title, check.round) for check in (await read_pull(store)).checks] == [("second", 2)]


async def test_merge_groups_of_a_pull_request_are_listed_and_have_a_commit_page(store: StoreRows) -> None:
    store.pull()
    store.pull(9)
    group = "c" * 40
    delivery = store.group(group, "[7, 9]")
    store.dispatch(delivery, "gate/one", level=4, event="merge_group", number=None, head_sha=group)
    store.gate(group)
    store.group("d" * 40, "[7]", destroyed_at=store.ago(minutes=1))
    store.group("e" * 40, "[8]")
    store.waiver()
    store.waiver(
        number=9, head_sha=f"{9:040x}", who="ida"
    )  # a waiver of only one of the pull requests would not count
    [merge_group] = (await read_pull(store)).merge_groups
    assert (merge_group.head_sha, merge_group.numbers, merge_group.gate) == (group, (7, 9), GateShown.PENDING)
    view = await read_commit(store, group)
    assert view.group is not None
    assert view.gate is not None
    assert [subject.numbers for subject in view.gate.subjects] == [(7, 9)]
    assert view.gate.subjects[0].rows[0].standing is GateStatus.WAIVED
    assert {item.who for item in view.waivers} == {"mia", "ida"}
    assert [str(item.name) for item in view.backends] == ["Gate/One"]


async def test_the_commit_page_of_a_push_has_its_backends(store: StoreRows) -> None:
    delivery = store.delivery(number=None, head_sha="a" * 40, ref="refs/heads/main")
    store.dispatch(delivery, "good/backend", event="push", action=None, number=None)
    store.job(delivery, "failure")
    view = await read_commit(store, "a" * 40)
    assert (view.event, view.ref, view.numbers, view.gate) == ("push", "refs/heads/main", (), None)
    assert find_backend(view, "Good/Backend").state is BackendState.FAILED


def nightly(store: StoreRows, conclusion: str | None = "success", **more: Any) -> None:
    """Add a nightly job as its backend reports it: for a commit, without a dispatch."""
    columns = {"event": "nightly", "number": None, "head_sha": "e" * 40, **more}
    store.job(columns.pop("delivery", columns["head_sha"]), conclusion, **columns)


async def test_a_nightly_commit_has_the_backends_that_reported_on_it(store: StoreRows) -> None:
    tests = '[{"name":"t","file":null,"message":"m"}]'
    nightly(store, "failure", attempt=1)
    nightly(store, "failure", attempt=2, failed_tests=tests)
    nightly(store, job_name="lint")
    nightly(store, "failure", run_id="0", superseded=1)
    nightly(store, downstream="gate/one", level=4, event="periodic")
    nightly(store, "failure", downstream="listen/only", level=1)
    view = await read_commit(store, "e" * 40)
    assert (view.event, view.ref, view.numbers, view.gate) == ("periodic", None, (), None)
    gate, good = view.backends
    assert (str(gate.name), gate.event, gate.level, gate.state) == (
        *("Gate/One", "periodic", Level.L4),
        BackendState.PASSED,
    )
    assert (good.dispatch, good.delivery, good.state) == (None, "e" * 40, BackendState.FAILED)
    assert [(job.job_name, job.attempt) for job in good.jobs] == [("build", 2), ("lint", 1)]
    assert [test.name for test in good.jobs[0].failed_tests] == ["t"]
    assert {moment.kind for moment in view.timeline} == {MomentKind.STARTED, MomentKind.ENDED}


async def test_a_pushed_commit_also_has_its_nightly_results(store: StoreRows) -> None:
    delivery = store.delivery(number=None, head_sha="e" * 40, ref="refs/heads/main")
    store.dispatch(delivery, "good/backend", event="push", action=None, number=None)
    store.job(delivery, event="push")
    nightly(store, "failure")
    view = await read_commit(store, "e" * 40)
    assert view.event == "push"
    assert [(shown.event, shown.dispatch is None, shown.state) for shown in view.backends] == [
        ("push", False, BackendState.PASSED),
        ("nightly", True, BackendState.FAILED),
    ]


async def test_a_nightly_without_a_commit_is_shown_on_no_commit_page(store: StoreRows) -> None:
    nightly(store, delivery="", head_sha=None)
    with pytest.raises(NotFound):
        await read_commit(store, "e" * 40)


@pytest.mark.parametrize(
    ("row", "place"),
    [
        (None, UNCHECKED),
        ({"standing": "unchecked"}, UNCHECKED),
        ({"standing": "elsewhere"}, ELSEWHERE),
        ({"standing": "base", "branch": "release/2.1"}, CommitPlace(CommitStanding.BASE, "release/2.1")),
        ({"standing": "base", "branch": "main", "upstream": OTHER.key}, UNCHECKED),
    ],
)
async def test_a_commit_with_self_reported_results_shows_its_place(
    store: StoreRows, row: dict[str, Any] | None, place: CommitPlace
) -> None:
    nightly(store)
    if row is not None:
        store.add(commits, {"sha": "e" * 40, "upstream": UPSTREAM.key, "seen_at": store.ago(hours=1), **row})
    assert (await read_commit(store, "e" * 40)).place == place


async def test_a_commit_without_self_reported_results_has_no_place(
    store: StoreRows,
) -> None:
    delivery = store.delivery(number=None, head_sha="e" * 40, ref="refs/heads/main")
    store.dispatch(delivery, "good/backend", event="push", action=None, number=None)
    store.job(delivery, event="push")
    assert (await read_commit(store, "e" * 40)).place is None


@pytest.mark.parametrize(
    "hidden",
    [
        {"downstream": "left/list"},
        {"downstream": "listen/only", "level": 1},
        {"upstream": OTHER.key},
        {"event": "push"},
    ],
)
async def test_a_commit_with_only_nightlies_of_invisible_backends_is_not_found(
    store: StoreRows, hidden: dict[str, Any]
) -> None:
    nightly(store, **hidden)
    with pytest.raises(NotFound):
        await read_commit(store, "e" * 40)


async def test_an_old_commit_is_found_by_its_sha_with_or_without_its_delivery(store: StoreRows) -> None:
    old = store.delivery(head_sha="0" * 40, hours_ago=50)
    store.pull()
    assert arrivals(await read_commit(store, "0" * 40, delivery=old))[0].guid == old
    assert arrivals(await read_commit(store, "0" * 40))[0].guid == old
    with pytest.raises(NotFound):
        await read_commit(store, "9" * 40, delivery=old)


async def test_unknown_pull_requests_and_commits_are_not_found(store: StoreRows) -> None:
    store.pull()
    with pytest.raises(NotFound):
        await read_pull(store, 8)
    with pytest.raises(NotFound):
        await store.views.pull(OTHER, 7, store.clock.now())
    with pytest.raises(NotFound):
        await read_commit(store, "9" * 40)


async def test_left_out_dispatches_do_not_count_as_waiting(store: StoreRows) -> None:
    store.dispatch(store.pull(), "good/backend")
    store.dispatch(store.delivery(), "good/backend", state="left_out", reason="paths", sent_at=None)
    summary = await store.views.summary(UPSTREAM, Span.FORTNIGHT, store.clock.now())
    shown = next(
        find_backend for find_backend in summary.backends if str(find_backend.name) == "Good/Backend"
    )
    assert (shown.waiting, shown.parked) == (0, 0)


async def test_gates_of_open_pull_requests_are_counted_by_head(store: StoreRows) -> None:
    store.pull(7)
    store.pull(8, head_sha=HEAD)
    store.pull(9)
    store.pull(10, is_open=0)
    store.gate(HEAD, "failed")
    store.gate(f"{9:040x}", "passed")
    store.gate(f"{10:040x}", "passed")
    vitals = await store.views.vitals(store.clock.now())
    assert dict(vitals[0].open_gates) == {"failed": 1, "passed": 1}


async def test_parked_check_effects_are_listed_and_those_of_unlisted_targets_are_not(
    store: StoreRows,
) -> None:
    store.effect("parked", "checks/gate", kind="publish_checks")
    store.effect("parked", "left/list")
    effects = await store.views.effects(UPSTREAM, store.clock.now())
    assert [effect.target for effect in effects.parked] == ["checks/gate"]
