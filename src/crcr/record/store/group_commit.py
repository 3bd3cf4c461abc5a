"""What both databases know of a group commit: who waits in it, what they are told, and sums that are written once."""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from crcr.record.store.database import Unit
from crcr.record.store.statement import Adding, Statement

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Waiting(Generic[T]):
    unit: Unit[T]
    answer: asyncio.Future[T]
    result: T | None = None
    failure: Exception | None = None
    lane: str | None = None


def answer(group: list[Waiting[Any]]) -> None:
    for waiting in group:
        if waiting.answer.done():
            continue  # the caller went away; its rows are committed all the same
        if waiting.failure is None:
            waiting.answer.set_result(waiting.result)
        else:
            waiting.answer.set_exception(waiting.failure)


def fail(group: list[Waiting[Any]], failure: Exception) -> None:
    for waiting in group:
        if not waiting.answer.done():
            waiting.answer.set_exception(failure)


class Sums:
    """What the units of a transaction add up: each row is written once, however many of them added to it."""

    def __init__(self) -> None:
        self._rows: dict[Adding, dict[tuple[Any, ...], dict[str, float]]] = {}

    def add(self, adding: Adding, key: tuple[Any, ...], amounts: Mapping[str, float]) -> None:
        row = self._rows.setdefault(adding, {}).setdefault(key, {})
        for name, amount in amounts.items():
            known, choose = row.get(name), adding.extremes.get(name)
            row[name] = amount if known is None else choose(known, amount) if choose else known + amount

    def take(self) -> Iterator[tuple[Statement, list[dict[str, Any]]]]:
        """In the order of their keys, so that two transactions that add to the same rows never wait in a circle."""
        taken, self._rows = self._rows, {}
        for adding, rows in sorted(taken.items(), key=lambda each: each[0].name):
            yield adding.statement, [adding.row(key, rows[key]) for key in sorted(rows)]
