"""The entries of an upstream's allowlist, and the problems found while reading one.

Values only. `allowlist.check` makes them from a file's content, `dispatch.selection` selects entries for an event. An
`Allowlist` never holds a repository twice, and a `CheckedAllowlist` holds an allowlist only if it has no error.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Literal

from crcr.decide.globs import name_glob
from crcr.decide.model import Conclusion, Level, RepoName

KNOWN_EVENTS = ("pull_request", "push", "merge_group", "nightly", "periodic")
DEFAULT_EVENTS = frozenset({"pull_request", "push", "nightly", "periodic"})
_UTF_16_MARKS = frozenset({b"\xff\xfe", b"\xfe\xff"})
_UTF_16 = "the file is UTF-16: save it as UTF-8"


class Authors(StrEnum):
    """The authors whose pull requests a downstream tests."""

    ANY = "any"
    TRUSTED = "trusted"
    APPROVED = "approved"
    """Any author, but each head only after `/crcr approve` by a person with write access."""


class TestedCommit(StrEnum):
    """Which commit a downstream tests for a pull request; verdicts compare with the base as that commit has it."""

    __test__ = False  # not a pytest class

    HEAD = "head"
    """The head itself, which contains the base up to where it branched off."""
    MERGE = "merge"
    """The head merged into the base of that moment."""


class Visibility(StrEnum):
    """How much of a downstream the public pages show."""

    PUBLIC = "public"
    NAME = "name"
    HIDDEN = "hidden"


class BisectionMode(StrEnum):
    """Who may have the relay test older upstream commits on a downstream, to find the one that broke a job."""

    OFF = "off"
    MANUAL = "manual"
    """Maintainers of the upstream, and administrators of the relay."""
    AUTO = "auto"
    """The relay itself as well, when a job has turned red on the base branch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowlistEntry:
    """One downstream and its options. None instead of a list of globs means that everything matches."""

    name: RepoName
    level: Level
    device: str | None = None
    line: int = field(default=0, compare=False)
    """Its line in the file, which is not compared: moving an entry does not change it."""
    oncalls: tuple[str, ...] = ()
    hardware: str | None = None
    events: frozenset[str] = DEFAULT_EVENTS
    refs: tuple[str, ...] | None = None
    paths: tuple[str, ...] | None = None
    labels: tuple[str, ...] | None = None
    drafts: bool = True
    authors: Authors = Authors.ANY
    jobs: tuple[str, ...] | None = None
    may_skip: bool = False
    job_timeout_s: int | None = None
    gate_timeout_s: int | None = None
    allow_events: frozenset[str] = frozenset()
    report_refs: tuple[str, ...] = ()
    """Globs over full refs whose runs may send self-reports, besides the default branch."""
    tests: TestedCommit = TestedCommit.HEAD
    bisect: BisectionMode = BisectionMode.OFF
    visibility: Visibility = Visibility.PUBLIC
    expect: tuple[tuple[str, Conclusion], ...] = ()
    """Globs over job names, with the conclusion that counts as a pass."""
    channels: tuple[str, ...] = ()
    """Names of channels in the relay's settings that get its notices, besides those of the upstream."""

    @property
    def names_jobs(self) -> bool:
        """Whether its `jobs` are literal names: only these prove without GitHub's view that all have reported."""
        return self.jobs is not None and all(name_glob(pattern).is_literal for pattern in self.jobs)

    def expected(self, job_name: str) -> Conclusion | None:
        """Return the conclusion that counts as a pass of this job, where one is expected."""
        return next((outcome for glob, outcome in self.expect if name_glob(glob).matches(job_name)), None)


@dataclass(frozen=True, slots=True)
class Allowlist:
    entries: tuple[AllowlistEntry, ...]
    _by_name: dict[RepoName, AllowlistEntry] = field(init=False, repr=False, compare=False)
    _by_event: dict[str, tuple[AllowlistEntry, ...]] = field(init=False, repr=False, compare=False)
    _by_level: dict[Level, tuple[AllowlistEntry, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_name = {entry.name: entry for entry in self.entries}
        if len(by_name) != len(self.entries):
            raise ValueError("a repository is listed twice")
        by_event = {
            event: tuple(entry for entry in self.entries if event in entry.events) for event in KNOWN_EVENTS
        }
        object.__setattr__(self, "_by_name", by_name)
        object.__setattr__(self, "_by_event", by_event)
        object.__setattr__(self, "_by_level", dict(self.by_level()))

    def find(self, name: RepoName) -> AllowlistEntry | None:
        return self._by_name.get(name)

    @property
    def gating(self) -> tuple[AllowlistEntry, ...]:
        return self._by_level[Level.L4]

    @property
    def has_checks(self) -> bool:
        """Whether any entry has checks on pull requests (L3 or L4)."""
        return bool(self._by_level[Level.L3] or self._by_level[Level.L4])

    def taking(self, event: str) -> tuple[AllowlistEntry, ...]:
        """Return the entries that list this event; computed once, because every webhook needs them."""
        return self._by_event.get(event, ())

    def by_level(self) -> Iterator[tuple[Level, tuple[AllowlistEntry, ...]]]:
        """Iterate over all four levels, L1 first, each with its entries in the file's order."""
        for level in Level:
            yield level, tuple(entry for entry in self.entries if entry.level is level)


@dataclass(frozen=True, slots=True)
class AllowlistProblem:
    line: int
    severity: Literal["error", "warning"]
    message: str
    hint: str | None = None


def decode_text(data: bytes) -> str | AllowlistProblem:
    """Decode a file as UTF-8, or report the line and column of the first invalid byte."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line_start = before.rfind(b"\n") + 1
        column = len(before[line_start:].decode()) + 1
        message = f"not UTF-8 text: byte 0x{data[error.start]:02x} at column {column}"
        hint = _UTF_16 if data[:2] in _UTF_16_MARKS else "save the file as UTF-8"
        return AllowlistProblem(before.count(b"\n") + 1, "error", message, hint)


@dataclass(frozen=True, slots=True)
class CheckedAllowlist:
    """The result of checking a file. With an error there is no allowlist, so that a bad file can never take effect."""

    allowlist: Allowlist | None
    problems: tuple[AllowlistProblem, ...]

    def __post_init__(self) -> None:
        failed = any(problem.severity == "error" for problem in self.problems)
        if failed is not (self.allowlist is None):
            raise ValueError("an allowlist stands exactly when no error does")


@dataclass(frozen=True, slots=True)
class AllowlistReading:
    """The content read from an allowlist's source; `failure` when it could not be read."""

    source: str
    text: str
    etag: str | None = None
    failure: AllowlistProblem | None = None


@dataclass(frozen=True, slots=True)
class AllowlistVersion:
    """A recorded reading that differs from the one before."""

    version: int
    good: bool
    source: str
    text: str
    etag: str | None
    read_at: datetime
    problems: tuple[AllowlistProblem, ...]
