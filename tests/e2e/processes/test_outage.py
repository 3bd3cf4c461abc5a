"""Fault 7, with real processes: the relay is down while GitHub sends hundreds of webhooks, and none of them is lost.

The simulated GitHub runs in this process, the relay beside it. While the relay is down, GitHub's clock advances one second with
each event, as in an outage of minutes.
"""

import asyncio
import json
import re
import signal
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from github_sim.github import GitHub, PullRequest
from github_sim.rest.server import serve
from support.cli_command import run_in_process
from support.process import CrcrProcess, crcr, free_port
from support.running_relay import UPSTREAM, environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

GATING, REPORTING = "vendor/gating", "other/reporting"
ALLOWLIST = f"L2:\n  - {REPORTING}\nL4:\n  - {GATING}: {{oncalls: [bob]}}\n"
PULLS = 40


class Ahead:
    """The system's clock, some seconds ahead."""

    seconds = 0

    def now(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=self.seconds)


class Outage:
    def __init__(self, folder: Path, github: GitHub, clock: Ahead) -> None:
        self.folder = folder
        self.github = github
        self.clock = clock
        self.port = free_port()
        github.webhook_url = f"http://127.0.0.1:{self.port}/github/webhook"
        (folder / "allowlist.yml").write_text(ALLOWLIST)
        self.environ = {
            **environment(folder, github, folder / "allowlist.yml"),
            "CRCR_PUBLIC_URL": f"http://127.0.0.1:{self.port}",
            "CRCR_PORT": str(self.port),
            "CRCR_LOG_FORMAT": "json",
        }

    @asynccontextmanager
    async def relay(self) -> AsyncIterator[tuple[CrcrProcess, list[str]]]:
        """A relay without pages, with its log line by line."""
        async with crcr("serve", "--role", "intake", folder=self.folder, environ=self.environ) as process:
            await process.wait_for_line("crcr is listening on")
            yield process, process.error_output.lines

    async def command(self, *words: str) -> tuple[int, str, str]:
        """Run a command in this process, with the simulated GitHub in the event loop."""
        done = await asyncio.to_thread(run_in_process, *words, folder=self.folder, environ=self.environ)
        return done.code, done.out, done.errors

    async def start(self, *words: str) -> tuple[int, str, str]:
        """Run a command as a process."""
        async with crcr(*words, folder=self.folder, environ=self.environ) as process:
            return await process.finish()

    def rows(self, sql: str) -> list[Any]:
        with closing(sqlite3.connect(self.folder / "crcr.db")) as connection:
            return connection.execute(sql).fetchall()

    def one(self, sql: str) -> int:
        [(value,)] = self.rows(sql)
        return int(value)


@asynccontextmanager
async def run_outage(folder: Path) -> AsyncIterator[Outage]:
    clock = Ahead()
    async with GitHub(seed=7, clock=clock) as github, serve(github):
        for name in (UPSTREAM, GATING, REPORTING):
            github.create_repository(name)
        github.set_permission(UPSTREAM, "maintainer", "maintain")
        yield Outage(folder, github, clock)
        github.finish()


async def wait_for(fact: Callable[[], object]) -> None:
    while not fact():
        await asyncio.sleep(0.05)  # a real process works in real time


async def send_five_hundred_webhooks(outage: Outage, pulls: list[PullRequest]) -> None:
    """Webhooks of all kinds, mixed; `pulls` are already open."""
    github = outage.github

    async def rounds(count: int) -> AsyncIterator[int]:
        for number in range(count):
            outage.clock.seconds += 1
            yield number

    pulls += [await github.open_pr(UPSTREAM) async for _ in rounds(PULLS - len(pulls))]
    async for number in rounds(200):
        await github.push_to_pr(pulls[number % PULLS])
        if number % 2:
            await github.push(UPSTREAM, ref="refs/heads/gh/someone/1/head" if number % 5 == 0 else None)
    async for number in rounds(120):
        await github.label_pr(pulls[number % PULLS], f"label {number}")
    async for number in rounds(10):
        await github.close_pr(pulls[number])
    async for number in rounds(10):
        await github.merge_group(UPSTREAM, pulls[10 + number].number)
    async for number in rounds(24):
        await github.comment_pr(pulls[number], "Looks good" if number % 6 else "/crcr status")


def unanswered(github: GitHub) -> set[str]:
    log = github.deliveries()
    return {each.guid for each in log} - {each.guid for each in log if each.ok}


def check_that_each_was_processed_once(outage: Outage, pulls: list[PullRequest]) -> None:
    missed = unanswered(outage.github)
    recovered = dict(outage.rows("SELECT guid, outcome FROM recovered"))
    # A webhook that was sent during the read of the log may be fetched as well; the relay has it already.
    assert {recovered.pop(guid) for guid in recovered.keys() - missed} <= {"repeat"}
    taken = Counter(guid for (guid,) in outage.rows("SELECT guid FROM deliveries"))
    assert set(taken.values()) == {1}
    # The kill may fall between the storing of a delivery and its record in `recovered`: then the delivery itself shows it.
    interrupted = missed - recovered.keys()
    assert interrupted <= taken.keys()
    assert len(interrupted) <= 1
    noted = {guid for guid, outcome in recovered.items() if outcome != "ignored"}
    assert noted | interrupted == missed & taken.keys()
    for downstream in (GATING, REPORTING):
        dispatches = outage.github.dispatches(downstream)
        sent = Counter(each.delivery_id for each in dispatches)
        # A dispatch in flight at the kill may arrive twice, and is marked as unsure.
        unsure = outage.rows("SELECT delivery, downstream FROM dispatches WHERE unsure = 1")
        assert {(guid, downstream) for guid, times in sent.items() if times > 1} <= set(unsure)
        pulled = {each.delivery_id: each for each in dispatches if each.event_type == "pull_request"}
        heads = Counter(
            each.client_payload["payload"]["pull_request"]["head"]["sha"] for each in pulled.values()
        )
        assert {heads[pull.head_sha] for pull in pulls} == {1}
        assert len(heads) == PULLS + 4  # and those before the outage


def idle(outage: Outage) -> bool:
    """Every dispatch is sent; checks may still wait for GitHub's limit on writes per minute."""
    return not outage.one(
        "SELECT count(*) FROM effects WHERE state IN ('waiting', 'claimed')"
        " AND kind NOT IN ('publish_checks', 'look_up')"
    )


async def test_five_hundred_webhooks_sent_during_an_outage_are_each_processed_once(
    tmp_path: Path,
) -> None:
    async with run_outage(tmp_path) as outage:
        async with outage.relay() as (relay, _):
            pulls = [await outage.github.open_pr(UPSTREAM) for _ in range(4)]
            await wait_for(
                lambda: len(outage.github.dispatches()) == 8 and outage.one("SELECT count(*) FROM watermarks")
            )
            assert await relay.stop(signal.SIGKILL) == -signal.SIGKILL
        await send_five_hundred_webhooks(outage, pulls)
        assert len(unanswered(outage.github)) == 500
        outage.clock.seconds = 0

        async with outage.relay() as (relay, log):  # killed once more, in the middle of its recovery
            await wait_for(
                lambda: (
                    outage.one("SELECT count(*) FROM recovered") > 100
                    and any("recovery_progress" in line for line in log)
                )
            )
            assert await relay.stop(signal.SIGKILL) == -signal.SIGKILL
        async with outage.relay() as (relay, log):
            await wait_for(lambda: any("recovery_done" in line for line in log))
            await wait_for(lambda: idle(outage))
            assert await relay.stop() == 0

        check_that_each_was_processed_once(outage, pulls)
        assert [line for line in log if '"level":"error"' in line] == []


async def test_crcr_reconcile_shows_its_progress_and_its_results(tmp_path: Path) -> None:
    async with run_outage(tmp_path) as outage:
        async with outage.relay() as (relay, _):
            pull = await outage.github.open_pr(UPSTREAM)
            await wait_for(lambda: outage.one("SELECT count(*) FROM watermarks"))
            assert await relay.stop() == 0
        for _ in range(120):
            outage.clock.seconds += 1
            await outage.github.push_to_pr(pull)
        outage.clock.seconds = 0
        code, out, errors = await outage.start("reconcile")

        assert (code, "Traceback" in errors) == (0, False)
        assert "reading the log: 1 page" in errors
        assert "recovering: 120 of 120" in errors
        assert re.search(r"^missed +120 *$", out, re.MULTILINE)
        assert re.search(r"^  recovered +1 *\n  superseded by newer ones +119 *$", out, re.MULTILINE)
        code, out, errors = await outage.command("reconcile", "--json")
        assert (code, errors) == (0, "")
        assert json.loads(out)["recovery"] | {"since": None} == {
            "since": None,
            **dict.fromkeys(("missed", "taken", "superseded", "repeated", "ignored", "unusable", "left"), 0),
            "logged": 121,
            "stopped": None,
        }


async def test_an_unreachable_github_makes_reconcile_fail_with_a_reason(tmp_path: Path) -> None:
    async with run_outage(tmp_path) as outage:
        assert (await outage.command("reconcile"))[0] == 1
        assert (await outage.command("migrate"))[0] == 0
        outage.environ["CRCR_GITHUB_API_URL"] = f"http://127.0.0.1:{free_port()}"
        code, _, errors = await outage.command("reconcile")

        assert (code, "Traceback" in errors) == (1, False)
        assert "stopped early with 0 left: GitHub cannot be reached" in errors
        assert "continues here" in errors
