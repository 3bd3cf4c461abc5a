"""Output of commands: tables and lines for people, JSON for scripts, errors on stderr.

Text from outside is printed literally: markup in it is not interpreted, and characters that move the cursor or change the
writing direction are printed as their codes.
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

_PIPE_WIDTH = 200
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
    """Return a console without markup; in a pipe it does not cut lines at 80 characters."""
    stream = sys.stderr if stderr else sys.stdout
    if width is None and _is_pipe(stream):
        width = _PIPE_WIDTH
    return Console(stderr=stderr, width=width, markup=False, emoji=False, highlight=False)


def _is_pipe(stream: TextIO) -> bool:
    """Whether the output goes to a file or another program, and COLUMNS sets no width."""
    return not stream.isatty() and "COLUMNS" not in os.environ


def print_line(*parts: str | Text) -> None:
    console().print(
        *(part if isinstance(part, Text) else escape_unprintable(part) for part in parts), soft_wrap=True
    )


def print_warning(message: str) -> None:
    console(stderr=True).print(
        Text("warning: ", "yellow") + Text(escape_unprintable(message)), soft_wrap=True
    )


def print_error(message: str, hint: str | None = None) -> None:
    """Print an error, one line per problem."""
    err = console(stderr=True)
    for line in message.splitlines() or [""]:
        err.print(Text("error: ", "bold red") + Text(escape_unprintable(line)), soft_wrap=True)
    if hint:
        err.print(Text("hint: ", "cyan") + Text(escape_unprintable(hint)), soft_wrap=True)


class ProgressLine:
    """Progress on stderr: one updating line on a terminal, an occasional line elsewhere."""

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

    def show(self, text: str, *, final: bool) -> None:
        self._count += 1
        if not self._shown:
            return
        if self._updates:
            sys.stderr.write(f"\r{escape_unprintable(text)}\x1b[K")
            self._open = True
        elif final or self._count == 1 or self._count % _PROGRESS_LINES == 0:
            sys.stderr.write(f"{escape_unprintable(text)}\n")
        sys.stderr.flush()


def print_json(value: object) -> None:
    import msgspec

    # Escaped to ASCII, so that text of a downstream cannot control the terminal from inside JSON.
    print(json.dumps(msgspec.to_builtins(value), indent=2))  # noqa: T201


def print_outcome(text: str, outcome: object, *, as_json: bool) -> None:
    """Print what an act did: a line for people, or JSON for scripts."""
    if as_json:
        print_json(outcome)
    else:
        print_line(text)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
    """Print a table without cutting any cell. On a terminal, columns named with a `~` wrap; in a pipe none do.

    Users copy the values of the other columns, so those never wrap.
    """
    lines = [[format_cell(value) for value in row] for row in rows]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, name in enumerate(columns):
        if name.startswith("~"):
            table.add_column(name[1:], overflow="fold", min_width=_FREE_TEXT_WIDTH)
        else:
            widest = max((line[index].cell_len for line in lines), default=0)
            table.add_column(name, no_wrap=True, overflow="ignore", min_width=widest)
    for line in lines:
        table.add_row(*line)
    out = console()
    measured = Measurement.get(out, out.options.update(max_width=_WIDEST), table)
    # A narrow terminal wraps the lines itself, which reads better than columns of three letters.
    needed = measured.maximum if _is_pipe(sys.stdout) else measured.minimum
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
            return Text(f"{value:,.1f}")
    return colour_state(str(value))


def colour_state(text: str) -> Text:
    """Return a text, coloured if it names a state."""
    return Text(escape_unprintable(text), _STYLES.get(text, ""))


def escape_unprintable(text: str) -> str:
    """Replace unprintable characters by their codes: control characters, line ends, bidi marks."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def format_age(at: datetime, now: datetime | None = None) -> str:
    """Return a time relative to now, or its date when it is long past."""
    age = (now or datetime.now(UTC)) - at
    if abs(age) >= _LONG_AGO:
        return at.strftime("%Y-%m-%d")
    return f"in {_format_length(-age)}" if age < timedelta() else f"{_format_length(age)} ago"


def _format_length(span: timedelta) -> str:
    for unit, size in _UNITS:
        if span >= size:
            return f"{span // size}{unit}"
    return f"{int(span.total_seconds())}s"
