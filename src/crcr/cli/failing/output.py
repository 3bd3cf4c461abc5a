"""Prints continuously failing jobs as a table, as JSON like the API's, or as Markdown for an issue or a chat.

The items come from a relay that may be anybody's: a field of another type than expected is shown as missing.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from crcr.cli.printing import Cell, print_json, print_line, print_table
from crcr.decide.number_format import format_count

_SHA_DIGITS = 8


class OutputFormat(StrEnum):
    TABLE = "table"
    JSON = "json"
    MARKDOWN = "markdown"


def print_failing(items: Sequence[Mapping[str, Any]], form: OutputFormat, *, hud: str | None) -> None:
    if form is OutputFormat.JSON:
        print_json({"items": items, "next": None})
    elif form is OutputFormat.MARKDOWN:
        for line in _markdown_lines(items, hud):
            print_line(line)
    elif items:
        columns = [
            "backend",
            "job",
            "since",
            "in a row",
            "first bad",
            "last good",
            "on call",
            "~known",
            "~message",
        ]
        print_table(columns, map(_cells, items))
    else:
        print_line("no job is failing")


def _cells(item: Mapping[str, Any]) -> list[Cell]:
    return [
        _text(item, "backend"),
        _text(item, "job"),
        _time(item, "since"),
        _format_number(item),
        _sha(item, "first_bad"),
        _sha(item, "last_good"),
        ", ".join(_oncalls(item)) or None,
        _known_url(item),
        _text(item, "sample"),
    ]


def _markdown_lines(items: Sequence[Mapping[str, Any]], hud: str | None) -> Iterable[str]:
    """Text of downstreams stands in code spans, where GitHub resolves no mentions and links."""
    from crcr.decide.checks.text.markdown import code, format_utc, link, row

    count = f"{len(items):,} failing job{'' if len(items) == 1 else 's'}"
    where = link("relay", hud)
    yield f"**{count if items else 'No failing jobs'}**{f' ({where})' if where else ''}"
    if not items:
        return
    yield ""
    columns = ("backend", "job", "since", "in a row", "first bad", "last good", "on call", "known", "message")
    yield row(columns)
    yield row("---" for _ in columns)
    for item in items:
        since = _time(item, "since")
        quoted = [_text(item, "backend"), _text(item, "job")]
        commits = [_sha(item, "first_bad"), _sha(item, "last_good")]
        yield row(
            [
                *(code(text) if text else "-" for text in quoted),
                format_utc(since) if since else "-",
                _format_number(item),
                *(code(sha) if sha else "-" for sha in commits),
                ", ".join(map(code, _oncalls(item))) or "-",
                link("issue", _known_url(item)) or "-",
                code(sample) if (sample := _text(item, "sample")) else "-",
            ]
        )


def _text(item: Mapping[str, Any], name: str) -> str | None:
    value = item.get(name)
    return value if isinstance(value, str) and value else None


def _sha(item: Mapping[str, Any], name: str) -> str | None:
    sha = _text(item, name)
    return sha[:_SHA_DIGITS] if sha else None


def _number(item: Mapping[str, Any]) -> int | None:
    value = item.get("failures_in_a_row")
    return value if isinstance(value, int) else None


def _format_number(item: Mapping[str, Any]) -> str:
    number = _number(item)
    return format_count(number) if number else "-"


def _time(item: Mapping[str, Any], name: str) -> datetime | None:
    try:
        at = datetime.fromisoformat(_text(item, name) or "")
    except ValueError:
        return None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _oncalls(item: Mapping[str, Any]) -> list[str]:
    value = item.get("oncalls")
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []


def _known_url(item: Mapping[str, Any]) -> str | None:
    known = item.get("known")
    return _text(known, "url") if isinstance(known, dict) else None
