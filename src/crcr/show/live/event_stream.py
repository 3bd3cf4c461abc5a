"""`/api/v1/events`: changes as server-sent events that can be resumed.

An event names what changed, never its content: the page reads again what it shows. A client whose position is no longer
kept gets `reset`; a client without news gets `beat`. Streams are limited per address and in total, because each one holds
a connection.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime

from starlette.requests import Request
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from crcr.decide.model import RepoName
from crcr.decide.views.overview import Change
from crcr.errors import BadRequest, Unavailable
from crcr.ports import Clock, Trace
from crcr.show.access.reader import get_reader
from crcr.show.live.change_feed import ChangeFeed, ChangeLog, LiveDelay, Wakeups
from crcr.show.live.shared_health import HealthFeed
from crcr.show.urls.location import pick_upstream

HEARTBEAT_S = 15.0
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
    in_total: int = 500


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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        requested = request.query_params.get("upstream")
        upstream = pick_upstream(self._upstreams, requested).key if requested else None
        after = _resume_id(request)
        with self._count_stream(self._address_of(request)):
            feed = self._for_admins if get_reader(request).admin else self._feed
            async with _attached(feed) as fresh:
                stream = _Stream(send, feed, upstream, self._clock)
                await self._start_stream(stream, after)
                if request.method != "HEAD":
                    with self._health.attach(fresh) if self._health else nullcontext():
                        await self._note_health(stream, request.query_params.get("health"))
                        await self._follow(stream, fresh, receive)
                await send({"type": "http.response.body", "body": b"", "more_body": False})

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

    async def _follow(self, stream: "_Stream", fresh: asyncio.Event, receive: Receive) -> None:
        disconnected = asyncio.create_task(_wait_for_disconnect(receive))
        try:
            while not (disconnected.done() or self._stopping.is_set()):
                fresh.clear()
                try:
                    changes, upto, more = await stream.feed.read_after(stream.upto)
                except Unavailable:
                    changes, upto, more = [], stream.upto, False  # the feed wakes us when the store is back
                await stream.write_changes(changes, upto)
                if self._health:
                    await stream.write_health(await self._health.read_signatures())
                if not more and not await self._wait(disconnected, fresh, stream.heartbeat_due_s):
                    await stream.heartbeat()
        except OSError:
            return  # the client disconnected during a write
        finally:
            disconnected.cancel()

    async def _wait(self, disconnected: asyncio.Task[None], fresh: asyncio.Event, seconds: float) -> bool:
        """Wait for a change, a disconnect or the stop; False when a heartbeat is due."""
        if seconds <= 0:
            return False
        beat = asyncio.create_task(self._clock.sleep(seconds))
        waits = [beat, asyncio.create_task(fresh.wait()), asyncio.create_task(self._stopping.wait())]
        try:
            done, _ = await asyncio.wait([disconnected, *waits], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return beat not in done


@asynccontextmanager
async def _attached(feed: ChangeFeed) -> AsyncIterator[asyncio.Event]:
    fresh = feed.attach()
    try:
        yield fresh
    finally:
        await feed.detach(fresh)


@dataclass(slots=True)
class _Stream:
    send: Send
    feed: ChangeFeed
    upstream: str | None
    clock: Clock
    upto: int = 0
    health: dict[str, str] = field(default_factory=dict)
    """The health signatures that were sent to this client, by upstream."""
    _wrote_at: datetime | None = None

    @property
    def heartbeat_due_s(self) -> float:
        """Counted from the last write: changes of other upstreams are not written to this stream."""
        if self._wrote_at is None:
            return HEARTBEAT_S
        silent_s = (self.clock.now() - self._wrote_at).total_seconds()
        return HEARTBEAT_S - max(0.0, silent_s)

    async def start(self) -> None:
        await self.send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        await self._write("retry: 2000\n\n")

    async def reset(self) -> None:
        await self._write(f"id: {self.upto}\nevent: reset\ndata: {{}}\n\n")

    async def heartbeat(self) -> None:
        """An event, since a browser's script does not see comments. It has no id, so the client's position stays."""
        await self._write("event: beat\ndata: {}\n\n")

    async def write_changes(self, changes: list[Change], upto: int) -> None:
        """Write a batch, with equal changes once: a page reloads its content anyway, and a burst stays small."""
        relevant = [change for change in changes if self.upstream in (None, change.upstream)]
        newest = {(c.kind, c.upstream, c.downstream, c.delivery, c.number): c for c in relevant}
        if newest:
            distinct = sorted(newest.values(), key=lambda change: change.change_id)
            await self._write("".join(map(_frame, distinct)))
        self.upto = upto

    async def write_health(self, marks: dict[str, str]) -> None:
        """Write which upstreams' health changed. The event has no id: it is not in the log."""
        followed = [key for key in marks if self.upstream in (None, key)]
        changed = [key for key in followed if marks[key] != self.health.get(key)]
        self.health = marks
        for key in changed:
            await self._write(f'event: health\ndata: {{"kind":"health","upstream":{json.dumps(key)}}}\n\n')

    async def _write(self, text: str) -> None:
        self._wrote_at = self.clock.now()
        await self.send({"type": "http.response.body", "body": text.encode(), "more_body": True})


def _frame(change: Change) -> str:
    data = {
        "kind": change.kind,
        "upstream": change.upstream,
        "downstream": change.downstream,
        "delivery": change.delivery,
        "number": change.number,
    }
    return f"id: {change.change_id}\nevent: change\ndata: {json.dumps(data, separators=(',', ':'))}\n\n"


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
