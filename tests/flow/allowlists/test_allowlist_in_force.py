"""Which version of an allowlist is in force: the last good one, even if bad ones were read since."""

import sqlite3
from pathlib import Path

from structlog.testing import capture_logs

from crcr.deliver.allowlist_source import AllowlistFileSource, AllowlistRefresher
from crcr.receive.allowlist_yaml import read_allowlist
from crcr.record.checks.refresh import CheckRefresher
from crcr.record.repositories.allowlists import Allowlists
from crcr.record.repositories.downstreams import Downstreams
from crcr.record.store.signals import Signals
from crcr.wiring.database import open_database
from support.github.dispatch_log import BOTH, TWO, dispatched_actions
from support.running_relay import UPSTREAM, RunningRelay, repo, running_relay

BAD = {
    "not YAML": "}{",
    "an unknown level": "L9:\n  - org/one\n",
    "listed twice": "L1:\n  - org/one\nL2:\n  - Org/One\n",
    "an unknown option": "L1:\n  - org/one: {colour: blue}\n",
    "nothing": "",
    "comments only": "# L1:\n#   - org/one\n",
    "an empty mapping": "{}\n",
}


def versions(relay: RunningRelay) -> list[int]:
    return [row["good"] for row in relay.rows("SELECT good FROM allowlist_versions ORDER BY version")]


async def test_fault_50_a_bad_version_raises_an_alarm_is_shown_and_blocks_no_dispatch(tmp_path: Path) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        for text in BAD.values():
            relay.write_allowlist(text)
            with capture_logs() as lines:
                await relay.refresh()
            [alarm] = [line for line in lines if line["event"] == "allowlist_bad"]
            assert (alarm["log_level"], alarm["alarm"]) == ("error", True)
            newest = await relay.services.allowlists.newest(repo(UPSTREAM))
            assert newest is not None
            assert (newest.good, newest.text, bool(newest.problems)) == (False, text, True)
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()

        assert [dispatched_actions(relay.github, name) for name in BOTH] == [["opened"], ["opened"]]


async def test_fault_50_a_missing_or_undecodable_file_blocks_no_dispatch(tmp_path: Path) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        file = tmp_path / "allowlist.yml"
        file.write_bytes(b"L1:\n  - org/\xff\xfe\n")
        await relay.refresh()
        newest = await relay.services.allowlists.newest(repo(UPSTREAM))
        assert newest is not None
        assert (newest.problems[0].line, "0xff at column 9" in newest.problems[0].message) == (2, True)
        file.unlink()
        await relay.refresh()
        await relay.refresh()
        assert versions(relay) == [1, 0, 0]
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        assert [dispatched_actions(relay.github, name) for name in BOTH] == [["opened"], ["opened"]]


async def test_fault_50_a_good_version_after_a_bad_one_is_in_force(tmp_path: Path) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        for text in ("}{", TWO, "}{", "L1:\n  - org/two\n"):
            relay.write_allowlist(text)
            await relay.refresh()
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()

        assert versions(relay) == [1, 0, 1, 0, 1]
        assert [dispatched_actions(relay.github, name) for name in BOTH] == [[], ["opened"]]


async def test_fault_53_text_that_failed_to_parse_never_becomes_good(tmp_path: Path) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        relay.write_allowlist("L1:\n  - org/one\n  - org/one\n")
        for _ in range(3):
            await relay.refresh()
        assert versions(relay) == [1, 0]
        database = open_database(relay.services.settings, Signals())
        restarted_allowlists = Allowlists(
            database, Downstreams(database, CheckRefresher({})), CheckRefresher({}), read_allowlist
        )
        in_force = await restarted_allowlists.current(repo(UPSTREAM))
        await database.close()

        assert [str(entry.name) for entry in in_force.entries] == ["org/one", "org/two"]
        assert await relay.services.allowlists.current(repo(UPSTREAM)) == in_force


async def test_fault_53_a_file_truncated_at_the_size_limit_is_recorded_as_bad(tmp_path: Path) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        relay.write_allowlist(TWO + "#" * 1024 * 1024 + "\nL2:\n  - org/three\n")
        await relay.refresh()

        assert versions(relay) == [1, 0]


async def test_webhooks_are_answered_503_until_a_good_allowlist_is_read(tmp_path: Path) -> None:
    async with running_relay(tmp_path, "}{", downstreams=BOTH) as relay:
        pr = await relay.github.open_pr(UPSTREAM)
        assert pr.last_delivery is not None
        assert pr.last_delivery.status_code == 503
        assert int(pr.last_delivery.answer_headers["retry-after"]) > 0
        assert '"no_allowlist"' in pr.last_delivery.answer_body
        relay.write_allowlist(TWO)
        await relay.refresh()
        redelivery = await relay.github.redeliver(pr.last_delivery.guid)
        await relay.drain()

        assert redelivery.status_code == 202
        assert dispatched_actions(relay.github, "org/one") == ["opened"]


async def test_a_file_emptied_after_it_could_not_be_read_is_shown_with_its_own_problem(
    tmp_path: Path,
) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        (tmp_path / "allowlist.yml").unlink()
        await relay.refresh()
        relay.write_allowlist("")
        await relay.refresh()
        await relay.refresh()

        assert versions(relay) == [1, 0, 0]
        newest = await relay.services.allowlists.newest(repo(UPSTREAM))
        assert newest is not None
        assert "no level" in newest.problems[0].message


async def test_an_empty_list_that_an_earlier_release_put_in_force_stays_until_a_good_one_is_read(
    tmp_path: Path,
) -> None:
    async with running_relay(tmp_path, "L1: []\n", downstreams=BOTH) as relay:
        with sqlite3.connect(tmp_path / "crcr.db") as older:
            older.execute("UPDATE allowlist_versions SET text = '', version = 2")
        relay.write_allowlist("")
        await relay.refresh()
        quiet = await relay.github.open_pr(UPSTREAM)
        assert quiet.last_delivery is not None
        assert (quiet.last_delivery.status_code, versions(relay)) == (202, [1, 0])
        relay.write_allowlist(TWO)
        await relay.refresh()
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()

        assert [dispatched_actions(relay.github, name) for name in BOTH] == [["opened"], ["opened"]]


async def test_another_process_sees_a_refresh_with_its_next_delivery(tmp_path: Path) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        await relay.github.open_pr(UPSTREAM)  # the version in force is in this process's memory now
        database = open_database(relay.services.settings, Signals())
        other = Allowlists(
            database, Downstreams(database, CheckRefresher({})), CheckRefresher({}), read_allowlist
        )
        path = relay.write_allowlist("L1:\n  - org/two\n")
        await AllowlistRefresher(repo(UPSTREAM), AllowlistFileSource(path), other, relay.clock).refresh()
        await database.close()
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()

        assert [len(dispatched_actions(relay.github, name)) for name in BOTH] == [0, 2]
