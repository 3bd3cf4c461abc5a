"""A process with many live readers: `python -m bench.readers.reader_process PORT PULL SUMMARIES PULLS`.

It opens the readers, prints a line when all are there, and follows until a line comes in. Then it waits until every reader
has read the last change, and prints what they read as JSON.
"""

import asyncio
import json
import resource
import sys
import time
from dataclasses import astuple
from typing import Any

import uvloop

from bench.readers.live_reader import LiveReader, PageKind

_AT_ONCE = 25
_SETTLED_WITHIN_S = 60


async def _follow(port: int, pull: int, summaries: int, pulls: int) -> dict[str, Any]:
    summary, pull_page = PageKind("/crcr"), PageKind(f"/crcr/pr/{pull}", pull)
    readers = [LiveReader(port, summary) for _ in range(summaries)]
    readers += [LiveReader(port, pull_page) for _ in range(pulls)]
    for first in range(0, len(readers), _AT_ONCE):
        await asyncio.gather(*(reader.open() for reader in readers[first : first + _AT_ONCE]))
    print("open", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    cpu_s = time.process_time()
    for reader in readers:
        reader.reads.clear()
    print("counting", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    cpu_s = time.process_time() - cpu_s
    await _settle(readers)
    dropped = sum(not reader.has_stream for reader in readers)
    for reader in readers:
        reader.close()
    return {
        "reads": [[astuple(read) for read in reader.reads] for reader in readers],
        "shown": len({reader.shown for reader in readers}),
        "dropped": dropped,
        "cpu_s": cpu_s,
    }


async def _settle(readers: list[LiveReader]) -> None:
    """Wait until every reader has read the last change."""
    for _ in range(_SETTLED_WITHIN_S * 10):
        if all(reader.is_settled for reader in readers):
            return
        await asyncio.sleep(0.1)


if __name__ == "__main__":
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    found = uvloop.run(_follow(*(int(argument) for argument in sys.argv[1:5])))
    print(json.dumps(found), flush=True)
