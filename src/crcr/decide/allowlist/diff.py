"""The changes between two allowlists, each with a line of text.

The order in the file, comments and the case of names do not count as changes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields

from crcr.decide.allowlist.entries import Allowlist, AllowlistEntry
from crcr.decide.model import Level, RepoName

_NOT_OPTIONS = frozenset({"name", "level", "line"})
_UNITS = (("d", 86400), ("h", 3600), ("m", 60))


@dataclass(frozen=True, slots=True)
class EntryAdded:
    entry: AllowlistEntry

    @property
    def text(self) -> str:
        return f"{self.entry.name}: added at {_describe_level(self.entry)}"


@dataclass(frozen=True, slots=True)
class EntryRemoved:
    entry: AllowlistEntry

    @property
    def text(self) -> str:
        return f"{self.entry.name}: removed from {_describe_level(self.entry)}"


@dataclass(frozen=True, slots=True)
class LevelChanged:
    name: RepoName
    before: Level
    after: Level

    @property
    def text(self) -> str:
        verb = "promoted" if self.after > self.before else "demoted"
        return f"{self.name}: {verb} from {self.before.name} to {self.after.name}"


@dataclass(frozen=True, slots=True)
class OptionChanged:
    name: RepoName
    option: str
    """The option's name in the file; `device` for the L3 group."""
    before: object
    after: object

    @property
    def text(self) -> str:
        duration = self.option.endswith("_timeout")
        before, after = (
            _format_value(self.before, duration=duration),
            _format_value(self.after, duration=duration),
        )
        return f"{self.name}: {self.option} from {before} to {after}"


AllowlistChange = EntryAdded | EntryRemoved | LevelChanged | OptionChanged


def diff_allowlists(old: Allowlist, new: Allowlist) -> tuple[AllowlistChange, ...]:
    names = sorted({entry.name for entry in (*old.entries, *new.entries)})
    return tuple(change for name in names for change in _changes(old.find(name), new.find(name)))


def _changes(before: AllowlistEntry | None, after: AllowlistEntry | None) -> Iterator[AllowlistChange]:
    if before is None or after is None:
        if after is not None:
            yield EntryAdded(after)
        if before is not None:
            yield EntryRemoved(before)
        return
    if before.level is not after.level:
        yield LevelChanged(after.name, before.level, after.level)
    for field in fields(AllowlistEntry):
        was, now = getattr(before, field.name), getattr(after, field.name)
        if field.name not in _NOT_OPTIONS and was != now:
            yield OptionChanged(after.name, field.name.removesuffix("_s"), was, now)


def _describe_level(entry: AllowlistEntry) -> str:
    return entry.level.name if entry.device is None else f"{entry.level.name} ({entry.device})"


def _format_value(value: object, *, duration: bool) -> str:
    match value:
        case None:
            return "default"
        case bool():
            return str(value).lower()
        case int() if duration:
            return _format_duration(value)
        case frozenset():
            return _format_list(sorted(map(str, value)))
        case tuple():
            return _format_list([": ".join(item) if isinstance(item, tuple) else str(item) for item in value])
    return str(value)


def _format_list(items: list[str]) -> str:
    return f"[{', '.join(items)}]"


def _format_duration(seconds: int) -> str:
    for unit, size_s in _UNITS:
        if seconds % size_s == 0:
            return f"{seconds // size_s}{unit}"
    return f"{seconds}s"
