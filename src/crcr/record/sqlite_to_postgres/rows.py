"""Rows on their way from SQLite, which takes any value in any column, to PostgreSQL, which does not.

A value is handed on as it is, or the row is refused by its table and key. One thing is changed, and counted: a NUL
in a text, which PostgreSQL cannot keep, becomes U+FFFD, as it does where texts come in. Both sides are summed up
alike, whatever the order of their rows.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import msgspec
from sqlalchemy import BigInteger, Column, Double, Integer, LargeBinary, SmallInteger, Table, Text
from sqlalchemy.types import TypeEngine

from crcr.errors import NotPossible

_DIGEST_BYTES = 16
_DIGESTS = 1 << (8 * _DIGEST_BYTES)
_SHOWN = 60
_ENCODE = msgspec.msgpack.Encoder().encode
_SMALL, _WHOLE, _BIG = 1 << 15, 1 << 31, 1 << 63
_NULL_BELONGS_NOT = "nothing where a value belongs"

Check = Callable[[Any], Any]
"""Hands a value on, or raises `_Unfit`."""


class _Unfit(ValueError):
    """A value that its column on PostgreSQL does not take; the text says what it is."""


@dataclass(slots=True)
class TableChecksum:
    """What the rows of a table come to, in any order: how many, and the sum of their hashes."""

    rows: int = 0
    total: int = 0

    def add(self, row: Sequence[Any]) -> None:
        hashed = blake2b(_ENCODE(row), digest_size=_DIGEST_BYTES).digest()
        self.rows += 1
        self.total = (self.total + int.from_bytes(hashed, "big")) % _DIGESTS

    @property
    def checksum(self) -> str:
        return f"{self.total:0{2 * _DIGEST_BYTES}x}"


class RowConverter:
    """The rows of one table, checked and counted on the way."""

    def __init__(self, table: Table) -> None:
        self.tally = TableChecksum()
        self.replaced = 0
        self._table = table
        self._columns = list(table.columns)
        self._checks = [_check(column) for column in self._columns]

    def carry(self, rows: Iterator[Sequence[Any]]) -> Iterator[tuple[Any, ...]]:
        for row in rows:
            carried = self._checked(row)
            self.tally.add(carried)
            yield carried

    def _checked(self, row: Sequence[Any]) -> tuple[Any, ...]:
        try:
            carried = tuple([check(value) for check, value in zip(self._checks, row, strict=True)])
        except _Unfit:
            raise self._refusal(row) from None
        if carried != row:
            self.replaced += sum(1 for before, after in zip(row, carried, strict=True) if before != after)
        return carried

    def _refusal(self, row: Sequence[Any]) -> NotPossible:
        values = dict(zip((column.name for column in self._columns), row, strict=True))
        key = ", ".join(f"{column.name} {_shown(values[column.name])}" for column in self._table.primary_key)
        found = "; ".join(self._wrong(row))
        return NotPossible(
            f"a row of {self._table.name} ({key}) cannot be carried over: {found}",
            hint="nothing was written; mend or delete that row, with a copy of the database kept, and move again",
        )

    def _wrong(self, row: Sequence[Any]) -> Iterator[str]:
        for column, check, value in zip(self._columns, self._checks, row, strict=True):
            try:
                check(value)
            except _Unfit as unfit:
                yield f"{column.name} holds {unfit}"


def _shown(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def _check(column: Column[Any]) -> Check:
    check = _of_type(column.type)
    if column.nullable:
        return lambda value: None if value is None else check(value)
    return check


def _of_type(kind: TypeEngine[Any]) -> Check:
    # Whole numbers from the narrowest on: the wider types are not kinds of the narrower ones.
    if isinstance(kind, SmallInteger):
        return _whole(_SMALL)
    if isinstance(kind, BigInteger):
        return _whole(_BIG)
    if isinstance(kind, Integer):
        return _whole(_WHOLE)
    for type_, check in ((Double, _number), (LargeBinary, _bytes), (Text, _text)):
        if isinstance(kind, type_):
            return check
    raise TypeError(f"no rule for {kind!r}")


def _whole(bound: int) -> Check:
    def check(value: Any) -> int:
        if type(value) is not int:
            raise _Unfit(_instead(value, "a whole number"))
        if not -bound <= value < bound:
            raise _Unfit("a whole number that is out of its range")
        return value

    return check


def _number(value: Any) -> float:
    if type(value) is float:
        return value
    if type(value) is int and float(value) == value:
        return float(value)
    raise _Unfit(_instead(value, "a number"))


def _bytes(value: Any) -> bytes:
    if type(value) is not bytes:
        raise _Unfit(_instead(value, "bytes"))
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise _Unfit(_instead(value, "text"))
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _Unfit("text that is not UTF-8") from None
    return value.replace("\0", "\ufffd") if "\0" in value else value


def _instead(value: object, wanted: str) -> str:
    if value is None:
        return _NULL_BELONGS_NOT
    found = {str: "text", bytes: "bytes", int: "a whole number", float: "a broken number"}
    return f"{found.get(type(value), 'something')} where {wanted} belongs"
