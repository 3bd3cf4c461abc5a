"""The pages: hostile text, headers, empty states, fragments, problems."""

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from crcr.decide.statistics.window import Span
from crcr.errors import StoreUnavailable
from crcr.record.schema import main_tables
from crcr.record.statistics.rebuild_all_sums import rebuild_sums
from crcr.show.pages.frame import Frame
from support.data.store_rows import OTHER, UPSTREAM, StoreRows
from support.page_app import page_app
from support.page_reader import HOSTILE, ParsedPage, assert_inert


@pytest.fixture
async def browser(store: StoreRows) -> AsyncIterator[httpx.AsyncClient]:
    async with browse(Frame(store.views, upstreams=(UPSTREAM, OTHER), clock=store.clock)) as client:
        yield client


def browse(frame: Frame) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(page_app(frame))
    return httpx.AsyncClient(transport=transport, base_url="http://relay")


async def fill_with(store: StoreRows, hostile: str) -> None:
    """Put the same hostile text into every field that a downstream, an author or a file can set."""
    storable = hostile.replace("\x00", "\x01")
    store.allowlist()
    delivery = store.delivery(ref=storable, head_sha=storable, reason=storable)
    row = {"upstream": UPSTREAM.key, "number": 7, "head_sha": "f" * 40, "updated_at": 0, "is_open": 1}
    more = {"draft": 0, "labels": "[]", "base_ref": "main", "title": storable, "author": storable}
    store.add(main_tables.pulls, {**row, **more})
    store.dispatch(delivery, reason=storable, head_sha=storable, action=storable)
    other = store.delivery(number=None, ref=storable)
    store.dispatch(other, number=None, event=storable, action=None)
    tests = json.dumps([{"name": hostile, "file": hostile, "message": hostile}])
    names = {"job_name": storable, "workflow": storable, "workflow_name": storable, "run_id": storable}
    links = {"url": storable, "artifact_url": storable, "environment": storable, "check_run_text": storable}
    failed = {"failed_tests": tests, "tests_failed": 1, "tests_total": 2}
    store.job(delivery, "failure", **names, **links, **failed, disputed=1, disputed_conclusion="success")
    repository = {"upstream": UPSTREAM.key, "downstream": "good/backend", "name": "Good/Backend"}
    store.add(main_tables.repositories, {**repository, "alarm": storable})
    store.effect("parked", last_error=storable)


@pytest.mark.parametrize("hostile", HOSTILE, ids=range(len(HOSTILE)))
async def test_fault_29_hostile_text_stays_text(
    store: StoreRows, browser: httpx.AsyncClient, hostile: str
) -> None:
    await fill_with(store, hostile)
    for path in ("/crcr", "/crcr/good/backend", "/crcr/good/backend?fragment=main"):
        answer = await browser.get(path)
        assert answer.status_code == 200
        assert len(answer.content) < 100_000
        assert_inert(ParsedPage(answer.text), answer.text)
        assert "49" not in re.findall(r">\s*(\d+)\s*<", answer.text)


@pytest.mark.parametrize("hostile", HOSTILE[:6])
async def test_fault_29_hostile_queries_and_paths_are_answered_harmlessly(
    browser: httpx.AsyncClient, hostile: str
) -> None:
    for params in ({"upstream": hostile}, {"range": hostile}, {"fragment": hostile}):
        answer = await browser.get("/crcr", params=params)
        assert answer.status_code in {200, 404}
        assert_inert(ParsedPage(answer.text), answer.text)
    answer = await browser.get(f"/crcr/{hostile.replace('/', '')}/x")
    assert answer.status_code == 404
    assert_inert(ParsedPage(answer.text), answer.text)


async def test_an_external_link_sends_no_referrer(store: StoreRows, browser: httpx.AsyncClient) -> None:
    store.allowlist()
    delivery = store.delivery()
    store.dispatch(delivery)
    store.job(delivery, url="https://ci.example/run?a=1&b=2")
    address = "/crcr/good/backend"
    matrix = ParsedPage((await browser.get(address)).text)
    opener = next(href for href in matrix.attributes("href") if "job=" in href)
    page = ParsedPage((await browser.get(address + opener.removeprefix(address))).text)
    links = [attrs for _, attrs in page.elements if attrs.get("href") == "https://ci.example/run?a=1&b=2"]
    assert links
    for link in links:
        assert link["rel"] == "noopener nofollow"
        assert link["referrerpolicy"] == "no-referrer"


@pytest.mark.parametrize("path", ["/crcr", "/crcr/good/backend", "/crcr/no/such"])
async def test_every_page_carries_strict_headers(
    store: StoreRows, browser: httpx.AsyncClient, path: str
) -> None:
    store.allowlist()
    headers = (await browser.get(path)).headers
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert "referrer-policy" in headers


async def test_pages_load_nothing_from_other_sites(store: StoreRows, browser: httpx.AsyncClient) -> None:
    store.allowlist()
    page = ParsedPage((await browser.get("/crcr")).text)
    loaded = [
        *(attrs["src"] or "" for tag, attrs in page.elements if "src" in attrs),
        *(attrs["href"] or "" for tag, attrs in page.elements if tag == "link"),
    ]
    assert len(loaded) >= 3
    for address in loaded:
        answer = await browser.get(address)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
        assert not re.search(r"https?://(?!www\.w3\.org)|@import", answer.text)


async def test_the_root_redirects_to_the_front_page(browser: httpx.AsyncClient) -> None:
    answer = await browser.get("/")
    assert (answer.status_code, answer.headers["location"]) == (307, "/crcr")


async def test_without_an_allowlist_the_page_names_the_setting(browser: httpx.AsyncClient) -> None:
    text = (await browser.get("/crcr")).text
    assert "No allowlist has been read yet" in text
    assert "CRCR_ALLOWLIST" in text


async def test_without_events_the_page_shows_no_results_and_no_rate(
    store: StoreRows, browser: httpx.AsyncClient
) -> None:
    store.allowlist()
    summary = (await browser.get("/crcr")).text
    assert "has arrived yet" in summary
    assert "no results" in summary
    assert "100.0%" not in summary
    backend = (await browser.get("/crcr/quiet/backend")).text
    assert "No dispatches in 14d" in backend


async def test_an_unknown_backend_is_a_404_page(store: StoreRows, browser: httpx.AsyncClient) -> None:
    store.allowlist("L2:\n  - secret/one: {visibility: hidden}\n")
    for path in ("/crcr/no/such", "/crcr/secret/one"):
        answer = await browser.get(path)
        assert answer.status_code == 404
        assert "is not a backend of this upstream" in answer.text


async def test_a_status_is_shown_by_letter_and_word(store: StoreRows, browser: httpx.AsyncClient) -> None:
    store.allowlist()
    delivery = store.delivery()
    store.dispatch(delivery)
    store.job(delivery, "timed_out", queue_s=75.0, attempt=2)
    text = (await browser.get("/crcr/good/backend")).text
    assert re.search(r'title="build: timed out[^"]*">T</a>', text)
    assert re.search(r'<b aria-hidden="true">T</b><span class="word">timed out</span>', text)


async def test_the_fragment_is_the_main_part_only(store: StoreRows, browser: httpx.AsyncClient) -> None:
    store.allowlist()
    whole = (await browser.get("/crcr")).text
    part = (await browser.get("/crcr?fragment=main")).text
    assert "<html" not in part
    assert part.partition("<template")[0].strip() in whole


async def test_links_keep_upstream_and_range(store: StoreRows, browser: httpx.AsyncClient) -> None:
    store.allowlist("L2: [some/backend]", OTHER)
    page = ParsedPage((await browser.get("/crcr", params={"upstream": "Other/Upstream", "range": "7d"})).text)
    assert "/crcr/some/backend?upstream=other/upstream&range=7d" in page.attributes("href")
    assert next(iter(page.attributes("data-events"))) == "/api/v1/events?upstream=other/upstream&after=0"


async def test_a_store_outage_is_a_503_page_without_figures(store: StoreRows) -> None:
    class Down:
        async def summary(self, *_: Any, **__: Any) -> Any:
            raise StoreUnavailable

    frame = Frame(Down(), upstreams=(UPSTREAM,), clock=store.clock)  # type: ignore[arg-type]
    async with browse(frame) as client:
        answer = await client.get("/crcr")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert "cannot be read right now" in answer.text
    assert "figure" not in answer.text


async def test_fault_41_page_and_backend_show_the_same_rate(
    store: StoreRows, browser: httpx.AsyncClient
) -> None:
    store.allowlist()
    delivery = store.delivery()
    store.dispatch(delivery)
    for number in range(3):
        store.job(delivery, "success" if number else "failure", job_name=str(number))
    with store.engine.begin() as connection:
        rebuild_sums(connection)
    for path in ("/crcr", "/crcr/good/backend", "/crcr/metrics"):
        assert "66.6%" in (await browser.get(path)).text
    summary = await store.views.summary(UPSTREAM, Span.FORTNIGHT, store.clock.now())
    assert summary.tally.pass_rate == pytest.approx(2 / 3)
