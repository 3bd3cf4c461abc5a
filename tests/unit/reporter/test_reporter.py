"""How the reporter reads flags, variables, the CI and the dispatch, before it sends anything."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from support.downstream.reporter import ANYWHERE, GITHUB, ScriptedNetwork, reporter, run_reporter

SHA = "0123456789abcdef0123456789abcdef01234567"
PINNED = "https://told.example.org/github/callback told\nhttps://other.example.org other"


def sent_report(*argv: str, env: dict[str, str] = GITHUB) -> dict[str, Any]:
    """Return the body of the one report that is sent."""
    network = ScriptedNetwork()
    code, output = run_reporter("--strict", *argv, env=env, network=network)
    assert code == 0, output
    [body] = network.bodies
    return body


def dispatched_env(tmp_path: Path, **event: Any) -> dict[str, str]:
    """Return GitHub's environment with this event file, and of the CRCR_ variables only the pinned relays."""
    (tmp_path / "event.json").write_text(json.dumps(event))
    bare = {name: value for name, value in GITHUB.items() if not name.startswith("CRCR_")}
    return {**bare, "CRCR_RELAYS": PINNED, "GITHUB_EVENT_PATH": str(tmp_path / "event.json")}


PAYLOAD = {
    "event_type": "push",
    "delivery_id": "from-dispatch",
    "payload": {"ref": "x" * 50_000},
    "relay": {"version": 1, "callback_url": "https://told.example.org/github/callback", "audience": "told"},
}


def test_a_start_report_has_the_required_fields_and_no_result() -> None:
    body = sent_report("--status", "in_progress")
    assert {name: body[name] for name in ("event_type", "delivery_id", "payload")} == {
        "event_type": "pull_request",
        "delivery_id": "d-1",
        "payload": {},
    }
    assert body["workflow"] == {
        "schema_version": "1",
        "status": "in_progress",
        "name": "CI",
        "url": "https://github.com/org/backend/actions/runs/77",
        "run_id": "77",
        "run_attempt": "1",
        "job_name": "build",
        "started_at": "1970-01-12T13:46:40Z",
    }


def test_optional_fields_can_be_set_by_flags() -> None:
    flags = [
        "--artifact-url",
        "https://a.example.org",
        "--environment",
        '{"device": "npu"}',
        "--check-run-id",
        "9",
    ]
    counts, failed = (
        '{"passed": 1, "failed": 1}',
        '["bare", {"name": "n", "classname": "C", "stacktrace": "s"}]',
    )
    own = sent_report("--status", "completed", "--conclusion", "failure", *flags, "--test-results", counts, "--failed-tests", failed)["workflow"]  # fmt: skip
    assert own["artifact_url"] == "https://a.example.org"
    assert own["environment"] == {"device": "npu"}
    assert own["check_run_id"] == "9"
    assert own["test_results"] == {"passed": 1, "failed": 1}
    assert own["failed_tests"] == [{"name": "bare"}, {"name": "C.n", "message": "s"}]
    assert "completed_at" in own
    assert "started_at" not in own


NIGHTLY = ("--status", "completed", "--conclusion", "success", "--event-type", "nightly", "--head-sha", SHA)
NOW = 1_000_000.0
CIS = {
    "GitHub Actions": {},
    "Buildkite": {"BUILDKITE": "true", "BUILDKITE_BUILD_ID": "b-1", "BUILDKITE_LABEL": "build"},
    "GitLab CI": {
        "GITLAB_CI": "true",
        "CI_PIPELINE_ID": "5",
        "CI_JOB_NAME": "b",
        "CI_JOB_STARTED_AT": "1970-01-12T09:00:00Z",
    },
    "CircleCI": {"CIRCLECI": "true", "CIRCLE_WORKFLOW_ID": "w-1", "CIRCLE_JOB": "build"},
    "another": {"CRCR_RUN_ID": "7", "CRCR_JOB_NAME": "build"},
}


@pytest.mark.parametrize("ci", CIS)
def test_a_nightly_reports_its_start_time_on_every_ci(tmp_path: Path, ci: str) -> None:
    pin = {name: GITHUB[name] for name in ("CRCR_RELAYS",)}
    env = {**pin, "CRCR_ID_TOKEN": "a.b.c", **CIS[ci]}
    if ci == "GitHub Actions":
        env = dispatched_env(tmp_path) | pin
        os.utime(tmp_path / "event.json", (NOW - 3600, NOW - 3600))
    own = {"GitHub Actions": "1970-01-12T12:46:40Z", "GitLab CI": "1970-01-12T09:00:00Z"}
    assert sent_report(*NIGHTLY, env=env)["workflow"]["started_at"] == own.get(ci, "1970-01-12T13:46:40Z")
    env_with_start = {**env, "CRCR_STARTED_AT": "1970-01-12T03:00:00+00:00"}
    assert sent_report(*NIGHTLY, env=env_with_start)["workflow"]["started_at"] == "1970-01-12T03:00:00+00:00"


def test_a_dispatched_result_has_a_start_time_only_when_it_is_given(tmp_path: Path) -> None:
    env = dispatched_env(tmp_path, client_payload=PAYLOAD)
    os.utime(tmp_path / "event.json", (NOW - 60, NOW - 60))
    end = ("--status", "completed", "--conclusion", "success")
    assert "started_at" not in sent_report(*end, env=env)["workflow"]
    began = ("--started-at", "1970-01-12T03:00:00Z")
    assert sent_report(*end, *began, env=env)["workflow"]["started_at"] == began[1]


def test_an_invalid_start_time_is_dropped_with_a_warning() -> None:
    network = ScriptedNetwork()
    _, output = run_reporter(*NIGHTLY, "--started-at", "this morning", env=GITHUB, network=network)
    assert "--started-at 'this morning' is not a time such as 1970-01-12T13:46:40Z" in output
    assert network.bodies[0]["workflow"]["started_at"] == "1970-01-12T13:46:40Z"


def test_the_dispatch_selects_the_relay_and_its_payload_is_not_sent_back(tmp_path: Path) -> None:
    network = ScriptedNetwork()
    env = dispatched_env(tmp_path, action="push", client_payload=PAYLOAD)
    code, _ = run_reporter("--strict", "--status", "in_progress", env=env, network=network)
    assert code == 0
    assert network.sent[0].full_url == "https://told.example.org/github/callback"
    assert "audience=told" in network.asked[0].full_url
    assert (network.bodies[0]["delivery_id"], network.bodies[0]["event_type"]) == ("from-dispatch", "push")
    assert len(network.sent[0].data) < 1_000


def test_flags_override_variables_which_override_the_dispatch_and_empty_is_absent(tmp_path: Path) -> None:
    env = dispatched_env(tmp_path, client_payload=PAYLOAD)
    assert (
        sent_report("--status", "in_progress", env={**env, "CRCR_DELIVERY_ID": ""})["delivery_id"]
        == "from-dispatch"
    )
    variable = {**env, "CRCR_DELIVERY_ID": "from-variable"}
    assert sent_report("--status", "in_progress", env=variable)["delivery_id"] == "from-variable"
    assert (
        sent_report("--status", "in_progress", "--delivery-id", "flag", env=variable)["delivery_id"] == "flag"
    )
    assert (
        sent_report("--status", "in_progress", "--delivery-id", "", env=variable)["delivery_id"]
        == "from-variable"
    )


@pytest.mark.parametrize("dash", ["_", "-"])
def test_the_inputs_of_a_second_workflow_are_read(tmp_path: Path, dash: str) -> None:
    inputs = {
        f"delivery{dash}id": "handed-on",
        f"event{dash}type": "pull_request",
        f"callback{dash}url": "https://told.example.org/",
        "audience": "told",
        "device": 3,
    }
    network = ScriptedNetwork()
    assert (
        run_reporter(
            "--strict",
            "--status",
            "in_progress",
            env=dispatched_env(tmp_path, inputs=inputs),
            network=network,
        )[0]
        == 0
    )
    assert network.bodies[0]["delivery_id"] == "handed-on"
    assert network.sent[0].full_url == "https://told.example.org/github/callback"


@pytest.mark.parametrize(
    "event", [{}, {"client_payload": None}, {"inputs": []}, {"client_payload": {"delivery_id": 7}}]
)
def test_a_run_without_a_dispatch_sends_nothing_and_succeeds(tmp_path: Path, event: dict[str, Any]) -> None:
    network = ScriptedNetwork()
    code, output = run_reporter(
        "--strict", "--status", "in_progress", env=dispatched_env(tmp_path, **event), network=network
    )
    assert code == 0
    assert "::notice title=CRCR relay::this run was not started by a dispatch" in output
    assert (network.sent, network.asked) == ([], [])


def test_a_repository_dispatch_without_a_delivery_id_fails(tmp_path: Path) -> None:
    env = {**dispatched_env(tmp_path, client_payload={"x": 1}), "GITHUB_EVENT_NAME": "repository_dispatch"}
    code, output = run_reporter("--strict", "--status", "in_progress", env=env)
    assert code == 1
    assert "has no delivery_id" in output


def test_a_nightly_names_its_commit_and_is_sent_only_when_completed() -> None:
    env = {
        name: value for name, value in GITHUB.items() if name not in ("CRCR_DELIVERY_ID", "CRCR_EVENT_TYPE")
    }
    words = ["--event-type", "nightly", "--upstream", "o/up", "--head-sha", SHA]
    body = sent_report("--status", "completed", "--conclusion", "success", *words, env=env)
    assert body["delivery_id"] == SHA
    assert body["payload"] == {"head_sha": SHA, "repository": {"full_name": "o/up"}}
    network = ScriptedNetwork()
    code, output = run_reporter("--strict", "--status", "in_progress", *words, env=env, network=network)
    assert (code, network.sent) == (0, [])
    assert "sent once" in output


def test_a_nightly_without_a_commit_is_grouped_by_its_run() -> None:
    env = {**GITHUB, "CRCR_DELIVERY_ID": "", "CRCR_EVENT_TYPE": "periodic"}
    body = sent_report("--status", "completed", "--conclusion", "success", env=env)
    assert (body["delivery_id"], body["payload"]) == ("periodic-77", {})


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        (
            {
                "BUILDKITE": "true",
                "BUILDKITE_BUILD_ID": "b",
                "BUILDKITE_RETRY_COUNT": "2",
                "BUILDKITE_PIPELINE_SLUG": "p",
                "BUILDKITE_STEP_KEY": "step",
                "BUILDKITE_PARALLEL_JOB": "0",
                "BUILDKITE_PARALLEL_JOB_COUNT": "3",
                "BUILDKITE_BUILD_URL": "https://b",
                "BUILDKITE_JOB_ID": "j",
                "BUILDKITE_COMMAND_EXIT_STATUS": "1",
            },
            ("b", "3", "p", "step (1/3)", "https://b#j", "1"),
        ),
        (
            {
                "GITLAB_CI": "true",
                "CI_PIPELINE_ID": "9",
                "CI_PROJECT_PATH": "a/b",
                "CI_JOB_NAME": "test 1/2",
                "CI_JOB_URL": "https://g",
                "CI_JOB_STATUS": "running",
            },
            ("9", "", "a/b", "test 1/2", "https://g", ""),
        ),
        (
            {
                "CIRCLECI": "true",
                "CIRCLE_WORKFLOW_ID": "w",
                "CIRCLE_JOB": "build",
                "CIRCLE_NODE_INDEX": "0",
                "CIRCLE_NODE_TOTAL": "1",
            },
            ("w", "", "", "build", "", ""),
        ),
        ({"CI": "true"}, ("", "", "", "", "", "")),
    ],
)
def test_each_ci_is_detected_by_its_variables(env: dict[str, str], expected: tuple[str, ...]) -> None:
    ci = reporter.detect_ci(env)
    assert (ci.run_id, ci.run_attempt, ci.workflow, ci.job, ci.url, ci.conclusion) == expected


HOSTS = {
    "GitHub Actions": {
        "GITHUB_ACTIONS": "true",
        "ACTIONS_ID_TOKEN_REQUEST_URL": "https://t",
        "GITHUB_RUN_ID": "1",
    },
    "Buildkite": {"BUILDKITE": "true", "BUILDKITE_AGENT_ACCESS_TOKEN": "t", "BUILDKITE_BUILD_ID": "1"},
    "GitLab CI": {"GITLAB_CI": "true", "CI_JOB_TOKEN": "t", "CI_PIPELINE_ID": "1"},
    "CircleCI": {"CIRCLECI": "true", "CIRCLE_OIDC_TOKEN_V2": "t", "CIRCLE_WORKFLOW_ID": "1"},
}
FLAGS = {"GITHUB_ACTIONS": "true", "BUILDKITE": "true", "GITLAB_CI": "true", "CIRCLECI": "true"}


@pytest.mark.parametrize("name", HOSTS)
def test_a_ci_with_tokens_or_ids_takes_precedence_over_mere_flags_of_others(name: str) -> None:
    assert reporter.detect_ci({**FLAGS, **HOSTS[name]}).name == name
    run_only = {variable: value for variable, value in HOSTS[name].items() if "TOKEN" not in variable}
    assert reporter.detect_ci({**FLAGS, **run_only}).name == name


def test_a_second_attempt_has_its_own_url() -> None:
    own = sent_report("--status", "in_progress", env={**GITHUB, "GITHUB_RUN_ATTEMPT": "2"})["workflow"]
    assert (own["run_attempt"], own["url"][-14:]) == ("2", "/77/attempts/2")


@pytest.mark.parametrize(
    ("word", "meaning"),
    [
        ("success", "success"),
        ("Failure", "failure"),
        ("passed", "success"),
        ("failed", "failure"),
        ("canceled", "cancelled"),
        ("timed_out", "timed_out"),
        ("skipped", "skipped"),
        ("0", "success"),
        ("1", "failure"),
        ("137", "failure"),
        ("-1", "failure"),
    ],
)
def test_result_words_of_every_ci_become_github_conclusions(word: str, meaning: str) -> None:
    own = sent_report("--status", "completed", f"--conclusion={word}")["workflow"]
    assert own["conclusion"] == meaning


@pytest.mark.parametrize("words", [[], ["--conclusion", "purple"]])
def test_a_missing_or_unknown_conclusion_is_omitted_with_a_warning(words: list[str]) -> None:
    network = ScriptedNetwork()
    code, output = run_reporter("--strict", "--status", "completed", *words, network=network)
    assert (code, "conclusion" in network.bodies[0]["workflow"]) == (0, False)
    assert "counts the job as failed" in output


@pytest.mark.parametrize("value", ["[1]", "{", '"x"', "[" * 100_000])
def test_optional_json_that_is_invalid_is_dropped_and_the_result_is_sent(value: str) -> None:
    network = ScriptedNetwork()
    words = ["--test-results", value, "--environment", value]
    code, output = run_reporter(
        "--strict", "--status", "completed", "--conclusion", "success", *words, network=network
    )
    assert code == 0
    assert "--test-results is not a JSON object" in output
    assert not {"test_results", "environment"} & set(network.bodies[0]["workflow"])


def test_a_too_long_job_name_is_cut_equally_in_start_and_result() -> None:
    names = {sent_report("--status", status, "--job-name", "🦀" * 300)["workflow"]["job_name"] for status in ("in_progress", "completed")}  # fmt: skip
    assert names == {"🦀" * 256}


def test_an_unknown_flag_is_ignored_and_the_report_is_sent() -> None:
    network = ScriptedNetwork()
    code, output = run_reporter("--strict", "--status", "in_progress", "--new-thing", "x", network=network)
    assert (code, len(network.sent)) == (0, 1)
    assert "unknown arguments, ignored: --new-thing x" in output


@pytest.mark.parametrize(
    ("words", "env"),
    [
        (["--status", "started"], GITHUB),
        ([], GITHUB),
        (["--status"], GITHUB),
        (["--status", "in_progress"], {**ANYWHERE, "CRCR_RUN_ID": ""}),
        (["--status", "in_progress"], {**ANYWHERE, "CRCR_JOB_NAME": " "}),
    ],
)
def test_wrong_usage_exits_2_when_strict_and_0_otherwise(words: list[str], env: dict[str, str]) -> None:
    assert run_reporter(*words, env=env)[0] == 0
    assert run_reporter("--strict", *words, env=env)[0] == 2
    assert run_reporter(*words, env={**env, "CRCR_STRICT": "true"})[0] == 2
    assert run_reporter(*words, env={**env, "CRCR_STRICT": "false"})[0] == 0


def test_lone_surrogates_are_sent_as_question_marks() -> None:
    body = sent_report("--status", "in_progress", "--job-name", "bad \udcff byte")
    assert body["workflow"]["job_name"] == "bad ? byte"


def test_a_dry_run_prints_json_without_workflow_commands() -> None:
    hostile = "##[add-mask]x\n::set-output name=a::b"
    code, output = run_reporter("--strict", "--dry-run", "--status", "in_progress", "--job-name", hostile)
    assert code == 0
    assert "##[" not in output
    assert not [line for line in output.splitlines() if line.startswith("::")]
    assert json.loads(output[output.index("\n{") :])["workflow"]["job_name"] == hostile


@pytest.mark.parametrize(
    ("flags", "warned"),
    [
        (("--head-sha", SHA), False),
        (("--delivery-id", SHA.upper()), False),
        (("--head-sha", SHA[:12]), True),
        (("--head-sha", f"{SHA}0"), True),
        (("--delivery-id", "main"), True),
        ((), True),
    ],
)
@pytest.mark.parametrize("event", ["nightly", "periodic"])
def test_a_dry_run_warns_when_a_nightly_names_no_commit(
    event: str, flags: tuple[str, ...], *, warned: bool
) -> None:
    bare = {name: value for name, value in GITHUB.items() if name != "CRCR_DELIVERY_ID"}
    words = ("--dry-run", "--status", "completed", "--conclusion", "success", "--event-type", event, *flags)
    code, output = run_reporter(*words, env=bare)
    assert code == 0
    assert ("is not a commit (40 hex digits)" in output) is warned


def test_a_dry_run_of_a_dispatched_result_needs_no_commit() -> None:
    assert "40 hex" not in run_reporter("--dry-run", "--status", "completed", "--conclusion", "success")[1]
