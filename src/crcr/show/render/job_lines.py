"""Jobs as lines of a list: a chip with the status, the name as a link to the details, times and marks.

In Python and not in a template: the page of a pull request has hundreds of lines. Each function returns markup in which every
text from outside is escaped.
"""

from collections.abc import Iterable

from markupsafe import Markup

from crcr.decide.checks.commit import Verification
from crcr.decide.failures.verdict import Confidence, VerdictKind
from crcr.decide.statistics.figures import CountedAs
from crcr.decide.views.failures import JudgedBy, VerdictView
from crcr.decide.views.overview import JobView
from crcr.show.render.markup import draw_chip, draw_time, escape_link, escape_name, escape_text, make_id
from crcr.show.render.status import DOUBTS, duration, job_details, job_status
from crcr.show.urls.job_tokens import job_token
from crcr.show.urls.location import PageLinks, PageLocation, is_sha

_DISPUTED = "disputed"


def split_jobs(jobs: Iterable[JobView]) -> tuple[list[JobView], list[JobView]]:
    """Return the jobs that did not pass, and those that did."""
    loud: list[JobView] = []
    quiet: list[JobView] = []
    for job in jobs:
        (quiet if job.counted is CountedAs.SUCCESS else loud).append(job)
    return loud, quiet


def draw_marks(*jobs: JobView) -> Markup:
    """Draw what else is to be known about jobs: disputed, late, not verified."""
    return Markup("".join([_marks(job) for job in jobs]))  # noqa: S704


def _marks(job: JobView) -> str:
    if not job.marks and job.disputed_conclusion is None and job.verification not in DOUBTS:
        return ""
    marks = []
    if job.disputed_conclusion:
        marks.append(_mark(_DISPUTED, f"{job.disputed_conclusion.value} was reported too", "mark bad"))
    marks += [_mark(mark) for mark in job.marks if mark != _DISPUTED or not job.disputed_conclusion]
    is_shown = job.disputed_conclusion is not None or _DISPUTED in job.marks
    if job.verification in DOUBTS and not (job.verification is Verification.DISPUTED and is_shown):
        look = "mark bad" if job.verification is Verification.DISPUTED else "mark"
        marks.append(_mark(job.verification.value, DOUBTS[job.verification], look))
    return "".join(marks)


def _mark(text: str, title: str = "", look: str = "mark") -> str:
    about = f' title="{escape_text(title)}"' if title else ""
    return f'<span class="{look}"{about}>{escape_text(text)}</span>'


def draw_line(job: JobView, links: PageLinks, location: PageLocation | None = None) -> Markup:
    """Draw one job; with a location, links to its pull request and its commit too."""
    return Markup(_line(job, _JobLinks(links), location))  # noqa: S704


def draw_list(jobs: Iterable[JobView], links: PageLinks, *, with_ids: bool = False) -> Markup:
    """Draw jobs as a list; `with_ids` lets a refresh find each one again."""
    job_links = _JobLinks(links)
    items = [f"<li{_id(job) if with_ids else ''}>{_line(job, job_links, None)}</li>" for job in jobs]
    return Markup(f'<ul class="job-list">{"".join(items)}</ul>')  # noqa: S704


def draw_names(jobs: Iterable[JobView], links: PageLinks) -> Markup:
    """Draw jobs as their names in one line, with their details on hover."""
    job_links = _JobLinks(links)
    return Markup(" · ".join([f"{_short_name(job, job_links)} {_marks(job)}" for job in jobs]))  # noqa: S704


def draw_alike(jobs: Iterable[JobView], links: PageLinks) -> Markup:
    """Draw the jobs of several backends that failed alike as the items of a list."""
    job_links = _JobLinks(links)
    return Markup("".join([_alike(job, job_links) for job in jobs]))  # noqa: S704


class _JobLinks:
    """The links of many jobs, escaped: a token is made of plain characters, so that only what precedes it is escaped."""

    def __init__(self, links: PageLinks) -> None:
        self._prefix = escape_link(links.job_prefix)
        self._shared = links.shared

    def find(self, job: JobView) -> str | None:
        token = job_token(job, shared=self._shared)
        return f"{self._prefix}{token}" if token else None


def _id(job: JobView) -> str:
    return f' id="job-{make_id(job.delivery, job.downstream, job.workflow, job.run_id, job.job_name)}"'


def _short_name(job: JobView, links: _JobLinks) -> str:
    name, link = escape_name(job.job_name, 60), links.find(job)
    if link is None:
        return name
    title = escape_text(job_details(job), 300)
    return f'<a class="text" href="{link}" data-panel title="{title}">{name}</a>'


def _alike(job: JobView, links: _JobLinks) -> str:
    name, link = escape_name(job.job_name, 120), links.find(job)
    shown = (
        f'<a class="text" href="{link}" data-panel>{name}</a>'
        if link
        else f'<span class="text">{name}</span>'
    )
    verdict = f" {draw_verdict_mark(job.verdict)}" if job.verdict else ""
    workflow = escape_name(job.workflow_name, 60)
    return (
        f'<li><span class="faint">{escape_name(job.downstream, 2_000)}</span> {shown}{verdict}'
        f' <small class="faint text">{workflow}</small></li>'
    )


def _line(job: JobView, links: _JobLinks, location: PageLocation | None) -> str:
    name, link = escape_name(job.job_name, 120), links.find(job)
    shown = (
        f'<a class="text name" href="{link}" data-panel>{name}</a>'
        if link
        else f'<span class="text name">{name}</span>'
    )
    return (
        f'<div class="job-line">{draw_chip(job_status(job))}\n{shown}\n'
        f'<small class="faint text">{escape_name(job.workflow_name, 60)}</small>\n'
        f"{_commit(job, location) if location else ''}"
        f'<small class="faint">{_describe(job)}</small>\n{_marks(job)}</div>'
        f"{draw_verdict(job.verdict) if job.verdict else ''}{_first_test(job)}"
    )


def _describe(job: JobView) -> str:
    """When it ended, how long it took, and what differs from a job that passed at its first attempt."""
    parts = [draw_time(job.completed_at or job.started_at)]
    if job.execution_s is not None:
        parts.append(escape_name(duration(job.execution_s), 40))
    if job.tests_failed:
        parts.append(f"{job.tests_failed:,} test{'' if job.tests_failed == 1 else 's'} failed")
    if job.attempt > 1:
        parts.append(f"attempt {job.attempt}")
    return " · ".join(parts)


def _commit(job: JobView, location: PageLocation) -> str:
    pull = ""
    if job.number:
        pull = f'<a href="{escape_link(location.pull(job.number))}">#{job.number}</a> '
    if not job.head_sha:
        return pull
    short = escape_text(job.head_sha[:8])
    if not is_sha(job.head_sha):
        return f'{pull}<span class="sha text">{short}</span>\n'
    link = escape_link(location.commit(job.head_sha, job.delivery))
    return f'{pull}<a class="sha" href="{link}">{short}</a>\n'


def _first_error(line: str) -> str:
    """Without failed tests, the first error line of the log says why."""
    return f'\n<p class="first-test"><b>Log</b> <code class="text">{escape_text(line, 240)}</code></p>'


def _first_test(job: JobView) -> str:
    if job.counted is not CountedAs.FAILURE:
        return ""
    if not job.failed_tests:
        return _first_error(job.first_error) if job.first_error else ""
    test = job.failed_tests[0]
    message = f' <code class="text">{escape_text(test.message, 240)}</code>' if test.message else ""
    more = len(job.failed_tests) - 1 + job.failed_tests_more
    others = f' <span class="faint">and {more:,} more</span>' if more > 0 else ""
    return f'\n<p class="first-test"><b class="text">{escape_text(test.name, 160)}</b>{message}{others}</p>'


_LOOKS = {VerdictKind.NEW: "mark verdict bad", VerdictKind.UNKNOWN: "mark verdict"}


def draw_verdict_mark(verdict: VerdictView) -> Markup:
    """Draw the kind; a question mark says that the rules are not sure."""
    sure = verdict.confidence is Confidence.HIGH or verdict.kind is VerdictKind.UNKNOWN
    look, title = _LOOKS.get(verdict.kind, "mark verdict warn"), escape_text(verdict.sentence, 300)
    return Markup(  # noqa: S704
        f'<span class="{look}" title="{title}">{verdict.kind.value}{"" if sure else "?"}</span>'
    )


def draw_verdict_kind(kind: VerdictKind) -> Markup:
    """Draw a kind without the verdict that it stands for."""
    return Markup(f'<span class="{_LOOKS.get(kind, "mark verdict warn")}">{kind.value}</span>')  # noqa: S704


def draw_verdict(verdict: VerdictView) -> Markup:
    """Draw the whole verdict as one line."""
    source = "by a person" if verdict.by is JudgedBy.PERSON else f"{verdict.confidence.value} confidence"
    was = f", was {verdict.was.value}" if verdict.was else ""
    links = " · ".join(
        f'<a href="{escape_link(item.url)}">{escape_text(item.text, 200)}</a>' for item in verdict.evidence
    )
    evidence = f' <small class="evidence">{links}</small>' if links else ""
    return Markup(  # noqa: S704
        f'\n<p class="ruling text">{draw_verdict_mark(verdict)} {escape_text(verdict.sentence, 500)}'
        f' <small class="faint">{source}{was}</small>{evidence}</p>'
    )
