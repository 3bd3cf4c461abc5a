"""Similar failures across jobs and backends, grouped so that one cause is read once.

Two jobs fail alike when both have a failed test of the same name, or when the messages of their first failed tests are
equal without numbers, addresses and folders. Only the jobs' own reports are compared.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from crcr.decide.statistics.figures import CountedAs
from crcr.decide.views.overview import JobView

_MOST_LINE = 300
_SHORTEST = 8
_MOST_TESTS = 200
"""How many failed tests of one job are compared."""
_STEPS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"https?://\S+"), "<link>"),
    (re.compile(r"(?:[A-Za-z]:)?(?:[\\/][\w.@+~-]+){2,}[\\/]?"), "<path>"),
    (re.compile(r"\b0x[0-9a-fA-F]+\b"), "<hex>"),
    (re.compile(r"\b(?=[0-9a-f]*[0-9])(?=[0-9]*[a-f])[0-9a-f]{7,64}\b"), "<hex>"),
    (re.compile(r"\d+(?:[.:,]\d+)*(?:e[+-]?\d+)?"), "<n>"),
    (re.compile(r"\s+"), " "),
)


class Alike(StrEnum):
    TEST = "test"
    """The same failed test."""
    MESSAGE = "message"
    """The same first line of the message, in different tests."""


@dataclass(frozen=True, slots=True)
class LikeFailures:
    """Jobs that failed alike; `sample` is the message of the first of them, unescaped."""

    alike: Alike
    what: str
    sample: str | None
    jobs: tuple[JobView, ...]

    @property
    def backends(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(job.downstream for job in self.jobs))


def group_similar_failures(jobs: Iterable[JobView]) -> tuple[LikeFailures, ...]:
    """Return groups of two jobs or more that failed alike, the biggest first; no group contains a job twice.

    A group by message whose jobs are all in one group by test adds nothing and is left out.
    """
    failed = [job for job in jobs if job.counted is CountedAs.FAILURE and job.failed_tests]
    by_test = _group_by(Alike.TEST, failed, _names)
    by_test = _without_repeats(by_test)
    by_message = _without_known(_group_by(Alike.MESSAGE, failed, _first_lines), by_test)
    return tuple(sorted((*by_test, *by_message), key=_by_size))


def normal_line(text: str | None) -> str | None:
    """Return the first non-empty line without the parts that differ between runs; None when too little is left."""
    for line in (text or "")[: 8 * _MOST_LINE].splitlines():
        shown = line.strip()[:_MOST_LINE]
        if shown:
            for pattern, replacement in _STEPS:
                shown = pattern.sub(replacement, shown)
            shown = shown.strip().lower()
            return shown if len(re.sub(r"<\w+>|\W", "", shown)) >= _SHORTEST else None
    return None


def _names(job: JobView) -> dict[str, str | None]:
    """Return the failed tests by name without their parameters, each with its message."""
    names: dict[str, str | None] = {}
    for test in job.failed_tests[:_MOST_TESTS]:
        name = _without_parameters(test.name.strip())[:_MOST_LINE]
        if name:
            names.setdefault(name, test.message)
    return names


def _without_parameters(name: str) -> str:
    """Return `test_add` for `test_add[float32]`; only the last brackets are removed, and only at the end."""
    if not name.endswith("]"):
        return name
    start = name.find("[", name.rfind("]", 0, -1) + 1)
    return name if start < 0 else name[:start]


def _first_lines(job: JobView) -> dict[str, str | None]:
    first = job.failed_tests[0]
    line = normal_line(first.message)
    return {line: first.message} if line else {}


def _group_by(
    alike: Alike, jobs: Sequence[JobView], keys: Callable[[JobView], dict[str, str | None]]
) -> list[LikeFailures]:
    groups: dict[str, list[tuple[JobView, str | None]]] = {}
    for job in jobs:
        for key, message in keys(job).items():
            groups.setdefault(key, []).append((job, message))
    return [
        LikeFailures(
            alike,
            key,
            next((message for _, message in members if message), None),
            tuple(job for job, _ in members),
        )
        for key, members in groups.items()
        if len(members) > 1
    ]


def _without_repeats(groups: list[LikeFailures]) -> list[LikeFailures]:
    """Keep the first of several groups with the same jobs: a broken build fails many tests in the same jobs."""
    kept: dict[tuple[int, ...], LikeFailures] = {}
    for group in groups:
        kept.setdefault(tuple(id(job) for job in group.jobs), group)
    return [*kept.values()]


def _without_known(groups: list[LikeFailures], known: list[LikeFailures]) -> list[LikeFailures]:
    """Return the groups that no known group contains; only known groups with its first job are compared."""
    by_job: dict[int, list[set[int]]] = {}
    for group in known:
        members = {id(job) for job in group.jobs}
        for member in members:
            by_job.setdefault(member, []).append(members)
    return [
        group
        for group in groups
        if not any(
            members.issuperset(id(job) for job in group.jobs) for members in by_job.get(id(group.jobs[0]), ())
        )
    ]


def _by_size(group: LikeFailures) -> tuple[int, str, str]:
    return -len(group.jobs), group.alike.value, group.what
