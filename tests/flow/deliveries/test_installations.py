"""The App's own webhooks keep the records of installations and ids correct, in any order of arrival."""

from pathlib import Path
from typing import Any

from support.github.dispatch_log import dispatched_actions, newest_effect
from support.running_relay import UPSTREAM, RunningRelay, running_relay

LISTED = "L1:\n  - org/one\n  - other/two\n"
DOWNSTREAMS = ("org/one", "other/two")


def record(relay: RunningRelay, downstream: str) -> dict[str, Any]:
    [row] = relay.rows("SELECT * FROM repositories WHERE downstream = ?", downstream)
    return row


async def test_a_new_entry_is_identified_before_anybody_else_can_claim_its_name(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=DOWNSTREAMS) as relay:
        one = relay.github.repository("org/one")

        row = record(relay, "org/one")
        assert (row["repository_id"], row["owner_id"], row["confirmed"]) == (one.id, one.owner.id, 1)
        assert row["installation_id"] == relay.github.installation("org/one").id


async def test_an_entry_without_the_app_is_identified_when_the_app_is_installed(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=("other/two",)) as relay:
        relay.github.create_repository("org/one", installed=False)
        assert record(relay, "org/one")["confirmed"] == 0
        await relay.github.install("org/one")
        await relay.drain()

        row = record(relay, "org/one")
        assert (row["repository_id"], row["confirmed"]) == (relay.github.repository("org/one").id, 1)


async def test_uninstalling_the_app_forgets_the_installation_and_keeps_the_repository_id(
    tmp_path: Path,
) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=DOWNSTREAMS) as relay:
        await relay.github.uninstall("org/one")

        row = record(relay, "org/one")
        assert (row["installation_id"], row["repository_id"]) == (None, relay.github.repository("org/one").id)
        assert record(relay, "other/two")["installation_id"] == relay.github.installation("other/two").id


async def test_removing_one_repository_from_a_shared_installation_keeps_the_others(tmp_path: Path) -> None:
    listed = "L1:\n  - org/one\n  - org/mate\n"
    async with running_relay(tmp_path, listed, downstreams=("org/one", "org/mate")) as relay:
        shared = relay.github.installation("org/mate").id
        await relay.github.uninstall("org/one")
        assert record(relay, "org/one")["installation_id"] is None
        assert record(relay, "org/mate")["installation_id"] == shared
        await relay.github.install("org/one")
        assert record(relay, "org/one")["installation_id"] == shared


async def test_a_late_deleted_webhook_does_not_undo_a_newer_created_one(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=DOWNSTREAMS) as relay:
        relay.github.faults.webhooks.hold()
        await relay.github.uninstall("org/one")
        await relay.github.install("org/one")
        await relay.github.release_webhooks([1, 0])
        await relay.github.release_webhooks()

        assert record(relay, "org/one")["installation_id"] == relay.github.installation("org/one").id


async def test_a_duplicate_installation_webhook_changes_nothing(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=DOWNSTREAMS) as relay:
        relay.github.faults.webhooks.duplicate(times=2)
        await relay.github.uninstall("org/one")
        await relay.github.install("org/one")
        before = len(relay.rows("SELECT effect_id FROM effects"))
        await relay.drain()

        assert record(relay, "org/one")["installation_id"] == relay.github.installation("org/one").id
        assert len(relay.rows("SELECT effect_id FROM effects")) == before


async def test_a_suspended_installation_parks_its_dispatch_and_works_again_after_unsuspension(
    tmp_path: Path,
) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=DOWNSTREAMS) as relay:
        await relay.github.suspend_installation("org/one")
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        assert newest_effect(relay, "org/one")["state"] == "parked"
        assert "suspended" in str(newest_effect(relay, "org/one")["last_error"])
        await relay.github.unsuspend_installation("org/one")
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()

        assert dispatched_actions(relay.github, "org/one") == ["opened"]
        assert dispatched_actions(relay.github, "other/two") == ["opened", "opened"]


async def test_a_renamed_downstream_raises_an_alarm_keeps_its_id_and_gets_no_redirected_dispatch(
    tmp_path: Path,
) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=DOWNSTREAMS) as relay:
        one = relay.github.repository("org/one")
        await relay.github.rename_repository("org/one", "uno")
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()

        row = record(relay, "org/one")
        assert (row["repository_id"], row["alarm"]) == (one.id, "moved to org/uno")
        assert relay.github.dispatches("org/uno") == []
        assert newest_effect(relay, "org/one")["state"] == "parked"


async def test_renaming_a_downstream_back_clears_the_alarm(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=DOWNSTREAMS) as relay:
        await relay.github.rename_repository("org/one", "uno")
        await relay.github.rename_repository("org/uno", "one")
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()

        assert record(relay, "org/one")["alarm"] is None
        assert dispatched_actions(relay.github, "org/one") == ["opened"]


async def test_a_rename_followed_by_an_allowlist_change_continues_under_the_new_name(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=DOWNSTREAMS) as relay:
        one = relay.github.repository("org/one")
        await relay.github.rename_repository("org/one", "uno")
        relay.write_allowlist(LISTED.replace("org/one", "org/uno"))
        await relay.refresh()
        await relay.drain()
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()

        row = record(relay, "org/uno")
        assert (row["repository_id"], row["confirmed"]) == (one.id, 1)
        assert dispatched_actions(relay.github, "org/uno") == ["opened"]


async def test_a_rename_webhook_identifies_an_entry_that_was_listed_under_the_new_name_first(
    tmp_path: Path,
) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=DOWNSTREAMS) as relay:
        relay.write_allowlist(LISTED.replace("org/one", "org/uno"))
        await relay.refresh()
        await relay.drain()
        assert record(relay, "org/uno")["confirmed"] == 0
        await relay.github.rename_repository("org/one", "uno")
        await relay.drain()

        row = record(relay, "org/uno")
        assert (row["repository_id"], row["confirmed"]) == (relay.github.repository("org/uno").id, 1)


async def test_a_transferred_downstream_raises_an_alarm(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=DOWNSTREAMS) as relay:
        await relay.github.transfer_repository("org/one", "stranger")

        assert record(relay, "org/one")["alarm"] == "moved to stranger/one"
        assert record(relay, "other/two")["alarm"] is None


async def test_a_stranger_under_a_released_name_gets_no_dispatch(tmp_path: Path) -> None:
    """The token is minted for the bound id, so the name alone gives no access."""
    async with running_relay(tmp_path, LISTED, downstreams=DOWNSTREAMS) as relay:
        bound = relay.github.repository("org/one").id
        relay.github.replace_repository("org/one")
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()

        assert relay.github.dispatches("org/one") == []
        assert newest_effect(relay, "org/one")["state"] == "parked"
        assert record(relay, "org/one")["repository_id"] == bound


async def test_the_upstreams_own_installation_is_learned_from_its_webhooks(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=DOWNSTREAMS) as relay:
        await relay.github.open_pr(UPSTREAM)
        [row] = relay.rows("SELECT repository_id, installation_id FROM upstreams")
        assert row == {
            "repository_id": relay.github.repository(UPSTREAM).id,
            "installation_id": relay.github.installation(UPSTREAM).id,
        }
        await relay.github.uninstall(UPSTREAM)
        await relay.github.install(UPSTREAM)
        [row] = relay.rows("SELECT installation_id FROM upstreams")
        assert row["installation_id"] == relay.github.installation(UPSTREAM).id
