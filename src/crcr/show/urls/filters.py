"""Filters of a list, read from the query string.

An invalid filter does not fail the page: it does not filter, stays in its field, and `unclear` holds the message to show
beside it.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import TypeVar

from starlette.requests import Request

_LONGEST = 200
_FEWEST_DIGITS = 7
_MOST_DIGITS = 64

E = TypeVar("E", bound=StrEnum)


class ListFilters:
    """What was chosen, by name; each of the methods reads one of them as what it should be."""

    def __init__(self, request: Request, *names: str, sort: str | None = None) -> None:
        """What is left empty, and any order but `sort`, counts as not chosen."""
        asked = request.query_params
        given = {name: asked.get(name, "").strip()[:_LONGEST] for name in names}
        given["after"] = asked.get("after", "")
        given["sort"] = sort if sort is not None and asked.get("sort") == sort else ""
        self.asked = {name: value for name, value in given.items() if value}
        self.unclear: dict[str, str] = {}

    @property
    def understood(self) -> dict[str, str]:
        return {name: value for name, value in self.asked.items() if name not in self.unclear}

    def text(self, name: str) -> str | None:
        return self.asked.get(name)

    def one_of(self, kind: type[E], name: str) -> E | None:
        found = self.choice([member.value for member in kind], name)
        return kind(found) if found else None

    def choice(self, known: Iterable[str], name: str) -> str | None:
        asked = self.asked.get(name)
        if asked is None or asked in known:
            return asked
        self.unclear[name] = f"there is no such {name}"
        return None

    def number(self) -> int | None:
        if "number" not in self.asked:
            return None
        text = self.asked["number"] = self.asked["number"].removeprefix("#")
        if not (text.isascii() and text.isdigit()) or len(text) > 9 or int(text) == 0:
            self.unclear["number"] = "not the number of a pull request"
            return None
        return int(text)

    def person(self) -> str | None:
        if "who" in self.asked:
            self.asked["who"] = self.asked["who"].removeprefix("@")
        return self.asked.get("who") or None

    def digits(self) -> str | None:
        """The first digits of a commit's name, or all of them."""
        if "sha" not in self.asked:
            return None
        sha = self.asked["sha"] = self.asked["sha"].lower()
        if not set(sha) <= set("0123456789abcdef"):
            self.unclear["sha"] = "a commit has only the digits 0 to 9 and a to f"
        elif not _FEWEST_DIGITS <= len(sha) <= _MOST_DIGITS:
            self.unclear["sha"] = f"give its first {_FEWEST_DIGITS} digits, or more"
        return None if "sha" in self.unclear else sha
