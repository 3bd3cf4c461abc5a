"""Group commit, as both databases do it: queued units, how their callers are answered, and sums written once."""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from crcr.record.store.database import Unit
from crcr.record.store.statement import SumUpsert

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class QueuedUnit(Generic[T]):
    """A unit of work whose caller awaits `outcome`, which is set after the commit."""

    unit: Unit[T]
    outcome: asyncio.Future[T]
    result: T | None = None
    failure: Exception | None = None
    lane: str | None = None


def resolve_units(group: list[QueuedUnit[Any]]) -> None:
    for queued in group:
        if queued.outcome.done():
            continue  # the caller was cancelled; its rows are committed all the same
        if queued.failure is None:
            queued.outcome.set_result(queued.result)
        else:
            queued.outcome.set_exception(queued.failure)


def fail_units(group: list[QueuedUnit[Any]], failure: Exception) -> None:
    for queued in group:
        if not queued.outcome.done():
            queued.outcome.set_exception(failure)


class PendingSums:
    """Sums that the units of a transaction add to: each row is written once, however many units added to it."""

    def __init__(self) -> None:
        self._rows: dict[SumUpsert, dict[tuple[Any, ...], tuple[tuple[Any, ...], dict[str, float]]]] = {}

    def add(self, upsert: SumUpsert, key: tuple[Any, ...], amounts: Mapping[str, float]) -> None:
        rows = self._rows.setdefault(upsert, {})
        _, row = rows.setdefault(key[: upsert.unique], (key, {}))
        for name, amount in amounts.items():
            known, choose = row.get(name), upsert.extremes.get(name)
            row[name] = amount if known is None else choose(known, amount) if choose else known + amount

    def drain(self) -> Iterator[tuple[SumUpsert, list[tuple[tuple[Any, ...], dict[str, float]]]]]:
        """Keys and amounts, in the order of their keys, so that two transactions that add to the same rows cannot deadlock."""
        drained, self._rows = self._rows, {}
        for upsert, rows in sorted(drained.items(), key=lambda item: item[0].name):
            yield upsert, [rows[unique] for unique in sorted(rows)]
