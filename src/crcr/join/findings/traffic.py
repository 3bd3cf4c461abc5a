"""Findings about traffic: the last dispatch, the last report, the last refusal, silence, nightly runs."""

import re
from collections.abc import Iterator
from datetime import datetime, timedelta

from crcr.decide.allowlist.entries import AllowlistEntry
from crcr.decide.github.repository_setup import LastCallback, LastDispatch, LastRefusal, SetupFacts
from crcr.decide.model import DispatchState, JobState, Level
from crcr.decide.statistics.figures import ANSWER_WITHIN
from crcr.decide.views.overview import DispatchAnswer
from crcr.join.findings.finding import SetupFinding, format_age, ok, problem, unknown, warning
from crcr.join.help_links import HintLinks

_FRESH = timedelta(hours=24)
_NIGHTLY_WITHIN = timedelta(hours=48)
_STATUS = re.compile(r"answered (\d{3})")
_EXPLAINED = {
    "401": "GitHub rejected the App's token",
    "403": "the App lacks a permission there",
    "404": "the App is not installed there, or the repository is gone",
    "410": "the repository is gone",
    "422": "GitHub rejected the dispatch",
}
_ANSWERS = {
    DispatchAnswer.RUNNING: "its run is in progress at GitHub",
    DispatchAnswer.NEVER_STARTED: "GitHub started no run for it",
    DispatchAnswer.UNANSWERED: "GitHub started runs since, but none of them names it",
    DispatchAnswer.UNREPORTED: "its run ended without a report",
    DispatchAnswer.NOT_LISTENING: "such events have had no answer for two weeks",
}

_NO_ANSWER = frozenset(
    {
        DispatchAnswer.NEVER_STARTED,
        DispatchAnswer.UNANSWERED,
        DispatchAnswer.UNREPORTED,
        DispatchAnswer.NOT_LISTENING,
    }
)


def traffic_findings(
    facts: SetupFacts, entry: AllowlistEntry, now: datetime, links: HintLinks
) -> Iterator[SetupFinding]:
    yield _dispatch(facts, now, links)
    if entry.level < Level.L2:
        return
    yield _callback(facts, now, links)
    yield _refusal(facts.last_refusal, facts.last_callback, now)
    if facts.silent:
        yield _silence(facts)
    if facts.last_nightly is not None:
        yield _nightly(facts.last_nightly, now)


def _dispatch(facts: SetupFacts, now: datetime, links: HintLinks) -> SetupFinding:
    name, last = "dispatch", facts.last_dispatch or facts.last_test
    if last is None:
        return unknown(
            name,
            "Nothing has been sent yet.",
            f"the upstream's next event will be sent; {links.test}",
        )
    dispatch = f"The last dispatch ({last.event.replace('_', ' ')}, {format_age(last.created_at, now)})"
    match last.state:
        case DispatchState.SENT:
            answer = f"; {_ANSWERS[last.answer]}" if last.answer else ""
            if facts.parked:
                earlier = (
                    "1 earlier dispatch is"
                    if facts.parked == 1
                    else f"{facts.parked:,} earlier dispatches are"
                )
                text = f"{dispatch} was sent{answer}. {earlier} undelivered."
                return warning(name, text, "ask the operator to retry (`crcr effects retry`)")
            return ok(name, f"{dispatch} was sent{answer}.")
        case DispatchState.PARKED:
            return problem(
                name,
                f"{dispatch} is undelivered: {_describe_error(last, facts)}.",
                "fix that first, then ask the operator to retry it (`crcr effects retry`)",
            )
        case DispatchState.WAITING | DispatchState.HELD if last.error:
            return warning(
                name,
                f"{dispatch} was not sent yet: {_describe_error(last, facts)}.",
                "it is retried automatically",
            )
        case DispatchState.WAITING | DispatchState.HELD:
            return ok(name, f"{dispatch} is queued.")
    why = f" ({last.reason})" if last.reason else ""
    return ok(name, f"{dispatch} was {last.state.value.replace('_', ' ')}{why}.")


def _describe_error(last: LastDispatch, facts: SetupFacts) -> str:
    """Return the error: for administrators GitHub's own text, which may be private; for others its meaning."""
    error = last.error or last.reason or "no reason recorded"
    if facts.for_admin:
        return error.rstrip(".")
    if "not installed" in error:
        return _EXPLAINED["404"]
    status = _STATUS.search(error)
    if status:
        return _EXPLAINED.get(
            status[1], "GitHub has an outage" if status[1] >= "500" else "GitHub refused it"
        )
    return "GitHub could not be reached"


def _callback(facts: SetupFacts, now: datetime, links: HintLinks) -> SetupFinding:
    name, last = "callback", facts.last_callback
    if last is not None:
        ended = last.conclusion.value if last.conclusion else last.state.value
        how = "still runs" if last.state is JobState.IN_PROGRESS else f"ended as {ended.replace('_', ' ')}"
        return ok(
            name, f"The last report came {format_age(last.at, now)}: {last.job_name} ({last.event}) {how}."
        )
    workflows = facts.inspection.workflows if facts.inspection else None
    listening = [workflow for workflow in workflows or () if workflow.listens]
    hint = f"test the round trip: {links.test}"
    if listening and not any(workflow.reports or workflow.calls_others for workflow in listening):
        hint = f"no listening workflow seems to use the reporter or its action; for one that does: {links.workflow}"
    first = facts.first_run_at or facts.first_sent_at
    if first is None:
        return unknown(name, "No report yet.", hint)
    if facts.last_refusal is not None:
        return warning(name, "No report was accepted yet.", "see the refusal below")
    since = f"since {first:%Y-%m-%d %H:%M} UTC ({format_age(first, now)})"
    if now - first < ANSWER_WITHIN and not _is_given_up(facts.last_dispatch):
        progress = (
            "The first run is in progress" if facts.first_run_at else "The first dispatch is in progress"
        )
        return unknown(
            name,
            f"{progress} {since}; its report is expected within an hour.",
            "check again when the build has started",
        )
    if facts.first_run_at:
        return warning(name, f"The first run is in progress {since}, but has not reported its start.", hint)
    return warning(name, "Dispatches were sent, but no report ever came back.", hint)


def _is_given_up(last: LastDispatch | None) -> bool:
    """Whether GitHub's answer shows that no run will report."""
    return last is not None and last.answer in _NO_ANSWER


def _refusal(last: LastRefusal | None, callback: LastCallback | None, now: datetime) -> SetupFinding:
    name = "refusal"
    if last is None:
        return ok(name, "No report was refused.")
    job = f" from {last.job_name}" if last.job_name else ""
    run = f" (run {last.run_id})" if last.run_id else ""
    if last.settled:
        return ok(
            name,
            f"A report{job}{run} was refused {format_age(last.at, now)}; settled: the result was accepted.",
        )
    text = f"A report{job}{run} was refused {format_age(last.at, now)}: {last.code}: {_end_sentence(last.detail)}"
    hint = last.hint or "see the table of errors in docs/protocol.md"
    if callback is None or callback.at <= last.at:
        return problem(name, text, hint)
    if now - last.at < _FRESH:
        return warning(name, f"{text} Later reports were accepted.", hint)
    return ok(
        name, f"The last refusal ({last.code}) was {format_age(last.at, now)}; later reports were accepted."
    )


def _end_sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?", "…")) else f"{text}."


def _silence(facts: SetupFacts) -> SetupFinding:
    last = facts.last_dispatch
    answer = f"; {_ANSWERS[last.answer]}" if last and last.answer else ""
    return problem(
        "silence",
        f"Dispatches get no answer: one was expected within the hour, but none came{answer}.",
        "check the repository_dispatch runs in the repository's Actions tab, and the refusals above",
    )


def _nightly(last: LastCallback, now: datetime) -> SetupFinding:
    name, text = "nightly", f"The last nightly result came {format_age(last.at, now)}"
    if now - last.at > _NIGHTLY_WITHIN:
        return warning(
            name,
            f"{text}: nightly runs have stopped.",
            "check its schedule: GitHub disables schedules in a repository without commits for 60 days",
        )
    return ok(name, f"{text}.")
