"""A backend's own page as a browser gets it: matrix, folded shards, filters, details, and text that stays text."""

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
    """A store that has just what a test gives it, and remembers what it was asked."""

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
    """Views that show what the running test gives: templates are then compiled once for all tests."""

    now: FakeViews

    def for_admins(self) -> FakeViews:
        return self.now

    def __getattr__(self, name: str) -> Any:
        return getattr(self.now, name)


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
async def browsing(shown: FakeViews, *, admin: bool = False) -> AsyncIterator[httpx.AsyncClient]:
    views, app = site()
    views.now = shown
    transport = httpx.ASGITransport(AsAdmin(app) if admin else app)
    async with httpx.AsyncClient(transport=transport, base_url="http://relay") as client:
        yield client


async def get(
    page: BackendPage, query: str = "", detail: JobDetail | None = None, *, admin: bool = False
) -> str:
    async with browsing(FakeViews(page, detail), admin=admin) as client:
        answer = await client.get(f"/crcr/good/backend{query}")
    assert answer.status_code == 200
    return answer.text


class Grid(HTMLParser):
    """The matrix as a reader sees it: header texts, and for each row its cells as (class, text, title, link)."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.heads: list[str] = []
        self.rows: list[list[dict[str, str]]] = []
        self._inside = False
        self._cell: dict[str, str] | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "table" and given.get("id") == "matrix-table":
            self._inside = True
        if not self._inside:
            return
        if tag == "tr":
            self.rows.append([])
        if tag in {"td", "th"}:
            self._cell = {
                "class": given.get("class", ""),
                "text": "",
                "title": given.get("title", ""),
                "href": "",
            }
            self.rows[-1].append(self._cell)
        if tag == "a" and self._cell is not None:
            self._cell["href"] = given.get("href", "")
            self._cell["title"] = self._cell["title"] or given.get("title", "")

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
        return [each for each in self.rows[2 + row][2:] if each["class"] != "fill"]

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
async def test_every_state_has_its_letter_and_tone(
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


@pytest.mark.parametrize(("dispatch", "said", "tone"), UNSENT)
async def test_an_event_without_jobs_says_how_far_it_came(dispatch: Any, said: str, tone: str) -> None:
    rows = (a_row(None, dispatch=dispatch), a_row(a_job_view(), key="d-2"))
    text = await get(a_page(a_matrix(("build",), *rows)))
    grid = Grid(text)
    assert said in grid.state()
    assert f'<span class="chip {tone}">' in text
    assert [cell["class"] for cell in grid.cells()] == ["nothing"]
    if dispatch is not None and dispatch.reason:
        assert dispatch.reason in grid.cells()[0]["text"]


async def test_a_row_says_the_worst_of_its_jobs_and_how_many() -> None:
    names = ("a", "b", "c")
    jobs = [a_job_view("success", "a"), a_failure("b"), a_job_view("success", "c")]
    rows = [a_row(*jobs), a_row(*[replace(jobs[0], job_name=name) for name in names], key="2")]
    rows += [a_row(a_job_view("cancelled", "a"), None, None, key="3")]
    grid = Grid(await get(a_page(a_matrix(names, *rows))))
    assert [grid.state(row) for row in range(3)] == ["X1 of 3 failed", "O3 passed", "C1 inconclusive"]


async def test_an_event_whose_jobs_are_in_other_columns_is_not_said_to_be_silent() -> None:
    rows = (a_row(None), a_row(a_job_view(), key="d-2"))
    assert "no such job" in Grid(await get(a_page(a_matrix(("build",), *rows)), "?jobs=build")).state()
    assert "no such job" in Grid(await get(a_page(a_matrix(("build",), *rows, columns_left_out=3)))).state()


async def test_fault_47_a_build_of_65_jobs_is_one_row() -> None:
    names = tuple(f"job {letter}{other}" for letter in "abcdefghijklm" for other in "vwxyz")
    text = await get(a_page(a_matrix(names, a_row(*[a_job_view("success", name) for name in names]))))
    grid = Grid(text)
    assert (len(grid.rows), len(grid.cells()), grid.state()) == (3, 65, "O65 passed")


SHARDS = tuple(f"test ({number}, 10)" for number in range(1, 11))


def sharded(*failed: int, missing: int = 0) -> BackendPage:
    cells = [
        a_job_view("failure" if place in failed else "success", name) for place, name in enumerate(SHARDS)
    ]
    shown = [None if place < missing else cell for place, cell in enumerate(cells)]
    return a_page(a_matrix(("build", *SHARDS), a_row(a_job_view("success", "build"), *shown)))


@pytest.mark.parametrize(
    ("failed", "missing", "text", "tone"),
    [((2, 5), 0, "X2/10", "bad"), ((), 0, "O10", "ok"), ((), 3, "O7/10", "off"), ((9,), 3, "X1/10", "bad")],
)
async def test_shards_are_folded_into_their_worst(
    failed: tuple[int, ...], missing: int, text: str, tone: str
) -> None:
    grid = Grid(await get(sharded(*failed, missing=missing), "?columns=name"))
    assert grid.names == ["build", "test (…, 10)\u00d710"]
    assert [(cell["text"], cell["class"]) for cell in grid.cells()][1] == (text, tone)


async def test_a_folded_group_opens_by_its_link_and_closes_again() -> None:
    page = sharded(2)
    link = Grid(await get(page, "?columns=name")).cells()[1]["href"]
    grid = Grid(await get(page, link.partition("#")[0]))
    assert grid.names == ["build", *SHARDS]
    assert [cell["text"] for cell in grid.cells()] == ["O", "O", "O", "X", *"OOOOOOO"]
    close = next(cell["href"] for cell in grid.rows[1] if "opened" in cell["class"])
    assert Grid(await get(page, close.partition("#")[0])).names == ["build", "test (…, 10)\u00d710"]
    assert Grid(await get(page, "?columns=name&open=all")).names == ["build", *SHARDS]
    assert Grid(await get(page, "?columns=name&open=nonsense,%00")).names == ["build", "test (…, 10)\u00d710"]


async def test_columns_stand_under_their_workflow() -> None:
    columns = (Column("a.yml", "Linux", "x"), Column("a.yml", "Linux", "y"), Column("b.yml", "Mac", "x"))
    matrix = replace(a_matrix((), a_row(*[a_job_view()] * 3)), columns=columns)
    heads = Grid(await get(a_page(matrix))).rows[0]
    assert [head["text"] for head in heads if head["class"] == "flow"] == ["Linux", "Mac"]


async def test_the_matrix_of_eighty_jobs_and_fifty_events_stays_small() -> None:
    names = tuple(
        f"linux / job {letter}{other} on a runner" for letter in "abcdefgh" for other in "qwertyuiop"
    )
    rows = [
        a_row(
            *[a_job_view("success", name, delivery="0" * 36, run_id="1" * 11) for name in names],
            key=str(each),
        )
        for each in range(50)
    ]
    text = await get(a_page(a_matrix(names, *rows)))
    assert len(Grid(text).rows) == 52
    assert len(text.encode()) < 1_300_000


async def test_old_and_test_events_are_marked() -> None:
    rows = (a_row(a_job_view(), superseded=True), a_row(a_job_view(), key="2", test=True))
    text = await get(a_page(a_matrix(("build",), *rows)), "?older=1")
    grid = Grid(text)
    assert "older commit" in grid.rows[2][0]["text"]
    assert "test" in grid.rows[3][0]["text"]
    assert text.count('class="aged"') == 2


async def test_what_was_chosen_is_what_the_store_is_asked() -> None:
    job = a_job_view()
    shown = FakeViews(a_page())
    async with browsing(shown) as client:
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
    asked, plain = shown.queries
    assert (asked.job, asked.author, asked.result, asked.text) == ("lin", "ada", CountedAs.FAILURE, "#7")
    assert (asked.span, asked.kind, asked.older, asked.after) == (Span.WEEK, ResultKind.PUSH, True, (1, "a"))
    assert asked.detail is not None
    assert asked.detail.job_name == "build"
    assert plain == BackendQuery(upstream=UPSTREAM, downstream=BACKEND, whole_jobs=False)


async def test_a_cursor_that_is_not_ours_is_a_page_that_says_so() -> None:
    async with browsing(FakeViews(a_page())) as client:
        answer = await client.get("/crcr/good/backend?after=%7B")
    assert answer.status_code == 400
    assert "the cursor is not one of ours" in answer.text


async def test_links_keep_the_filters_and_lead_on() -> None:
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
    ("query", "said"),
    [
        ("?q=x", "No matching events"),
        ("", "No dispatches in 14d"),
        ("?kind=nightly", "No nightly runs reported"),
        ("?kind=ingested", "No results from other relays"),
        ("?after=WzEsImEiXQ", "Nothing older"),
    ],
)
async def test_an_empty_matrix_says_why(query: str, said: str) -> None:
    assert said in await get(a_page(), query)


async def test_the_tab_of_other_relays_is_there_only_where_they_tell() -> None:
    assert "Other relays" not in await get(a_page())
    assert "Other relays" in await get(a_page(ingests=True))


async def test_the_numbers_are_those_of_the_figures() -> None:
    figured = replace(
        figures(Tally(success=6, failure=2, other=3, timed_out=1)), running=4, left_out=LeftOut(5, 1)
    )
    text = re.sub(r"<[^>]+>", "\n", await get(a_page(summary=a_summary(figures=figured, sent=9))))
    for said in ("75.0%", "6 of 8 jobs", "including 1 timeout", "3 other", "1m", "10m", "P50", "P95"):
        assert said in text, said
    flat = " ".join(text.split())
    assert "5 results for older commits or runs, 1 earlier attempt" in flat
    assert "neutral jobs (3) do not count" in flat


async def test_no_results_are_never_a_rate() -> None:
    text = await get(a_page(summary=a_summary(figures=figures()), jobs=()))
    assert "no results in 14d" in text
    assert "100.0%" not in re.sub(r"<svg.*?</svg>", "", text, flags=re.DOTALL)


async def test_the_trends_are_pictures_with_values() -> None:
    text = await get(a_page())
    assert text.count('<figure class="chart">') == 4
    assert "Pass rate" in text
    assert "Timeouts" in text


async def test_the_heading_says_level_marks_and_people() -> None:
    levels = (
        LevelChange(NOW - timedelta(days=9), Level.L2, 3),
        LevelChange(NOW - timedelta(days=30), None, 2),
    )
    summary = a_summary(
        alarm="the id changed", silent=True, suspended=True, probe=True, hidden=True, parked=2
    )
    text = await get(a_page(summary=summary, levels=levels))
    for said in (
        "Good/Backend",
        "since",
        "ada, grace",
        "NPU 910B",
        "the id changed",
        "This backend is silent",
        'href="/crcr/onboarding?repository=Good/Backend">check the set-up</a>',
    ):
        assert said in text, said
    for said in (
        "This backend is suspended",
        "probe",
        "hidden",
        "2 undelivered",
        "not listed",
        "allowlist version 3",
    ):
        assert said in text, said
    assert "https://github.com/Good/Backend" in ParsedPage(text).attributes("href")
    assert ParsedPage(text).attributes("data-backend") == ["good/backend"]


async def test_acts_are_for_administrators() -> None:
    page = a_page(summary=a_summary(alarm="the id changed", parked=2))
    assert "/crcr/admin/" not in await get(page)
    acts = ParsedPage(await get(page, admin=True)).attributes("action")
    assert {"/crcr/admin/suspend", "/crcr/admin/retry", "/crcr/admin/rebind"} <= set(acts)
    lifted = ParsedPage(await get(a_page(summary=a_summary(suspended=True)), admin=True)).attributes("action")
    assert "/crcr/admin/lift" in lifted
    assert "/crcr/admin/suspend" not in lifted


async def test_a_backend_that_shows_its_name_only_shows_nothing_else() -> None:
    named = a_summary(name_only=True, figures=None, oncalls=(), hardware=None, device=None)
    text = await get(a_page(summary=named, matrix=a_matrix(("secret job",), a_row(a_job_view()))))
    assert "shows its name only" in text
    assert "secret job" not in text
    assert "matrix-table" not in text


async def test_an_l1_backend_says_that_it_is_only_notified() -> None:
    row = a_row(dispatch=a_dispatch(level=Level.L1))
    text = await get(a_page(a_matrix((), row), summary=a_summary(level=Level.L1, figures=None), jobs=()))
    assert "its results are not recorded" in text
    assert "notified" in Grid(text).state()
    assert '"chip ok"' not in text


async def test_the_badge_code_is_whole() -> None:
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
def test_the_table_of_jobs_sorts(sort: str | None, names: str) -> None:
    assert [job.column.job_name for job in sort_jobs(JOBS, sort)] == [*names]


async def test_a_jobs_row_filters_the_matrix() -> None:
    text = await get(a_page(jobs=JOBS), "?sort=-failure&older=1")
    assert "/crcr/good/backend?older=1&sort=-failure&jobs=b#matrix" in ParsedPage(text).attributes("href")
    assert "descending" in ParsedPage(text).attributes("aria-sort")


def test_what_is_not_understood_is_not_kept() -> None:
    given = QueryParams("result=x&older=2&sort=x&q=&jobs=%20&open=a&after=b&other=1")
    assert matrix_parameters(given) == {"open": "a", "after": "b"}


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


def detail(job: JobView = DETAILED, **more: Any) -> JobDetail:
    earlier = replace(job, attempt=1, conclusion=Conclusion.SUCCESS, failed_tests=())
    return a_detail(job, attempts=(job, earlier), environment='{"driver": "24.1", "n": [1]}', **more)


@pytest.mark.parametrize("alone", [True, False])
async def test_the_panel_says_everything_about_a_job(alone: bool) -> None:
    query = f"?job={job_token(DETAILED)}&q=fuse" + ("&fragment=panel" if alone else "")
    text = await get(a_page(), query, detail(superseded=True, test=True))
    panel = text[text.index("<aside") : text.index("</aside>")]
    flat = " ".join(re.sub(r"<[^>]+>", " ", panel).split())
    for said in (
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
        assert said in flat, said
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


async def test_an_expected_outcome_is_told() -> None:
    job = a_job_view("failure", expected=Conclusion.FAILURE)
    text = await get(a_page(), f"?job={job_token(job)}&fragment=panel", a_detail(job))
    flat = " ".join(re.sub(r"<[^>]+>", " ", text).split())
    assert "Expected outcome: failure; any other counts as a failure. This one counts as success." in flat


@pytest.mark.parametrize("token", ["nonsense", "WyJ4Il0", "%00", "x" * 9_000, "<script>"])
@pytest.mark.parametrize("fragment", ["", "&fragment=panel", "&fragment=main"])
async def test_a_token_of_no_job_says_so_and_the_page_is_still_there(token: str, fragment: str) -> None:
    async with browsing(FakeViews(a_page(a_matrix(("build",), a_row(a_job_view()))))) as client:
        answer = await client.get(f"/crcr/good/backend?job={token}{fragment}")
    assert answer.status_code == 200
    assert "No such job" in answer.text
    assert ("matrix-table" in answer.text) is (fragment != "&fragment=panel")
    assert_inert(ParsedPage(answer.text), answer.text)


async def test_a_job_that_is_gone_says_so() -> None:
    shown = FakeViews(a_page())
    token = job_token(DETAILED)
    async with browsing(shown) as client:
        whole = await client.get(f"/crcr/good/backend?job={token}")
        alone = await client.get(f"/crcr/good/backend?job={token}&fragment=panel")
    assert (whole.status_code, alone.status_code) == (200, 200)
    assert "No such job" in whole.text
    assert "No such job" in alone.text
    assert [key.attempt for key in shown.keys] == [2]


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
async def test_fault_29_hostile_text_is_only_text(hostile: str, fragment: str) -> None:
    page, told = hostile_page(hostile)
    token = job_token(replace(DETAILED, job_name="any"))
    text = await get(page, f"?job={token}&q=%3Cscript%3E&jobs=%22%3E%3Cimg+src%3Dx%3E{fragment}", told)
    parsed = ParsedPage(text)
    assert_inert(parsed, text)
    assert len(text) < 200_000
    assert ">49<" not in text.replace(" ", "")
    assert not [tag for tag, _ in parsed.elements if tag == "img" and fragment]
    if len(hostile) < 100 and fragment != "&fragment=panel":
        grid = Grid(text)
        said = hostile.translate({0x202E: "[U+202E]", 0x2066: "[U+2066]", 0x200B: "[U+200B]"})
        said = re.sub("[\x00-\x1f]", lambda found: chr(0x2400 + ord(found[0])), said)
        assert grid.names == [said]


@pytest.mark.parametrize("hostile", HOSTILE, ids=range(len(HOSTILE)))
async def test_hostile_text_of_commits_is_only_text(hostile: str) -> None:
    page, told = hostile_page("plain")
    views = FakeViews(page, told)
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
    async with browsing(views) as client:
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
def test_an_environment_is_shown_as_names_and_values(environment: str | None, shown: tuple[Any, ...]) -> None:
    assert parse_environment(environment) == shown


def test_an_endless_environment_is_cut() -> None:
    found = parse_environment(str({f"k{number}": 1 for number in range(100)}).replace("'", '"'))
    assert len(found) == 41
    assert found[-1] == ("", "and 60 more")


async def test_the_panel_alone_is_read_without_the_matrix() -> None:
    shown = FakeViews(a_page(), detail())
    async with browsing(shown) as client:
        await client.get(f"/crcr/good/backend?job={job_token(DETAILED)}&fragment=panel")
    assert shown.queries == []


async def test_the_same_view_is_there_as_json_and_csv() -> None:
    text = await get(a_page(), "?jobs=lin&q=x&older=1&sort=job&after=WzEsImEiXQ&range=7d")
    matrix_parameters = "job=lin&q=x&older=1&cursor=WzEsImEiXQ&range=7d"
    links = ParsedPage(text).attributes("href")
    assert f"/api/v1/backends/Good/Backend?{matrix_parameters}" in links
    assert f"/api/v1/backends/Good/Backend.csv?{matrix_parameters}" in links


async def test_a_row_is_not_green_while_jobs_are_left_out() -> None:
    row = a_row(a_job_view())
    for left_out, tone in ((0, "ok"), (3, "off")):
        text = await get(a_page(a_matrix(("build",), row, columns_left_out=left_out)))
        assert Grid(text).state() == "O1 passed"
        assert f'class="chip {tone}"' in text.partition('id="row-')[2].partition("</tr>")[0]


async def test_the_legend_has_every_letter_once() -> None:
    text = await get(a_page(a_matrix(("build",), a_row(a_job_view()))))
    legend = text.partition('id="legend"')[2].partition("</details>")[0]
    said = re.findall(r'<b aria-hidden="true">(.)</b><span class="word">([^<]+)<', legend)
    letters = [letter for letter, _ in said]
    assert sorted(letters) == sorted(set(letters))
    assert {("T", "timed out or silent"), ("X", "failed or no conclusion")} <= set(said)
    shown = {job_status(a_job_view(conclusion.value)).letter for conclusion in Conclusion if conclusion.value}
    shown |= {status.letter for status in BACKENDS.values()} | {"!", "?", NOTHING.letter}
    assert shown <= set(letters)


PLATFORM = "linux-jammy-py3.10-clang12-openreg / "


async def test_long_heads_keep_the_end_that_tells_them_apart() -> None:
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
        (["a" * 50 + "1", "a" * 50 + "2"], [f"{'a' * 12}…{'a' * 22}{each}" for each in "12"]),
    ],
)
def test_a_head_that_does_not_fit_loses_its_middle(names: list[str], heads: list[str]) -> None:
    assert shorten_names(names) == heads
    assert all(len(head) <= ROOM for head in shorten_names(names))


async def test_the_last_workflow_may_use_the_room_beside_its_columns() -> None:
    text = await get(a_page(a_matrix(("build",), a_row(a_job_view()))))
    assert re.search(r'<th scope="colgroup" colspan="2" class="flow"', text)
    assert text.count('<th class="fill"></th>') == 1


async def test_acts_stand_in_a_block_that_may_hold_forms() -> None:
    text = await get(a_page(summary=a_summary(parked=2)), admin=True)
    assert '<div class="acts">' in text
    assert '<p class="acts">' not in text


async def test_the_level_is_told_by_its_day() -> None:
    for at, said in ((NOW - timedelta(hours=9), ""), (NOW - timedelta(days=9), f", {NOW.year - 1}")):
        text = await get(a_page(levels=(LevelChange(at, Level.L2, 3),)))
        (day,) = set(re.findall(r'<span class="day" title="([^"]+)">([^<]+)</span>', text))
        assert day == (f"{at:%Y-%m-%d %H:%M:%S} UTC", f"{at:%b} {at.day}{said}")


async def test_nothing_sent_is_said_only_where_something_could_be() -> None:
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
def test_the_address_of_a_job_tells_that_of_its_run(url: str | None, run: str | None, job: bool) -> None:
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


def flows(*rows: tuple[str, ...]) -> BackendPage:
    """Rows of results, the newest first, for three jobs of one workflow and one of another."""
    columns = (*(Column("a.yml", "Linux", name) for name in "xyz"), Column("b.yml", "Mac", "x"))
    made = [
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
    return a_page(replace(a_matrix((), *made), columns=columns))


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
    page = flows(*(tuple(words[letter] for letter in row) for row in rows))
    grid = Grid(await get(page, query))
    assert grid.names == list(names)
    assert [head["text"] for head in grid.rows[0] if head["class"] == "flow"] == spans
    assert sum(cell["text"] == "X" for cell in grid.cells()) == rows[0].count("X")


async def test_a_cell_says_job_result_duration_and_the_first_line_of_a_failure() -> None:
    quick = a_job_view("success", "lint <x>", execution_s=0.4)
    failed = a_failure("test", run_id="11")
    key = (failed.delivery, failed.workflow, failed.run_id, failed.attempt, failed.job_name)
    page = a_page(
        a_matrix(("lint <x>", "test"), a_row(quick, failed)),
        lines={key: FailureLine("0" * 16, '"><b>1 != 2')},
    )
    titles = [cell["title"] for cell in Grid(await get(page, "?columns=name")).cells()]
    assert titles == ["lint <x>: success, <1s", 'test: failure, 1h\n"><b>1 != 2']


async def test_a_folded_group_names_its_failed_jobs_for_the_keys() -> None:
    text = await get(sharded(2, 5))
    tokens = [job_token(a_job_view("failure", SHARDS[place])) for place in (2, 5)]
    assert ParsedPage(text).attributes("data-jobs") == [" ".join(tokens)]
    assert "data-jobs" not in await get(sharded())


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


async def test_a_day_is_a_filter_that_stays_and_can_be_removed() -> None:
    shown = FakeViews(a_page(a_matrix(("build",), a_row(a_job_view()))))
    async with browsing(shown) as client:
        text = (await client.get("/crcr/good/backend?day=2025-12-31&failing=1&q=fuse")).text
        for nonsense in ("2025-02-30", "x", "%00", "0" * 300):
            await client.get(f"/crcr/good/backend?day={nonsense}&failing=2")
    assert (str(shown.queries[0].day), shown.queries[0].only_failing) == ("2025-12-31", True)
    assert {(query.day, query.only_failing) for query in shown.queries[1:]} == {(None, False)}
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
    places = [text.index(mark) for mark in ('id="matrix"', 'class="charts trends"', 'id="jobs"')]
    assert places == sorted(places)


async def test_the_panel_shows_the_course_of_a_job_its_oncalls_and_the_command_that_repeats_it() -> None:
    before = [a_job_view(word, DETAILED.job_name, run_id=f"9{word}") for word in ("failure", "success")]
    base = a_job_view("success", DETAILED.job_name, run_id="8", event="push", number=None)
    told = detail(recent=(DETAILED, *before), on_base=(base,), base_ref="main", oncalls=("ada", "grace"))
    panel = await get(a_page(), f"?job={job_token(DETAILED)}&fragment=panel", told)
    course = panel.partition('id="panel-results"')[2].partition("</section>")[0]
    assert re.findall(r'<span aria-hidden="true">(.)</span>', course) == ["O", "X", "X", "O"]
    assert course.count('aria-current="true"') == 1
    links = ParsedPage(course).attributes("href")
    assert f"?job={job_token(before[0])}" in links
    assert f"?job={job_token(base)}" in links
    assert "On main" in course
    assert "ada, grace" in panel
    command = re.findall(r'id="panel-retry" readonly value="([^"]+)"', panel)
    assert parse_commands(command[0]) == (RetryCommand(BACKEND, "f" * 12),)


@pytest.mark.parametrize(
    "told",
    [
        a_detail(a_job_view("success")),
        a_detail(a_failure("test", number=None, event="push")),
        a_detail(a_failure(), superseded=True),
        a_detail(a_failure(), ingested=True),
    ],
)
async def test_only_a_failed_job_of_a_pull_requests_head_can_be_repeated(told: JobDetail) -> None:
    panel = await get(a_page(), f"?job={job_token(told.job)}&fragment=panel", told)
    assert "panel-link" in panel
    assert "panel-retry" not in panel
