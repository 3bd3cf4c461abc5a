"""The texts of a backend's check and of a job's check: what ran where, the results, and links."""

from collections.abc import Iterable

from crcr.decide.checks.check_run import MOST_TEXT
from crcr.decide.checks.commit import BackendResults, FailedTestExcerpt, JobResult
from crcr.decide.checks.gate import BackendJudgement
from crcr.decide.checks.status import BLOCKED, GateStatus, JudgedPart, status_text
from crcr.decide.checks.text.markdown import (
    MarkdownSection,
    block,
    code,
    fit_items,
    format_utc,
    join_items,
    link,
    one_line,
    page,
    prose,
    row,
    table,
    truncate,
)
from crcr.decide.checks.text.parts import (
    NAME_CHARACTERS,
    OPEN,
    advice_about_jobs,
    collect_waivers,
    doubt_words,
    live_sections,
    oncall_words,
    pair_words,
    sort_worst_first,
    waiver_words,
)
from crcr.decide.checks.text.verdict import HudPages, append_verdict, verdict_words
from crcr.decide.jobs.log_excerpt import LogExcerpt
from crcr.decide.number_format import count_things

MOST_TITLE = 120
MOST_FAILURES = 20
_MOST_DEVICES = 5
_MOST_WORKFLOWS = 5
_MOST_OWED = 5
_MOST_TAILS = 3
_MOST_TAIL_LINES = 15
_VERDICT = "Verdict"
WAITING_TITLE = "waiting"
"""Does not name what it waits for: that changes with every job, and the title is not updated for it."""
_AT_FAULT = frozenset({GateStatus.FAILED, GateStatus.ERRORED, GateStatus.EXCUSED, GateStatus.WAIVED})


# A backend


def backend_title(judged: BackendJudgement) -> str:
    named = [part for part in judged.parts if part.name is not None]
    deciding_parts = [part for part in judged.deciding_parts if part.name is not None]
    if judged.standing is GateStatus.PASSED:
        return f"passed: {count_things(len(named), 'job')}"
    if judged.standing is GateStatus.WAIVED:
        return truncate(
            f"waived by {_waiver_authors(judged.parts)}: {_join_names(deciding_parts) or 'all of it'}",
            MOST_TITLE,
        )
    if judged.standing is GateStatus.WAITING:
        return WAITING_TITLE
    if judged.is_held_by_pair:
        return truncate(f"held: {one_line(judged.deciding_parts[0].reason)}", MOST_TITLE)
    if not deciding_parts:
        reason = one_line(judged.deciding_parts[0].reason).replace("`", "").removeprefix("skipped: ")
        return truncate(f"{status_text(judged.standing)}: {reason}", MOST_TITLE)
    names = f"{judged.standing}: {_join_names(deciding_parts)}"
    if judged.standing not in OPEN and any(part.standing in OPEN for part in judged.parts):
        return f"{names}, others still waiting"
    title = f"{names} ({len(deciding_parts):,} of {count_things(len(named), 'job')})"
    return append_verdict(title, deciding_parts, MOST_TITLE)


def _join_names(parts: list[JudgedPart]) -> str:
    return fit_items([truncate(one_line(part.name or ""), 40) for part in parts], 70)


def _waiver_authors(parts: Iterable[JudgedPart]) -> str:
    return join_items([f"@{one_line(waiver.who).removeprefix('@')}" for waiver in collect_waivers(parts)], 2)


def backend_summary(judged: BackendJudgement, pages: HudPages, live_url: str | None = None) -> str:
    parts = sort_worst_first(judged.parts)
    jobs = [(part, part.job) for part in parts if part.job is not None]
    facts = _backend_facts(judged.backend, [job for _, job in jobs])
    facts += _status_facts(judged)
    sections = [
        *live_sections(live_url),
        MarkdownSection(head="\n".join(facts)),
        *failures(jobs),
        *logs(jobs),
    ]
    if jobs:
        sections.append(_job_table(jobs, pages))
    return page(sections, MOST_TEXT, _contact_lines(judged.backend, pages))


def _backend_facts(backend: BackendResults, jobs: list[JobResult]) -> list[str]:
    entry = backend.entry
    listed_device = [entry.device] if entry and entry.device else []
    devices = list(dict.fromkeys([*listed_device, *(job.device for job in jobs if job.device)]))
    facts = [f"- Backend: {code(str(backend.name), 140)} at {backend.level.name}"]
    if devices:
        facts.append(f"- Device: {join_items(devices, _MOST_DEVICES, code)}")
    if entry and entry.hardware:
        facts.append(f"- Hardware: {code(entry.hardware)}")
    if jobs:
        names = list(dict.fromkeys(job.workflow_name for job in jobs))
        facts.append(f"- Workflow: {join_items(names, _MOST_WORKFLOWS, code)}")
    return facts


def _status_facts(judged: BackendJudgement) -> list[str]:
    sent = judged.backend.sent_at
    facts = [
        f"- Dispatched: {format_utc(sent)}"
        if sent
        else f"- Recorded: {format_utc(judged.since)}, and not sent"
    ]
    if judged.standing is GateStatus.WAITING and judged.deadline is not None:
        facts.append(f"- Waits until: {format_utc(judged.deadline)}")
    whole = [part for part in judged.deciding_parts if part.job is None]
    facts.append(
        f"- Status: {status_text(judged.standing)}"
        + (f" ({join_items(whole, _MOST_OWED, _owed_text, '; ')})" if whole else "")
    )
    waivers = collect_waivers(judged.parts)
    if waivers:
        facts.append(f"- Waivers: {waiver_words(waivers)}")
    if judged.pairs:
        facts.append(f"- Depends on: {pair_words(judged)}")
    jobs = advice_about_jobs(judged)
    if jobs is not None:
        facts.append(f"- To be changed: {jobs}")
    return facts


def _owed_text(part: JudgedPart) -> str:
    reason = prose(part.reason)
    return f"{code(part.name, NAME_CHARACTERS)} {reason}" if part.name is not None else reason


def _job_table(jobs: list[tuple[JudgedPart, JobResult]], pages: HudPages) -> MarkdownSection:
    """Return one row for each job; the column of verdicts only where there is one."""
    several = len({job.workflow for _, job in jobs}) > 1
    rows = [_job_row(part, job, pages, with_workflow=several) for part, job in jobs]
    left_out = set() if any(cells[_VERDICT] for cells in rows) else {_VERDICT}
    columns = [name for name in rows[0] if name not in left_out]
    return table("### Jobs", columns, (row(cells[name] for name in columns) for cells in rows), "jobs")


def _job_row(part: JudgedPart, job: JobResult, pages: HudPages, *, with_workflow: bool) -> dict[str, str]:
    name = f"{job.workflow_name} / {job.name}" if with_workflow else job.name
    return {
        "Job": code(name, NAME_CHARACTERS),
        "State": f"**{part.standing}**" if part.standing in BLOCKED else status_text(part.standing),
        "Attempt": str(job.attempt),
        "Tests": _test_counts(job),
        "Why": "; ".join(filter(None, (prose(part.reason), doubt_words(job)))),
        _VERDICT: verdict_words(part, pages),
        "Links": _job_links(job),
    }


def _test_counts(job: JobResult) -> str:
    counts = zip(job.tests, ("passed", "failed", "skipped"), strict=True)
    return ", ".join(f"{count} {outcome}" for count, outcome in counts if count is not None)


def _job_links(job: JobResult) -> str:
    return ", ".join(filter(None, (link("run", job.url), link("artifact", job.artifact_url))))


def _contact_lines(backend: BackendResults, pages: HudPages) -> str:
    """Return the last lines: the on-call people and the backend's page."""
    oncalls = oncall_words(backend)
    contact = f"On call: {oncalls}" if oncalls else "On call: nobody is listed"
    page_link = link("History of this backend", pages.backend(backend.name))
    return "\n\n".join(filter(None, (contact, page_link)))


# One job


def job_title(part: JudgedPart, job: JobResult) -> str:
    title = one_line(part.reason)
    if part.waiver is not None:
        title = f"waived by {_waiver_authors([part])}: {title}"
    elif part.standing is GateStatus.EXCUSED:
        title = f"excused: {title}"
    passed, failed, _ = job.tests
    tests = (
        f"{count_things(failed, 'test')} failed"
        if failed
        else f"{count_things(passed, 'test')} passed"
        if passed
        else ""
    )
    doubt = doubt_words(job).partition(":")[0]
    phrases = fit_items([phrase for phrase in (title, tests, doubt) if phrase], MOST_TITLE)
    return append_verdict(phrases, [part], MOST_TITLE)


def job_summary(backend: BackendResults, part: JudgedPart, job: JobResult, pages: HudPages) -> str:
    facts = [*_backend_facts(backend, [job]), f"- Job: {code(job.name)}, attempt {job.attempt}"]
    ended = f", ended: {format_utc(job.ended_at)}" if job.ended_at else ""
    facts.append(f"- Began: {format_utc(job.began_at)}{ended}")
    facts.append(f"- Status: {status_text(part.standing)} ({prose(part.reason)})")
    further = {
        "Waiver": waiver_words(collect_waivers([part])),
        _VERDICT: verdict_words(part, pages),
        "Doubt": doubt_words(job),
        "Tests": _test_counts(job),
        "Links": _job_links(job),
    }
    facts += [f"- {label}: {value}" for label, value in further.items() if value]
    sections = [MarkdownSection(head="\n".join(facts)), *failures([(part, job)]), *logs([(part, job)])]
    return page(sections, MOST_TEXT, _contact_lines(backend, pages))


# Failures


def failed_tests(jobs: Iterable[tuple[JudgedPart, JobResult]]) -> list[FailedTestExcerpt]:
    """Return the failed tests of jobs that did not pass; an expected failure is none."""
    return [test for part, job in jobs if part.standing in _AT_FAULT for test in job.failed_tests]


def failures(jobs: list[tuple[JudgedPart, JobResult]]) -> Iterable[MarkdownSection]:
    tests = failed_tests(jobs)
    if not tests:
        return
    unlisted = sum(job.failed_tests_cut for part, job in jobs if part.standing in _AT_FAULT)
    more = max(len(tests) - MOST_FAILURES, 0) + unlisted
    rows = [_failure_line(test) for test in tests[:MOST_FAILURES]]
    if more:
        rows.append(f"- and {more:,} more")
    yield MarkdownSection(head="### First failures\n", rows=tuple(rows), noun="failures")


def logs(jobs: list[tuple[JudgedPart, JobResult]]) -> Iterable[MarkdownSection]:
    """Show the logs of jobs that did not pass: those without failed tests first, which have nothing else to show."""
    excerpts = [
        (job, job.log_excerpt)
        for part, job in jobs
        if part.standing in _AT_FAULT and job.log_excerpt is not None
    ]
    excerpts.sort(key=lambda pair: bool(pair[0].failed_tests))
    if not excerpts:
        return
    rows = [_error_line(job, excerpt) for job, excerpt in excerpts[:MOST_FAILURES]]
    yield MarkdownSection(head="### Logs\n", rows=tuple(rows), noun="logs")
    for job, excerpt in excerpts[:_MOST_TAILS]:
        if excerpt.tail and (not job.failed_tests or len(jobs) == 1):
            head = f"Last lines of {code(job.name, NAME_CHARACTERS)}:\n"
            lines = excerpt.tail.split("\n")[-_MOST_TAIL_LINES:]
            yield MarkdownSection(head=head, rows=(block(lines),), noun="ends of logs")


def _error_line(job: JobResult, excerpt: LogExcerpt) -> str:
    error = code(excerpt.first_error, 300) if excerpt.first_error else "no line names an error"
    return f"- {code(job.name, NAME_CHARACTERS)}: {error}"


def _failure_line(test: FailedTestExcerpt) -> str:
    location = f" in {code(test.file)}" if test.file else ""
    message = f": {code(test.message, 300)}" if test.message else ""
    return f"- {code(test.name)}{location}{message}"
