"""Hundreds of live readers while callbacks go on: what they cost the callbacks and the processor, and what they see when.

One relay; phases without readers alternate with phases of more and more readers, so that both are measured under the same
load of the machine. The readers are a process of their own, which says how much processor time it took itself.
"""

import asyncio
import json
import subprocess
import sys
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import uvloop
from rich.console import Console

from bench.history.history_database import make_history
from bench.readers.live_reader import LiveReader, PageKind, PageRead
from bench.relay_process.load_client import percentile
from bench.relay_process.process_usage import Memory, cpu_seconds, memory
from bench.relay_process.processes import run_relay
from bench.relay_process.relay_setup import RelaySetup, Row
from bench.relay_process.steady_traffic import Answers, WatchedPull, begun_job, send_at_rate

TARGETS = 20
HISTORY_JOBS = 200_000
CALLBACKS_A_SECOND = 20
MOST_RATIO = 1.5
MOST_CPU_RATIO = 3.0
"""Forty times as many readers read the same two pages."""
_ALONE_S, _READ_S = 15, 30
_WARM_S = 4
_PAGES = 2
_NOTHING_READ: dict[str, Any] = {"reads": [], "shown": 0, "dropped": 0, "cpu_s": 0.0}


@dataclass(frozen=True, slots=True)
class Crowd:
    summaries: int
    pulls: int
    visible_s: float | None
    """The bar for the time until a change is visible; None without one."""

    @property
    def readers(self) -> int:
        return self.summaries + self.pulls


CROWDS = (Crowd(35, 15, 1.0), Crowd(350, 150, None), Crowd(500, 200, 3.0), Crowd(1_400, 600, 10.0))


@dataclass(frozen=True, slots=True)
class Phase:
    answers: Answers
    relay_cpu_share: float
    memory: Memory
    reads: list[list[PageRead]]
    different_pages: int
    """How many different pages the readers have at the end; there are two addresses."""
    dropped_streams: int
    client_cpu_share: float


def measure_readers(folder: Path, console: Console) -> Iterator[Row]:
    run_folder = folder / "readers"
    run_folder.mkdir()
    history = make_history(run_folder, HISTORY_JOBS, console, targets=TARGETS)
    setup = RelaySetup(run_folder, TARGETS, database=history.database)
    with run_relay(setup):
        time.sleep(_WARM_S)
        uvloop.run(_measure_phase(setup, WatchedPull(setup), None, _WARM_S))
        alone = uvloop.run(_measure_phase(setup, WatchedPull(setup), None, _ALONE_S))
        measured = {}
        for crowd in CROWDS:
            measured[crowd] = phase = uvloop.run(_measure_phase(setup, WatchedPull(setup), crowd, _READ_S))
            after = uvloop.run(_measure_phase(setup, WatchedPull(setup), None, _ALONE_S))
            alone.answers.extend(after.answers)
            yield from _describe(crowd, phase)
    yield "callback without readers", str(alone.answers), "", True
    yield "CPU of the relay without readers", _cpu(alone.relay_cpu_share), "", True
    few, many = (measured[crowd].relay_cpu_share for crowd in (CROWDS[0], CROWDS[-1]))
    yield (
        f"CPU, {CROWDS[-1].readers:,} readers to {CROWDS[0].readers}",
        f"{many / few:.1f}",
        f"< {MOST_CPU_RATIO}",
        many / few < MOST_CPU_RATIO,
    )
    yield from _compare_latencies(alone, measured)


def _compare_latencies(alone: Phase, measured: dict[Crowd, Phase]) -> Iterator[Row]:
    for crowd, phase in measured.items():
        ratio = phase.answers.p99_ms() / alone.answers.p99_ms()
        has_bar = crowd.visible_s is not None and crowd.readers <= 700
        yield (
            f"callback P99, {crowd.readers:,} readers to none",
            f"{ratio:.2f}",
            f"≤ {MOST_RATIO}" if has_bar else "",
            ratio <= MOST_RATIO or not has_bar,
        )


def _describe(crowd: Crowd, phase: Phase) -> Iterator[Row]:
    name = f"{crowd.readers:,} readers"
    reads = [read for of_reader in phase.reads for read in of_reader]
    yield f"callback, {name}", str(phase.answers), "", not phase.answers.lost
    yield f"page reads, {name}", _describe_reads(reads), "", True
    delays, unseen = _visible_after(phase)
    p50, p95 = percentile(delays, 0.5), percentile(delays, 0.95)
    bar = f"P95 < {crowd.visible_s:.0f} s" if crowd.visible_s else ""
    reached = not unseen and p95 < (crowd.visible_s or p95 + 1)
    yield (
        f"callback answered → page, {name}",
        f"P50 {p50:.2f}, P95 {p95:.2f} s, unseen {unseen}",
        bar,
        reached,
    )
    yield (
        f"streams that were dropped, {name}; different pages at the end",
        f"{phase.dropped_streams}; {phase.different_pages}",
        "0; 2",
        not phase.dropped_streams and phase.different_pages == _PAGES,
    )
    yield f"CPU of the relay, {name}", _cpu(phase.relay_cpu_share), "", True
    yield f"CPU of the readers' client, {name}", _cpu(phase.client_cpu_share), "", True
    yield (
        f"memory of the relay, {name}",
        f"RSS {phase.memory.resident_mb:.0f}, PSS {phase.memory.proportional_mb:.0f} MB",
        "",
        True,
    )


def _describe_reads(reads: list[PageRead]) -> str:
    statuses = Counter(read.status for read in reads)
    sizes = [read.size / 1000 for read in reads if read.status == 200] or [0.0]
    took = [read.done_at - read.sent_at for read in reads if read.status in {200, 304}] or [0.0]
    p50, p95 = (percentile(took, share) * 1000 for share in (0.5, 0.95))
    return (
        f"{len(reads) / _READ_S:.0f}/s {dict(statuses)}, mean {sum(sizes) / len(sizes):.0f} KB,"
        f" P50 {p50:.0f}, P95 {p95:.0f} ms"
    )


def _cpu(share: float) -> str:
    return f"{share * 60:.1f} s a minute"


def _visible_after(phase: Phase) -> tuple[list[float], int]:
    """From the answer to each report that began a job until each reader has a page that shows the job or a later one.

    Also how many times a reader never had it.
    """
    begun = [(at, job) for at, index in phase.answers.answered if (job := begun_job(index)) is not None]
    delays, unseen = [], 0
    for reads in phase.reads:
        pages = [read for read in reads if read.mark is not None and read.status in {200, 304}]
        marks = [read.mark or 0 for read in pages]
        for answered_at, job in begun[::3]:
            index = bisect_left(marks, job)
            if index == len(marks):
                unseen += 1
            else:
                delays.append(max(0.0, pages[index].done_at - answered_at))
    return delays or [0.0], unseen


async def _measure_phase(setup: RelaySetup, pull: WatchedPull, crowd: Crowd | None, seconds: float) -> Phase:
    await pull.open()
    jobs_before = await _count_jobs(setup)
    warm = pull.reports(0, int(_WARM_S * CALLBACKS_A_SECOND))
    requests = pull.reports(len(warm), int(seconds * CALLBACKS_A_SECOND))
    with _readers(setup, pull.number, crowd) as readers:
        await send_at_rate(setup, warm, CALLBACKS_A_SECOND)
        if readers:
            _tell(readers)
        cpu_s, began = cpu_seconds(setup.process_id), time.monotonic()
        answers = await send_at_rate(setup, requests, CALLBACKS_A_SECOND, first=len(warm))
        share = (cpu_seconds(setup.process_id) - cpu_s) / (time.monotonic() - began)
        used = memory(setup.process_id)
        found = await asyncio.to_thread(_stop, readers) if readers else _NOTHING_READ
    return Phase(
        answers=answers,
        relay_cpu_share=share,
        memory=used,
        reads=[_number_jobs(reads, jobs_before) for reads in found["reads"]],
        different_pages=found["shown"],
        dropped_streams=found["dropped"],
        client_cpu_share=found["cpu_s"] / seconds,
    )


async def _count_jobs(setup: RelaySetup) -> int:
    """The jobs on the summary, before the first of this phase."""
    reader = LiveReader(setup.relay_port, PageKind("/crcr"))
    await reader.read_once()
    reader.close()
    return reader.reads[-1].mark or 0


def _number_jobs(reads: list[Any], jobs_before: int) -> list[PageRead]:
    """The reads, the jobs on the summary numbered like those of the pull request: from 0 in this phase."""
    pages = [PageRead(*read) for read in reads]
    return [
        replace(page, mark=page.mark - jobs_before - 1)
        if page.mark is not None and page.mark >= jobs_before
        else page
        for page in pages
    ]


@contextmanager
def _readers(setup: RelaySetup, pull: int, crowd: Crowd | None) -> Iterator["subprocess.Popen[str] | None"]:
    """A process with the readers, whose pages and streams are open."""
    if crowd is None:
        yield None
        return
    numbers = map(str, (setup.relay_port, pull, crowd.summaries, crowd.pulls))
    command = [sys.executable, "-m", "bench.readers.reader_process", *numbers]
    readers = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        _expect(readers, "open")
        yield readers
    finally:
        readers.terminate()
        readers.wait(20)


def _expect(readers: "subprocess.Popen[str]", word: str) -> None:
    line = readers.stdout.readline() if readers.stdout else ""
    if line.strip() != word:
        raise SystemExit(f"the readers' process ended: {line[:200]!r}")


def _tell(readers: "subprocess.Popen[str]") -> None:
    if readers.stdin:
        readers.stdin.write("\n")
        readers.stdin.flush()
    _expect(readers, "counting")


def _stop(readers: "subprocess.Popen[str]") -> Any:
    out, _ = readers.communicate("\n")
    return json.loads(out)
