"""`crcr bisect`: begins, lists, shows and stops bisections, and waits until the commit is found."""

import asyncio
import getpass
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from support.data.operator_database import OperatorShell
from support.github.broken_upstream import (
    BISECTABLE,
    BISECTED,
    bisection_runs,
    broken_upstream,
    pushed_commits,
)
from support.github.gated_upstream import finish_jobs, start_jobs
from support.process import CrcrProcess, crcr
from support.running_relay import RunningRelay, environment
from support.served_relay import serve_relay

BEGIN = ("bisect", BISECTED, "--job", "build")


@asynccontextmanager
async def relay_with_broken_upstream(
    folder: Path, allowlist: str = BISECTABLE
) -> AsyncIterator[RunningRelay]:
    """The relay's clock shows the commands' time."""
    began_at = datetime.now(UTC) - timedelta(hours=3)
    async with broken_upstream(folder, allowlist, began_at=began_at) as relay:
        relay.clock.advance(datetime.now(UTC) - relay.clock.now())
        yield relay


@pytest.fixture
def relay_shell(tmp_path: Path) -> Iterator[OperatorShell]:
    with serve_relay(tmp_path, relay_with_broken_upstream) as (_, relay):
        yield OperatorShell(tmp_path, environment(tmp_path, relay.github, tmp_path / "allowlist.yml"))


def test_a_bisection_is_started_listed_shown_and_stopped(relay_shell: OperatorShell) -> None:
    assert relay_shell.ok("bisect", "--list") == "no bisections\n"
    printed = relay_shell.ok(*BEGIN, "--runs", "5", "--hours", "3")
    commits = [row["sha"] for row in relay_shell.rows("SELECT sha FROM base_commits ORDER BY position")][-5:]
    assert f"bisection 1 of build on {BISECTED} has begun: 4 commits after {commits[0][:12]}" in printed
    assert "follow it with: crcr bisect --show 1" in printed
    [listed] = relay_shell.json("bisect", "--list")
    assert (listed["id"], listed["backend"], listed["most_runs"]) == (1, BISECTED, 5)
    assert BISECTED in relay_shell.ok("bisect", "--list")
    shown = relay_shell.json("bisect", "--show", "1")
    assert [commit["sha"] for commit in shown["commits"]] == commits
    assert f"run 1 {commits[-1][:12]} running" in relay_shell.ok("bisect", "--show", "1")
    assert relay_shell.ok("bisect", "--stop", "1") == "bisection 1 is stopped\n"
    assert "stopped by" in relay_shell.ok("bisect", "--show", "1")
    me = getpass.getuser()
    acts = [(entry["who"], entry["act"]) for entry in relay_shell.json("audit", "list")]
    assert acts == [("crcr", "bisection_ended"), (me, "stop_bisection"), (me, "bisect")]


def test_a_refusal_prints_a_hint(relay_shell: OperatorShell) -> None:
    def refusal(*words: str) -> str:
        result = relay_shell.crcr("bisect", *words)
        assert result.exit_code == 1
        return result.stderr

    assert "give at least 7 digits of its SHA" in refusal(BISECTED, "--job", "build", "--good", "abc")
    assert "a bisection has 3 to 100 runs" in refusal(BISECTED, "--job", "build", "--runs", "2")
    assert "has no recorded result of the job 'nothing'" in refusal(BISECTED, "--job", "nothing")
    assert "org/other is not on the allowlist" in refusal("org/other", "--job", "build")
    assert "there is no bisection 7" in refusal("--stop", "7")
    assert "there is no bisection 7" in refusal("--show", "7")
    relay_shell.ok(*BEGIN)
    assert "wait for it, or stop it first" in relay_shell.crcr(*BEGIN).stderr
    relay_shell.ok("bisect", "--stop", "1")
    assert "has ended: stopped" in relay_shell.crcr("bisect", "--stop", "1").stderr


@pytest.mark.parametrize(
    "words",
    [
        *((), (BISECTED,), ("--job", "build"), ("--list", "--show", "1"), (BISECTED, "--job", "x", "--list")),
        *(("--show", str(2**63)), ("--stop", str(2**63)), ("--show", "0")),
    ],
)
def test_invalid_combinations_of_options_are_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    assert OperatorShell(tmp_path, {}).crcr("bisect", *words).exit_code == 2


async def complete_runs_until_exit(relay: RunningRelay, process: CrcrProcess, culprit: str | None) -> int:
    """Deliver what is queued, and complete each run: commits from the culprit on fail; without a culprit none fails."""
    commits, answered = pushed_commits(relay), 0
    while process.process.returncode is None:
        relay.clock.advance(
            datetime.now(UTC) - relay.clock.now()
        )  # the command writes timestamps of its own clock
        await relay.drain()
        for run in bisection_runs(relay)[answered:]:
            answered += 1
            commit = run.client_payload["payload"]["after"]
            fails = culprit is not None and commits.index(commit) >= commits.index(culprit)
            await start_jobs(relay, run)
            await finish_jobs(relay, run, build="failure" if fails else "success", test="success")
        await asyncio.wait([asyncio.create_task(process.process.wait())], timeout=0.1)
    return process.process.returncode


@pytest.mark.parametrize("as_json", [False, True])
async def test_waiting_ends_with_the_culprit_commit(tmp_path: Path, as_json: bool) -> None:
    async with relay_with_broken_upstream(tmp_path) as relay:
        environ = environment(tmp_path, relay.github, tmp_path / "allowlist.yml")
        words = (*BEGIN, "--wait", *(["--json"] if as_json else []))
        culprit = pushed_commits(relay)[-2]
        async with crcr(*words, folder=tmp_path, environ=environ) as process:
            assert await complete_runs_until_exit(relay, process, culprit) == 0
            printed = await process.output.rest()
    if as_json:
        result: dict[str, Any] = json.loads(printed)
        assert result["bisection"]["culprit"]["sha"] == culprit
        assert [run["result"] for run in result["runs"]] == ["failed", "passed", "passed", "failed"]
    else:
        assert f"run 4 {culprit[:12]} failed" in printed
        assert f"{culprit[:10]} broke it" in printed


async def test_waiting_exits_with_1_when_no_commit_is_found(tmp_path: Path) -> None:
    async with relay_with_broken_upstream(tmp_path) as relay:
        environ = environment(tmp_path, relay.github, tmp_path / "allowlist.yml")
        async with crcr(*BEGIN, "--wait", folder=tmp_path, environ=environ) as process:
            assert await complete_runs_until_exit(relay, process, None) == 1
            assert "passes with today's downstream" in await process.output.rest()
