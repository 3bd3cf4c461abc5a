"""The page of a backend: matrix, folded shards, filters, job details, and hostile text that stays text."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cache
from html.parser import HTMLParser
from typing import Any

import httpx
import pytest
from starlette.datastructures import QueryParams
from starlette.types import ASGIApp, Receive, Scope, Send

from crcr.decide.checks.commit import Verification
from crcr.decide.commands.grammar import RetryCommand, parse_commands
from crcr.decide.culprits.ranking import CulpritCandidate
from crcr.decide.jobs.short_address import short_token
from crcr.decide.model import Conclusion, DispatchState, JobState, Level, RepoName
from crcr.decide.statistics.figures import CountedAs, LeftOut, Tally
from crcr.decide.statistics.window import ResultKind, Span
from crcr.decide.views.backend import (
    BackendPage,
    BackendQuery,
    Column,
    FailureCause,
    FailureLine,
    JobDetail,
    JobFigures,
    JobKey,
    LevelChange,
)
from crcr.decide.views.commit import PairView
from crcr.decide.views.culprits import CulpritQuery, CulpritRange, JobCulprits
from crcr.decide.views.failures import FailedTestView
from crcr.decide.views.overview import DispatchAnswer, JobView
from crcr.errors import NotFound
from crcr.show.access.reader import Reader, SignInMethod
from crcr.show.pages.backend import matrix_parameters, sort_jobs
from crcr.show.pages.frame import Frame
from crcr.show.pages.job_panel import parse_environment, split_job_url
from crcr.show.render.matrix import NOTHING, ROOM, shorten_names
from crcr.show.render.status import BACKENDS, job_status
from crcr.show.urls.job_tokens import job_token
from support.clock import ManualClock
from support.data.backend_views import (
    BACKEND,
    NOW,
    UPSTREAM,
    a_column,
    a_detail,
    a_dispatch,
    a_failure,
    a_job_view,
    a_matrix,
    a_page,
    a_row,
    a_summary,
    figures,
)
from support.page_app import page_app
from support.page_reader import HOSTILE, ParsedPage, assert_inert


class FakeViews:
    """A store with the page of the test; it records the queries."""

    def __init__(self, page: BackendPage, detail: JobDetail | None = None) -> None:
        self.page = page
        self.detail = detail
        self.breakages: tuple[JobCulprits, ...] = ()
        self.queries: list[BackendQuery] = []
        self.keys: list[JobKey] = []

    def for_admins(self) -> "FakeViews":
        return self

    async def backend(self, query: BackendQuery, _: object) -> BackendPage:
        self.queries.append(query)
        return replace(self.page, query=query, detail=self.detail if query.detail else None)

    async def backend_pairs(self, _: RepoName, __: RepoName, ___: datetime) -> tuple[PairView, ...]:
        return ()

    async def culprits(self, _: CulpritQuery, __: object) -> tuple[JobCulprits, ...]:
        return self.breakages

    async def job(self, _: RepoName, __: RepoName, key: JobKey) -> JobDetail:
        self.keys.append(key)
        if self.detail is None:
            raise NotFound("no such job")
        return self.detail


class AsAdmin:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})["reader"] = Reader(
            "root", admin=True, csrf="secret", method=SignInMethod.SESSION
        )
        await self._app(scope, receive, send)


class RunningRelay:
    """Views that delegate to those of the running test, so that templates are compiled once for all tests."""

    current: FakeViews

    def for_admins(self) -> FakeViews:
        return self.current

    def __getattr__(self, name: str) -> Any:
        return getattr(self.current, name)


@cache
def site() -> tuple[RunningRelay, ASGIApp]:
    views = RunningRelay()
    frame = Frame(
        views,  # type: ignore[arg-type]
        upstreams=(UPSTREAM,),
        clock=ManualClock(NOW),
        public_url="http://relay/",
    )
    return views, page_app(frame)


@asynccontextmanager
async def open_client(shown: FakeViews, *, admin: bool = False) -> AsyncIterator[httpx.AsyncClient]:
    views, app = site()
    views.current = shown
    transport = httpx.ASGITransport(AsAdmin(app) if admin else app)
    async with httpx.AsyncClient(transport=transport, base_url="http://relay") as client:
        yield client


async def get(
    page: BackendPage, query: str = "", detail: JobDetail | None = None, *, admin: bool = False
) -> str:
    async with open_client(FakeViews(page, detail), admin=admin) as client:
        response = await client.get(f"/crcr/good/backend{query}")
    assert response.status_code == 200
    return response.text


class Grid(HTMLParser):
    """The matrix of a page: header texts, and for each row its cells with class, text, title and link."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.heads: list[str] = []
        self.rows: list[list[dict[str, str]]] = []
        self._inside = False
        self._cell: dict[str, str] | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        if tag == "table" and attributes.get("id") == "matrix-table":
            self._inside = True
        if not self._inside:
            return
        if tag == "tr":
            self.rows.append([])
        if tag in {"td", "th"}:
            self._cell = {
                "class": attributes.get("class", ""),
                "text": "",
                "title": attributes.get("title", ""),
                "href": "",
            }
            self.rows[-1].append(self._cell)
        if tag == "a" and self._cell is not None:
            self._cell["href"] = attributes.get("href", "")
            self._cell["title"] = self._cell["title"] or attributes.get("title", "")

    def handle_endtag(self, tag: str) -> None:
        if tag == "table":
            self._inside = False
        if tag in {"td", "th"}:
            self._cell = None

    def handle_data(self, data: str) -> None:
        if self._cell is not None:
            self._cell["text"] += data

    @property
    def names(self) -> list[str]:
        return [cell["text"] for cell in self.rows[1] if "job" in cell["class"].split()]

    def cells(self, row: int = 0) -> list[dict[str, str]]:
        return [cell for cell in self.rows[2 + row][2:] if cell["class"] != "fill"]

    def state(self, row: int = 0) -> str:
        return self.rows[2 + row][1]["text"].strip()


STATES = [
    *(("success", {}, "O", "ok"), ("failure", {}, "X", "bad"), ("cancelled", {}, "C", "off")),
    *(("skipped", {}, "S", "off"), ("neutral", {}, "N", "off"), ("timed_out", {}, "T", "bad")),
    *(("action_required", {}, "A", "bad"), ("none", {}, "X", "bad"), (None, {}, "?", "run")),
    (None, {"state": JobState.TIMED_OUT}, "T", "bad"),
    ("failure", {"expected": Conclusion.FAILURE}, "X=", "expected"),
    ("success", {"expected": Conclusion.FAILURE}, "O≠", "bad"),
]


@pytest.mark.parametrize(("conclusion", "facts", "letter", "tone"), STATES)
async def test_every_job_state_has_its_letter_and_tone(
    conclusion: str | None, facts: dict[str, Any], letter: str, tone: str
) -> None:
    job = a_job_view(conclusion, **facts)
    (cell,) = Grid(await get(a_page(a_matrix(("build",), a_row(job))))).cells()
    assert (cell["text"], cell["class"]) == (letter, tone)
    assert cell["href"] == f"?job={job_token(job)}"


UNSENT = [
    (a_dispatch(state=DispatchState.WAITING, sent_at=None), "waiting to be sent", "wait"),
    (a_dispatch(state=DispatchState.HELD, sent_at=None, reason="no label"), "held", "wait"),
    (a_dispatch(state=DispatchState.PARKED, sent_at=None), "not delivered", "bad"),
    (a_dispatch(state=DispatchState.CANCELLED), "cancelled", "off"),
    (a_dispatch(state=DispatchState.LEFT_OUT, reason="paths"), "not affected", "off"),
    (a_dispatch(), "no report yet", "wait"),
    (a_dispatch(answer=DispatchAnswer.RUNNING), "started, no report yet", "run"),
    (a_dispatch(answer=DispatchAnswer.NEVER_STARTED), "never started", "bad"),
    (a_dispatch(answer=DispatchAnswer.UNREPORTED), "ran and did not report", "bad"),
    (a_dispatch(action="closed"), "notified", "off"),
    (a_dispatch(head_sha="0" * 40), "notified", "off"),
    (a_dispatch(level=Level.L1), "notified", "off"),
    (None, "no jobs", "off"),
]


@pytest.mark.parametrize(("dispatch", "expected", "tone"), UNSENT)
async def test_an_event_without_jobs_shows_the_state_of_its_dispatch(
    dispatch: Any, expected: str, tone: str
) -> None:
    rows = (a_row(None, dispatch=dispatch), a_row(a_job_view(), key="d-2"))
    text = await get(a_page(a_matrix(("build",), *rows)))
    grid = Grid(text)
    assert expected in grid.state()
    assert f'<span class="chip {tone}">' in text
    assert [cell["class"] for cell in grid.cells()] == ["nothing"]
    if dispatch is not None and dispatch.reason:
        assert dispatch.reason in grid.cells()[0]["text"]


async def test_a_row_shows_the_worst_result_of_its_jobs_and_the_count() -> None:
    names = ("a", "b", "c")
    jobs = [a_job_view("success", "a"), a_failure("b"), a_job_view("success", "c")]
    rows = [a_row(*jobs), a_row(*[replace(jobs[0], job_name=name) for name in names], key="2")]
    rows += [a_row(a_job_view("cancelled", "a"), None, None, key="3")]
    grid = Grid(await get(a_page(a_matrix(names, *rows))))
    assert [grid.state(row) for row in range(3)] == ["X1 of 3 failed", "O3 passed", "C1 inconclusive"]


async def test_an_event_with_jobs_only_in_other_columns_is_not_shown_as_silent() -> None:
    rows = (a_row(None), a_row(a_job_view(), key="d-2"))
    assert "no such job" in Grid(await get(a_page(a_matrix(("build",), *rows)), "?jobs=build")).state()
    assert "no such job" in Grid(await get(a_page(a_matrix(("build",), *rows, columns_left_out=3)))).state()


async def test_fault_47_a_build_of_65_jobs_is_one_row() -> None:
    names = tuple(f"job {letter}{other}" for letter in "abcdefghijklm" for other in "vwxyz")
    text = await get(a_page(a_matrix(names, a_row(*[a_job_view("success", name) for name in names]))))
    grid = Grid(text)
    assert (len(grid.rows), len(grid.cells()), grid.state()) == (3, 65, "O65 passed")


SHARDS = tuple(f"test ({number}, 10)" for number in range(1, 11))


def make_sharded_page(*failed: int, missing: int = 0) -> BackendPage:
    cells = [
        a_job_view("failure" if index in failed else "success", name) for index, name in enumerate(SHARDS)
    ]
    shown = [None if index < missing else cell for index, cell in enumerate(cells)]
    return a_page(a_matrix(("build", *SHARDS), a_row(a_job_view("success", "build"), *shown)))


@pytest.mark.parametrize(
    ("failed", "missing", "text", "tone"),
    [((2, 5), 0, "X2/10", "bad"), ((), 0, "O10", "ok"), ((), 3, "O7/10", "off"), ((9,), 3, "X1/10", "bad")],
)
async def test_shards_are_folded_into_one_cell_with_the_worst_result(
    failed: tuple[int, ...], missing: int, text: str, tone: str
) -> None:
    grid = Grid(await get(make_sharded_page(*failed, missing=missing), "?columns=name"))
    assert grid.names == ["build", "test (…, 10)\u00d710"]
    assert [(cell["text"], cell["class"]) for cell in grid.cells()][1] == (text, tone)


async def test_a_folded_group_opens_by_its_link_and_closes_again() -> None:
    page = make_sharded_page(2)
    link = Grid(await get(page, "?columns=name")).cells()[1]["href"]
    grid = Grid(await get(page, link.partition("#")[0]))
    assert grid.names == ["build", *SHARDS]
    assert [cell["text"] for cell in grid.cells()] == ["O", "O", "O", "X", *"OOOOOOO"]
    close = next(cell["href"] for cell in grid.rows[1] if "opened" in cell["class"])
    assert Grid(await get(page, close.partition("#")[0])).names == ["build", "test (…, 10)\u00d710"]
    assert Grid(await get(page, "?columns=name&open=all")).names == ["build", *SHARDS]
    assert Grid(await get(page, "?columns=name&open=nonsense,%00")).names == ["build", "test (…, 10)\u00d710"]


async def test_columns_are_grouped_under_their_workflow() -> None:
    columns = (Column("a.yml", "Linux", "x"), Column("a.yml", "Linux", "y"), Column("b.yml", "Mac", "x"))
    matrix = replace(a_matrix((), a_row(*[a_job_view()] * 3)), columns=columns)
    heads = Grid(await get(a_page(matrix))).rows[0]
    assert [head["text"] for head in heads if head["class"] == "flow"] == ["Linux", "Mac"]


async def test_a_matrix_of_80_jobs_and_50_events_is_below_1_3_megabytes() -> None:
    names = tuple(
        f"linux / job {letter}{other} on a runner" for letter in "abcdefgh" for other in "qwertyuiop"
    )
    rows = [
        a_row(
            *[a_job_view("success", name, delivery="0" * 36, run_id="1" * 11) for name in names],
            key=str(number),
        )
        for number in range(50)
    ]
    text = await get(a_page(a_matrix(names, *rows)))
    assert len(Grid(text).rows) == 52
    assert len(text.encode()) < 1_300_000


async def test_superseded_and_test_events_are_marked() -> None:
    rows = (a_row(a_job_view(), superseded=True), a_row(a_job_view(), key="2", test=True))
    text = await get(a_page(a_matrix(("build",), *rows)), "?older=1")
    grid = Grid(text)
    assert "older commit" in grid.rows[2][0]["text"]
    assert "test" in grid.rows[3][0]["text"]
    assert text.count('class="aged"') == 2


async def test_the_query_string_becomes_the_query_to_the_store() -> None:
    job = a_job_view()
    views = FakeViews(a_page())
    async with open_client(views) as client:
        await client.get(
            "/crcr/good/backend",
            params={
                "jobs": " lin ",
                "author": "ada",
                "result": "failure",
                "q": "#7",
                "older": "1",
                "range": "7d",
                "kind": "push",
                "after": "WzEsImEiXQ",
                "job": job_token(job),
            },
        )
        await client.get("/crcr/good/backend?result=nonsense&older=yes&range=never&kind=x&job=x&sort=x")
    query, plain = views.queries
    assert (query.job, query.author, query.result, query.text) == ("lin", "ada", CountedAs.FAILURE, "#7")
    assert (query.span, query.kind, query.older, query.after) == (Span.WEEK, ResultKind.PUSH, True, (1, "a"))
    assert query.detail is not None
    assert query.detail.job_name == "build"
    assert plain == BackendQuery(upstream=UPSTREAM, downstream=BACKEND, whole_jobs=False)


async def test_a_foreign_cursor_is_a_400_page_with_the_reason() -> None:
    async with open_client(FakeViews(a_page())) as client:
        answer = await client.get("/crcr/good/backend?after=%7B")
    assert answer.status_code == 400
    assert "the cursor is not one of ours" in answer.text


async def test_links_keep_the_filters_and_lead_to_the_next_page() -> None:
    matrix = a_matrix(("build",), a_row(a_job_view()), searched=37, next=(5, "d-1"))
    text = await get(a_page(matrix), "?q=fuse&author=ada&range=7d")
    links = ParsedPage(text).attributes("href")
    assert [link for link in links if "after=" in link and "q=fuse" in link and "range=7d" in link]
    assert "/crcr/good/backend?range=7d" in links, "a link that clears the filters"
    assert "37 events searched" in text
    assert {"fuse", "ada"} <= set(ParsedPage(text).attributes("value"))
    job = next(link for link in links if "job=" in link and link.startswith("?"))
    assert "q=fuse" in job


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("?q=x", "No matching events"),
        ("", "No dispatches in 14d"),
        ("?kind=nightly", "No nightly runs reported"),
        ("?kind=ingested", "No results from other relays"),
        ("?after=WzEsImEiXQ", "Nothing older"),
    ],
)
async def test_an_empty_matrix_shows_the_reason(query: str, expected: str) -> None:
    assert expected in await get(a_page(), query)


async def test_the_other_relays_tab_is_shown_only_with_ingested_results() -> None:
    assert "Other relays" not in await get(a_page())
    assert "Other relays" in await get(a_page(ingests=True))


async def test_the_summary_numbers_match_the_figures() -> None:
    totals = replace(
        figures(Tally(success=6, failure=2, other=3, timed_out=1)), running=4, left_out=LeftOut(5, 1)
    )
    text = re.sub(r"<[^>]+>", "\n", await get(a_page(summary=a_summary(figures=totals, sent=9))))
    for expected in ("75.0%", "6 of 8 jobs", "including 1 timeout", "3 other", "1m", "10m", "P50", "P95"):
        assert expected in text, expected
    flat = " ".join(text.split())
    assert "5 results for older commits or runs, 1 earlier attempt" in flat
    assert "neutral jobs (3) do not count" in flat


async def test_no_results_are_never_a_rate() -> None:
    text = await get(a_page(summary=a_summary(figures=figures()), jobs=()))
    assert "no results in 14d" in text
    assert "100.0%" not in re.sub(r"<svg.*?</svg>", "", text, flags=re.DOTALL)


async def test_the_trends_are_four_charts() -> None:
    text = await get(a_page())
    assert text.count('<figure class="chart">') == 4
    assert "Pass rate" in text
    assert "Timeouts" in text


async def test_the_heading_shows_level_marks_and_oncalls() -> None:
    levels = (
        LevelChange(NOW - timedelta(days=9), Level.L2, 3),
        LevelChange(NOW - timedelta(days=30), None, 2),
    )
    summary = a_summary(
        alarm="the id changed", silent=True, suspended=True, probe=True, hidden=True, parked=2
    )
    text = await get(a_page(summary=summary, levels=levels))
    for expected in (
        "Good/Backend",
        "since",
        "ada, grace",
        "NPU 910B",
        "the id changed",
        "This backend is silent",
        'href="/crcr/onboarding?repository=Good/Backend">check the set-up</a>',
    ):
        assert expected in text, expected
    for expected in (
        "This backend is suspended",
        "probe",
        "hidden",
        "2 undelivered",
        "not listed",
        "allowlist version 3",
    ):
        assert expected in text, expected
    assert "https://github.com/Good/Backend" in ParsedPage(text).attributes("href")
    assert ParsedPage(text).attributes("data-backend") == ["good/backend"]


async def test_actions_are_shown_to_administrators_only() -> None:
    page = a_page(summary=a_summary(alarm="the id changed", parked=2))
    assert "/crcr/admin/" not in await get(page)
    acts = ParsedPage(await get(page, admin=True)).attributes("action")
    assert {"/crcr/admin/suspend", "/crcr/admin/retry", "/crcr/admin/rebind"} <= set(acts)
    lifted = ParsedPage(await get(a_page(summary=a_summary(suspended=True)), admin=True)).attributes("action")
    assert "/crcr/admin/lift" in lifted
    assert "/crcr/admin/suspend" not in lifted


async def test_a_backend_with_name_visibility_shows_no_results() -> None:
    named = a_summary(name_only=True, figures=None, oncalls=(), hardware=None, device=None)
    text = await get(a_page(summary=named, matrix=a_matrix(("secret job",), a_row(a_job_view()))))
    assert "shows its name only" in text
    assert "secret job" not in text
    assert "matrix-table" not in text


async def test_an_l1_backend_is_shown_as_notified_only() -> None:
    row = a_row(dispatch=a_dispatch(level=Level.L1))
    text = await get(a_page(a_matrix((), row), summary=a_summary(level=Level.L1, figures=None), jobs=()))
    assert "its results are not recorded" in text
    assert "notified" in Grid(text).state()
    assert '"chip ok"' not in text


async def test_the_page_has_the_markdown_of_the_badge() -> None:
    text = await get(a_page())
    assert "[![crcr](http://relay/badge/Good/Backend.svg)](http://relay/crcr/Good/Backend)" in text


JOBS = (
    JobFigures(column=a_column("b"), tally=Tally(success=1, failure=3), execution_s=None),
    JobFigures(column=a_column("a"), tally=Tally(success=9, failure=1, timed_out=1), execution_s=60.0),
    JobFigures(column=a_column("c"), tally=Tally(), execution_s=5.0),
)


@pytest.mark.parametrize(
    ("sort", "names"),
    [
        *((None, "bac"), ("job", "abc"), ("-job", "cba"), ("rate", "bac"), ("-failure", "bac")),
        *(("timeouts", "bca"), ("-total", "abc"), ("run", "bca"), ("-run", "acb")),
    ],
)
def test_the_job_table_is_sorted_by_its_columns(sort: str | None, names: str) -> None:
    assert [job.column.job_name for job in sort_jobs(JOBS, sort)] == [*names]


async def test_a_row_of_the_job_table_links_to_the_filtered_matrix() -> None:
    text = await get(a_page(jobs=JOBS), "?sort=-failure&older=1")
    assert "/crcr/good/backend?older=1&sort=-failure&jobs=b#matrix" in ParsedPage(text).attributes("href")
    assert "descending" in ParsedPage(text).attributes("aria-sort")


def test_unknown_filter_values_are_dropped() -> None:
    parameters = QueryParams("result=x&older=2&sort=x&q=&jobs=%20&open=a&after=b&other=1")
    assert matrix_parameters(parameters) == {"open": "a", "after": "b"}


DETAILED = a_failure(
    "test (2, 5)",
    ("test_add", "AssertionError: 1 != 2"),
    attempt=2,
    run_id="10",
    marks=("late", "disputed", "unsigned"),
    disputed_conclusion=Conclusion.SUCCESS,
    verification=Verification.DISPUTED,
    github_conclusion="cancelled",
    url="https://ci.example/run",
    artifact_url="https://ci.example/artifact",
    tests_passed=3,
    tests_skipped=2,
    tests_total=6,
    failed_tests_more=4,
)


def make_detail(job: JobView = DETAILED, **more: Any) -> JobDetail:
    earlier = replace(job, attempt=1, conclusion=Conclusion.SUCCESS, failed_tests=())
    return a_detail(job, attempts=(job, earlier), environment='{"driver": "24.1", "n": [1]}', **more)


@pytest.mark.parametrize("alone", [True, False])
async def test_the_panel_shows_every_detail_of_a_job(alone: bool) -> None:
    query = f"?job={job_token(DETAILED)}&q=fuse" + ("&fragment=panel" if alone else "")
    text = await get(a_page(), query, make_detail(superseded=True, test=True))
    panel = text[text.index("<aside") : text.index("</aside>")]
    flat = " ".join(re.sub(r"<[^>]+>", " ", panel).split())
    for expected in (
        *(
            "test (2, 5)",
            "failure",
            "attempt 2 of 2 known",
            "attempt 1",
            "#7 Fuse it",
            "by ada",
            "30s",
            "1h",
        ),
        *(
            "3 passed",
            "1 failed",
            "2 skipped",
            "6 in total",
            "test_add",
            "AssertionError: 1 != 2",
            "and 4 more failed",
        ),
        *(
            "success was reported too",
            "Late:",
            "Unsigned:",
            "GitHub shows another result",
            "cancelled",
            "24.1",
            "[1]",
        ),
        *("not counted", "Sent by hand as a test", "CI .github/workflows/ci.yml"),
    ):
        assert expected in flat, expected
    links = ParsedPage(panel).attributes("href")
    assert {"https://ci.example/run", "https://ci.example/artifact", "/crcr/pr/7"} <= set(links)
    assert "/crcr/good/backend?q=fuse" in links, "closing keeps the filters"
    key = (DETAILED.delivery, DETAILED.workflow, DETAILED.run_id, DETAILED.attempt, DETAILED.job_name)
    short = f"http://relay/crcr/j/{short_token(UPSTREAM.key, BACKEND.key, key)}"
    assert short in ParsedPage(panel).attributes("value")
    earlier = job_token(replace(DETAILED, attempt=1))
    assert [link for link in links if link.endswith(f"job={earlier}")]
    assert ("<html" in text) is not alone
    assert ('id="matrix"' in text) is not alone


async def test_the_panel_shows_fifty_failures_and_counts_the_rest() -> None:
    many = tuple(FailedTestView(f"test_{number}", None, None) for number in range(60))
    text = await get(a_page(), "?job=x&fragment=panel", None)
    assert "No such job" in text
    job = replace(DETAILED, failed_tests=many, failed_tests_more=7)
    text = await get(a_page(), f"?job={job_token(job)}&fragment=panel", a_detail(job))
    assert "test_49<" in text
    assert "test_50<" not in text
    assert "and 17 more failed tests" in text


async def test_the_panel_explains_an_expected_failure() -> None:
    job = a_job_view("failure", expected=Conclusion.FAILURE)
    text = await get(a_page(), f"?job={job_token(job)}&fragment=panel", a_detail(job))
    flat = " ".join(re.sub(r"<[^>]+>", " ", text).split())
    assert "Expected outcome: failure; any other counts as a failure. This one counts as success." in flat


@pytest.mark.parametrize("token", ["nonsense", "WyJ4Il0", "%00", "x" * 9_000, "<script>"])
@pytest.mark.parametrize("fragment", ["", "&fragment=panel", "&fragment=main"])
async def test_an_invalid_job_token_is_reported_beside_the_page(token: str, fragment: str) -> None:
    async with open_client(FakeViews(a_page(a_matrix(("build",), a_row(a_job_view()))))) as client:
        answer = await client.get(f"/crcr/good/backend?job={token}{fragment}")
    assert answer.status_code == 200
    assert "No such job" in answer.text
    assert ("matrix-table" in answer.text) is (fragment != "&fragment=panel")
    assert_inert(ParsedPage(answer.text), answer.text)


async def test_a_token_of_a_deleted_job_is_reported() -> None:
    views = FakeViews(a_page())
    token = job_token(DETAILED)
    async with open_client(views) as client:
        whole = await client.get(f"/crcr/good/backend?job={token}")
        alone = await client.get(f"/crcr/good/backend?job={token}&fragment=panel")
    assert (whole.status_code, alone.status_code) == (200, 200)
    assert "No such job" in whole.text
    assert "No such job" in alone.text
    assert [key.attempt for key in views.keys] == [2]


def hostile_page(text: str) -> tuple[BackendPage, JobDetail]:
    job = replace(
        a_failure(text, (text, text)),
        workflow=text,
        workflow_name=text,
        run_id=text,
        delivery=text,
        url=text,
        artifact_url=text,
        github_conclusion=text,
        head_sha=text,
        event=text,
        verification=Verification.DISPUTED,
        failed_tests=(FailedTestView(text, text, text),),
    )
    dispatch = a_dispatch(state=DispatchState.HELD, reason=text, action=text, head_sha=text)
    rows = (
        a_row(job, key=text, title=text, author=text, action=text, head_sha=text, delivery=text),
        a_row(None, key=f"{text}2", number=None, ref=text, event=text, dispatch=dispatch),
    )
    column = Column(text, text, text)
    page = a_page(
        replace(a_matrix((), *rows), columns=(column,)),
        summary=a_summary(alarm=text, oncalls=(text,), hardware=text, device=text),
        causes=(FailureCause(fingerprint="0" * 16, line=text, count=2, newest=job),),
        lines={(text, text, text, job.attempt, text): FailureLine("0" * 16, text)},
        jobs=(JobFigures(column=column, tally=Tally(failure=1), execution_s=1.0),),
    )
    return page, a_detail(
        job,
        attempts=(job, replace(job, attempt=2)),
        environment=text,
        title=text,
        author=text,
        ref=text,
        oncalls=(text,),
        recent=(job, replace(job, attempt=2)),
        on_base=(replace(job, attempt=3),),
        base_ref=text,
    )


@pytest.mark.parametrize("hostile", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("fragment", ["", "&fragment=panel", "&fragment=main"])
async def test_fault_29_hostile_text_stays_text(hostile: str, fragment: str) -> None:
    page, job_detail = hostile_page(hostile)
    token = job_token(replace(DETAILED, job_name="any"))
    text = await get(page, f"?job={token}&q=%3Cscript%3E&jobs=%22%3E%3Cimg+src%3Dx%3E{fragment}", job_detail)
    parsed = ParsedPage(text)
    assert_inert(parsed, text)
    assert len(text) < 200_000
    assert ">49<" not in text.replace(" ", "")
    assert not [tag for tag, _ in parsed.elements if tag == "img" and fragment]
    if len(hostile) < 100 and fragment != "&fragment=panel":
        grid = Grid(text)
        shown = hostile.translate({0x202E: "[U+202E]", 0x2066: "[U+2066]", 0x200B: "[U+200B]"})
        shown = re.sub("[\x00-\x1f]", lambda match: chr(0x2400 + ord(match[0])), shown)
        assert grid.names == [shown]


@pytest.mark.parametrize("hostile", HOSTILE, ids=range(len(HOSTILE)))
async def test_hostile_text_of_commits_stays_text(hostile: str) -> None:
    page, job_detail = hostile_page("plain")
    views = FakeViews(page, job_detail)
    candidate = CulpritCandidate(sha="a" * 40, number=7, title=hostile, score=0.5, reasons=(hostile,))
    views.breakages = (
        JobCulprits(
            backend=RepoName("good/backend"),
            workflow=hostile,
            job=hostile,
            range=CulpritRange(good=None, bad=hostile, commits=None),
            candidates=(candidate,) * 5,
            fingerprints=("0" * 16,),
            since=NOW,
        ),
    )
    async with open_client(views) as client:
        text = (await client.get("/crcr/good/backend?kind=push")).text
    assert "Broken by" in text
    assert "and 2 more" in text
    assert_inert(ParsedPage(text), text)
    assert len(text) < 200_000


@pytest.mark.parametrize(
    ("environment", "shown"),
    [
        (None, ()),
        ("", ()),
        ("plain", (("", "plain"),)),
        ("[1]", (("", "[1]"),)),
        ('{"a": "b", "c": {"d": 1}}', (("a", "b"), ("c", '{"d": 1}'))),
        ("[" * 100_000, (("", "[" * 100_000),)),
    ],
)
def test_an_environment_is_parsed_into_names_and_values(
    environment: str | None, shown: tuple[Any, ...]
) -> None:
    assert parse_environment(environment) == shown


def test_an_environment_is_cut_after_40_values() -> None:
    values = parse_environment(str({f"k{number}": 1 for number in range(100)}).replace("'", '"'))
    assert len(values) == 41
    assert values[-1] == ("", "and 60 more")


async def test_the_panel_fragment_does_not_query_the_matrix() -> None:
    views = FakeViews(a_page(), make_detail())
    async with open_client(views) as client:
        await client.get(f"/crcr/good/backend?job={job_token(DETAILED)}&fragment=panel")
    assert views.queries == []


async def test_the_page_links_to_the_same_view_as_json_and_csv() -> None:
    text = await get(a_page(), "?jobs=lin&q=x&older=1&sort=job&after=WzEsImEiXQ&range=7d")
    matrix_parameters = "job=lin&q=x&older=1&cursor=WzEsImEiXQ&range=7d"
    links = ParsedPage(text).attributes("href")
    assert f"/api/v1/backends/Good/Backend?{matrix_parameters}" in links
    assert f"/api/v1/backends/Good/Backend.csv?{matrix_parameters}" in links


async def test_a_row_is_not_green_when_columns_are_left_out() -> None:
    row = a_row(a_job_view())
    for left_out, tone in ((0, "ok"), (3, "off")):
        text = await get(a_page(a_matrix(("build",), row, columns_left_out=left_out)))
        assert Grid(text).state() == "O1 passed"
        assert f'class="chip {tone}"' in text.partition('id="row-')[2].partition("</tr>")[0]


async def test_the_legend_has_every_letter_once() -> None:
    text = await get(a_page(a_matrix(("build",), a_row(a_job_view()))))
    legend = text.partition('id="legend"')[2].partition("</details>")[0]
    entries = re.findall(r'<b aria-hidden="true">(.)</b><span class="word">([^<]+)<', legend)
    letters = [letter for letter, _ in entries]
    assert sorted(letters) == sorted(set(letters))
    assert {("T", "timed out or silent"), ("X", "failed or no conclusion")} <= set(entries)
    shown = {job_status(a_job_view(conclusion.value)).letter for conclusion in Conclusion if conclusion.value}
    shown |= {status.letter for status in BACKENDS.values()} | {"!", "?", NOTHING.letter}
    assert shown <= set(letters)


PLATFORM = "linux-jammy-py3.10-clang12-openreg / "


async def test_long_column_names_keep_the_distinguishing_end() -> None:
    names = (f"{PLATFORM}build", f"{PLATFORM}test (default, eager)", f"{PLATFORM}test (distributed)")
    grid = Grid(await get(a_page(a_matrix(names, a_row(*[a_job_view("success", name) for name in names])))))
    assert grid.names == ["…build", "…test (default, eager)", "…test (distributed)"]
    assert [cell["title"] for cell in grid.rows[1] if "job" in cell["class"]] == [*names]


@pytest.mark.parametrize(
    ("names", "heads"),
    [
        (["build", "test"], ["build", "test"]),
        ([], []),
        ([PLATFORM + "build"], ["linux-jammy-…clang12-openreg / build"]),
        (["build", PLATFORM + "a test"], ["build", "linux-jammy-…lang12-openreg / a test"]),
        ([PLATFORM + "x", PLATFORM + "x"], ["linux-jammy-….10-clang12-openreg / x"] * 2),
        (["a" * 50 + "1", "a" * 50 + "2"], [f"{'a' * 12}…{'a' * 22}{digit}" for digit in "12"]),
    ],
)
def test_a_column_name_that_is_too_long_is_cut_in_the_middle(names: list[str], heads: list[str]) -> None:
    assert shorten_names(names) == heads
    assert all(len(head) <= ROOM for head in shorten_names(names))


async def test_the_last_workflow_header_spans_the_filler_column() -> None:
    text = await get(a_page(a_matrix(("build",), a_row(a_job_view()))))
    assert re.search(r'<th scope="colgroup" colspan="2" class="flow"', text)
    assert text.count('<th class="fill"></th>') == 1


async def test_actions_are_in_a_div_because_a_paragraph_cannot_contain_forms() -> None:
    text = await get(a_page(summary=a_summary(parked=2)), admin=True)
    assert '<div class="acts">' in text
    assert '<p class="acts">' not in text


async def test_the_level_shows_the_day_of_its_change() -> None:
    for at, year in ((NOW - timedelta(hours=9), ""), (NOW - timedelta(days=9), f", {NOW.year - 1}")):
        text = await get(a_page(levels=(LevelChange(at, Level.L2, 3),)))
        (day,) = set(re.findall(r'<span class="day" title="([^"]+)">([^<]+)</span>', text))
        assert day == (f"{at:%Y-%m-%d %H:%M:%S} UTC", f"{at:%b} {at.day}{year}")


async def test_zero_sent_dispatches_are_shown_only_for_kinds_with_dispatches() -> None:
    page = a_page(summary=a_summary(sent=0))
    assert "<h2>Sent</h2>" in await get(page)
    assert "<h2>Sent</h2>" not in await get(page, "?kind=nightly")


@pytest.mark.parametrize(
    ("url", "run", "job"),
    [
        ("https://g.test/a/b/actions/runs/5/job/9", "https://g.test/a/b/actions/runs/5", True),
        ("https://g.test/a/b/actions/runs/5/attempts/2/job/9", "https://g.test/a/b/actions/runs/5/attempts/2", True),
        ("https://g.test/a/b/actions/runs/5", "https://g.test/a/b/actions/runs/5", False),
        ("https://ci.example/run", "https://ci.example/run", False),
        ("javascript:/actions/runs/5/job/9", "javascript:/actions/runs/5/job/9", False),
        (None, None, False),
    ],
)  # fmt: skip
def test_the_url_of_a_run_is_derived_from_the_url_of_its_job(
    url: str | None, run: str | None, job: bool
) -> None:
    assert split_job_url(url) == (run, url if job else None)


async def test_the_panel_links_run_job_and_artifact_and_shows_exact_times() -> None:
    job = replace(DETAILED, url="https://github.com/a/b/actions/runs/10/job/4")
    text = await get(a_page(), f"?job={job_token(job)}&fragment=panel", a_detail(job))
    links = re.findall(r'<a href="(https://[^"]+)"[^>]*>([^<]+)</a>', text)
    assert links == [
        ("https://github.com/a/b/actions/runs/10", "run 10"),
        ("https://github.com/a/b/actions/runs/10/job/4", "job"),
        ("https://ci.example/artifact", "artifact"),
        ("https://github.com/Torch/torch/pull/7", "#7"),
    ]
    assert f"{job.started_at:%Y-%m-%d %H:%M:%S} UTC</small>" in text


# Failing columns, titles of cells, causes, one day


def make_workflow_matrix(*rows: tuple[str, ...]) -> BackendPage:
    """Rows of results, the newest first, for three jobs of one workflow and one of another."""
    columns = (*(Column("a.yml", "Linux", name) for name in "xyz"), Column("b.yml", "Mac", "x"))
    matrix_rows = [
        a_row(
            *[
                a_job_view(
                    word, column.job_name, workflow=column.workflow, workflow_name=column.workflow_name
                )
                for word, column in zip(words, columns, strict=True)
            ],
            key=str(number),
        )
        for number, words in enumerate(rows)
    ]
    return a_page(replace(a_matrix((), *matrix_rows), columns=columns))


@pytest.mark.parametrize(
    ("rows", "query", "names", "spans"),
    [
        (("OOOO", "OOOO"), "", "xyzx", ["Linux", "Mac"]),
        (("OOXO", "OXOO"), "", "zyxx", ["Linux", "Linux", "Mac"]),
        (("OOOX", "OXOO"), "", "xyxz", ["Mac", "Linux", "Linux"]),
        (("OOOX", "OXOO"), "?columns=name", "xyzx", ["Linux", "Mac"]),
        (("OOOX", "OXOO"), "?columns=else", "xyxz", ["Mac", "Linux", "Linux"]),
    ],
)
async def test_columns_that_failed_last_come_first(
    rows: tuple[str, ...], query: str, names: str, spans: list[str]
) -> None:
    words = {"O": "success", "X": "failure"}
    page = make_workflow_matrix(*(tuple(words[letter] for letter in row) for row in rows))
    grid = Grid(await get(page, query))
    assert grid.names == list(names)
    assert [head["text"] for head in grid.rows[0] if head["class"] == "flow"] == spans
    assert sum(cell["text"] == "X" for cell in grid.cells()) == rows[0].count("X")


async def test_a_cells_title_has_job_result_duration_and_the_first_failure_line() -> None:
    quick = a_job_view("success", "lint <x>", execution_s=0.4)
    failed = a_failure("test", run_id="11")
    key = (failed.delivery, failed.workflow, failed.run_id, failed.attempt, failed.job_name)
    page = a_page(
        a_matrix(("lint <x>", "test"), a_row(quick, failed)),
        lines={key: FailureLine("0" * 16, '"><b>1 != 2')},
    )
    titles = [cell["title"] for cell in Grid(await get(page, "?columns=name")).cells()]
    assert titles == ["lint <x>: success, <1s", 'test: failure, 1h\n"><b>1 != 2']


async def test_a_folded_group_lists_its_failed_jobs_for_keyboard_navigation() -> None:
    text = await get(make_sharded_page(2, 5))
    tokens = [job_token(a_job_view("failure", SHARDS[index])) for index in (2, 5)]
    assert ParsedPage(text).attributes("data-jobs") == [" ".join(tokens)]
    assert "data-jobs" not in await get(make_sharded_page())


async def test_newest_failures_are_listed_by_cause() -> None:
    newest = a_failure("test", ("test_add", "AssertionError: 1 != 2"))
    causes = (
        FailureCause(fingerprint="ab" * 8, line="AssertionError: 1 != 2", count=3, newest=newest),
        FailureCause(fingerprint=None, line=None, count=1, newest=a_failure("lint")),
    )
    text = await get(a_page(a_matrix(("test",), a_row(newest)), causes=causes))
    section = ParsedPage(text.partition('id="failures"')[2].partition("</section>")[0])
    links = section.attributes("href")
    assert f"/crcr/failures/{'ab' * 8}" in links
    assert f"?job={job_token(newest)}" in links
    flat = re.sub(r"<[^>]+>", " ", text.partition('id="failures"')[2].partition("</section>")[0])
    assert "\u00d73" in flat
    assert "No failed test was listed" in flat


async def test_the_day_filter_is_kept_in_links_and_can_be_removed() -> None:
    views = FakeViews(a_page(a_matrix(("build",), a_row(a_job_view()))))
    async with open_client(views) as client:
        text = (await client.get("/crcr/good/backend?day=2025-12-31&failing=1&q=fuse")).text
        for nonsense in ("2025-02-30", "x", "%00", "0" * 300):
            await client.get(f"/crcr/good/backend?day={nonsense}&failing=2")
    assert (str(views.queries[0].day), views.queries[0].only_failing) == ("2025-12-31", True)
    assert {(query.day, query.only_failing) for query in views.queries[1:]} == {(None, False)}
    links = ParsedPage(text).attributes("href")
    assert "Dec 31, 2025 (UTC)" in " ".join(text.split())
    assert "/crcr/good/backend?q=fuse&failing=1" in links, "the chip without the day"
    assert "/crcr/good/backend?q=fuse&day=2025-12-31" in links, "all jobs"
    assert "/crcr/good/backend?q=fuse&failing=1&day=2026-01-01#matrix" in links, "another day of a chart"
    data = [link for link in links if link.startswith("/api/v1/backends/") and "refusals" not in link]
    assert len(data) == 2
    assert all("day=2025-12-31" in link and "failing=1" in link for link in data)


async def test_the_matrix_comes_before_the_charts() -> None:
    text = await get(a_page(a_matrix(("build",), a_row(a_job_view()))))
    positions = [text.index(mark) for mark in ('id="matrix"', 'class="charts trends"', 'id="jobs"')]
    assert positions == sorted(positions)


async def test_the_panel_shows_recent_results_of_the_job_its_oncalls_and_the_retry_command() -> None:
    earlier_jobs = [a_job_view(word, DETAILED.job_name, run_id=f"9{word}") for word in ("failure", "success")]
    base_job = a_job_view("success", DETAILED.job_name, run_id="8", event="push", number=None)
    job_detail = make_detail(
        recent=(DETAILED, *earlier_jobs), on_base=(base_job,), base_ref="main", oncalls=("ada", "grace")
    )
    panel = await get(a_page(), f"?job={job_token(DETAILED)}&fragment=panel", job_detail)
    recent_results = panel.partition('id="panel-results"')[2].partition("</section>")[0]
    assert re.findall(r'<span aria-hidden="true">(.)</span>', recent_results) == ["O", "X", "X", "O"]
    assert recent_results.count('aria-current="true"') == 1
    links = ParsedPage(recent_results).attributes("href")
    assert f"?job={job_token(earlier_jobs[0])}" in links
    assert f"?job={job_token(base_job)}" in links
    assert "On main" in recent_results
    assert "ada, grace" in panel
    command = re.findall(r'id="panel-retry" readonly value="([^"]+)"', panel)
    assert parse_commands(command[0]) == (RetryCommand(BACKEND, "f" * 12),)


@pytest.mark.parametrize(
    "job_detail",
    [
        a_detail(a_job_view("success")),
        a_detail(a_failure("test", number=None, event="push")),
        a_detail(a_failure(), superseded=True),
        a_detail(a_failure(), ingested=True),
    ],
)
async def test_only_a_failed_job_of_a_pull_requests_head_has_a_retry_command(job_detail: JobDetail) -> None:
    panel = await get(a_page(), f"?job={job_token(job_detail.job)}&fragment=panel", job_detail)
    assert "panel-link" in panel
    assert "panel-retry" not in panel
