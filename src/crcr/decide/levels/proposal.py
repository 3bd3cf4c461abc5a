"""The proposal that standings lead to: which entries should move, the edited allowlist, and the text of its pull request.

The edit moves lines of the file and keeps every other line as it is, with its comments and order. Each moved entry is checked:
the new text must parse to the same allowlist with just that entry at its new level. Where it does not (entries in one line, anchors), the entry
is listed to be moved by hand. A proposal never promotes to L4.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from difflib import unified_diff
from hashlib import sha256

from crcr.decide.allowlist.entries import Allowlist, AllowlistEntry, Visibility
from crcr.decide.levels.criteria import Met
from crcr.decide.levels.standings import BackendLevel
from crcr.decide.model import Level, RepoName

ReadAllowlist = Callable[[str], Allowlist | None]
"""Parses the text of an allowlist; None where it has an error."""

_LEVEL_KEY = re.compile(r"(L[1-4])\s*:\s*(#.*)?")
_GROUP_KEY = re.compile(r"""(["']?)([A-Za-z0-9._-]+)\1\s*:\s*(#.*)?""")
_BARE_NAME = re.compile(r"""(["']?[A-Za-z0-9._/-]+["']?)(\s*(?:#.*)?)""")
_NOT_IN_DEVICE = re.compile(r"[^A-Za-z0-9._-]")
_MOST_DEVICE = 38
_INDENT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedMove:
    backend: RepoName
    before: Level
    after: Level
    device: str | None = None
    """The device that an entry at L3 is grouped under."""
    since: datetime | None = None
    """When the backend came to its present level."""
    evidence: tuple[str, ...] = ()
    hidden: bool = False
    """Its figures are not public."""
    edited: bool = True
    """False where the text could not be edited and a person has to move the entry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelProposal:
    moves: tuple[ProposedMove, ...]
    text: str
    """The edited allowlist."""
    diff: str
    title: str
    body: str

    @property
    def digest(self) -> str:
        """Identifies the proposal: the same text for backends at their level since the same time is opened once.

        The time distinguishes a second promotion, after a demotion, from the first one. Figures are left out: they change daily.
        """
        moves = sorted(f"{move.backend.key} {move.since}" for move in self.moves if move.edited)
        return sha256("\n".join((*moves, self.text)).encode()).hexdigest()[:16]

    @property
    def branch(self) -> str:
        return f"crcr/levels-{self.digest}"


def propose_levels(
    text: str,
    backends: Sequence[BackendLevel],
    read: ReadAllowlist,
    *,
    devices: Mapping[str, str] | None = None,
    path: str = "allowlist.yml",
) -> LevelProposal | None:
    """Return the proposal of the backends' standings; None when every backend stays. `devices` is by the backend's key."""
    edited, moves, listed = text, [], read(text)
    # By name: the same moves make the same text, whatever the order of the page.
    for backend in sorted(backends, key=lambda backend: backend.name):
        if backend.proposed_level is None:
            continue
        move = _plan_move(backend, backend.proposed_level, devices or {})
        after = _apply(edited, move, read)
        entry = listed.find(backend.name) if listed else None
        hidden = entry is None or entry.visibility is not Visibility.PUBLIC
        moves.append(replace(move, edited=after is not None, hidden=hidden))
        edited = after if after is not None else edited
    if not moves:
        return None
    return LevelProposal(
        moves=tuple(moves),
        text=edited,
        diff=_diff(text, edited, path),
        title=_title(moves),
        body=_body(moves),
    )


def _plan_move(backend: BackendLevel, after: Level, devices: Mapping[str, str]) -> ProposedMove:
    device = None
    if after is Level.L3:
        named = devices.get(backend.name.key) or backend.name.name
        device = _NOT_IN_DEVICE.sub("-", named)[:_MOST_DEVICE]
    return ProposedMove(
        backend=backend.name,
        before=backend.level,
        after=after,
        device=device,
        since=backend.level_since,
        evidence=_evidence(backend),
    )


def _evidence(backend: BackendLevel) -> tuple[str, ...]:
    if backend.eligible:
        return tuple(
            f"{one.title} {one.target}: {one.measured}"
            + (f", met since {one.met_since:%Y-%m-%d}" if one.met_since else "")
            for one in backend.criteria
            if one.met is Met.MET
        )
    broken = tuple(
        f"{one.title} {one.leaves}: {one.leave_measured}" for one in backend.criteria if one.broken
    )
    return broken or backend.lacking


def _apply(text: str, move: ProposedMove, read: ReadAllowlist) -> str | None:
    """Return the edited text; None unless it parses to the same allowlist with the entry at its new place."""
    before = read(text)
    entry = before.find(move.backend) if before else None
    if before is None or entry is None:
        return None
    after = move_entry(text, entry, move)
    checked = read(after) if after is not None else None
    if after is None or checked is None:
        return None
    moved = replace(entry, level=move.after, device=move.device)
    expected = {one.name: moved if one is entry else one for one in before.entries}
    return after if {one.name: one for one in checked.entries} == expected else None


# The edit of the text


def move_entry(text: str, entry: AllowlistEntry, move: ProposedMove) -> str | None:
    """Move the lines of an entry to the end of its new level; None for a form that is not edited."""
    newline = "\r\n" if "\r\n" in text else "\n"
    lines = text.replace("\r\n", "\n").split("\n")
    start = entry.line - 1
    if not 0 <= start < len(lines) or _LEVEL_KEY.match(lines[start]) or "{" in _before_name(lines[start]):
        return None
    is_item, content = _split_item(lines[start])
    end = _block_end(lines, start)
    start = _comment_start(lines, start)
    block = lines[start:end]
    del lines[start:end]
    _drop_empty_group(lines, start)
    place = _find_place(lines, move)
    if place is None:
        return None
    comments, body = _split_comments(block)
    rest = _dedent(body[1:], _content_column(body[0]))
    if not place.as_list and is_item:
        content = _as_key(content)
    prefix = " " * place.indent
    first = f"{prefix}- {content}" if place.as_list else f"{prefix}{content}"
    inner = place.indent + (2 if place.as_list else 0)
    lines[place.line : place.line] = [
        *place.heading,
        *(f"{prefix}{comment.strip()}" for comment in comments),
        first,
        *(f"{' ' * inner}{line}" if line else "" for line in rest),
    ]
    return newline.join(lines)


def _before_name(line: str) -> str:
    return line[: line.find("/")] if "/" in line else line


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the entry goes: before this line, with this indent, below these new keys."""

    line: int
    indent: int
    as_list: bool
    heading: tuple[str, ...] = ()


def _find_place(lines: Sequence[str], move: ProposedMove) -> _Place | None:
    key = move.after.name
    section = next((at for at, line in enumerate(lines) if _is_key(line, key)), None)
    if section is None:
        if any(line.startswith((f"{key}:", f"{key} :")) for line in lines):
            return None  # its entries are in the same line
        return _new_section(lines, move)
    if move.device is None:
        return _place_in(lines, section, _INDENT, as_list=True)
    end, indent = _body_end(lines, section), _inner(lines, section) or _INDENT
    for at in range(section + 1, end):
        group = _GROUP_KEY.fullmatch(lines[at].strip()) if _indent(lines[at]) == indent else None
        if group and group[2].casefold() == move.device.casefold():
            return _place_in(lines, at, indent + _INDENT, as_list=False)
    return _Place(end, indent + _INDENT, as_list=False, heading=(f"{' ' * indent}{move.device}:",))


def _new_section(lines: Sequence[str], move: ProposedMove) -> _Place:
    """A level that the file does not have yet: before the next higher one, else at the end."""
    higher = [level.name for level in Level if level > move.after]
    line = next((at for at, line in enumerate(lines) if line[:2] in higher and line[2:3] in {":", " "}), None)
    if line is None:
        line = len(lines)
        while line and not lines[line - 1].strip():
            line -= 1
    heading = (f"{move.after.name}:",)
    if move.device is None:
        return _Place(line, _INDENT, as_list=True, heading=heading)
    return _Place(line, 2 * _INDENT, as_list=False, heading=(*heading, f"{' ' * _INDENT}{move.device}:"))


def _place_in(lines: Sequence[str], key: int, indent: int, *, as_list: bool) -> _Place:
    """The end of the block below a key, in the form of its first entry."""
    end = _body_end(lines, key)
    first = next((line for line in lines[key + 1 : end] if _is_content(line)), None)
    if first is not None:
        indent, as_list = _indent(first), first.lstrip().startswith("- ")
    return _Place(end, indent, as_list)


def _is_key(line: str, key: str) -> bool:
    match = _LEVEL_KEY.fullmatch(line.rstrip())
    return match is not None and match[1] == key


def _is_content(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _inner(lines: Sequence[str], key: int) -> int | None:
    """The indent of the first line below a key."""
    end = _body_end(lines, key)
    return next((_indent(line) for line in lines[key + 1 : end] if _is_content(line)), None)


def _body_end(lines: Sequence[str], key: int) -> int:
    """The line after the last content that is indented below a key."""
    end = key + 1
    for at in range(key + 1, len(lines)):
        if _is_content(lines[at]):
            # A list may stand at the indent of its key.
            listed = lines[at].lstrip().startswith("- ") and not lines[key].lstrip().startswith("- ")
            if _indent(lines[at]) < _indent(lines[key]) + (0 if listed else 1):
                break
            end = at + 1
    return end


def _block_end(lines: Sequence[str], start: int) -> int:
    end = start + 1
    for at in range(start + 1, len(lines)):
        if _is_content(lines[at]):
            if _indent(lines[at]) <= _indent(lines[start]):
                break
            end = at + 1
    return end


def _comment_start(lines: Sequence[str], start: int) -> int:
    """The first of the comments directly above an entry; those above the first entry belong to its level."""
    first = start
    while (
        first
        and lines[first - 1].lstrip().startswith("#")
        and _indent(lines[first - 1]) == _indent(lines[start])
    ):
        first -= 1
    is_first = first == 0 or (
        _indent(lines[first - 1]) < _indent(lines[start]) and _is_content(lines[first - 1])
    )
    return start if is_first else first


def _drop_empty_group(lines: list[str], at: int) -> None:
    """Remove the key of a device whose only entry was above this line."""
    key = at - 1
    if not 0 <= key < len(lines) or not _indent(lines[key]) or not _GROUP_KEY.fullmatch(lines[key].strip()):
        return
    if "#" not in lines[key] and _body_end(lines, key) == key + 1:
        del lines[key]


def _split_item(line: str) -> tuple[bool, str]:
    content = line.strip()
    return (True, content[2:].lstrip()) if content.startswith("- ") else (False, content)


def _split_comments(block: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    number = next(at for at, line in enumerate(block) if _is_content(line))
    return block[:number], block[number:]


def _content_column(line: str) -> int:
    column = _indent(line)
    if line.lstrip().startswith("- "):
        column += len(line[column:]) - len(line[column + 1 :].lstrip())
    return column


def _dedent(lines: Sequence[str], column: int) -> list[str]:
    return [line[min(column, _indent(line)) :] if line.strip() else "" for line in lines]


def _as_key(content: str) -> str:
    """Write a name that stood alone in a list as a key of a mapping."""
    bare = _BARE_NAME.fullmatch(content)
    return f"{bare[1]}: {{}}{bare[2]}" if bare else content


# The text of the pull request


def _diff(before: str, after: str, path: str) -> str:
    lines = unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{path}", f"b/{path}"
    )
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )


def _title(moves: Sequence[ProposedMove]) -> str:
    first = moves[0]
    if len(moves) == 1:
        return f"Levels by evidence: {first.backend} from {first.before.name} to {first.after.name}"
    return f"Levels by evidence: {len(moves):,} backends move"


def _body(moves: Sequence[ProposedMove]) -> str:
    sections = ["The relay proposes these levels. Its figures, as of its last evaluation:"]
    for move in moves:
        head = f"### {move.backend}: {move.before.name} → {move.after.name}"
        lines = ["- its figures are not public"] if move.hidden else [f"- {text}" for text in move.evidence]
        if move.device is not None and move.edited:
            lines.append(
                f"- its device is `{move.device}` here: correct it if its label should have another name"
            )
        if not move.edited:
            lines.append("- this entry could not be edited automatically: move it by hand")
        sections.append("\n".join((head, "", *lines)))
    sections.append("Levels and their criteria: `/crcr/levels` on the relay.")
    return "\n\n".join(sections) + "\n"
