"""The pages and the API of failures: rows, filters, empty states, hostile text, CSV."""

from collections.abc import AsyncIterator

import httpx
import pytest

from support.data.store_rows import StoreRows
from support.page_reader import HOSTILE, ParsedPage, assert_inert
from support.reader_client import reader_client

LISTED = "L2:\n  - Good/Backend\n  - flaky/backend\n  - secret/one: {visibility: hidden}\n"
ALIKE = "NotImplementedError: aten::foo has no kernel"


@pytest.fixture
async def store(store: StoreRows) -> StoreRows:
    store.allowlist(LISTED)
    return store


@pytest.fixture
async def browser(store: StoreRows) -> AsyncIterator[httpx.AsyncClient]:
    async with reader_client(store) as client:
        yield client


async def test_a_page_without_failures_states_it(browser: httpx.AsyncClient) -> None:
    assert "No failures" in (await browser.get("/crcr/failures")).text
    filtered = (await browser.get("/crcr/failures?q=x&known=yes")).text
    assert "No matching failures" in filtered
    assert "there is no such known" in (await browser.get("/crcr/failures?known=perhaps")).text


async def test_the_list_links_to_the_group_and_the_group_to_its_jobs(
    browser: httpx.AsyncClient, store: StoreRows
) -> None:
    store.failure("d-1", "flaky/backend", ALIKE, hours_ago=3, job_name="lint", number=4)
    fingerprint = store.failure("d-2", "good/backend", ALIKE)
    store.failure("d-3", "secret/one", ALIKE)
    store.known(fingerprint)
    page = await browser.get("/crcr/failures")
    for shown in (ALIKE, f"/crcr/failures/{fingerprint}", "Good/Backend", "torch/torch#12", "/crcr/pr/4"):
        assert shown in page.text
    assert 'data-events="' in page.text
    assert 'href="/crcr/failures" aria-current="page"' in page.text
    group = await browser.get(f"/crcr/failures/{fingerprint}")
    assert group.status_code == 200
    for shown in (">2</td>", "lint", "?job=", "/crcr/pr/7", "a driver bug", "new"):
        assert shown in group.text
    assert "secret" not in page.text + group.text


@pytest.mark.parametrize("address", ["0123456789abcdef", "nothing", "%00", "x" * 300])
async def test_an_unknown_group_is_not_found(browser: httpx.AsyncClient, address: str) -> None:
    assert (await browser.get(f"/crcr/failures/{address}")).status_code == 404
    assert (await browser.get(f"/api/v1/failures/{address}")).status_code in (400, 404)


@pytest.mark.parametrize("text", HOSTILE)
async def test_a_hostile_failure_message_stays_text(
    browser: httpx.AsyncClient, store: StoreRows, text: str
) -> None:
    fingerprint = store.failure("d-1", "good/backend", f"RuntimeError: broken {text}", job_name=text[:200])
    for path in ("/crcr/failures", f"/crcr/failures/{fingerprint}"):
        answer = await browser.get(path)
        assert answer.status_code == 200
        assert_inert(ParsedPage(answer.text), answer.text)


async def test_the_api_pages_by_cursor_and_exports_csv(browser: httpx.AsyncClient, store: StoreRows) -> None:
    store.failure("d-1", "good/backend", "OSError: no driver installed", hours_ago=5)
    fingerprint = store.failure("d-2", "good/backend", ALIKE, head_sha="a" * 40)
    first = (await browser.get("/api/v1/failures?limit=1")).json()
    at = first["items"][0]["last_seen"]["at"]
    assert first["items"] == [
        {
            "fingerprint": fingerprint,
            "sample": ALIKE,
            "backends": ["Good/Backend"],
            "jobs": ["Good/Backend:build"],
            "first_seen": {"sha": "a" * 40, "number": 7, "at": at},
            "last_seen": {"sha": "a" * 40, "number": 7, "at": at},
            "count": 1,
            "known": None,
        }
    ]
    second = (await browser.get(f"/api/v1/failures?limit=1&cursor={first['next']}")).json()
    assert ([group["sample"] for group in second["items"]], second["next"]) == (
        ["OSError: no driver installed"],
        None,
    )
    lines = (await browser.get("/api/v1/failures.csv")).text.splitlines()
    assert lines[0].startswith("fingerprint,sample,backends,jobs,first_seen_sha,")
    assert len(lines) == 3
    group = (await browser.get(f"/api/v1/failures/{fingerprint}")).json()
    assert [member["job_name"] for member in group["failures"]] == ["build"]
    assert len((await browser.get(f"/api/v1/failures/{fingerprint}.csv")).text.splitlines()) == 2
    assert (await browser.get("/api/v1/failures?known=perhaps")).status_code == 400
