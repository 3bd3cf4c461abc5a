"""Reads fields of a relay's JSON, which may be anybody's: a field of another type than expected counts as missing."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

JsonObject = Mapping[str, Any]


def read_text(item: JsonObject, name: str) -> str | None:
    value = item.get(name)
    return value if isinstance(value, str) and value else None


def read_integer(item: JsonObject, name: str) -> int | None:
    value = item.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def read_ratio(item: JsonObject, name: str) -> float | None:
    value = item.get(name)
    return float(value) if isinstance(value, int | float) and 0 <= value <= 1 else None


def read_time(item: JsonObject, name: str) -> datetime | None:
    try:
        at = datetime.fromisoformat(read_text(item, name) or "")
    except ValueError:
        return None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def read_object(item: JsonObject, name: str) -> JsonObject:
    value = item.get(name)
    return value if isinstance(value, dict) else {}


def read_objects(item: JsonObject, name: str) -> list[JsonObject]:
    value = item.get(name)
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def read_texts(item: JsonObject, name: str) -> list[str]:
    value = item.get(name)
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []
