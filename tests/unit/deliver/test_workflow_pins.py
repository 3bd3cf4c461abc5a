"""Relay pins in a downstream's workflow files: found in every valid place, without trusting the file."""

import time

import pytest

from crcr.decide.github.repository_setup import Pinning, callback_address, read_pins
from crcr.deliver.handlers.workflow_yaml import MOST_PINS, find_pins_elsewhere, workflow_facts
from crcr.join.shipped import bridge
from support.downstream.reporter import reporter

PIN = "https://relay.example.org/github/callback crcr"
RUN = "run: python3 .crcr/report.py"
ACTION = f"uses: acme/relay/action@{'a' * 40}"


def find_pinning(text: str) -> tuple[Pinning | None, tuple[str, ...]]:
    facts = workflow_facts(".github/workflows/crcr.yml", "1", f"on: repository_dispatch\n{text}")
    return facts.pinning, facts.pins


def make_workflow(*step_texts: str, top: str = "", job: str = "") -> str:
    listed = ", ".join(f"{{{step}}}" for step in step_texts)
    return f"{top}\njobs: {{a: {{{job + ', ' if job else ''}steps: [{listed}]}}}}"


@pytest.mark.parametrize(
    "text",
    [
        make_workflow(RUN, top=f"env: {{CRCR_RELAYS: {PIN}}}"),
        make_workflow(RUN, job=f"env: {{CRCR_RELAYS: {PIN}}}"),
        make_workflow(f"{RUN}, env: {{CRCR_RELAYS: {PIN}}}"),
        make_workflow(f"run: 'python3 .crcr/report.py --relays \"{PIN}\" --status completed'"),
        make_workflow(f"{ACTION}, with: {{status: completed, relays: {PIN}}}"),
        make_workflow(f"{ACTION}, with: {{status: completed}}", top=f"env: {{CRCR_RELAYS: {PIN}}}"),
        make_workflow(
            f"{ACTION}, with: {{status: completed, relays: '${{{{ env.CRCR_RELAYS }}}}'}}",
            top=f"env: {{CRCR_RELAYS: {PIN}}}",
        ),
        make_workflow(f"run: python3 .crcr/bridge.py, env: {{CRCR_RELAYS: {PIN}}}"),
        make_workflow(RUN, top="env: {CRCR_RELAYS: 'https://relay.example.org/   crcr '}"),
    ],
)
def test_a_pin_is_found_in_every_valid_place(text: str) -> None:
    assert find_pinning(text) == (Pinning.PINNED, (PIN,))


@pytest.mark.parametrize(
    ("script", "pinning"),
    [
        (f'--relays "{PIN}" --relays "$OTHER"', Pinning.UNKNOWN),
        ("--relays $OTHER", Pinning.UNKNOWN),
        (f'--relays $OTHER # --relays "{PIN}"', Pinning.UNKNOWN),
        ("; export CRCR_RELAYS=$OTHER", Pinning.UNKNOWN),
        ('; CRCR_RELAYS="${{ github.event.client_payload.relay.callback_url }} a"', Pinning.EVENT),
    ],
)
def test_a_script_that_overrides_the_pin_is_not_counted_as_pinned_by_the_workflow(
    script: str, pinning: Pinning
) -> None:
    run = f"jobs:\n  a:\n    steps:\n    - run: |\n        python3 .crcr/report.py {script}\n"
    assert find_pinning(f"env: {{CRCR_RELAYS: {PIN}}}\n{run}")[0] is pinning


def test_a_step_that_sets_the_variable_through_github_env_is_found() -> None:
    top = f"env: {{CRCR_RELAYS: {PIN}}}"
    sets = 'run: \'echo "CRCR_RELAYS=$OTHER" >> "$GITHUB_ENV"\''
    assert (
        find_pinning(make_workflow(sets, f"{ACTION}, with: {{status: completed}}", top=top))[0]
        is Pinning.UNKNOWN
    )
    assert find_pinning(make_workflow(sets, "run: make", top=top))[0] is Pinning.NONE


def test_input_names_are_case_insensitive() -> None:
    top = f"env: {{CRCR_RELAYS: {PIN}}}"
    inputs = "with: {status: completed, Relays: '${{ github.event.client_payload.relays }}'}"
    assert find_pinning(make_workflow(f"{ACTION}, {inputs}", top=top))[0] is Pinning.EVENT


@pytest.mark.parametrize(
    ("text", "pinning"),
    [
        (make_workflow(RUN), Pinning.MISSING),
        (make_workflow(f"{ACTION}, with: {{status: in_progress}}"), Pinning.MISSING),
        (make_workflow("run: python3 .crcr/bridge.py"), Pinning.MISSING),
        (make_workflow(f"{RUN}, env: {{CRCR_RELAYS: {PIN}}}", RUN), Pinning.MISSING),
        (make_workflow(RUN, top="env: {CRCR_RELAYS: https://relay.example.org}"), Pinning.MISSING),
        (make_workflow("run: python3 report.py, env: {CRCR_STATUS: completed}"), Pinning.MISSING),
        (
            make_workflow(
                RUN, top="env: {CRCR_RELAYS: '${{ github.event.client_payload.relay.callback_url }} crcr'}"
            ),
            Pinning.EVENT,
        ),
        (
            make_workflow(f"{ACTION}, with: {{status: completed, relays: '${{{{ inputs.relays }}}}'}}"),
            Pinning.EVENT,
        ),
        (make_workflow(RUN, top="env: {CRCR_RELAYS: '${{ vars.CRCR_RELAYS }}'}"), Pinning.UNKNOWN),
        (make_workflow("uses: pytorch/test-infra/.github/actions/cross-repo@main"), Pinning.FOREIGN),
        (
            make_workflow("run: make test", "run: ./coverage_report.py", "uses: actions/checkout@v6"),
            Pinning.NONE,
        ),
        (make_workflow("run: python3 tools/report.py"), Pinning.NONE),
        (
            "jobs: {a: {steps: [1, {run: [x]}, {uses: {}}, {with: x, env: y, run: .crcr/report.py}]}}",
            Pinning.MISSING,
        ),
    ],
)
def test_a_step_that_reports_without_a_pin_is_found(text: str, pinning: Pinning) -> None:
    assert find_pinning(text)[0] is pinning


@pytest.mark.parametrize(
    ("text", "pinning"),
    [
        (f"a: {{script: ['python3 .crcr/report.py --relays \"{PIN}\"']}}", Pinning.PINNED),
        (f"a: {{script: [python3 .crcr/report.py], variables: {{CRCR_RELAYS: {PIN}}}}}", Pinning.PINNED),
        ("a: {script: [python3 .crcr/report.py]}", Pinning.MISSING),
        ("a: {script: [make]}", Pinning.NONE),
        ("a: [", Pinning.NONE),
    ],
)
def test_files_of_other_cis_are_searched_as_a_whole(text: str, pinning: Pinning) -> None:
    assert find_pins_elsewhere(text)[0] is pinning


def test_a_file_expanded_by_aliases_is_rejected_quickly_and_pins_are_limited() -> None:
    big = "x" * 100_000
    lines = [f"env: {{R: &r '{big} .crcr/report.py', P: &p '{PIN} {big}'}}", "a: &steps"]
    lines += ["  - {run: *r, env: {CRCR_RELAYS: *p}}"] * 2_000
    lines += ["jobs:", *(f"  j{number}: {{steps: *steps}}" for number in range(1_000))]
    began = time.perf_counter()
    pinning, pins = find_pinning("\n".join(lines))
    assert time.perf_counter() - began < 10
    assert (pinning, len(pins)) == (None, 0)
    many = "\n".join(f"      https://r{number}.example.org x" for number in range(1_000))
    assert len(find_pinning(make_workflow(RUN, top=f"env:\n  CRCR_RELAYS: |\n{many}"))[1]) == MOST_PINS


@pytest.mark.parametrize(
    "address",
    [
        *(
            "https://r.example",
            "https://r.example/",
            "https://r.example//",
            "https://r.example/github/callback/",
        ),
        *("https://r.example/a?b", "http://127.0.0.1:8000", "relay", "", "https://R.example/GitHub/"),
    ],
)
def test_callback_urls_are_normalized_as_in_the_reporter_and_the_bridge(address: str) -> None:
    assert callback_address(address) == reporter.callback_address(address) == bridge.callback_address(address)


def test_pins_are_parsed_as_in_the_reporter() -> None:
    text = f'\n {PIN}\n\thttps://second.example.org/  it\'s "ours" \n{PIN}\n'
    pinned = [f"{pin.url} {pin.audience}" for pin in reporter.parse_relays(text)]
    assert list(read_pins(text)) == pinned
