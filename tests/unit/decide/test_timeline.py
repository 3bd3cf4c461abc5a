"""A timeline goes from the webhook to the results, in the order in which things happened, and stays short."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from crcr.decide.model import DeliveryState, DispatchState, JobState, Level, RepoName
from crcr.decide.views.commit import (
    Arrival,
    BackendState,
    CheckView,
    CommitBackend,
    GateShown,
    GateView,
    GroupView,
    Moment,
    MomentKind,
    PullState,
    Spell,
    StateCount,
    WaiverState,
    WaiverView,
)
from crcr.decide.views.timeline import MOST_MOMENTS, TimelineFacts, build_timeline, running_time
from support.data.backend_views import a_dispatch, a_job_view

NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)
HEAD = "a" * 40


def at(minute: float) -> datetime:
    return NOON + timedelta(minutes=minute)


def maybe(minute: float | None) -> datetime | None:
    return None if minute is None else at(minute)


def an_arrival(minute: float = 0, action: str = "opened", *, sent: int = 0, **more: Any) -> Arrival:
    counts = (StateCount(DispatchState.SENT, sent),) if sent else ()
    plain: dict[str, Any] = {"event": "pull_request", "head_sha": HEAD, "superseded": False, "reason": None}
    return Arrival(
        guid=f"d-{minute}-{action}",
        action=action,
        state=DeliveryState.ACCEPTED,
        received_at=at(minute),
        dispatches=counts,
        **{**plain, **more},
    )


def a_backend(name: str, sent: float | None = None, **more: Any) -> CommitBackend:
    plain: dict[str, Any] = {"state": BackendState.PASSED, "delivery": "d", "event": "pull_request"}
    minutes = {key: maybe(more.pop(key, None)) for key in ("started_at", "failed_at", "ended_at")}
    plain["dispatch"] = a_dispatch(sent_at=maybe(sent))
    return CommitBackend(
        name=RepoName(name),
        level=Level.L2,
        level_now=Level.L2,
        device=None,
        oncalls=(),
        spell=Spell(**minutes),
        jobs=(),
        jobs_left_out=0,
        **{**plain, **more},
    )


def a_waiver(state: WaiverState = WaiverState.IN_FORCE, **more: Any) -> WaiverView:
    plain: dict[str, Any] = {
        "until_at": None,
        "ended_at": None,
        "ended_by": None,
        "used_at": None,
        "job": None,
    }
    return WaiverView(
        waiver_id=1,
        number=7,
        head_sha=HEAD,
        downstream="org/backend",
        who="mia",
        reason="known",
        state=state,
        created_at=at(5),
        **{**plain, **more},
    )


def a_check(conclusion: str | None = "success", name: str = "crcr/gate", **more: Any) -> CheckView:
    status = "completed" if conclusion else "in_progress"
    told: dict[str, Any] = {"round": 1, "title": None, "published_at": at(9), "status": status}
    return CheckView(name=name, conclusion=conclusion, **{**told, **more})


def a_group(destroyed: float | None = None) -> GroupView:
    return GroupView(
        head_sha="c" * 40,
        head_ref="queue",
        base_ref="main",
        numbers=(7,),
        reused_from=None,
        gate=None,
        created_at=at(20),
        destroyed_at=maybe(destroyed),
    )


def moments(*arrivals: Arrival, backends: tuple[CommitBackend, ...] = (), **known: Any) -> list[Moment]:
    return list(build_timeline(TimelineFacts(arrivals=arrivals, backends=backends, **known))[0])


def timeline_rows(found: list[Moment]) -> list[tuple[MomentKind, str | None, float]]:
    return [(each.kind, each.subject, (each.at - NOON) / timedelta(minutes=1)) for each in found]


def test_a_commit_is_told_from_its_webhook_to_its_last_result() -> None:
    backends = (
        a_backend("org/slow", 2, started_at=6, ended_at=40),
        a_backend("org/quick", 1, started_at=3, ended_at=8, state=BackendState.FAILED),
        a_backend("org/mute", 1.5),
        a_backend("org/held"),
    )
    assert timeline_rows(moments(an_arrival(sent=3), backends=backends)) == [
        (MomentKind.ENDED, "org/slow", 40),
        (MomentKind.ENDED, "org/quick", 8),
        (MomentKind.STARTED, "org/quick", 3),
        (MomentKind.LAST_SENT, None, 2),
        (MomentKind.FIRST_SENT, None, 1),
        (MomentKind.ARRIVED, None, 0),
    ]


def test_what_happens_at_once_stands_in_the_order_of_its_causes() -> None:
    backends = tuple(a_backend(f"org/b{each}", 0, started_at=0, ended_at=0) for each in (1, 2))
    kinds = [each.kind for each in moments(an_arrival(sent=2), backends=backends)]
    assert kinds == [
        *(MomentKind.ENDED, MomentKind.ENDED, MomentKind.STARTED),
        *(MomentKind.LAST_SENT, MomentKind.FIRST_SENT, MomentKind.ARRIVED),
    ]


def test_one_dispatch_alone_is_neither_first_nor_last() -> None:
    found = moments(backends=(a_backend("org/one", 1), a_backend("org/two")))
    assert [(each.kind, each.number) for each in found] == [(MomentKind.SENT, 1)]


def test_deliveries_are_told_apart() -> None:
    nightly: dict[str, Any] = {"delivery": HEAD, "event": "nightly", "dispatch": None}
    backends = (
        a_backend("org/one", 1, started_at=2, ended_at=4),
        a_backend("org/one", started_at=30, ended_at=50, **nightly),
    )
    found = moments(backends=backends)
    assert [(each.kind, each.event) for each in found] == [
        (MomentKind.ENDED, "nightly"),
        (MomentKind.STARTED, "nightly"),
        (MomentKind.ENDED, "pull_request"),
        (MomentKind.STARTED, "pull_request"),
        (MomentKind.SENT, "pull_request"),
    ]


@pytest.mark.parametrize(
    ("spell", "kind"),
    [
        ({"started_at": 1}, None),
        ({"started_at": 1, "failed_at": 5}, MomentKind.FAILING),
        ({"started_at": 1, "failed_at": 5, "ended_at": 5}, MomentKind.ENDED),
    ],
)
def test_a_backend_that_still_runs_has_at_most_failed(
    spell: dict[str, float], kind: MomentKind | None
) -> None:
    found = moments(backends=(a_backend("org/one", state=BackendState.FAILED, **spell),))
    shown = [(each.kind, each.result) for each in found if each.kind is not MomentKind.STARTED]
    assert shown == ([(kind, BackendState.FAILED)] if kind else [])


@pytest.mark.parametrize(
    ("check", "shown"),
    [
        (a_check("success"), [GateShown.PASSED]),
        (a_check("failure"), [GateShown.FAILED]),
        (a_check("cancelled"), [GateShown.OVER]),
        (a_check(None), [GateShown.PENDING]),
        (a_check("failure", "crcr/org/one"), []),
        (a_check("failure", published_at=None), []),
    ],
)
def test_the_gate_is_told_as_github_was_told(check: CheckView, shown: list[GateShown]) -> None:
    found = moments(checks=(check,))
    assert [(each.kind, each.gate) for each in found] == [(MomentKind.PUBLISHED, each) for each in shown]


@pytest.mark.parametrize("state", GateShown)
def test_only_a_gate_that_decided_has_a_moment_of_its_own(state: GateShown) -> None:
    found = moments(gate=GateView(state=state, title=None, judged_at=at(3)))
    decided = state in {GateShown.PASSED, GateShown.FAILED}
    assert [(each.kind, each.gate) for each in found] == ([(MomentKind.JUDGED, state)] if decided else [])


def test_a_waiver_is_told_when_given_used_and_taken_back() -> None:
    waiver = a_waiver(WaiverState.TAKEN_BACK, used_at=at(7), ended_at=at(9), ended_by="zoe", job="build")
    assert [(each.kind, each.subject, each.job, each.who) for each in moments(waivers=(waiver,))] == [
        (MomentKind.TAKEN_BACK, "org/backend", "build", "zoe"),
        (MomentKind.USED, "org/backend", "build", "mia"),
        (MomentKind.WAIVED, "org/backend", "build", "mia"),
    ]
    [older] = moments(waivers=(a_waiver(WaiverState.OTHER_COMMIT),))
    assert older.superseded


def test_merge_groups_are_told() -> None:
    assert timeline_rows(moments(groups=(a_group(25),))) == [
        (MomentKind.UNQUEUED, None, 25),
        (MomentKind.QUEUED, None, 20),
    ]
    assert [each.head_sha for each in moments(groups=(a_group(),))] == ["c" * 40]


@pytest.mark.parametrize(
    ("state", "kinds"),
    [
        (PullState.MERGED, (MomentKind.MERGED, MomentKind.CLOSED)),
        (PullState.CLOSED, (MomentKind.CLOSED, MomentKind.CLOSED)),
        (PullState.OPEN, (MomentKind.CLOSED, MomentKind.CLOSED)),
        (None, (MomentKind.ARRIVED, MomentKind.ARRIVED)),
    ],
)
def test_only_the_last_closing_of_what_is_merged_was_the_merge(
    state: PullState | None, kinds: tuple[MomentKind, ...]
) -> None:
    arrivals = (an_arrival(9, "closed"), an_arrival(5, "reopened"), an_arrival(3, "closed"), an_arrival())
    found = moments(*arrivals, pull=state)
    assert [each.kind for each in found if each.arrival and each.arrival.action == "closed"] == [*kinds]
    assert [each.arrival for each in found] == [*arrivals]


def test_of_too_much_the_way_and_who_did_not_pass_are_kept() -> None:
    passed = tuple(a_backend(f"org/p{each}", 1, started_at=2, ended_at=100 + each) for each in range(80))
    failed = tuple(
        a_backend(f"org/f{each}", 1, started_at=2, ended_at=10, state=BackendState.FAILED)
        for each in range(9)
    )
    labels = tuple(an_arrival(200 + each, "labeled") for each in range(40))
    known = TimelineFacts(arrivals=(*labels[::-1], an_arrival(sent=89)), backends=(*passed, *failed))
    found, left_out = build_timeline(known)
    assert len(found) == MOST_MOMENTS
    assert left_out == 41 + 89 + 3 - MOST_MOMENTS
    kinds = [each.kind for each in found]
    assert kinds[-4:] == [
        *(MomentKind.STARTED, MomentKind.LAST_SENT),
        *(MomentKind.FIRST_SENT, MomentKind.ARRIVED),
    ]
    results = [each.subject for each in found if each.result is BackendState.PASSED]
    assert sum(each.result is BackendState.FAILED for each in found) == 9
    assert results == [f"org/p{each}" for each in range(79, 79 - len(results), -1)]


def test_older_commits_take_no_room_from_the_latest_one() -> None:
    older = tuple(an_arrival(-each, "synchronize", sent=1, superseded=True) for each in range(1, 90))
    found, left_out = build_timeline(TimelineFacts(arrivals=(an_arrival(), *older), backends=()))
    assert [each.superseded for each in found] == [False, *[True] * MOST_MOMENTS]
    assert left_out == 89 - MOST_MOMENTS


# Spells


def test_a_spell_lasts_from_the_first_start_to_the_last_end() -> None:
    jobs = [
        a_job_view(started_at=at(3), completed_at=at(9)),
        a_job_view(started_at=at(1), completed_at=at(5), conclusion="failure"),
        a_job_view(started_at=at(2), completed_at=at(7), conclusion="failure"),
    ]
    assert running_time(jobs) == Spell(started_at=at(1), failed_at=at(5), ended_at=at(9))
    assert running_time([]) == Spell()


def test_a_spell_has_no_end_while_a_job_runs() -> None:
    running = a_job_view(None, started_at=at(1))
    ended = a_job_view(started_at=at(2), completed_at=at(4))
    assert running_time([running, ended]) == Spell(started_at=at(1))


def test_a_job_that_went_silent_ended_when_that_was_noticed() -> None:
    silent = a_job_view(None, state=JobState.TIMED_OUT, started_at=at(1), swept_at=at(400))
    assert running_time([silent]) == Spell(started_at=at(1), failed_at=at(400), ended_at=at(400))
