"""How the doctor tells what it found: a list with marks for people, JSON for scripts, and the exit code."""

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
_WORDS = {State.PROBLEM: "problem", State.WARNING: "warning", State.UNKNOWN: "not known"}


@dataclass(frozen=True, slots=True)
class FindingSection:
    """Findings of one kind under a heading."""

    title: str
    findings: tuple[SetupFinding, ...]
    note: str | None = None
    """Said under the heading, to people."""
    facts: Mapping[str, str | None] = field(default_factory=dict)
    """Said beside the findings, to programs."""


def print_sections(sections: Iterable[FindingSection], *, as_json: bool, **more: str) -> None:
    """Print what was found, part by part as it is found out, and end with the exit code that it calls for."""
    if as_json:
        _tell_program(tuple(sections), more)
        return
    found: list[SetupFinding] = []
    for section in sections:
        if section.findings:
            _show(section)
            found += section.findings
    out = console()
    out.print()
    out.print(format_summary(found), soft_wrap=True)
    _leave(found)


def _tell_program(sections: tuple[FindingSection, ...], more: dict[str, str]) -> None:
    found = [each for section in sections for each in section.findings]
    told = [
        {
            "section": section.title,
            "name": each.name,
            "state": each.state.value,
            "text": each.text,
            "hint": each.hint,
        }
        for section in sections
        for each in section.findings
    ]
    facts = {name: value for section in sections for name, value in section.facts.items()}
    print_json({"ok": not _has_problem(found), **more, **facts, "findings": told})
    _leave(found)


def _leave(found: Iterable[SetupFinding]) -> None:
    if _has_problem(found):
        raise typer.Exit(1)


def _has_problem(found: Iterable[SetupFinding]) -> bool:
    return any(each.state is State.PROBLEM for each in found)


def _show(section: FindingSection) -> None:
    out = console()
    out.print()
    out.print(Text(escape_unprintable(section.title), "bold"))
    if section.note:
        out.print(Text(f"  {escape_unprintable(section.note)}", "dim"), soft_wrap=True)
    for each in section.findings:
        out.print(format_finding(each), soft_wrap=True)
        if each.hint:
            out.print(Text(f"    {arrow()} ", "cyan") + Text(escape_unprintable(each.hint)), soft_wrap=True)


def format_finding(finding: SetupFinding) -> Text:
    fancy, bare, style = _MARKS[finding.state]
    mark = fancy if _takes(fancy) else bare
    return (
        Text(f"  {mark} ", style)
        + Text(f"{escape_unprintable(finding.name.replace('_', ' '))}: ", "bold")
        + Text(escape_unprintable(finding.text))
    )


def arrow() -> str:
    return "→" if _takes("→") else "->"


def _takes(character: str) -> bool:
    try:
        character.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def format_summary(found: list[SetupFinding]) -> Text:
    counts = {state: sum(each.state is state for each in found) for state in State}
    parts = [
        f"{counts[state]} {word}{'s' if counts[state] > 1 and state is not State.UNKNOWN else ''}"
        for state, word in _WORDS.items()
        if counts[state]
    ]
    good = f"{counts[State.OK]} of {len(found)} in order"
    if not parts:
        return Text("All is well: ", "bold green") + Text(good)
    style = "bold red" if counts[State.PROBLEM] else "yellow" if counts[State.WARNING] else "cyan"
    return Text(", ".join(parts), style) + Text(f"; {good}")
