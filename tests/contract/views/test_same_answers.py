"""Every view gives the same answer on SQLite and on PostgreSQL: the same values, of the same types, in the same order."""

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
PAST = RepoName("bench/upstream")
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
Asked = Any
"""A function of the views and the operator's views; mypy cannot infer a lambda with a default as one."""


@dataclass(frozen=True)
class Twins:
    """A file and its copy on the server, with what is to be asked of both."""

    path: Path
    url: str
    upstream: RepoName
    now: datetime


def _a_past(folder: Path) -> Twins:
    """Weeks of a busy upstream, made up in bulk."""
    path = folder / "past.db"
    backends = (
        BackendSpec("big/backend", 4, 12),
        BackendSpec("org/backend", 3, 4),
        BackendSpec("few/jobs", 2, 2),
        BackendSpec("l/one", 1, 1),
    )
    plan = HistoryPlan(
        upstream=PAST.key, backends=backends, until=to_us(NOW), days=9, jobs=1_500, all_end=False
    )
    fill_database(path, plan)

    async def listed() -> None:
        database = open_handle(path)
        stores = Stores.over(database)
        await stores.acts.register_upstreams((PAST,), NOW)
        await stores.allowlists.take_reading(PAST, AllowlistReading("test", LISTED), NOW)
        await database.close()

    asyncio.run(listed())
    return Twins(path, copy_to_postgresql(path), PAST, NOW)


def _a_walk(folder: Path) -> Twins:
    """A few hundred things that happened one after the other, through the stores, and what people did beside them."""
    path = folder / "walk.db"
    place_empty_database(path)

    async def walked() -> datetime:
        database = open_handle(path)
        walk = RandomWalk(Stores.over(database), Random(11))
        await walk.begin()
        others = OtherRelay(walk)
        for step in range(350):
            await (others.send_result() if step % 7 == 0 else walk.step())
        await _beside(walk)
        await database.close()
        return walk.now

    now = asyncio.run(walked())
    _by_hand(path, now)
    return Twins(path, copy_to_postgresql(path), CORE, now)


async def _beside(walk: RandomWalk) -> None:
    stores, now = walk.stores, walk.now
    book = Refusals(stores.database, stores.allowlists, stores.targets, (CORE, OTHER))
    for number in range(6):
        said = RefusedReport(
            caller=RepoName("org/one"),
            code="gone",
            detail="d",
            hint="h",
            run_id=str(number),
            job_name="Build",
        )
        await book.note(said, now - timedelta(seconds=number // 2))
    box = SandboxJobs(stores.database, stores.allowlists, (CORE, OTHER))
    for number in range(9):
        ended = {"status": ReportStatus.COMPLETED, "conclusion": Conclusion.FAILURE} if number % 2 else {}
        who = a_caller(repository=RepoName(f"Try/Out{number % 3}"), repository_id=70 + number % 3)
        await box.take(a_start(job_name=f"job {number}", **ended), who, now)
    for number in range(6):
        await stores.acts.pause(CORE, who=f"Ann{number}", now=now, lift=number % 2 == 1)


def _by_hand(path: Path, now: datetime) -> None:
    """What only GitHub and maintainers bring about, some of it at one moment: order must come from keys."""
    at, engine = to_us(now), open_table_engine(path)
    with engine.begin() as connection:
        pulls = connection.exec_driver_sql("SELECT number, head_sha FROM pulls ORDER BY number").fetchall()
        for place, (number, sha) in enumerate(pulls):
            title = ("Fuse Everything", "fuse ÉVERYTHING", "100% of_it", "İstanbul")[place % 4]
            connection.exec_driver_sql(
                "UPDATE pulls SET title = ?, author = ?, is_open = ? WHERE number = ?",
                (title, ("Ada", "grace")[place % 2], int(place % 3 > 0), number),
            )
            state = ("pending", "passed", "failed")[place % 3]
            gate = {"head_sha": sha, "upstream": CORE.key, "state": state, "title": "t", "judged_at": at}
            connection.execute(checks.gates.insert().prefix_with("OR IGNORE"), gate)
            for downstream in ("org/four", "org/one"):
                waiver = {"upstream": CORE.key, "number": number, "head_sha": sha, "downstream": downstream}
                told = {"who": "Mia", "reason": "known", "created_at": at - place // 2, "until_at": None}
                connection.execute(checks.waivers.insert(), {**waiver, **told})
            for name in ("gate", "org/four"):
                check = {"upstream": CORE.key, "head_sha": sha, "name": name, "round": 1, "tier": "backend"}
                shown = {"status": "completed", "conclusion": "success", "title": "t", "digest": ""}
                more = {
                    "incarnation": "1",
                    "check_run_id": place + 1,
                    "downstream": name if "/" in name else None,
                }
                connection.execute(
                    checks.checks.insert().prefix_with("OR IGNORE"), {**check, **shown, **more}
                )
    engine.dispose()


@pytest.fixture(scope="module", params=[_a_past, _a_walk], ids=["a past", "a walk"])
def twins(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Twins:
    made: Twins = request.param(tmp_path_factory.mktemp("twins"))
    return made


def _open_views(database: Database, upstream: RepoName) -> tuple[SqlViews, OperatorViews]:
    lists = Stores.over(database).allowlists
    return SqlViews(database, lists, (upstream,), ingests=True, sandbox=True), OperatorViews(database, lists)


async def compared(twins: Twins, asked: dict[str, Asked]) -> str:
    stores: list[Database] = [open_handle(twins.path), open_handle(PostgresLocation(twins.url))]
    different: list[str] = []
    for everything in (False, True):
        for name, ask in asked.items():
            answers = []
            for store in stores:
                views, operator = _open_views(store, twins.upstream)
                answers.append(await _answer(ask, views.for_admins() if everything else views, operator))
            different += [f"{name} {everything}: {each}" for each in outline_differences(*answers)[:3]]
    for store in stores:
        await store.close()
    return "\n".join(different)


async def _answer(ask: Asked, views: SqlViews, operator: OperatorViews) -> Any:
    try:
        return typed_outline(await ask(views, operator))
    except CrcrError as refusal:
        return type(refusal).__name__, str(refusal)


def rows(twins: Twins, sql: str) -> list[Any]:
    engine = open_table_engine(twins.path)
    with engine.begin() as connection:
        found = connection.exec_driver_sql(sql).fetchall()
    engine.dispose()
    return [each[0] if len(each) == 1 else tuple(each) for each in found]


def names(twins: Twins) -> list[RepoName]:
    of_past = ("big/backend", "org/backend", "few/jobs", "l/one")
    return [RepoName(each) for each in (of_past if twins.upstream == PAST else BACKENDS)]


async def test_summaries_metrics_and_badges(twins: Twins) -> None:
    up, now = twins.upstream, twins.now
    asked: dict[str, Asked] = {}
    for span, kind in product((Span.DAY, Span.WEEK, Span.QUARTER), ResultKind):
        asked[f"summary {span} {kind}"] = lambda v, _, s=span, k=kind: v.summary(up, s, now, kind=k)
        asked[f"metrics {span} {kind}"] = lambda v, _, s=span, k=kind: v.metrics(up, s, now, kind=k)
        for name in names(twins):
            asked[f"badge {name} {span} {kind}"] = lambda v, _, n=name, s=span, k=kind: v.badge(
                up, n, k, s, now
            )
    assert await compared(twins, asked) == ""


def _queries(twins: Twins) -> Iterator[BackendQuery]:
    for name, kind in product(names(twins), ResultKind):
        yield BackendQuery(upstream=twins.upstream, downstream=name, kind=kind, span=Span.QUARTER, limit=9)
    of_pulls = BackendQuery(upstream=twins.upstream, downstream=names(twins)[0], span=Span.QUARTER, limit=9)
    told = replace(of_pulls, kind=ResultKind.INGESTED)
    for one in (of_pulls, told, replace(of_pulls, downstream=names(twins)[3])):
        yield from (replace(one, limit=3), replace(one, older=True), replace(one, result=CountedAs.FAILURE))
        yield from (replace(one, only_failing=True), replace(one, day=(twins.now - timedelta(days=1)).date()))
        yield from (replace(one, author="ADA"), replace(one, author="mira-holt"), replace(one, job="BUILD"))
        for text in ("FUSE", "é", "ÉVERY", "100%", "f_it", "1", "#1", "fix"):
            yield replace(one, text=text, older=True)


async def test_pages_of_backends(twins: Twins) -> None:
    asked: dict[str, Asked] = {
        str(query): lambda v, _, q=query: v.backend(q, twins.now) for query in _queries(twins)
    }
    assert await compared(twins, asked) == ""


async def test_pull_requests_and_commits(twins: Twins) -> None:
    up, now = twins.upstream, twins.now
    asked: dict[str, Asked] = {}
    for number in rows(twins, "SELECT number FROM pulls ORDER BY number LIMIT 25"):
        asked[f"pull {number}"] = lambda v, _, n=number: v.pull(up, n, now)
    shas = rows(
        twins, "SELECT DISTINCT head_sha FROM jobs WHERE head_sha IS NOT NULL ORDER BY head_sha LIMIT 40"
    )
    for sha in shas:
        asked[f"commit {sha}"] = lambda v, _, s=sha: v.commit(up, s, now)
    assert len(asked) > 10
    assert await compared(twins, asked) == ""


async def test_jobs(twins: Twins) -> None:
    up = twins.upstream
    asked: dict[str, Asked] = {}
    for state in (None, *JobState):
        asked[f"jobs {state}"] = lambda v, _, s=state: v.jobs(JobQuery(upstream=up, state=s, limit=20))
    for number in rows(twins, "SELECT number FROM pulls ORDER BY number LIMIT 5"):
        asked[f"jobs of {number}"] = lambda v, _, n=number: v.jobs(JobQuery(upstream=up, number=n))
    for delivery in rows(twins, "SELECT DISTINCT delivery FROM jobs ORDER BY delivery LIMIT 5"):
        asked[f"jobs of {delivery}"] = lambda v, _, d=delivery: v.jobs(JobQuery(upstream=up, delivery=d))
    for downstream, *rest in rows(
        twins,
        f"SELECT downstream, {', '.join(KEY)} FROM jobs ORDER BY 1, 2, 3, 4, 5 LIMIT 30",  # noqa: S608  ours
    ):
        asked[f"{downstream} {rest}"] = lambda v, _, d=downstream, r=rest: v.job(
            up, RepoName(d), JobKey(**dict(zip(KEY, r, strict=True)))
        )
        asked[f"short {downstream} {rest}"] = lambda v, _, d=downstream, r=rest: v.job_by_short_token(
            up, short_token(up.key, d, tuple(r)) or ""
        )
    for name in names(twins):
        asked[f"jobs of {name}"] = lambda v, _, n=name: v.jobs(JobQuery(upstream=up, downstream=n, limit=7))
        asked[f"setup {name}"] = lambda v, _, n=name: v.setup(up, n, twins.now)
        asked[f"refusals {name}"] = lambda v, _, n=name: v.refusals(up, n, twins.now)
    assert await compared(twins, asked) == ""


async def test_groups_of_failures(twins: Twins) -> None:
    up, now = twins.upstream, twins.now
    asked: dict[str, Asked] = {}
    for limit, known in product((2, 50), (None, *KnownFilter)):
        query = FailureQuery(upstream=up, known=known, limit=limit)
        asked[f"groups {limit} {known}"] = lambda v, _, q=query: v.failures(q, now)
        asked[f"groups of one {limit} {known}"] = lambda v, _, q=query: v.failures(
            replace(q, backend="ORG", text="E"), now
        )
    for fingerprint in rows(twins, "SELECT DISTINCT fingerprint FROM failure_groups ORDER BY 1 LIMIT 5"):
        asked[f"group {fingerprint}"] = lambda v, _, f=fingerprint: v.failure_group(
            up, f, now, after=None, limit=3
        )
    assert await compared(twins, asked) == ""


async def test_lists_of_the_log(twins: Twins) -> None:
    up, now = twins.upstream, twins.now
    asked: dict[str, Asked] = {
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
        asked[f"effects {state}"] = lambda v, _, s=state: v.effect_page(
            EffectQuery(upstream=up, state=s, limit=9)
        )
    for state in (None, *DeliveryState):
        query = DeliveryQuery(upstream=up, state=state, limit=9)
        asked[f"deliveries {state}"] = lambda v, _, q=query: v.deliveries(q)
        asked[f"old {state}"] = lambda v, _, q=query: v.deliveries(replace(q, oldest_first=True))
    for kind, sort in product(FailingKind, FailingSort):
        failing = FailingQuery(upstream=up, kind=kind, sort=sort, limit=5)
        asked[f"failing {kind} {sort}"] = lambda v, _, q=failing: v.failing(q, now)
        asked[f"failing to the operator {kind} {sort}"] = lambda _, o, q=failing: o.failing(q, now)
    for scope, order, only in product(PullScope, PullSort, (None, *PullFilter)):
        listed = PullListQuery(upstream=up, scope=scope, sort=order, only=only, text="e", limit=20)
        asked[f"pulls {scope} {order} {only}"] = lambda v, _, q=listed: v.pulls(q)
    every_job = CommitListQuery(upstream=up, opened=(RepoName("org/backend"), RepoName("big/backend")))
    asked["commits"] = lambda v, _: v.commits(every_job)
    for job in (None, "build"):
        red = CulpritQuery(upstream=up, job=job)
        asked[f"culprits of {job}"] = lambda v, _, q=red: v.culprits(q, now)
    for state in (None, *BisectionState):
        begun = BisectionQuery(upstream=up, state=state, limit=4)
        asked[f"bisections {state}"] = lambda v, _, q=begun: v.bisections(q)
    for waived in (None, *WaiverState):
        mine = WaiverQuery(upstream=up, state=waived, limit=4)
        asked[f"waivers {waived}"] = lambda v, _, q=mine: v.waiver_page(q, now)
        asked[f"waivers by {waived}"] = lambda v, _, q=mine: v.waiver_page(
            replace(q, who="MI", newest_first=True), now
        )
    for who, act in product((None, "ANN", "b"), (None, "pause", "Resume")):
        told = AuditQuery(upstream=up, who=who, act=act, limit=4)
        asked[f"audit {who} {act}"] = lambda v, _, q=told: v.audit(q)
        asked[f"old audit {who} {act}"] = lambda v, _, q=told: v.audit(replace(q, oldest_first=True))
    assert await compared(twins, asked) == ""


async def test_searches(twins: Twins) -> None:
    shas = rows(twins, "SELECT head_sha FROM deliveries WHERE head_sha IS NOT NULL ORDER BY guid LIMIT 3")
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
    queries = [SearchQuery(upstream=twins.upstream, text=text) for text in texts]
    asked: dict[str, Asked] = {}
    for query in queries:
        asked[query.text] = lambda v, _, q=query: v.search(q, twins.now)
        asked[f"{query.text} while typing"] = lambda v, _, q=query: v.suggest(q, twins.now)
    for text, kind in product(("e", "te", "er"), HitKind):
        one = SearchQuery(upstream=twins.upstream, text=text, kind=kind)
        asked[f"{kind} {text}"] = lambda v, _, q=one: v.search(q, twins.now)
    assert await compared(twins, asked) == ""


async def test_what_operators_ask(twins: Twins) -> None:
    up = twins.upstream
    asked: dict[str, Asked] = {
        "repositories": lambda _, o: o.repositories(up),
        "audit": lambda _, o: o.audit(up, limit=7),
        "allowlist": lambda _, o: o.allowlist(up),
        "deliveries": lambda _, o: o.deliveries(up, state=None, limit=20),
    }
    for guid in rows(twins, "SELECT guid FROM deliveries ORDER BY guid LIMIT 25"):
        asked[f"delivery {guid}"] = lambda _, o, g=guid: o.delivery(g, None)
        asked[f"page of {guid}"] = lambda v, _, g=guid: v.delivery(up, g)
        asked[f"effects of {guid}"] = lambda v, _, g=guid: v.effect_page(EffectQuery(upstream=up, delivery=g))
    for parked, kind in product((False, True), (None, "send_dispatch")):
        asked[f"effects {parked} {kind}"] = lambda _, o, p=parked, k=kind: o.effects(
            up, parked=p, target=None, kind=k, limit=9
        )
    assert await compared(twins, asked) == ""


def test_a_difference_in_type_is_a_difference() -> None:
    assert outline_differences(typed_outline({"a": (1, 2.0)}), typed_outline({"a": (True, 2)})) != []
    assert outline_differences(typed_outline({"a": (1, 2.0)}), typed_outline({"a": [1, 2.0]})) == []
