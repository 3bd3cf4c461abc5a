"""Checking rows on the way from SQLite, which accepts any value in any column, to PostgreSQL, which does not.

A value is copied unchanged, or the row is refused with its table and key. One thing is changed, and counted: a NUL in
a text, which PostgreSQL cannot store, becomes U+FFFD. The checksum of a table does not depend on the order of its rows.
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
_UNEXPECTED_NULL = "nothing where a value belongs"

Check = Callable[[Any], Any]
"""Returns the value to store, or raises `_Unfit`."""


class _Unfit(ValueError):
    """A value that its column on PostgreSQL does not accept; the text says what it is."""


@dataclass(slots=True)
class TableChecksum:
    """The number of rows of a table and the sum of their hashes."""

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
    """Checks and counts the rows of one table."""

    def __init__(self, table: Table) -> None:
        self.checksum = TableChecksum()
        self.replaced = 0
        self._table = table
        self._columns = list(table.columns)
        self._checks = [_check(column) for column in self._columns]

    def convert(self, rows: Iterator[Sequence[Any]]) -> Iterator[tuple[Any, ...]]:
        for row in rows:
            converted = self._checked(row)
            self.checksum.add(converted)
            yield converted

    def _checked(self, row: Sequence[Any]) -> tuple[Any, ...]:
        try:
            converted = tuple([check(value) for check, value in zip(self._checks, row, strict=True)])
        except _Unfit:
            raise self._refusal(row) from None
        if converted != row:
            self.replaced += sum(1 for before, after in zip(row, converted, strict=True) if before != after)
        return converted

    def _refusal(self, row: Sequence[Any]) -> NotPossible:
        values = dict(zip((column.name for column in self._columns), row, strict=True))
        key = ", ".join(f"{column.name} {_shown(values[column.name])}" for column in self._table.primary_key)
        problems = "; ".join(self._problems(row))
        return NotPossible(
            f"a row of {self._table.name} ({key}) cannot be carried over: {problems}",
            hint="nothing was written; mend or delete that row, with a copy of the database kept, and move again",
        )

    def _problems(self, row: Sequence[Any]) -> Iterator[str]:
        for column, check, value in zip(self._columns, self._checks, row, strict=True):
            try:
                check(value)
            except _Unfit as unfit:
                yield f"{column.name} holds {unfit}"


def _shown(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def _check(column: Column[Any]) -> Check:
    check = _check_for_type(column.type)
    if column.nullable:
        return lambda value: None if value is None else check(value)
    return check


def _check_for_type(kind: TypeEngine[Any]) -> Check:
    # Integers from the narrowest on: the wider types are not subclasses of the narrower ones.
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
            raise _Unfit(_mismatch(value, "a whole number"))
        if not -bound <= value < bound:
            raise _Unfit("a whole number that is out of its range")
        return value

    return check


def _number(value: Any) -> float:
    if type(value) is float:
        return value
    if type(value) is int and float(value) == value:
        return float(value)
    raise _Unfit(_mismatch(value, "a number"))


def _bytes(value: Any) -> bytes:
    if type(value) is not bytes:
        raise _Unfit(_mismatch(value, "bytes"))
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise _Unfit(_mismatch(value, "text"))
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _Unfit("text that is not UTF-8") from None
    return value.replace("\0", "\ufffd") if "\0" in value else value


def _mismatch(value: object, expected: str) -> str:
    if value is None:
        return _UNEXPECTED_NULL
    names = {str: "text", bytes: "bytes", int: "a whole number", float: "a broken number"}
    return f"{names.get(type(value), 'something')} where {expected} belongs"
