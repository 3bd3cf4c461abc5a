"""What checks say: titles in plain text, summaries in Markdown, notes beside lines, and the gate's button.

Composed here for `checks`; the words are made in `gate_text` and `backend_text`. Whatever a downstream can set
stays text in all of them (see `markdown`), and nothing in them depends on the time at which they are made.
"""

from dataclasses import dataclass

from crcr.decide.checks.check_run import Annotation, Button
from crcr.decide.checks.commit import BackendResults, JobResult
from crcr.decide.checks.gate import BackendJudgement, GateJudgement, GateState
from crcr.decide.checks.status import JudgedPart
from crcr.decide.checks.text.annotations import annotations
from crcr.decide.checks.text.backend import (
    WAITING_TITLE,
    backend_summary,
    backend_title,
    failed_tests,
    job_summary,
    job_title,
)
from crcr.decide.checks.text.gate import gate_summary, gate_title
from crcr.decide.checks.text.markdown import is_link, one_line
from crcr.decide.checks.text.parts import worst_first

__all__ = [
    "WAITING_TITLE",
    "WAIVE",
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


def gate_words(judgement: GateJudgement, head_sha: str, live_url: str | None = None) -> Words:
    """What the gate says; with `live_url`, where to see what happens until it is written again."""
    buttons = (WAIVE,) if judgement.state is GateState.FAILED else ()
    return Words(gate_title(judgement), gate_summary(judgement, head_sha, live_url), buttons=buttons)


def backend_words(judged: BackendJudgement, hud_url: str, live_url: str | None = None) -> Words:
    jobs = [(part, part.job) for part in worst_first(judged.parts) if part.job is not None]
    notes = annotations(failed_tests(jobs))
    return Words(backend_title(judged), backend_summary(judged, hud_url, live_url), annotations=notes)


def job_words(backend: BackendResults, part: JudgedPart, job: JobResult, hud_url: str) -> Words:
    notes = annotations(failed_tests([(part, job)]))
    return Words(job_title(part, job), job_summary(backend, part, job, hud_url), annotations=notes)
