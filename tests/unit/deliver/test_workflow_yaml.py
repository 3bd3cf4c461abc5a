"""Facts read from a workflow file, valid or not."""

import pytest

from crcr.decide.github.repository_setup import WorkflowFacts
from crcr.deliver.handlers.workflow_yaml import MAX_DEPTH, MAX_NODES, workflow_facts


def read_facts(text: str) -> WorkflowFacts:
    return workflow_facts(".github/workflows/a.yml", "1", text)


JOBS = "jobs:\n  report:\n    steps:\n      - run: make\n"


@pytest.mark.parametrize(
    ("on", "types"),
    [
        ("on: repository_dispatch", ()),
        ("on: [push, repository_dispatch]", ()),
        ("on:\n  repository_dispatch:", ()),
        ("on:\n  repository_dispatch:\n    types: [pull_request, push]", ("pull_request", "push")),
        ("on:\n  repository_dispatch:\n    types: pull_request", ("pull_request",)),
        ('"on":\n  repository_dispatch: {types: [push]}', ("push",)),
        ("on: push", None),
        ("on: [push]", None),
        ("on:\n  push: {branches: [repository_dispatch]}", None),
        ("on: &events\n  repository_dispatch: {types: &types [push]}\nother: *types", ("push",)),
    ],
)
def test_dispatch_types_are_found_in_every_syntax_of_on(on: str, types: tuple[str, ...] | None) -> None:
    facts = read_facts(f"{on}\n{JOBS}")
    assert (facts.problem, facts.dispatch_types) == (None, types)


@pytest.mark.parametrize(
    ("text", "granted"),
    [
        ("permissions: {id-token: write}\njobs: {a: {steps: []}}", True),
        ("permissions: write-all\njobs: {a: {steps: []}}", True),
        ("permissions: {id-token: write}\njobs: {a: {permissions: {contents: read}, steps: []}}", False),
        ("jobs: {a: {permissions: {id-token: write}, steps: []}}", True),
        ("jobs: {a: {permissions: {id-token: read}, steps: []}}", False),
        ("permissions: {}\njobs: {a: {steps: []}, b: {permissions: {id-token: write}}}", True),
        ("jobs: {a: {steps: []}}", False),
        ("permissions: read-all\njobs: {}", False),
    ],
)
def test_permissions_of_a_job_replace_those_of_the_workflow(text: str, granted: bool) -> None:
    assert read_facts(f"on: repository_dispatch\n{text}").id_token is granted


@pytest.mark.parametrize(
    ("job", "reports", "calls"),
    [
        ("{steps: [{run: python3 .crcr/report.py --status completed}]}", True, False),
        ("{steps: [{uses: some/cross-repo-ci-callback@v1}]}", True, False),
        ("{steps: [{uses: up/stream/action@0123, with: {status: crcr}}]}", False, False),
        ("{uses: org/shared/.github/workflows/ci.yml@main}", False, True),
        ("{steps: [{run: make}]}", False, False),
    ],
)
def test_reporting_steps_and_reusable_workflow_calls_are_found(job: str, reports: bool, calls: bool) -> None:
    facts = read_facts(f"on: repository_dispatch\njobs: {{a: {job}}}")
    assert (facts.reports, facts.calls_others) == (reports, calls)


HOSTILE = {
    "not YAML": ("on: [", "it is not YAML"),
    "a bad escape": ('on: "\\UFFFFFFFF"', "it is not YAML"),
    "a tab": ("on:\n\tpush:", "it is not YAML"),
    "empty": ("", "it is no workflow"),
    "a list": ("[a, b]", "it is no workflow"),
    "a word": ("hello", "it is no workflow"),
    "a table of something else": ("name: x", "it is no workflow"),
    "deep": ("[" * 100_000, "too large to be read"),
    "many": ("on: [" + "a," * (MAX_NODES + 1) + "]", "too large to be read"),
}


@pytest.mark.parametrize(("text", "problem"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_file_is_reported_as_a_problem(text: str, problem: str) -> None:
    facts = read_facts(text)
    assert (facts.problem, facts.dispatch_types) == (problem, None)


def test_nested_aliases_are_not_expanded() -> None:
    lines = ["on: repository_dispatch", "a0: &a0 [x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 60)]
    facts = read_facts("\n".join([*lines, "jobs: *a59"]))
    assert (facts.problem, facts.dispatch_types) == ("too large to be read", None)


def test_a_merge_key_is_treated_as_an_ordinary_key() -> None:
    facts = read_facts(
        "base: &base {id-token: write}\non: repository_dispatch\njobs: {a: {permissions: {<<: *base}}}"
    )
    assert facts.id_token is False


def test_nesting_up_to_the_maximum_depth_is_read() -> None:
    text = "on: repository_dispatch\nx: " + "[" * (MAX_DEPTH - 2) + "]" * (MAX_DEPTH - 2)
    assert read_facts(text).problem is None


@pytest.mark.parametrize(
    ("text", "bridge_to"),
    [
        ("jobs: {a: {steps: [{env: {CRCR_BRIDGE_TO: gitlab}, run: x}]}}", "gitlab"),
        ("jobs: {a: {env: {CRCR_BRIDGE_TO: gitlab}, steps: []}}", "gitlab"),
        ("env: {CRCR_BRIDGE_TO: gitlab}\njobs: {}", "gitlab"),
        ("jobs: {a: {steps: [{env: {CRCR_BRIDGE_TO: %s}}]}}" % ("x" * 500), "x" * 40),
        ("jobs: {a: {steps: [{env: {CRCR_BRIDGE_TO: [gitlab]}}, {env: CRCR_BRIDGE_TO}]}}", ""),
        ("jobs: {a: {steps: [{run: echo CRCR_BRIDGE_TO}]}}", ""),
    ],
)
def test_a_bridge_is_recognized_by_its_environment_variable(text: str, bridge_to: str) -> None:
    assert read_facts(f"on: repository_dispatch\n{text}").bridge_to == bridge_to
