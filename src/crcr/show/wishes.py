"""What a reader wishes of a list, read from the address; what cannot be understood is refused in plain words."""

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from starlette.requests import Request

from crcr.decide.model import RepoName, is_repo_name
from crcr.errors import BadRequest

_LONGEST = 200
_FEWEST_DIGITS = 7

E = TypeVar("E", bound=StrEnum)


def asked(request: Request, *names: str, sort: str | None = None) -> dict[str, str]:
    """What the reader chose; what is left empty, and any order but `sort`, counts as not chosen."""
    given = {name: request.query_params.get(name, "").strip()[:_LONGEST] for name in names}
    given["after"] = request.query_params.get("after", "")
    if sort is not None and request.query_params.get("sort") == sort:
        given["sort"] = sort
    return {name: value for name, value in given.items() if value}


def one_of(kind: type[E], asked: Mapping[str, str], name: str) -> E | None:
    if name not in asked:
        return None
    for each in kind:
        if each.value == asked[name]:
            return each
    raise BadRequest(f"{asked[name][:50]!r} is no {name}", hint=f"one of {', '.join(kind)}")


def number(asked: dict[str, str]) -> int | None:
    if "number" not in asked:
        return None
    text = asked["number"].removeprefix("#")
    if not (text.isascii() and text.isdigit()) or len(text) > 9:
        raise BadRequest(f"{text[:50]!r} is not the number of a pull request")
    asked["number"] = text
    return int(text)


def person(asked: dict[str, str]) -> str | None:
    if "who" in asked:
        asked["who"] = asked["who"].removeprefix("@")
    return asked.get("who") or None


def digits(asked: dict[str, str]) -> str | None:
    if "sha" not in asked:
        return None
    sha = asked["sha"] = asked["sha"].lower()
    if len(sha) < _FEWEST_DIGITS or not set(sha) <= set("0123456789abcdef"):
        raise BadRequest(
            f"{sha[:64]!r} is not a commit", hint=f"give its first {_FEWEST_DIGITS} digits, or more"
        )
    return sha


def repository(asked: Mapping[str, str]) -> RepoName | None:
    if "backend" not in asked:
        return None
    if not is_repo_name(asked["backend"]):
        raise BadRequest(f"{asked['backend'][:150]!r} is not owner/name")
    return RepoName(asked["backend"])
