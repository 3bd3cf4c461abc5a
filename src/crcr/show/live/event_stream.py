"""`/api/v1/events`: changes as server-sent events that can be resumed.

An event names what changed, never its content: the page reads again what it shows. A client whose position is no longer
kept gets `reset`; a client without news gets `beat`. Streams are limited per address and in total, because each one holds
a connection.

A process holds thousands of streams: a waiting stream is one event, which the feed, the health, the heartbeat and the stop
set; a batch of changes is encoded once for all streams at the same position; and `spread_ms` tells the pages over how long
to spread their reads.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from starlette.requests import Request
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from crcr.decide.model import RepoName
from crcr.decide.views.overview import Change
from crcr.errors import BadRequest, Unavailable
from crcr.ports import Clock, Trace
from crcr.show.access.reader import get_reader
from crcr.show.live.change_feed import FEW_STREAMS, ChangeFeed, ChangeLog, LiveDelay, Wakeups
from crcr.show.live.shared_health import HealthFeed
from crcr.show.urls.location import pick_upstream

HEARTBEAT_S = 15.0
_LOOK_EVERY_S = 1.0
"""How often one task looks which streams are due for a heartbeat."""
_SPREAD_MS = 3
_LONGEST_SPREAD_MS = 8_000
_MOST_ENCODED = 64
_HEARTBEAT = timedelta(seconds=HEARTBEAT_S)
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-accel-buffering", b"no"),  # nginx would hold events back
]
_BIGGEST_ID = 2**63 - 1


@dataclass(frozen=True, slots=True)
class StreamLimits:
    per_address: int = 50
    """A browser holds one for all its tabs; an office behind one address has many browsers."""
    in_total: int = 2_000


def spread_ms(streams: int) -> int:
    """Return over how many milliseconds the pages of so many streams spread their reads; few pages read at once."""
    return 0 if streams <= FEW_STREAMS else min(_LONGEST_SPREAD_MS, _SPREAD_MS * streams)


def peer_address(request: Request) -> str:
    return request.client.host if request.client else "unknown"


def routes(
    log: ChangeLog,
    *,
    wakeups: Wakeups,
    upstreams: tuple[RepoName, ...],
    clock: Clock,
    stopping: asyncio.Event,
    address_of: Callable[[Request], str] = peer_address,
    caps: StreamLimits = StreamLimits(),  # noqa: B008  frozen
    delay: LiveDelay | None = None,
    trace: Trace | None = None,
    on_streams: Callable[[int], None] = lambda _: None,
    log_for_admins: ChangeLog | None = None,
    health: HealthFeed | None = None,
) -> list[BaseRoute]:
    """The stream's route. Setting `stopping` ends all streams; browsers then reconnect and resume."""
    feed = ChangeFeed(log, wakeups, clock, delay, trace)
    for_admins = ChangeFeed(log_for_admins, wakeups, clock) if log_for_admins else feed
    events = EventStreams(
        feed,
        for_admins,
        upstreams=upstreams,
        clock=clock,
        stopping=stopping,
        address_of=address_of,
        caps=caps,
        on_streams=on_streams,
        health=health,
    )
    return [Route("/api/v1/events", events, methods=["GET"], name="events")]


class EventStreams:
    def __init__(
        self,
        feed: ChangeFeed,
        for_admins: ChangeFeed,
        *,
        upstreams: tuple[RepoName, ...],
        clock: Clock,
        stopping: asyncio.Event,
        address_of: Callable[[Request], str],
        caps: StreamLimits,
        on_streams: Callable[[int], None],
        health: HealthFeed | None,
    ) -> None:
        self._health = health
        self._feed = feed
        self._for_admins = for_admins
        self._upstreams = upstreams
        self._clock = clock
        self._stopping = stopping
        self._address_of = address_of
        self._caps = caps
        self._on_streams = on_streams
        self._open: Counter[str] = Counter()
        self._streams: set[_Stream] = set()
        self._wakers: tuple[asyncio.Task[None], ...] = ()
        self._encoded: dict[tuple[ChangeFeed, str | None, int, int, int], bytes] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        requested = request.query_params.get("upstream")
        upstream = pick_upstream(self._upstreams, requested).key if requested else None
        after = _resume_id(request)
        with self._count_stream(self._address_of(request)):
            feed = self._for_admins if get_reader(request).admin else self._feed
            async with _attached(feed) as fresh:
                stream = _Stream(send, feed, upstream, self._clock, fresh)
                await self._start_stream(stream, after)
                if request.method != "HEAD":
                    with self._health.attach(fresh) if self._health else nullcontext():
                        await self._note_health(stream, request.query_params.get("health"))
                        with self._woken(stream):
                            await self._follow(stream, receive)
                await send({"type": "http.response.body", "body": b"", "more_body": False})

    @contextmanager
    def _woken(self, stream: "_Stream") -> Iterator[None]:
        """Wake the stream for its heartbeats and for the stop."""
        self._streams.add(stream)
        if not self._wakers:
            self._wakers = (
                asyncio.create_task(self._wake_for_heartbeats()),
                asyncio.create_task(self._wake_for_stop()),
            )
        try:
            yield
        finally:
            self._streams.discard(stream)
            if not self._streams:
                for waker in self._wakers:
                    waker.cancel()
                self._wakers = ()

    async def _wake_for_heartbeats(self) -> None:
        while True:
            await self._clock.sleep(_LOOK_EVERY_S)
            now = self._clock.now()
            for stream in self._streams:
                if stream.is_heartbeat_due(now):
                    stream.fresh.set()

    async def _wake_for_stop(self) -> None:
        await self._stopping.wait()
        for stream in self._streams:
            stream.fresh.set()

    @contextmanager
    def _count_stream(self, address: str) -> Iterator[None]:
        if self._open.total() >= self._caps.in_total or self._open[address] >= self._caps.per_address:
            raise Unavailable(
                "too many live streams are open", hint="close other pages, or read /api/v1/summary instead"
            )
        self._open[address] += 1
        self._on_streams(self._open.total())
        try:
            yield
        finally:
            self._open[address] -= 1
            if not self._open[address]:
                del self._open[address]
            self._on_streams(self._open.total())

    async def _start_stream(self, stream: "_Stream", after: int | None) -> None:
        """Start the response at the client's position, or send `reset` when the log no longer has it."""
        log = await stream.feed.position()
        await stream.start()
        is_in_log = after is not None and (log.oldest - 1 <= after <= log.newest)
        stream.upto = after if after is not None and is_in_log else log.newest
        if after is not None and not is_in_log:
            await stream.reset()

    async def _note_health(self, stream: "_Stream", page_mark: str | None) -> None:
        """Take the health that the page shows as the last one sent, so that a change since then is sent at once."""
        stream.health = await self._health.read_signatures() if self._health else {}
        upstream, _, mark = (page_mark or "").lower().rpartition("@")
        if upstream in stream.health:
            stream.health = {**stream.health, upstream: mark}

    async def _follow(self, stream: "_Stream", receive: Receive) -> None:
        disconnected = asyncio.create_task(_wait_for_disconnect(receive))
        disconnected.add_done_callback(lambda _: stream.fresh.set())
        try:
            while not (disconnected.done() or self._stopping.is_set()):
                stream.fresh.clear()
                more = await self._write_changes(stream)
                if self._health:
                    await stream.write_health(await self._health.read_signatures(), self._spread_ms)
                if stream.is_heartbeat_due(self._clock.now()):
                    await stream.heartbeat()
                if not more:
                    await stream.fresh.wait()
        except OSError:
            return  # the client disconnected during a write
        finally:
            disconnected.cancel()

    async def _write_changes(self, stream: "_Stream") -> bool:
        """Write what is new for this stream; return whether there is more to read."""
        try:
            changes, upto, more = await stream.feed.read_after(stream.upto)
        except Unavailable:
            return False  # the feed wakes the stream when the store is back
        if changes and (text := self._encode(stream, changes, upto)):
            await stream.write(text)
        stream.upto = upto
        return more

    def _encode(self, stream: "_Stream", changes: list[Change], upto: int) -> bytes:
        """Return the events of a batch; streams of one upstream at the same position share the bytes."""
        key = (stream.feed, stream.upstream, stream.upto, upto, self._spread_ms)
        if key not in self._encoded:
            if len(self._encoded) >= _MOST_ENCODED:
                self._encoded.clear()
            self._encoded[key] = _encode_changes(changes, stream.upstream, self._spread_ms)
        return self._encoded[key]

    @property
    def _spread_ms(self) -> int:
        return spread_ms(self._open.total())


@asynccontextmanager
async def _attached(feed: ChangeFeed) -> AsyncIterator[asyncio.Event]:
    fresh = feed.attach()
    try:
        yield fresh
    finally:
        await feed.detach(fresh)


@dataclass(slots=True, eq=False)
class _Stream:
    send: Send
    feed: ChangeFeed
    upstream: str | None
    clock: Clock
    fresh: asyncio.Event
    """Set whenever there may be something to write, or the stream is to end."""
    upto: int = 0
    health: dict[str, str] = field(default_factory=dict)
    """The health signatures that were sent to this client, by upstream."""
    _wrote_at: datetime | None = None

    def is_heartbeat_due(self, now: datetime) -> bool:
        """Counted from the last write: changes of other upstreams are not written to this stream."""
        return self._wrote_at is not None and now - self._wrote_at >= _HEARTBEAT

    async def start(self) -> None:
        await self.send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        await self.write(b"retry: 2000\n\n")

    async def reset(self) -> None:
        await self.write(f"id: {self.upto}\nevent: reset\ndata: {{}}\n\n".encode())

    async def heartbeat(self) -> None:
        """An event, since a browser's script does not see comments. It has no id, so the client's position stays."""
        await self.write(b"event: beat\ndata: {}\n\n")

    async def write_health(self, marks: dict[str, str], spread: int) -> None:
        """Write which upstreams' health changed. The event has no id: it is not in the log."""
        if marks is self.health:
            return
        followed = [key for key in marks if self.upstream in (None, key)]
        changed = [key for key in followed if marks[key] != self.health.get(key)]
        self.health = marks
        for key in changed:
            data = _encode_data({"kind": "health", "upstream": key, "mark": marks[key]}, spread)
            await self.write(f"event: health\ndata: {data}\n\n".encode())

    async def write(self, text: bytes) -> None:
        self._wrote_at = self.clock.now()
        await self.send({"type": "http.response.body", "body": text, "more_body": True})


def _encode_changes(changes: list[Change], upstream: str | None, spread: int) -> bytes:
    """Encode equal changes once: a page reloads its content anyway, and a burst stays small."""
    relevant = [change for change in changes if upstream in (None, change.upstream)]
    newest = {(c.kind, c.upstream, c.downstream, c.delivery, c.number): c for c in relevant}
    distinct = sorted(newest.values(), key=lambda change: change.change_id)
    return "".join(_encode_change(change, spread) for change in distinct).encode()


def _encode_change(change: Change, spread: int) -> str:
    data = {
        "kind": change.kind,
        "upstream": change.upstream,
        "downstream": change.downstream,
        "delivery": change.delivery,
        "number": change.number,
    }
    return f"id: {change.change_id}\nevent: change\ndata: {_encode_data(data, spread)}\n\n"


def _encode_data(data: Mapping[str, object], spread: int) -> str:
    return json.dumps({**data, **({"spread_ms": spread} if spread else {})}, separators=(",", ":"))


def _resume_id(request: Request) -> int | None:
    """Return the client's position; the header of a reconnecting browser is newer than its address."""
    text = request.headers.get("last-event-id") or request.query_params.get("after")
    if not text:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > 19 or int(text) > _BIGGEST_ID:
        raise BadRequest(
            "the position to resume from is not a number", hint="send back an event's id unchanged"
        )
    return int(text)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
