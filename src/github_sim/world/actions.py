"""Records of GitHub Actions: declared workflows, and their runs, jobs and steps.

A job's id is also its check run's id, as on GitHub. `run.jobs` are the jobs of the newest attempt.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True)
class Behaviour:
    """How an automatic workflow acts in the demo; a manual one is stepped by a test and ignores this."""

    queue_s: tuple[float, float] = (1.0, 4.0)
    fail_rate: float = 0.02
    broken_after_runs: int | None = None
    silent: bool = False
    cancel_on_push: bool = False
    failure: str = "AssertionError: Tensor-likes are not close!"


@dataclass(frozen=True)
class JobSpec:
    """A job of a workflow; each item of `matrix` makes one leg, named as GitHub names it."""

    name: str
    matrix: Sequence[str] = ()
    duration_s: tuple[float, float] = (3.0, 9.0)
    tests: int = 120
    fails: bool | None = None
    """How it always ends, whatever the change; None for a job that tests the change."""

    def names(self) -> list[str]:
        return [f"{self.name} ({leg})" for leg in self.matrix] or [self.name]


@dataclass(frozen=True)
class Workflow:
    name: str = "CI"
    path: str = ".github/workflows/ci.yml"
    listens: Sequence[str] = ("repository_dispatch",)
    types: Sequence[str] = ()
    jobs: Sequence[JobSpec] = (JobSpec("build"),)
    automatic: bool = False
    behaviour: Behaviour = Behaviour()
    # As `run-name` in a workflow file; {delivery_id} stands for the dispatch's.
    run_name: str | None = None

    def is_triggered_by(self, event: str, event_type: str) -> bool:
        return event in self.listens and (not self.types or event_type in self.types)

    def plan_jobs(self, _run: "WorkflowRun") -> list[tuple[str, JobSpec]]:
        """The jobs of a run, each with its name."""
        return [(name, spec) for spec in self.jobs for name in spec.names()]

    def title(self, run: "WorkflowRun") -> str:
        return (self.run_name or "").replace("{delivery_id}", run.delivery_id or "")


@dataclass
class WorkflowJob:
    id: int
    name: str
    spec: JobSpec
    attempt: int
    created_at: datetime
    status: str = "queued"
    conclusion: str | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    # Only of jobs that are really run: what their steps did, and what they gave to later jobs.
    steps: list["StepRun"] = field(default_factory=list)
    outputs: dict[str, str] = field(default_factory=dict)


@dataclass
class StepRun:
    number: int
    name: str
    status: str = "queued"
    conclusion: str | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    log: str = ""


@dataclass
class WorkflowRun:
    id: int
    repository_id: int
    workflow: Workflow
    workflow_id: int
    run_number: int
    event: str
    event_type: str
    head_sha: str
    created_at: datetime
    actor: str
    client_payload: dict[str, Any] = field(default_factory=dict)
    attempt: int = 1
    attempts: dict[int, list[WorkflowJob]] = field(default_factory=dict)
    updated_at: datetime | None = None
    ref: str = "refs/heads/main"

    @property
    def ref_name(self) -> str:
        return self.ref.removeprefix("refs/heads/").removeprefix("refs/tags/")

    @property
    def jobs(self) -> list[WorkflowJob]:
        return self.attempts[self.attempt]

    @property
    def delivery_id(self) -> str | None:
        found = self.client_payload.get("delivery_id")
        return found if isinstance(found, str) else None

    @property
    def display_title(self) -> str:
        return self.workflow.title(self).strip() or self.event_type or self.workflow.name

    @property
    def status(self) -> str:
        # Jobs carried over from an earlier attempt say nothing about this one.
        own = [job for job in self.jobs if job.attempt == self.attempt]
        states = {job.status for job in own or self.jobs}
        if states == {"completed"}:
            return "completed"
        return "queued" if states == {"queued"} else "in_progress"

    @property
    def conclusion(self) -> str | None:
        return worst_conclusion(self.jobs) if self.status == "completed" else None

    def job(self, name: str) -> WorkflowJob:
        for job in self.jobs:
            if job.name == name:
                return job
        raise LookupError(f"run {self.id} attempt {self.attempt} has no job {name!r}")


def worst_conclusion(jobs: Sequence[WorkflowJob]) -> str:
    found = {job.conclusion for job in jobs}
    for conclusion in ("failure", "timed_out", "cancelled", "action_required", "success"):
        if conclusion in found:
            return conclusion
    return "neutral" if "neutral" in found else "skipped"
