"""Every view returns the same on SQLite and on PostgreSQL: the same values, of the same types, in the same order."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest

from crcr.decide.allowlist.entries import AllowlistReading
from crcr.decide.jobs.refusal import RefusedReport
from crcr.decide.jobs.report import ReportStatus
from crcr.decide.jobs.short_address import short_token
from crcr.decide.model import Conclusion, DeliveryState, JobState, RepoName
from crcr.decide.statistics.figures import CountedAs
from crcr.decide.statistics.window import ResultKind, Span
from crcr.decide.views.backend import BackendQuery, JobKey
from crcr.decide.views.bisections import BisectionQuery, BisectionState
from crcr.decide.views.commit import WaiverState
from crcr.decide.views.culprits import CulpritQuery
from crcr.decide.views.failing import FailingKind, FailingQuery, FailingSort
from crcr.decide.views.failures import FailureQuery, KnownFilter
from crcr.decide.views.grids import CommitListQuery, PullFilter, PullListQuery, PullScope, PullSort
from crcr.decide.views.joining import SandboxQuery
from crcr.decide.views.logs import AuditQuery, DeliveryQuery, EffectQuery, WaiverQuery
from crcr.decide.views.overview import JobQuery
from crcr.decide.views.search import HitKind, SearchQuery
from crcr.demo.history.backends import BackendSpec
from crcr.demo.history.fill import fill_database
from crcr.demo.history.generate import HistoryPlan
from crcr.errors import CrcrError
from crcr.record.jobs.refusals import Refusals
from crcr.record.jobs.sandbox import SandboxJobs
from crcr.record.schema import checks
from crcr.record.store.database import Database, PostgresLocation
from crcr.record.store.times import to_us
from crcr.record.views.logs.effects import STATES
from crcr.record.views.logs.operator import OperatorViews
from crcr.record.views.sql_views import SqlViews
from support.data.clickhouse_feed import OtherRelay
from support.data.events_and_reports import a_caller, a_start
from support.data.random_walk import BACKENDS, RandomWalk
from support.running_relay import place_empty_database
from support.stores.databases import CORE, OTHER, Stores
from support.stores.tables import open_handle, open_table_engine
from support.stores.two_stores import copy_to_postgresql, outline_differences, typed_outline

NOW = datetime(2026, 8, 3, 12, tzinfo=UTC)
HISTORY_UPSTREAM = RepoName("bench/upstream")
LISTED = """
L1: [l/one]
L2: [few/jobs]
L3:
  npu:
    org/backend: [ada]
L4:
  big/backend:
    oncalls: [ada]
    jobs: [lint]
"""
KEY = ("delivery", "workflow", "run_id", "attempt", "job_name")
Query = Any
"""A function of the views and the operator views; mypy cannot infer this type for a lambda with a default."""


@dataclass(frozen=True)
class StorePair:
    """A SQLite file and its copy on PostgreSQL, with the upstream and the time of the queries."""

    path: Path
    url: str
    upstream: RepoName
    now: datetime


def _fill_generated_history(folder: Path) -> StorePair:
    """Nine days of a busy upstream, generated in bulk."""
    path = folder / "past.db"
    backends = (
        BackendSpec("big/backend", 4, 12),
        BackendSpec("org/backend", 3, 4),
        BackendSpec("few/jobs", 2, 2),
        BackendSpec("l/one", 1, 1),
    )
    plan = HistoryPlan(
        upstream=HISTORY_UPSTREAM.key, backends=backends, until=to_us(NOW), days=9, jobs=1_500, all_end=False
    )
    fill_database(path, plan)

    async def read_allowlist() -> None:
        database = open_handle(path)
        stores = Stores.over(database)
        await stores.acts.register_upstreams((HISTORY_UPSTREAM,), NOW)
        await stores.allowlists.take_reading(HISTORY_UPSTREAM, AllowlistReading("test", LISTED), NOW)
        await database.close()

    asyncio.run(read_allowlist())
    return StorePair(path, copy_to_postgresql(path), HISTORY_UPSTREAM, NOW)


def _fill_by_random_walk(folder: Path) -> StorePair:
    """A few hundred random steps through the stores, and acts of people."""
    path = folder / "walk.db"
    place_empty_database(path)

    async def take_steps() -> datetime:
        database = open_handle(path)
        walk = RandomWalk(Stores.over(database), Random(11))
        await walk.begin()
        others = OtherRelay(walk)
        for step in range(350):
            await (others.send_result() if step % 7 == 0 else walk.step())
        await _add_reports_and_acts(walk)
        await database.close()
        return walk.now

    now = asyncio.run(take_steps())
    _add_github_and_maintainer_rows(path, now)
    return StorePair(path, copy_to_postgresql(path), CORE, now)


async def _add_reports_and_acts(walk: RandomWalk) -> None:
    stores, now = walk.stores, walk.now
    refusals = Refusals(stores.database, stores.allowlists, stores.targets, (CORE, OTHER))
    for number in range(6):
        refusal = RefusedReport(
            caller=RepoName("org/one"),
            code="gone",
            detail="d",
            hint="h",
            run_id=str(number),
            job_name="Build",
        )
        await refusals.note(refusal, now - timedelta(seconds=number // 2))
    sandbox = SandboxJobs(stores.database, stores.allowlists, (CORE, OTHER))
    for number in range(9):
        ending = {"status": ReportStatus.COMPLETED, "conclusion": Conclusion.FAILURE} if number % 2 else {}
        caller = a_caller(repository=RepoName(f"Try/Out{number % 3}"), repository_id=70 + number % 3)
        await sandbox.take(a_start(job_name=f"job {number}", **ending), caller, now)
    for number in range(6):
        await stores.acts.pause(CORE, who=f"Ann{number}", now=now, lift=number % 2 == 1)


def _add_github_and_maintainer_rows(path: Path, now: datetime) -> None:
    """Rows that only GitHub and maintainers cause, some with equal times: their order must come from keys."""
    at, engine = to_us(now), open_table_engine(path)
    with engine.begin() as connection:
        pulls = connection.exec_driver_sql("SELECT number, head_sha FROM pulls ORDER BY number").fetchall()
        for index, (number, sha) in enumerate(pulls):
            title = ("Fuse Everything", "fuse ÉVERYTHING", "100% of_it", "İstanbul")[index % 4]
            connection.exec_driver_sql(
                "UPDATE pulls SET title = ?, author = ?, is_open = ? WHERE number = ?",
                (title, ("Ada", "grace")[index % 2], int(index % 3 > 0), number),
            )
            state = ("pending", "passed", "failed")[index % 3]
            gate = {"head_sha": sha, "upstream": CORE.key, "state": state, "title": "t", "judged_at": at}
            connection.execute(checks.gates.insert().prefix_with("OR IGNORE"), gate)
            for downstream in ("org/four", "org/one"):
                waiver = {"upstream": CORE.key, "number": number, "head_sha": sha, "downstream": downstream}
                waiver_facts = {
                    "who": "Mia",
                    "reason": "known",
                    "created_at": at - index // 2,
                    "until_at": None,
                }
                connection.execute(checks.waivers.insert(), {**waiver, **waiver_facts})
            for name in ("gate", "org/four"):
                check = {"upstream": CORE.key, "head_sha": sha, "name": name, "round": 1, "tier": "backend"}
                shown = {"status": "completed", "conclusion": "success", "title": "t", "digest": ""}
                more = {
                    "incarnation": "1",
                    "check_run_id": index + 1,
                    "downstream": name if "/" in name else None,
                }
                connection.execute(
                    checks.checks.insert().prefix_with("OR IGNORE"), {**check, **shown, **more}
                )
    engine.dispose()


@pytest.fixture(
    scope="module", params=[_fill_generated_history, _fill_by_random_walk], ids=["a past", "a walk"]
)
def store_pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> StorePair:
    pair: StorePair = request.param(tmp_path_factory.mktemp("twins"))
    return pair


def _open_views(database: Database, upstream: RepoName) -> tuple[SqlViews, OperatorViews]:
    allowlists = Stores.over(database).allowlists
    return SqlViews(database, allowlists, (upstream,), ingests=True, sandbox=True), OperatorViews(
        database, allowlists
    )


async def find_differences(store_pair: StorePair, queries: dict[str, Query]) -> str:
    stores: list[Database] = [open_handle(store_pair.path), open_handle(PostgresLocation(store_pair.url))]
    different: list[str] = []
    for everything in (False, True):
        for name, query in queries.items():
            outlines = []
            for store in stores:
                views, operator = _open_views(store, store_pair.upstream)
                outlines.append(await _answer(query, views.for_admins() if everything else views, operator))
            different += [
                f"{name} {everything}: {difference}" for difference in outline_differences(*outlines)[:3]
            ]
    for store in stores:
        await store.close()
    return "\n".join(different)


async def _answer(query: Query, views: SqlViews, operator: OperatorViews) -> Any:
    try:
        return typed_outline(await query(views, operator))
    except CrcrError as refusal:
        return type(refusal).__name__, str(refusal)


def rows(store_pair: StorePair, sql: str) -> list[Any]:
    engine = open_table_engine(store_pair.path)
    with engine.begin() as connection:
        table_rows = connection.exec_driver_sql(sql).fetchall()
    engine.dispose()
    return [row[0] if len(row) == 1 else tuple(row) for row in table_rows]


def names(store_pair: StorePair) -> list[RepoName]:
    history_backends = ("big/backend", "org/backend", "few/jobs", "l/one")
    return [
        RepoName(name) for name in (history_backends if store_pair.upstream == HISTORY_UPSTREAM else BACKENDS)
    ]


async def test_summaries_metrics_and_badges_are_equal_on_both_databases(store_pair: StorePair) -> None:
    up, now = store_pair.upstream, store_pair.now
    queries: dict[str, Query] = {}
    for span, kind in product((Span.DAY, Span.WEEK, Span.QUARTER), ResultKind):
        queries[f"summary {span} {kind}"] = lambda v, _, s=span, k=kind: v.summary(up, s, now, kind=k)
        queries[f"metrics {span} {kind}"] = lambda v, _, s=span, k=kind: v.metrics(up, s, now, kind=k)
        for name in names(store_pair):
            queries[f"badge {name} {span} {kind}"] = lambda v, _, n=name, s=span, k=kind: v.badge(
                up, n, k, s, now
            )
    assert await find_differences(store_pair, queries) == ""


def _queries(store_pair: StorePair) -> Iterator[BackendQuery]:
    for name, kind in product(names(store_pair), ResultKind):
        yield BackendQuery(
            upstream=store_pair.upstream, downstream=name, kind=kind, span=Span.QUARTER, limit=9
        )
    of_pulls = BackendQuery(
        upstream=store_pair.upstream, downstream=names(store_pair)[0], span=Span.QUARTER, limit=9
    )
    of_ingested = replace(of_pulls, kind=ResultKind.INGESTED)
    for query in (of_pulls, of_ingested, replace(of_pulls, downstream=names(store_pair)[3])):
        yield from (
            replace(query, limit=3),
            replace(query, older=True),
            replace(query, result=CountedAs.FAILURE),
        )
        yield from (
            replace(query, only_failing=True),
            replace(query, day=(store_pair.now - timedelta(days=1)).date()),
        )
        yield from (
            replace(query, author="ADA"),
            replace(query, author="mira-holt"),
            replace(query, job="BUILD"),
        )
        for text in ("FUSE", "é", "ÉVERY", "100%", "f_it", "1", "#1", "fix"):
            yield replace(query, text=text, older=True)


async def test_backend_pages_are_equal_on_both_databases(store_pair: StorePair) -> None:
    queries: dict[str, Query] = {
        str(query): lambda v, _, q=query: v.backend(q, store_pair.now) for query in _queries(store_pair)
    }
    assert await find_differences(store_pair, queries) == ""


async def test_pull_requests_and_commits_are_equal_on_both_databases(store_pair: StorePair) -> None:
    up, now = store_pair.upstream, store_pair.now
    queries: dict[str, Query] = {}
    for number in rows(store_pair, "SELECT number FROM pulls ORDER BY number LIMIT 25"):
        queries[f"pull {number}"] = lambda v, _, n=number: v.pull(up, n, now)
    shas = rows(
        store_pair, "SELECT DISTINCT head_sha FROM jobs WHERE head_sha IS NOT NULL ORDER BY head_sha LIMIT 40"
    )
    for sha in shas:
        queries[f"commit {sha}"] = lambda v, _, s=sha: v.commit(up, s, now)
    assert len(queries) > 10
    assert await find_differences(store_pair, queries) == ""


async def test_jobs_are_equal_on_both_databases(store_pair: StorePair) -> None:
    up = store_pair.upstream
    queries: dict[str, Query] = {}
    for state in (None, *JobState):
        queries[f"jobs {state}"] = lambda v, _, s=state: v.jobs(JobQuery(upstream=up, state=s, limit=20))
    for number in rows(store_pair, "SELECT number FROM pulls ORDER BY number LIMIT 5"):
        queries[f"jobs of {number}"] = lambda v, _, n=number: v.jobs(JobQuery(upstream=up, number=n))
    for delivery in rows(store_pair, "SELECT DISTINCT delivery FROM jobs ORDER BY delivery LIMIT 5"):
        queries[f"jobs of {delivery}"] = lambda v, _, d=delivery: v.jobs(JobQuery(upstream=up, delivery=d))
    for downstream, *rest in rows(
        store_pair,
        f"SELECT downstream, {', '.join(KEY)} FROM jobs ORDER BY 1, 2, 3, 4, 5 LIMIT 30",  # noqa: S608  ours
    ):
        queries[f"{downstream} {rest}"] = lambda v, _, d=downstream, r=rest: v.job(
            up, RepoName(d), JobKey(**dict(zip(KEY, r, strict=True)))
        )
        queries[f"short {downstream} {rest}"] = lambda v, _, d=downstream, r=rest: v.job_by_short_token(
            up, short_token(up.key, d, tuple(r)) or ""
        )
    for name in names(store_pair):
        queries[f"jobs of {name}"] = lambda v, _, n=name: v.jobs(JobQuery(upstream=up, downstream=n, limit=7))
        queries[f"setup {name}"] = lambda v, _, n=name: v.setup(up, n, store_pair.now)
        queries[f"refusals {name}"] = lambda v, _, n=name: v.refusals(up, n, store_pair.now)
    assert await find_differences(store_pair, queries) == ""


async def test_failure_groups_are_equal_on_both_databases(store_pair: StorePair) -> None:
    up, now = store_pair.upstream, store_pair.now
    queries: dict[str, Query] = {}
    for limit, known in product((2, 50), (None, *KnownFilter)):
        query = FailureQuery(upstream=up, known=known, limit=limit)
        queries[f"groups {limit} {known}"] = lambda v, _, q=query: v.failures(q, now)
        queries[f"groups of one {limit} {known}"] = lambda v, _, q=query: v.failures(
            replace(q, backend="ORG", text="E"), now
        )
    for fingerprint in rows(store_pair, "SELECT DISTINCT fingerprint FROM failure_groups ORDER BY 1 LIMIT 5"):
        queries[f"group {fingerprint}"] = lambda v, _, f=fingerprint: v.failure_group(
            up, f, now, after=None, limit=3
        )
    assert await find_differences(store_pair, queries) == ""


async def test_log_lists_are_equal_on_both_databases(store_pair: StorePair) -> None:
    up, now = store_pair.upstream, store_pair.now
    queries: dict[str, Query] = {
        "effects": lambda v, _: v.effects(up, now),
        "allowlist": lambda v, _: v.allowlist(up),
        "vitals": lambda v, _: v.vitals(now),
        "health": lambda v, _: v.health(now),
        "newest": lambda v, _: v.changes(None, 10),
        "changes": lambda v, _: v.changes(0, 1_000),
        "some changes": lambda v, _: v.changes(5, 10),
        "waivers": lambda v, _: v.waivers(up, now, after=None, limit=5),
        "sandbox": lambda v, _: v.sandbox(SandboxQuery(), now),
        "sandbox of": lambda v, _: v.sandbox(SandboxQuery(repository="TRY/out1", limit=2), now),
        "sandbox by id": lambda v, _: v.sandbox(SandboxQuery(repository="71"), now),
    }
    for state in (None, *STATES):
        queries[f"effects {state}"] = lambda v, _, s=state: v.effect_page(
            EffectQuery(upstream=up, state=s, limit=9)
        )
    for state in (None, *DeliveryState):
        query = DeliveryQuery(upstream=up, state=state, limit=9)
        queries[f"deliveries {state}"] = lambda v, _, q=query: v.deliveries(q)
        queries[f"old {state}"] = lambda v, _, q=query: v.deliveries(replace(q, oldest_first=True))
    for kind, sort in product(FailingKind, FailingSort):
        failing_query = FailingQuery(upstream=up, kind=kind, sort=sort, limit=5)
        queries[f"failing {kind} {sort}"] = lambda v, _, q=failing_query: v.failing(q, now)
        queries[f"failing to the operator {kind} {sort}"] = lambda _, o, q=failing_query: o.failing(q, now)
    for scope, order, only in product(PullScope, PullSort, (None, *PullFilter)):
        pull_query = PullListQuery(upstream=up, scope=scope, sort=order, only=only, text="e", limit=20)
        queries[f"pulls {scope} {order} {only}"] = lambda v, _, q=pull_query: v.pulls(q)
    commit_query = CommitListQuery(upstream=up, opened=(RepoName("org/backend"), RepoName("big/backend")))
    queries["commits"] = lambda v, _: v.commits(commit_query)
    for job in (None, "build"):
        culprit_query = CulpritQuery(upstream=up, job=job)
        queries[f"culprits of {job}"] = lambda v, _, q=culprit_query: v.culprits(q, now)
    for state in (None, *BisectionState):
        bisection_query = BisectionQuery(upstream=up, state=state, limit=4)
        queries[f"bisections {state}"] = lambda v, _, q=bisection_query: v.bisections(q)
    for waived in (None, *WaiverState):
        waiver_query = WaiverQuery(upstream=up, state=waived, limit=4)
        queries[f"waivers {waived}"] = lambda v, _, q=waiver_query: v.waiver_page(q, now)
        queries[f"waivers by {waived}"] = lambda v, _, q=waiver_query: v.waiver_page(
            replace(q, who="MI", newest_first=True), now
        )
    for who, act in product((None, "ANN", "b"), (None, "pause", "Resume")):
        audit_query = AuditQuery(upstream=up, who=who, act=act, limit=4)
        queries[f"audit {who} {act}"] = lambda v, _, q=audit_query: v.audit(q)
        queries[f"old audit {who} {act}"] = lambda v, _, q=audit_query: v.audit(replace(q, oldest_first=True))
    assert await find_differences(store_pair, queries) == ""


async def test_searches_are_equal_on_both_databases(store_pair: StorePair) -> None:
    shas = rows(
        store_pair, "SELECT head_sha FROM deliveries WHERE head_sha IS NOT NULL ORDER BY guid LIMIT 3"
    )
    texts = (
        *(
            "fuse",
            "FUSE",
            "ÉVERY",
            "every",
            "İstan",
            "100%",
            "of_it",
            "ada",
            "@GRACE",
            "1",
            "#2",
            "build",
            "BUILD",
        ),
        *("org", "lint", "0000000", "x\0y", "scatter", "mira-holt", "CI", *shas, *(sha[:9] for sha in shas)),
    )
    search_queries = [SearchQuery(upstream=store_pair.upstream, text=text) for text in texts]
    queries: dict[str, Query] = {}
    for query in search_queries:
        queries[query.text] = lambda v, _, q=query: v.search(q, store_pair.now)
        queries[f"{query.text} while typing"] = lambda v, _, q=query: v.suggest(q, store_pair.now)
    for text, kind in product(("e", "te", "er"), HitKind):
        kind_query = SearchQuery(upstream=store_pair.upstream, text=text, kind=kind)
        queries[f"{kind} {text}"] = lambda v, _, q=kind_query: v.search(q, store_pair.now)
    assert await find_differences(store_pair, queries) == ""


async def test_operator_views_are_equal_on_both_databases(store_pair: StorePair) -> None:
    up = store_pair.upstream
    queries: dict[str, Query] = {
        "repositories": lambda _, o: o.repositories(up),
        "audit": lambda _, o: o.audit(up, limit=7),
        "allowlist": lambda _, o: o.allowlist(up),
        "deliveries": lambda _, o: o.deliveries(up, state=None, limit=20),
    }
    for guid in rows(store_pair, "SELECT guid FROM deliveries ORDER BY guid LIMIT 25"):
        queries[f"delivery {guid}"] = lambda _, o, g=guid: o.delivery(g, None)
        queries[f"page of {guid}"] = lambda v, _, g=guid: v.delivery(up, g)
        queries[f"effects of {guid}"] = lambda v, _, g=guid: v.effect_page(
            EffectQuery(upstream=up, delivery=g)
        )
    for parked, kind in product((False, True), (None, "send_dispatch")):
        queries[f"effects {parked} {kind}"] = lambda _, o, p=parked, k=kind: o.effects(
            up, parked=p, target=None, kind=k, limit=9
        )
    assert await find_differences(store_pair, queries) == ""


def test_the_comparison_reports_differences_in_type() -> None:
    assert outline_differences(typed_outline({"a": (1, 2.0)}), typed_outline({"a": (True, 2)})) != []
    assert outline_differences(typed_outline({"a": (1, 2.0)}), typed_outline({"a": [1, 2.0]})) == []
