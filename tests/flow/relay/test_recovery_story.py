"""Fault 7: GitHub did not send a webhook, or the relay was down; it is found in GitHub's delivery log and recovered once."""

import asyncio
import sqlite3
from collections import Counter
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from crcr.decide.github.missed_webhooks import RecoveryReport
from crcr.settings import PostgresSetting, SqliteSetting
from crcr.wiring.core import Seams
from crcr.wiring.services import build
from github_sim.github import Match, PullRequest
from support.github.dispatch_log import BOTH, TWO, dispatched_actions, dispatched_events
from support.running_relay import UPSTREAM, RunningRelay, running_relay
from support.services.postgres import dump, restore_dump

LOG = "/app/hook/deliveries"
HOUR = timedelta(hours=1)


async def recover(relay: RunningRelay) -> RecoveryReport:
    report = (await relay.services.reconciler.run()).recovery
    await relay.drain()
    return report


def count_fetches(relay: RunningRelay) -> int:
    return len(relay.github.calls_to("GET", f"{LOG}/*"))


def count_log_pages(relay: RunningRelay) -> int:
    return len(relay.github.calls_to("GET", LOG))


def states_by_guid(relay: RunningRelay) -> dict[str, str]:
    """The state of every delivery by its GUID, which is unique by the table's key."""
    return {row["guid"]: row["state"] for row in relay.rows("SELECT guid, state FROM deliveries")}


async def push_times(relay: RunningRelay, pull: PullRequest, times: int) -> PullRequest:
    for _ in range(times):
        relay.clock.advance(1)
        await relay.github.push_to_pr(pull)
    return pull


def copy_database(database: SqliteSetting | PostgresSetting, copy: Path) -> None:
    if isinstance(database, PostgresSetting):
        dump(database.url.get_secret_value(), copy)
        return
    with closing(sqlite3.connect(database.path)) as connection:
        connection.execute("VACUUM INTO ?", (str(copy),))


def replace_database(copy: Path, database: SqliteSetting | PostgresSetting) -> None:
    if isinstance(database, PostgresSetting):
        restore_dump(database.url.get_secret_value(), copy)
        return
    for ending in ("", "-wal", "-shm"):
        Path(f"{database.path}{ending}").unlink(missing_ok=True)
    copy.rename(database.path)


async def restore(relay: RunningRelay, copy: Path) -> None:
    """Stop the relay, replace its database by the copy, and start it again."""
    settings = relay.services.settings
    await relay.services.close()
    replace_database(copy, settings.database)
    relay.services = build(settings, Seams(clock=relay.clock, http=relay._github_http, chance=lambda: 0.5))


async def test_fault_07_a_missed_webhook_is_recovered_and_dispatched(tmp_path: Path) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        relay.github.faults.webhooks.lose(times=1)
        pr = await relay.github.open_pr(UPSTREAM)
        other = await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        assert dispatched_events(relay.github, "org/one") == [("opened", other.head_sha)]
        report = await recover(relay)

        assert (report.logged, report.missed, report.taken, report.stopped) == (2, 1, 1, None)
        assert dispatched_events(relay.github, "org/one")[1:] == [("opened", pr.head_sha)]
        assert [row["source"] for row in relay.rows("SELECT source FROM deliveries ORDER BY number")] == [
            "recovered",
            "webhook",
        ]


async def test_recovery_of_a_long_outage_over_many_pages_dispatches_only_the_newest_states(
    tmp_path: Path,
) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        known = await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        relay.github.faults.webhooks.lose()
        pulls = [known, *[await relay.github.open_pr(UPSTREAM) for _ in range(9)]]
        for pull in pulls:
            relay.clock.advance(600)
            await push_times(relay, pull, 20)
            await relay.github.label_pr(pull, "wanted")
        for _ in range(30):
            await relay.github.push(UPSTREAM)
        relay.github.faults.clear()
        report = await recover(relay)

        assert (report.missed, report.taken, report.left) == (249, 249, 0)
        assert report.superseded == 199  # the openings and all but the last push of each pull request
        assert count_log_pages(relay) == 3
        assert sorted(dispatched_events(relay.github, "org/one")[1:]) == sorted(
            ("synchronize", pull.head_sha) for pull in pulls
        )
        assert Counter(states_by_guid(relay).values()) == {"accepted": 51, "superseded": 199}
        assert len(relay.github.dispatches("org/one")) == 1 + 10 + 30


async def test_fault_04_webhooks_redelivered_by_hand_are_not_recovered_again(tmp_path: Path) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        relay.github.faults.webhooks.lose(times=2)
        first, second = await relay.github.open_pr(UPSTREAM), await relay.github.push(UPSTREAM)
        assert first.last_delivery is not None
        assert second is not None
        for delivery in (first.last_delivery, second):
            await relay.github.redeliver(delivery.guid)
        report = await recover(relay)

        assert (report.missed, count_fetches(relay)) == (0, 0)
        assert len(relay.github.dispatches("org/one")) == 2


async def test_a_webhook_whose_response_was_late_is_known_and_not_fetched(tmp_path: Path) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        pr = await relay.github.open_pr(UPSTREAM)
        assert pr.last_delivery is not None
        pr.last_delivery.status_code = (
            504  # GitHub timed out after ten seconds, and the relay answered after eleven
        )
        report = await recover(relay)

        assert (report.missed, count_fetches(relay)) == (0, 0)


async def test_log_pages_that_were_read_are_not_read_again(tmp_path: Path) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        pull = await relay.github.open_pr(UPSTREAM)
        await push_times(relay, pull, 250)
        relay.clock.advance(HOUR)
        await recover(relay)
        assert count_log_pages(relay) == 3
        relay.github.faults.webhooks.lose(times=1)
        await relay.github.push_to_pr(pull)
        report = await recover(relay)

        assert (count_log_pages(relay), report.missed, report.logged) == (4, 1, 1)
        assert dispatched_actions(relay.github, "org/one")[-1] == "synchronize"


async def test_an_interrupted_recovery_resumes_where_it_stopped(tmp_path: Path) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        relay.github.faults.webhooks.lose()
        for _ in range(5):
            await relay.github.push(UPSTREAM)
        relay.github.faults.clear()
        last = relay.github.deliveries()[3].id
        relay.github.faults.secondary_limit(retry_after_s=600, on=Match("GET", f"{LOG}/{last}"), times=1)
        report = await recover(relay)
        assert (report.taken, report.left) == (3, 2)
        assert "secondary rate limit" in (report.stopped or "")
        assert relay.rows("SELECT * FROM watermarks") == []

        relay.clock.advance(HOUR)
        report = await recover(relay)
        assert (report.missed, report.taken, report.stopped) == (2, 2, None)
        assert len(relay.github.dispatches("org/one")) == 5


async def test_after_a_restore_of_an_older_backup_lost_pull_requests_are_recovered(tmp_path: Path) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        kept = await relay.github.open_pr(UPSTREAM)
        await recover(relay)
        copy = tmp_path / "copy.db"
        copy_database(relay.services.settings.database, copy)
        relay.clock.advance(HOUR)
        await push_times(relay, kept, 3)
        new = await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        lost = set(states_by_guid(relay))
        await restore(relay, copy)
        assert len(states_by_guid(relay)) == 1
        report = await recover(relay)

        assert (report.missed, report.superseded) == (4, 2)
        assert set(states_by_guid(relay)) == lost
        assert set(dispatched_events(relay.github, "org/one")[-2:]) == {
            ("opened", new.head_sha),
            ("synchronize", kept.head_sha),
        }


async def test_a_backlog_of_one_pull_request_collapses_to_one_dispatch(tmp_path: Path) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        relay.github.faults.webhooks.lose()
        pull = await push_times(relay, await relay.github.open_pr(UPSTREAM), 12)
        relay.clock.advance(1)
        await relay.github.label_pr(pull, "wanted")
        relay.github.faults.clear()
        report = await recover(relay)

        assert dispatched_events(relay.github, "org/one") == [("synchronize", pull.head_sha)]
        assert (report.taken, report.superseded) == (14, 12)


async def test_a_pull_request_opened_and_closed_during_the_outage_is_dispatched_only_as_closed(
    tmp_path: Path,
) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        relay.github.faults.webhooks.lose()
        pull = await push_times(relay, await relay.github.open_pr(UPSTREAM), 3)
        relay.clock.advance(1)
        await relay.github.close_pr(pull)
        relay.github.faults.clear()
        await recover(relay)

        assert dispatched_events(relay.github, "org/one") == [("closed", pull.head_sha)]


async def test_concurrent_recoveries_and_redelivered_webhooks_accept_each_guid_once(tmp_path: Path) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        relay.github.faults.webhooks.lose()
        pulls = [await relay.github.open_pr(UPSTREAM) for _ in range(20)]
        for _ in range(10):
            await relay.github.push(UPSTREAM)
        relay.github.faults.clear()
        missed = {delivery.guid for delivery in relay.github.deliveries()}
        live = [relay.github.redeliver(guid) for guid in sorted(missed)]
        (one, two), _ = await asyncio.gather(
            asyncio.gather(recover(relay), recover(relay)), asyncio.gather(*live)
        )
        await relay.drain()

        assert set(states_by_guid(relay)) == missed
        assert sorted(dispatched_events(relay.github, "org/one")) == sorted(
            ("opened", pull.head_sha) for pull in pulls
        )
        assert len(relay.github.dispatches("org/one")) == 30
        assert (one.stopped, two.stopped, one.left, two.left) == (None, None, 0, 0)
        assert (await recover(relay)).missed == 0


async def test_webhooks_refused_without_an_allowlist_are_recovered_once_there_is_one(tmp_path: Path) -> None:
    async with running_relay(tmp_path, "L9: []\n", downstreams=BOTH) as relay:
        pr = await relay.github.open_pr(UPSTREAM)
        assert pr.last_delivery is not None
        assert pr.last_delivery.status_code == 503
        report = await recover(relay)
        assert (report.left, "no valid allowlist" in (report.stopped or "")) == (1, True)

        relay.write_allowlist(TWO)
        await relay.refresh()
        assert (await recover(relay)).taken == 1
        assert dispatched_events(relay.github, "org/one") == [("opened", pr.head_sha)]


async def test_an_upstream_without_an_allowlist_does_not_block_the_recovery_of_another(
    tmp_path: Path,
) -> None:
    lists = {"up/bad": "L9: []\n", "up/good": TWO}
    async with running_relay(tmp_path, lists, downstreams=BOTH) as relay:
        relay.github.faults.webhooks.lose()
        good = await relay.github.open_pr("up/good")
        for _ in range(3):
            relay.clock.advance(1)
            await relay.github.open_pr("up/bad")
        relay.github.faults.clear()
        report = await recover(relay)

        assert (report.taken, report.left, count_fetches(relay)) == (1, 3, 2)
        assert dispatched_events(relay.github, "org/one") == [("opened", good.head_sha)]


async def test_webhooks_that_github_no_longer_keeps_are_lost_and_the_others_are_recovered(
    tmp_path: Path,
) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        relay.github.faults.webhooks.lose()
        await relay.github.open_pr(UPSTREAM)
        relay.clock.advance(2 * HOUR)
        kept = await relay.github.open_pr(UPSTREAM)
        relay.clock.advance(timedelta(days=3) - HOUR)
        relay.github.faults.clear()
        report = await recover(relay)

        assert (report.missed, report.taken) == (1, 1)
        assert dispatched_events(relay.github, "org/one") == [("opened", kept.head_sha)]


async def test_pull_requests_of_downstreams_need_no_call(tmp_path: Path) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        await relay.github.open_pr(UPSTREAM)
        theirs = await relay.github.open_pr(
            "org/one"
        )  # the App is installed there too, so it receives their webhooks
        relay.github.faults.webhooks.lose()
        await relay.github.push_to_pr(theirs)
        await relay.github.push("org/one")
        relay.github.faults.clear()
        report = await recover(relay)

        assert (report.logged, report.missed, count_fetches(relay)) == (4, 0, 0)


async def test_an_unreadable_webhook_is_recorded_as_unusable_once(tmp_path: Path) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        refused = await relay.github.send_webhook("pull_request", {"action": "opened"})
        assert refused.status_code == 400
        pr = await relay.github.open_pr(UPSTREAM)
        report = await recover(relay)

        assert (report.missed, report.unusable, report.stopped) == (1, 1, None)
        assert relay.rows("SELECT guid, outcome FROM recovered") == [
            {"guid": refused.guid, "outcome": "unusable"}
        ]
        assert (await recover(relay)).missed == 0
        assert dispatched_events(relay.github, "org/one") == [("opened", pr.head_sha)]


@pytest.mark.parametrize("newest_first", [True, False])
async def test_recovered_drafts_end_in_their_current_state(tmp_path: Path, newest_first: bool) -> None:
    async with running_relay(tmp_path, "L1:\n  - org/one: {drafts: false}\n", downstreams=BOTH) as relay:
        relay.github.faults.webhooks.lose()
        pull = await relay.github.open_pr(UPSTREAM, draft=newest_first)
        relay.clock.advance(1)
        if newest_first:
            await relay.github.ready_for_review(pull)
        else:
            await relay.github.convert_to_draft(pull)
        relay.github.faults.clear()
        await recover(relay)

        assert dispatched_events(relay.github, "org/one") == (
            [("opened", pull.head_sha)] if newest_first else []
        )
        assert relay.rows("SELECT draft FROM pulls") == [{"draft": 0 if newest_first else 1}]


async def test_missed_installation_webhooks_are_recovered_before_pull_requests(tmp_path: Path) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        relay.github.faults.webhooks.lose()
        pull = await relay.github.open_pr(UPSTREAM)
        relay.clock.advance(1)
        await relay.github.uninstall("org/two", whole_account=True)
        await relay.github.install("org/two")
        await relay.github.install("org/one")
        relay.github.faults.clear()
        report = await recover(relay)

        assert (report.missed, report.taken) == (4, 4)
        assert dispatched_events(relay.github, "org/two") == [("opened", pull.head_sha)]
