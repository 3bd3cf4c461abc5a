"""`crcr status` and `crcr effects list`: what is held back and until when, in a terminal."""

import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from support.data.operator_database import World, history
from support.stage import UPSTREAM


@pytest.fixture
def world(tmp_path: Path) -> World:
    return history(tmp_path)


def change(world: World, sql: str, *params: object) -> None:
    with sqlite3.connect(world.folder / "crcr.db") as connection:
        connection.execute(sql, params)
    connection.close()


def us(at: datetime) -> int:
    return int(at.timestamp() * 1_000_000)


def hold(world: World, target: str = "checks/backend", *, until: datetime) -> None:
    """A worker was told by GitHub to wait."""
    now = us(datetime.now(UTC))
    columns = "upstream, kind, target, lane, state, due_at, created_at, first_attempt_at, held_by"
    change(
        world,
        f"INSERT INTO effects ({columns}) VALUES (?, 'publish_checks', ?, ?, 'waiting', ?, ?, ?, 'hour')",  # noqa: S608
        *(UPSTREAM, target, "a" * 40, us(until), now, now),
    )


def quiet(world: World) -> None:
    """Nothing is parked, and a webhook came just now."""
    change(world, "DELETE FROM effects")
    change(world, "UPDATE deliveries SET received_at = ?", us(datetime.now(UTC)))


def test_a_relay_in_order_is_green(world: World) -> None:
    quiet(world)
    assert world.ok("status") == f"{UPSTREAM}: green\n  Nothing is held back, nothing undelivered.\n"
    [found] = world.json("status")
    assert (found["upstream"], found["health"]["state"]) == (UPSTREAM, "green")


def test_what_is_held_back_is_told_with_its_end(world: World) -> None:
    quiet(world)
    until = (datetime.now(UTC) + timedelta(minutes=30)).replace(second=0, microsecond=0)
    hold(world, until=until)
    day = "" if until.date() == datetime.now(UTC).date() else f"{until:%b} {until.day}, "
    held = f"held back by GitHub's rate limit until {day}{until:%H:%M} UTC (requests per hour)"
    out = world.ok("status")
    assert f"{UPSTREAM}: amber" in out
    assert f"  Backend checks of 1 commit are {held}." in out
    assert held in world.ok("effects", "list")
    [effect] = world.json("effects", "list")
    assert (effect["held_by"], effect["fault"]) == ("hour", None)


def test_red_is_a_failure_for_scripts(world: World) -> None:
    quiet(world)
    hold(world, "checks/gate", until=datetime.now(UTC) + timedelta(minutes=30))
    result = world.crcr("status")
    assert result.exit_code == 1
    assert f"{UPSTREAM}: red" in result.stdout
    assert "1 gate is decided and not yet published on GitHub" in result.stdout
    assert world.crcr("status", "--upstream", "no/such").exit_code == 2
