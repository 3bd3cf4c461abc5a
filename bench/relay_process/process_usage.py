"""Processor time and memory of a process and its descendants, from /proc."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Memory:
    resident_mb: float
    """Shared pages count once for each process."""
    proportional_mb: float
    """PSS: a page that several processes share is divided among them."""


def cpu_seconds(process_id: int) -> float:
    """User and system time of the processes that run now, and of their ended children."""
    return sum(_cpu_seconds(one) for one in _process_tree(process_id))


def memory(process_id: int) -> Memory:
    sizes = [_memory(one) for one in _process_tree(process_id)]
    return Memory(sum(size.resident_mb for size in sizes), sum(size.proportional_mb for size in sizes))


def resident_mb(process_id: int) -> float:
    """Of this process alone."""
    return _memory(process_id).resident_mb


def _process_tree(process_id: int) -> Iterator[int]:
    yield process_id
    for task in (_PROC / str(process_id) / "task").glob("*/children"):
        for child in _read(task).split():
            yield from _process_tree(int(child))


def _cpu_seconds(process_id: int) -> float:
    """utime, stime, cutime and cstime: the 14th to 17th field, counted after the name, which may hold spaces."""
    fields = _read(_PROC / str(process_id) / "stat").rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / _TICKS


def _memory(process_id: int) -> Memory:
    lines = _read(_PROC / str(process_id) / "smaps_rollup").splitlines()
    sizes = {
        name: int(rest.split()[0])
        for name, _, rest in (line.partition(":") for line in lines)
        if "kB" in rest
    }
    return Memory(sizes.get("Rss", 0) * 1024 / 1e6, sizes.get("Pss", 0) * 1024 / 1e6)


def _read(path: Path) -> str:
    """The file's text; empty when the process has ended."""
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
