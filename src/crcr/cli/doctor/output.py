"""Output of the doctor: findings with marks for people, JSON for scripts, and the exit code."""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import typer
from rich.text import Text

from crcr.cli.printing import console, escape_unprintable, print_json
from crcr.join.findings.finding import SetupFinding, State

_MARKS = {
    State.OK: ("✓", "ok", "green"),
    State.WARNING: ("!", "!", "yellow"),
    State.PROBLEM: ("✗", "X", "bold red"),
    State.UNKNOWN: ("?", "?", "cyan"),
}
_WORDS = {State.PROBLEM: "problem", State.WARNING: "warning", State.UNKNOWN: "unknown"}


@dataclass(frozen=True, slots=True)
class FindingSection:
    """Findings of one kind under a heading."""

    title: str
    findings: tuple[SetupFinding, ...]
    note: str | None = None
    """Printed under the heading; not in JSON."""
    facts: Mapping[str, str | None] = field(default_factory=dict)
    """Added to the JSON only."""


def print_sections(sections: Iterable[FindingSection], *, as_json: bool, **more: str) -> None:
    """Print the sections as they become available; exit with 1 when there is a problem."""
    if as_json:
        _print_json_findings(tuple(sections), more)
        return
    findings: list[SetupFinding] = []
    for section in sections:
        if section.findings:
            _show(section)
            findings += section.findings
    out = console()
    out.print()
    out.print(format_summary(findings), soft_wrap=True)
    _exit_on_problem(findings)


def _print_json_findings(sections: tuple[FindingSection, ...], more: dict[str, str]) -> None:
    findings = [finding for section in sections for finding in section.findings]
    items = [
        {
            "section": section.title,
            "name": finding.name,
            "state": finding.state.value,
            "text": finding.text,
            "hint": finding.hint,
        }
        for section in sections
        for finding in section.findings
    ]
    facts = {name: value for section in sections for name, value in section.facts.items()}
    print_json({"ok": not _has_problem(findings), **more, **facts, "findings": items})
    _exit_on_problem(findings)


def _exit_on_problem(findings: Iterable[SetupFinding]) -> None:
    if _has_problem(findings):
        raise typer.Exit(1)


def _has_problem(findings: Iterable[SetupFinding]) -> bool:
    return any(finding.state is State.PROBLEM for finding in findings)


def _show(section: FindingSection) -> None:
    out = console()
    out.print()
    out.print(Text(escape_unprintable(section.title), "bold"))
    if section.note:
        out.print(Text(f"  {escape_unprintable(section.note)}", "dim"), soft_wrap=True)
    for finding in section.findings:
        out.print(format_finding(finding), soft_wrap=True)
        if finding.hint:
            out.print(
                Text(f"    {arrow()} ", "cyan") + Text(escape_unprintable(finding.hint)), soft_wrap=True
            )


def format_finding(finding: SetupFinding) -> Text:
    fancy, bare, style = _MARKS[finding.state]
    mark = fancy if _can_print(fancy) else bare
    return (
        Text(f"  {mark} ", style)
        + Text(f"{escape_unprintable(finding.name.replace('_', ' '))}: ", "bold")
        + Text(escape_unprintable(finding.text))
    )


def arrow() -> str:
    return "→" if _can_print("→") else "->"


def _can_print(character: str) -> bool:
    try:
        character.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def format_summary(findings: list[SetupFinding]) -> Text:
    counts = {state: sum(finding.state is state for finding in findings) for state in State}
    parts = [
        f"{counts[state]:,} {word}{'s' if counts[state] > 1 and state is not State.UNKNOWN else ''}"
        for state, word in _WORDS.items()
        if counts[state]
    ]
    good = f"{counts[State.OK]:,} of {len(findings):,} checks passed"
    if not parts:
        return Text("No problems: ", "bold green") + Text(good)
    style = "bold red" if counts[State.PROBLEM] else "yellow" if counts[State.WARNING] else "cyan"
    return Text(", ".join(parts), style) + Text(f"; {good}")
