"""Bisections: the JSON API, the CSV, the list, and the page with the picture of the range."""

import csv
import io
import re
from collections.abc import AsyncIterator
from html import unescape

import httpx
import pytest

from crcr.decide.bisection.search import RunResult
from support.data.base_history import BaseHistory, fingerprint_of, sha_of
from support.data.store_rows import StoreRows
from support.failures.bisection_rows import FAILED, PASSED, BisectionRows, commit_sha
from support.reader_client import reader_client

LISTED = """
L2:
  - Good/Backend: {bisect: manual}
  - flaky/backend
  - secret/one: {visibility: hidden}
"""
FOUND = [(12, FAILED), (0, PASSED), (6, FAILED), (3, PASSED), (5, FAILED), (4, PASSED)]
FIELDS = {
    *("id", "backend", "workflow", "job", "branch", "state", "outcome", "reason", "good", "bad", "commits", "left"),
    *("left_good", "left_bad", "culprit", "runs", "most_runs", "flake_rate", "who", "created_at", "ends_at"),
    *("finished_at", "sentence"),
}  # fmt: skip
HOSTILE = "<script>alert(1)</script>\u202e\"' &amp;"


@pytest.fixture
async def store(store: StoreRows) -> StoreRows:
    store.allowlist(LISTED)
    return store


@pytest.fixture
def rows(store: StoreRows) -> BisectionRows:
    return BisectionRows(store)


@pytest.fixture
async def client(store: StoreRows) -> AsyncIterator[httpx.AsyncClient]:
    async with reader_client(store) as client:
        yield client


def cells(page: str) -> list[tuple[set[str], str, str]]:
    """Classes, title and letter of each cell of the picture."""
    picture = page[page.index('<div class="range') :].partition("</div>")[0]
    spans = re.findall(r'<span class="([^"]*)" title="([^"]*)">([^<]*)</span>', picture)
    return [(set(classes.split()), title, letter) for classes, title, letter in spans]


def main_words(page: str) -> str:
    """Return the text of the main part."""
    main = page.partition("<main")[2].partition("</main>")[0]
    return " ".join(unescape(re.sub(r"<[^>]*>", "", main)).split())


def positions(page: str, name: str) -> list[int]:
    return [position for position, (classes, _, _) in enumerate(cells(page)) if name in classes]


async def test_the_api_lists_bisections(rows: BisectionRows, client: httpx.AsyncClient) -> None:
    finished = rows.add(FOUND, left_good=4, left_bad=5, outcome="found")
    running = rows.add(job_name="lint")
    body = (await client.get("/api/v1/bisections")).json()
    assert [item["id"] for item in body["items"]] == [running, finished]
    assert (set(body), set(body["items"][0])) == ({"items", "next"}, FIELDS)
    ended = body["items"][1]
    assert (ended["backend"], ended["state"], ended["outcome"]) == ("Good/Backend", "finished", "found")
    assert (ended["culprit"]["sha"], ended["culprit"]["number"]) == (commit_sha(5), 1005)
    by_state = (await client.get("/api/v1/bisections?state=running&backend=good/backend&job=lint")).json()
    assert [item["id"] for item in by_state["items"]] == [running]


async def test_the_api_pages_by_cursor(rows: BisectionRows, client: httpx.AsyncClient) -> None:
    added = [rows.add(job_name=f"job {number}") for number in range(3)]
    first = (await client.get("/api/v1/bisections?limit=2")).json()
    rest = (await client.get("/api/v1/bisections", params={"limit": 2, "cursor": first["next"]})).json()
    assert [item["id"] for item in (*first["items"], *rest["items"])] == added[::-1]
    assert rest["next"] is None


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("?state=paused", 400),
        ("?backend=nobody", 400),
        ("?cursor=WzFd1", 400),
        ("?backend=org/unlisted", 404),
        ("?backend=secret/one", 404),
        ("/999", 404),
        ("/0", 400),
        ("/x", 400),
        ("/999.csv", 404),
    ],
)
async def test_wrong_requests_are_refused(client: httpx.AsyncClient, path: str, status: int) -> None:
    answer = await client.get(f"/api/v1/bisections{path}")
    assert (answer.status_code, bool(answer.json()["error"]["code"])) == (status, True)


async def test_a_bisection_has_its_commits_and_runs(rows: BisectionRows, client: httpx.AsyncClient) -> None:
    added = rows.add([(12, FAILED), (0, None)])
    body = (await client.get(f"/api/v1/bisections/{added}")).json()
    assert set(body) == {"bisection", "commits", "runs"}
    assert [commit["finding"] for commit in body["commits"]] == ["open"] + [None] * 11 + ["bad"]
    assert [run["result"] for run in body["runs"]] == ["failed", None]
    assert body["bisection"]["sentence"] == "Commits left: 12 of 12. Runs sent: 2 of at most 12."


async def test_hidden_backends_have_no_bisections(rows: BisectionRows, client: httpx.AsyncClient) -> None:
    added = rows.add(FOUND, downstream="secret/one", left_good=4, left_bad=5, outcome="found")
    assert (await client.get("/api/v1/bisections")).json()["items"] == []
    for path in (
        f"/api/v1/bisections/{added}",
        f"/api/v1/bisections/{added}.csv",
        f"/crcr/bisections/{added}",
    ):
        answer = await client.get(path, headers={"accept": "text/html"})
        assert (answer.status_code, "secret" in answer.text) == (404, False)
    assert "secret" not in (await client.get("/crcr/bisections")).text
    assert "no such backend" in (await client.get("/crcr/bisections?backend=secret/one")).text


async def test_the_csv_has_a_line_for_each_bisection_and_for_each_run(
    rows: BisectionRows, client: httpx.AsyncClient
) -> None:
    finished = rows.add(FOUND, left_good=4, left_bad=5, outcome="found", job_name="=job()")
    rows.add()
    lines = list(csv.DictReader(io.StringIO((await client.get("/api/v1/bisections.csv")).text)))
    assert [line["job"] for line in lines] == ["build", "'=job()"]
    assert [line["culprit_number"] for line in lines] == ["", "1005"]
    runs = csv.DictReader(io.StringIO((await client.get(f"/api/v1/bisections/{finished}.csv")).text))
    assert [run["result"] for run in runs] == [result.value for _, result in FOUND]


async def test_an_empty_list_explains_how_to_start_a_bisection(client: httpx.AsyncClient) -> None:
    page = main_words((await client.get("/crcr/bisections")).text)
    for word in ("No bisection yet", "bisect: manual", "/crcr bisect", "crcr bisect"):
        assert word in page


async def test_the_list_filters_and_pages(rows: BisectionRows, client: httpx.AsyncClient) -> None:
    for number in range(51):
        rows.add(job_name=f"job {number}")
    page = (await client.get("/crcr/bisections")).text
    assert page.count('data-key="bisection-') == 50
    older = re.search(r'rel="next" href="([^"]+)"', page)
    assert older
    assert (await client.get(older[1].replace("&amp;", "&"))).text.count('data-key="bisection-') == 1
    filtered = (await client.get("/crcr/bisections?job=job+7")).text
    assert filtered.count('data-key="bisection-') == 1
    assert "No matching bisections" in (await client.get("/crcr/bisections?state=finished")).text
    assert "there is no such state" in (await client.get("/crcr/bisections?state=paused")).text
    assert "give owner/repo" in (await client.get("/crcr/bisections?backend=x")).text


async def test_the_picture_has_a_cell_for_each_commit(rows: BisectionRows, client: httpx.AsyncClient) -> None:
    runs = [(12, FAILED), (0, PASSED), (6, RunResult.FAILED_OTHERWISE), (7, FAILED), (3, None)]
    page = (await client.get(f"/crcr/bisections/{rows.add(runs, left_bad=7)}")).text
    letters = "".join(letter for _, _, letter in cells(page))
    assert letters == "O··?··~X····X"
    assert (positions(page, "end"), positions(page, "left")) == ([0, 12], [1, 2, 3, 4, 5, 6, 7])
    assert (positions(page, "from"), positions(page, "until")) == ([1], [7])
    assert cells(page)[7][1] == (
        "007c0ffeec (#1007) Change 7 of the operators (#1007): bad, may be the culprit"
    )
    text = main_words(page)
    assert "5 of at most 12 runs" in text
    assert "one failure of a commit is enough" in text
    assert "Commits left: 7 of 12" in text


async def test_the_culprit_is_marked_in_the_picture(rows: BisectionRows, client: httpx.AsyncClient) -> None:
    page = (
        await client.get(f"/crcr/bisections/{rows.add(FOUND, left_good=4, left_bad=5, outcome='found')}")
    ).text
    assert positions(page, "culprit") == [5]
    assert cells(page)[5][1].endswith("bad, the culprit")
    assert f"/compare/{commit_sha(4)}...{commit_sha(5)}" in page
    assert "005c0ffeec (#1005) broke it" in main_words(page)


async def test_a_commit_that_needed_another_run_is_undecided_at_the_end(
    rows: BisectionRows, client: httpx.AsyncClient
) -> None:
    added = rows.add([(12, FAILED)], flake_rate=0.05, outcome="stopped", reason="stopped by ada")
    page = (await client.get(f"/crcr/bisections/{added}")).text
    assert (cells(page)[12][2], "undecided" in cells(page)[12][1]) == ("~", True)
    assert "a commit is bad after 2 failures" in main_words(page)


async def test_hostile_text_stays_text(rows: BisectionRows, client: httpx.AsyncClient) -> None:
    added = rows.add(FOUND, left_good=4, left_bad=5, outcome="found", job_name=HOSTILE, titles={5: HOSTILE})
    rows.store.delivery(number=None, head_sha=commit_sha(5))
    for path in ("/crcr/bisections", f"/crcr/bisections/{added}", f"/crcr/commit/{commit_sha(5)}"):
        page = (await client.get(path)).text
        assert "<script>alert" not in page
        assert "\u202e" not in page
        assert "&lt;script&gt;" in page


async def test_a_range_of_500_commits_has_small_cells(rows: BisectionRows, client: httpx.AsyncClient) -> None:
    page = (await client.get(f"/crcr/bisections/{rows.add(commits=500)}")).text
    assert len(cells(page)) == 501
    assert 'class="range many"' in page


async def test_a_breakage_shows_its_bisection(
    store: StoreRows, rows: BisectionRows, client: httpx.AsyncClient
) -> None:
    base = BaseHistory(store)
    base.push(1, "success", hours_ago=9)
    base.push(4, hours_ago=8)
    store.failure("d-x", "good/backend", "NotImplementedError: aten::foo")
    added = rows.add(left_bad=3)
    for path in ("/crcr/good/backend?kind=push", f"/crcr/failures/{fingerprint_of()}"):
        page = (await client.get(path)).text
        assert f"bisection {added}: 3 of 12 commits left" in main_words(page)
        assert f"/crcr/bisections/{added}" in page
        assert "/crcr/admin/bisect" not in page
    (culprits,) = (await client.get("/api/v1/culprits")).json()
    assert (culprits["bisection"], culprits["range"]["good"]) == (added, sha_of(1))
    assert "may_bisect" not in culprits


async def test_the_delivery_log_marks_bisection_runs(
    store: StoreRows, rows: BisectionRows, client: httpx.AsyncClient
) -> None:
    added = rows.add()
    guid = store.delivery(
        number=None, event="crcr_bisection", source="bisection", ref=f"refs/heads/crcr-bisect/{added}"
    )
    store.dispatch(guid, event="crcr_bisection", number=None, test=1)
    for path in ("/crcr/deliveries?event=crcr_bisection", f"/crcr/deliveries/{guid}"):
        page = (await client.get(path)).text
        assert f"/crcr/bisections/{added}" in page
        assert ">bisection</span>" in page
        assert ">test</span>" not in page
    assert '<option value="crcr_bisection"' in (await client.get("/crcr/deliveries")).text


async def test_the_failure_pages_link_to_the_list(client: httpx.AsyncClient) -> None:
    for path in ("/crcr/failing", "/crcr/failures"):
        assert 'href="/crcr/bisections"' in (await client.get(path)).text


async def test_a_run_without_a_result_is_shown_as_not_awaited_after_the_end(
    rows: BisectionRows, client: httpx.AsyncClient
) -> None:
    running, stopped = rows.add([(12, None)]), rows.add([(12, None)], outcome="stopped", job_name="lint")
    pages = [(await client.get(f"/crcr/bisections/{number}")).text for number in (running, stopped)]
    assert ["not awaited" in main_words(page) for page in pages] == [False, True]


@pytest.mark.parametrize(("who", "is_automatic"), [("crcr", False), ("ada", False), ("the relay", True)])
async def test_only_a_bisection_started_by_the_relay_is_called_automatic(
    rows: BisectionRows, client: httpx.AsyncClient, who: str, is_automatic: bool
) -> None:
    page = main_words((await client.get(f"/crcr/bisections/{rows.add(who=who)}")).text)
    assert f"by {who}" in page
    assert ("bisect: auto" in page) is is_automatic
