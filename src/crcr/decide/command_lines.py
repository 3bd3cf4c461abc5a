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


def command_lines(body: str) -> Iterator[str]:
    """Give what follows `/crcr` on each line that begins with it, without the spaces around."""
    if _WORD not in body.lower():
        return
    for line in _visible_lines(body):
        if found := _COMMAND.fullmatch(line.rstrip()):
            yield (found["rest"] or "").strip()


def _visible_lines(body: str) -> Iterator[str]:
    """Leave out fenced code and HTML comments; either, when it is not closed, runs to the end."""
    fence: str | None = None
    in_comment = False
    for line in _LINE_END.split(body):
        if in_comment:
            in_comment = not _closes_comment(line)
        elif fence:
            fence = None if _closes_fence(line, fence) else fence
        elif opened := _OPENING_FENCE.fullmatch(line):
            fence = opened["ticks"] or opened["tildes"]
        else:
            in_comment = _opens_comment(line)
            yield line


def _closes_fence(line: str, fence: str) -> bool:
    mark = line.strip(" \t")
    is_closing = len(mark) >= len(fence) and not mark.strip(fence[0])
    return is_closing and not line.startswith(("    ", "\t"))


def _opens_comment(line: str) -> bool:
    return line.rfind(_COMMENT_OPENS) > line.rfind(_COMMENT_CLOSES)


def _closes_comment(line: str) -> bool:
    return _COMMENT_CLOSES in line and not _opens_comment(line)
