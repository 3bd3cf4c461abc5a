"""`crcr pr` and `crcr status` in a terminal: the same from the relay's own database and, with --relay, from its public API."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from crcr.cli.failing.relay_api import RelayApi
from crcr.cli.operate.status import _read_summary
from support.cli_command import CommandResult, run_in_process
from support.downstream.relay_answers import answer
from support.running_relay import UPSTREAM, environment
from support.served_relay import HIDDEN_BACKEND, serve_relay

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Terminal:
    folder: Path
    url: str
    environ: dict[str, str]

    def anybody(self, *words: str) -> CommandResult:
        return run_in_process(*words, "--relay", self.url, folder=self.folder, environ={})

    def operator(self, *words: str) -> CommandResult:
        return run_in_process(*words, folder=self.folder, environ=self.environ)


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    folder = tmp_path_factory.mktemp("relay")
    with serve_relay(folder) as (url, relay):
        yield Terminal(folder, url, environment(folder, relay.github, folder / "allowlist.yml"))


def test_a_pull_request_shows_gate_backends_causes_and_hints(terminal: Terminal) -> None:
    done = terminal.anybody("pr", "1")
    assert done.code == 0, done.errors
    first, about, gate, *_ = done.out.splitlines()
    assert first == r"#1 =HYPERLINK(1)\r\n<b>fuse</b>"
    assert about.startswith(f"{UPSTREAM}, open, by contributor, ")
    assert gate.startswith("gate: passed, org/gating waived by @maintainer")
    assert "✗ org/gating / build: failure" in done.out
    assert "  infrastructure: It timed out: there is no result about the change." in done.out
    assert HIDDEN_BACKEND not in done.out
    assert HIDDEN_BACKEND in terminal.operator("pr", "1").out


def test_database_and_public_api_give_the_same_json_except_hidden_backends(terminal: Terminal) -> None:
    own = json.loads(terminal.operator("pr", "2", "--json").out)
    public = json.loads(terminal.anybody("pr", "2", "--json").out)
    assert set(own) == set(public)
    assert own["gate"]["state"] == public["gate"]["state"]
    names = [each["name"] for each in public["backends"]]
    assert [each["name"] for each in own["backends"] if each["name"] != HIDDEN_BACKEND] == names


def test_an_unknown_pull_request_is_an_error_with_a_hint(terminal: Terminal) -> None:
    for done in (terminal.anybody("pr", "99"), terminal.operator("pr", "99")):
        assert (done.code, done.out) == (1, "")
        assert f"no event of {UPSTREAM}#99 has arrived\nhint: " in done.errors


def test_the_status_of_any_relay_needs_no_settings(terminal: Terminal) -> None:
    done = terminal.anybody("status")
    assert (done.code, done.out.splitlines()[0]) == (0, f"{UPSTREAM}: green")
    assert "org/gating     L4     success" in done.out
    assert HIDDEN_BACKEND not in done.out
    [status] = json.loads(terminal.anybody("status", "--json").out)
    assert (status["upstream"], status["health"]["state"]) == (UPSTREAM, "green")
    own = json.loads(terminal.operator("status", "--json").out)
    assert set(own[0]) == set(status)


def test_attention_items_are_listed_by_descending_level() -> None:
    backends = [
        {"name": "o/two", "level": "L2", "silent": True, "figures": None, "parked": 1234},
        {"name": "o/four", "level": "L4", "figures": {"last_result": None}},
        {
            "name": "o/red",
            "level": "L4",
            "figures": {"last_result": {"conclusion": "timed_out", "job_name": "a\x1b"}},
        },
        {"name": "o/off", "level": "L1", "suspended": True},
        {"name": "o/probe", "level": "L2", "probe": True, "silent": True},
        {"name": 7, "level": None, "figures": [], "oncalls": "x"},
    ]
    body = {
        "upstream": "o/up",
        "health": {"paused_at": "2026-01-01T00:00:00Z"},
        "backends": backends,
        "next": None,
    }
    api = RelayApi("http://relay", exchange=lambda _: answer(200, body))
    attention = _read_summary(api, {})["attention"]
    assert attention == [
        "Dispatching is paused (since 2026-01-01); `crcr resume` ends it.",
        "o/four (L4): no result in 14 days, and the gate waits for it.",
        "o/red (L4): timed out in job a\x1b.",
        "o/two (L2): silent: it does not answer its dispatches.",
        "o/two (L2): 1,234 undelivered; `crcr effects list --parked` shows why.",
        "o/off (L1): suspended; no dispatches, and reports are refused.",
    ]
