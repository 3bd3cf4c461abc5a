"""Units of work side by side on one connection: what they ask at the same moment is one journey to PostgreSQL.

A journey costs more than the question that it carries. Each unit is written as if it were alone; here they all walk
until each has asked something, every statement goes out once with everybody's parameters, and they walk on with the
answers. Why: docs/adr/0020-postgresql.md.
"""

import re
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import cache
from time import perf_counter
from typing import Any, TypeAlias, cast

from crcr.record.store.database import Row
from crcr.record.store.postgres.connection import FAULTS, Connection

_NTH = "nth_question"
_RETURNS = re.compile(r"\bRETURNING\b")
_ADDRESSED_ROWS = re.compile(r"\s*(INSERT|UPDATE|DELETE)\b")


class Wanted(Enum):
    ONE = "the first row"
    ALL = "all rows"
    COUNT = "how many rows were touched"
    NOTHING = "nothing, of any number of sets of arguments"


@dataclass(slots=True)
class Question:
    sql: str
    wanted: Wanted
    arguments: list[list[Any]]
    """One set of them, or for `NOTHING` any number."""

    def __await__(self) -> Generator["Question", Any, Any]:
        return (yield self)


@dataclass(slots=True)
class Slowest:
    """The statement of a transaction that took longest, also when it failed."""

    sql: str = ""
    took_s: float = 0.0

    @contextmanager
    def timing(self, sql: str) -> Iterator[None]:
        began = perf_counter()
        try:
            yield
        finally:
            took_s = perf_counter() - began
            if took_s > self.took_s:
                self.sql, self.took_s = sql, took_s


Walk: TypeAlias = Generator[Question, Any, None]


async def walk_in_step(connection: Connection, walks: Iterable[Walk], slowest: Slowest | None = None) -> None:
    """Walk them all to their ends. If one fails all have: what they did is to be undone together."""
    walking, slowest = list(walks), slowest or Slowest()
    try:
        asking = [pair for walk in walking for pair in _step(walk, walk.send, None)]
        while asking:
            try:
                answers = await _answers(connection, [asked for _, asked in asking], slowest)
            except FAULTS as fault:
                if len(asking) > 1:
                    raise
                [(walk, _)] = asking
                asking = _step(walk, walk.throw, fault)  # whoever is alone hears of it where it asked
            else:
                told = zip(asking, answers, strict=True)
                asking = [pair for (walk, _), answer in told for pair in _step(walk, walk.send, answer)]
    finally:
        for walk in walking:
            walk.close()


def _step(walk: Walk, way: Callable[[Any], Question], told: Any) -> list[tuple[Walk, Question]]:
    """Go on to the next question; none is left at the end of the way."""
    try:
        return [(walk, way(told))]
    except StopIteration:
        return []


async def _answers(connection: Connection, questions: list[Question], slowest: Slowest) -> list[Any]:
    places: dict[tuple[str, Wanted], list[int]] = {}
    for place, question in enumerate(questions):
        if not isinstance(question, Question):
            raise RuntimeError("a unit of work may await nothing but its transaction")  # noqa: TRY004
        places.setdefault((question.sql, question.wanted), []).append(place)
    answers: list[Any] = [None] * len(questions)
    for (sql, wanted), askers in places.items():
        same = [questions[place] for place in askers]
        with slowest.timing(sql):
            found = await _answer_same(connection, sql, wanted, same)
        for place, answer in zip(askers, found, strict=True):
            answers[place] = answer
    return answers


async def _answer_same(
    connection: Connection, sql: str, wanted: Wanted, questions: list[Question]
) -> list[Any]:
    if wanted is Wanted.NOTHING:
        rows = [each for question in questions for each in question.arguments]
        if len(questions) > 1:
            rows.sort(key=_in_order)  # two transactions that change the same rows do so in the same order
        if rows:
            await connection.executemany(sql, rows)
        return [None] * len(questions)
    arguments = [question.arguments[0] for question in questions]
    numbered = _numbered(sql, len(arguments[0]) + 1) if len(arguments) > 1 else None
    if numbered is None:
        return [await _answer_one(connection, sql, wanted, each) for each in arguments]
    found: list[list[Row]] = [[] for _ in arguments]
    asked = ([*each, number] for number, each in enumerate(arguments))
    for row in await connection.fetchmany(numbered, asked):
        found[row[_NTH]].append(cast("Row", row))
    if wanted is Wanted.ALL:
        return found
    if wanted is Wanted.ONE:
        return [rows[0] if rows else None for rows in found]
    return [len(rows) for rows in found]


async def _answer_one(connection: Connection, sql: str, wanted: Wanted, arguments: list[Any]) -> Any:
    if wanted is Wanted.ALL:
        return await connection.fetch(sql, *arguments)
    if wanted is Wanted.ONE:
        return await connection.fetchrow(sql, *arguments)
    status = await connection.execute(sql, *arguments)
    return int(status.rpartition(" ")[2])


@cache
def _numbered(sql: str, parameter: int) -> str | None:
    """The statement whose rows carry the number of their question, or None where that is not so simple."""
    number = f"${parameter}::int AS {_NTH}"
    if sql.startswith("SELECT"):
        return f"SELECT asked.*, {number} FROM ({sql}) AS asked"  # noqa: S608  our own statement
    if _ADDRESSED_ROWS.match(sql):
        return f"{sql}, {number}" if _RETURNS.search(sql) else f"{sql} RETURNING {number}"
    return None


def _in_order(row: list[Any]) -> list[tuple[bool, Any]]:
    return [(value is not None, value) for value in row]
