"""What `crcr init` makes of the relay's answers: it believes what belongs to the address that was named, and says what fails."""

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

GIVEN = ("--upstream", "pytorch/pytorch", "--audience", "crcr")


@pytest.mark.parametrize(("more", "code"), [((), 2), (GIVEN, 0)])
def test_a_relay_that_nobody_is_at_is_told(repository: Path, more: tuple[str, ...], code: int) -> None:
    found, out = run_init_in(repository, "--relay", UNREACHABLE_RELAY, *more)
    assert found == code
    assert f"{UNREACHABLE_RELAY} cannot be reached (" in out


@pytest.mark.parametrize(("more", "code"), [((), 2), (GIVEN, 0)])
@pytest.mark.parametrize(
    ("status", "words"),
    [(404, "is not a relay (404)"), (401, "requires a login (401)")],
)
def test_somebody_else_at_the_address_is_told(
    repository: Path, status: int, words: str, more: tuple[str, ...], code: int
) -> None:
    with serve_facts({}, status=status) as url:
        found, out = run_init_in(repository, "--relay", url, *more)
    assert found == code
    assert f"{url} {words}" in out


@pytest.mark.parametrize(("more", "code"), [((), 2), (GIVEN, 0)])
@pytest.mark.parametrize("under", ["", "/relay"])
@pytest.mark.parametrize("page", ["/crcr", "/crcr/onboarding", "/github/callback"])
def test_for_the_address_of_a_page_the_one_that_was_meant_is_told(
    repository: Path, page: str, under: str, more: tuple[str, ...], code: int
) -> None:
    with serve_facts(ONBOARDING_FACTS, under=under) as url:
        found, out = run_init_in(repository, "--relay", f"{url}{under}{page}", *more)
    assert found == code
    assert f"is not the relay's address; pass --relay {url}{under}" in out


@pytest.mark.parametrize("others", [(), ("other/upstream",)])
def test_the_next_command_names_the_upstream_where_the_relay_has_several(
    repository: Path, others: tuple[str, ...]
) -> None:
    with serve_facts({**ONBOARDING_FACTS, "upstreams": ["pytorch/pytorch", *others]}) as url:
        _, out = run_init_in(repository, "--relay", url, *GIVEN)
    named = " --upstream pytorch/pytorch" if others else ""
    assert f"check the set-up: crcr doctor --relay {LOCAL_RELAY} --repo org/backend{named}\n" in out


def test_a_relay_that_answers_is_not_warned_of(repository: Path, relay_url: str) -> None:
    code, out = run_init_in(repository, "--relay", relay_url)
    assert (code, "warning" in out) == (0, False), out


def test_what_is_missing_without_the_relays_word_is_told_at_once(repository: Path) -> None:
    code, out = run_init_in(repository, "--relay", UNREACHABLE_RELAY, "--ci", "buildkite", "--level", "L3")
    assert code == 2
    for flag in ("--upstream", "--audience", "--device", "--place organization=…", "--place pipeline=…"):
        assert f"pass {flag}" in out
    assert "--repo" not in out  # the remote tells it
    assert written_files(repository) == {}


def test_of_several_upstreams_one_must_be_named(repository: Path) -> None:
    with serve_facts({**ONBOARDING_FACTS, "upstreams": ["org/one", "org/two"]}) as url:
        code, out = run_init_in(repository, "--relay", url)
    assert (code, "pass --upstream org/one or org/two" in out) == (2, True), out


def test_an_upstream_that_the_relay_does_not_serve_is_refused(repository: Path, relay_url: str) -> None:
    code, out = run_init_in(repository, "--relay", relay_url, "--upstream", "other/upstream")
    assert code == 2
    assert "it serves pytorch/pytorch" in plain_text(out)


@pytest.mark.parametrize(
    "told",
    [[], "x", b"[" * 60_000, b"\xff", {"upstreams": 7, "audience": ["x"]}, {"upstreams": ["not a name"]}],
)
def test_a_relay_that_answers_nonsense_is_as_one_that_does_not_answer(repository: Path, told: Any) -> None:
    with serve_facts(told) as url:
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
def test_reports_go_to_no_host_that_was_not_named(repository: Path, callback_url: str) -> None:
    with serve_facts({**ONBOARDING_FACTS, "callback_url": callback_url}) as url:
        code, out = run_init_in(repository, "--relay", url)
        told = plain_text(out)
        assert (code, "another host" in told, "--relay" in told) == (2, True, True), told
        assert "\x1b" not in out
    assert written_files(repository) == {}


@pytest.mark.parametrize("url", ["http://relay.example.org", "ftp://relay.example.org", "relay", "http://["])
def test_a_relay_is_asked_over_https_or_not_at_all(
    repository: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve_facts(
        ONBOARDING_FACTS
    ) as proxy:  # who stands in the way answers all that goes out unencrypted
        monkeypatch.setenv("HTTP_PROXY", proxy)
        code, out = run_init_in(repository, "--relay", url)
        assert (code, "https://host" in plain_text(out)) == (2, True), out
    assert written_files(repository) == {}
