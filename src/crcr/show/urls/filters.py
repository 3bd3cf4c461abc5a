"""Filters of a list, read from the query string.

An invalid filter does not fail the page: it does not filter, stays in its field, and `unclear` holds the message to show
beside it.
"""

from collections.abc import Collection, Iterable
from datetime import date
from enum import StrEnum
from typing import TypeVar

from starlette.requests import Request

_LONGEST = 200
_FEWEST_DIGITS = 7
_MOST_DIGITS = 64

E = TypeVar("E", bound=StrEnum)


def parse_day(text: str | None) -> date | None:
    """Return the day of a text such as `2026-09-01`; None for anything else."""
    try:
        return date.fromisoformat(text or "")
    except ValueError:
        return None


class ListFilters:
    """The filters of a list by name; each method parses one of them."""

    def __init__(self, request: Request, *names: str, sort: str | Collection[str] | None = None) -> None:
        """An empty field, and any order but `sort` or one of them, counts as absent."""
        query = request.query_params
        stripped = {name: query.get(name, "").strip()[:_LONGEST] for name in names}
        stripped["after"] = query.get("after", "")
        orders = (sort,) if isinstance(sort, str) else sort or ()
        stripped["sort"] = query.get("sort", "") if query.get("sort") in orders else ""
        self.values = {name: value for name, value in stripped.items() if value}
        self.unclear: dict[str, str] = {}

    @property
    def understood(self) -> dict[str, str]:
        return {name: value for name, value in self.values.items() if name not in self.unclear}

    def text(self, name: str) -> str | None:
        return self.values.get(name)

    def one_of(self, kind: type[E], name: str) -> E | None:
        value = self.choice([member.value for member in kind], name)
        return kind(value) if value else None

    def choice(self, choices: Iterable[str], name: str) -> str | None:
        value = self.values.get(name)
        if value is None or value in choices:
            return value
        self.unclear[name] = f"there is no such {name}"
        return None

    def number(self) -> int | None:
        if "number" not in self.values:
            return None
        text = self.values["number"] = self.values["number"].removeprefix("#")
        if not (text.isascii() and text.isdigit()) or len(text) > 9 or int(text) == 0:
            self.unclear["number"] = "not the number of a pull request"
            return None
        return int(text)

    def person(self) -> str | None:
        if "who" in self.values:
            self.values["who"] = self.values["who"].removeprefix("@")
        return self.values.get("who") or None

    def digits(self) -> str | None:
        """Return the first digits of a SHA, or all of them."""
        if "sha" not in self.values:
            return None
        sha = self.values["sha"] = self.values["sha"].lower()
        if not set(sha) <= set("0123456789abcdef"):
            self.unclear["sha"] = "a commit has only the digits 0 to 9 and a to f"
        elif not _FEWEST_DIGITS <= len(sha) <= _MOST_DIGITS:
            self.unclear["sha"] = f"give its first {_FEWEST_DIGITS} digits, or more"
        return None if "sha" in self.unclear else sha
