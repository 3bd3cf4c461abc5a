"""What a unit of work asks of PostgreSQL, and what it leaves for the end of its transaction."""

from collections.abc import Generator, Iterable, Mapping
from typing import Any, cast

from crcr.record.store.database import Row
from crcr.record.store.group_commit import Sums, Waiting
from crcr.record.store.postgres.batching import Question, Walk, Wanted
from crcr.record.store.statement import Adding, Statement


class PostgresTx:
    """Its questions are answered by whoever walks the unit, see `in_step`; any number of units may share it."""

    def __init__(self, settled: int | None = None) -> None:
        self._settled = settled
        self.signals: set[str] = set()
        self._sums = Sums()

    async def one(self, statement: Statement, **params: Any) -> Row | None:
        return cast("Row | None", await _asked(statement, Wanted.ONE, params))

    async def all(self, statement: Statement, **params: Any) -> list[Row]:
        return cast("list[Row]", await _asked(statement, Wanted.ALL, params))

    async def run(self, statement: Statement, **params: Any) -> int:
        return cast("int", await _asked(statement, Wanted.COUNT, params))

    async def many(self, statement: Statement, rows: Iterable[Mapping[str, Any]]) -> None:
        compiled = statement.for_dialect("postgresql")
        if arguments := [compiled.arguments(row) for row in rows]:
            await Question(compiled.sql, Wanted.NOTHING, arguments)

    def add_up(self, adding: Adding, key: tuple[Any, ...], amounts: Mapping[str, float]) -> None:
        self._sums.add(adding, key, amounts)

    async def settled_change(self) -> int | None:
        return self._settled

    def signal(self, name: str) -> None:
        self.signals.add(name)

    def walk(self, line: Iterable[Waiting[Any]]) -> Walk:
        """The units of one lane, one after the other."""
        for waiting in line:
            waiting.result = yield from _steps(waiting, self)

    def walk_sums(self) -> Walk:
        for statement, rows in self._sums.take():
            yield from self.many(statement, rows).__await__()


def _asked(statement: Statement, wanted: Wanted, params: Mapping[str, Any]) -> Question:
    compiled = statement.for_dialect("postgresql")
    return Question(compiled.sql, wanted, [compiled.arguments(params)])


def _steps(waiting: Waiting[Any], tx: PostgresTx) -> Generator[Question, Any, Any]:
    return cast("Generator[Question, Any, Any]", waiting.unit(tx).__await__())
