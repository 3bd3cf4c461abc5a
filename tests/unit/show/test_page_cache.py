"""The page cache around an app that counts its renderings: shared renderings, expiry, errors, and the render queue."""

import asyncio
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from crcr.decide.model import RepoName
from crcr.decide.views.overview import Change, Changes
from crcr.errors import StoreUnavailable
from crcr.show.access.reader import ANYONE, Reader
from crcr.show.cache.newest_changes import NewestChanges
from crcr.show.cache.page_cache import PageCache, RenderPause
from crcr.show.cache.render_queue import RenderQueue
from crcr.show.cache.rendered_page import make_page
from crcr.show.live.change_feed import Wakeups
from support.clock import ManualClock

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

UPSTREAM, OTHER = RepoName("org/core"), RepoName("org/other")
ADMIN = Reader("ann", admin=True)


class Log:
    """A change log that counts its readers."""

    def __init__(self) -> None:
        self.changes_made: list[Change] = []
        self.reads = 0
        self.is_down, self.grows_while_read = False, False
        self.wake = asyncio.Event()

    def note(self, upstream: RepoName = UPSTREAM) -> int:
        number = len(self.changes_made) + 1
        self.changes_made.append(
            Change(number, "job", upstream.key, None, None, None, datetime(2026, 1, 1, tzinfo=UTC))
        )
        self.wake.set()
        return number

    async def changes(self, after: int | None, limit: int) -> Changes:
        self.reads += 1
        await asyncio.sleep(0)
        if self.is_down:
            raise StoreUnavailable
        newest = len(self.changes_made)
        if self.grows_while_read:
            self.note()
        if after is None:
            return Changes((), newest, 1, newest)
        items = tuple(self.changes_made[after : after + limit])
        return Changes(items, items[-1].change_id if items else after, 1, newest)


class Site:
    """Renders the number of changes; `gate` holds renderings until it is set."""

    def __init__(self, **options: object) -> None:
        self.log, self.clock = Log(), ManualClock()
        self.gate = asyncio.Event()
        self.gate.set()
        self.rendered: list[str] = []
        self.status, self.filler, self.crash = 200, "x" * 2_000, False
        self.reader = ANYONE
        self.cache = PageCache(
            self.render,
            upstreams=(UPSTREAM, OTHER),
            newest=NewestChanges(self.log, Wakeups(lambda: self.log.wake, lambda _: None)),
            clock=self.clock,
            **options,  # type: ignore[arg-type]  # as the cache takes them
        )
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(self, raise_app_exceptions=False), base_url="http://relay.test"
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"] = {"reader": self.reader}
        await self.cache(scope, receive, send)

    async def render(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.rendered.append(f"{scope['path']}?{scope['query_string'].decode()}")
        self.receive = receive
        count = len(self.log.changes_made)
        await self.gate.wait()
        body = f"{count} for {scope['state']['reader'].name} {self.filler}".encode()
        headers = [(b"content-type", b"text/html"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
        if self.crash:
            raise ZeroDivisionError

    async def get(self, path: str = "/crcr", **headers: str) -> httpx.Response:
        return await self.http.get(path, headers=headers)

    async def count(self, path: str = "/crcr") -> int:
        return int((await self.get(path)).text.split()[0])


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_concurrent_readers_share_one_rendering_and_later_ones_get_it_without_the_store() -> None:
    site = Site()
    site.gate.clear()
    readers = [asyncio.create_task(site.get()) for _ in range(200)]
    await settle()
    site.gate.set()
    answers = await asyncio.gather(*readers)
    assert len(site.rendered) == 1
    assert len({answer.content for answer in answers}) == 1
    reads = site.log.reads
    again = await site.get(**{"if-none-match": answers[0].headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert (len(site.rendered), site.log.reads) == (1, reads)


async def test_a_reader_after_a_change_waits_for_a_rendering_that_shows_it() -> None:
    site = Site()
    site.gate.clear()
    before = asyncio.create_task(site.count())
    await settle()
    site.log.note()
    after = [asyncio.create_task(site.count()) for _ in range(20)]
    await settle()
    site.gate.set()
    assert await before == 0
    assert set(await asyncio.gather(*after)) == {1}
    assert len(site.rendered) == 2


async def test_a_change_of_another_upstream_does_not_expire_a_page() -> None:
    site = Site()
    await site.get()
    site.log.note(OTHER)
    assert await site.count() == 0
    assert await site.count("/crcr?upstream=org/other") == 1
    assert len(site.rendered) == 2


async def test_a_request_that_names_a_change_gets_a_cached_page_that_is_not_older() -> None:
    site = Site()
    first = site.log.note()
    assert await site.count() == 1
    second = site.log.note()
    assert await site.count(f"/crcr?v={first}&fragment=main") == 2  # another address
    third = site.log.note()
    assert await site.count(f"/crcr?v={first}") == 1
    assert await site.count(f"/crcr?v={second}&fragment=main") == 2
    assert await site.count(f"/crcr?fragment=main&v={third}") == 3
    assert site.rendered == ["/crcr?", "/crcr?fragment=main", "/crcr?fragment=main"]


async def test_a_request_after_a_health_event_gets_no_page_from_before_it() -> None:
    site = Site()
    known = site.log.note()
    await site.get()
    assert await site.count(f"/crcr?v={known}-0a1b2c3d") == 1
    assert len(site.rendered) == 2
    later = site.log.note()
    assert await site.count(f"/crcr?v={known}-0a1b2c3d") == 1
    assert await site.count(f"/crcr?v={later}-0a1b2c3d") == 2
    assert len(site.rendered) == 3


async def test_a_change_of_another_upstream_is_a_known_change() -> None:
    site = Site()
    site.log.note()
    await site.get()
    elsewhere = site.log.note(OTHER)
    await site.get()
    reads = site.log.reads
    answer = await site.get(f"/crcr?v={elsewhere}")
    assert site.log.reads == reads
    assert "s-maxage" in answer.headers["cache-control"]


async def test_a_page_from_before_a_change_is_not_shared_under_the_address_of_that_change() -> None:
    site = Site()
    site.gate.clear()
    early = asyncio.create_task(site.get("/crcr?v=1"))
    await settle()
    site.log.note()
    another = asyncio.create_task(site.get("/crcr?upstream=org/other"))
    await settle()
    site.gate.set()
    answer = await early
    await another
    assert answer.text.startswith("0 ")
    assert "s-maxage" not in answer.headers["cache-control"]


async def test_of_two_upstreams_in_a_query_the_one_that_the_page_shows_counts() -> None:
    site = Site()
    address = "/crcr?upstream=org/other&upstream=org/core"
    assert await site.count(address) == 0
    site.log.note(UPSTREAM)
    assert await site.count(address) == 1


async def test_readers_of_a_growing_change_log_wait_for_at_most_two_reads() -> None:
    site = Site()
    await site.get()
    site.log.grows_while_read = True
    site.log.note()
    reads = site.log.reads
    newest = site.cache._newest
    assert all(await asyncio.gather(*(newest.read(UPSTREAM) for _ in range(50))))
    assert site.log.reads <= reads + 2


async def test_a_store_that_fails_just_before_a_rendering_is_reported_by_the_page() -> None:
    def fail(_: object) -> None:
        site.log.note()
        site.log.is_down = True

    site = Site(on_answer=fail)
    site.status = 503
    assert (await site.get()).status_code == 503
    assert site.rendered == ["/crcr?"]


def test_a_page_is_not_current_after_the_clock_was_set_back() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    second = timedelta(seconds=1)
    page = make_page(200, [], b"", version=1, rendered_at=now, expires_at=now + second)
    assert page.is_current(1, now)
    assert not page.is_current(1, now + second)
    assert not page.is_current(1, now - second)


async def test_an_app_that_waits_for_the_disconnect_does_not_return_from_receive() -> None:
    """A streamed response calls `receive` until the client disconnects."""
    site = Site()
    await site.get()
    assert (await site.receive())["type"] == "http.request"
    disconnected = asyncio.ensure_future(site.receive())
    await settle()
    assert not disconnected.done()
    disconnected.cancel()


@pytest.mark.parametrize("version", ["999", "9" * 400, "-1", "x", ""])
async def test_an_unknown_change_in_the_query_costs_one_rendering(version: str) -> None:
    site = Site()
    site.log.note()
    for _ in range(5):
        answer = await site.get(f"/crcr?v={version}")
        assert answer.text.startswith("1 ")
    assert len(site.rendered) == 1
    assert ("s-maxage" in answer.headers["cache-control"]) == (version != "999")


async def test_a_page_expires_after_a_second_and_at_the_full_hour() -> None:
    site = Site()
    site.clock.advance(0.3)
    await site.get()
    site.clock.advance(0.9)
    await site.get()
    assert len(site.rendered) == 1
    site.clock.advance(0.1)
    await site.get()
    assert len(site.rendered) == 2
    now = site.clock.now()
    site.clock.advance(3_599.5 - (now.minute * 60 + now.second + now.microsecond / 1e6))
    await site.get()
    site.clock.advance(0.5)
    await site.get()
    assert len(site.rendered) == 4


async def test_a_reader_that_disconnects_does_not_cancel_the_rendering_of_the_others() -> None:
    site = Site()
    site.gate.clear()
    leaving = asyncio.create_task(site.get())
    await settle()
    staying = asyncio.create_task(site.get())
    await settle()
    leaving.cancel()
    await settle()
    site.gate.set()
    assert (await staying).status_code == 200
    assert len(site.rendered) == 1


async def test_errors_are_shared_but_not_cached_and_a_crash_is_raised_once() -> None:
    site = Site()
    site.status = 404
    assert [(await site.get()).status_code for _ in range(2)] == [404, 404]
    assert len(site.rendered) == 2
    site.status, site.crash = 500, True
    site.gate.clear()
    crashes = Counter[str]()
    inner = site.cache

    async def count_crashes(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await inner(scope, receive, send)
        except ZeroDivisionError:
            crashes["raised"] += 1

    site.cache = count_crashes  # type: ignore[assignment]  # the same call
    readers = [asyncio.create_task(site.get()) for _ in range(5)]
    await settle()
    site.gate.set()
    assert {answer.status_code for answer in await asyncio.gather(*readers)} == {500}
    assert crashes["raised"] == 1


async def test_pages_of_signed_in_readers_searches_and_exports_are_never_cached() -> None:
    site = Site()
    await site.get()
    site.reader = ADMIN
    assert "for ann" in (await site.get()).text
    site.reader = ANYONE
    assert "for None" in (await site.get()).text
    for path in (
        "/crcr/search?q=a",
        "/crcr/login",
        "/crcr?format=csv",
        "/api/v1/summary.csv",
        "/api/v1/backends/org/one.csv%0A",
        "/crcr/audit/x",
    ):
        before = len(site.rendered)
        await site.get(path)
        await site.get(path)
        assert len(site.rendered) == before + 2, path


async def test_clients_without_compression_get_plain_text_and_shared_caches_get_a_max_age() -> None:
    site = Site()
    plain = await site.get(**{"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    for accepted, encoding in (("gzip, deflate, br, zstd", "zstd"), ("gzip, deflate", "gzip")):
        packed = await site.get(**{"accept-encoding": accepted})
        assert packed.headers["content-encoding"] == encoding
        assert (zstd.decompress(packed.content) if encoding == "zstd" else packed.content) == plain.content
        assert packed.headers["etag"] == plain.headers["etag"]
        assert "Accept-Encoding" in packed.headers["vary"]
        assert "s-maxage=10" in packed.headers["cache-control"]
        assert int(packed.headers["content-length"]) < int(plain.headers["content-length"])
    assert len(site.rendered) == 1


async def test_a_three_megabyte_summary_of_a_thousand_backends_is_cached() -> None:
    site = Site()
    site.filler = "x" * 3_000_000
    await site.get()
    await site.get()
    assert len(site.rendered) == 1


async def test_the_cached_bytes_are_bounded_for_any_number_of_addresses() -> None:
    site = Site(most_bytes=40_000)
    site.filler = "x"
    for number in range(300):
        await site.get(f"/crcr?page={number}&{'y' * 1_900}")
    assert sum(len(path) + len(query) for path, query, _ in site.cache._pages) < 20_000
    for number in range(300):
        site.filler = "".join(chr(33 + (number * 7 + position * 13) % 90) for position in range(900))
        await site.get(f"/crcr?page={number}")
    kept = sum(page.size for page in site.cache._pages.values())
    assert 0 < kept == site.cache._bytes <= 40_000
    assert len(site.cache._pauses) <= len(site.cache._pages) + 1


@pytest.mark.parametrize(
    ("took_s", "readers", "now", "rest_s"),
    [
        (0.1, 8, 100.0, 0.3),
        (0.1, 7, 100.0, 0.0),  # no pause with few readers
        (0.1, 8, 100.2, 0.1),
        (0.1, 900, 100.4, 0.0),
        (5.0, 8, 100.0, 1.0),
    ],
)
def test_a_page_with_many_readers_renders_at_most_a_quarter_of_the_time(
    took_s: float, readers: int, now: float, rest_s: float
) -> None:
    assert RenderPause(100.0, took_s, readers).rest_s(now) == pytest.approx(rest_s)


async def test_readers_that_wait_for_a_rendering_count_for_the_pause_after_it() -> None:
    """When a change follows each rendering, no reader ever gets a cached page."""
    site = Site()
    site.gate.clear()
    readers = [asyncio.create_task(site.get()) for _ in range(8)]
    await settle()
    site.gate.set()
    await asyncio.gather(*readers)
    pause = site.cache._pauses["/crcr", "", True]
    assert pause.rest_s(pause.ended) > 0


class QueuedSite:
    """An app behind the render queue that holds each request until `gate` is set."""

    def __init__(self, **limits: float) -> None:
        self.running, self.most, self.refused, self.waiting = 0, 0, 0, 0
        self.gate = asyncio.Event()
        self.queue = RenderQueue(
            self.render,
            on_waiting=self.note_waiting,
            on_refused=self.note_refused,
            **limits,  # type: ignore[arg-type]  # numbers
        )

    def note_waiting(self, number: int) -> None:
        self.waiting = number

    def note_refused(self) -> None:
        self.refused += 1

    async def render(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.gate.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"ok"})
        finally:
            self.running -= 1

    async def get(self, path: str, reader: Reader = ANYONE, accept: str = "text/html") -> httpx.Response:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            scope["state"] = {"reader": reader}
            await self.queue(scope, receive, send)

        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://relay.test"
        ) as http:
            return await http.get(path, headers={"accept": accept})


async def test_a_full_render_queue_answers_503_at_once_and_still_accepts_signed_in_readers() -> None:
    site = QueuedSite(at_once=3, waiting=5)
    readers = [asyncio.create_task(site.get(f"/crcr?n={number}")) for number in range(8)]
    await settle()
    assert (site.most, site.waiting) == (3, 5)
    for accept, path in (("text/html", "/crcr/pr/1"), ("application/json", "/api/v1/summary")):
        refused = await site.get(path, accept=accept)
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) > 0
        assert refused.headers["content-type"].startswith(accept)
    assert site.refused == 2
    admin = asyncio.create_task(site.get("/crcr", ADMIN))
    await settle()
    assert site.most == 4
    site.gate.set()
    assert {answer.status_code for answer in await asyncio.gather(*readers, admin)} == {200}
    assert (site.running, site.waiting) == (0, 0)


async def test_signed_in_readers_may_use_every_slot() -> None:
    site = QueuedSite(at_once=4, waiting=64)
    readers = [asyncio.create_task(site.get("/crcr", Reader(f"r{number}"))) for number in range(60)]
    await settle()
    assert (site.refused, site.most) == (0, 6)
    site.gate.set()
    assert {answer.status_code for answer in await asyncio.gather(*readers)} == {200}


async def test_a_reader_that_waits_too_long_is_refused_and_takes_no_slot_later() -> None:
    site = QueuedSite(at_once=1, waiting=5, longest_wait_s=0)
    slow = asyncio.create_task(site.get("/crcr"))
    await settle()
    late = [await site.get(f"/crcr?n={number}") for number in range(3)]
    assert [answer.status_code for answer in late] == [503] * 3
    assert (site.refused, site.waiting, site.most) == (3, 0, 1)
    site.gate.set()
    assert (await slow).status_code == 200
    assert (await site.get("/crcr")).status_code == 200


async def test_a_waiting_reader_that_disconnects_frees_its_place() -> None:
    site = QueuedSite(at_once=1, waiting=2)
    readers = [asyncio.create_task(site.get("/crcr")) for _ in range(3)]
    await settle()
    readers[0].cancel()
    readers[2].cancel()
    await settle()
    assert (site.running, site.waiting) == (1, 0)
    site.gate.set()
    assert (await readers[1]).status_code == 200
    assert (await site.get("/crcr")).status_code == 200
