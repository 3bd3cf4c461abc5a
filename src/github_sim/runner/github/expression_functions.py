"""The functions of GitHub's expressions, but for those that tell how the job stands (`Standing`)."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from github_sim.runner.github.expression_values import equal, text, to_json
from github_sim.runner.problems import Problem

_PLACE = re.compile(r"\{\{|\}\}|\{(\d+)\}|[{}]")
STATUS = frozenset({"always", "success", "failure", "cancelled"})


@dataclass(frozen=True)
class Standing:
    """How things stood before the thing whose condition is asked."""

    succeeded: bool = True
    failed: bool = False
    cancelled: bool = False

    def functions(self) -> dict[str, Callable[..., Any]]:
        return {
            "always": lambda: True,
            "success": lambda: self.succeeded and not self.cancelled,
            "failure": lambda: self.failed and not self.cancelled,
            "cancelled": lambda: self.cancelled,
        }


def _contains(inside: Any, wanted: Any) -> bool:
    if isinstance(inside, list):
        return any(equal(each, wanted) for each in inside)
    return text(wanted).lower() in text(inside).lower()


def _format(pattern: Any, *values: Any) -> str:
    def fill(found: re.Match[str]) -> str:
        if found[0] in {"{{", "}}"}:
            return found[0][0]
        if found[1] is None or int(found[1]) >= len(values):
            raise Problem(f"format cannot fill {found[0]!r} in {text(pattern)!r}")
        return text(values[int(found[1])])

    return _PLACE.sub(fill, text(pattern))


def _from_json(given: Any) -> Any:
    try:
        return json.loads(text(given))
    except ValueError:
        raise Problem(f"fromJSON was given what is no JSON: {text(given)[:80]!r}") from None


def _join(values: Any, separator: Any = ",") -> str:
    return text(separator).join(map(text, values)) if isinstance(values, list) else text(values)


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "contains": _contains,
    "startswith": lambda given, start: text(given).lower().startswith(text(start).lower()),
    "endswith": lambda given, end: text(given).lower().endswith(text(end).lower()),
    "format": _format,
    "join": _join,
    "tojson": to_json,
    "fromjson": _from_json,
    # No caches here, and so no file whose hash matters.
    "hashfiles": lambda *_patterns: "",
}
