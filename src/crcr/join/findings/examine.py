"""A downstream's set-up, examined: from what is known to findings in the order in which they are best mended.

Pure. What depends on the one before it is left out while that one is broken: of who is not listed nothing is looked at,
so that a repository which is hidden cannot be told from one that is not there.
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
        yield unknown("app", "The App is looked at once you are listed.")
        yield unknown("workflow", "The workflow is looked at once you are listed.")
        return
    yield _standing(facts, now)
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
            "tell its operator: nothing is sent to anybody until it has read one",
        )
    return problem(
        name,
        f"{facts.repository} is not on the allowlist of {facts.upstream}{where}.",
        f"have the upstream's maintainers add it: {links.entry}",
    )


def _standing(facts: SetupFacts, now: datetime) -> SetupFinding:
    name = "standing"
    if facts.suspended_at is not None:
        return problem(
            name,
            f"Suspended by the operator {format_age(facts.suspended_at, now)}: nothing is sent, and reports are refused.",
            "ask the operator why, and to lift it (`crcr suspend --lift`)",
        )
    if facts.paused_at is not None:
        return warning(
            name,
            f"Dispatching for {facts.upstream} was paused {format_age(facts.paused_at, now)}.",
            "there is nothing to do: what waits is sent when the operator lets it go on",
        )
    return ok(name, "Neither suspended nor paused.")


__all__ = ["SetupFacts", "SetupFinding", "State", "examine"]
