"""Execution of one job: its contexts, its environment and its steps in order.

A failing step fails the job, and later steps run only if their condition asks for it. Cancelling a job kills the
running step unless the step's condition still holds, and then runs the steps with `always()`.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from github_sim.runner.environment import clean_environment, github_environment
from github_sim.runner.expressions import (
    StatusFunctions,
    condition_holds,
    evaluate,
    evaluate_text,
    to_text,
    truthy,
)
from github_sim.runner.joined_repository import JoinedRepository, dispatch_inputs
from github_sim.runner.steps import (
    Script,
    StepOutcome,
    StepScope,
    mask_secrets,
    read_masks,
    run_action,
    settable_variables,
)
from github_sim.runner.workflow_file import JobFile, WorkflowFile, WorkflowStep
from github_sim.runner.workspace import JobFolders
from github_sim.runner.yaml_text import WorkflowError
from github_sim.world.actions import StepRun, WorkflowJob, WorkflowRun
from github_sim.world.records import Json

if TYPE_CHECKING:
    from github_sim.runner.runner import Runner


class JobExecution:
    def __init__(
        self,
        runner: "Runner",
        joined: JoinedRepository,
        run: WorkflowRun,
        job: WorkflowJob,
        *,
        workflow: WorkflowFile,
        file: JobFile,
        contexts: Json,
        cancelled: asyncio.Event,
    ) -> None:
        self.runner = runner
        self.joined = joined
        self.run = run
        self.job = job
        self.folders: JobFolders = runner.folders.new_job_folders()
        self._workflow = workflow
        self.file = file
        self._contexts = contexts
        self._cancelled = cancelled
        self._more_env: dict[str, str] = {}
        self.masks: set[str] = {value for value in joined.secrets.values() if value}
        self.deadline = asyncio.get_running_loop().time() + 60 * float(
            evaluate(file.raw.get("timeout-minutes", 360), contexts)
        )

    async def execute(self, token_env: Mapping[str, str]) -> str:
        """Run all steps; `token_env` are the variables of a job that may ask for tokens. Returns the conclusion."""
        base = {**self._contexts, "secrets": self.joined.secrets, "runner": self._runner()}
        above, own = (
            _texts(evaluate(file.get("env") or {}, base)) for file in (self._workflow.raw, self.file.raw)
        )
        scope = StepScope(dispatch_inputs(self.run), {**above, **own}, cancelled=self._cancelled)
        self._base = self._base_environment(token_env)
        await self.steps(self.file.steps, scope, self.job.steps)
        outputs = self.file.raw.get("outputs") or {}
        self.job.outputs = _texts(evaluate(outputs, self.contexts(scope)))
        if self._cancelled.is_set():
            return "cancelled"
        return "failure" if scope.failed else "success"

    def _base_environment(self, token_env: Mapping[str, str]) -> dict[str, str]:
        event_path = self.folders.temp / "_github_workflow" / "event.json"
        event_path.parent.mkdir()
        event_path.write_text(json.dumps(self._contexts["github"]["event"], indent=2))
        github = {**self._contexts["github"], **self._own_github()}
        return {
            **clean_environment(self.folders.home, self.runner.folders.tools),
            **github_environment(github, event_path, self.folders.temp),
            **token_env,
        }

    def _own_github(self) -> Json:
        return {"job": self.file.id, "workspace": str(self.folders.workspace)}

    def _runner(self) -> Json:
        temp = str(self.folders.temp)
        return {
            "os": "Linux",
            "arch": "X64",
            "name": "runner-7",
            "environment": "self-hosted",
            "temp": temp,
            "tool_cache": temp,
        }

    def contexts(self, scope: StepScope, step_env: Mapping[str, str] | None = None) -> Json:
        """What an expression of a step sees."""
        token = {"token": self.joined.secrets.get("GITHUB_TOKEN", "")}
        own = {**self._own_github(), **token, "action_path": scope.action_path}
        return {
            **self._contexts,
            "github": {**self._contexts["github"], **own},
            "runner": self._runner(),
            "job": {"status": self._status(scope), "check_run_id": self.job.id},
            "env": {**scope.env, **self._more_env, **(step_env or {})},
            "steps": scope.steps,
            "inputs": scope.inputs,
            **({} if scope.action_path else {"secrets": self.joined.secrets}),
        }

    def _status(self, scope: StepScope) -> str:
        return "cancelled" if self._cancelled.is_set() else "failure" if scope.failed else "success"

    async def steps(
        self, steps: Sequence[WorkflowStep], scope: StepScope, records: list[StepRun] | None = None
    ) -> list[StepOutcome]:
        """Run steps one after the other; `scope.failed` has the result."""
        done = []
        for step in steps:
            record = StepRun(step.number, step.label)
            if records is not None:
                records.append(record)
            outcome = await self._step(step, scope, record)
            done.append(outcome)
        return done

    async def _step(self, step: WorkflowStep, scope: StepScope, record: StepRun) -> StepOutcome:
        record.status, record.started_at = "in_progress", self.runner.sim.clock.now()
        outcome = StepOutcome()
        try:
            if self._holds(step, scope, cancelled=scope.cancelled.is_set()):
                outcome = await self._act(step, scope)
                conclusion = self._conclude(step, scope, outcome)
            else:
                conclusion = "skipped"
        except WorkflowError as problem:
            outcome = StepOutcome(failed=True, log=f"Error: {problem}\n")
            self.runner.report_problem(f"{self.where(step)}: {problem}")
            scope.failed, conclusion = True, "failure"
        self._note(step, scope, outcome, conclusion)
        record.log = mask_secrets(outcome.log, self.masks)
        record.status, record.conclusion = "completed", conclusion
        record.completed_at = self.runner.sim.clock.now()
        return outcome

    def where(self, step: WorkflowStep) -> str:
        return f"{self.joined.repository.full_name} {self.run.workflow.path} {self.job.name}, {step.label}"

    def _holds(self, step: WorkflowStep, scope: StepScope, *, cancelled: bool) -> bool:
        contexts = self.contexts(scope)
        contexts.pop("secrets", None)
        status = StatusFunctions(not scope.failed, scope.failed, cancelled)
        return condition_holds(step.raw.get("if"), contexts, status)

    def _conclude(self, step: WorkflowStep, scope: StepScope, outcome: StepOutcome) -> str:
        if outcome.stop_reason == "cancelled":
            return "cancelled"
        forgiven = truthy(evaluate(step.raw.get("continue-on-error", False), self.contexts(scope)))
        scope.failed = scope.failed or (outcome.failed and not forgiven)
        return "failure" if outcome.failed and not forgiven else "success"

    def _note(self, step: WorkflowStep, scope: StepScope, outcome: StepOutcome, conclusion: str) -> None:
        """What later steps see of it."""
        if step.id:
            ended = "failure" if outcome.failed and conclusion == "success" else conclusion
            scope.steps[step.id] = {"outputs": outcome.outputs, "outcome": ended, "conclusion": conclusion}

    async def _act(self, step: WorkflowStep, scope: StepScope) -> StepOutcome:
        own = _texts(evaluate(step.raw.get("env") or {}, self.contexts(scope)))
        stop = None if self._holds(step, scope, cancelled=True) else scope.cancelled
        if "uses" in step.raw:
            return await run_action(self, step, scope, own)
        return await self._script(step, scope, own, stop)

    async def _script(
        self, step: WorkflowStep, scope: StepScope, own: dict[str, str], stop: asyncio.Event | None
    ) -> StepOutcome:
        contexts = self.contexts(scope, own)
        defaults = {} if scope.action_path else self._defaults()
        if scope.action_path and "shell" not in step.raw:
            raise WorkflowError("a `run` of a composite action needs a `shell`")
        script = Script(
            text=evaluate_text(step.raw["run"], contexts),
            shell=to_text(evaluate(step.raw.get("shell", defaults.get("shell")), contexts)),
            folder=to_text(
                evaluate(step.raw.get("working-directory", defaults.get("working-directory")), contexts)
            ),
            limit_s=self._limit_s(step, contexts),
        )
        env = {**self._base, **_texts(scope.env), **self._more_env, **own, **self._base_again(scope)}
        ended = await script.run(self.folders, self.runner.redirect_urls(env), stop)
        self.masks.update(read_masks(ended.output))
        self._more_env.update(settable_variables(script.set_variables()))
        self._base["PATH"] = ":".join([*script.added_paths(), self._base["PATH"]])
        failed = ended.code != 0 or bool(ended.stop_reason)
        return StepOutcome(failed, ended.stop_reason, ended.output, script.outputs())

    def _base_again(self, scope: StepScope) -> dict[str, str]:
        """What no `env` of the file may replace."""
        base = {
            name: value
            for name, value in self._base.items()
            if name.startswith(("GITHUB_", "RUNNER_", "ACTIONS_"))
        }
        return {**base, **({"GITHUB_ACTION_PATH": scope.action_path} if scope.action_path else {})}

    def _defaults(self) -> Json:
        defaults: Json = {}
        for settings in (self._workflow.raw, self.file.raw):
            defaults.update((settings.get("defaults") or {}).get("run") or {})
        return defaults

    def _limit_s(self, step: WorkflowStep, contexts: Json) -> float:
        left_s: float = self.deadline - asyncio.get_running_loop().time()
        minutes = evaluate(step.raw.get("timeout-minutes"), contexts)
        return min([left_s, self.runner.limit_s, *([60 * float(minutes)] if minutes else [])])


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {str(name): to_text(value) for name, value in values.items()}
