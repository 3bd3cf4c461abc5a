"""Live events: resume, reset, caps, heartbeats, and a clean end."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Route

from crcr.errors import BadRequest, CrcrError, NotFound, StoreUnavailable, Unavailable
from crcr.record.store.signals import CHANGES, Signals
from crcr.record.store.times import to_us
from crcr.show.access.reader import ANYONE
from crcr.show.access.reader import Reader as ShowReader
from crcr.show.live import event_stream
from crcr.show.live.change_feed import ChangeFeed, Wakeups, pause_between_events_s
from crcr.show.live.event_stream import HEARTBEAT_S, StreamLimits, spread_ms
from crcr.show.live.shared_health import POLL_EVERY_S, HealthFeed, SharedHealth, health_signature
from support.clock import settle
from support.data.store_rows import OTHER, UPSTREAM, StoreRows, open_store_rows

PATIENCE_S = 10


@dataclass
class Reader:
    """One open stream, driven through ASGI itself."""

    app: Any
    query: str = ""
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    address: str = "192.0.2.1"
    show_reader: ShowReader = ANYONE
    chunks: asyncio.Queue[dict[str, Any]] = field(default_factory=asyncio.Queue)
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    def open(self) -> "asyncio.Task[None]":
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/api/v1/events",
            "query_string": self.query.encode(),
            "headers": self.headers,
            "client": (self.address, 1),
            "state": {"reader": self.show_reader},
        }
        self.task = asyncio.create_task(self.app(scope, self._receive, self.chunks.put))
        return self.task

    async def next(self) -> str:
        message = await asyncio.wait_for(self.chunks.get(), PATIENCE_S)
        if message["type"] == "http.response.start":
            assert message["status"] == 200
            return await self.next()
        return str(message["body"].decode())

    async def close(self) -> None:
        self.gone.set()
        await asyncio.wait_for(self.task, PATIENCE_S)

    async def _receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}


@dataclass
class Live:
    store: StoreRows
    signals: Signals
    stopping: asyncio.Event
    app: Any

    def change(self, kind: str = "job", downstream: str | None = "good/backend", **more: Any) -> None:
        self.store.change(kind, downstream, **more)
        self.signals.notify(CHANGES)

    @asynccontextmanager
    async def reader(self, query: str = "", **more: Any) -> AsyncIterator[Reader]:
        reader = Reader(self.app, query, **more)
        _ = reader.open()
        assert await reader.next() == "retry: 2000\n\n"
        try:
            yield reader
        finally:
            await reader.close()


def live_app(store: StoreRows, caps: StreamLimits = StreamLimits()) -> Live:  # noqa: B008
    signals, stopping = store.database.signals, asyncio.Event()
    wakeups = Wakeups(lambda: signals.subscribe(CHANGES), lambda event: signals.unsubscribe(CHANGES, event))
    routes = event_stream.routes(
        store.views,
        wakeups=wakeups,
        upstreams=(UPSTREAM, OTHER),
        clock=store.clock,
        stopping=stopping,
        caps=caps,
        log_for_admins=store.views.for_admins(),
        health=HealthFeed(SharedHealth(store.views, store.clock), (UPSTREAM, OTHER), store.clock),
    )
    assert isinstance(routes[0], Route)
    return Live(store, signals, stopping, routes[0].app)


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[Live]:
    async with open_store_rows(tmp_path) as store:
        store.allowlist()
        yield live_app(store, StreamLimits(per_address=2, in_total=3))


async def wait_until_idle(live: Live) -> None:
    """Return when the stream or the feed only waits for time to pass."""
    while not live.store.clock.sleeping:
        await settle()


def ids(text: str) -> list[int]:
    return [int(line[4:]) for line in text.splitlines() if line.startswith("id: ")]


async def test_a_change_reaches_an_open_stream(live: Live) -> None:
    async with live.reader() as reader:
        live.change("job", "good/backend", delivery="d-1", number=7)
        text = await reader.next()
    expected = {"kind": "job", "upstream": UPSTREAM.key, "downstream": "good/backend", "delivery": "d-1"}
    assert text.startswith("id: 1\nevent: change\ndata: ")
    assert json.loads(text.split("data: ")[1]) == {**expected, "number": 7}


async def test_a_reconnecting_reader_gets_the_events_that_it_missed(live: Live) -> None:
    for number in range(1, 5):
        live.change(number=number)
    async with live.reader("after=1") as reader:
        assert ids(await reader.next()) == [2, 3, 4]
    async with live.reader("after=1", headers=[(b"last-event-id", b"3")]) as reader:
        assert ids(await reader.next()) == [4]


async def test_more_than_one_batch_is_caught_up(live: Live) -> None:
    for number in range(1, 603):
        live.store.change(number=number)
    async with live.reader("after=0") as reader:
        change_ids = [*ids(await reader.next()), *ids(await reader.next())]
    assert change_ids == list(range(1, 603))


@pytest.mark.parametrize("after", [99, 1])
async def test_a_position_outside_the_kept_changes_is_reset(live: Live, after: int) -> None:
    for number in range(1, 5):
        live.store.change(number=number)
    with live.store.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM changes WHERE change_id <= 2")
    async with live.reader(f"after={after}") as reader:
        assert await reader.next() == "id: 4\nevent: reset\ndata: {}\n\n"
        live.change(number=5)
        assert ids(await reader.next()) == [5]


async def test_the_oldest_kept_position_resumes(live: Live) -> None:
    for number in range(1, 4):
        live.store.change(number=number)
    with live.store.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM changes WHERE change_id <= 2")
    async with live.reader("after=2") as reader:
        assert ids(await reader.next()) == [3]


async def test_changes_of_hidden_backends_and_other_upstreams_are_not_sent(live: Live) -> None:
    live.store.allowlist("L2:\n  - good/backend\n  - secret/one: {visibility: hidden}\n", version=2)
    live.store.change("job", "secret/one")
    live.store.change("delivery", None, upstream=OTHER.key)
    live.store.change("job", "left/the-list")
    live.store.change("job", "good/backend")
    async with live.reader(f"after=0&upstream={UPSTREAM}") as reader:
        assert ids(await reader.next()) == [4]
    async with live.reader("after=0") as reader:
        assert ids(await reader.next()) == [2, 4]


async def test_equal_changes_of_a_burst_are_sent_once(live: Live) -> None:
    for _ in range(5):
        live.store.change(number=7)
    async with live.reader("after=0") as reader:
        assert ids(await reader.next()) == [5]


async def test_streams_are_capped_per_address_and_in_total(live: Live) -> None:
    async with live.reader(), live.reader():
        with pytest.raises(Unavailable):
            await Reader(live.app).open()
        async with live.reader(address="192.0.2.2"):
            with pytest.raises(Unavailable):
                await Reader(live.app, address="192.0.2.3").open()
    async with live.reader() as reader:
        live.change()
        assert ids(await reader.next()) == [1]


BEAT = "event: beat\ndata: {}\n\n"


async def test_an_idle_stream_sends_heartbeats(live: Live) -> None:
    async with live.reader() as reader:
        for _ in range(2):
            while reader.chunks.empty():  # the feed's first read may wake the stream once more
                await wait_until_idle(live)
                live.store.clock.advance(HEARTBEAT_S)
                await settle()
            assert await reader.next() == BEAT


async def test_filtered_changes_do_not_delay_the_heartbeat(live: Live) -> None:
    async with live.reader(f"upstream={UPSTREAM}") as reader:
        for _ in range(4):
            await wait_until_idle(live)
            live.store.clock.advance(HEARTBEAT_S / 3)
            live.change(upstream=OTHER.key)
            await settle()
        assert await reader.next() == BEAT


async def test_a_heartbeat_has_no_event_id(live: Live) -> None:
    async with live.reader() as reader:
        live.change()
        assert ids(await reader.next()) == [1]
        await wait_until_idle(live)
        live.store.clock.advance(HEARTBEAT_S)
        assert ids(await reader.next()) == []


HEALTH = 'event: health\ndata: {"kind":"health","upstream":"torch/torch",'


async def test_health_that_changes_by_time_alone_reaches_an_open_stream(live: Live) -> None:
    clock = live.store.clock
    held_until = clock.now() + timedelta(seconds=70)
    live.store.effect(held_by="hour", due_at=to_us(held_until))
    async with live.reader() as reader, asyncio.timeout(PATIENCE_S):
        events: list[str] = []
        while not any(text.startswith(HEALTH) for text in events):
            while clock.sleeping < 2:  # the stream, and the feed after its poll
                await asyncio.sleep(0)
            clock.advance(POLL_EVERY_S)
            await settle()
            while not reader.chunks.empty():
                events.append(await reader.next())
        assert clock.now() >= held_until


async def test_a_stream_of_a_page_with_stale_health_gets_a_health_event_at_once(live: Live) -> None:
    green = health_signature(None)
    live.store.effect("parked")
    shown = health_signature((await live.store.views.health(live.store.clock.now()))[UPSTREAM])
    async with live.reader(f"health=Torch/torch@{green}") as reader:
        assert await reader.next() == f'{HEALTH}"mark":"{shown}"}}\n\n'
    async with live.reader(f"health=torch/torch@{shown}") as reader:
        live.change()
        assert "event: change" in await reader.next()


def test_the_default_stream_limits_leave_room_for_an_office_behind_one_address() -> None:
    assert StreamLimits().per_address == 50
    assert StreamLimits().in_total == 2_000


@pytest.mark.parametrize(("streams", "spread"), [(1, 0), (50, 0), (51, 153), (700, 2_100), (20_000, 8_000)])
def test_many_pages_spread_their_reads_over_a_longer_time(streams: int, spread: int) -> None:
    assert spread_ms(streams) == spread


async def test_an_event_carries_the_time_over_which_many_readers_spread_their_reads(tmp_path: Path) -> None:
    async with open_store_rows(tmp_path) as store, AsyncExitStack() as stack:
        store.allowlist()
        live = live_app(store, StreamLimits(per_address=100))
        readers = [await stack.enter_async_context(live.reader()) for _ in range(60)]
        live.change()
        texts = {await reader.next() for reader in readers}
        assert [json.loads(text.split("data: ")[1])["spread_ms"] for text in texts] == [180]


async def test_many_streams_get_the_changes_of_a_moment_in_one_batch(tmp_path: Path) -> None:
    async with open_store_rows(tmp_path) as store, AsyncExitStack() as stack:
        store.allowlist()
        live = live_app(store, StreamLimits(per_address=100))
        readers = [await stack.enter_async_context(live.reader()) for _ in range(60)]
        live.change(number=1)
        assert {tuple(ids(await reader.next())) for reader in readers} == {(1,)}
        for number in (2, 3, 4):
            live.change(number=number)
            await settle()
        assert all(reader.chunks.empty() for reader in readers)
        await store.clock.pass_time(pause_between_events_s(60))
        assert {tuple(ids(await reader.next())) for reader in readers} == {(2, 3, 4)}


@pytest.mark.parametrize(("streams", "pause_s"), [(1, 0), (50, 0), (700, 0.49), (2_000, 1.0)])
def test_events_are_collected_for_longer_the_more_streams_are_open(streams: int, pause_s: float) -> None:
    assert pause_between_events_s(streams) == pytest.approx(pause_s)
    assert pause_between_events_s(streams) * 1000 <= spread_ms(streams)


async def test_streams_at_different_positions_get_all_changes_that_they_missed(live: Live) -> None:
    for number in range(1, 5):
        live.store.change(number=number)
    async with live.reader("after=1") as behind, live.reader("after=3") as ahead:
        assert ids(await behind.next()) == [2, 3, 4]
        assert ids(await ahead.next()) == [4]
        live.change(number=5)
        assert ids(await behind.next()) == [5]
        assert ids(await ahead.next()) == [5]


async def test_streams_end_when_the_relay_stops(live: Live) -> None:
    reader = Reader(live.app)
    task = reader.open()
    assert await reader.next() == "retry: 2000\n\n"
    live.stopping.set()
    assert await reader.next() == ""
    await asyncio.wait_for(task, PATIENCE_S)


async def test_a_reader_that_disconnects_unsubscribes_from_the_feed(live: Live) -> None:
    async with live.reader():
        assert live.signals._waiters[CHANGES]
    assert not live.signals._waiters[CHANGES]


@pytest.mark.parametrize(
    ("query", "failure"),
    [
        ("after=x", BadRequest),
        ("after=-1", BadRequest),
        ("after=9" * 30, BadRequest),
        ("upstream=a/b", NotFound),
    ],
)
async def test_an_invalid_position_or_upstream_is_refused(
    live: Live, query: str, failure: type[CrcrError]
) -> None:
    with pytest.raises(failure):
        await Reader(live.app, query).open()


class FlakyLog:
    """A log whose store fails once."""

    def __init__(self, store: StoreRows) -> None:
        self._views = store.views
        self.failures = 1

    async def changes(self, after: int | None, limit: int) -> Any:
        if after is not None and self.failures:
            self.failures -= 1
            raise StoreUnavailable
        return await self._views.changes(after, limit)


async def test_the_feed_survives_an_outage_of_the_store(live: Live) -> None:
    signals, clock = live.signals, live.store.clock
    wakeups = Wakeups(lambda: signals.subscribe(CHANGES), lambda event: signals.unsubscribe(CHANGES, event))
    feed = ChangeFeed(FlakyLog(live.store), wakeups, clock)
    fresh = feed.attach()
    await wait_until_idle(live)
    live.change()
    clock.advance(1)
    await asyncio.wait_for(fresh.wait(), PATIENCE_S)
    assert [change.change_id for change in (await feed.read_after(0))[0]] == [1]
    await feed.detach(fresh)


async def test_only_admins_receive_changes_of_a_hidden_backend(tmp_path: Path) -> None:
    async with open_store_rows(tmp_path) as store:
        store.allowlist("L2:\n  - good/backend\n  - secret/one: {visibility: hidden}\n")
        live = live_app(store)
        admin = ShowReader("ann", admin=True)
        async with live.reader() as anonymous_stream, live.reader(show_reader=admin) as admin_stream:
            live.change(downstream="secret/one")
            assert '"downstream":"secret/one"' in await admin_stream.next()
            live.change(downstream="good/backend")
            assert "secret" not in await anonymous_stream.next()
        async with (
            live.reader("after=0") as anonymous_stream,
            live.reader("after=0", show_reader=admin) as admin_stream,
        ):
            assert "secret" not in await anonymous_stream.next()
            assert '"downstream":"secret/one"' in await admin_stream.next()
