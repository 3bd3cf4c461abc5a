"""How `crcr init` uses the relay's response: it trusts only what belongs to the given URL, and reports every failure."""

from pathlib import Path
from typing import Any

import pytest

from support.downstream.init_command import (
    LOCAL_RELAY,
    ONBOARDING_FACTS,
    UNREACHABLE_RELAY,
    plain_text,
    run_init_in,
    serve_facts,
    written_files,
)

UPSTREAM_OPTIONS = ("--upstream", "pytorch/pytorch", "--audience", "crcr")


@pytest.mark.parametrize(("more", "code"), [((), 2), (UPSTREAM_OPTIONS, 0)])
def test_an_unreachable_relay_is_reported(repository: Path, more: tuple[str, ...], code: int) -> None:
    exit_code, out = run_init_in(repository, "--relay", UNREACHABLE_RELAY, *more)
    assert exit_code == code
    assert f"{UNREACHABLE_RELAY} cannot be reached (" in out


@pytest.mark.parametrize(("more", "code"), [((), 2), (UPSTREAM_OPTIONS, 0)])
@pytest.mark.parametrize(
    ("status", "words"),
    [(404, "is not a relay (404)"), (401, "requires a login (401)")],
)
def test_a_server_that_is_not_a_relay_is_reported(
    repository: Path, status: int, words: str, more: tuple[str, ...], code: int
) -> None:
    with serve_facts({}, status=status) as url:
        exit_code, out = run_init_in(repository, "--relay", url, *more)
    assert exit_code == code
    assert f"{url} {words}" in out


@pytest.mark.parametrize(("more", "code"), [((), 2), (UPSTREAM_OPTIONS, 0)])
@pytest.mark.parametrize("under", ["", "/relay"])
@pytest.mark.parametrize("page", ["/crcr", "/crcr/onboarding", "/github/callback"])
def test_the_url_of_a_page_is_answered_with_the_relays_base_url(
    repository: Path, page: str, under: str, more: tuple[str, ...], code: int
) -> None:
    with serve_facts(ONBOARDING_FACTS, under=under) as url:
        exit_code, out = run_init_in(repository, "--relay", f"{url}{under}{page}", *more)
    assert exit_code == code
    assert f"is not the relay's address; pass --relay {url}{under}" in out


@pytest.mark.parametrize("others", [(), ("other/upstream",)])
def test_the_next_command_names_the_upstream_when_the_relay_has_several(
    repository: Path, others: tuple[str, ...]
) -> None:
    with serve_facts({**ONBOARDING_FACTS, "upstreams": ["pytorch/pytorch", *others]}) as url:
        _, out = run_init_in(repository, "--relay", url, *UPSTREAM_OPTIONS)
    named = " --upstream pytorch/pytorch" if others else ""
    assert f"check the set-up: crcr doctor --relay {LOCAL_RELAY} --repo org/backend{named}\n" in out


def test_a_reachable_relay_causes_no_warning(repository: Path, relay_url: str) -> None:
    code, out = run_init_in(repository, "--relay", relay_url)
    assert (code, "warning" in out) == (0, False), out


def test_without_the_relay_all_missing_options_are_reported_together(repository: Path) -> None:
    code, out = run_init_in(repository, "--relay", UNREACHABLE_RELAY, "--ci", "buildkite", "--level", "L3")
    assert code == 2
    for flag in ("--upstream", "--audience", "--device", "--place organization=…", "--place pipeline=…"):
        assert f"pass {flag}" in out
    assert "--repo" not in out  # it is read from the git remote
    assert written_files(repository) == {}


def test_one_of_several_upstreams_must_be_named(repository: Path) -> None:
    with serve_facts({**ONBOARDING_FACTS, "upstreams": ["org/one", "org/two"]}) as url:
        code, out = run_init_in(repository, "--relay", url)
    assert (code, "pass --upstream org/one or org/two" in out) == (2, True), out


def test_an_upstream_that_the_relay_does_not_serve_is_refused(repository: Path, relay_url: str) -> None:
    code, out = run_init_in(repository, "--relay", relay_url, "--upstream", "other/upstream")
    assert code == 2
    assert "it serves pytorch/pytorch" in plain_text(out)


@pytest.mark.parametrize(
    "facts",
    [[], "x", b"[" * 60_000, b"\xff", {"upstreams": 7, "audience": ["x"]}, {"upstreams": ["not a name"]}],
)
def test_an_unreadable_response_counts_as_an_unreachable_relay(repository: Path, facts: Any) -> None:
    with serve_facts(facts) as url:
        assert run_init_in(repository, "--relay", url)[0] == 2
        flags = ("--relay", url, "--upstream", "pytorch/pytorch", "--audience", "crcr")
        assert run_init_in(repository, *flags)[0] == 0


@pytest.mark.parametrize(
    "callback_url",
    [
        "https://evil.example/github/callback",
        "https://127.0.0.1.evil.example/github/callback",
        "http://127.0.0.1:1@evil.example/github/callback",
        "https://[/github/callback",
        "\x1b[2Jevil/github/callback",
    ],
)
def test_a_callback_url_on_another_host_is_refused(repository: Path, callback_url: str) -> None:
    with serve_facts({**ONBOARDING_FACTS, "callback_url": callback_url}) as url:
        code, out = run_init_in(repository, "--relay", url)
        text = plain_text(out)
        assert (code, "another host" in text, "--relay" in text) == (2, True, True), text
        assert "\x1b" not in out
    assert written_files(repository) == {}


@pytest.mark.parametrize("url", ["http://relay.example.org", "ftp://relay.example.org", "relay", "http://["])
def test_a_relay_is_contacted_over_https_only(
    repository: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve_facts(
        ONBOARDING_FACTS
    ) as proxy:  # an attacker on the path that answers all unencrypted requests
        monkeypatch.setenv("HTTP_PROXY", proxy)
        code, out = run_init_in(repository, "--relay", url)
        assert (code, "https://host" in plain_text(out)) == (2, True), out
    assert written_files(repository) == {}
