"""The reporter sends only to a pinned relay that the dispatch selects."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.downstream.reporter import ANYWHERE, GITHUB, ScriptedNetwork, run_reporter

URL, AUDIENCE = "https://relay.example.org/github/callback", "relay.example.org"
SECOND = "https://second.example.org/github/callback second"
START = ("--status", "in_progress")
AT_HOME = {name: value for name, value in GITHUB.items() if name != "CRCR_RELAYS"}


def run(tmp_path: Path, relay: Any, *argv: str, **env: str) -> tuple[int, str, ScriptedNetwork]:
    """A run on GitHub whose dispatch has this `relay`; the pins are in `env`."""
    payload = {"delivery_id": "d-1", "event_type": "push", "relay": relay}
    (tmp_path / "event.json").write_text(json.dumps({"action": "push", "client_payload": payload}))
    started = {"GITHUB_EVENT_PATH": str(tmp_path / "event.json"), "GITHUB_EVENT_NAME": "repository_dispatch"}
    network = ScriptedNetwork()
    code, said = run_reporter(*START, *argv, env={**AT_HOME, **started, **env}, network=network)
    return code, said, network


def went_to(network: ScriptedNetwork) -> list[tuple[str, str]]:
    audiences = [request.full_url.partition("audience=")[2] for request in network.asked]
    return [(request.full_url, audience) for request, audience in zip(network.sent, audiences, strict=True)]


@pytest.mark.parametrize(
    "relay",
    [
        {"callback_url": URL, "audience": AUDIENCE},
        {"callback_url": f"{URL}/", "audience": AUDIENCE},
        {"callback_url": URL},
        {"audience": AUDIENCE},
        {},
        None,
        {"callback_url": ["https://stranger.example.org"], "audience": 7},
    ],
)
def test_a_dispatch_that_names_the_only_pin_or_none_reports_to_it(tmp_path: Path, relay: Any) -> None:
    code, said, network = run(tmp_path, relay, CRCR_RELAYS=f"{URL} {AUDIENCE}")
    assert code == 0, said
    assert went_to(network) == [(URL, AUDIENCE)]


def test_a_dispatch_selects_among_several_pins(tmp_path: Path) -> None:
    relay = {"callback_url": "https://second.example.org/github/callback", "audience": "second"}
    code, _, network = run(tmp_path, relay, CRCR_RELAYS=f"\n  {URL}   {AUDIENCE}\n\t{SECOND}\n")
    assert (code, went_to(network)) == (0, [(relay["callback_url"], "second")])


@pytest.mark.parametrize(
    "relay",
    [
        {"callback_url": "https://stranger.example.org/github/callback", "audience": "sts.amazonaws.com"},
        {"callback_url": "https://stranger.example.org/github/callback", "audience": AUDIENCE},
        {"callback_url": URL, "audience": "sts.amazonaws.com"},
        {"callback_url": URL, "audience": AUDIENCE.upper()},
        {"callback_url": URL, "audience": "second"},
        {"callback_url": "https://stranger.example.org"},
        {"audience": "sts.amazonaws.com"},
        {"callback_url": URL.replace("github", "GitHub"), "audience": AUDIENCE},
        {"callback_url": URL.replace(".org", ".org:443"), "audience": AUDIENCE},
        {"callback_url": f"{URL}//", "audience": AUDIENCE},
        {"callback_url": f"{URL}?x", "audience": AUDIENCE},
        {
            "callback_url": "https://relay.example.org@stranger.example.org/github/callback",
            "audience": AUDIENCE,
        },
    ],
)
def test_a_dispatch_that_names_another_pair_is_refused_before_any_request(
    tmp_path: Path, relay: dict[str, str]
) -> None:
    code, said, network = run(tmp_path, relay, CRCR_RELAYS=f"{URL} {AUDIENCE}\n{SECOND}")
    assert (code, network.asked, network.sent, network.ran) == (1, [], [], [])
    assert "::error title=CRCR relay::the dispatch asks for a report to" in said
    assert f"Pinned in relays (CRCR_RELAYS): {URL} with the audience {AUDIENCE};" in said
    for value in relay.values():
        assert value.removesuffix("/") in said


def test_several_pins_and_a_dispatch_that_names_none_are_refused(tmp_path: Path) -> None:
    code, said, network = run(tmp_path, {}, CRCR_RELAYS=f"{URL} {AUDIENCE}\n{SECOND}")
    assert (code, network.asked, network.sent) == (1, [], [])
    assert "several relays are pinned" in said
    chosen = run(tmp_path, {}, "--callback-url", URL, CRCR_RELAYS=f"{URL} {AUDIENCE}\n{SECOND}")
    assert went_to(chosen[2]) == [(URL, AUDIENCE)]


@pytest.mark.parametrize("name", ["callback-url", "audience"])
def test_what_a_workflow_or_bridge_hands_on_pins_nothing(tmp_path: Path, name: str) -> None:
    """In a two-step set-up these values come from the dispatch as well."""
    handed_on = {"CRCR_CALLBACK_URL": "https://stranger.example.org", "CRCR_AUDIENCE": "sts.amazonaws.com"}
    code, said, network = run(tmp_path, {}, **handed_on)
    assert (code, network.asked, network.sent) == (1, [], [])
    assert "no relay is pinned" in said
    code, said, network = run(tmp_path, {}, f"--{name}", "https://x.example", CRCR_RELAYS=f"{URL} {AUDIENCE}")
    assert (code, network.asked, network.sent) == (1, [], [])


@pytest.mark.parametrize(
    ("env", "lines"),
    [
        (AT_HOME, ["env:", '  CRCR_RELAYS: "https://RELAY/github/callback AUDIENCE"']),
        ({"BUILDKITE": "true"}, ["    env:", '      CRCR_RELAYS: "https://RELAY/github/callback AUDIENCE"']),
        (
            {"GITLAB_CI": "true"},
            [
                "  script:",
                '    - python3 .crcr/report.py --relays "https://RELAY/github/callback AUDIENCE"',
            ],
        ),
        (
            {"CIRCLECI": "true"},
            ["    environment:", '      CRCR_RELAYS: "https://RELAY/github/callback AUDIENCE"'],
        ),
        ({}, ['CRCR_RELAYS="https://RELAY/github/callback AUDIENCE"', "export CRCR_RELAYS"]),
    ],
)
def test_without_pins_it_stops_with_the_two_lines_to_add(env: dict[str, str], lines: list[str]) -> None:
    network = ScriptedNetwork()
    handed_on = {"CRCR_CALLBACK_URL": "https://stranger.example.org", "CRCR_AUDIENCE": "theirs"}
    job = {name: value for name, value in ANYWHERE.items() if name != "CRCR_RELAYS"}
    code, said = run_reporter(*START, env={**job, **handed_on, **env}, network=network)
    assert (code, network.asked, network.sent, network.ran) == (1, [], [], [])
    printed = said.splitlines()
    assert printed[printed.index(lines[0]) :][:2] == lines
    assert "/crcr/onboarding and `crcr init`" in said
    assert "stranger.example.org" not in said


@pytest.mark.parametrize("pins", [URL, f"{URL} {AUDIENCE}\nhttp://relay.example.org crcr", "relay crcr"])
def test_a_line_that_is_no_pair_is_refused_and_not_skipped(tmp_path: Path, pins: str) -> None:
    code, said, network = run(tmp_path, {}, CRCR_RELAYS=pins)
    assert (code, network.asked, network.sent) == (1, [], [])
    assert "pins nothing" in said


def test_a_dry_run_shows_the_pinned_relay_and_refuses_like_a_real_one(tmp_path: Path) -> None:
    code, said, _ = run(tmp_path, {}, "--dry-run", CRCR_RELAYS=f"{URL} {AUDIENCE}")
    assert code == 0
    assert f"would be sent to {URL}\ncrcr: with a token for {AUDIENCE}" in said
    stranger = {"callback_url": "https://stranger.example.org"}
    assert run(tmp_path, stranger, "--dry-run", CRCR_RELAYS=f"{URL} {AUDIENCE}")[0] == 1


def test_hostile_text_of_a_dispatch_stays_on_its_line(tmp_path: Path) -> None:
    relay = {
        "callback_url": "https://x.example/\n::set-env name=A::b",
        "audience": "a\r\n##[add-mask]x\u202e",
    }
    code, said, _ = run(tmp_path, relay, CRCR_RELAYS=f"{URL} {AUDIENCE}")
    assert code == 1
    assert [line for line in said.splitlines() if line.startswith(("::", "##"))] == said.splitlines()[:1]
    assert "::set-env" not in said


def test_a_run_with_nothing_to_report_needs_no_pin(tmp_path: Path) -> None:
    env = {name: value for name, value in AT_HOME.items() if not name.startswith("CRCR_")}
    (tmp_path / "event.json").write_text("{}")
    assert run_reporter(*START, env={**env, "GITHUB_EVENT_PATH": str(tmp_path / "event.json")})[0] == 0


@pytest.mark.parametrize("event", ["nightly", "periodic"])
def test_a_dispatch_cannot_make_itself_a_nightly(tmp_path: Path, event: str) -> None:
    """It would put the result of a commit of its choice into the base's history."""
    payload = {"delivery_id": "f" * 40, "event_type": event, "relay": {"upstream": "org/upstream"}}
    (tmp_path / "event.json").write_text(json.dumps({"action": "push", "client_payload": payload}))
    env = {
        name: value for name, value in GITHUB.items() if name not in ("CRCR_DELIVERY_ID", "CRCR_EVENT_TYPE")
    }
    env |= {"GITHUB_EVENT_PATH": str(tmp_path / "event.json"), "GITHUB_EVENT_NAME": "repository_dispatch"}
    network = ScriptedNetwork()
    end = ("--strict", "--status", "completed", "--conclusion", "success")
    code, said = run_reporter(*end, env=env, network=network)
    assert (code, network.asked, network.sent) == (1, [], [])
    assert f"the dispatch calls itself {event}" in said
    assert run_reporter(*end, "--event-type", event, env=env, network=network)[0] == 0
