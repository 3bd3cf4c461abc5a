"""An allowlist on GitHub: read with the App's token, reread on a push to it and every five minutes."""

from pathlib import Path

from crcr.deliver.periodic.sweeper import REFRESH_EVERY_S
from crcr.wiring.background import BackgroundTasks
from github_sim.github import GitHub, Match
from support.github.dispatch_log import BOTH, TWO, dispatched_actions, wait_until_true
from support.running_relay import UPSTREAM, RunningRelay, repo, running_relay

ELSEWHERE = "http://127.0.0.1:9/org/meta/blob/main/lists/allowlist.yml"
AT_HOME = f"http://127.0.0.1:9/{UPSTREAM}/blob/main/allowlist.yml"
CONTENTS = "/repos/org/meta/contents/lists/allowlist.yml"
ONLY_TWO = "L1:\n  - org/two\n"


def create_meta_repository(github: GitHub) -> None:
    github.create_repository("org/meta", private=True, files={"lists/allowlist.yml": TWO})


async def listed_backends(relay: RunningRelay) -> list[str]:
    return [str(entry.name) for entry in (await relay.services.allowlists.current(repo(UPSTREAM))).entries]


async def test_the_allowlist_is_read_from_a_private_repository_with_the_apps_token(tmp_path: Path) -> None:
    async with running_relay(
        tmp_path, "", downstreams=BOTH, prepare=create_meta_repository, CRCR_ALLOWLIST=ELSEWHERE
    ) as relay:
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()

        assert [dispatched_actions(relay.github, name) for name in BOTH] == [["opened"], ["opened"]]
        newest = await relay.services.allowlists.newest(repo(UPSTREAM))
        assert newest is not None
        assert newest.source == "org/meta@main:lists/allowlist.yml"


async def test_an_unchanged_allowlist_is_revalidated_by_etag(tmp_path: Path) -> None:
    async with running_relay(
        tmp_path, "", downstreams=BOTH, prepare=create_meta_repository, CRCR_ALLOWLIST=ELSEWHERE
    ) as relay:
        await relay.refresh()
        relay.github.write_file("org/meta", "lists/allowlist.yml", ONLY_TWO)
        await relay.refresh()

        assert [call.status for call in relay.github.calls_to("GET", CONTENTS)] == [200, 304, 200]
        assert await listed_backends(relay) == ["org/two"]


async def test_a_push_to_the_allowlist_takes_effect_at_once_in_a_repository_that_is_no_upstream(
    tmp_path: Path,
) -> None:
    async with running_relay(
        tmp_path, "", downstreams=BOTH, prepare=create_meta_repository, CRCR_ALLOWLIST=ELSEWHERE
    ) as relay:
        delivery = await relay.github.push("org/meta", files={"lists/allowlist.yml": ONLY_TWO})
        assert delivery is not None
        assert "ignored" in delivery.answer_body
        await relay.drain()
        assert await listed_backends(relay) == ["org/two"]


async def test_a_push_to_another_file_branch_or_repository_does_not_reread_the_allowlist(
    tmp_path: Path,
) -> None:
    async with running_relay(
        tmp_path, "", downstreams=BOTH, prepare=create_meta_repository, CRCR_ALLOWLIST=ELSEWHERE
    ) as relay:
        reads = len(relay.github.calls_to("GET", CONTENTS))
        await relay.github.push("org/meta", files={"README.md": "new"})
        await relay.github.push("org/meta", ref="refs/heads/other", files={"lists/allowlist.yml": ONLY_TWO})
        await relay.github.push(UPSTREAM, files={"lists/allowlist.yml": ONLY_TWO})
        await relay.drain()

        assert len(relay.github.calls_to("GET", CONTENTS)) == reads


async def test_a_push_that_repairs_the_only_allowlist_takes_effect_although_answered_503(
    tmp_path: Path,
) -> None:
    async with running_relay(tmp_path, "", downstreams=BOTH, CRCR_ALLOWLIST=AT_HOME) as relay:
        refused_delivery = await relay.github.push(UPSTREAM, files={"allowlist.yml": TWO})
        assert refused_delivery is not None
        assert refused_delivery.status_code == 503
        await relay.drain()
        redelivery = await relay.github.redeliver(refused_delivery.guid)
        await relay.drain()

        assert redelivery.status_code == 202
        assert len(relay.github.dispatches("org/one")) == 1


async def test_the_allowlist_is_reread_every_five_minutes(tmp_path: Path) -> None:
    async with running_relay(
        tmp_path, "", downstreams=BOTH, prepare=create_meta_repository, CRCR_ALLOWLIST=ELSEWHERE
    ) as relay:
        background_tasks = BackgroundTasks(relay.services, work=True)
        await background_tasks.start()
        await wait_until_true(lambda: relay.clock.sleeping >= 4)
        relay.github.write_file("org/meta", "lists/allowlist.yml", ONLY_TWO)
        relay.clock.advance(REFRESH_EVERY_S - 1)
        await wait_until_true(lambda: relay.clock.sleeping >= 4)
        assert await listed_backends(relay) == ["org/one", "org/two"]
        relay.clock.advance(1)
        await wait_until_true(lambda: len(relay.rows("SELECT version FROM allowlist_versions")) == 2)
        assert await listed_backends(relay) == ["org/two"]
        await background_tasks.stop()


async def test_fault_50_a_github_outage_keeps_the_last_good_allowlist_and_records_no_version(
    tmp_path: Path,
) -> None:
    async with running_relay(
        tmp_path, "", downstreams=BOTH, prepare=create_meta_repository, CRCR_ALLOWLIST=ELSEWHERE
    ) as relay:
        relay.github.faults.answer(503, on=Match("GET", CONTENTS), times=1)
        relay.github.faults.lose_answer(on=Match("GET", CONTENTS), times=1)
        await relay.refresh()
        await relay.refresh()
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()

        assert [row["good"] for row in relay.rows("SELECT good FROM allowlist_versions")] == [1]
        assert [dispatched_actions(relay.github, name) for name in BOTH] == [["opened"], ["opened"]]


async def test_fault_50_an_allowlist_that_the_app_may_not_read_is_recorded_as_bad(tmp_path: Path) -> None:
    async with running_relay(
        tmp_path, "", downstreams=BOTH, prepare=create_meta_repository, CRCR_ALLOWLIST=ELSEWHERE
    ) as relay:
        await relay.github.uninstall("org/meta")
        for _ in range(4):
            await relay.refresh()

        versions = relay.rows("SELECT good, problems FROM allowlist_versions")
        assert [version["good"] for version in versions] == [
            1,
            0,
            0,
        ]  # its token is refused first, then the App
        assert "The App is not installed on org/meta." in versions[-1]["problems"]
        assert await listed_backends(relay) == ["org/one", "org/two"]


async def test_fault_50_a_refresh_after_a_push_is_retried_when_github_fails(tmp_path: Path) -> None:
    async with running_relay(
        tmp_path, "", downstreams=BOTH, prepare=create_meta_repository, CRCR_ALLOWLIST=ELSEWHERE
    ) as relay:
        relay.github.faults.answer(502, on=Match("GET", CONTENTS), times=1)
        await relay.github.push("org/meta", files={"lists/allowlist.yml": ONLY_TWO})
        await relay.drain()
        assert await listed_backends(relay) == ["org/one", "org/two"]
        await relay.pass_time(2)
        assert await listed_backends(relay) == ["org/two"]
