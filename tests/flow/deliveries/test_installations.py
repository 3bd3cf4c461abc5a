"""The App's own webhooks keep our records of installations and ids right, whatever order they come in."""

from pathlib import Path
from typing import Any

from support.github.dispatch_log import dispatched_actions, newest_effect
from support.stage import UPSTREAM, Stage, stage

LISTED = "L1:\n  - org/one\n  - other/two\n"
THEM = ("org/one", "other/two")


def record(it: Stage, downstream: str) -> dict[str, Any]:
    [row] = it.rows("SELECT * FROM repositories WHERE downstream = ?", downstream)
    return row


async def test_a_new_entry_is_identified_before_anyone_can_claim_its_name(tmp_path: Path) -> None:
    async with stage(tmp_path, LISTED, downstreams=THEM) as it:
        one = it.github.repository("org/one")

        row = record(it, "org/one")
        assert (row["repository_id"], row["owner_id"], row["confirmed"]) == (one.id, one.owner.id, 1)
        assert row["installation_id"] == it.github.installation("org/one").id


async def test_an_entry_without_the_app_is_identified_when_the_app_comes(tmp_path: Path) -> None:
    async with stage(tmp_path, LISTED, downstreams=("other/two",)) as it:
        it.github.create_repository("org/one", installed=False)
        assert record(it, "org/one")["confirmed"] == 0
        await it.github.install("org/one")
        await it.act()

        row = record(it, "org/one")
        assert (row["repository_id"], row["confirmed"]) == (it.github.repository("org/one").id, 1)


async def test_taking_the_app_off_forgets_the_installation_and_keeps_the_id(tmp_path: Path) -> None:
    async with stage(tmp_path, LISTED, downstreams=THEM) as it:
        await it.github.uninstall("org/one")

        row = record(it, "org/one")
        assert (row["installation_id"], row["repository_id"]) == (None, it.github.repository("org/one").id)
        assert record(it, "other/two")["installation_id"] == it.github.installation("other/two").id


async def test_one_repository_off_a_shared_installation_leaves_its_mates_alone(tmp_path: Path) -> None:
    listed = "L1:\n  - org/one\n  - org/mate\n"
    async with stage(tmp_path, listed, downstreams=("org/one", "org/mate")) as it:
        shared = it.github.installation("org/mate").id
        await it.github.uninstall("org/one")
        assert record(it, "org/one")["installation_id"] is None
        assert record(it, "org/mate")["installation_id"] == shared
        await it.github.install("org/one")
        assert record(it, "org/one")["installation_id"] == shared


async def test_a_late_deleted_does_not_undo_a_newer_created(tmp_path: Path) -> None:
    async with stage(tmp_path, LISTED, downstreams=THEM) as it:
        it.github.faults.webhooks.hold()
        await it.github.uninstall("org/one")
        await it.github.install("org/one")
        await it.github.release_webhooks([1, 0])
        await it.github.release_webhooks()

        assert record(it, "org/one")["installation_id"] == it.github.installation("org/one").id


async def test_an_installation_webhook_may_come_twice(tmp_path: Path) -> None:
    async with stage(tmp_path, LISTED, downstreams=THEM) as it:
        it.github.faults.webhooks.duplicate(times=2)
        await it.github.uninstall("org/one")
        await it.github.install("org/one")
        before = len(it.rows("SELECT effect_id FROM effects"))
        await it.act()

        assert record(it, "org/one")["installation_id"] == it.github.installation("org/one").id
        assert len(it.rows("SELECT effect_id FROM effects")) == before


async def test_a_suspended_installation_is_parked_and_works_again_after(tmp_path: Path) -> None:
    async with stage(tmp_path, LISTED, downstreams=THEM) as it:
        await it.github.suspend_installation("org/one")
        await it.github.open_pr(UPSTREAM)
        await it.act()
        assert newest_effect(it, "org/one")["state"] == "parked"
        assert "suspended" in str(newest_effect(it, "org/one")["last_error"])
        await it.github.unsuspend_installation("org/one")
        await it.github.open_pr(UPSTREAM)
        await it.act()

        assert dispatched_actions(it.github, "org/one") == ["opened"]
        assert dispatched_actions(it.github, "other/two") == ["opened", "opened"]


async def test_a_renamed_downstream_raises_an_alarm_keeps_its_id_and_gets_nothing_by_redirect(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, LISTED, downstreams=THEM) as it:
        one = it.github.repository("org/one")
        await it.github.rename_repository("org/one", "uno")
        await it.github.open_pr(UPSTREAM)
        await it.act()

        row = record(it, "org/one")
        assert (row["repository_id"], row["alarm"]) == (one.id, "moved to org/uno")
        assert it.github.dispatches("org/uno") == []
        assert newest_effect(it, "org/one")["state"] == "parked"


async def test_a_downstream_that_is_renamed_back_is_itself_again(tmp_path: Path) -> None:
    async with stage(tmp_path, LISTED, downstreams=THEM) as it:
        await it.github.rename_repository("org/one", "uno")
        await it.github.rename_repository("org/uno", "one")
        await it.github.open_pr(UPSTREAM)
        await it.act()

        assert record(it, "org/one")["alarm"] is None
        assert dispatched_actions(it.github, "org/one") == ["opened"]


async def test_a_rename_followed_by_the_allowlist_goes_on_under_the_new_name(tmp_path: Path) -> None:
    async with stage(tmp_path, LISTED, downstreams=THEM) as it:
        one = it.github.repository("org/one")
        await it.github.rename_repository("org/one", "uno")
        it.write_allowlist(LISTED.replace("org/one", "org/uno"))
        await it.refresh()
        await it.act()
        await it.github.open_pr(UPSTREAM)
        await it.act()

        row = record(it, "org/uno")
        assert (row["repository_id"], row["confirmed"]) == (one.id, 1)
        assert dispatched_actions(it.github, "org/uno") == ["opened"]


async def test_an_allowlist_that_knew_the_new_name_first_is_identified_by_the_rename(tmp_path: Path) -> None:
    async with stage(tmp_path, LISTED, downstreams=THEM) as it:
        it.write_allowlist(LISTED.replace("org/one", "org/uno"))
        await it.refresh()
        await it.act()
        assert record(it, "org/uno")["confirmed"] == 0
        await it.github.rename_repository("org/one", "uno")
        await it.act()

        row = record(it, "org/uno")
        assert (row["repository_id"], row["confirmed"]) == (it.github.repository("org/uno").id, 1)


async def test_a_transferred_downstream_raises_an_alarm(tmp_path: Path) -> None:
    async with stage(tmp_path, LISTED, downstreams=THEM) as it:
        await it.github.transfer_repository("org/one", "stranger")

        assert record(it, "org/one")["alarm"] == "moved to stranger/one"
        assert record(it, "other/two")["alarm"] is None


async def test_a_stranger_under_a_released_name_gets_nothing(tmp_path: Path) -> None:
    """The token is minted for the bound id, so the name alone opens nothing."""
    async with stage(tmp_path, LISTED, downstreams=THEM) as it:
        bound = it.github.repository("org/one").id
        it.github.replace_repository("org/one")
        await it.github.open_pr(UPSTREAM)
        await it.act()

        assert it.github.dispatches("org/one") == []
        assert newest_effect(it, "org/one")["state"] == "parked"
        assert record(it, "org/one")["repository_id"] == bound


async def test_the_upstreams_own_installation_is_learned_from_its_webhooks(tmp_path: Path) -> None:
    async with stage(tmp_path, LISTED, downstreams=THEM) as it:
        await it.github.open_pr(UPSTREAM)
        [row] = it.rows("SELECT repository_id, installation_id FROM upstreams")
        assert row == {
            "repository_id": it.github.repository(UPSTREAM).id,
            "installation_id": it.github.installation(UPSTREAM).id,
        }
        await it.github.uninstall(UPSTREAM)
        await it.github.install(UPSTREAM)
        [row] = it.rows("SELECT installation_id FROM upstreams")
        assert row["installation_id"] == it.github.installation(UPSTREAM).id
