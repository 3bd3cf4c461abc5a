"""Backends of generated history: how long each job takes, how often it fails, when it was broken.

A backend has jobs, a queue with its own waiting times, days without any answer, and habits such as cancelling runs that a
newer push made stale. Everything comes from one seeded generator.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US
Spell = tuple[int, int]
"""Start and end, in microseconds since 1970."""
Range = tuple[float, float]
"""Shortest and longest time, in seconds."""

_FAILURES = (
    ("test/test_ops.py", "AssertionError: Tensor-likes are not close! Mismatched elements: 3 / 64 (4.7%)"),
    ("test/test_nn.py", "RuntimeError: expected scalar type Half but found Float"),
    ("test/distributed/test_c10d.py", "ConnectionResetError: peer closed during all_reduce"),
    ("test/test_autograd.py", "RuntimeError: a view was created in no_grad mode and is being modified inplace"),
    ("test/inductor/test_fusion.py", "LoweringException: AttributeError: 'View' object has no attribute 'layout'"),
    ("test/test_sparse.py", "OutOfMemoryError: tried to allocate 2.50 GiB; 1.12 GiB is free"),
    ("test/test_jit.py", "TimeoutError: no output for 1800 s"),
)  # fmt: skip
_SUITES = ("ops", "nn", "autograd", "distributed", "inductor", "sparse", "jit", "dynamo")
_TOOLKITS = ("py3.10", "py3.11", "py3.12", "py3.13")
_SHARDS = 8


@dataclass(frozen=True, slots=True)
class JobCharacter:
    name: str
    typical_s: float
    spread: float
    flaky: float
    """Failure rate that is not caused by the change."""
    broken: tuple[Spell, ...]
    tests: int
    file: str
    message: str
    builds: bool
    """Other jobs need it, and are skipped when it fails."""
    duration_s: Range | None = None
    """Every duration in it is as likely as another; None: around `typical_s`."""
    failing_tests: tuple[tuple[str, str], ...] = ()
    """Names and files of tests of which one or two fail; none: any test of `file`."""
    steady: bool = False
    """It never times out, and never fails on the base branch."""

    def is_broken(self, at: int) -> bool:
        return any(begin <= at < end for begin, end in self.broken)


@dataclass(frozen=True, slots=True)
class BackendCharacter:
    name: str
    level: int
    jobs: tuple[JobCharacter, ...]
    queue_s: float
    queue_spread: float
    away: tuple[Spell, ...]
    """Periods without any answer."""
    cancels: bool
    """Cancels its run when a newer push makes it stale."""
    events: frozenset[str]
    expects: bool
    """A probe repository: its last job is meant to fail."""
    device: str
    workflow: str = ".github/workflows/upstream-ci.yml"
    workflow_name: str = "Upstream CI"
    queue_range_s: Range | None = None
    """Every waiting time in it is as likely as another; None: around `queue_s`, longer in busy hours."""
    nightly: "BackendCharacter | None" = None
    """The same backend with the jobs of its nightly runs, where they differ."""

    @property
    def key(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class JobPace:
    """How one job of a running simulation acts."""

    name: str
    duration_s: Range
    tests: int
    fail_rate: float
    message: str
    failing_tests: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How a backend of a running simulation acts, so that its history has the same times, failures and jobs."""

    queue_s: Range
    jobs: tuple[JobPace, ...]
    nightly: tuple[JobPace, ...]
    nightly_workflow: tuple[str, str]
    """Path and name."""
    steady: bool = False
    """The base branch never failed there."""


@dataclass(frozen=True, slots=True)
class BackendSpec:
    """Input for a generated backend: name, level, and its jobs or their number."""

    name: str
    level: int
    jobs: Sequence[str] | int
    probe: bool = False
    silent: bool = False
    pace: Pace | None = None
    """None: a backend that nothing continues, with times by chance."""


def characters(specs: Sequence[BackendSpec], seed: int, spell: Spell) -> tuple[BackendCharacter, ...]:
    backends = (_backend(entry, random.Random(f"{seed} {entry.name}"), spell) for entry in specs)
    return tuple(
        _at_pace(backend, entry.pace, spell[1]) if entry.pace else backend
        for entry, backend in zip(specs, backends, strict=True)
    )


def _at_pace(backend: BackendCharacter, pace: Pace, until: int) -> BackendCharacter:
    """Return the backend with the times, failures and jobs of the simulation that goes on at `until`.

    It is neither broken nor away on the last day: what fails then is up to the simulation.
    """
    calm = until - DAY_US
    # By their history backends from L3 on deserve their level, unless they fail by the pace itself.
    well = pace.steady or backend.level >= 3
    known = {job.name: job for job in backend.jobs}

    def job_at(job: JobPace) -> JobCharacter:
        like = known.get(job.name, backend.jobs[0])
        return replace(
            like,
            name=job.name,
            flaky=job.fail_rate,
            broken=()
            if well
            else tuple((begin, min(end, calm)) for begin, end in like.broken if begin < calm),
            tests=job.tests,
            message=job.message,
            duration_s=job.duration_s,
            failing_tests=job.failing_tests,
            steady=pace.steady,
        )

    away = backend.away
    if well:
        away = ()
    elif away[:1] and away[0][1] < until:  # not a backend that never answers
        away = tuple((begin, min(end, calm)) for begin, end in away if begin < calm)
    paced = replace(
        backend,
        jobs=tuple(job_at(job) for job in pace.jobs) if backend.jobs else (),
        queue_range_s=pace.queue_s,
        away=away,
    )
    path, name = pace.nightly_workflow
    nightly_jobs = tuple(job_at(job) for job in pace.nightly)
    return replace(
        paced, nightly=replace(paced, jobs=nightly_jobs, workflow=path, workflow_name=name, expects=False)
    )


def job_names(number: int) -> tuple[str, ...]:
    """Return job names as a matrix makes them: builds per toolkit, and numbered test shards."""
    if number <= 1:
        return ("build-and-test",)
    names = ["lint"] if number > 2 else []
    for index in range(number):
        toolkit = _TOOLKITS[index % len(_TOOLKITS)] + ("" if index < len(_TOOLKITS) else "-debug")
        names.append(f"build ({toolkit})")
        for suite in _SUITES[index % 3 :]:
            shards = min(_SHARDS, 1 + (number - 1) // 8)
            names += [f"test-{suite} ({toolkit}, {shard}, {shards})" for shard in range(1, shards + 1)]
        if len(names) >= number:
            break
    return tuple(names[:number])


def _backend(spec: BackendSpec, chance: random.Random, spell: Spell) -> BackendCharacter:
    names = job_names(spec.jobs) if isinstance(spec.jobs, int) else tuple(spec.jobs)
    temper = chance.choice((0.004, 0.01, 0.02, 0.05))
    jobs = tuple(_job(name, temper, chance, spell) for name in names)
    return BackendCharacter(
        name=spec.name,
        level=spec.level,
        jobs=() if spec.level < 2 else jobs,
        queue_s=chance.choice((8.0, 25.0, 90.0, 400.0)),
        queue_spread=chance.uniform(0.4, 1.1),
        away=(spell,) if spec.silent else _spells(chance, spell, every_days=25, hours=(2.0, 30.0)),
        cancels=chance.random() < 0.4,
        events=frozenset({"pull_request", "push", "merge_group"} if chance.random() < 0.8 else {"pull_request"}),
        expects=spec.probe,
        device=spec.name.rpartition("-")[2],
    )  # fmt: skip


def _job(name: str, temper: float, chance: random.Random, spell: Spell) -> JobCharacter:
    file, message = chance.choice(_FAILURES)
    builds = name.startswith("build")
    return JobCharacter(
        name=name,
        typical_s=chance.uniform(300, 2400) if builds else chance.uniform(40, 5400),
        spread=chance.uniform(0.1, 0.5),
        flaky=temper * chance.expovariate(1.0) * (0.2 if builds else 1.0),
        broken=_spells(chance, spell, every_days=60 if builds else 40, hours=(4.0, 120.0)),
        tests=0 if name == "lint" else chance.randrange(20, 4000),
        file=file,
        message=message,
        builds=builds,
    )


def _spells(
    chance: random.Random, spell: Spell, *, every_days: int, hours: tuple[float, float]
) -> tuple[Spell, ...]:
    spells: list[Spell] = []
    at = spell[0]
    while True:
        at += int(chance.expovariate(1 / every_days) * DAY_US)
        if at >= spell[1]:
            return tuple(spells)
        end = at + int(chance.uniform(*hours) * HOUR_US)
        spells.append((at, end))
        at = end
