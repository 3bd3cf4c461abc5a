"""The part of Markdown that check summaries and comments use: headings, lists, tables, fenced code, and inside
a line code, bold and http links. A comment on a line of its own is hidden; all other HTML stays the text that it is.
"""

import re
from collections.abc import Callable, Iterator

from github_sim.web.html import Html, joined, tag, text

_CODE = re.compile(r"(?<!\\)`([^`]+)`")
_STRONG_OR_LINK = re.compile(r"(?<!\\)\*\*(.+?)(?<!\\)\*\*|(?<!\\)\[([^\[\]]+)\]\((https?://[^\s()<>]+)\)")
_ESCAPED = re.compile(r"\\([!-/:-@\[-`{-~])")
_HEADING = re.compile(r"(#{1,6})\s+(.*)")
_ITEM = re.compile(r"\s*(?:[-*]|\d+\.)\s+(.*)")
_HIDDEN = re.compile(r"\s*<!--.*-->\s*")
_DASHES = re.compile(r":?-+:?")
_CELL_END = re.compile(r"(?<!\\)\|")


def rendered(markdown: str) -> Html:
    return joined(*_blocks(markdown.splitlines()))


def _blocks(lines: list[str]) -> Iterator[Html]:
    while lines:
        line = lines[0]
        if line.startswith("```"):
            yield tag("pre", "\n".join(_fenced(lines)))
        elif len(lines) > 1 and "|" in line and _is_rule(lines[1]):
            yield _table(_taken(lines, lambda each: "|" in each))
        elif found := _HEADING.fullmatch(line):
            lines.pop(0)
            yield tag("h3" if len(found[1]) < 3 else "h4", _inline(found[2]))
        elif _ITEM.fullmatch(line):
            items = _taken(lines, lambda each: _ITEM.fullmatch(each) is not None)
            yield tag("ul", *(tag("li", _inline(_ITEM.sub(r"\1", item))) for item in items))
        elif not line.strip() or _HIDDEN.fullmatch(line):
            lines.pop(0)
        else:
            yield tag("p", *_paragraph(lines))


def _fenced(lines: list[str]) -> list[str]:
    lines.pop(0)
    inside: list[str] = []
    while lines and not (line := lines.pop(0)).startswith("```"):
        inside.append(line)
    return inside


def _taken(lines: list[str], wanted: Callable[[str], bool]) -> list[str]:
    """Take lines off the front for as long as they are wanted."""
    taken: list[str] = []
    while lines and wanted(lines[0]):
        taken.append(lines.pop(0))
    return taken


def _paragraph(lines: list[str]) -> Iterator[Html]:
    yield _inline(lines.pop(0))
    for line in _taken(lines, lambda each: bool(each.strip()) and not _starts_block(each)):
        yield Html("<br>") + _inline(line)


def _starts_block(line: str) -> bool:
    return line.startswith("```") or "|" in line or bool(_HEADING.fullmatch(line) or _ITEM.fullmatch(line))


def _is_rule(line: str) -> bool:
    """The dashes between a table's head and its rows."""
    cells = line.strip().strip("|").split("|")
    return "|" in line and all(_DASHES.fullmatch(cell.strip()) for cell in cells)


def _table(rows: list[str]) -> Html:
    head, _, *body = rows
    return tag("table", _row(head, "th"), *(_row(line, "td") for line in body))


def _row(line: str, kind: str) -> Html:
    cells = _CELL_END.split(line.strip().removeprefix("|"))
    if not cells[-1].strip():
        cells.pop()
    return tag("tr", *(tag(kind, _inline(cell.strip())) for cell in cells))


def _inline(words: str) -> Html:
    made: list[Html] = []
    for place, piece in enumerate(_CODE.split(words)):
        made.append(tag("code", piece) if place % 2 else _prose(piece))
    return joined(*made)


def _prose(words: str) -> Html:
    made: list[Html] = []
    end = 0
    for found in _STRONG_OR_LINK.finditer(words):
        made.append(_plain(words[end : found.start()]))
        bold, shown, address = found.groups()
        made.append(tag("strong", _plain(bold)) if bold else tag("a", _plain(shown), href=address))
        end = found.end()
    return joined(*made, _plain(words[end:]))


def _plain(words: str) -> Html:
    return text(_ESCAPED.sub(r"\1", words))
