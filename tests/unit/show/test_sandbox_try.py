"""The command that tries a workflow in the sandbox: how a shell runs it, for which repository and which GitHub."""

import json
import shlex
import subprocess
from pathlib import Path

import pytest

from crcr.decide.model import RepoName
from crcr.show.pages.sandbox import try_command
from support.paths import ROOT

UPSTREAM = RepoName("org/upstream")
CALLBACK = "https://relay.example.org/github/callback"


def run_in_shell(command: str, folder: Path) -> tuple[list[str], str]:
    """Return the arguments and the input that `gh` gets."""
    gh = folder / "gh"
    gh.write_text('#!/bin/sh\nprintf "%s\\n" "$@" > words\ncat > input\n')
    gh.chmod(0o755)
    subprocess.run(
        ["/bin/sh", "-eu", "-c", command],
        cwd=folder,
        env={"PATH": f"{folder}:/usr/bin:/bin"},
        check=True,
        timeout=20,
    )
    return (folder / "words").read_text().splitlines(), (folder / "input").read_text()


@pytest.mark.parametrize("audience", ["crcr", "a'b\"$(id)`id`\\\nEND\n"])
def test_a_shell_sends_the_dispatch_as_the_relay_would(tmp_path: Path, audience: str) -> None:
    command = try_command(RepoName("me/my-backend"), CALLBACK, audience, UPSTREAM)
    words, sent = run_in_shell(command, tmp_path)
    assert words == ["api", "repos/me/my-backend/dispatches", "--input", "-"]
    relay = {"callback_url": CALLBACK, "audience": audience, "upstream": "org/upstream"}
    body = json.loads(sent)
    assert body["event_type"] == "crcr_test"
    assert body["client_payload"] == {
        "delivery_id": "sandbox-trial",
        "event_type": "crcr_test",
        "relay": relay,
    }


def test_without_a_repository_the_command_uses_that_of_the_checkout(tmp_path: Path) -> None:
    words, _ = run_in_shell(try_command(None, CALLBACK, "crcr", UPSTREAM), tmp_path)
    assert words[1] == "repos/{owner}/{repo}/dispatches"


def test_another_github_is_passed_as_the_hostname(tmp_path: Path) -> None:
    command = try_command(None, CALLBACK, "crcr", UPSTREAM, github_url="https://ghe.example.org")
    words, _ = run_in_shell(command, tmp_path)
    assert words[2:] == ["--hostname", "ghe.example.org", "--input", "-"]


def test_the_demos_github_gets_the_demo_join_command() -> None:
    command = try_command(None, CALLBACK, "crcr", UPSTREAM, github_url="http://127.0.0.1:8001")
    words = ["crcr", "demo-join", "me/my-backend", "--unlisted", "--github", "http://127.0.0.1:8001"]
    assert shlex.split(command) == words


def test_the_guide_shows_exactly_this_command() -> None:
    guide = (ROOT / "docs" / "downstream.md").read_text()
    assert f"```sh\n{try_command(None, CALLBACK, 'crcr', UPSTREAM)}```" in guide
