"""Backends, and the causes of failures: each says which jobs it makes fail, on which commits, at which time.

A cause knows the kind of verdict that is true for what it makes: that is where the truth of a history comes from.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol

from bench.answers.symptoms import Symptom

Kind = Literal["new", "pre-existing", "flaky", "infrastructure", "missing", "unknown"]
KINDS: tuple[Kind, ...] = ("new", "pre-existing", "flaky", "infrastructure", "missing", "unknown")


@dataclass(frozen=True, slots=True)
class Job:
    name: str
    lists_tests: bool = True
    """Whether its reports list the failed tests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    name: str
    device: str
    jobs: tuple[Job, ...]
    tests_pushes: bool = True
    is_told_of_pushes: bool = True
    """False where its allowlist entry leaves the base branch out; else it does not listen to pushes."""
    merges: bool = False
    """Whether it tests the head merged into the base branch."""
    reports_nightly: bool = False
    names_jobs: bool = False
    """Whether its allowlist entry lists its jobs."""
    delay_s: tuple[int, int] = (900, 3600)
    push_delay_s: tuple[int, int] | None = None
    """How long runs take, and runs of pushes where that differs."""
    tests_every: int = 1
    """Of the pushes that it is told of, it tests one in so many."""
    paths: tuple[str, ...] | None = None
    """The `paths` of its allowlist entry."""

    def job(self, name: str) -> Job:
        return next(job for job in self.jobs if job.name == name)


@dataclass(frozen=True, slots=True)
class TestedCode:
    """What a run tested."""

    __test__ = False

    sha: str
    base: int
    """The newest commit of the base branch that it contains, counted from 0."""
    pull: str | None = None
    head: int = 0
    """Which head of the pull request, counted from 1."""
    below: tuple[tuple[str, int], ...] = ()
    """Pull requests that it is stacked on, with their heads."""

    def contains(self, pull: str | None) -> bool:
        return pull is not None and (self.pull == pull or any(pull == other for other, _ in self.below))


@dataclass(frozen=True, slots=True)
class Attempt:
    """One execution of a backend's run."""

    backend: Backend
    code: TestedCode
    at: datetime
    number: int = 1


Conclusion = Literal["failure", "timed_out", "cancelled", "silent"]


@dataclass(frozen=True, slots=True)
class Failure:
    """What one cause does to one job: a failed test, or without a symptom the end of the whole job."""

    cause: "Cause"
    symptom: Symptom | None = None
    conclusion: Conclusion = "failure"


class Cause(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> Kind: ...

    def strike(self, attempt: Attempt, job: Job, rng: random.Random) -> list[Failure]: ...


Places = Mapping[str, frozenset[str]]
"""Names of backends, each with the names of its jobs."""


def _hits(where: Places, attempt: Attempt, job: Job) -> bool:
    return job.name in where.get(attempt.backend.name, ())


def _fail(cause: Cause, symptoms: tuple[Symptom, ...]) -> list[Failure]:
    """Each symptom is a failed test; without symptoms the job fails before any test."""
    return [Failure(cause, symptom) for symptom in symptoms] or [Failure(cause)]


@dataclass(slots=True, eq=False)
class Regression:
    """A pull request breaks jobs, from one of its heads to another."""

    name: str
    pull: str
    where: Places
    symptoms: tuple[Symptom, ...]
    first_head: int = 1
    last_head: int | None = None
    landed_at: int | None = None
    """The commit of the base branch that the pull request became."""
    kind: Kind = "new"

    def strike(self, attempt: Attempt, job: Job, rng: random.Random) -> list[Failure]:  # noqa: ARG002
        code = attempt.code
        heads = [head for pull, head in ((code.pull, code.head), *code.below) if pull == self.pull]
        active = any(self._is_active(head) for head in heads)
        return _fail(self, self.symptoms) if active and _hits(self.where, attempt, job) else []

    def _is_active(self, head: int) -> bool:
        return self.first_head <= head and (self.last_head is None or head <= self.last_head)


@dataclass(slots=True, eq=False)
class Breakage:
    """A commit of the base branch breaks jobs until another one fixes them."""

    name: str
    where: Places
    symptoms: tuple[Symptom, ...]
    start: int
    end: int | None = None
    fixed_by: set[str] = field(default_factory=set)
    """Pull requests that contain a fix."""
    landed_from: str | None = None
    kind: Kind = "pre-existing"

    def covers(self, code: TestedCode) -> bool:
        return self.start <= code.base < (code.base + 1 if self.end is None else self.end)

    def strike(self, attempt: Attempt, job: Job, rng: random.Random) -> list[Failure]:  # noqa: ARG002
        if attempt.code.pull in self.fixed_by or not self.covers(attempt.code):
            return []
        return _fail(self, self.symptoms) if _hits(self.where, attempt, job) else []


@dataclass(slots=True, eq=False)
class Flake:
    """A job, or tests of it, fail in some runs, whatever the commit."""

    name: str
    where: Places
    symptoms: tuple[Symptom, ...]
    rate: float
    kind: Kind = "flaky"

    def strike(self, attempt: Attempt, job: Job, rng: random.Random) -> list[Failure]:
        if not _hits(self.where, attempt, job) or rng.random() >= self.rate:
            return []
        return _fail(self, self.symptoms)


@dataclass(slots=True, eq=False)
class SickFleet:
    """For some hours most jobs of one backend fail, whatever the commit."""

    name: str
    backend: str
    start: datetime
    end: datetime
    share: float
    symptoms: tuple[Symptom, ...] = ()
    conclusion: Conclusion = "failure"
    kind: Kind = "infrastructure"

    def strike(self, attempt: Attempt, job: Job, rng: random.Random) -> list[Failure]:  # noqa: ARG002
        if attempt.backend.name != self.backend or not self.start <= attempt.at < self.end:
            return []
        if rng.random() >= self.share:
            return []
        if self.conclusion != "failure":
            return [Failure(self, None, self.conclusion)]
        return _fail(self, self.symptoms)


@dataclass(slots=True, eq=False)
class StuckJob:
    """One job of one pull request hangs: it is cancelled, timed out, or never heard of again."""

    name: str
    pull: str
    where: Places
    conclusion: Conclusion
    kind: Kind = "infrastructure"

    def strike(self, attempt: Attempt, job: Job, rng: random.Random) -> list[Failure]:  # noqa: ARG002
        hit = attempt.code.pull == self.pull and attempt.number == 1 and _hits(self.where, attempt, job)
        return [Failure(self, None, self.conclusion)] if hit else []


Silence = Literal["no run", "queued", "unreported"]
"""The dispatch starts no run; the run waits for ever; the run ends and nothing reports it."""


@dataclass(slots=True, eq=False)
class Outage:
    """A backend does not answer: for some hours to nobody, or only to one pull request."""

    name: str
    backend: str
    manner: Silence
    start: datetime | None = None
    end: datetime | None = None
    pull: str | None = None
    job: str | None = None
    """Only this job does not report."""
    kind: Kind = "missing"

    def silences(self, backend: str, pull: str | None, at: datetime) -> bool:
        if backend != self.backend or (self.pull is not None and pull != self.pull):
            return False
        return (self.start is None or self.start <= at) and (self.end is None or at < self.end)

    def strike(self, attempt: Attempt, job: Job, rng: random.Random) -> list[Failure]:  # noqa: ARG002
        return []
