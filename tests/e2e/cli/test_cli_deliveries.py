"""`crcr deliveries` and `crcr effects`: show and replay the deliveries of one relay from a terminal."""

import pytest

from support.data.operator_database import OperatorShell


def test_deliveries_are_listed_with_the_states_of_their_dispatches(shell: OperatorShell) -> None:
    out = shell.ok("deliveries", "list")
    assert shell.delivery in out
    assert "pull_request opened" in out
    assert "1 parked, 2 sent" in out
    [line] = shell.json("deliveries", "list")
    assert (line["guid"], line["dispatches"]) == (shell.delivery, {"parked": 1, "sent": 2})


def test_deliveries_are_filtered_by_state(shell: OperatorShell) -> None:
    assert shell.json("deliveries", "list", "--state", "superseded") == []
    assert len(shell.json("deliveries", "list", "--state", "accepted")) == 1
    assert shell.crcr("deliveries", "list", "--state", "lost").exit_code == 2


def test_one_delivery_shows_dispatches_attempts_errors_and_jobs(shell: OperatorShell) -> None:
    out = shell.ok("deliveries", "show", shell.delivery)
    assert "The App is not installed on org/refused." in out
    detail = shell.json("deliveries", "show", shell.delivery)
    dispatches = {
        each["downstream"]: (each["state"], len(each["effects"]), [job["conclusion"] for job in each["jobs"]])
        for each in detail["dispatches"]
    }
    assert dispatches == {
        "Org/Reporter": ("sent", 1, ["success"]),
        "org/secret": ("sent", 1, ["failure"]),
        "org/refused": ("parked", 1, []),
    }


def test_the_body_is_shown_while_it_is_kept(shell: OperatorShell) -> None:
    detail = shell.json("deliveries", "show", shell.delivery, "--body")
    assert detail["body"]["pull_request"]["title"] == "Add an operator"
    assert '"title": "Add an operator"' in shell.ok("deliveries", "show", shell.delivery, "--body")


def test_an_unknown_delivery_is_reported(shell: OperatorShell) -> None:
    result = shell.crcr("deliveries", "show", "no-such-guid")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "there is no delivery no-such-guid" in result.stderr


def test_a_replay_sends_only_the_dispatches_that_failed(shell: OperatorShell) -> None:
    assert "sent again to 1" in shell.ok("deliveries", "replay", shell.delivery)
    assert "nothing to send" in shell.ok("deliveries", "replay", shell.delivery)
    states = {each["state"] for each in shell.json("effects", "list", "--kind", "send_dispatch")}
    assert states == {"waiting"}
    assert shell.crcr("deliveries", "replay", "no-such-guid").exit_code == 1


def test_a_replay_with_everyone_sends_all_dispatches(shell: OperatorShell) -> None:
    assert "sent again to 3" in shell.ok("deliveries", "replay", shell.delivery, "--everyone")
    acts = [(each["act"], each["detail"]["dispatches"]) for each in shell.json("audit", "list")]
    assert acts == [("replay", 3)]


def test_dispatches_cancelled_by_a_suspension_are_replayed_together(shell: OperatorShell) -> None:
    shell.ok("deliveries", "replay", shell.delivery)
    shell.ok("suspend", "org/refused")
    words = ("deliveries", "replay", "--cancelled", "--since", "2026-01-01")
    assert "nothing to send" in shell.ok(*words)
    shell.ok("suspend", "org/refused", "--lift")
    assert "nothing to send" in shell.ok("deliveries", "replay", "--cancelled")  # the last 24 hours
    assert "1 dispatch of 1 delivery sent again" in shell.ok(*words)


@pytest.mark.parametrize(
    "words", [[], ["guid", "--cancelled"], ["--cancelled", "--everyone"], ["guid", "--since", "2h"]]
)
def test_a_replay_needs_exactly_one_selection(shell: OperatorShell, words: list[str]) -> None:
    assert shell.crcr("deliveries", "replay", *words).exit_code == 2


def test_effects_are_listed_by_state_target_and_kind(shell: OperatorShell) -> None:
    assert "The App is not installed" in shell.ok("effects", "list")
    kinds = [each["kind"] for each in shell.json("effects", "list", "--parked")]
    assert kinds == ["send_dispatch", "identify_repository"]
    assert len(shell.json("effects", "list", "--target", "Org/Refused", "--kind", "send_dispatch")) == 1
    assert shell.json("effects", "list", "--target", "org/reporter") == []


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
def test_parked_effects_are_retried_and_audited(shell: OperatorShell, words: list[str], retried: int) -> None:
    assert f"{retried} retried" in shell.ok("effects", "retry", *words)
    assert len(shell.json("effects", "list", "--parked")) == 2 - retried
    ids = [each["detail"]["ids"] for each in shell.json("audit", "list") if each["act"] == "retry"]
    assert sum(map(len, ids)) == retried


@pytest.mark.parametrize("words", [["99"], ["--target", "org/reporter"], ["--until", "2025-01-01"]])
def test_no_matching_effect_exits_with_1(shell: OperatorShell, words: list[str]) -> None:
    result = shell.crcr("effects", "retry", *words)
    assert (result.exit_code, "no parked effect matches" in result.stdout) == (1, True)


@pytest.mark.parametrize("words", [[], ["1", "--all"], ["--all", "--target", "org/refused"]])
def test_a_retry_needs_exactly_one_selection(shell: OperatorShell, words: list[str]) -> None:
    assert shell.crcr("effects", "retry", *words).exit_code == 2


def test_more_than_a_thousand_effects_are_retried(shell: OperatorShell) -> None:
    shell.copy_effect(4, times=1_200)
    assert "1,202 retried" in shell.ok("effects", "retry", "--all")
    assert shell.json("effects", "list", "--parked") == []


def test_parked_dispatches_of_a_suspended_backend_are_not_sent(shell: OperatorShell) -> None:
    shell.ok("suspend", "org/refused")
    assert "1 retried" in shell.ok("effects", "retry", "--all")
    assert [each["kind"] for each in shell.json("effects", "list", "--parked")] == ["send_dispatch"]
