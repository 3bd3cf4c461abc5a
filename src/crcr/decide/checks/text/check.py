"""The content of check runs: titles in plain text, summaries in Markdown, annotations, and the gate's button.

The gate's and backends' texts are built in `text.gate` and `text.backend`. Text that a downstream can set stays text
(see `markdown`), and nothing depends on the time of rendering.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from crcr.decide.checks.check_run import MOST_ANNOTATIONS, Annotation, Button
from crcr.decide.checks.commit import BackendResults, FailedTestExcerpt, JobResult
from crcr.decide.checks.gate import BackendJudgement, GateJudgement, GateState
from crcr.decide.checks.status import JudgedPart
from crcr.decide.checks.text.backend import (
    WAITING_TITLE,
    backend_summary,
    backend_title,
    failed_tests,
    job_summary,
    job_title,
)
from crcr.decide.checks.text.gate import gate_summary, gate_title
from crcr.decide.checks.text.markdown import is_link, one_line, truncate
from crcr.decide.checks.text.parts import sort_worst_first
from crcr.decide.checks.text.verdict import HudPages

_MOST_PATH = 500
_MOST_TITLE = 200
_MOST_MESSAGE = 2_000
_WITH_LINE = re.compile(r"(?P<path>.+?):(?P<line>[0-9]{1,7})(?::[0-9]{1,7})?", re.ASCII)
_ODD_PATH = re.compile(r"[\\:*?\"<>|]")


def annotations(tests: Iterable[FailedTestExcerpt]) -> tuple[Annotation, ...]:
    """Return annotations for the first failed tests that name a file of the repository."""
    notes = (note for test in tests if (note := _make_annotation(test)) is not None)
    return tuple(islice(notes, MOST_ANNOTATIONS))


def _make_annotation(test: FailedTestExcerpt) -> Annotation | None:
    location = _parse_location(test.file or "")
    if location is None:
        return None
    title = truncate(one_line(test.name), _MOST_TITLE) or "a failed test"
    return Annotation(*location, title=title, message=_plain_lines(test.message or "") or f"{title} failed")


def _parse_location(file: str) -> tuple[str, int] | None:
    """Return a relative path and a line; None for a path that is, or may be read as, outside the repository."""
    if len(file) > _MOST_PATH:
        return None
    match = _WITH_LINE.fullmatch(file)
    path, line = (match["path"], int(match["line"])) if match else (file, 1)
    path = path.removeprefix("./")
    if path != one_line(path) or _ODD_PATH.search(path):
        return None
    if any(step in {"", ".", ".."} for step in path.split("/")):
        return None
    return path, max(line, 1)


def _plain_lines(text: str) -> str:
    """Return the message as plain text, as GitHub shows it, with its lines."""
    lines = filter(None, map(one_line, text.splitlines()))
    return truncate("\n".join(lines), _MOST_MESSAGE)


__all__ = [
    "WAITING_TITLE",
    "WAIVE",
    "HudPages",
    "Words",
    "backend_words",
    "gate_words",
    "is_link",
    "job_words",
    "one_line",
]

WAIVE = Button("Waive…", "Post the command that waives", "waive")


@dataclass(frozen=True, slots=True)
class Words:
    title: str
    summary: str
    annotations: tuple[Annotation, ...] = ()
    buttons: tuple[Button, ...] = ()


def gate_words(
    judgement: GateJudgement, head_sha: str, live_url: str | None = None, pages: HudPages | None = None
) -> Words:
    """Return the gate's content; with `live_url`, a link to the live page; with `pages`, links to evidence."""
    buttons = (WAIVE,) if judgement.state is GateState.FAILED else ()
    return Words(gate_title(judgement), gate_summary(judgement, head_sha, live_url, pages), buttons=buttons)


def backend_words(judged: BackendJudgement, pages: HudPages, live_url: str | None = None) -> Words:
    jobs = [(part, part.job) for part in sort_worst_first(judged.parts) if part.job is not None]
    notes = annotations(failed_tests(jobs))
    return Words(backend_title(judged), backend_summary(judged, pages, live_url), annotations=notes)


def job_words(backend: BackendResults, part: JudgedPart, job: JobResult, pages: HudPages) -> Words:
    notes = annotations(failed_tests([(part, job)]))
    return Words(job_title(part, job), job_summary(backend, part, job, pages), annotations=notes)
