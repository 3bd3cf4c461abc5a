"""Markdown for GitHub out of strangers' words: whatever they wrote stays text.

Strangers' text stands in code spans, because there GitHub neither mentions, links, refers nor renders; escapes
and entities would not do, since mentions and references are found after they are resolved. Every text that is
returned is one line, so that no line begins with a stranger's word. Only `page` puts lines together.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

_T = TypeVar("_T")
_DROPPED = frozenset({"Cc", "Cf", "Cs"})
_MOST_LINK = 2_048
_LINK = re.compile(
    r"https?://(?P<host>[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?(?::[0-9]{1,5})?)(?:[/?#][a-z0-9._~:/?#!$&*+,;=%@-]*)?",
    re.ASCII | re.IGNORECASE,
)
_PLAIN = re.compile(r"[A-Za-z_ ,:;'-]*")
_LONG_FENCE = re.compile(r"`{4,}")
_NOTE_BYTES = 300


# Words


def one_line(text: str) -> str:
    """The text without characters that act: no line breaks, no control, direction or invisible marks."""
    if not (text.isascii() and text.isprintable()):  # nearly all texts are: no need to look at each character
        text = "".join(_visible_character(character) for character in text)
    return " ".join(text.split())


def _visible_character(character: str) -> str:
    if character.isspace():
        return " "
    return "" if unicodedata.category(character) in _DROPPED else character


def truncate(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


def code(text: str, most: int = 200) -> str:
    """A stranger's text as a code span.

    cmark takes no fence over 80 backticks for a fence, so long runs inside are shortened.
    """
    shown = truncate(_LONG_FENCE.sub("```", one_line(text)), most) or "(empty)"
    longest = max((len(run) for run in re.findall("`+", shown)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if "`" in (shown[0], shown[-1]) else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def prose(text: str, most: int = 200) -> str:
    """A reason of ours as it is, with whatever in it may be a stranger's in code.

    Kept as written are plain words, and what we put between backticks ourselves.
    """
    words = one_line(text)
    pieces = words.split("`")
    if len(words) <= most and len(pieces) % 2 and all(_PLAIN.fullmatch(piece) for piece in pieces[::2]):
        return "".join(code(piece) if odd % 2 else piece for odd, piece in enumerate(pieces))
    ours, colon, theirs = words.partition(": ")
    if colon and theirs and len(ours) <= most and _PLAIN.fullmatch(ours):
        return f"{ours}: {code(theirs, most)}"
    return code(words, most)


def join_items(items: Sequence[_T], most: int, show: Callable[[_T], str] = str, joint: str = ", ") -> str:
    """The first few, shown harmless; the others, which may be hundreds, are only counted."""
    shown = joint.join(map(show, items[:most]))
    return f"{shown} and {len(items) - most} more" if len(items) > most else shown


def fit_items(phrases: Sequence[str], most: int) -> str:
    """A title of as many phrases as fit, saying how many do not."""
    for count in range(min(len(phrases), most), 0, -1):
        more = len(phrases) - count
        title = ", ".join(phrases[:count]) + (f", and {more} more" if more else "")
        if len(title) <= most:
            return title
    return truncate(phrases[0], most) if phrases else ""


def format_utc(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


# Links


def is_link(url: str | None) -> bool:
    """Whether it is an ordinary http(s) address without credentials that no Markdown can trip over."""
    return url is not None and len(url) <= _MOST_LINK and _LINK.fullmatch(url) is not None


def link(words: str, url: str | None) -> str | None:
    """A link that says where it leads unless that is GitHub; None for an address that is none."""
    found = _LINK.fullmatch(url) if url is not None and is_link(url) else None
    if found is None:
        return None
    place = "" if found["host"].lower() == "github.com" else f" on {code(found['host'], 80)}"
    return f"[{words}{place}]({found[0].replace('&', '&amp;')})"


# Tables and pages


def row(cells: Iterable[str]) -> str:
    """A table's row. In a table GitHub resolves an escaped pipe even inside of code."""
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkdownSection:
    """Some lines, and rows below them of which any number may be left out."""

    head: str
    rows: tuple[str, ...] = ()
    noun: str = "rows"
    """What its rows are, for the note about what was left out."""


def table(heading: str | None, columns: Sequence[str], rows: Iterable[str], noun: str) -> MarkdownSection:
    head = f"{row(columns)}\n{row('---' for _ in columns)}"
    return MarkdownSection(head=f"{heading}\n\n{head}" if heading else head, rows=tuple(rows), noun=noun)


def page(sections: Iterable[MarkdownSection], most_bytes: int, end: str = "") -> str:
    """The sections one below the other and `end` last, cut between rows and with a note when it is too much.

    Counted in bytes, as GitHub does whatever its documentation says (github/docs#35252).
    """
    left = most_bytes - _NOTE_BYTES - _byte_size(end)
    parts: list[str] = []
    missed: Counter[str] = Counter()
    for section in sections:
        lines = _lines_within(section, left)
        left -= sum(map(_byte_size, lines))
        if lines:
            parts.append("\n".join(lines))
        missed[section.noun] += len(section.rows) - max(len(lines) - 1, 0)
    note = ", ".join(f"{count} {noun}" for noun, count in missed.items() if count)
    if note:
        parts.append(f"Left out, because a check cannot hold more text: {note}.")
    return "\n\n".join([*parts, end] if end else parts)


def _byte_size(text: str) -> int:
    """With the line breaks that may follow."""
    return len(text.encode()) + 2


def _lines_within(section: MarkdownSection, left: int) -> list[str]:
    """The head and as many rows as fit; no head alone above rows that do not."""
    lines: list[str] = []
    for line in (section.head, *section.rows):
        left -= _byte_size(line)
        if left < 0:
            break
        lines.append(line)
    return [] if section.rows and len(lines) == 1 else lines
