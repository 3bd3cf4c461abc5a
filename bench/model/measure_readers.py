"""Measure what readers cost: a page after a change, unchanged, and not modified; a live stream and an event on it."""

import asyncio
from itertools import pairwise
from pathlib import Path

import uvloop
from rich.console import Console

from bench.history.history_database import BIG, allowlist, backends, make_history
from bench.model.constants import PageCost, ReaderCosts
from bench.model.measured_process import MeasuredRelay, run_measured_relay
from bench.pages.reporter import Reporter
from bench.relay_process.load_client import get_bytes, post_bytes, send_all
from bench.relay_process.relay_setup import RelaySetup, signed_webhook

HISTORY_JOBS = 160_000
STREAMS = 200
_READS, _KEPT_READS = 20, 400
_CHANGES = 20
_BETWEEN_CHANGES_S = 0.15


def make_model_history(folder: Path, console: Console) -> Path:
    return make_history(folder, HISTORY_JOBS, console).database


def measure_readers(folder: Path, history: Path) -> ReaderCosts:
    """Measure on a database that `make_model_history` has made."""
    folder.mkdir()
    setup = RelaySetup(folder / "pages", len(backends()), database=history, allowlist=allowlist())
    with run_measured_relay(setup) as relay:
        reporter = Reporter(setup, BIG)
        uvloop.run(reporter.open_pull())
        report_s = _measure_reports(relay, reporter)
        paths = {"summary": "/crcr", "backend": f"/crcr/{BIG}", "pull request": f"/crcr/pr/{reporter.number}"}
        pages = {name: _measure_page(relay, reporter, path, report_s) for name, path in paths.items()}
    with run_measured_relay(RelaySetup(folder / "streams", 1)) as relay:
        stream_bytes, stream_event_s = uvloop.run(_measure_streams(relay))
    return ReaderCosts(pages=pages, stream_bytes=stream_bytes, stream_event_s=stream_event_s)


def _measure_reports(relay: MeasuredRelay, reporter: Reporter) -> float:
    """Processor seconds of one report by itself: the change before each page that is read after a change."""

    async def send_reports() -> None:
        for _ in range(_READS):
            await _send_report(relay, reporter)

    uvloop.run(send_reports())
    before = relay.cpu()
    uvloop.run(send_reports())
    return relay.cpu().minus(before, per=_READS).relay_s


def _measure_page(relay: MeasuredRelay, reporter: Reporter, path: str, report_s: float) -> PageCost:
    port = relay.setup.relay_port

    async def read_after_changes() -> None:
        for _ in range(_READS):
            await _send_report(relay, reporter)
            await _read(port, [path])

    uvloop.run(_read(port, [path] * _READS))  # The first requests compile templates and fill caches.
    marks = [relay.cpu()]
    uvloop.run(read_after_changes())
    marks.append(relay.cpu())
    etag, size = uvloop.run(_read(port, [path] * _KEPT_READS))
    marks.append(relay.cpu())
    uvloop.run(_read(port, [path] * _KEPT_READS, etag))
    marks.append(relay.cpu())
    after_change, unchanged, not_modified = (
        after.minus(before, per=reads).relay_s
        for reads, (before, after) in zip((_READS, _KEPT_READS, _KEPT_READS), pairwise(marks), strict=True)
    )
    return PageCost(
        after_change_s=max(0.0, after_change - report_s),
        unchanged_s=unchanged,
        not_modified_s=not_modified,
        bytes=size,
    )


async def _send_report(relay: MeasuredRelay, reporter: Reporter) -> None:
    """Open one job: the page of its backend and of its pull request change, and so does the summary."""
    _, [opening, _] = reporter.next_job()
    await send_all(relay.setup.relay_port, [opening], 1)


async def _read(port: int, paths: list[str], etag: str = "") -> tuple[str, int]:
    """Request the pages one after the other on one connection; return the last one's ETag and size."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    condition = f"If-None-Match: {etag}\r\n".encode() if etag else b""
    for path in paths:
        writer.write(
            get_bytes(path).removesuffix(b"\r\n") + b"Accept-Encoding: gzip\r\n" + condition + b"\r\n"
        )
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head)}
        size = int(headers.get("content-length", 0))
        await reader.readexactly(size)
        if head[0].split()[1] not in {"200", "304"}:
            raise SystemExit(f"{path} answered {head[0]}")
    writer.close()
    return headers.get("etag", ""), size


async def _measure_streams(relay: MeasuredRelay) -> tuple[float, float]:
    """Bytes of a stream, and processor seconds of an event on one: changes with streams less changes without."""
    port = relay.setup.relay_port
    alone_s = await _change(relay, first=1)
    before = relay.memory_bytes()
    streams = [await _open_stream(port) for _ in range(STREAMS)]
    readers = [asyncio.create_task(_count_events(reader)) for reader, _ in streams]
    followed_s = await _change(relay, first=1 + _CHANGES)
    memory_bytes = (relay.memory_bytes() - before) / STREAMS
    for _, writer in streams:
        writer.close()
    events = sum(await asyncio.gather(*readers))
    return max(0.0, memory_bytes), max(0.0, followed_s - alone_s) / max(1, events)


async def _change(relay: MeasuredRelay, first: int) -> float:
    """Send webhooks one by one; return the processor time that they took."""
    before = await asyncio.to_thread(relay.cpu)
    for number in range(first, first + _CHANGES):
        body, headers, _ = signed_webhook(number)
        await send_all(relay.setup.relay_port, [post_bytes("/github/webhook", body, headers)], 1)
        await asyncio.sleep(_BETWEEN_CHANGES_S)
    await asyncio.sleep(1.0)
    return (await asyncio.to_thread(relay.cpu)).minus(before, per=1).relay_s


async def _open_stream(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(get_bytes("/api/v1/events"))
    head = await reader.readuntil(b"\n\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise SystemExit(f"a stream was refused: {head[:100]!r}")
    return reader, writer


async def _count_events(reader: asyncio.StreamReader) -> int:
    """Read until the stream is closed."""
    events = 0
    while chunk := await reader.read(65_536):
        events += chunk.count(b"event: change")
    return events
