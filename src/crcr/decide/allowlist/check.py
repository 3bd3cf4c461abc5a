"""From a file's tree to an allowlist: levels, L3 devices, entries, and every problem with its line.

Nothing here raises for what a file holds. A file with an error yields no allowlist at all, so the caller keeps
the last good one; a warning is told and does not stop anybody.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

from crcr.decide.allowlist.entries import (
    Allowlist,
    AllowlistEntry,
    AllowlistProblem,
    CheckedAllowlist,
    Visibility,
)
from crcr.decide.allowlist.options import closest, read_oncalls, read_options
from crcr.decide.allowlist.tree import (
    MappingNode,
    Node,
    ProblemCollector,
    ScalarNode,
    SequenceNode,
    describe_kind,
    named_pairs,
    quote_value,
    read_text,
)
from crcr.decide.model import Level, RepoName, is_repo_name

_LEVELS = {level.name: level for level in Level}
# A label has at most 50 characters, of which `ciflow/crcr/` takes 12.
_DEVICE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,36}[A-Za-z0-9])?")
_EVENTS_OF_OTHER_REFS = frozenset(
    {"merge_group", "pull_request", "pull_request_review", "pull_request_review_comment"}
)
"""Events whose runs are of a ref that GitHub made for them."""
_L3_FORM = "write L3: {device: {owner/name: [on-call]}}; the device makes the label ciflow/crcr/<device>"


NO_LEVEL = AllowlistProblem(
    1,
    "error",
    "the file holds no level: an empty allowlist is not taken, so that a slip cannot cancel every dispatch",
    "`crcr pause` stops all dispatching for a while; write `L1: []` to list nobody on purpose",
)


def check_allowlist(document: Node | None) -> CheckedAllowlist:
    findings = ProblemCollector()
    entries: list[AllowlistEntry] = []
    if _is_blank(document):
        return CheckedAllowlist(None, (NO_LEVEL,))
    if isinstance(document, MappingNode):
        entries = list(_entries(document, findings))
    elif document is not None:
        findings.error(
            document.line, f"the file must map levels to entries, not be {describe_kind(document)}", "L1: …"
        )
    _refuse_repeats(entries, findings)
    for entry in entries:
        _check_duties(entry, findings)
    if not entries and not findings.failed:
        findings.warning(1, "the allowlist is empty: nothing will be dispatched")
    return findings.conclude(entries)


def _is_blank(document: Node | None) -> bool:
    """Whether there is nothing but comments, `~` or `{}`."""
    match document:
        case None | ScalarNode(value=None) | MappingNode(pairs=()):
            return True
        case _:
            return False


def _entries(document: MappingNode, findings: ProblemCollector) -> Iterator[AllowlistEntry]:
    for name, line, node in named_pairs(document, "level", findings):
        level = _LEVELS.get(name)
        if level is None:
            findings.error(line, f"unknown level {quote_value(name)}", closest(name, _LEVELS))
        elif level is Level.L3:
            yield from _devices(node, findings)
        else:
            yield from _group(level, None, node, findings)


def _devices(node: Node, findings: ProblemCollector) -> Iterator[AllowlistEntry]:
    if node == ScalarNode(node.line, None):
        return
    if not isinstance(node, MappingNode):
        findings.error(
            node.line, f"L3 must group its entries by device, not be {describe_kind(node)}", _L3_FORM
        )
        return
    for device, line, group in named_pairs(node, "device", findings, fold=True):
        if is_repo_name(device):
            findings.error(line, f"{device} stands under L3 without a device", _L3_FORM)
            continue
        if not _DEVICE.fullmatch(device):
            hint = "letters, digits, dot, dash and underscore, at most 38: it becomes part of a label"
            findings.error(line, f"{quote_value(device)} is not a device name", hint)
        yield from _group(Level.L3, device, group, findings)


def _group(
    level: Level, device: str | None, node: Node, findings: ProblemCollector
) -> Iterator[AllowlistEntry]:
    place = level.name if device is None else f"device {quote_value(device)}"
    match node:
        case ScalarNode(value=None):
            return
        case MappingNode(pairs=pairs):
            named = list(pairs)
        case SequenceNode(items=items):
            named = [pair for item in items for pair in _list_item(item, findings)]
        case _:
            findings.error(
                node.line, f"{place} must hold a list or a mapping of entries, not {describe_kind(node)}"
            )
            return
    for key, content in named:
        name, fields = _name(key, findings), _fields(content, findings)
        if name is not None:
            yield AllowlistEntry(name=name, level=level, device=device, line=key.line, **fields)


def _list_item(item: Node, findings: ProblemCollector) -> Iterator[tuple[Node, Node]]:
    """Read a name alone, or a mapping of one name."""
    if not isinstance(item, MappingNode):
        yield item, ScalarNode(item.line, None)
        return
    yield from item.pairs[:1]
    for key, _ in item.pairs[1:]:
        name = key.value if isinstance(key, ScalarNode) else None
        another = isinstance(name, str) and is_repo_name(name)
        hint = "begin a new list item with a dash" if another else "indent it below the repository's name"
        findings.error(key.line, f"a list item holds one repository, and {quote_value(name)} beside it", hint)


def _name(key: Node, findings: ProblemCollector) -> RepoName | None:
    name = read_text(key, "a repository's name", findings)
    if name is None:
        return None
    if is_repo_name(name):
        return RepoName(name)
    hint = "write owner/name" if "/" in name else "write owner/name; devices group entries under L3 only"
    findings.error(key.line, f"{quote_value(name)} is not a repository's name", hint)
    return None


def _fields(content: Node, findings: ProblemCollector) -> dict[str, Any]:
    match content:
        case ScalarNode(value=None):
            return {}
        case MappingNode():
            return read_options(content, findings)
    return {"oncalls": read_oncalls("on-calls", content, findings) or ()}


def _refuse_repeats(entries: list[AllowlistEntry], findings: ProblemCollector) -> None:
    first: dict[RepoName, AllowlistEntry] = {}
    for entry in entries:
        other = first.setdefault(entry.name, entry)
        if other is not entry:
            places = f"line {other.line} ({other.level.name}) and line {entry.line} ({entry.level.name})"
            hint = None
            if other.name.full_name != entry.name.full_name:
                hint = f"{other.name} and {entry.name} are one repository: GitHub ignores case"
            findings.error(entry.line, f"{entry.name} is listed twice: {places}", hint)


def _check_duties(entry: AllowlistEntry, findings: ProblemCollector) -> None:
    """What a level asks of its entries, beyond their form."""
    if not entry.oncalls and entry.level is Level.L4:
        findings.error(
            entry.line, f"{entry.name} is at L4 and has no on-calls", "a gate needs someone to call"
        )
    if not entry.oncalls and entry.level is Level.L3:
        findings.warning(entry.line, f"{entry.name} is at L3 and has no on-calls")
    if entry.level >= Level.L3 and entry.visibility is not Visibility.PUBLIC:
        hint = "visibility is about the relay's own pages; checks name it and its jobs to everybody who sees the PR"
        findings.warning(
            entry.line, f"{entry.name} is at {entry.level.name} and {entry.visibility.value}", hint
        )
    for event in sorted(entry.allow_events & _EVENTS_OF_OTHER_REFS):
        hint = "its runs are never of the default branch, so their reports are refused (wrong_ref)"
        findings.warning(entry.line, f"{entry.name} allows {event}, which lets nothing in", hint)
    if entry.jobs is None and entry.level is Level.L4:
        hint = (
            "without jobs the gate must be able to read the repository's Actions to know when it is complete"
        )
        findings.warning(entry.line, f"{entry.name} is at L4 and names no jobs", hint)


def check_actions(
    allowlist: Allowlist, reads_actions: Callable[[RepoName], bool | None]
) -> Iterator[AllowlistProblem]:
    """Warn of L4 entries that can never be complete: no literal `jobs`, and Actions that the App cannot read."""
    for entry in allowlist.gating:
        if entry.names_jobs or (readable := reads_actions(entry.name)) is True:
            continue
        if readable is None:
            text = f"whether the App can read the Actions of {entry.name} is not known to the relay"
            hint = f"`crcr doctor --relay URL --repo {entry.name}` has it looked at; or name its `jobs` literally"
        else:
            text = f"{entry.name} is at L4, and the App cannot read its Actions: its gate will be errored"
            hint = "name its `jobs` literally, or grant Actions: read"
        yield AllowlistProblem(entry.line, "warning", text, hint)
