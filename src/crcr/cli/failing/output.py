"""Prints continuously failing jobs as a table, as JSON like the API's, or as Markdown for an issue or a chat.

The items come from a relay that may be anybody's: a field of another type than expected is shown as missing.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from crcr.cli.json_fields import read_integer, read_object, read_text, read_texts, read_time
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
        read_text(item, "backend"),
        read_text(item, "job"),
        read_time(item, "since"),
        _count_failures(item),
        _sha(item, "first_bad"),
        _sha(item, "last_good"),
        ", ".join(read_texts(item, "oncalls")) or None,
        _known_url(item),
        read_text(item, "sample"),
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
        since = read_time(item, "since")
        quoted = [read_text(item, "backend"), read_text(item, "job")]
        commits = [_sha(item, "first_bad"), _sha(item, "last_good")]
        yield row(
            [
                *(code(text) if text else "-" for text in quoted),
                format_utc(since) if since else "-",
                _count_failures(item),
                *(code(sha) if sha else "-" for sha in commits),
                ", ".join(map(code, read_texts(item, "oncalls"))) or "-",
                link("issue", _known_url(item)) or "-",
                code(sample) if (sample := read_text(item, "sample")) else "-",
            ]
        )


def _count_failures(item: Mapping[str, Any]) -> str:
    number = read_integer(item, "failures_in_a_row")
    return format_count(number) if number else "-"


def _sha(item: Mapping[str, Any], name: str) -> str | None:
    sha = read_text(item, name)
    return sha[:_SHA_DIGITS] if sha else None


def _known_url(item: Mapping[str, Any]) -> str | None:
    return read_text(read_object(item, "known"), "url")
