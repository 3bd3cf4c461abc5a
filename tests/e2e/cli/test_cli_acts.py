"""Operator actions: suspend, pause, test dispatch, rebind. They take effect at once and are in the audit log with the user."""

import getpass
from pathlib import Path

import pytest

from support.data.operator_database import OperatorShell, relay_environment
from support.running_relay import UPSTREAM


@pytest.fixture
def two_upstreams(tmp_path: Path) -> OperatorShell:
    environ = relay_environment(tmp_path)
    del environ["CRCR_UPSTREAM"], environ["CRCR_ALLOWLIST"]
    tables = "".join(
        f'[[upstream]]\nname = "{name}"\nallowlist = "allowlist.yml"\n' for name in ("up/one", "up/two")
    )
    (tmp_path / "crcr.toml").write_text(tables)
    shell = OperatorShell(tmp_path, environ)
    shell.ok("migrate", "--config", str(tmp_path / "crcr.toml"))
    return shell


def acts(shell: OperatorShell) -> list[tuple[str, str, str]]:
    return [(each["who"], each["act"], each["subject"]) for each in shell.json("audit", "list")]


def test_a_suspension_holds_until_it_is_lifted(shell: OperatorShell) -> None:
    assert "org/reporter is suspended" in shell.ok("suspend", "org/reporter", "--reason", "noisy")
    assert "suspended" in shell.ok("repos", "list")
    assert "no longer suspended" in shell.ok("suspend", "org/reporter", "--lift")
    known = {each["name"]: each["suspended_at"] for each in shell.json("repos", "list")}
    assert known["Org/Reporter"] is None
    me = getpass.getuser()
    assert acts(shell) == [(me, "resume", "org/reporter"), (me, "suspend", "org/reporter")]
    assert "reason noisy" in shell.ok("audit", "list")


def test_suspending_an_unlisted_repository_succeeds_with_a_warning(shell: OperatorShell) -> None:
    result = shell.crcr("suspend", "org/unknown")
    assert (result.exit_code, "not on the allowlist" in result.stderr) == (0, True)


def test_dispatching_is_paused_and_resumed(shell: OperatorShell) -> None:
    shell.ok("pause", "--reason", "GitHub is down")
    assert shell.rows("SELECT paused_at FROM upstreams")[0]["paused_at"] is not None
    shell.ok("pause", "--lift")
    assert shell.rows("SELECT paused_at FROM upstreams")[0]["paused_at"] is None
    assert [act for _, act, _ in acts(shell)] == ["unpause", "pause"]


def test_a_test_dispatch_is_recorded_as_a_test(shell: OperatorShell) -> None:
    out = shell.ok("dispatch", "--test", "org/reporter")
    guid = out.split()[4]
    assert f"crcr deliveries show {guid}" in out
    [dispatch] = shell.json("deliveries", "show", guid)["dispatches"]
    assert (dispatch["test"], dispatch["state"]) == (True, "waiting")


def test_waiting_for_a_dispatch_that_is_never_sent_times_out(shell: OperatorShell) -> None:
    result = shell.crcr("dispatch", "--test", "org/reporter", "--wait", "--timeout", "0.3s")
    assert (result.exit_code, "not sent yet" in result.stderr) == (1, True)


def test_only_test_dispatches_to_listed_and_active_backends_are_allowed(shell: OperatorShell) -> None:
    assert shell.crcr("dispatch", "org/reporter").exit_code == 2
    assert shell.crcr("dispatch", "--test", "org/unknown").exit_code == 1
    shell.ok("suspend", "org/reporter")
    assert "is suspended" in shell.crcr("dispatch", "--test", "org/reporter").stderr


def test_a_changed_identity_is_accepted_after_confirmation(shell: OperatorShell) -> None:
    refused = shell.crcr("repos", "rebind", "org/secret", "77", given="n\n")
    assert refused.exit_code == 1
    assert "is bound to id 70" in refused.output
    assert shell.crcr("repos", "rebind", "org/secret", "77", given="y\n").exit_code == 0
    shell.ok("repos", "rebind", "org/secret", "78", "--yes")
    known = {each["name"]: each["repository_id"] for each in shell.json("repos", "list")}
    assert known["org/secret"] == 78
    details = [each["detail"] for each in shell.json("audit", "list")]
    assert [(each["before"] > 78, each["after"]) for each in details] == [(False, 78), (True, 77)]


def test_an_unknown_repository_is_not_bound(shell: OperatorShell) -> None:
    result = shell.crcr("repos", "rebind", "org/unknown", "77", "--yes")
    assert (result.exit_code, "is not known" in result.stderr) == (1, True)


def test_with_several_upstreams_an_action_must_name_one(two_upstreams: OperatorShell) -> None:
    config = ("--config", str(two_upstreams.folder / "crcr.toml"))
    result = two_upstreams.crcr("pause", *config)
    assert result.exit_code == 2
    assert "up/one or up/two" in " ".join(result.output.split())
    assert two_upstreams.crcr("audit", "list", *config).exit_code == 0
    two_upstreams.ok("pause", *config, "--upstream", "up/two")
    assert [each["upstream"] for each in two_upstreams.rows("SELECT upstream FROM audit")] == ["up/two"]
    assert two_upstreams.crcr("pause", *config, "-u", "no/one").exit_code == 2


def test_the_only_upstream_need_not_be_named(shell: OperatorShell) -> None:
    assert f"dispatching for {UPSTREAM} paused;" in shell.ok("pause")


def test_resume_ends_a_pause_and_a_suspension(shell: OperatorShell) -> None:
    assert "crcr resume resumes it" in shell.ok("pause")
    assert f"dispatching for {UPSTREAM} resumed" in shell.ok("resume")
    shell.ok("suspend", "org/reporter")
    assert "org/reporter is no longer suspended" in shell.ok("resume", "org/reporter", "--reason", "fixed")
    assert [act for _, act, _ in acts(shell)] == ["resume", "suspend", "unpause", "pause"]


def test_every_action_prints_its_result_as_json(shell: OperatorShell) -> None:
    upstream, repository = UPSTREAM, "org/reporter"
    suspension = {"upstream": upstream, "repository": repository, "suspended": True}
    assert shell.json("suspend", repository) == suspension
    assert shell.json("resume", repository) == {**suspension, "suspended": False}
    assert shell.json("pause") == {"upstream": upstream, "paused": True}
    assert shell.json("resume") == {"upstream": upstream, "paused": False}
    sent = shell.json("dispatch", "--test", repository)
    assert (sent["repository"], sent["state"], sent["error"]) == (repository, "waiting", None)
    assert shell.json("repos", "rebind", repository, "77", "--yes") == {
        "repository": repository,
        "repository_id": 77,
    }
    assert shell.json("effects", "retry", "--all")["retried"] == 2
    assert shell.json("deliveries", "replay", "--cancelled") == {"deliveries": 0, "sent": 0}
    assert shell.json("allowlist", "refresh")["upstream"] == upstream
    copy = shell.json("backup", str(shell.folder / "copy.db"))
    assert copy["bytes"] == (shell.folder / "copy.db").stat().st_size
    token = shell.json("admin", "token", "ann")
    assert (token["variable"], token["value"].split("=")[0]) == ("CRCR_ADMIN_TOKENS", "ann")
