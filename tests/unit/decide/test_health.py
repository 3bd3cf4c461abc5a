"""The relay's health from recorded facts: the state, and its sentences in order."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from crcr.decide.health.relay import (
    Health,
    HealthFacts,
    HealthState,
    OpenEffects,
    RefusedWebhooks,
    WaitingGates,
    judge_health,
    worst_state,
)
from crcr.decide.health.texts import EffectClass, GatePublication, effect_class
from crcr.decide.model import EffectKind
from crcr.decide.outbox.effect import EffectFault
from crcr.errors import HeldBy

NOW = datetime(2026, 8, 3, 5, 12, tzinfo=UTC)


def ago(**by: float) -> datetime:
    return NOW - timedelta(**by)


def ahead(**by: float) -> datetime:
    return NOW + timedelta(**by)


def waiting_effects(effects: EffectClass = EffectClass.DETAILS, number: int = 1, **more: Any) -> OpenEffects:
    plain = {"created_at": NOW, "due_at": NOW, "until": NOW}
    return OpenEffects(effects=effects, number=number, **{**plain, **more})


def held_effects(effects: EffectClass, number: int, until: datetime, **more: Any) -> OpenEffects:
    return waiting_effects(effects, number, until=until, due_at=until, **{"held_by": HeldBy.HOUR, **more})


def failing(
    effects: EffectClass, since: datetime, fault: EffectFault = EffectFault.UNANSWERED
) -> OpenEffects:
    return waiting_effects(
        effects, 2, due_at=ahead(seconds=9), until=ahead(seconds=9), fault=fault, fault_since=since
    )


def gates(number: int = 1, since: datetime = NOW, until: datetime = NOW, **more: Any) -> WaitingGates:
    return WaitingGates(number=number, since=since, until=until, **more)


REFUSED = RefusedWebhooks(14, ago(minutes=2), ago(seconds=30))
HOUR_ENDS = ahead(minutes=23)

CASES: dict[str, tuple[HealthFacts, str, str | None]] = {
    "nothing waits": (HealthFacts(last_delivery_at=ago(hours=3)), "green", None),
    "effects wait for their turn": (HealthFacts(open_effects=(waiting_effects(number=900),)), "green", None),
    "a gate on its way": (HealthFacts(gates=(gates(since=ago(seconds=4)),)), "green", None),
    "a gate that is late": (
        HealthFacts(gates=(gates(since=ago(seconds=50)),)),
        "amber",
        "1 gate is decided and not yet published on GitHub, since 05:11 UTC.",
    ),
    "gates held back": (
        HealthFacts(gates=(gates(3, ago(minutes=7), HOUR_ENDS, held_by=HeldBy.HOUR),)),
        "red",
        (
            "3 gates are decided and not yet published on GitHub, the oldest since 05:05 UTC: held back by GitHub's"
            " rate limit until 05:35 UTC (requests per hour)."
        ),
    ),
    "a gate held back for seconds": (
        HealthFacts(gates=(gates(until=ahead(seconds=9), held_by=HeldBy.MINUTE),)),
        "amber",
        (
            "1 gate is decided and not yet published on GitHub, since 05:12 UTC: held back by GitHub's rate limit"
            " until 05:12:09 UTC (points per minute)."
        ),
    ),
    "a gate that GitHub does not answer": (
        HealthFacts(
            gates=(gates(since=ago(minutes=3), fault=EffectFault.UNANSWERED, fault_since=ago(minutes=3)),)
        ),
        "red",
        (
            "1 gate is decided and not yet published on GitHub, since 05:09 UTC: GitHub has not answered since"
            " 05:09 UTC."
        ),
    ),
    "backend checks held back": (
        HealthFacts(open_effects=(held_effects(EffectClass.BACKEND_CHECKS, 12, HOUR_ENDS),)),
        "amber",
        "Backend checks of 12 commits are held back by GitHub's rate limit until 05:35 UTC (requests per hour).",
    ),
    "one dispatch held back by a secondary limit": (
        HealthFacts(
            open_effects=(
                held_effects(EffectClass.DISPATCHES, 1, ahead(minutes=1), held_by=HeldBy.SECONDARY),
            )
        ),
        "amber",
        "1 dispatch is held back by GitHub's rate limit until 05:13:00 UTC (secondary limit).",
    ),
    "details paced for seconds": (
        HealthFacts(open_effects=(held_effects(EffectClass.DETAILS, 40, ahead(seconds=20)),)),
        "green",
        None,
    ),
    "details that pacing has held for long": (
        HealthFacts(
            open_effects=(
                held_effects(EffectClass.DETAILS, 1_204, ahead(seconds=20), created_at=ago(minutes=5)),
            )
        ),
        "amber",
        "1,204 job checks and look-ups are held back by GitHub's rate limit until 05:12:20 UTC (requests per hour).",
    ),
    "a limit that has ended": (
        HealthFacts(
            open_effects=(held_effects(EffectClass.DETAILS, 2, ago(seconds=1), created_at=ago(minutes=5)),)
        ),
        "amber",
        "2 job checks and look-ups are held back by GitHub's rate limit (requests per hour), about to be tried again.",
    ),
    "GitHub misses one answer": (
        HealthFacts(open_effects=(failing(EffectClass.DISPATCHES, ago(seconds=3)),)),
        "green",
        None,
    ),
    "GitHub does not answer": (
        HealthFacts(
            open_effects=(
                failing(EffectClass.DETAILS, ago(minutes=1)),
                failing(EffectClass.DISPATCHES, ago(minutes=2)),
            )
        ),
        "amber",
        "GitHub has not answered since 05:10 UTC; to be tried again: 2 dispatches and 2 job checks and look-ups.",
    ),
    "GitHub does not answer for gates": (
        HealthFacts(open_effects=(failing(EffectClass.GATES, ago(minutes=2)),)),
        "red",
        "GitHub has not answered since 05:10 UTC; to be tried again: 2 gates.",
    ),
    "another HUD does not answer": (
        HealthFacts(open_effects=(failing(EffectClass.FORWARDS, ago(hours=6)),)),
        "amber",
        "The other HUD has not answered since Aug 2, 23:12 UTC; to be tried again: 2 results for the other HUD.",
    ),
    "the App's key is refused": (
        HealthFacts(open_effects=(failing(EffectClass.GATES, NOW, EffectFault.CREDENTIALS),)),
        "red",
        "GitHub refuses the App's credentials: check the App's id, its private key and this machine's clock.",
    ),
    "effects are behind": (
        HealthFacts(open_effects=(waiting_effects(due_at=ago(minutes=4)),)),
        "amber",
        "Outgoing calls are behind: the oldest has been due since 05:08 UTC. Is a worker running?",
    ),
    "nothing is delivered": (
        HealthFacts(open_effects=(waiting_effects(due_at=ago(minutes=16)),)),
        "red",
        "Nothing is delivered: the oldest has been due since 04:56 UTC. Is a worker running?",
    ),
    "paused dispatches are not behind": (
        HealthFacts(
            open_effects=(waiting_effects(EffectClass.DISPATCHES, due_at=ago(hours=1)),),
            paused_at=ago(hours=1),
        ),
        "amber",
        "Dispatching has been paused by an administrator since 04:12 UTC.",
    ),
    "parked effects": (
        HealthFacts(parked=((EffectClass.DISPATCHES, 2), (EffectClass.BACKEND_CHECKS, 1))),
        "amber",
        (
            "Undelivered after repeated failures, to be retried by an administrator: 2 dispatches and backend"
            " checks of 1 commit."
        ),
    ),
    "a parked gate": (
        HealthFacts(parked=((EffectClass.GATES, 1),)),
        "red",
        "Undelivered after repeated failures, to be retried by an administrator: 1 gate.",
    ),
    "a bad allowlist": (
        HealthFacts(allowlist_bad=True),
        "amber",
        "The newest allowlist has errors and was not accepted; the version before it is in force.",
    ),
    "no allowlist at all": (
        HealthFacts(has_allowlist=False, allowlist_bad=True),
        "red",
        "No valid allowlist has been read, so nothing is dispatched.",
    ),
    "refused webhooks": (
        HealthFacts(refused=REFUSED, last_delivery_at=ago(hours=1)),
        "amber",
        (
            "14 webhooks were refused since 05:10 UTC: the signature does not match CRCR_GITHUB_WEBHOOK_SECRET."
            " Either the App has another secret, or they are not GitHub's."
        ),
    ),
    "refused webhooks beside good ones": (
        HealthFacts(refused=REFUSED, last_delivery_at=ago(minutes=1)),
        "amber",
        (
            "14 webhooks were refused since 05:10 UTC: the signature does not match CRCR_GITHUB_WEBHOOK_SECRET."
            " Others arrive with the right one, so these may not be GitHub's."
        ),
    ),
    "webhooks refused long ago": (
        HealthFacts(refused=RefusedWebhooks(14, ago(hours=2), ago(minutes=16))),
        "green",
        None,
    ),
    "silent webhooks": (
        HealthFacts(last_delivery_at=ago(hours=25)),
        "amber",
        "No webhook has arrived since Aug 2, 04:12 UTC.",
    ),
}


@pytest.mark.parametrize(("facts", "state", "text"), CASES.values(), ids=CASES)
def test_each_fact_has_its_state_and_its_sentence(facts: HealthFacts, state: str, text: str | None) -> None:
    health = judge_health(facts, NOW)
    assert (health.state.value, [reason.text for reason in health.reasons]) == (state, [text] if text else [])


def test_the_most_serious_reason_comes_first_and_gives_the_state() -> None:
    facts = HealthFacts(
        allowlist_bad=True,
        parked=((EffectClass.DISPATCHES, 1),),
        gates=(gates(since=ago(minutes=9), until=HOUR_ENDS, held_by=HeldBy.HOUR),),
        open_effects=(
            held_effects(EffectClass.GATES, 1, HOUR_ENDS),
            held_effects(EffectClass.DETAILS, 7, HOUR_ENDS),
        ),
    )
    health = judge_health(facts, NOW)
    assert [reason.code.value for reason in health.reasons] == [
        *("gates_unpublished", "held_back", "parked", "allowlist_bad"),
    ]
    assert health.state is HealthState.RED
    assert [held.effects.value for held in health.held] == ["gates", "details"]
    assert worst_state([Health(), health]) is HealthState.RED
    assert worst_state([]) is HealthState.GREEN


def test_pages_refresh_when_the_end_of_a_limit_changes_but_not_the_number_of_details() -> None:
    def signature(number: int, until: datetime) -> tuple[str, ...]:
        facts = HealthFacts(open_effects=(held_effects(EffectClass.DETAILS, number, until),))
        return judge_health(facts, NOW).signature

    assert signature(7, HOUR_ENDS) == signature(900, HOUR_ENDS)
    assert signature(7, HOUR_ENDS) != signature(7, ahead(minutes=40))


@pytest.mark.parametrize(
    ("obstacle", "text"),
    [
        (
            {"held_by": HeldBy.HOUR, "due_at": HOUR_ENDS},
            "held back by GitHub's rate limit until 05:35 UTC (requests per hour)",
        ),
        (
            {"fault": EffectFault.UNANSWERED, "fault_since": ago(minutes=2)},
            "GitHub has not answered since 05:10 UTC",
        ),
        (
            {"parked": True},
            "publishing it was given up after repeated failures; an administrator can retry it",
        ),
        ({}, "it waits for its turn"),
    ],
)
def test_an_unpublished_gate_shows_since_when_and_why(obstacle: dict[str, Any], text: str) -> None:
    publication = GatePublication(at=NOW, decided_at=ago(minutes=7), **obstacle)
    assert publication.is_late
    assert publication.text == f"Decided at 05:05 UTC, not yet published on GitHub: {text}."


@pytest.mark.parametrize("kind", EffectKind)
def test_every_kind_of_effect_has_a_class(kind: EffectKind) -> None:
    tiers = {"checks/gate": "gates", "checks/backend": "backend_checks", "checks/job": "details"}
    if kind is EffectKind.PUBLISH_CHECKS:
        assert {target: effect_class(kind, target).value for target in tiers} == tiers
    else:
        assert effect_class(kind, "owner/repo") in EffectClass
