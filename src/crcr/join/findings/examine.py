"""Examines a downstream's set-up: from recorded facts to findings, in the order in which to fix them.

Pure. Findings that depend on a failed one are left out. An unlisted repository is not examined at all, so that a hidden
repository looks the same as one that does not exist.
"""

from collections.abc import Iterator
from datetime import datetime

from crcr.decide.github.repository_setup import SetupFacts
from crcr.join.findings.finding import (
    SetupFinding,
    State,
    format_age,
    join_words,
    ok,
    problem,
    unknown,
    warning,
)
from crcr.join.findings.github import github_findings
from crcr.join.findings.traffic import traffic_findings
from crcr.join.help_links import HintLinks


def examine(facts: SetupFacts, now: datetime, links: HintLinks) -> tuple[SetupFinding, ...]:
    return tuple(_findings(facts, now, links))


def _findings(facts: SetupFacts, now: datetime, links: HintLinks) -> Iterator[SetupFinding]:
    yield _allowlist(facts, links)
    if facts.entry is None:
        yield unknown("app", "The App is checked once you are listed.")
        yield unknown("workflow", "The workflow is checked once you are listed.")
        return
    yield _status(facts, now)
    yield from github_findings(facts, facts.entry, now, links)
    yield from traffic_findings(facts, facts.entry, now, links)


def _allowlist(facts: SetupFacts, links: HintLinks) -> SetupFinding:
    entry, name = facts.entry, "allowlist"
    where = f" ({facts.allowlist_source})" if facts.allowlist_source else ""
    if entry is not None:
        device = f", device {entry.device}" if entry.device else ""
        events = join_words(sorted(entry.events)) if entry.events else "no events"
        return ok(
            name,
            f"On the allowlist of {facts.upstream}{where} at {entry.level.name}{device}, for {events}.",
        )
    if not facts.has_allowlist:
        return problem(
            name,
            f"The relay has no valid allowlist for {facts.upstream}.",
            "tell its operator: nothing is dispatched until it has read one",
        )
    return problem(
        name,
        f"{facts.repository} is not on the allowlist of {facts.upstream}{where}.",
        f"ask the upstream's maintainers to add it: {links.entry}",
    )


def _status(facts: SetupFacts, now: datetime) -> SetupFinding:
    name = "standing"
    if facts.suspended_at is not None:
        return problem(
            name,
            f"Suspended by the operator {format_age(facts.suspended_at, now)}: nothing is dispatched, and reports are refused.",
            "ask the operator to lift it (`crcr resume OWNER/REPO`)",
        )
    if facts.paused_at is not None:
        return warning(
            name,
            f"Dispatching for {facts.upstream} was paused {format_age(facts.paused_at, now)}.",
            "nothing to do: waiting dispatches are sent when the operator resumes it",
        )
    return ok(name, "Active.")


__all__ = ["SetupFacts", "SetupFinding", "State", "examine"]
