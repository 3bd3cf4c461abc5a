"""`crcr deliveries` and `crcr effects`: the history of one relay, seen and replayed from a terminal."""

from pathlib import Path

import pytest

from support.data.operator_database import OperatorDatabase, database_with_history


@pytest.fixture
def world(tmp_path: Path) -> OperatorDatabase:
    return database_with_history(tmp_path)


def test_deliveries_are_listed_with_what_became_of_them(world: OperatorDatabase) -> None:
    out = world.ok("deliveries", "list")
    assert world.delivery in out
    assert "pull_request opened" in out
    assert "1 parked, 2 sent" in out
    [line] = world.json("deliveries", "list")
    assert (line["guid"], line["dispatches"]) == (world.delivery, {"parked": 1, "sent": 2})


def test_deliveries_are_found_by_state(world: OperatorDatabase) -> None:
    assert world.json("deliveries", "list", "--state", "superseded") == []
    assert len(world.json("deliveries", "list", "--state", "accepted")) == 1
    assert world.crcr("deliveries", "list", "--state", "lost").exit_code == 2


def test_one_delivery_shows_dispatches_attempts_errors_and_jobs(world: OperatorDatabase) -> None:
    out = world.ok("deliveries", "show", world.delivery)
    assert "The App is not installed on org/refused." in out
    detail = world.json("deliveries", "show", world.delivery)
    found = {
        each["downstream"]: (each["state"], len(each["effects"]), [job["conclusion"] for job in each["jobs"]])
        for each in detail["dispatches"]
    }
    assert found == {
        "Org/Reporter": ("sent", 1, ["success"]),
        "org/secret": ("sent", 1, ["failure"]),
        "org/refused": ("parked", 1, []),
    }


def test_the_body_is_shown_while_it_is_kept(world: OperatorDatabase) -> None:
    detail = world.json("deliveries", "show", world.delivery, "--body")
    assert detail["body"]["pull_request"]["title"] == "Add an operator"
    assert '"title": "Add an operator"' in world.ok("deliveries", "show", world.delivery, "--body")


def test_an_unknown_delivery_is_told_with_a_hint(world: OperatorDatabase) -> None:
    result = world.crcr("deliveries", "show", "no-such-guid")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "there is no delivery no-such-guid" in result.stderr


def test_a_replay_goes_to_those_who_did_not_get_it(world: OperatorDatabase) -> None:
    assert "sent again to 1" in world.ok("deliveries", "replay", world.delivery)
    assert "nothing to send" in world.ok("deliveries", "replay", world.delivery)
    states = {each["state"] for each in world.json("effects", "list", "--kind", "send_dispatch")}
    assert states == {"waiting"}
    assert world.crcr("deliveries", "replay", "no-such-guid").exit_code == 1


def test_a_replay_for_everyone_goes_to_all(world: OperatorDatabase) -> None:
    assert "sent again to 3" in world.ok("deliveries", "replay", world.delivery, "--everyone")
    acts = [(each["act"], each["detail"]["dispatches"]) for each in world.json("audit", "list")]
    assert acts == [("replay", 3)]


def test_what_was_cancelled_while_a_backend_was_cut_off_is_replayed_together(world: OperatorDatabase) -> None:
    world.ok("deliveries", "replay", world.delivery)
    world.ok("suspend", "org/refused")
    words = ("deliveries", "replay", "--cancelled", "--since", "2026-01-01")
    assert "nothing to send" in world.ok(*words)
    world.ok("suspend", "org/refused", "--lift")
    assert "nothing to send" in world.ok("deliveries", "replay", "--cancelled")  # the last 24 hours
    assert "1 dispatch of 1 delivery sent again" in world.ok(*words)


@pytest.mark.parametrize(
    "words", [[], ["guid", "--cancelled"], ["--cancelled", "--everyone"], ["guid", "--since", "2h"]]
)
def test_a_replay_says_exactly_which(world: OperatorDatabase, words: list[str]) -> None:
    assert world.crcr("deliveries", "replay", *words).exit_code == 2


def test_effects_are_listed_by_state_target_and_kind(world: OperatorDatabase) -> None:
    assert "The App is not installed" in world.ok("effects", "list")
    kinds = [each["kind"] for each in world.json("effects", "list", "--parked")]
    assert kinds == ["send_dispatch", "identify_repository"]
    assert len(world.json("effects", "list", "--target", "Org/Refused", "--kind", "send_dispatch")) == 1
    assert world.json("effects", "list", "--target", "org/reporter") == []


@pytest.mark.parametrize(
    ("words", "retried"),
    [
        (["--target", "org/refused"], 2),
        (["--all"], 2),
        (["--since", "2026-01-01", "--until", "2026-01-02"], 2),
        (["1"], 1),
        (["1", "4"], 2),
    ],
)
def test_parked_effects_are_retried_and_audited(
    world: OperatorDatabase, words: list[str], retried: int
) -> None:
    assert f"{retried} retried" in world.ok("effects", "retry", *words)
    assert len(world.json("effects", "list", "--parked")) == 2 - retried
    ids = [each["detail"]["ids"] for each in world.json("audit", "list") if each["act"] == "retry"]
    assert sum(map(len, ids)) == retried


@pytest.mark.parametrize("words", [["99"], ["--target", "org/reporter"], ["--until", "2025-01-01"]])
def test_nothing_like_that_is_a_problem_found(world: OperatorDatabase, words: list[str]) -> None:
    result = world.crcr("effects", "retry", *words)
    assert (result.exit_code, "no parked effect matches" in result.stdout) == (1, True)


@pytest.mark.parametrize("words", [[], ["1", "--all"], ["--all", "--target", "org/refused"]])
def test_a_retry_says_exactly_which(world: OperatorDatabase, words: list[str]) -> None:
    assert world.crcr("effects", "retry", *words).exit_code == 2


def test_many_are_retried_in_parts(world: OperatorDatabase) -> None:
    world.copy_effect(4, times=1_200)
    assert "1,202 retried" in world.ok("effects", "retry", "--all")
    assert world.json("effects", "list", "--parked") == []


def test_who_is_suspended_is_not_sent_what_was_parked(world: OperatorDatabase) -> None:
    world.ok("suspend", "org/refused")
    assert "1 retried" in world.ok("effects", "retry", "--all")
    assert [each["kind"] for each in world.json("effects", "list", "--parked")] == ["send_dispatch"]
