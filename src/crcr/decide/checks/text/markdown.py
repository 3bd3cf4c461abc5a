"""Markdown for GitHub from untrusted text, which always stays text.

Untrusted text is put in code spans, because GitHub resolves no mentions, links or references in them; escapes and
entities are not enough, since mentions and references are found after these are resolved. Every returned text is one
line, so that no line begins with untrusted text, but for those of a `block`, between its fences. Only `page` joins lines.
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
_PLAIN = re.compile(r"(?:[A-Za-z ,:;'-]|(?<=[A-Za-z])_(?=[A-Za-z]))*")
"""An underscore only inside a word: elsewhere it begins or ends emphasis."""
_LONG_FENCE = re.compile(r"`{4,}")
_NOTE_BYTES = 300


# Words


def one_line(text: str) -> str:
    """Return the text without line breaks and without control, direction or invisible characters."""
    if not (text.isascii() and text.isprintable()):  # nearly all texts are: no need to check each character
        text = "".join(_visible_character(character) for character in text)
    return " ".join(text.split())


def _visible_character(character: str) -> str:
    if character.isspace():
        return " "
    return "" if unicodedata.category(character) in _DROPPED else character


def truncate(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


def code(text: str, most: int = 200) -> str:
    """Return untrusted text as a code span.

    cmark does not accept a fence of more than 80 backticks, so long runs inside are shortened.
    """
    shown = truncate(_LONG_FENCE.sub("```", one_line(text)), most) or "(empty)"
    longest = max((len(run) for run in re.findall("`+", shown)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if "`" in (shown[0], shown[-1]) else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def block(lines: Iterable[str], most: int = 300) -> str:
    """Return untrusted lines as a code block. Its fence is longer than any run of backticks that is left in them."""
    shown = (truncate(_LONG_FENCE.sub("```", _shown_line(line)), most) for line in lines)
    return "\n".join(("````text", *shown, "````"))


def _shown_line(line: str) -> str:
    """One line, with its indentation."""
    return f"{' ' * min(len(line) - len(line.lstrip(' ')), 12)}{one_line(line)}"


def prose(text: str, most: int = 200) -> str:
    """Return a reason of ours, with possibly untrusted parts in code spans.

    Plain words, and parts that are already between backticks, are kept.
    """
    words = one_line(text)
    pieces = words.split("`")
    if len(words) <= most and len(pieces) % 2 and all(_PLAIN.fullmatch(piece) for piece in pieces[::2]):
        return "".join(code(piece) if odd % 2 else piece for odd, piece in enumerate(pieces))
    own_words, colon, quoted = words.partition(": ")
    if colon and quoted and len(own_words) <= most and _PLAIN.fullmatch(own_words):
        return f"{own_words}: {code(quoted, most)}"
    return code(words, most)


def join_items(items: Sequence[_T], most: int, show: Callable[[_T], str] = str, joint: str = ", ") -> str:
    """The first few, shown harmless; the others, which may be hundreds, are only counted."""
    shown = joint.join(map(show, items[:most]))
    return f"{shown} and {len(items) - most:,} more" if len(items) > most else shown


def fit_items(phrases: Sequence[str], most: int) -> str:
    """A title of as many phrases as fit, saying how many do not."""
    for count in range(min(len(phrases), most), 0, -1):
        more = len(phrases) - count
        title = ", ".join(phrases[:count]) + (f", and {more:,} more" if more else "")
        if len(title) <= most:
            return title
    return truncate(phrases[0], most) if phrases else ""


def format_utc(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


# Links


def is_link(url: str | None) -> bool:
    """Whether it is an ordinary http(s) address, without credentials or characters that break Markdown."""
    return url is not None and len(url) <= _MOST_LINK and _LINK.fullmatch(url) is not None


def link(words: str, url: str | None) -> str | None:
    """Return a link that names its host unless that is GitHub; None for an invalid address."""
    match = _LINK.fullmatch(url) if url is not None and is_link(url) else None
    if match is None:
        return None
    host_note = "" if match["host"].lower() == "github.com" else f" on {code(match['host'], 80)}"
    return f"[{words}{host_note}]({match[0].replace('&', '&amp;')})"


# Tables and pages


def row(cells: Iterable[str]) -> str:
    """Return a table's row. In a table GitHub resolves an escaped pipe even inside code."""
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkdownSection:
    """A head, and rows below it of which any number may be left out."""

    head: str
    rows: tuple[str, ...] = ()
    noun: str = "rows"
    """What its rows are, for the note about left out rows."""


def table(heading: str | None, columns: Sequence[str], rows: Iterable[str], noun: str) -> MarkdownSection:
    head = f"{row(columns)}\n{row('---' for _ in columns)}"
    return MarkdownSection(head=f"{heading}\n\n{head}" if heading else head, rows=tuple(rows), noun=noun)


def page(sections: Iterable[MarkdownSection], most_bytes: int, end: str = "") -> str:
    """Join the sections and `end`; when they are too long, leave out rows and add a note.

    Counted in bytes, as GitHub counts, contrary to its documentation (github/docs#35252).
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
    """Return the size in bytes, including the line breaks that may follow."""
    return len(text.encode()) + 2


def _lines_within(section: MarkdownSection, budget: int) -> list[str]:
    """Return the head and as many rows as fit; nothing when not even one row fits."""
    lines: list[str] = []
    for line in (section.head, *section.rows):
        budget -= _byte_size(line)
        if budget < 0:
            break
        lines.append(line)
    return [] if section.rows and len(lines) == 1 else lines
