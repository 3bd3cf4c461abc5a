"""The read models on a real store: what counts, what is seen, and how lists are paged."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from crcr.decide.model import Conclusion, JobState, Level, RepoName
from crcr.decide.statistics.figures import LeftOut
from crcr.decide.statistics.window import Span
from crcr.decide.views.backend import BackendPage, BackendQuery, Matrix
from crcr.decide.views.logs import DeliveryQuery
from crcr.decide.views.overview import BackendSummary, JobQuery
from crcr.errors import BadRequest, NotFound
from crcr.record.schema import main_tables
from support.data.store_rows import OTHER, UPSTREAM, StoreRows, open_store_rows

GOOD = RepoName("good/backend")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[StoreRows]:
    async with open_store_rows(tmp_path) as world:
        yield world


async def numbers(world: StoreRows, name: RepoName = GOOD, span: Span = Span.FORTNIGHT) -> BackendSummary:
    world.sum_up()
    summary = await world.views.summary(UPSTREAM, span, world.clock.now())
    return next(each for each in summary.backends if each.name == name)


async def page_of(world: StoreRows, name: RepoName = GOOD) -> BackendPage:
    world.sum_up()
    return await world.views.backend(BackendQuery(upstream=UPSTREAM, downstream=name), world.clock.now())


def counts(backend: BackendSummary) -> tuple[int, int, int, int]:
    assert backend.figures is not None
    tally = backend.figures.tally
    return tally.success, tally.failure, tally.running, tally.other


async def test_an_empty_store_shows_no_backend_and_no_allowlist(world: StoreRows) -> None:
    summary = await world.views.summary(UPSTREAM, Span.FORTNIGHT, world.clock.now())
    assert summary.levels == ()
    assert summary.allowlist.version is None
    assert summary.health.lag_s is None
    assert summary.cursor == 0


async def test_a_backend_that_sent_nothing_has_no_pass_rate(world: StoreRows) -> None:
    world.allowlist()
    backend = await numbers(world)
    assert backend.figures is not None
    assert backend.figures.tally.pass_rate is None
    assert backend.figures.last_result is None
    assert not backend.silent


async def test_each_conclusion_counts_as_one_thing(world: StoreRows) -> None:
    world.allowlist()
    delivery = world.delivery()
    world.dispatch(delivery)
    for conclusion in Conclusion:
        world.job(delivery, conclusion.value, job_name=conclusion.value)
    world.job(delivery, None, job_name="still running")
    world.job(delivery, None, job_name="silent", state="timed_out", swept_at=world.ago(hours=1))
    backend = await numbers(world)
    assert counts(backend) == (1, 5, 1, 3)
    assert backend.figures is not None
    assert backend.figures.tally.pass_rate == pytest.approx(1 / 6)


async def test_only_the_highest_attempt_of_a_job_counts(world: StoreRows) -> None:
    world.allowlist()
    delivery = world.delivery()
    world.dispatch(delivery)
    world.job(delivery, "failure", attempt=1)
    world.job(delivery, "success", attempt=2)
    world.job(delivery, "success", attempt=1, job_name="not run again")
    backend = await numbers(world)
    assert counts(backend) == (2, 0, 0, 0)
    assert backend.figures is not None
    assert backend.figures.left_out == LeftOut(earlier=1)


async def test_superseded_runs_and_commits_and_tests_count_nowhere(world: StoreRows) -> None:
    world.allowlist()
    current, old, by_hand = world.delivery(), world.delivery(), world.delivery()
    world.dispatch(current)
    world.dispatch(old, superseded_at=world.ago(hours=1))
    world.dispatch(by_hand, test=1)
    world.job(current, "failure", run_id="1", superseded=1)
    world.job(current, "success", run_id="2")
    world.job(old, "failure")
    world.job(by_hand, "failure")
    backend = await numbers(world)
    assert counts(backend) == (1, 0, 0, 0)
    assert backend.figures is not None
    assert backend.figures.left_out == LeftOut(superseded=2)
    page = await page_of(world)
    assert page.summary == backend
    assert page.failures == ()


async def test_the_range_cuts_and_the_strip_adds_up(world: StoreRows) -> None:
    world.allowlist()
    delivery = world.delivery(hours_ago=30)
    world.dispatch(delivery, hours_ago=30)
    world.job(delivery, "failure", job_name="old", hours_ago=30, queue_s=5.0)
    world.job(delivery, "success", job_name="new", hours_ago=1, queue_s=10.0, execution_s=4.0)
    day, fortnight = await numbers(world, span=Span.DAY), await numbers(world)
    assert counts(day) == (1, 0, 0, 0)
    assert counts(fortnight) == (1, 1, 0, 0)
    assert fortnight.figures is not None
    assert fortnight.figures.queue.average_s == pytest.approx(7.5)
    assert fortnight.figures.execution.average_s == pytest.approx(4.0)
    assert sum(part.total for part in fortnight.figures.strip) == 2
    assert fortnight.figures.strip[-2].success == 1  # it is midnight: an hour ago was yesterday


async def test_two_upstreams_stay_apart(world: StoreRows) -> None:
    world.allowlist()
    world.allowlist("L2: [good/backend]", OTHER)
    mine, theirs = world.delivery(), world.delivery(OTHER)
    world.dispatch(mine)
    world.dispatch(theirs, upstream=OTHER.key)
    world.job(mine, "success")
    world.job(theirs, "failure", upstream=OTHER.key)
    assert counts(await numbers(world)) == (1, 0, 0, 0)
    other = await world.views.summary(OTHER, Span.FORTNIGHT, world.clock.now())
    assert counts(other.backends[0]) == (0, 1, 0, 0)
    with pytest.raises(NotFound):
        await world.views.delivery(OTHER, mine)


async def test_a_hidden_backend_is_nowhere(world: StoreRows) -> None:
    world.allowlist("L2:\n  - good/backend\n  - secret/one: {visibility: hidden}\n")
    delivery = world.delivery()
    world.dispatch(delivery, "secret/one")
    world.job(delivery, "success", downstream="secret/one")
    world.effect("parked", "secret/one")
    world.change("job", "secret/one")
    now = world.clock.now()
    summary = await world.views.summary(UPSTREAM, Span.FORTNIGHT, now)
    assert [str(each.name) for each in summary.backends] == ["good/backend"]
    with pytest.raises(NotFound):
        await page_of(world, RepoName("secret/one"))
    with pytest.raises(NotFound):
        await world.views.jobs(JobQuery(upstream=UPSTREAM, downstream=RepoName("secret/one")))
    assert (await world.views.jobs(JobQuery(upstream=UPSTREAM))).jobs == ()
    assert (await world.views.delivery(UPSTREAM, delivery)).dispatches == ()
    assert (await world.views.effects(UPSTREAM, now)).parked == ()
    assert [str(each.name) for each in (await world.views.allowlist(UPSTREAM)).backends] == ["good/backend"]
    changes = await world.views.changes(0, 500)
    assert changes.items == ()
    assert changes.upto == 1


async def test_a_backend_that_shows_its_name_shows_nothing_else(world: StoreRows) -> None:
    world.allowlist("L2:\n  - shy/one: {visibility: name, oncalls: [ada], hardware: secret}\n")
    delivery = world.delivery()
    world.dispatch(delivery, "shy/one")
    world.job(delivery, "failure", downstream="shy/one")
    shy = RepoName("shy/one")
    page = await page_of(world, shy)
    assert (page.summary.level, page.summary.name_only) == (Level.L2, True)
    assert (page.summary.figures, page.summary.sent, page.summary.oncalls) == (None, 0, ())
    assert (page.matrix, page.failures, page.jobs, page.levels) == (Matrix(), (), (), ())
    assert (await world.views.jobs(JobQuery(upstream=UPSTREAM, downstream=shy))).jobs == ()
    assert (await world.views.delivery(UPSTREAM, delivery)).dispatches == ()


async def test_an_l1_backend_shows_dispatches_only(world: StoreRows) -> None:
    world.allowlist()
    delivery = world.delivery()
    world.dispatch(delivery, "listen/only", level=1)
    world.job(delivery, "failure", downstream="listen/only")
    only = RepoName("listen/only")
    page = await page_of(world, only)
    assert page.summary.figures is None
    assert (page.summary.sent, len(page.matrix.rows), page.matrix.columns) == (1, 1, ())
    assert (page.jobs, page.failures) == ((), ())


async def test_a_backend_that_stops_answering_is_marked_silent(world: StoreRows) -> None:
    world.allowlist()
    world.dispatch(world.delivery(), "quiet/backend", hours_ago=2)
    world.dispatch(world.delivery(), "flaky/backend", hours_ago=0.2)
    assert (await numbers(world, RepoName("quiet/backend"))).silent
    assert not (await numbers(world, RepoName("flaky/backend"))).silent
    first = world.delivery()
    world.dispatch(first, hours_ago=50)
    world.job(first, hours_ago=49)
    for hours_ago in (8, 7, 6):
        assert not (await numbers(world)).silent
        world.dispatch(world.delivery(), hours_ago=hours_ago)
    assert (await numbers(world)).silent


async def test_the_matrix_has_a_row_per_dispatch_and_a_column_per_job(world: StoreRows) -> None:
    world.allowlist()
    row = {"upstream": UPSTREAM.key, "number": 7, "head_sha": "f" * 40, "updated_at": 0, "is_open": 1}
    more = {"draft": 0, "labels": "[]", "base_ref": "main", "title": "Fuse it", "author": "ada"}
    world.add(main_tables.pulls, {**row, **more})
    older, newer = world.delivery(hours_ago=5), world.delivery(hours_ago=2)
    world.dispatch(older, hours_ago=5)
    world.dispatch(newer, hours_ago=2)
    for shard in range(3):
        world.job(
            older,
            "failure",
            job_name=f"shard {shard}",
            failed_tests='[{"name":"t","file":null,"message":"m"}]',
        )
    world.job(newer, "success", job_name="shard 1")
    world.job(newer, None, job_name="shard 1", workflow="other.yml", workflow_name="Nightly")
    page = await page_of(world)
    assert [column.job_name for column in page.matrix.columns] == ["shard 0", "shard 1", "shard 2", "shard 1"]
    assert [[cell and cell.state.value for cell in row.cells] for row in page.matrix.rows] == [
        [None, "completed", None, "in_progress"],
        ["completed", "completed", "completed", None],
    ]
    assert page.matrix.rows[0].title == "Fuse it"
    assert [job.failed_tests[0].message for job in page.failures] == ["m"] * 3
    assert page.summary.name.full_name == "Good/Backend"


async def test_pages_of_jobs_hold_each_job_once(world: StoreRows) -> None:
    world.allowlist()
    delivery = world.delivery()
    for downstream in ("good/backend", "flaky/backend"):
        for number in range(7):
            world.job(delivery, downstream=downstream, job_name=f"job {number}", hours_ago=2)
    found: list[tuple[str, str]] = []
    after: tuple[str | int, ...] | None = None
    while True:
        page = await world.views.jobs(JobQuery(upstream=UPSTREAM, after=after, limit=4))
        found += [(job.downstream, job.job_name) for job in page.jobs]
        after = page.next
        if after is None:
            break
    assert len(found) == len(set(found)) == 14


async def test_jobs_are_filtered(world: StoreRows) -> None:
    world.allowlist()
    one, two = world.delivery(number=7), world.delivery(number=8)
    world.dispatch(one, number=7)
    world.dispatch(two, number=8)
    world.job(one, "success")
    world.job(two, None, number=8)

    async def asked(**filters: object) -> list[str]:
        page = await world.views.jobs(JobQuery(upstream=UPSTREAM, **filters))  # type: ignore[arg-type]
        return [job.delivery for job in page.jobs]

    assert await asked(delivery=one) == [one]
    assert await asked(number=8) == [two]
    assert await asked(state=JobState.IN_PROGRESS) == [two]
    assert await asked(downstream=RepoName("GOOD/backend"), number=7, state=JobState.COMPLETED) == [one]
    with pytest.raises(BadRequest):
        await asked(after=("x",))


async def test_deliveries_are_paged_and_keep_their_bodies(world: StoreRows) -> None:
    world.allowlist()
    guids = [world.delivery(hours_ago=1) for _ in range(5)]
    world.dispatch(guids[0])
    world.job(guids[0], "success", attempt=1)
    world.job(guids[0], "success", attempt=2)
    first = await world.views.deliveries(DeliveryQuery(upstream=UPSTREAM, limit=3))
    second = await world.views.deliveries(DeliveryQuery(upstream=UPSTREAM, after=first.next, limit=3))
    assert [each.guid for each in (*first.deliveries, *second.deliveries)] == guids[::-1]
    assert second.next is None
    one = await world.views.delivery(UPSTREAM, guids[0])
    assert [job.attempt for job in one.dispatches[0].jobs] == [1, 2]
    assert "body" not in {name for name in dir(one) if not name.startswith("_")}


async def test_health_counts_the_outbox_and_its_lag(world: StoreRows) -> None:
    world.allowlist()
    world.effect()
    world.effect("parked")
    world.effect("done")
    world.effect(due_at=world.ago(hours=-1))
    world.delivery(hours_ago=3)
    health = (await world.views.summary(UPSTREAM, Span.DAY, world.clock.now())).health
    assert (health.waiting, health.parked, health.lag_s, health.deliveries) == (2, 1, 180.0, 1)
    effects = await world.views.effects(UPSTREAM, world.clock.now())
    assert {(c.state, c.number) for c in effects.counts} == {("waiting", 2), ("parked", 1), ("done", 1)}
    vitals = await world.views.vitals(world.clock.now())
    assert [(each.has_allowlist, each.waiting) for each in vitals] == [(True, 2), (False, 0)]


async def test_a_bad_newest_allowlist_is_shown_beside_the_one_in_force(world: StoreRows) -> None:
    world.allowlist()
    world.allowlist("L9: [a/b]", version=2)
    state = (await world.views.allowlist(UPSTREAM)).state
    assert (state.version, state.newest_is_bad) == (1, True)
    assert state.problems[0].line == 1


async def test_marks_of_a_backend_come_from_its_repository(world: StoreRows) -> None:
    world.allowlist()
    row = {"upstream": UPSTREAM.key, "downstream": GOOD.key, "name": "Good/Backend"}
    world.add(main_tables.repositories, {**row, "suspended_at": 1, "alarm": "identity_changed"})
    world.effect("parked")
    backend = await numbers(world)
    assert (backend.suspended, backend.alarm, backend.parked) == (True, "identity_changed", 1)
