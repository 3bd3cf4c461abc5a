"""Values of GitHub's expressions: how they are compared, turned into text, and taken for true or false.

Comparisons are loose, as on GitHub: text ignores case, and unlike types meet as numbers.
"""

import json
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def truthy(value: Any) -> bool:
    if isinstance(value, float) and math.isnan(value):
        return False
    return value not in (None, False, 0, "") if not isinstance(value, dict | list) else True


def text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return _number_text(value)
    if isinstance(value, Mapping):
        return "Object"
    return "Array" if isinstance(value, list) else str(value)


def _number_text(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return str(int(value)) if float(value).is_integer() else repr(value)


def number(value: Any) -> float:
    """GitHub's coercion; what is no number becomes NaN, which equals nothing."""
    if value is None:
        return 0.0
    if isinstance(value, bool | int | float):
        return float(value)
    if not isinstance(value, str):
        return math.nan
    trimmed = value.strip()
    if not trimmed:
        return 0.0
    try:
        return float(int(trimmed, 16)) if trimmed.lower().startswith("0x") else float(trimmed)
    except ValueError:
        return math.nan


def equal(left: Any, right: Any) -> bool:
    if isinstance(left, str) and isinstance(right, str):
        return left.upper() == right.upper()
    if isinstance(left, Mapping | list) or isinstance(right, Mapping | list):
        return left is right
    if left is None and right is None:
        return True
    return number(left) == number(right)


def ordered(sign: str, left: Any, right: Any) -> bool:
    if isinstance(left, str) and isinstance(right, str):
        return _ORDER[sign](left.upper(), right.upper())
    return _ORDER[sign](number(left), number(right))


def member(value: Any, key: Any) -> Any:
    """A property or an element; what is not there is null, as on GitHub."""
    if isinstance(value, Starred):
        return Starred(found for each in value if (found := member(each, key)) is not None)
    if isinstance(value, Mapping):
        wanted = text(key).lower()
        return next((each for name, each in value.items() if str(name).lower() == wanted), None)
    if isinstance(value, list):
        place = number(key)
        inside = not math.isnan(place) and 0 <= int(place) < len(value)
        return value[int(place)] if inside else None
    return None


class Starred(list[Any]):
    """All values of an object or list, by `.*`; a property of it is that property of each."""


def starred(value: Any) -> Starred:
    if isinstance(value, Mapping):
        return Starred(value.values())
    return Starred(value) if isinstance(value, list) else Starred()


def to_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
