"""What the metrics read from the store: queues by kind, lag by due time, and alarm facts."""

from datetime import UTC, datetime, timedelta

from sqlalchemy import text

from crcr.decide.allowlist.entries import AllowlistReading
from crcr.decide.model import RepoName
from crcr.decide.views.overview import AlarmFacts, EffectQueue
from crcr.record.store.statement import Statement
from crcr.record.store.times import to_us
from crcr.record.views.relay import metrics
from crcr.record.views.relay.metrics import read_alarm_facts, read_queues
from support.services.postgres import new_database, run_on
from support.stores.databases import CORE, OTHER, Stores

NOW = datetime(2026, 8, 3, 12, tzinfo=UTC)
LISTED = "L2:\n  - org/backend\n"

_EFFECT = Statement(
    text(
        "INSERT INTO effects (upstream, kind, target, lane, delivery, state, due_at, created_at, attempts, unsure)"
        " VALUES (:upstream, :kind, :target, '', NULL, :state, :due_at, :created_at, 0, 0)"
    )
)
_GATE = Statement(
    text(
        "INSERT INTO gates (head_sha, upstream, state, title, judged_at, recheck_at)"
        " VALUES (:head_sha, :upstream, 'pending', 't', :judged_at, :recheck_at)"
    )
)


async def add_effect(
    stores: Stores, kind: str, state: str = "waiting", *, due: timedelta, upstream: RepoName = CORE
) -> None:
    """Add an effect created an hour ago; `due` is relative to now."""
    times = {"due_at": to_us(NOW + due), "created_at": to_us(NOW - timedelta(hours=1))}
    row = {"upstream": upstream.key, "kind": kind, "state": state, "target": "org/backend", **times}
    await stores.database.write(lambda tx: tx.run(_EFFECT, **row))


async def add_gate(stores: Stores, sha: str, *, recheck_at: datetime) -> None:
    row = {"head_sha": sha, "upstream": CORE.key, "judged_at": to_us(NOW), "recheck_at": to_us(recheck_at)}
    await stores.database.write(lambda tx: tx.run(_GATE, **row))


async def queues(stores: Stores, upstream: RepoName = CORE) -> dict[str, EffectQueue]:
    effect_queues = await stores.database.read(lambda tx: read_queues(tx, upstream, NOW))
    return {queue.kind: queue for queue in effect_queues}


async def alarm_facts(stores: Stores) -> AlarmFacts:
    return await stores.database.read(lambda tx: read_alarm_facts(tx, CORE, NOW))


async def test_queues_are_counted_by_kind_and_state_for_one_upstream(stores: Stores) -> None:
    await stores.prepare({CORE: LISTED, OTHER: LISTED}, NOW)
    for state in ("waiting", "waiting", "claimed", "parked", "done", "cancelled"):
        await add_effect(stores, "send_dispatch", state, due=timedelta(seconds=-40))
    await add_effect(stores, "rerun", "parked", due=timedelta(days=-9))
    await add_effect(stores, "rerun", due=timedelta(seconds=-1), upstream=OTHER)
    assert await queues(stores) == {
        "send_dispatch": EffectQueue(kind="send_dispatch", waiting=2, claimed=1, parked=1, lag_s=40.0),
        "rerun": EffectQueue(kind="rerun", parked=1),
    }
    assert await queues(stores, OTHER) == {"rerun": EffectQueue(kind="rerun", waiting=1, lag_s=1.0)}


async def test_postponed_effects_do_not_count_as_lag_but_overdue_claimed_ones_do(stores: Stores) -> None:
    await stores.prepare({CORE: LISTED}, NOW)
    await add_effect(stores, "rerun", due=timedelta(minutes=5))
    await add_effect(stores, "look_up", "claimed", due=timedelta(minutes=-2))
    await add_effect(stores, "look_up", due=timedelta(minutes=9))
    queues_by_kind = await queues(stores)
    assert queues_by_kind["rerun"].lag_s is None
    assert (
        queues_by_kind["look_up"].waiting,
        queues_by_kind["look_up"].claimed,
        queues_by_kind["look_up"].lag_s,
    ) == (1, 1, 120.0)


async def test_an_empty_store_has_no_alarm_facts(stores: Stores) -> None:
    await stores.prepare({CORE: LISTED}, NOW)
    assert await queues(stores) == {}
    assert await alarm_facts(stores) == AlarmFacts()


async def test_a_bad_allowlist_a_pause_and_an_overdue_gate_are_alarm_facts(stores: Stores) -> None:
    await stores.prepare({CORE: LISTED}, NOW)
    await stores.allowlists.take_reading(CORE, AllowlistReading("test", "L9: [what]"), NOW)
    await stores.acts.pause(CORE, who="ann", now=NOW)
    for sha, recheck in (("a" * 40, -600), ("b" * 40, -60), ("c" * 40, 3600)):
        await add_gate(stores, sha, recheck_at=NOW + timedelta(seconds=recheck))
    assert await alarm_facts(stores) == AlarmFacts(paused=True, allowlist_bad=True, gate_overdue_s=600.0)


_FINISHED = """
INSERT INTO effects (upstream, kind, target, lane, state, due_at, created_at, finished_at, attempts, unsure)
SELECT ?, 'rerun', 'org/' || n, '', CASE WHEN n % 500 = 0 THEN 'waiting' ELSE 'done' END, n, n, n, 1, 0
FROM generate_series(1, 50000) AS n"""
_JUDGED = """
INSERT INTO gates (head_sha, upstream, state, title, judged_at, recheck_at)
SELECT 'sha' || n, ?, 'passed', 't', n, CASE WHEN n % 500 = 0 THEN n END FROM generate_series(1, 50000) AS n"""
_RECEIVED = """
INSERT INTO deliveries (guid, upstream, event, state, source, received_at, body_bytes)
SELECT 'guid' || n, ?, 'push', 'accepted', 'webhook', n, 0 FROM generate_series(1, 50000) AS n"""
_METRIC_STATEMENTS = (
    metrics._OPEN,
    metrics._PARKED,
    metrics.LAST_DELIVERY,
    metrics._OVERDUE_GATE,
)


def test_metric_queries_on_postgresql_use_indexes_instead_of_scanning_large_tables() -> None:
    url = new_database()
    for sql in (_FINISHED, _JUDGED, _RECEIVED):
        run_on(url, sql, CORE.key)
    run_on(url, "ANALYZE")
    for statement in _METRIC_STATEMENTS:
        compiled = statement.for_dialect("postgresql")
        arguments = compiled.arguments({"upstream": CORE.key, "now": to_us(NOW)})
        plan = "\n".join(str(row) for row in run_on(url, f"EXPLAIN {compiled.sql}", *arguments))
        assert "Seq Scan" not in plan, plan
        assert "ix_" in plan
