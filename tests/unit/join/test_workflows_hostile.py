"""Hostile text in the generated workflows, run in a shell: it arrives as data and executes nothing.

`env` is filled in as GitHub does it, each script is run by a real bash, and the programs that it calls are
stand-ins that record their arguments and environment.
"""

import re
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from crcr.decide.model import Level
from crcr.join.files import generate
from crcr.join.request import Ci, JoinRequest
from github_sim.runner.expressions import evaluate_text
from github_sim.runner.workflow_file import JobFile, WorkflowFile, read_workflow
from support.downstream.join_requests import generated_text, join_request

CANARY = "/canary/"
HOSTILE = (
    '"; touch {canary}; "',
    "'; touch {canary}; '",
    "$(touch {canary})",
    "`touch {canary}`",
    "first\ntouch {canary}\n#",
    "| touch {canary}",
    "&& touch {canary} &",
    "> {canary}",
    "${{IFS}}touch${{IFS}}{canary}",
    "${{{{ secrets.LEAK }}}}",
    "::set-env name=BASH_ENV::{canary}",
    "::add-path::{canary}",
    "--upload-pack=touch {canary}",
    "-e",
    "%0Atouch {canary}",
    "\u202e\u2066main\u2069",
    "🙂 a\tb \\ ' \" * ~ !!",
)
COMMAND = './build "$UPSTREAM_SHA" "$UPSTREAM_REPO" "$UPSTREAM_PR"'
STAND_IN = '#!/bin/sh\nprintf "%s\\0" "$@" > "{record}.argv"\nenv -0 > "{record}.env"\n'
GIT = "#!/bin/sh\nprintf '%b' '{answer}'\n"


@dataclass(frozen=True)
class Bench:
    folder: Path

    @property
    def canary(self) -> Path:
        return self.folder / "canary"

    @property
    def record(self) -> Path:
        return self.folder / "record"

    def ready(self, answer: str = "4b825dc642cb6eb9a060e54bf8d69288fbee4904\\tHEAD\\n") -> None:
        tools = self.folder / "tools"
        tools.mkdir()
        for name in ("python3", "curl", "jq"):
            _program(tools / name, STAND_IN.format(record=self.record))
        _program(self.folder / "build", STAND_IN.format(record=self.record))
        _program(tools / "git", GIT.format(answer=answer))

    def run(self, script: str, env: dict[str, str]) -> subprocess.CompletedProcess[bytes]:
        """Run a script as GitHub runs a step without `shell`: from a file, and bash stops at the first error."""
        path = self.folder / "script.sh"
        path.write_text(script, encoding="utf-8")
        own = {
            "PATH": f"{self.folder / 'tools'}:/usr/bin:/bin",
            "GITHUB_OUTPUT": str(self.folder / "output"),
            "GITHUB_SERVER_URL": "https://github.com",
        }
        words = ["/bin/bash", "-e", str(path)]
        return subprocess.run(
            words, cwd=self.folder, env={**own, **env}, capture_output=True, check=False, timeout=30
        )

    def recorded(self) -> dict[str, str]:
        parts = Path(f"{self.record}.env").read_bytes().decode().split("\0")
        return dict(part.split("=", 1) for part in parts if part)

    def arguments(self) -> list[str]:
        return Path(f"{self.record}.argv").read_bytes().decode().split("\0")[:-1]


def _program(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    new_bench = Bench(tmp_path)
    new_bench.ready()
    return new_bench


def contexts(hostile: str) -> dict[str, Any]:
    """Return contexts in which every value that an attacker, or even the relay, controls is hostile."""
    payload = {
        "action": hostile,
        "number": hostile,
        "ref": hostile,
        "after": hostile,
        "pull_request": {
            "title": hostile,
            "body": hostile,
            "head": {"sha": hostile, "ref": hostile, "label": hostile},
            "base": {"sha": hostile, "ref": hostile},
            "labels": [{"name": hostile}],
            "user": {"login": hostile},
        },
    }
    relay = {"upstream": hostile, "callback_url": hostile, "audience": hostile}
    client_payload = {"delivery_id": hostile, "event_type": hostile, "payload": payload, "relay": relay}
    return {
        "github": {"event": {"action": hostile, "client_payload": client_payload}},
        "needs": {
            "started": {"result": hostile},
            "build": {"result": hostile},
            "commit": {"result": hostile, "outputs": {"sha": hostile}},
        },
        "steps": {"head": {"outputs": {"sha": hostile}}},
        "runner": {"temp": "/tmp/runner"},  # noqa: S108  # only a text here
        "secrets": {
            "LEAK": "leaked",
            "BUILDKITE_API_TOKEN": "t",
            "GITLAB_TRIGGER_TOKEN": "t",
            "CIRCLECI_API_TOKEN": "t",
        },
        "env": {},
    }


@cache
def workflows() -> list[WorkflowFile]:
    requests: list[JoinRequest] = [
        join_request(level=Level.L4, nightly=True, junit="out/*.xml", command=COMMAND),
        join_request(command=COMMAND),
        *(join_request(ci, nightly=True, command=COMMAND) for ci in Ci if ci is not Ci.GITHUB),
    ]
    files = [file for request in requests for file in generate(request) if file.path.startswith(".github/")]
    return [read_workflow(file.text, file.path) for file in files]


def steps(workflow: WorkflowFile, filled_with: dict[str, Any]) -> list[tuple[str, dict[str, str]]]:
    """Return each script with the environment that GitHub gives it."""
    return [
        (step.raw["run"], _env(workflow, job, step.raw, filled_with))
        for job in workflow.jobs.values()
        for step in job.steps
        if "run" in step.raw
    ]


def _env(
    workflow: WorkflowFile, job: JobFile, step: dict[str, Any], filled_with: dict[str, Any]
) -> dict[str, str]:
    templates = {**workflow.raw.get("env", {}), **job.raw.get("env", {}), **step.get("env", {})}
    return {name: evaluate_text(value, filled_with) for name, value in templates.items()}


@pytest.mark.parametrize("pattern", HOSTILE, ids=ascii)
def test_hostile_text_arrives_as_data_and_executes_nothing(bench: Bench, pattern: str) -> None:
    hostile = pattern.format(canary=bench.canary)
    hostile_steps = 0
    for workflow in workflows():
        for script, env in steps(workflow, contexts(hostile)):
            done = bench.run(script, env)
            assert done.returncode == 0, done.stderr
            assert not bench.canary.exists()
            if "git ls-remote" in script:
                continue
            recorded = bench.recorded()
            assert {name: recorded[name] for name in env} == env
            assert "leaked" not in recorded.values()
            hostile_steps += hostile in env.values()
            if "./build" in script:
                assert bench.arguments() == [env["UPSTREAM_SHA"], env["UPSTREAM_REPO"], env["UPSTREAM_PR"]]
    assert hostile_steps >= 10


def test_the_bench_detects_an_injected_command(bench: Bench) -> None:
    """A script with an expression in it, which is the known mistake, runs the injected command."""
    hostile = HOSTILE[0].format(canary=bench.canary)
    bench.run(evaluate_text('echo "${{ github.event.client_payload.delivery_id }}"', contexts(hostile)), {})
    assert bench.canary.exists()


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "evil\\tHEAD\\n",
        "$(touch x)\\tHEAD\\n",
        "abc\\nPATH=evil\\tHEAD\\n",
        "12\\tHEAD\\nab\\tHEAD\\n",
        "abc\\trefs/x\\n",
    ],
)
def test_an_upstream_without_a_valid_head_fails_the_nightly(tmp_path: Path, answer: str) -> None:
    bench = Bench(tmp_path)
    bench.ready(answer)
    for workflow in (candidate for candidate in workflows() if "schedule" in candidate.on):
        [(script, env)] = [
            candidate for candidate in steps(workflow, contexts("x")) if "git ls-remote" in candidate[0]
        ]
        assert bench.run(script, env).returncode != 0
        assert not (tmp_path / "output").exists()


@pytest.mark.parametrize(
    ("event_type", "outcome", "conclusion"),
    [
        ("pull_request", "passed", "success"),
        ("pull_request", "hard_failed", "failure"),
        ("nightly", "errored", "failure"),
        ("push", "", "failure"),
        ("crcr_test", "", "skipped"),
    ],
)
def test_buildkites_last_step_reports_the_outcome_of_buildkite(
    bench: Bench, event_type: str, outcome: str, conclusion: str
) -> None:
    _program(bench.folder / "tools" / "buildkite-agent", f"#!/bin/sh\necho '{outcome}'\n")
    text = generated_text(".buildkite/crcr.yml", join_request(Ci.BUILDKITE, junit="out/*.xml"))
    last = yaml.safe_load(text)["steps"][-1]
    env = {**last["env"], "CRCR_EVENT_TYPE": event_type}
    assert bench.run(last["command"].replace("$$", "$"), env).returncode == 0
    assert bench.recorded()["CRCR_CONCLUSION"] == conclusion
    assert bench.arguments() == [".crcr/report.py"]


def test_the_nightly_tests_the_newest_commit(bench: Bench) -> None:
    for workflow in (candidate for candidate in workflows() if "schedule" in candidate.on):
        [(script, env)] = [
            candidate for candidate in steps(workflow, contexts("x")) if "git ls-remote" in candidate[0]
        ]
        (bench.folder / "output").unlink(missing_ok=True)
        assert bench.run(script, env).returncode == 0
        sha, *more = (bench.folder / "output").read_text().splitlines()
        assert sha == "sha=4b825dc642cb6eb9a060e54bf8d69288fbee4904"
        assert all(re.fullmatch(r"started_at=[0-9-]{10}T[0-9:]{8}Z", candidate) for candidate in more)
