"""A repository whose workflow files the runner executes: its snapshot, workflows, secrets and variables."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from github_sim.runner.expressions import OPEN, evaluate_text
from github_sim.runner.workflow_file import JobFile, WorkflowFile, read_workflow
from github_sim.runner.workspace import Snapshot
from github_sim.world.actions import JobSpec, Workflow, WorkflowRun
from github_sim.world.records import Json, Repository

WORKFLOWS = ".github/workflows/"


@dataclass
class JoinedRepository:
    repository: Repository
    snapshot: Snapshot
    secrets: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class MatrixJob(JobSpec):
    """A job of a workflow file, with the values of its matrix."""

    file: JobFile | None = None
    values: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class FileWorkflow(Workflow):
    """A workflow that a file describes and the runner executes."""

    file: WorkflowFile | None = None
    github: Callable[[WorkflowRun], Json] = lambda _run: {}

    def is_triggered_by(self, event: str, event_type: str) -> bool:
        return self.file is not None and self.file.is_triggered_by(event, event_type)

    def plan_jobs(self, run: WorkflowRun) -> list[tuple[str, JobSpec]]:
        return [(self._name(run, leg), leg) for leg in self.jobs]

    def title(self, run: WorkflowRun) -> str:
        run_name = self.file.raw.get("run-name") if self.file else None
        return evaluate_text(
            run_name, {"github": self.github(run), "inputs": dispatch_inputs(run), "vars": {}}
        )

    def _name(self, run: WorkflowRun, leg: JobSpec) -> str:
        if OPEN not in leg.name or not isinstance(leg, MatrixJob):
            return leg.name
        contexts = {
            "github": self.github(run),
            "matrix": leg.values,
            "inputs": dispatch_inputs(run),
            "vars": {},
        }
        return evaluate_text(leg.name, contexts)


def dispatch_inputs(run: WorkflowRun) -> Json:
    inputs = run.client_payload.get("inputs") if run.event == "workflow_dispatch" else None
    return inputs if isinstance(inputs, dict) else {}


def read_workflows(snapshot: Snapshot, github: Callable[[WorkflowRun], Json]) -> list[FileWorkflow]:
    """All workflow files of a snapshot, in the order of their names."""
    paths = [path for path in snapshot.paths if _is_workflow(path)]
    return [
        _workflow(read_workflow((snapshot.root / path).read_text(), path), github) for path in sorted(paths)
    ]


def _is_workflow(path: str) -> bool:
    name = path.removeprefix(WORKFLOWS)
    return path.startswith(WORKFLOWS) and "/" not in name and name.endswith((".yml", ".yaml"))


def _workflow(file: WorkflowFile, github: Callable[[WorkflowRun], Json]) -> FileWorkflow:
    combinations = tuple(
        MatrixJob(job.name_of(dict(values)), file=job, values=dict(values))
        for job in file.jobs.values()
        for values in job.combinations
    )
    return FileWorkflow(
        name=file.name, path=file.path, listens=tuple(file.on), jobs=combinations, file=file, github=github
    )
