"""Continuously failing jobs: the JSON API, the CSV and the page."""

import csv
import io
import re
from collections.abc import AsyncIterator
from urllib.parse import quote

import httpx
import pytest

from support.data.base_history import MESSAGE, BaseHistory, fingerprint_of, sha_of
from support.data.store_rows import OTHER, StoreRows
from support.reader_client import reader_client
from unit.show.pages.test_show_log import main_text, page_links

FIELDS = (
    *("backend", "workflow", "job", "since", "failures_in_a_row", "first_bad", "last_good"),
    *("fingerprint", "oncalls", "known"),
)


@pytest.fixture
async def store(store: StoreRows) -> StoreRows:
    store.allowlist()
    return store


@pytest.fixture
def base(store: StoreRows) -> BaseHistory:
    return BaseHistory(store)


@pytest.fixture
async def client(store: StoreRows) -> AsyncIterator[httpx.AsyncClient]:
    async with reader_client(store) as client:
        yield client


def add_failing_jobs(base: BaseHistory) -> None:
    base.push(1, "success", hours_ago=5)
    base.push(2, hours_ago=4)
    base.push(3, hours_ago=3)
    base.push(3, hours_ago=2, job_name="=lint", downstream="flaky/backend", message="ValueError: odd")
    base.night(hours_ago=1, job_name="night")
    base.know()


async def test_the_api_lists_every_failing_job(base: BaseHistory, client: httpx.AsyncClient) -> None:
    add_failing_jobs(base)
    answer = await client.get("/api/v1/failing")
    body = answer.json()
    assert (answer.status_code, body["next"], len(body["items"])) == (200, None, 2)
    first, second = body["items"]
    assert set(FIELDS) <= set(first)
    assert {name: first[name] for name in FIELDS if name not in {"since", "known"}} == {
        "backend": "Good/Backend",
        "workflow": ".github/workflows/ci.yml",
        "job": "build",
        "failures_in_a_row": 2,
        "first_bad": sha_of(2),
        "last_good": sha_of(1),
        "fingerprint": fingerprint_of(),
        "oncalls": ["ada", "grace"],
    }
    assert (first["known"]["url"], first["known"]["state"]) == (
        "https://github.com/good/backend/issues/12",
        "open",
    )
    assert first["sample"] == MESSAGE
    assert (second["backend"], second["last_good"], second["known"]) == ("flaky/backend", None, None)


@pytest.mark.parametrize(
    ("query", "jobs"),
    [
        ("kind=push", ["build", "=lint"]),
        ("kind=nightly", ["night"]),
        ("sort=-since", ["=lint", "build"]),
        ("backend=FLAKY", ["=lint"]),
        ("q=grace", ["build"]),
        ("known=true", ["build"]),
        ("known=false", ["=lint"]),
        ("branch=release", []),
        (f"upstream={OTHER}", []),
    ],
)
async def test_query_parameters_filter_and_sort_the_jobs(
    base: BaseHistory, client: httpx.AsyncClient, query: str, jobs: list[str]
) -> None:
    add_failing_jobs(base)
    listed = (await client.get(f"/api/v1/failing?{query}")).json()["items"]
    assert [job["job"] for job in listed] == jobs


@pytest.mark.parametrize(
    "query",
    ["kind=all", "kind=pull_request", "kind=ingested", "kind=", "sort=color", "limit=0", "cursor=WzFd"],
)
async def test_invalid_query_parameters_are_refused(client: httpx.AsyncClient, query: str) -> None:
    for path in ("/api/v1/failing", "/api/v1/failing.csv"):
        answer = await client.get(f"{path}?{query}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_request")
        if query.startswith("kind"):
            assert "push" in answer.text


async def test_the_api_pages_by_cursor(base: BaseHistory, client: httpx.AsyncClient) -> None:
    for number in range(5):
        base.push(1, job_name=f"job {number}")
    jobs, cursor = [], ""
    while True:
        page = (await client.get(f"/api/v1/failing?limit=2{cursor}")).json()
        jobs += [job["job"] for job in page["items"]]
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
    assert jobs == [f"job {number}" for number in range(5)]


async def test_the_csv_has_a_line_for_each_job(base: BaseHistory, client: httpx.AsyncClient) -> None:
    add_failing_jobs(base)
    answer = await client.get("/api/v1/failing.csv")
    assert answer.headers["content-type"].startswith("text/csv")
    lines = list(csv.DictReader(io.StringIO(answer.text, newline="")))
    assert [(line["backend"], line["job"], line["failures_in_a_row"]) for line in lines] == [
        ("Good/Backend", "build", "2"),
        ("flaky/backend", "'=lint", "1"),
    ]
    assert (lines[0]["oncalls"], lines[0]["known_url"], lines[1]["known_url"]) == (
        "ada grace",
        "https://github.com/good/backend/issues/12",
        "",
    )
    first = await client.get("/api/v1/failing.csv?limit=1")
    rest = await client.get(first.headers["link"][1:].partition(">")[0])
    assert (first.text.count("\r\n"), rest.text.count("flaky/backend")) == (2, 1)


async def test_the_openapi_description_has_the_list_with_an_example(client: httpx.AsyncClient) -> None:
    described = (await client.get("/api/openapi.json")).json()
    parameters = described["paths"]["/api/v1/failing"]["get"]["parameters"]
    assert {parameter["name"] for parameter in parameters} >= {"kind", "cursor", "limit", "upstream", "known"}
    (example,) = described["components"]["schemas"]["FailingJobs"]["examples"]
    assert set(FIELDS) <= set(example["items"][0])


async def test_the_page_lists_the_jobs_with_commits_people_and_issues(
    base: BaseHistory, client: httpx.AsyncClient
) -> None:
    add_failing_jobs(base)
    answer = await client.get("/crcr/failing")
    words = main_text(answer)
    assert (answer.status_code, answer.text.count('data-key="failing-')) == (200, 2)
    for word in ("Good/Backend", "build", MESSAGE, "ada, grace", "no pass on the newest commits of main"):
        assert word in words
    links = page_links(answer)
    assert f"/crcr/commit/{sha_of(2)}?delivery=d-{sha_of(2)}" in links
    assert f"/crcr/commit/{sha_of(1)}?delivery=d-{sha_of(1)}" in links
    assert "/crcr/Good/Backend?jobs=build&kind=push" in links
    assert "https://github.com/good/backend/issues/12" in links
    assert f"/crcr/failures/{fingerprint_of()}" in links
    assert {"/api/v1/failing?kind=push", "/api/v1/failing.csv?kind=push"} <= set(links)
    assert "data-events=" in answer.text, "it is live"


async def test_a_switch_shows_the_jobs_that_fail_at_night(
    base: BaseHistory, client: httpx.AsyncClient
) -> None:
    add_failing_jobs(base)
    links = page_links(await client.get("/crcr/failing"))
    assert "/crcr/failing?kind=nightly" in links
    answer = await client.get("/crcr/failing?kind=nightly")
    assert answer.text.count('data-key="failing-') == 1
    assert "no pass in the newest nights" in main_text(answer)
    assert "/api/v1/failing?kind=nightly" in page_links(answer)


async def test_the_front_page_and_reporting_backends_link_to_it(
    base: BaseHistory, client: httpx.AsyncClient
) -> None:
    assert "/crcr/failing" in page_links(await client.get("/crcr"))
    assert "/crcr/failing?backend=Good/Backend" in page_links(await client.get("/crcr/good/backend"))
    assert "/crcr/failing?backend=listen/only" not in page_links(await client.get("/crcr/listen/only"))


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", "No job fails on main"),
        ("?kind=nightly", "No job fails at night"),
        ("?q=nothing", "No matching jobs"),
        (f"?upstream={OTHER}", "The base branch is not known yet"),
    ],
)
async def test_an_empty_list_shows_the_reason(
    base: BaseHistory, client: httpx.AsyncClient, query: str, expected: str
) -> None:
    answer = await client.get(f"/crcr/failing{query}")
    assert expected in main_text(answer)
    assert "<table" not in answer.text


@pytest.mark.parametrize(
    ("query", "jobs"),
    [
        ("sort=-since", ["=lint", "build"]),
        ("sort=-failures", ["build", "=lint"]),
        ("sort=odd", ["build", "=lint"]),
        ("backend=flaky", ["=lint"]),
        ("q=ada", ["build"]),
        ("known=yes", ["build"]),
        ("known=no", ["=lint"]),
        ("known=maybe", ["build", "=lint"]),
        ("kind=ingested", ["build", "=lint"]),
    ],
)
async def test_the_page_sorts_and_filters(
    base: BaseHistory, client: httpx.AsyncClient, query: str, jobs: list[str]
) -> None:
    add_failing_jobs(base)
    answer = await client.get(f"/crcr/failing?{query}")
    assert re.findall(r'jobs=([^&"]+)&amp;kind=push"', answer.text) == [quote(job) for job in jobs]
    assert ("unclear-known" in answer.text) == (query == "known=maybe")


async def test_links_of_the_page_keep_its_filters(base: BaseHistory, client: httpx.AsyncClient) -> None:
    add_failing_jobs(base)
    links = page_links(await client.get("/crcr/failing?known=yes&sort=-failures&backend=good"))
    assert "/api/v1/failing?backend=good&known=true&sort=-failures&kind=push" in links
    assert "/crcr/failing?backend=good&known=yes&sort=failures" in links
    assert "/crcr/failing?backend=good&known=yes&sort=-last" in links
    assert "/crcr/failing?backend=good&known=yes&sort=-failures&kind=nightly" in links


async def test_a_long_list_has_pages(base: BaseHistory, client: httpx.AsyncClient) -> None:
    for number in range(52):
        base.push(1, job_name=f"job {number:02d}")
    first = await client.get("/crcr/failing?sort=job")
    (following,) = [link for link in page_links(first) if "after=" in link]
    rest = await client.get(following)
    assert [answer.text.count('data-key="failing-') for answer in (first, rest)] == [50, 2]
    assert "job 51" in main_text(rest)
    assert (await client.get("/crcr/failing?after=WzFd")).status_code == 400


async def test_hostile_text_of_downstreams_stays_text(base: BaseHistory, client: httpx.AsyncClient) -> None:
    base.push(1, job_name="<script>alert(1)</script>", message="<b>bold</b> \u202e turned")
    answer = await client.get("/crcr/failing")
    assert "<script>alert" not in answer.text
    assert "<b>bold" not in answer.text
    assert "\u202e" not in answer.text
