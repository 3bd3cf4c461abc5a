"""Which lines of a comment's Markdown are addressed to the relay.

On doubt a line is not a command: nothing that a reader does not see, or sees as quoted or as code, commands. A
line counts by its own form, so one that follows a quote without a blank line is the writer's own.
"""

import re
from collections.abc import Iterator

_WORD = "/crcr"
_COMMAND = re.compile(rf"{_WORD}(?:\s+(?P<rest>.*))?", re.IGNORECASE | re.DOTALL)
# Markdown's line ends only: a command after a U+2028 or a form feed does not look like a line of its own.
_LINE_END = re.compile(r"\r\n|\n|\r")
_OPENING_FENCE = re.compile(r" {0,3}(?:(?P<ticks>`{3,})[^`]*|(?P<tildes>~{3,}).*)", re.DOTALL)
_COMMENT_OPENS, _COMMENT_CLOSES = "<!--", "-->"
_QUOTING_TAG = re.compile(r"<(?P<name>pre|code|blockquote|script|style|textarea|samp|kbd|q)\b", re.IGNORECASE)
_TICKS = re.compile(r"`+")


def command_lines(body: str) -> Iterator[str]:
    """Give what follows `/crcr` on each line that begins with it, without the spaces around."""
    if _WORD not in body.lower():
        return
    for line in _visible_lines(body):
        if found := _COMMAND.fullmatch(line.rstrip()):
            yield (found["rest"] or "").strip()


def _visible_lines(body: str) -> Iterator[str]:
    for paragraph in _paragraphs(body):
        spans = _code_spans("\n".join(paragraph))
        at = 0
        for line in paragraph:
            if not any(start < at < end for start, end in spans):
                yield line
            at += len(line) + 1


def _paragraphs(body: str) -> Iterator[list[str]]:
    """Lines that follow one another; without fenced code, HTML comments and HTML that quotes.

    Each of these, when it is not closed, runs to the end.
    """
    paragraph: list[str] = []
    for line in (*_outside_blocks(body), ""):
        if line.strip():
            paragraph.append(line)
        elif paragraph:
            yield paragraph
            paragraph = []


def _outside_blocks(body: str) -> Iterator[str]:
    """Leave out what stands in blocks of its own; an empty line takes their place."""
    fence: str | None = None
    tag: str | None = None
    in_comment = False
    for line in _LINE_END.split(body):
        if in_comment:
            in_comment = not _closes_comment(line)
        elif fence:
            fence = None if _closes_fence(line, fence) else fence
        elif tag:
            tag = None if f"</{tag}" in line.lower() else tag
        elif opened := _OPENING_FENCE.fullmatch(line):
            fence = opened["ticks"] or opened["tildes"]
            yield ""
        else:
            in_comment, tag = _opens_comment(line), _opens_tag(line)
            yield line


def _opens_tag(line: str) -> str | None:
    """The last tag of a quoting kind that the line opens and does not close."""
    for found in reversed(list(_QUOTING_TAG.finditer(line))):
        name = found["name"].lower()
        if f"</{name}" not in line.lower()[found.end() :]:
            return name
    return None


def _code_spans(paragraph: str) -> list[tuple[int, int]]:
    """Where code stands between backticks: a span runs on through the lines of a paragraph, if it is closed in it."""
    runs = list(_TICKS.finditer(paragraph))
    spans: list[tuple[int, int]] = []
    while runs:
        opened = runs.pop(0)
        closed = next((n for n, each in enumerate(runs) if each[0] == opened[0]), None)
        if closed is not None:
            spans.append((opened.start(), runs[closed].end()))
            del runs[: closed + 1]
    return spans


def _closes_fence(line: str, fence: str) -> bool:
    mark = line.strip(" \t")
    is_closing = len(mark) >= len(fence) and not mark.strip(fence[0])
    return is_closing and not line.startswith(("    ", "\t"))


def _opens_comment(line: str) -> bool:
    return line.rfind(_COMMENT_OPENS) > line.rfind(_COMMENT_CLOSES)


def _closes_comment(line: str) -> bool:
    return _COMMENT_CLOSES in line and not _opens_comment(line)
