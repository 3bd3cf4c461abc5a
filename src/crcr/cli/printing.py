"""How commands print: tables and lines for people, JSON for scripts, problems on stderr.

Whatever was written elsewhere is printed as text: no markup is read in it, and characters that would move a
cursor or turn the direction of writing appear as their codes.
"""

import json
import os
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Self, TextIO

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

_UNPAGED_WIDTH = 200
_FREE_TEXT_WIDTH = 24
_WIDEST = 1_000_000
_PROGRESS_LINES = 50
_STYLES = {
    **dict.fromkeys(("sent", "done", "success", "accepted", "yes"), "green"),
    **dict.fromkeys(("waiting", "claimed", "in_progress", "held", "in_doubt", "warning"), "yellow"),
    **dict.fromkeys(("parked", "failure", "timed_out", "suspended", "error"), "red"),
    **dict.fromkeys(("cancelled", "superseded", "skipped", "neutral"), "dim"),
}
_UNITS = (("d", timedelta(days=1)), ("h", timedelta(hours=1)), ("m", timedelta(minutes=1)))
_LONG_AGO = timedelta(days=30)

Cell = str | int | float | bool | datetime | Text | None


def console(*, stderr: bool = False, width: int | None = None) -> Console:
    """Return a console that takes text literally; into a pipe it does not cut lines at 80 characters."""
    stream = sys.stderr if stderr else sys.stdout
    if width is None and _is_unpaged(stream):
        width = _UNPAGED_WIDTH
    return Console(stderr=stderr, width=width, markup=False, emoji=False, highlight=False)


def _is_unpaged(stream: TextIO) -> bool:
    """Whether the output goes to a file or another program, and nobody named a width for it."""
    return not stream.isatty() and "COLUMNS" not in os.environ


def print_line(*parts: str | Text) -> None:
    console().print(
        *(each if isinstance(each, Text) else escape_unprintable(each) for each in parts), soft_wrap=True
    )


def print_warning(message: str) -> None:
    console(stderr=True).print(
        Text("warning: ", "yellow") + Text(escape_unprintable(message)), soft_wrap=True
    )


def print_error(message: str, hint: str | None = None) -> None:
    """Print an error, each of its lines for itself."""
    err = console(stderr=True)
    for line in message.splitlines() or [""]:
        err.print(Text("error: ", "bold red") + Text(escape_unprintable(line)), soft_wrap=True)
    if hint:
        err.print(Text("hint: ", "cyan") + Text(escape_unprintable(hint)), soft_wrap=True)


class ProgressLine:
    """How far a long act is, on stderr: one line that updates on a terminal, now and then a line elsewhere."""

    def __init__(self, *, shown: bool) -> None:
        self._shown = shown
        self._updates = sys.stderr.isatty()
        self._open = False
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._open:
            sys.stderr.write("\n")

    def show(self, words: str, *, final: bool) -> None:
        self._count += 1
        if not self._shown:
            return
        if self._updates:
            sys.stderr.write(f"\r{escape_unprintable(words)}\x1b[K")
            self._open = True
        elif final or self._count == 1 or self._count % _PROGRESS_LINES == 0:
            sys.stderr.write(f"{escape_unprintable(words)}\n")
        sys.stderr.flush()


def print_json(value: object) -> None:
    import msgspec

    # Escaped to ASCII: what a downstream wrote cannot steer the terminal from inside JSON either.
    print(json.dumps(msgspec.to_builtins(value), indent=2))  # noqa: T201


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
    """Print a table, nothing of it cut. On a terminal columns named with a `~` are broken into lines, into a pipe none.

    The words of the others get copied, so they are never broken.
    """
    lines = [[format_cell(value) for value in row] for row in rows]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, name in enumerate(columns):
        if name.startswith("~"):
            table.add_column(name[1:], overflow="fold", min_width=_FREE_TEXT_WIDTH)
        else:
            widest = max((line[place].cell_len for line in lines), default=0)
            table.add_column(name, no_wrap=True, overflow="ignore", min_width=widest)
    for line in lines:
        table.add_row(*line)
    out = console()
    measured = Measurement.get(out, out.options.update(max_width=_WIDEST), table)
    # A narrow terminal breaks the lines itself, which reads better than columns of three letters.
    needed = measured.maximum if _is_unpaged(sys.stdout) else measured.minimum
    (out if needed <= out.width else console(width=needed)).print(table)


def format_cell(value: Cell) -> Text:
    match value:
        case Text():
            return value
        case None:
            return Text("-", "dim")
        case bool():
            return Text("yes" if value else "no")
        case datetime():
            return Text(format_age(value))
        case float():
            return Text(f"{value:.1f}")
    return colour_state(str(value))


def colour_state(text: str) -> Text:
    """Return a text, coloured if it is the name of a state."""
    return Text(escape_unprintable(text), _STYLES.get(text, ""))


def escape_unprintable(text: str) -> str:
    """Replace what is not printable by its code; Python counts controls, line ends and bidi marks as such."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def format_age(at: datetime, now: datetime | None = None) -> str:
    """Return a time as people say it; one long past as its date."""
    past = (now or datetime.now(UTC)) - at
    if abs(past) >= _LONG_AGO:
        return at.strftime("%Y-%m-%d")
    return f"in {_length(-past)}" if past < timedelta() else f"{_length(past)} ago"


def _length(span: timedelta) -> str:
    for unit, size in _UNITS:
        if span >= size:
            return f"{span // size}{unit}"
    return f"{int(span.total_seconds())}s"
