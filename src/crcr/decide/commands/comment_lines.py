"""Which lines of a comment's Markdown are commands to the relay, or lines of a pull request's text that it reads.

In doubt a line is not a command: text that a reader does not see, or sees as a quote or as code, is none. Where Markdown
and the browser may disagree about what is hidden, everything after it is ignored. Anybody may comment, so the cost is
linear in the text: every line is read once, and everything is capped.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate, islice

MOST_CHARACTERS = 65_536
"""GitHub's limit for a comment. A longer text is ignored."""
MOST_LINES = 4_096
MOST_BACKTICK_RUNS = 1_024
"""Per line; more than that count as unclosed code."""
MOST_HTML_TOKENS = 2_048
"""Tags, their quotes and the marks of HTML comments; everything after so many is ignored."""

_WORD = "/crcr"
_COMMAND = re.compile(rf"{_WORD}(?:\s+(?P<rest>.*))?", re.IGNORECASE | re.DOTALL)
# Markdown's line ends only: a command after a U+2028 or a form feed does not look like a line of its own.
_LINE_END = re.compile(r"\r\n|\n|\r")
_OPENING_FENCE = re.compile(r" {0,3}(?:(?P<ticks>`{3,})[^`]*|(?P<tildes>~{3,}).*)", re.DOTALL)
_COMMENT_OPENS, _COMMENT_CLOSES = "<!--", "-->"
_COMMENT_BLOCK = re.compile(r" {0,3}<!--")
_HTML = re.compile(r"<!--|-->|<(?P<slash>/?)(?P<name>[A-Za-z]+)|<[!?]|[>\"']")
_QUOTING_TAGS = frozenset({"pre", "code", "blockquote", "script", "style", "textarea", "samp", "kbd", "q"})
_TICKS = re.compile(r"`+")
_PLAIN_LINK = re.compile(r"\]\([^\s()<>\"']*\)")
# Characters before a quote's mark: lists may contain quotes.
_BEFORE_QUOTE = " \t-+*0123456789.)"


def command_lines(body: str) -> Iterator[str]:
    """Yield the text after `/crcr` on each line that begins with it, stripped."""
    for line in visible_lines(body, _WORD):
        if match := _COMMAND.fullmatch(line):
            yield (match["rest"] or "").strip()


def visible_lines(body: str, word: str) -> Iterator[str]:
    """Yield the lines that readers see as plain text, without blanks at their end; none where `word` is nowhere in the text."""
    if len(body) > MOST_CHARACTERS or word not in body.lower():
        return
    lines = _LINE_END.split(body)
    if len(lines) > MOST_LINES:
        return
    for paragraph in _paragraphs(lines):
        for line in _unquoted_lines(paragraph):
            yield line.rstrip()


# Paragraphs


def _unquoted_lines(paragraph: list[str]) -> Iterator[str]:
    """Yield the lines that neither belong to a quote or a link above them, nor may be between two backticks.

    Markdown continues a quote on the lines that follow it without a blank line, with or without a `>`.
    """
    marked = [_has_code_mark(line) for line in paragraph]
    marks_left = [*accumulate(reversed(marked))][::-1]
    code_open = False
    for line, has_mark, left in zip(paragraph, marked, marks_left, strict=True):
        if not code_open or left == has_mark:
            yield line
        if _continues(line):
            return
        code_open = code_open or (has_mark and _leaves_code_open(line))


def _has_code_mark(line: str) -> bool:
    return "`" in line or "$$" in line


def _leaves_code_open(line: str) -> bool:
    """Whether code may continue on the next line: some backticks are unpaired, or may not count as backticks."""
    if "$$" in line or "\\`" in line or ("`" in line and ("<" in line or "]:" in line)):
        return True
    runs = _TICKS.findall(line)
    return len(runs) > MOST_BACKTICK_RUNS or not _all_paired(runs)


def _all_paired(runs: list[str]) -> bool:
    """A run of backticks opens code that the next run of the same length closes."""
    unread = Counter(runs)
    opened: str | None = None
    for run in runs:
        unread[run] -= 1
        if opened is None:
            if not unread[run]:
                return False
            opened = run
        elif run == opened:
            opened = None
    return True


def _continues(line: str) -> bool:
    """Whether the next line of the paragraph may belong to a quote, or to a link's title, or to a picture's text."""
    if line.lstrip(_BEFORE_QUOTE).startswith(">") or line.rfind("![") > line.rfind("]"):
        return True
    return "]:" in line or ("](" in line and "](" in _PLAIN_LINK.sub("", line))


# Blocks


def _paragraphs(lines: list[str]) -> Iterator[list[str]]:
    """Yield paragraphs of adjacent lines, without fenced code, HTML comments and quoting HTML.

    Each of these, when it is not closed, continues to the end.
    """
    paragraph: list[str] = []
    blocks = _Blocks()
    for line in (*lines, ""):
        visible = "" if blocks.hide(line) else line
        if visible.strip():
            paragraph.append(visible)
        elif paragraph:
            yield paragraph
            paragraph = []
        if blocks.doubtful:
            # Nothing below can hide the text above, but may close code in it.
            yield [*paragraph, "`"]
            return


@dataclass(slots=True)
class _Blocks:
    """Parser state for the next line: fenced code, HTML comment, quoting HTML, or plain text."""

    fence: str | None = None
    in_comment: bool = False
    open_tags: Counter[str] = field(default_factory=Counter)
    html_tokens: int = 0
    after_html: bool = False
    """Whether there is HTML above in the same block, where a fence may not count."""
    doubtful: bool = False
    """Whether readers may see the rest differently than this parser does."""

    def hide(self, line: str) -> bool:
        """Read the next line; return whether it is hidden or quoted."""
        if self.fence is not None:
            if _closes_fence(line, self.fence):
                self.fence = None
            return True
        if self.in_comment:
            _, closed, rest = line.partition(_COMMENT_CLOSES)
            if closed:
                self.in_comment = False
                self._read_html(rest, comment_block=False)
            return True
        return self._take_text(line)

    def _take_text(self, line: str) -> bool:
        quoted = bool(self.open_tags)
        if opened := _OPENING_FENCE.fullmatch(line):
            self.doubtful = quoted or self.after_html
            self.fence = opened["ticks"] or opened["tildes"]
            return True
        self.after_html = self.after_html and bool(line.strip())
        if "<" in line:
            self.doubtful = quoted and "</" in line and ("`" in line or "\\" in line)
            self._read_html(line, comment_block=_COMMENT_BLOCK.match(line) is not None and not quoted)
        if self.open_tags and _has_code_mark(line) and _leaves_code_open(line):
            self.doubtful = True
        return quoted

    def _read_html(self, line: str, *, comment_block: bool) -> None:
        """Read the tags of a line. A tag, or a comment inside a line, that the line does not close is doubtful."""
        in_tag, quote, in_comment = False, "", False
        for token in islice(_HTML.finditer(line), MOST_HTML_TOKENS + 1 - self.html_tokens):
            self.html_tokens += 1
            text, name = token[0], token["name"]
            if in_comment:
                in_comment = text != _COMMENT_CLOSES
            elif text == _COMMENT_OPENS and not in_tag:
                # `<!-->` is a whole comment, for Markdown and for browsers.
                in_comment = not line.startswith((">", "->"), token.end())
            elif name is not None and not in_tag:
                in_tag = True
                self._count(name.lower(), closing=bool(token["slash"]))
            elif text.startswith("<"):
                self.doubtful = True
            elif in_tag and text in {'"', "'"}:
                quote = "" if quote == text else quote or text
            elif in_tag and not quote:
                in_tag = False
            self.after_html = True
        if (
            self.html_tokens > MOST_HTML_TOKENS
            or in_tag
            or (in_comment and not (comment_block and line.count(_COMMENT_OPENS) == 1))
        ):
            self.doubtful = True
        self.in_comment = in_comment

    def _count(self, name: str, *, closing: bool) -> None:
        if name not in _QUOTING_TAGS:
            return
        self.open_tags[name] += -1 if closing else 1
        if self.open_tags[name] <= 0:
            del self.open_tags[name]


def _closes_fence(line: str, fence: str) -> bool:
    mark = line.strip(" \t")
    is_closing = len(mark) >= len(fence) and not mark.strip(fence[0])
    return is_closing and not line.startswith(("    ", "\t"))
