"""`crcr status` and `crcr effects list`: the effects that GitHub's rate limit holds back and until when, in a terminal.

The effects are held back by a real relay, on a simulated GitHub whose hour is used up; the commands read its database.
"""

import asyncio
import re
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path

from support.data.operator_database import OperatorShell
from support.github.gated_upstream import (
    finish_jobs,
    gate_state,
    gated_upstream,
    newest_run,
    open_pull,
    start_jobs,
)
from support.running_relay import UPSTREAM, environment


def now() -> datetime:
    """The current time, to the minute, as the commands see it."""
    return datetime.now(UTC).replace(second=0, microsecond=0)


def minute(at: datetime) -> str:
    day = "" if at.date() == datetime.now(UTC).date() else f"{at:%b} {at.day}, "
    return f"{day}{at:%H:%M} UTC"


def held_back_text(at: datetime) -> str:
    """GitHub's hour begins with the first call, and the relay waits slightly longer."""
    until = minute(at + timedelta(minutes=61))
    return f"held back by GitHub's rate limit until {until} (requests per hour)"


def relay_with(folder: Path, at: datetime, *, calls_left: int, gate_shown: str = "success") -> OperatorShell:
    """One backend passed with this number of calls left in the upstream's hour; then the relay was stopped."""
    return OperatorShell(folder, asyncio.run(_live(folder, at, calls_left, gate_shown)))


async def _live(folder: Path, at: datetime, calls_left: int, gate_shown: str) -> dict[str, str]:
    async with gated_upstream(folder) as relay:
        relay.clock.advance(at - relay.clock.now())
        pull = await open_pull(relay)
        await start_jobs(relay, newest_run(relay))
        relay.github.spend_hour(UPSTREAM, leave=calls_left)
        await finish_jobs(relay, newest_run(relay))
        assert gate_state(relay, pull) == gate_shown
        return environment(folder, relay.github, folder / "allowlist.yml")


def test_a_healthy_relay_is_green(tmp_path: Path) -> None:
    shell = relay_with(tmp_path, now(), calls_left=5_000)
    lines = shell.ok("status").splitlines()
    assert lines[:3] == [f"{UPSTREAM}: green", "  Nothing delayed, nothing undelivered.", ""]
    assert re.match(r"org/gating +L4 +success +\S+ ago +100\.0% ", lines[4])
    [status] = shell.json("status")
    assert (status["upstream"], status["health"]["state"], status["attention"]) == (UPSTREAM, "green", [])
    assert [each["name"] for each in status["backends"]] == ["org/gating", "org/informing"]


def test_effects_held_back_by_the_rate_limit_are_shown_with_the_end_of_the_wait(tmp_path: Path) -> None:
    at = now()
    shell = relay_with(tmp_path, at, calls_left=200)
    out = shell.ok("status")
    assert f"{UPSTREAM}: amber" in out
    assert f"  Backend checks of 1 commit are {held_back_text(at)}." in out
    assert held_back_text(at) in shell.ok("effects", "list")
    effects = shell.json("effects", "list")
    assert {(each["target"], each["held_by"], each["fault"]) for each in effects} == {
        ("checks/backend", "hour", None)
    }


def test_a_red_state_exits_with_1_for_scripts(tmp_path: Path) -> None:
    at = now()
    shell = relay_with(tmp_path, at, calls_left=0, gate_shown="pending")
    result = shell.crcr("status")
    assert result.exit_code == 1
    assert f"{UPSTREAM}: red" in result.stdout
    late = f"1 gate is decided and not yet published on GitHub, since {minute(at)}: {held_back_text(at)}."
    assert f"  {late}\n" in result.stdout
    assert shell.crcr("status", "--upstream", "no/such").exit_code == 2


def test_the_progress_of_recomputed_fingerprints_is_shown(tmp_path: Path) -> None:
    shell = relay_with(tmp_path, now(), calls_left=5_000)
    assert shell.json("status")[0]["outdated_fingerprints"] == 0
    connection = sqlite3.connect(tmp_path / "crcr.db")
    with connection:
        connection.execute(
            "INSERT INTO failures (delivery, upstream, downstream, workflow, run_id, attempt, job_name, kind, event, at,"
            " ended, rules) VALUES ('d', ?, 'org/gating', 'ci.yml', '1', 1, 'build', 'push', 'push', 1, 'failure', 0)",
            (UPSTREAM.lower(),),
        )
    connection.close()
    assert "The fingerprints of 1 failures are still to be computed by the new rules." in shell.ok("status")
    assert shell.json("status")[0]["outdated_fingerprints"] == 1
