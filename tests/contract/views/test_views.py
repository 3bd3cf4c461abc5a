"""The views on a real store: counting, visibility and paging."""

import pytest

from crcr.decide.model import Conclusion, JobState, Level, RepoName
from crcr.decide.statistics.figures import LeftOut
from crcr.decide.statistics.window import Span
from crcr.decide.views.backend import BackendPage, BackendQuery, Matrix
from crcr.decide.views.logs import DeliveryQuery
from crcr.decide.views.overview import BackendSummary, JobQuery
from crcr.errors import BadRequest, NotFound
from crcr.record.schema import main_tables
from support.data.store_rows import OTHER, UPSTREAM, StoreRows

GOOD = RepoName("good/backend")


async def backend_summary(
    store: StoreRows, name: RepoName = GOOD, span: Span = Span.FORTNIGHT
) -> BackendSummary:
    store.sum_up()
    summary = await store.views.summary(UPSTREAM, span, store.clock.now())
    return next(backend for backend in summary.backends if backend.name == name)


async def page_of(store: StoreRows, name: RepoName = GOOD) -> BackendPage:
    store.sum_up()
    return await store.views.backend(BackendQuery(upstream=UPSTREAM, downstream=name), store.clock.now())


def counts(backend: BackendSummary) -> tuple[int, int, int, int]:
    assert backend.figures is not None
    tally = backend.figures.tally
    return tally.success, tally.failure, tally.running, tally.other


async def test_an_empty_store_shows_no_backend_and_no_allowlist(store: StoreRows) -> None:
    summary = await store.views.summary(UPSTREAM, Span.FORTNIGHT, store.clock.now())
    assert summary.levels == ()
    assert summary.allowlist.version is None
    assert summary.health.lag_s is None
    assert summary.cursor == 0


async def test_a_backend_that_sent_nothing_has_no_pass_rate(store: StoreRows) -> None:
    store.allowlist()
    backend = await backend_summary(store)
    assert backend.figures is not None
    assert backend.figures.tally.pass_rate is None
    assert backend.figures.last_result is None
    assert not backend.silent


async def test_each_job_counts_once_by_its_conclusion(store: StoreRows) -> None:
    store.allowlist()
    delivery = store.delivery()
    store.dispatch(delivery)
    for conclusion in Conclusion:
        store.job(delivery, conclusion.value, job_name=conclusion.value)
    store.job(delivery, None, job_name="still running")
    store.job(delivery, None, job_name="silent", state="timed_out", swept_at=store.ago(hours=1))
    backend = await backend_summary(store)
    assert counts(backend) == (1, 5, 1, 3)
    assert backend.figures is not None
    assert backend.figures.tally.pass_rate == pytest.approx(1 / 6)


async def test_only_the_highest_attempt_of_a_job_counts(store: StoreRows) -> None:
    store.allowlist()
    delivery = store.delivery()
    store.dispatch(delivery)
    store.job(delivery, "failure", attempt=1)
    store.job(delivery, "success", attempt=2)
    store.job(delivery, "success", attempt=1, job_name="not run again")
    backend = await backend_summary(store)
    assert counts(backend) == (2, 0, 0, 0)
    assert backend.figures is not None
    assert backend.figures.left_out == LeftOut(earlier=1)


async def test_superseded_runs_superseded_commits_and_test_dispatches_are_not_counted(
    store: StoreRows,
) -> None:
    store.allowlist()
    current, old, by_hand = store.delivery(), store.delivery(), store.delivery()
    store.dispatch(current)
    store.dispatch(old, superseded_at=store.ago(hours=1))
    store.dispatch(by_hand, test=1)
    store.job(current, "failure", run_id="1", superseded=1)
    store.job(current, "success", run_id="2")
    store.job(old, "failure")
    store.job(by_hand, "failure")
    backend = await backend_summary(store)
    assert counts(backend) == (1, 0, 0, 0)
    assert backend.figures is not None
    assert backend.figures.left_out == LeftOut(superseded=2)
    page = await page_of(store)
    assert page.summary == backend
    assert page.failures == ()


async def test_figures_count_only_the_range_and_the_strip_sums_to_the_total(store: StoreRows) -> None:
    store.allowlist()
    delivery = store.delivery(hours_ago=30)
    store.dispatch(delivery, hours_ago=30)
    store.job(delivery, "failure", job_name="old", hours_ago=30, queue_s=5.0)
    store.job(delivery, "success", job_name="new", hours_ago=1, queue_s=10.0, execution_s=4.0)
    day, fortnight = await backend_summary(store, span=Span.DAY), await backend_summary(store)
    assert counts(day) == (1, 0, 0, 0)
    assert counts(fortnight) == (1, 1, 0, 0)
    assert fortnight.figures is not None
    assert fortnight.figures.queue.average_s == pytest.approx(7.5)
    assert fortnight.figures.execution.average_s == pytest.approx(4.0)
    assert sum(part.total for part in fortnight.figures.strip) == 2
    assert fortnight.figures.strip[-2].success == 1  # the clock is at midnight: an hour ago was yesterday


async def test_two_upstreams_are_counted_and_read_separately(store: StoreRows) -> None:
    store.allowlist()
    store.allowlist("L2: [good/backend]", OTHER)
    mine, theirs = store.delivery(), store.delivery(OTHER)
    store.dispatch(mine)
    store.dispatch(theirs, upstream=OTHER.key)
    store.job(mine, "success")
    store.job(theirs, "failure", upstream=OTHER.key)
    assert counts(await backend_summary(store)) == (1, 0, 0, 0)
    other = await store.views.summary(OTHER, Span.FORTNIGHT, store.clock.now())
    assert counts(other.backends[0]) == (0, 1, 0, 0)
    with pytest.raises(NotFound):
        await store.views.delivery(OTHER, mine)


async def test_a_hidden_backend_is_shown_in_no_view(store: StoreRows) -> None:
    store.allowlist("L2:\n  - good/backend\n  - secret/one: {visibility: hidden}\n")
    delivery = store.delivery()
    store.dispatch(delivery, "secret/one")
    store.job(delivery, "success", downstream="secret/one")
    store.effect("parked", "secret/one")
    store.change("job", "secret/one")
    now = store.clock.now()
    summary = await store.views.summary(UPSTREAM, Span.FORTNIGHT, now)
    assert [str(backend.name) for backend in summary.backends] == ["good/backend"]
    with pytest.raises(NotFound):
        await page_of(store, RepoName("secret/one"))
    with pytest.raises(NotFound):
        await store.views.jobs(JobQuery(upstream=UPSTREAM, downstream=RepoName("secret/one")))
    assert (await store.views.jobs(JobQuery(upstream=UPSTREAM))).jobs == ()
    assert (await store.views.delivery(UPSTREAM, delivery)).dispatches == ()
    assert (await store.views.effects(UPSTREAM, now)).parked == ()
    assert [str(backend.name) for backend in (await store.views.allowlist(UPSTREAM)).backends] == [
        "good/backend"
    ]
    changes = await store.views.changes(0, 500)
    assert changes.items == ()
    assert changes.upto == 1


async def test_a_name_only_backend_shows_only_its_name_and_level(store: StoreRows) -> None:
    store.allowlist("L2:\n  - shy/one: {visibility: name, oncalls: [ada], hardware: secret}\n")
    delivery = store.delivery()
    store.dispatch(delivery, "shy/one")
    store.job(delivery, "failure", downstream="shy/one")
    shy = RepoName("shy/one")
    page = await page_of(store, shy)
    assert (page.summary.level, page.summary.name_only) == (Level.L2, True)
    assert (page.summary.figures, page.summary.sent, page.summary.oncalls) == (None, 0, ())
    assert (page.matrix, page.failures, page.jobs, page.levels) == (Matrix(), (), (), ())
    assert (await store.views.jobs(JobQuery(upstream=UPSTREAM, downstream=shy))).jobs == ()
    assert (await store.views.delivery(UPSTREAM, delivery)).dispatches == ()


async def test_an_l1_backend_shows_dispatches_only(store: StoreRows) -> None:
    store.allowlist()
    delivery = store.delivery()
    store.dispatch(delivery, "listen/only", level=1)
    store.job(delivery, "failure", downstream="listen/only")
    only = RepoName("listen/only")
    page = await page_of(store, only)
    assert page.summary.figures is None
    assert (page.summary.sent, len(page.matrix.rows), page.matrix.columns) == (1, 1, ())
    assert (page.jobs, page.failures) == ((), ())


async def test_a_backend_that_stops_reporting_is_marked_silent(store: StoreRows) -> None:
    store.allowlist()
    store.dispatch(store.delivery(), "quiet/backend", hours_ago=2)
    store.dispatch(store.delivery(), "flaky/backend", hours_ago=0.2)
    assert (await backend_summary(store, RepoName("quiet/backend"))).silent
    assert not (await backend_summary(store, RepoName("flaky/backend"))).silent
    first = store.delivery()
    store.dispatch(first, hours_ago=50)
    store.job(first, hours_ago=49)
    for hours_ago in (8, 7, 6):
        assert not (await backend_summary(store)).silent
        store.dispatch(store.delivery(), hours_ago=hours_ago)
    assert (await backend_summary(store)).silent


async def test_the_matrix_has_a_row_per_dispatch_and_a_column_per_job(store: StoreRows) -> None:
    store.allowlist()
    row = {"upstream": UPSTREAM.key, "number": 7, "head_sha": "f" * 40, "updated_at": 0, "is_open": 1}
    more = {"draft": 0, "labels": "[]", "base_ref": "main", "title": "Fuse it", "author": "ada"}
    store.add(main_tables.pulls, {**row, **more})
    older, newer = store.delivery(hours_ago=5), store.delivery(hours_ago=2)
    store.dispatch(older, hours_ago=5)
    store.dispatch(newer, hours_ago=2)
    for shard in range(3):
        store.job(
            older,
            "failure",
            job_name=f"shard {shard}",
            failed_tests='[{"name":"t","file":null,"message":"m"}]',
        )
    store.job(newer, "success", job_name="shard 1")
    store.job(newer, None, job_name="shard 1", workflow="other.yml", workflow_name="Nightly")
    page = await page_of(store)
    assert [column.job_name for column in page.matrix.columns] == ["shard 0", "shard 1", "shard 2", "shard 1"]
    assert [[cell and cell.state.value for cell in row.cells] for row in page.matrix.rows] == [
        [None, "completed", None, "in_progress"],
        ["completed", "completed", "completed", None],
    ]
    assert page.matrix.rows[0].title == "Fuse it"
    assert [job.failed_tests[0].message for job in page.failures] == ["m"] * 3
    assert page.summary.name.full_name == "Good/Backend"


async def test_pages_of_jobs_contain_each_job_once(store: StoreRows) -> None:
    store.allowlist()
    delivery = store.delivery()
    for downstream in ("good/backend", "flaky/backend"):
        for number in range(7):
            store.job(delivery, downstream=downstream, job_name=f"job {number}", hours_ago=2)
    jobs: list[tuple[str, str]] = []
    after: tuple[str | int, ...] | None = None
    while True:
        page = await store.views.jobs(JobQuery(upstream=UPSTREAM, after=after, limit=4))
        jobs += [(job.downstream, job.job_name) for job in page.jobs]
        after = page.next
        if after is None:
            break
    assert len(jobs) == len(set(jobs)) == 14


async def test_jobs_can_be_filtered(store: StoreRows) -> None:
    store.allowlist()
    one, two = store.delivery(number=7), store.delivery(number=8)
    store.dispatch(one, number=7)
    store.dispatch(two, number=8)
    store.job(one, "success")
    store.job(two, None, number=8)

    async def find_deliveries(**filters: object) -> list[str]:
        page = await store.views.jobs(JobQuery(upstream=UPSTREAM, **filters))  # type: ignore[arg-type]
        return [job.delivery for job in page.jobs]

    assert await find_deliveries(delivery=one) == [one]
    assert await find_deliveries(number=8) == [two]
    assert await find_deliveries(state=JobState.IN_PROGRESS) == [two]
    assert await find_deliveries(downstream=RepoName("GOOD/backend"), number=7, state=JobState.COMPLETED) == [
        one
    ]
    with pytest.raises(BadRequest):
        await find_deliveries(after=("x",))


async def test_deliveries_are_paged_and_do_not_expose_their_bodies(store: StoreRows) -> None:
    store.allowlist()
    guids = [store.delivery(hours_ago=1) for _ in range(5)]
    store.dispatch(guids[0])
    store.job(guids[0], "success", attempt=1)
    store.job(guids[0], "success", attempt=2)
    first = await store.views.deliveries(DeliveryQuery(upstream=UPSTREAM, limit=3))
    second = await store.views.deliveries(DeliveryQuery(upstream=UPSTREAM, after=first.next, limit=3))
    assert [delivery.guid for delivery in (*first.deliveries, *second.deliveries)] == guids[::-1]
    assert second.next is None
    detail = await store.views.delivery(UPSTREAM, guids[0])
    assert [job.attempt for job in detail.dispatches[0].jobs] == [1, 2]
    assert "body" not in {name for name in dir(detail) if not name.startswith("_")}


async def test_health_counts_the_outbox_and_its_lag(store: StoreRows) -> None:
    store.allowlist()
    store.effect()
    store.effect("parked")
    store.effect("done")
    store.effect(due_at=store.ago(hours=-1))
    store.delivery(hours_ago=3)
    health = (await store.views.summary(UPSTREAM, Span.DAY, store.clock.now())).health
    assert (health.waiting, health.parked, health.lag_s, health.deliveries) == (2, 1, 180.0, 1)
    effects = await store.views.effects(UPSTREAM, store.clock.now())
    assert {(c.state, c.number) for c in effects.counts} == {("waiting", 2), ("parked", 1), ("done", 1)}
    vitals = await store.views.vitals(store.clock.now())
    assert [(upstream_vitals.has_allowlist, upstream_vitals.waiting) for upstream_vitals in vitals] == [
        (True, 2),
        (False, 0),
    ]


async def test_a_bad_newest_allowlist_is_shown_next_to_the_one_in_force(store: StoreRows) -> None:
    store.allowlist()
    store.allowlist("L9: [a/b]", version=2)
    state = (await store.views.allowlist(UPSTREAM)).state
    assert (state.version, state.newest_is_bad) == (1, True)
    assert state.problems[0].line == 1


async def test_suspension_alarm_and_parked_count_of_a_backend_are_shown(store: StoreRows) -> None:
    store.allowlist()
    row = {"upstream": UPSTREAM.key, "downstream": GOOD.key, "name": "Good/Backend"}
    store.add(main_tables.repositories, {**row, "suspended_at": 1, "alarm": "identity_changed"})
    store.effect("parked")
    backend = await backend_summary(store)
    assert (backend.suspended, backend.alarm, backend.parked) == (True, "identity_changed", 1)
