"""A timeline lists the events from the webhook to the results in their order, and stays short."""

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


def optional_at(minute: float | None) -> datetime | None:
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
    minutes = {key: optional_at(more.pop(key, None)) for key in ("started_at", "failed_at", "ended_at")}
    plain["dispatch"] = a_dispatch(sent_at=optional_at(sent))
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
    fields: dict[str, Any] = {"round": 1, "title": None, "published_at": at(9), "status": status}
    return CheckView(name=name, conclusion=conclusion, **{**fields, **more})


def a_group(destroyed: float | None = None) -> GroupView:
    return GroupView(
        head_sha="c" * 40,
        head_ref="queue",
        base_ref="main",
        numbers=(7,),
        reused_from=None,
        gate=None,
        created_at=at(20),
        destroyed_at=optional_at(destroyed),
    )


def moments(*arrivals: Arrival, backends: tuple[CommitBackend, ...] = (), **known: Any) -> list[Moment]:
    return list(build_timeline(TimelineFacts(arrivals=arrivals, backends=backends, **known))[0])


def timeline_rows(timeline: list[Moment]) -> list[tuple[MomentKind, str | None, float]]:
    return [(moment.kind, moment.subject, (moment.at - NOON) / timedelta(minutes=1)) for moment in timeline]


def test_the_timeline_of_a_commit_goes_from_its_webhook_to_its_last_result() -> None:
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


def test_simultaneous_moments_are_in_the_order_of_their_causes() -> None:
    backends = tuple(a_backend(f"org/b{number}", 0, started_at=0, ended_at=0) for number in (1, 2))
    kinds = [moment.kind for moment in moments(an_arrival(sent=2), backends=backends)]
    assert kinds == [
        *(MomentKind.ENDED, MomentKind.ENDED, MomentKind.STARTED),
        *(MomentKind.LAST_SENT, MomentKind.FIRST_SENT, MomentKind.ARRIVED),
    ]


def test_a_single_dispatch_is_neither_first_nor_last() -> None:
    timeline = moments(backends=(a_backend("org/one", 1), a_backend("org/two")))
    assert [(moment.kind, moment.number) for moment in timeline] == [(MomentKind.SENT, 1)]


def test_moments_of_different_deliveries_are_kept_apart() -> None:
    nightly: dict[str, Any] = {"delivery": HEAD, "event": "nightly", "dispatch": None}
    backends = (
        a_backend("org/one", 1, started_at=2, ended_at=4),
        a_backend("org/one", started_at=30, ended_at=50, **nightly),
    )
    timeline = moments(backends=backends)
    assert [(moment.kind, moment.event) for moment in timeline] == [
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
def test_a_running_backend_shows_at_most_a_failure(spell: dict[str, float], kind: MomentKind | None) -> None:
    timeline = moments(backends=(a_backend("org/one", state=BackendState.FAILED, **spell),))
    shown = [(moment.kind, moment.result) for moment in timeline if moment.kind is not MomentKind.STARTED]
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
def test_the_published_gate_is_shown_with_the_conclusion_on_github(
    check: CheckView, shown: list[GateShown]
) -> None:
    timeline = moments(checks=(check,))
    assert [(moment.kind, moment.gate) for moment in timeline] == [
        (MomentKind.PUBLISHED, gate) for gate in shown
    ]


@pytest.mark.parametrize("state", GateShown)
def test_only_a_decided_gate_has_a_moment_of_its_own(state: GateShown) -> None:
    timeline = moments(gate=GateView(state=state, title=None, judged_at=at(3)))
    decided = state in {GateShown.PASSED, GateShown.FAILED}
    assert [(moment.kind, moment.gate) for moment in timeline] == (
        [(MomentKind.JUDGED, state)] if decided else []
    )


def test_a_waiver_has_moments_when_granted_used_and_taken_back() -> None:
    waiver = a_waiver(WaiverState.TAKEN_BACK, used_at=at(7), ended_at=at(9), ended_by="zoe", job="build")
    assert [
        (moment.kind, moment.subject, moment.job, moment.who) for moment in moments(waivers=(waiver,))
    ] == [
        (MomentKind.TAKEN_BACK, "org/backend", "build", "zoe"),
        (MomentKind.USED, "org/backend", "build", "mia"),
        (MomentKind.WAIVED, "org/backend", "build", "mia"),
    ]
    [older] = moments(waivers=(a_waiver(WaiverState.OTHER_COMMIT),))
    assert older.superseded


def test_merge_groups_have_moments_when_queued_and_unqueued() -> None:
    assert timeline_rows(moments(groups=(a_group(25),))) == [
        (MomentKind.UNQUEUED, None, 25),
        (MomentKind.QUEUED, None, 20),
    ]
    assert [moment.head_sha for moment in moments(groups=(a_group(),))] == ["c" * 40]


@pytest.mark.parametrize(
    ("state", "kinds"),
    [
        (PullState.MERGED, (MomentKind.MERGED, MomentKind.CLOSED)),
        (PullState.CLOSED, (MomentKind.CLOSED, MomentKind.CLOSED)),
        (PullState.OPEN, (MomentKind.CLOSED, MomentKind.CLOSED)),
        (None, (MomentKind.ARRIVED, MomentKind.ARRIVED)),
    ],
)
def test_only_the_last_closing_of_a_merged_pull_request_is_the_merge(
    state: PullState | None, kinds: tuple[MomentKind, ...]
) -> None:
    arrivals = (an_arrival(9, "closed"), an_arrival(5, "reopened"), an_arrival(3, "closed"), an_arrival())
    timeline = moments(*arrivals, pull=state)
    assert [moment.kind for moment in timeline if moment.arrival and moment.arrival.action == "closed"] == [
        *kinds
    ]
    assert [moment.arrival for moment in timeline] == [*arrivals]


def test_a_long_timeline_keeps_the_main_steps_and_the_backends_that_did_not_pass() -> None:
    passed = tuple(
        a_backend(f"org/p{number}", 1, started_at=2, ended_at=100 + number) for number in range(80)
    )
    failed = tuple(
        a_backend(f"org/f{number}", 1, started_at=2, ended_at=10, state=BackendState.FAILED)
        for number in range(9)
    )
    labels = tuple(an_arrival(200 + number, "labeled") for number in range(40))
    known = TimelineFacts(arrivals=(*labels[::-1], an_arrival(sent=89)), backends=(*passed, *failed))
    timeline, left_out = build_timeline(known)
    assert len(timeline) == MOST_MOMENTS
    assert left_out == 41 + 89 + 3 - MOST_MOMENTS
    kinds = [moment.kind for moment in timeline]
    assert kinds[-4:] == [
        *(MomentKind.STARTED, MomentKind.LAST_SENT),
        *(MomentKind.FIRST_SENT, MomentKind.ARRIVED),
    ]
    results = [moment.subject for moment in timeline if moment.result is BackendState.PASSED]
    assert sum(moment.result is BackendState.FAILED for moment in timeline) == 9
    assert results == [f"org/p{number}" for number in range(79, 79 - len(results), -1)]


def test_older_commits_never_displace_moments_of_the_latest_one() -> None:
    older = tuple(an_arrival(-number, "synchronize", sent=1, superseded=True) for number in range(1, 90))
    timeline, left_out = build_timeline(TimelineFacts(arrivals=(an_arrival(), *older), backends=()))
    assert [moment.superseded for moment in timeline] == [False, *[True] * MOST_MOMENTS]
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


def test_a_silent_job_ends_at_the_sweep_that_noticed_it() -> None:
    silent = a_job_view(None, state=JobState.TIMED_OUT, started_at=at(1), swept_at=at(400))
    assert running_time([silent]) == Spell(started_at=at(1), failed_at=at(400), ended_at=at(400))
