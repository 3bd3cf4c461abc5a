"""Failures as notes beside the lines of a file, for those that name a file of the repository."""

import re
from collections.abc import Iterable
from itertools import islice

from crcr.decide.checks.check_run import MOST_ANNOTATIONS, Annotation
from crcr.decide.checks.commit import FailedTestExcerpt
from crcr.decide.checks.text.markdown import one_line, truncate

_MOST_PATH = 500
_MOST_TITLE = 200
_MOST_MESSAGE = 2_000
_WITH_LINE = re.compile(r"(?P<path>.+?):(?P<line>[0-9]{1,7})(?::[0-9]{1,7})?", re.ASCII)
_ODD_PATH = re.compile(r"[\\:*?\"<>|]")


def annotations(tests: Iterable[FailedTestExcerpt]) -> tuple[Annotation, ...]:
    """The first that can be placed; no more are looked at than are shown."""
    notes = (note for test in tests if (note := _annotation(test)) is not None)
    return tuple(islice(notes, MOST_ANNOTATIONS))


def _annotation(test: FailedTestExcerpt) -> Annotation | None:
    place = _place(test.file or "")
    if place is None:
        return None
    title = truncate(one_line(test.name), _MOST_TITLE) or "a failed test"
    return Annotation(*place, title=title, message=_message(test.message or "") or f"{title} failed")


def _place(file: str) -> tuple[str, int] | None:
    """A relative path and a line of it; None for what is, or may be read as, another place."""
    if len(file) > _MOST_PATH:
        return None
    found = _WITH_LINE.fullmatch(file)
    path, line = (found["path"], int(found["line"])) if found else (file, 1)
    path = path.removeprefix("./")
    if path != one_line(path) or _ODD_PATH.search(path):
        return None
    if any(step in {"", ".", ".."} for step in path.split("/")):
        return None
    return path, max(line, 1)


def _message(text: str) -> str:
    """Plain text, for that is how GitHub shows it; its lines are kept."""
    lines = filter(None, map(one_line, text.splitlines()))
    return truncate("\n".join(lines), _MOST_MESSAGE)
