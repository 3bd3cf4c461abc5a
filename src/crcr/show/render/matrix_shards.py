"""Columns of a matrix put in order: by workflow, and numbered shards of one job together.

A shard is told by its number: `test (default, 2, 5)`, `shard 3/10`, `part-07`. A bare number counts only where the
numbers of all its fellows run from 0 or 1 without a gap, so that versions (`py 3.10`, `node (18)`) stay jobs.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256

from crcr.decide.statistics.figures import CountedAs
from crcr.decide.views.backend import Column
from crcr.decide.views.overview import JobView

_GAP = "…"
_LONGEST = 300
_WORD = r"(?:shard|part|partition|chunk|split|slice|bucket|batch|group)"
_OF_TOTAL = (
    re.compile(r"(?<![\w.])(?P<number>\d{1,4})(?P<rest>\s*(?:/|of)\s*(?P<total>\d{1,4}))(?![\w.])"),
    re.compile(r"(?<=[(,\s])(?P<number>\d{1,4})(?P<rest>\s*,\s*(?P<total>\d{1,4}))(?=\s*[,)])"),
)
_AFTER_WORD = re.compile(rf"(?<![a-z]){_WORD}[\s_:#-]*(?P<number>\d{{1,4}})(?![\w.])", re.IGNORECASE)
_BARE = (re.compile(r"\(\s*(?P<number>\d{1,4})\s*\)$"), re.compile(r"(?<=[\s_#-])(?P<number>\d{1,4})$"))


@dataclass(frozen=True, slots=True)
class Shard:
    """A job's name apart from its number; `sure` when the name itself says that it is a shard."""

    before: str
    number: int
    after: str
    sure: bool

    @property
    def family(self) -> str:
        return f"{self.before}{_GAP}{self.after}"


@dataclass(frozen=True, slots=True)
class Group:
    """Columns under one header: a single job, or the shards of one; `places` are theirs in the matrix."""

    key: str
    label: str
    places: tuple[int, ...]

    @property
    def is_shards(self) -> bool:
        return len(self.places) > 1


@dataclass(frozen=True, slots=True)
class Section:
    """The groups of one workflow."""

    workflow: str
    name: str
    groups: tuple[Group, ...]


def shard_of(name: str) -> Shard | None:
    """The shard that a job's name tells of, if it does."""
    if len(name) > _LONGEST:
        return None
    for pattern in _OF_TOTAL:
        for match in reversed([*pattern.finditer(name)]):
            if int(match["number"]) <= int(match["total"]):
                return _shard(name, match, sure=True)
    if named := _AFTER_WORD.search(name):
        return _shard(name, named, sure=True)
    bare = next((found for pattern in _BARE if (found := pattern.search(name))), None)
    return _shard(name, bare, sure=False) if bare else None


def _shard(name: str, match: re.Match[str], *, sure: bool) -> Shard:
    start, end = match.span("number")
    return Shard(name[:start], int(match["number"]), name[end:], sure)


def sections(columns: Sequence[Column]) -> tuple[Section, ...]:
    """The columns by workflow, each in the order in which it first appears; every place is in just one group."""
    by_workflow: dict[str, list[int]] = {}
    for place, column in enumerate(columns):
        by_workflow.setdefault(column.workflow, []).append(place)
    return tuple(
        Section(workflow, columns[places[0]].workflow_name, _groups(workflow, columns, places))
        for workflow, places in by_workflow.items()
    )


def _groups(workflow: str, columns: Sequence[Column], places: list[int]) -> tuple[Group, ...]:
    families: dict[str, list[tuple[Shard, int]]] = {}
    for place in places:
        if shard := shard_of(columns[place].job_name):
            families.setdefault(shard.family, []).append((shard, place))
    family_of = {
        place: family
        for family, members in families.items()
        if _belong_together([shard for shard, _ in members])
        for _, place in members
    }
    groups: dict[str, Group] = {}
    for place in places:
        name, family = columns[place].job_name, family_of.get(place)
        key = _key(workflow, family or name, shards=family is not None)
        if key in groups:
            continue
        members = tuple(each for _, each in sorted(families[family], key=_by_number)) if family else (place,)
        groups[key] = Group(key, family or name, members)
    return tuple(groups.values())


def _belong_together(members: list[Shard]) -> bool:
    if len(members) == 1:
        return False
    numbers = sorted(each.number for each in members)
    whole = numbers[0] in {0, 1} and numbers == [*range(numbers[0], numbers[0] + len(numbers))]
    return whole or all(each.sure for each in members)


def _by_number(member: tuple[Shard, int]) -> tuple[int, int]:
    shard, place = member
    return shard.number, place


def _key(workflow: str, name: str, *, shards: bool) -> str:
    return sha256(f"{workflow}\0{name}\0{shards}".encode("utf-8", "replace")).hexdigest()[:10]


WORST_FIRST = (CountedAs.FAILURE, CountedAs.RUNNING, CountedAs.OTHER, CountedAs.SUCCESS)


@dataclass(frozen=True, slots=True)
class Many:
    """Several jobs in one cell: the worst of them, how many are like it, and how many there should be."""

    worst: JobView
    alike: int
    present: int
    total: int

    @property
    def all_passed(self) -> bool:
        """Whether it may be shown as passed: every one is there and none says otherwise."""
        return self.worst.counted is CountedAs.SUCCESS and self.present == self.total

    @property
    def said(self) -> str:
        return f"{self.alike}/{self.total}" if self.alike != self.total else str(self.total)


def many(cells: Iterable[JobView | None], total: int) -> Many | None:
    """What a cell for all of these says; None when none of them has reported."""
    found = [cell for cell in cells if cell is not None]
    if not found:
        return None
    counted = [job.counted for job in found]
    grade = min(counted, key=WORST_FIRST.index)
    worst = next(job for job, each in zip(found, counted, strict=True) if each is grade)
    return Many(worst, counted.count(grade), len(found), total)
