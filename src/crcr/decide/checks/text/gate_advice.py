"""What can be done about a backend that keeps the gate shut: the same words in the check on GitHub and on the pages."""

from collections.abc import Callable

from crcr.decide.checks.completeness import why_names_needed
from crcr.decide.checks.confirmation import Confirmation, confirm_result
from crcr.decide.checks.status import BLOCKED, BackendJudgement, GateStatus
from crcr.decide.checks.text.markdown import join_items
from crcr.decide.commands.grammar import ApproveCommand, RetryCommand, WaiveCommand, format_command
from crcr.decide.model import JobState

Quote = Callable[[str], str]
"""Marks a text as code."""

_MOST_NAMES = 3


def advice_for(judged: BackendJudgement, head: str | None, quote: Quote) -> str | None:
    """Name what a person can do; None where nothing need be done. Offered commands name the `head`."""
    name = judged.backend.name
    retry = quote(format_command(RetryCommand(name)))
    waive = f"a maintainer can {quote(format_command(WaiveCommand(name, None, None, '…', head)))}"
    match judged.standing:
        case GateStatus.FAILED:
            return f"fix it, {retry}, or {waive}"
        case GateStatus.DECLINED:
            return f"let a job run, set `may_skip: true` in its allowlist entry, or {waive}"
        case GateStatus.HELD if judged.backend.reason == "approval":
            return f"someone with write rights comments {quote(format_command(ApproveCommand(head)))}"
        case GateStatus.HELD:
            return "mark the pull request ready for review"
        case GateStatus.WAITING:
            return _advice_while_waiting(judged, waive, quote)
    if judged.standing not in BLOCKED:
        return None
    jobs = advice_about_jobs(judged)
    return f"{jobs}, or {waive}" if jobs else f"{retry}, ask who is on call, or {waive}"


def advice_about_jobs(judged: BackendJudgement) -> str | None:
    """What the allowlist or the App needs where nothing can tell that the backend is complete; None elsewhere."""
    if why_names_needed(judged.backend) is None:
        return None
    named = "name its `jobs` literally in the allowlist"
    return f"{named}, or grant Actions: read" if judged.backend.readable is False else named


def _advice_while_waiting(judged: BackendJudgement, waive: str, quote: Quote) -> str | None:
    backend = judged.backend
    if backend.possible_renames:
        names = join_items(backend.possible_renames, _MOST_NAMES, lambda name: quote(str(name)))
        return f"install the App on {names} so that GitHub tells its id, push again, or {waive}"
    if any(
        part.job is not None
        and part.job.state is JobState.COMPLETED
        and not backend.runs_again(part.job)
        and confirm_result(part.job, backend) is Confirmation.OPEN
        for part in judged.telling
    ):
        return f"GitHub is asked again by itself; if this lasts, ask who is on call, or {waive}"
    return None
