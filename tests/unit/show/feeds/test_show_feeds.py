"""The Atom feeds: valid Atom, stable ids, hostile text stays text, hidden backends stay hidden."""

from collections.abc import AsyncIterator
from typing import Any
from xml.etree import ElementTree as ET

import httpx
import pytest
from sqlalchemy import update

from crcr.record.schema import main_tables
from crcr.show.feeds.atom import Feed, make_tag, write_feed
from support.data.store_rows import StoreRows
from support.reader_client import reader_client

ATOM = "{http://www.w3.org/2005/Atom}"
LISTED = """
L1: [told/only]
L2:
  - good/backend
  - secret/one: {visibility: hidden}
  - shy/one: {visibility: name}
"""
HOSTILE = "</title><script>alert(1)</script> \x01\x0b\u202e\ufffe ]]> &amp; 'x' \"y\""


@pytest.fixture
async def client(store: StoreRows) -> AsyncIterator[httpx.AsyncClient]:
    store.allowlist(LISTED)
    async with reader_client(store) as reader:
        yield reader


def parse_feed(answer: httpx.Response) -> ET.Element:
    """Check what RFC 4287 requires of a feed, and return it."""
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/atom+xml; charset=utf-8"
    feed = ET.fromstring(answer.content)  # noqa: S314  our own answer
    assert feed.tag == f"{ATOM}feed"
    for element in (feed, *feed.iter(f"{ATOM}entry")):
        for name in ("id", "title", "updated"):
            assert len(element.findall(ATOM + name)) == 1, name
        assert (element.findtext(f"{ATOM}id") or "").startswith("tag:127.0.0.1,2026:crcr/")
        assert (element.findtext(f"{ATOM}updated") or "").endswith("Z")
        links = {link.get("rel"): link.get("href") for link in element.findall(f"{ATOM}link")}
        assert (links["alternate"] or "").startswith("http://127.0.0.1:8000/crcr/")
    assert feed.findtext(f"{ATOM}author/{ATOM}name") == "crcr"
    ids = [entry.findtext(f"{ATOM}id") for entry in feed.iter(f"{ATOM}entry")]
    assert len(ids) == len(set(ids))
    return feed


def entry_texts(feed: ET.Element, name: str) -> list[str]:
    return [entry.findtext(ATOM + name) or "" for entry in feed.iter(f"{ATOM}entry")]


def push(store: StoreRows, conclusion: str, hours_ago: float, ref: str = "refs/heads/main") -> None:
    delivery = store.delivery(number=None, hours_ago=hours_ago, ref=ref)
    store.dispatch(delivery, event="push")
    add_ended_job(store, delivery, conclusion, hours_ago, event="push", head_sha="c" * 40)


def add_ended_job(store: StoreRows, delivery: str, conclusion: str, hours_ago: float, **more: Any) -> None:
    at = store.ago(hours=hours_ago)
    times = {"in_progress_at": at, "completed_at": at, "ended_as": conclusion}
    store.job(delivery, conclusion, **{"job_name": "build", **times, **more})


async def test_a_backends_feed_lists_failures_and_recoveries(
    store: StoreRows, client: httpx.AsyncClient
) -> None:
    with store.engine.begin() as connection:
        connection.execute(update(main_tables.upstreams).values(default_branch="main"))
    for hours, conclusion in ((9, "success"), (8, "failure"), (7, "failure"), (6, "success")):
        push(store, conclusion, hours)
    push(store, "failure", 5, ref="refs/heads/other")
    delivery = store.pull(7, title="Fuse it")
    add_ended_job(store, delivery, "failure", 1, number=7)
    feed = parse_feed(await client.get("/crcr/good/backend/feed.atom"))
    assert [
        title.removeprefix("good/backend ").partition(":")[0] for title in entry_texts(feed, "title")
    ] == [*("failed", "failed", "recovered", "still failing", "turned red", "passed")]
    assert entry_texts(feed, "title")[0] == "good/backend failed: #7 Fuse it"
    assert "First failed job by name: build." in entry_texts(feed, "summary")[0]


async def test_an_entry_keeps_its_id_and_a_silent_backend_gets_an_entry(
    store: StoreRows, client: httpx.AsyncClient
) -> None:
    push(store, "failure", 40)
    before = entry_texts(parse_feed(await client.get("/crcr/good/backend/feed.atom")), "id")
    for hours in (9, 8, 7, 6):
        store.dispatch(
            store.delivery(hours_ago=hours), sent_at=store.ago(hours=hours), created_at=store.ago(hours=hours)
        )
    feed = parse_feed(await client.get("/crcr/good/backend/feed.atom"))
    assert "good/backend is silent" in entry_texts(feed, "title")
    assert set(before) < set(entry_texts(feed, "id"))
    again = parse_feed(await client.get("/crcr/good/backend/feed.atom"))
    assert ET.tostring(again) == ET.tostring(feed)


async def test_a_pull_requests_feed_has_its_gate_and_results(
    store: StoreRows, client: httpx.AsyncClient
) -> None:
    delivery = store.pull(7, title="Fuse it")
    for name in ("good/backend", "secret/one"):
        store.dispatch(delivery, name)
        add_ended_job(store, delivery, "failure", 1, downstream=name, number=7)
    answer = await client.get("/crcr/pr/7/feed.atom")
    feed = parse_feed(answer)
    assert entry_texts(feed, "title") == ["good/backend failed: #7 Fuse it"]
    assert "secret" not in answer.text


@pytest.mark.parametrize("name", ["secret/one", "shy/one", "told/only", "no/such", "a b/c"])
async def test_a_backend_without_shown_results_has_no_feed(client: httpx.AsyncClient, name: str) -> None:
    assert (await client.get(f"/crcr/{name}/feed.atom")).status_code == 404


async def test_hostile_text_stays_text_in_a_feed(store: StoreRows, client: httpx.AsyncClient) -> None:
    delivery = store.pull(7, title=HOSTILE)
    store.dispatch(delivery)
    add_ended_job(store, delivery, "failure", 1, number=7, job_name=HOSTILE)
    for path in ("/crcr/pr/7/feed.atom", "/crcr/good/backend/feed.atom"):
        (title,) = entry_texts(parse_feed(await client.get(path)), "title")
        assert "</title><script>" in title
        assert "\u202e" not in title


async def test_a_page_links_to_its_feed(store: StoreRows, client: httpx.AsyncClient) -> None:
    store.pull(7)
    for path in ("/crcr/pr/7", "/crcr/good/backend?kind=push"):
        page = (await client.get(path)).text
        feed = f"{path.partition('?')[0]}/feed.atom"
        assert f'type="application/atom+xml" title="Atom feed" href="{feed}"' in page
        assert f'<a href="{feed}"' in page
    assert "feed.atom" not in (await client.get("/crcr/shy/one")).text


def test_an_empty_feed_is_valid_and_always_the_same() -> None:
    feed = Feed(key=("a",), title="x", url="http://h/crcr/a", own_url="http://h/crcr/a/feed.atom", entries=[])
    parsed = ET.fromstring(write_feed(feed, "http://h"))  # noqa: S314  our own
    assert parsed.findtext(f"{ATOM}updated") == "1970-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("site", "tag"),
    [
        ("https://crcr.example:8443/x", "tag:crcr.example,2026:crcr/a%2Fb/c%20d"),
        ("http://[::1]:8000", "tag:localhost,2026:crcr/a%2Fb/c%20d"),
    ],
)
def test_ids_are_tag_uris_of_the_public_address(site: str, tag: str) -> None:
    assert make_tag(site, "a/b", "c d") == tag
