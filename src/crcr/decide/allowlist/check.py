"""Turn an allowlist file's tree into entries, and report every problem with its line and a hint.

The options of an entry are a table of names, each with the field that it fills and its reader. A reader reports a
problem and returns None; it never raises, and never guesses a value.
"""

import re
from collections.abc import Callable, Collection, Iterator
from difflib import get_close_matches
from enum import StrEnum
from typing import Any

from crcr.decide.allowlist.entries import (
    KNOWN_EVENTS,
    Allowlist,
    AllowlistEntry,
    AllowlistProblem,
    Authors,
    BisectionMode,
    CheckedAllowlist,
    TestedCommit,
    Visibility,
)
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
from crcr.decide.model import Conclusion, Level, RepoName, is_repo_name

_Reader = Callable[[str, Node, ProblemCollector], object | None]

_ONCALL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,38}(?:/[A-Za-z0-9][A-Za-z0-9._-]{0,99})?")
_EVENT_NAME = re.compile(r"[a-z][a-z_]{0,49}")
CHANNEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
_DURATION = re.compile(r"([0-9]{1,9})\s?([smhd])")
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_MAX_DURATION_S = 30 * 86400
_REPORTING_REFS = ("refs/heads/", "refs/tags/")
_MAX_TEXT = 256
_MAX_ITEMS = 100
_CONCLUSIONS = {str(conclusion): conclusion for conclusion in Conclusion if conclusion is not Conclusion.NONE}


def read_options(mapping: MappingNode, findings: ProblemCollector) -> dict[str, Any]:
    """Return the fields of an entry; missing and wrong ones are left out."""
    fields: dict[str, Any] = {}
    for option, line, node in named_pairs(mapping, "option", findings):
        if option not in _OPTIONS:
            findings.error(line, f"unknown option {quote_value(option)}", closest(option, _OPTIONS))
            continue
        field, read = _OPTIONS[option]
        if (value := read(option, node, findings)) is not None:
            fields[field] = value
    _check_timeouts(mapping, fields, findings)
    return fields


def closest(word: str, known: Collection[str]) -> str:
    by_lower = {name.lower(): name for name in known}
    near = get_close_matches(word[:_MAX_TEXT].lower(), by_lower, n=1)
    return f"did you mean {by_lower[near[0]]}?" if near else f"known: {', '.join(known)}"


def read_oncalls(option: str, node: Node, findings: ProblemCollector) -> tuple[str, ...] | None:
    """Read `one, two` or a list; a leading `@` and duplicates are dropped."""
    if isinstance(node, ScalarNode) and isinstance(node.value, str):
        text = read_text(node, option, findings)
        parts = [(part.strip(), node.line) for part in (text or "").split(",") if part.strip()]
    elif isinstance(node, SequenceNode):
        texts = ((read_text(item, "an on-call", findings), item.line) for item in node.items)
        parts = [(text.strip(), line) for text, line in texts if text is not None]
    else:
        findings.error(
            node.line,
            f"{option} must be text or a list, not {describe_kind(node)}",
            "write [name, name]; quote numbers",
        )
        return None
    names: dict[str, str] = {}
    for part, line in parts:
        if name := _read_oncall(part, line, findings):
            names.setdefault(name.lower(), name)
    return tuple(names.values())


def _read_oncall(part: str, line: int, findings: ProblemCollector) -> str | None:
    name = part.removeprefix("@")
    if _ONCALL.fullmatch(name):
        return name
    findings.error(line, f"{quote_value(part)} is not an on-call", "write a GitHub login or org/team")
    return None


def _read_items(option: str, node: Node, findings: ProblemCollector) -> list[tuple[str, int]]:
    """Read a list of texts; an empty list is an error: it would match nothing."""
    if not isinstance(node, SequenceNode):
        findings.error(
            node.line, f"{option} must be a list, not {describe_kind(node)}", f"write {option}: [a, b]"
        )
        return []
    if not node.items:
        findings.error(node.line, f"{option} is an empty list", "leave the option out for its default")
    if len(node.items) > _MAX_ITEMS:
        findings.error(node.line, f"{option} holds more than {_MAX_ITEMS:,} items")
        return []
    texts = ((read_text(item, f"an item of {option}", findings), item.line) for item in node.items)
    return [(text, line) for text, line in texts if text is not None]


def _read_glob(option: str, pattern: str, line: int, findings: ProblemCollector) -> str | None:
    if pattern.strip() and len(pattern) <= _MAX_TEXT:
        return pattern
    findings.error(line, f"{option} holds {quote_value(pattern)}", f"a glob has 1 to {_MAX_TEXT} characters")
    return None


def _read_globs(option: str, node: Node, findings: ProblemCollector) -> tuple[str, ...] | None:
    globs = (
        _read_glob(option, pattern, line, findings) for pattern, line in _read_items(option, node, findings)
    )
    return tuple(glob for glob in globs if glob is not None)


def _read_events(option: str, node: Node, findings: ProblemCollector) -> frozenset[str] | None:
    events = set()
    for event, line in _read_items(option, node, findings):
        if event not in KNOWN_EVENTS:
            findings.error(
                line, f"{option}: unknown event {quote_value(event)}", closest(event, KNOWN_EVENTS)
            )
        events.add(event)
    # The public file has no word for push: an entry with pull requests alone has always received both.
    return frozenset(events | {"push"} if events == {"pull_request"} else events)


def _read_allow_events(option: str, node: Node, findings: ProblemCollector) -> frozenset[str] | None:
    events = _read_items(option, node, findings)
    for event, line in events:
        if not _EVENT_NAME.fullmatch(event):
            findings.error(
                line, f"{option}: {quote_value(event)} is not an event's name", "for example workflow_run"
            )
    return frozenset(event for event, _ in events)


def _read_report_refs(option: str, node: Node, findings: ProblemCollector) -> tuple[str, ...] | None:
    globs = []
    for pattern, line in _read_items(option, node, findings):
        # Anybody can make a pull request's ref (`refs/pull/…`): no list lets its runs report for the repository.
        if not pattern.startswith(_REPORTING_REFS):
            findings.error(
                line,
                f"{option}: {quote_value(pattern)} is not a full ref",
                "write refs/heads/name or refs/tags/name",
            )
        elif (glob := _read_glob(option, pattern, line, findings)) is not None:
            globs.append(glob)
    return tuple(globs)


def _read_channels(option: str, node: Node, findings: ProblemCollector) -> tuple[str, ...] | None:
    """Read names of channels; whether the relay has them is not known here."""
    names: dict[str, None] = {}
    for name, line in _read_items(option, node, findings):
        if not CHANNEL_NAME.fullmatch(name):
            hint = "a channel has a name of the relay's settings: letters, digits, dash and underscore, at most 40"
            findings.error(line, f"{option}: {quote_value(name)} is not a channel's name", hint)
        names[name] = None
    return tuple(names)


def _read_flag(option: str, node: Node, findings: ProblemCollector) -> bool | None:
    if isinstance(node, ScalarNode) and isinstance(node.value, bool):
        return node.value
    findings.error(node.line, f"{option} must be true or false, not {describe_kind(node)}")
    return None


def _read_plain_text(option: str, node: Node, findings: ProblemCollector) -> str | None:
    text = read_text(node, option, findings)
    if text is not None and not 0 < len(text.strip()) <= _MAX_TEXT:
        findings.error(node.line, f"{option} must have 1 to {_MAX_TEXT} characters")
        return None
    return text and text.strip()


def _read_duration(option: str, node: Node, findings: ProblemCollector) -> int | None:
    seconds = _parse_seconds(node)
    if seconds is None:
        value = quote_value(node.value) if isinstance(node, ScalarNode) else describe_kind(node)
        findings.error(
            node.line, f"{option}: {value} is not a duration", "write 90s, 30m, 6h, 2d or whole seconds"
        )
    elif not 0 < seconds <= _MAX_DURATION_S:
        findings.error(node.line, f"{option} must be longer than nothing and at most 30d")
    else:
        return seconds
    return None


def _parse_seconds(node: Node) -> int | None:
    match node:
        # A boolean is an int in Python, and `job_timeout: yes` is not one second.
        case ScalarNode(value=int(seconds)) if not isinstance(seconds, bool):
            return seconds
        case ScalarNode(value=str(text)) if match := _DURATION.fullmatch(text.strip()):
            return int(match[1]) * _UNIT_S[match[2]]
    return None


def _enum_reader(kinds: type[StrEnum]) -> _Reader:
    known = {str(kind): kind for kind in kinds}

    def read(option: str, node: Node, findings: ProblemCollector) -> StrEnum | None:
        text = read_text(node, option, findings)
        if text is not None and text not in known:
            findings.error(node.line, f"{option}: unknown value {quote_value(text)}", closest(text, known))
        return known.get(text or "")

    return read


_read_mode = _enum_reader(BisectionMode)


def _read_bisection_mode(option: str, node: Node, findings: ProblemCollector) -> object:
    """YAML reads a bare `off` as false."""
    is_off = isinstance(node, ScalarNode) and node.value is False
    return BisectionMode.OFF if is_off else _read_mode(option, node, findings)


def _read_expect(
    option: str, node: Node, findings: ProblemCollector
) -> tuple[tuple[str, Conclusion], ...] | None:
    if not isinstance(node, MappingNode):
        findings.error(
            node.line, f"{option} must be a mapping, not {describe_kind(node)}", 'write {"*xfail*": failure}'
        )
        return None
    expected = []
    for pattern, line, value in named_pairs(node, "glob", findings):
        glob = _read_glob(option, pattern, line, findings)
        outcome = read_text(value, "an outcome", findings)
        if outcome is not None and outcome not in _CONCLUSIONS:
            findings.error(
                value.line,
                f"{option}: unknown outcome {quote_value(outcome)}",
                closest(outcome, _CONCLUSIONS),
            )
        elif glob is not None and outcome is not None:
            expected.append((glob, _CONCLUSIONS[outcome]))
    return tuple(expected)


def _check_timeouts(mapping: MappingNode, fields: dict[str, Any], findings: ProblemCollector) -> None:
    job_s, gate_s = fields.get("job_timeout_s"), fields.get("gate_timeout_s")
    if job_s is not None and gate_s is not None and gate_s < job_s:
        line = next(key.line for key, _ in mapping.pairs if key == ScalarNode(key.line, "gate_timeout"))
        findings.error(
            line,
            "gate_timeout is below job_timeout",
            "the gate must wait at least as long as a job may be silent",
        )


_OPTIONS: dict[str, tuple[str, _Reader]] = {
    "oncalls": ("oncalls", read_oncalls),
    "hardware": ("hardware", _read_plain_text),
    "events": ("events", _read_events),
    "refs": ("refs", _read_globs),
    "paths": ("paths", _read_globs),
    "labels": ("labels", _read_globs),
    "drafts": ("drafts", _read_flag),
    "authors": ("authors", _enum_reader(Authors)),
    "jobs": ("jobs", _read_globs),
    "may_skip": ("may_skip", _read_flag),
    "job_timeout": ("job_timeout_s", _read_duration),
    "gate_timeout": ("gate_timeout_s", _read_duration),
    "allow_events": ("allow_events", _read_allow_events),
    "report_refs": ("report_refs", _read_report_refs),
    "tests": ("tests", _enum_reader(TestedCommit)),
    "bisect": ("bisect", _read_bisection_mode),
    "visibility": ("visibility", _enum_reader(Visibility)),
    "expect": ("expect", _read_expect),
    "channels": ("channels", _read_channels),
}


_LEVELS = {level.name: level for level in Level}
# A label has at most 50 characters, of which `ciflow/crcr/` takes 12.
_DEVICE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,36}[A-Za-z0-9])?")
_EVENTS_OF_OTHER_REFS = frozenset(
    {"merge_group", "pull_request", "pull_request_review", "pull_request_review_comment"}
)
"""Events whose runs are on a ref that GitHub makes for them."""
_L3_FORM = "write L3: {device: {owner/name: [on-call]}}; the device makes the label ciflow/crcr/<device>"


NO_LEVEL = AllowlistProblem(
    1,
    "error",
    "the file has no level: an empty allowlist is not accepted, so that a mistake cannot cancel every dispatch",
    "`crcr pause` stops all dispatching for a while; write `L1: []` to list nobody on purpose",
)


def check_allowlist(document: Node | None) -> CheckedAllowlist:
    findings = ProblemCollector()
    entries: list[AllowlistEntry] = []
    if _is_blank(document):
        return CheckedAllowlist(None, (NO_LEVEL,))
    if isinstance(document, MappingNode):
        entries = list(_read_entries(document, findings))
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


def _read_entries(document: MappingNode, findings: ProblemCollector) -> Iterator[AllowlistEntry]:
    for name, line, node in named_pairs(document, "level", findings):
        level = _LEVELS.get(name)
        if level is None:
            findings.error(line, f"unknown level {quote_value(name)}", closest(name, _LEVELS))
        elif level is Level.L3:
            yield from _read_devices(node, findings)
        else:
            yield from _read_group(level, None, node, findings)


def _read_devices(node: Node, findings: ProblemCollector) -> Iterator[AllowlistEntry]:
    if node == ScalarNode(node.line, None):
        return
    if not isinstance(node, MappingNode):
        findings.error(
            node.line, f"L3 must group its entries by device, not be {describe_kind(node)}", _L3_FORM
        )
        return
    for device, line, group in named_pairs(node, "device", findings, fold=True):
        if is_repo_name(device):
            findings.error(line, f"{device} is under L3 without a device", _L3_FORM)
            continue
        if not _DEVICE.fullmatch(device):
            hint = "letters, digits, dot, dash and underscore, at most 38: it becomes part of a label"
            findings.error(line, f"{quote_value(device)} is not a device name", hint)
        yield from _read_group(Level.L3, device, group, findings)


def _read_group(
    level: Level, device: str | None, node: Node, findings: ProblemCollector
) -> Iterator[AllowlistEntry]:
    group_name = level.name if device is None else f"device {quote_value(device)}"
    match node:
        case ScalarNode(value=None):
            return
        case MappingNode(pairs=pairs):
            named = list(pairs)
        case SequenceNode(items=items):
            named = [pair for item in items for pair in _read_list_item(item, findings)]
        case _:
            findings.error(
                node.line, f"{group_name} must hold a list or a mapping of entries, not {describe_kind(node)}"
            )
            return
    for key, content in named:
        name, fields = _read_name(key, findings), _read_fields(content, findings)
        if name is not None:
            yield AllowlistEntry(name=name, level=level, device=device, line=key.line, **fields)


def _read_list_item(item: Node, findings: ProblemCollector) -> Iterator[tuple[Node, Node]]:
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


def _read_name(key: Node, findings: ProblemCollector) -> RepoName | None:
    name = read_text(key, "a repository's name", findings)
    if name is None:
        return None
    if is_repo_name(name):
        return RepoName(name)
    hint = "write owner/name" if "/" in name else "write owner/name; devices group entries under L3 only"
    findings.error(key.line, f"{quote_value(name)} is not a repository's name", hint)
    return None


def _read_fields(content: Node, findings: ProblemCollector) -> dict[str, Any]:
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
        hint = "visibility applies to the relay's own pages; checks show its name and its jobs to all readers of the PR"
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


def check_channels(allowlist: Allowlist, known: Collection[str]) -> Iterator[AllowlistProblem]:
    """Warn of channels that the relay's settings do not have: their notices go nowhere."""
    for entry in allowlist.entries:
        for name in entry.channels:
            if name not in known:
                text = f"{entry.name} names the channel {quote_value(name)}, which the relay does not have"
                yield AllowlistProblem(entry.line, "warning", text, closest(name, known) if known else None)


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
