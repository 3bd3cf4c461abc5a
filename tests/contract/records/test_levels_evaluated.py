"""Levels on both databases: the measures, the records of an evaluation, and the effect of a demotion."""

from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from crcr.decide.levels.criteria import CriterionName, LevelCriteria
from crcr.decide.levels.standings import (
    Demotion,
    LevelChangeKind,
    LevelOverride,
    LevelPolicy,
    LevelStanding,
)
from crcr.decide.model import Level, RepoName
from crcr.decide.statistics.window import Span
from crcr.decide.views.attention import AttentionKind
from crcr.errors import NotFound
from crcr.receive.allowlist_yaml import read_allowlist
from crcr.record.checks.refresh import CheckRefresher, UpstreamPolicy
from crcr.record.levels.demotions import find_downgraded, read_demotions
from crcr.record.levels.evaluations import Levels
from crcr.record.levels.measures import BackendMeasures, measure_backend
from crcr.record.repositories.allowlists import Allowlists
from crcr.record.repositories.downstreams import Downstreams
from crcr.record.schema import failures, main_tables, statistics
from crcr.record.schema.levels import level_changes, level_days, level_evaluations, level_standings
from support.data.store_rows import UPSTREAM, StoreRows, open_store_rows

LISTED = """
L1: [listen/only]
L2:
  - new/one
  - probe/one: {expect: {'*': failure}}
L3:
  npu:
    good/backend: [ada]
L4:
  - gate/one: {oncalls: [mia], jobs: [build]}
"""
POLICY = LevelPolicy(LevelCriteria(jobs=5), l4_downgrade=True)
DAY = timedelta(days=1)


@pytest.fixture(params=["sqlite", "postgresql"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StoreRows]:
    async with open_store_rows(tmp_path, on_postgresql=request.param == "postgresql") as rows:
        rows.allowlist(LISTED)
        yield rows


def make_levels(store: StoreRows, policy: LevelPolicy = POLICY) -> Levels:
    refresher = CheckRefresher({UPSTREAM.key: UpstreamPolicy(levels=policy)})
    allowlists = Allowlists(store.database, Downstreams(store.database, refresher), refresher, read_allowlist)
    return Levels(store.database, allowlists, refresher, (UPSTREAM,))


def run(store: StoreRows, backend: str, *conclusions: str, days_ago: float = 1, **more: Any) -> str:
    """Add one dispatch with a run of several jobs that started after 15 minutes; return its delivery."""
    hours = days_ago * 24
    delivery = store.delivery(hours_ago=hours)
    store.dispatch(delivery, backend, hours_ago=hours)
    for number, conclusion in enumerate(conclusions):
        began = hours - 0.25
        took = more.get("took", 1.0)
        store.job(
            delivery,
            conclusion,
            downstream=backend,
            job_name=f"job{number}",
            hours_ago=began,
            completed_at=store.ago(hours=began - took),
            execution_s=took * 3600,
            queue_s=900.0,
        )
    return delivery


def record_equal_failures(
    store: StoreRows, delivery: str, *backends: str, message: str = "no such op", **more: Any
) -> None:
    for backend in backends:
        store.failure(delivery, backend, message, job_name="job0", hours_ago=23, **more)


async def measure(store: StoreRows, backend: str = "good/backend") -> BackendMeasures:
    store.sum_up()
    return await store.database.read(
        lambda tx: measure_backend(tx, UPSTREAM.key, backend, POLICY.criteria, store.clock.now())
    )


def rows_of(store: StoreRows, table: Any) -> list[Any]:
    with store.engine.begin() as connection:
        return list(connection.execute(select(table)).mappings())


async def test_measures_use_the_sums_without_failures_caused_by_the_upstream(store: StoreRows) -> None:
    for _ in range(3):
        run(store, "good/backend", "success", "success")
    shared = run(store, "good/backend", "failure", "success")
    record_equal_failures(store, shared, "good/backend", "other/one", "other/two")
    alone = run(store, "good/backend", "failure")
    record_equal_failures(store, alone, "good/backend", "other/one")
    reverted = run(store, "good/backend", "failure")
    record_equal_failures(store, reverted, "good/backend", number=12)
    base = {"upstream": UPSTREAM.key, "ref": "main", "pushed_at": store.ago(hours=3)}
    store.add(failures.base_commits, {**base, "sha": "a" * 40, "position": 1, "number": 12})
    store.add(failures.base_commits, {**base, "sha": "b" * 40, "position": 2, "reverts": "a" * 40})
    flaky = run(store, "good/backend", "failure", days_ago=10)
    record_equal_failures(store, flaky, "good/backend", "other/one", "other/two", verdict="flaky")
    measures = await measure(store)
    assert measures.left_out == 2
    arriving_rate = measures.arriving[CriterionName.PASS_RATE]
    assert arriving_rate.counted == 9
    assert arriving_rate.value == pytest.approx(100 * 7 / 9)
    leaving_rate = measures.leaving[CriterionName.PASS_RATE]
    assert leaving_rate.counted == 8
    assert leaving_rate.value == pytest.approx(100 * 7 / 8)
    assert measures.arriving[CriterionName.QUEUE_TIME].value == pytest.approx(15)
    assert measures.arriving[CriterionName.TIMEOUTS].value == 0


async def test_run_time_answered_dispatches_and_silence_are_measured(store: StoreRows) -> None:
    for _ in range(6):
        run(store, "good/backend", "success", took=1.0)
    run(store, "good/backend", "success", took=5.0)
    unanswered = store.delivery(hours_ago=20)
    store.dispatch(unanswered, hours_ago=20)
    cancelled = store.delivery(hours_ago=20)
    store.dispatch(cancelled, hours_ago=20, superseded_at=store.ago(hours=19))
    young = store.delivery(hours_ago=1)
    store.dispatch(young, hours_ago=1)
    measures = await measure(store)
    assert measures.arriving[CriterionName.RUN_TIME].counted == 7
    assert measures.arriving[CriterionName.RUN_TIME].value == pytest.approx(1.25, abs=0.25)
    assert measures.arriving[CriterionName.LONG_JOBS].value == pytest.approx(100 / 7)
    answered = measures.arriving[CriterionName.ANSWERED]
    assert answered.counted == 8
    assert answered.value == pytest.approx(100 * 7 / 8)
    silence = measures.arriving[CriterionName.SILENCE]
    assert silence.counted == 1
    assert silence.value == pytest.approx(20)
    never = await measure(store, "new/one")
    assert never.arriving[CriterionName.SILENCE].value is None


async def test_a_silence_lasts_although_no_new_events_are_dispatched(store: StoreRows) -> None:
    run(store, "good/backend", "success", days_ago=40)
    for days in (30, 29, 28):
        store.dispatch(store.delivery(hours_ago=days * 24), hours_ago=days * 24)
    silence = (await measure(store)).leaving[CriterionName.SILENCE]
    assert silence.value == pytest.approx(30 * 24)
    assert silence.counted == 3


async def test_two_failed_evaluations_a_day_apart_demote_and_record_each_day_once(store: StoreRows) -> None:
    levels, now = make_levels(store), store.clock.now()
    for days in (0.5, 1.5, 2.5):
        run(store, "good/backend", "failure", "failure", "failure", "success", days_ago=days)
    store.sum_up()
    assert await levels.evaluate_due(now) == 3  # not L1, not the probe
    assert await levels.evaluate_due(now + timedelta(hours=12)) == 0
    for hours in (1, 2):
        assert await levels.evaluate_now(UPSTREAM, now + timedelta(hours=hours)) == 3
    assert rows_of(store, level_changes) == []
    assert await levels.evaluate_due(now + DAY + timedelta(hours=2)) == 3
    [change] = rows_of(store, level_changes)
    assert (change["downstream"], change["kind"]) == ("good/backend", LevelChangeKind.DEMOTED)
    assert "jobs passed: 25.0% of 12 jobs (< 85%)" in change["reason"]
    assert (change["before"], change["after"]) == (Level.L3, Level.L2)
    recorded_days = [row for row in rows_of(store, level_days) if row["downstream"] == "good/backend"]
    assert len(recorded_days) == 15
    assert len(rows_of(store, level_evaluations)) == 12
    standing = {row["downstream"]: row["standing"] for row in rows_of(store, level_standings)}
    assert standing["good/backend"] == LevelStanding.FAILS
    assert (
        await levels.evaluate_now(UPSTREAM, now) == 0
    )  # an evaluation with a clock set back changes nothing


async def test_an_evaluation_with_a_clock_far_ahead_does_not_block_later_ones(store: StoreRows) -> None:
    levels, now = make_levels(store), store.clock.now()
    await levels.evaluate_now(UPSTREAM, now + 300 * DAY)
    assert await levels.evaluate_due(now) == 3
    assert await levels.evaluate_due(now) == 0
    assert {row["evaluated_at"] for row in rows_of(store, level_standings)} == {store.ago(days=0)}
    assert {row["since_at"] for row in rows_of(store, level_standings)} == {store.ago(days=0)}


async def demotions(store: StoreRows, policy: LevelPolicy = POLICY, **hours: float) -> dict[str, Demotion]:
    allowlist = read_allowlist(LISTED).allowlist
    assert allowlist is not None
    now = store.clock.now() + timedelta(**hours)
    return await store.database.read(lambda tx: read_demotions(tx, UPSTREAM, allowlist.entries, policy, now))


def record_standing(store: StoreRows, downstream: str, level: int, standing: str = "fails") -> None:
    times = dict.fromkeys(("since_at", "changed_at", "evaluated_at"), store.ago(days=1))
    row = {"upstream": UPSTREAM.key, "downstream": downstream, "level": level, "standing": standing}
    store.add(level_standings, {**row, **times, "results": "[]", "left_out": 0})


async def test_a_demotion_applies_to_its_level_until_it_is_overridden(store: StoreRows) -> None:
    record_standing(store, "good/backend", 3)
    record_standing(store, "gate/one", 4)
    record_standing(store, "new/one", 3)  # demoted at L3, now listed at L2
    both_demoted = {"good/backend": Demotion.SILENT, "gate/one": Demotion.DOWNGRADED}
    assert await demotions(store) == both_demoted
    levels, until = make_levels(store), store.clock.now() + DAY
    override = LevelOverride(who="ada", reason="new machines tomorrow", until=until)
    name = RepoName("good/backend")
    await levels.set_override(UPSTREAM, name, override, who="ada", now=store.clock.now())
    assert await demotions(store) == {"gate/one": Demotion.DOWNGRADED}
    assert await demotions(store, hours=25) == both_demoted
    [act] = rows_of(store, main_tables.audit)
    assert (act["who"], act["act"], act["subject"]) == ("ada", "level_override", "good/backend")
    await levels.set_override(UPSTREAM, name, None, who="ada", now=store.clock.now())
    assert await demotions(store) == both_demoted
    with pytest.raises(NotFound):
        await levels.set_override(UPSTREAM, RepoName("un/known"), override, who="ada", now=store.clock.now())


async def test_the_first_pull_request_of_a_proposal_stays_recorded(store: StoreRows) -> None:
    levels, now = make_levels(store), store.clock.now()
    assert await levels.find_proposal(UPSTREAM, "abc") is None
    for who, url in (("ada", "https://github.test/1"), ("mia", "https://github.test/2")):
        await levels.record_proposal(UPSTREAM, "abc", url, who=who, now=now)
    assert await levels.find_proposal(UPSTREAM, "abc") == "https://github.test/1"
    assert await levels.find_proposal(RepoName("an/other"), "abc") is None
    [act] = rows_of(store, main_tables.audit)
    assert (act["who"], act["act"], act["subject"]) == ("ada", "levels_proposed", "https://github.test/1")


async def test_a_head_dispatched_with_a_gating_backend_keeps_it_after_a_demotion(store: StoreRows) -> None:
    record_standing(store, "gate/one", 4)
    allowlist = read_allowlist(LISTED).allowlist
    assert allowlist is not None
    known = store.delivery(head_sha="1" * 40)
    store.dispatch(known, "gate/one", level=4, state="left_out")

    async def downgraded(head: str, policy: LevelPolicy = POLICY) -> frozenset[str]:
        now = store.clock.now()
        return await store.database.read(
            lambda tx: find_downgraded(tx, UPSTREAM, head, allowlist, policy, now=now)
        )

    assert await downgraded("1" * 40) == frozenset()
    assert await downgraded("2" * 40) == {"gate/one"}
    assert await downgraded("2" * 40, LevelPolicy()) == frozenset()


async def test_a_head_keeps_a_gating_backend_that_was_renamed_since(store: StoreRows) -> None:
    """The backend is silent under its new name; a head dispatched to it under the old name is evaluated again."""
    allowlist = read_allowlist(LISTED).allowlist
    assert allowlist is not None
    record_standing(store, "gate/one", 4)
    heads = {"same id": "1" * 40, "other id": "2" * 40, "unknown id": "3" * 40}
    for head, repository_id in zip(heads.values(), (44, 45, None), strict=True):
        known = store.delivery(head_sha=head)
        store.dispatch(known, "gate/old", level=4, repository_id=repository_id)

    async def cases_kept_gating() -> set[str]:
        now, gating_cases = store.clock.now(), set()
        for case, head in heads.items():
            read = partial(
                find_downgraded,
                upstream=UPSTREAM,
                head_sha=head,
                allowlist=allowlist,
                policy=POLICY,
                now=now,
            )
            if not await store.database.read(read):
                gating_cases.add(case)
        return gating_cases

    assert await cases_kept_gating() == set(heads)  # the repository id behind the new name is not known yet
    repository = {"upstream": UPSTREAM.key, "downstream": "gate/one", "name": "gate/one"}
    store.add(main_tables.repositories, {**repository, "repository_id": 44, "confirmed": 1})
    assert await cases_kept_gating() == {"same id", "unknown id"}


async def test_time_at_l2_starts_after_the_last_time_below_l2(store: StoreRows) -> None:
    key = {"upstream": UPSTREAM.key, "downstream": "new/one"}
    history = ((1, 2, 90), (2, None, 60), (3, 2, 40), (4, 3, 30), (5, 2, 20))
    for version, level, days in history:
        store.add(statistics.levels, {**key, "version": version, "level": level, "at": store.ago(days=days)})
    measures = await measure(store, "new/one")
    assert measures.arriving[CriterionName.TIME_AT_L2].value == pytest.approx(40)


async def test_the_levels_view_shows_recorded_standings_of_visible_backends_only(store: StoreRows) -> None:
    store.allowlist(
        f"{LISTED}  - hid/den: {{oncalls: [mia], jobs: [build], visibility: hidden}}\n", version=2
    )
    for days in (0.5, 1.5):
        run(store, "good/backend", *("failure",) * 5, days_ago=days)
    store.waiver("gate/one")
    store.add(
        statistics.levels,
        {
            "upstream": UPSTREAM.key,
            "downstream": "good/backend",
            "version": 1,
            "level": 3,
            "at": store.ago(days=60),
        },
    )
    record_standing(store, "hid/den", 4)
    store.sum_up()
    levels = make_levels(store)
    for days in range(2):
        await levels.evaluate_now(UPSTREAM, store.clock.now())
        store.clock.advance(86_400 if not days else 60)
    view = await store.views.levels(UPSTREAM, store.clock.now())
    assert [str(backend.name) for backend in view.backends] == [
        *("good/backend", "gate/one", "new/one", "probe/one", "listen/only")
    ]
    demoted = view.backends[0]
    assert demoted.demotion is Demotion.SILENT
    assert demoted.level_since is not None
    assert demoted.proposed_level is Level.L2
    assert demoted.reason is not None
    assert "jobs passed: 0.0% of 10 jobs" in demoted.reason
    assert [day.standing for day in demoted.days] == [LevelStanding.DOUBTED, LevelStanding.FAILS]
    assert [str(change.downstream) for change in view.changes] == ["good/backend"]
    assert view.backends[1].waivers == 1
    everything = await store.views.for_admins().levels(UPSTREAM, store.clock.now())
    assert "hid/den" in {str(backend.name) for backend in everything.backends}
    summary = await store.views.summary(UPSTREAM, Span.FORTNIGHT, store.clock.now())
    [item] = [item for item in summary.attention.items if item.kind is AttentionKind.BACKEND_DEMOTED]
    assert (str(item.backend), item.oncalls) == ("good/backend", ("ada",))
    assert "silent mode" in item.text
    marks = {str(row.name): row.demotion for row in summary.rows}
    assert marks["good/backend"] is Demotion.SILENT
    assert marks["gate/one"] is None
