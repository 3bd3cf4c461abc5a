"""The reporter sends only to a pinned relay that the dispatch selects."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.downstream.reporter import ANYWHERE, GITHUB, ScriptedNetwork, run_reporter

URL, AUDIENCE = "https://relay.example.org/github/callback", "relay.example.org"
SECOND = "https://second.example.org/github/callback second"
START = ("--status", "in_progress")
UNPINNED = {name: value for name, value in GITHUB.items() if name != "CRCR_RELAYS"}


def run(tmp_path: Path, relay: Any, *argv: str, **env: str) -> tuple[int, str, ScriptedNetwork]:
    """Run the reporter on GitHub with this `relay` in the dispatch and the pins in `env`."""
    payload = {"delivery_id": "d-1", "event_type": "push", "relay": relay}
    (tmp_path / "event.json").write_text(json.dumps({"action": "push", "client_payload": payload}))
    started = {"GITHUB_EVENT_PATH": str(tmp_path / "event.json"), "GITHUB_EVENT_NAME": "repository_dispatch"}
    network = ScriptedNetwork()
    code, output = run_reporter(*START, *argv, env={**UNPINNED, **started, **env}, network=network)
    return code, output, network


def destinations(network: ScriptedNetwork) -> list[tuple[str, str]]:
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
def test_a_dispatch_that_names_the_only_pin_or_no_relay_reports_to_the_pin(
    tmp_path: Path, relay: Any
) -> None:
    code, output, network = run(tmp_path, relay, CRCR_RELAYS=f"{URL} {AUDIENCE}")
    assert code == 0, output
    assert destinations(network) == [(URL, AUDIENCE)]


def test_a_dispatch_selects_among_several_pins(tmp_path: Path) -> None:
    relay = {"callback_url": "https://second.example.org/github/callback", "audience": "second"}
    code, _, network = run(tmp_path, relay, CRCR_RELAYS=f"\n  {URL}   {AUDIENCE}\n\t{SECOND}\n")
    assert (code, destinations(network)) == (0, [(relay["callback_url"], "second")])


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
    code, output, network = run(tmp_path, relay, CRCR_RELAYS=f"{URL} {AUDIENCE}\n{SECOND}")
    assert (code, network.asked, network.sent, network.ran) == (1, [], [], [])
    assert "::error title=CRCR relay::the dispatch asks for a report to" in output
    assert f"Pinned in relays (CRCR_RELAYS): {URL} with the audience {AUDIENCE};" in output
    for value in relay.values():
        assert value.removesuffix("/") in output


def test_several_pins_and_a_dispatch_that_names_none_are_refused(tmp_path: Path) -> None:
    code, output, network = run(tmp_path, {}, CRCR_RELAYS=f"{URL} {AUDIENCE}\n{SECOND}")
    assert (code, network.asked, network.sent) == (1, [], [])
    assert "several relays are pinned" in output
    chosen = run(tmp_path, {}, "--callback-url", URL, CRCR_RELAYS=f"{URL} {AUDIENCE}\n{SECOND}")
    assert destinations(chosen[2]) == [(URL, AUDIENCE)]


@pytest.mark.parametrize("name", ["callback-url", "audience"])
def test_a_callback_url_or_audience_without_pins_is_refused(tmp_path: Path, name: str) -> None:
    """In a two-step set-up these values come from the dispatch, too."""
    handed_on = {"CRCR_CALLBACK_URL": "https://stranger.example.org", "CRCR_AUDIENCE": "sts.amazonaws.com"}
    code, output, network = run(tmp_path, {}, **handed_on)
    assert (code, network.asked, network.sent) == (1, [], [])
    assert "no relay is pinned" in output
    code, output, network = run(
        tmp_path, {}, f"--{name}", "https://x.example", CRCR_RELAYS=f"{URL} {AUDIENCE}"
    )
    assert (code, network.asked, network.sent) == (1, [], [])


@pytest.mark.parametrize(
    ("env", "lines"),
    [
        (UNPINNED, ["env:", '  CRCR_RELAYS: "https://RELAY/github/callback AUDIENCE"']),
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
def test_without_pins_the_reporter_fails_and_prints_the_two_lines_to_add(
    env: dict[str, str], lines: list[str]
) -> None:
    network = ScriptedNetwork()
    handed_on = {"CRCR_CALLBACK_URL": "https://stranger.example.org", "CRCR_AUDIENCE": "theirs"}
    job = {name: value for name, value in ANYWHERE.items() if name != "CRCR_RELAYS"}
    code, output = run_reporter(*START, env={**job, **handed_on, **env}, network=network)
    assert (code, network.asked, network.sent, network.ran) == (1, [], [], [])
    printed = output.splitlines()
    assert printed[printed.index(lines[0]) :][:2] == lines
    assert "/crcr/onboarding and `crcr init`" in output
    assert "stranger.example.org" not in output


@pytest.mark.parametrize("pins", [URL, f"{URL} {AUDIENCE}\nhttp://relay.example.org crcr", "relay crcr"])
def test_a_malformed_pin_is_refused_and_not_skipped(tmp_path: Path, pins: str) -> None:
    code, output, network = run(tmp_path, {}, CRCR_RELAYS=pins)
    assert (code, network.asked, network.sent) == (1, [], [])
    assert "pins nothing" in output


def test_a_dry_run_shows_the_pinned_relay_and_refuses_others(tmp_path: Path) -> None:
    code, output, _ = run(tmp_path, {}, "--dry-run", CRCR_RELAYS=f"{URL} {AUDIENCE}")
    assert code == 0
    assert f"would be sent to {URL}\ncrcr: with a token for {AUDIENCE}" in output
    stranger = {"callback_url": "https://stranger.example.org"}
    assert run(tmp_path, stranger, "--dry-run", CRCR_RELAYS=f"{URL} {AUDIENCE}")[0] == 1


def test_hostile_text_of_a_dispatch_cannot_start_a_new_line(tmp_path: Path) -> None:
    relay = {
        "callback_url": "https://x.example/\n::set-env name=A::b",
        "audience": "a\r\n##[add-mask]x\u202e",
    }
    code, output, _ = run(tmp_path, relay, CRCR_RELAYS=f"{URL} {AUDIENCE}")
    assert code == 1
    assert [line for line in output.splitlines() if line.startswith(("::", "##"))] == output.splitlines()[:1]
    assert "::set-env" not in output


def test_a_run_without_a_dispatch_needs_no_pin(tmp_path: Path) -> None:
    env = {name: value for name, value in UNPINNED.items() if not name.startswith("CRCR_")}
    (tmp_path / "event.json").write_text("{}")
    assert run_reporter(*START, env={**env, "GITHUB_EVENT_PATH": str(tmp_path / "event.json")})[0] == 0


@pytest.mark.parametrize("event", ["nightly", "periodic"])
def test_a_dispatch_cannot_declare_itself_a_nightly(tmp_path: Path, event: str) -> None:
    """It would put the result of a commit of its choice into the base's history."""
    payload = {"delivery_id": "f" * 40, "event_type": event, "relay": {"upstream": "org/upstream"}}
    (tmp_path / "event.json").write_text(json.dumps({"action": "push", "client_payload": payload}))
    env = {
        name: value for name, value in GITHUB.items() if name not in ("CRCR_DELIVERY_ID", "CRCR_EVENT_TYPE")
    }
    env |= {"GITHUB_EVENT_PATH": str(tmp_path / "event.json"), "GITHUB_EVENT_NAME": "repository_dispatch"}
    network = ScriptedNetwork()
    end = ("--strict", "--status", "completed", "--conclusion", "success")
    code, output = run_reporter(*end, env=env, network=network)
    assert (code, network.asked, network.sent) == (1, [], [])
    assert f"the dispatch calls itself {event}" in output
    assert run_reporter(*end, "--event-type", event, env=env, network=network)[0] == 0
