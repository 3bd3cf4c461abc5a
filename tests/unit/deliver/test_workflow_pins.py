"""Relay pins found in a downstream's workflow files, in every place, without trusting the file."""

import time

import pytest

from crcr.decide.github.repository_setup import Pinning, callback_address, read_pins
from crcr.deliver.handlers.workflow_yaml import MOST_PINS, find_pins_elsewhere, workflow_facts
from crcr.join.shipped import bridge
from support.downstream.reporter import reporter

PIN = "https://relay.example.org/github/callback crcr"
RUN = "run: python3 .crcr/report.py"
ACTION = f"uses: acme/relay/action@{'a' * 40}"


def pinning_in(text: str) -> tuple[Pinning | None, tuple[str, ...]]:
    facts = workflow_facts(".github/workflows/crcr.yml", "1", f"on: repository_dispatch\n{text}")
    return facts.pinning, facts.pins


def steps(*each: str, top: str = "", job: str = "") -> str:
    listed = ", ".join(f"{{{step}}}" for step in each)
    return f"{top}\njobs: {{a: {{{job + ', ' if job else ''}steps: [{listed}]}}}}"


@pytest.mark.parametrize(
    "text",
    [
        steps(RUN, top=f"env: {{CRCR_RELAYS: {PIN}}}"),
        steps(RUN, job=f"env: {{CRCR_RELAYS: {PIN}}}"),
        steps(f"{RUN}, env: {{CRCR_RELAYS: {PIN}}}"),
        steps(f"run: 'python3 .crcr/report.py --relays \"{PIN}\" --status completed'"),
        steps(f"{ACTION}, with: {{status: completed, relays: {PIN}}}"),
        steps(f"{ACTION}, with: {{status: completed}}", top=f"env: {{CRCR_RELAYS: {PIN}}}"),
        steps(
            f"{ACTION}, with: {{status: completed, relays: '${{{{ env.CRCR_RELAYS }}}}'}}",
            top=f"env: {{CRCR_RELAYS: {PIN}}}",
        ),
        steps(f"run: python3 .crcr/bridge.py, env: {{CRCR_RELAYS: {PIN}}}"),
        steps(RUN, top="env: {CRCR_RELAYS: 'https://relay.example.org/   crcr '}"),
    ],
)
def test_a_pin_is_found_wherever_it_may_stand(text: str) -> None:
    assert pinning_in(text) == (Pinning.PINNED, (PIN,))


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
def test_a_script_that_pins_in_another_way_is_not_taken_for_pinned_by_what_stands_around_it(
    script: str, pinning: Pinning
) -> None:
    run = f"jobs:\n  a:\n    steps:\n    - run: |\n        python3 .crcr/report.py {script}\n"
    assert pinning_in(f"env: {{CRCR_RELAYS: {PIN}}}\n{run}")[0] is pinning


def test_a_step_that_sets_the_variable_for_those_after_it_is_found() -> None:
    top = f"env: {{CRCR_RELAYS: {PIN}}}"
    sets = 'run: \'echo "CRCR_RELAYS=$OTHER" >> "$GITHUB_ENV"\''
    assert pinning_in(steps(sets, f"{ACTION}, with: {{status: completed}}", top=top))[0] is Pinning.UNKNOWN
    assert pinning_in(steps(sets, "run: make", top=top))[0] is Pinning.NONE


def test_an_input_counts_in_any_case() -> None:
    top = f"env: {{CRCR_RELAYS: {PIN}}}"
    given = "with: {status: completed, Relays: '${{ github.event.client_payload.relays }}'}"
    assert pinning_in(steps(f"{ACTION}, {given}", top=top))[0] is Pinning.EVENT


@pytest.mark.parametrize(
    ("text", "pinning"),
    [
        (steps(RUN), Pinning.MISSING),
        (steps(f"{ACTION}, with: {{status: in_progress}}"), Pinning.MISSING),
        (steps("run: python3 .crcr/bridge.py"), Pinning.MISSING),
        (steps(f"{RUN}, env: {{CRCR_RELAYS: {PIN}}}", RUN), Pinning.MISSING),
        (steps(RUN, top="env: {CRCR_RELAYS: https://relay.example.org}"), Pinning.MISSING),
        (steps("run: python3 report.py, env: {CRCR_STATUS: completed}"), Pinning.MISSING),
        (
            steps(
                RUN, top="env: {CRCR_RELAYS: '${{ github.event.client_payload.relay.callback_url }} crcr'}"
            ),
            Pinning.EVENT,
        ),
        (
            steps(f"{ACTION}, with: {{status: completed, relays: '${{{{ inputs.relays }}}}'}}"),
            Pinning.EVENT,
        ),
        (steps(RUN, top="env: {CRCR_RELAYS: '${{ vars.CRCR_RELAYS }}'}"), Pinning.UNKNOWN),
        (steps("uses: pytorch/test-infra/.github/actions/cross-repo@main"), Pinning.FOREIGN),
        (steps("run: make test", "run: ./coverage_report.py", "uses: actions/checkout@v6"), Pinning.NONE),
        (steps("run: python3 tools/report.py"), Pinning.NONE),
        (
            "jobs: {a: {steps: [1, {run: [x]}, {uses: {}}, {with: x, env: y, run: .crcr/report.py}]}}",
            Pinning.MISSING,
        ),
    ],
)
def test_a_step_that_reports_without_a_pin_is_found(text: str, pinning: Pinning) -> None:
    assert pinning_in(text)[0] is pinning


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
def test_files_of_other_cis_are_looked_at_as_a_whole(text: str, pinning: Pinning) -> None:
    assert find_pins_elsewhere(text)[0] is pinning


def test_a_file_that_repeats_itself_by_aliases_is_too_large_to_be_read() -> None:
    big = "x" * 100_000
    lines = [f"env: {{R: &r '{big} .crcr/report.py', P: &p '{PIN} {big}'}}", "a: &steps"]
    lines += ["  - {run: *r, env: {CRCR_RELAYS: *p}}"] * 2_000
    lines += ["jobs:", *(f"  j{number}: {{steps: *steps}}" for number in range(1_000))]
    began = time.perf_counter()
    pinning, pins = pinning_in("\n".join(lines))
    assert time.perf_counter() - began < 10
    assert (pinning, len(pins)) == (None, 0)
    many = "\n".join(f"      https://r{number}.example.org x" for number in range(1_000))
    assert len(pinning_in(steps(RUN, top=f"env:\n  CRCR_RELAYS: |\n{many}"))[1]) == MOST_PINS


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
def test_addresses_are_compared_as_the_reporter_and_the_bridge_do(address: str) -> None:
    assert callback_address(address) == reporter.callback_address(address) == bridge.callback_address(address)


def test_pins_are_read_as_the_reporter_does() -> None:
    text = f'\n {PIN}\n\thttps://second.example.org/  it\'s "ours" \n{PIN}\n'
    pinned = [f"{pin.url} {pin.audience}" for pin in reporter.parse_relays(text)]
    assert list(read_pins(text)) == pinned
