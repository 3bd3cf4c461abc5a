"""Effects queued by an older release are taken over after the migration: each is done exactly once."""

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from crcr.decide.model import EffectKind, RepoName
from crcr.record.admin.operations import ParkedFilter
from crcr.record.migrations.run import head, migrate
from crcr.record.store.database import DatabaseLocation, PostgresLocation
from github_sim.github import GitHub, JobSpec, Workflow
from support.clock import ManualClock
from support.downstream.other_hud import HOST, SETTINGS, OtherHud
from support.running_relay import RELAY_URL, UPSTREAM, RunningRelay, settings_for
from support.services.clickhouse import new_database as new_clickhouse
from support.services.postgres import new_database
from support.upgrades.database import (
    AGAIN,
    DECIDED,
    DOUBTED,
    GATING,
    GROUPED,
    NEWCOMER,
    REPORTED,
    REPORTER,
    SENT,
    OldRelease,
    write_database,
)
from support.upgrades.rows_0007 import RELEASE as RELEASE_0007

RELEASES = {release.revision: release for release in (RELEASE_0007,)}
"""The rows of each release are a separate table."""
ALLOWLIST = (
    f"L1:\n  - {NEWCOMER}\nL2:\n  - {REPORTER}: {{paths: ['src/**']}}\n"
    f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: [build, test]}}\n"
)
CHANGED_ALLOWLIST = f"{ALLOWLIST}  - org/later: {{oncalls: [eve], jobs: [build]}}\n"
"""The file that an effect of the older release has to read."""
NAMED = Workflow(jobs=(JobSpec("build"), JobSpec("test")), run_name="CI {delivery_id}")
AFTER_S = 600.0
"""Time from the rows to the upgrade: longer than a lease that is over, shorter than a running one."""


@dataclass
class Upgraded:
    relay: RunningRelay
    hud: OtherHud
    names: Mapping[str, Any]
    envelopes: list[dict[str, Any]]
    """What the older release queued for the other HUD."""

    def queued(self) -> list[dict[str, Any]]:
        """The current rows of the effects that the older release had not done."""
        return self.relay.rows(
            "SELECT * FROM effects WHERE effect_id > ? AND effect_id <= ? ORDER BY effect_id", *self.ids
        )

    def done_before(self) -> list[dict[str, Any]]:
        return self.relay.rows("SELECT * FROM effects WHERE effect_id <= ? ORDER BY effect_id", self.ids[0])

    @property
    def ids(self) -> tuple[int, int]:
        number = self.names["effects"]
        return number, 2 * number

    def calls(self, method: str, path: str) -> int:
        return len(self.relay.github.calls_to(method, path))

    def dispatched(self, downstream: str, delivery: str) -> int:
        sent = [payload.client_payload for payload in self.relay.github.dispatches(downstream)]
        return sum(delivery in json.dumps(payload) for payload in sent)

    def comments(self, words: str) -> int:
        pull = self.relay.github.world.pulls[self.relay.github.repository(UPSTREAM).id, 1]
        return sum(words in comment.body for comment in self.relay.github.comments(pull))

    def checks(self, name: str) -> int:
        checks = self.relay.github.checks(UPSTREAM, self.names["decided"])
        return sum(check.name == name for check in checks)

    def forwarded(self, event: str) -> int:
        """How many of the older release's envelopes the other HUD received, exactly as queued."""
        sent = [envelope for envelope in self.hud.taken if envelope in self.envelopes]
        return sum(envelope["untrusted"]["callback_payload"]["event_type"] == event for envelope in sent)

    def fact(self, sql: str) -> int:
        [row] = self.relay.rows(f"SELECT count(*) AS number FROM {sql}")  # noqa: S608
        return int(row["number"])

    def done(self) -> dict[str, int]:
        """How often the action of each queued effect was done."""
        return {name: count(self) for name, count in DONE.items()}


DONE: dict[str, Callable[[Upgraded], int]] = {
    "dispatch sent": lambda up: up.dispatched(GATING, SENT),
    "repository identified": lambda up: up.calls("GET", f"/repos/{NEWCOMER}/installation"),
    "head confirmed": lambda up: up.calls("GET", f"/repos/{UPSTREAM}/pulls/3"),
    "dispatch of the confirmed head": lambda up: up.dispatched(GATING, DOUBTED),
    "allowlist read": lambda up: up.fact("allowlist_versions WHERE text LIKE '%org/later%'"),
    "result forwarded": lambda up: up.forwarded("pull_request"),
    "nightly forwarded": lambda up: up.forwarded("nightly"),
    "files read": lambda up: up.calls("GET", f"/repos/{UPSTREAM}/compare/*{up.names['sent']}"),
    "dispatch by its files": lambda up: up.dispatched(REPORTER, SENT),
    "dispatch of the group": lambda up: up.dispatched(GATING, GROUPED),
    "gate written": lambda up: up.checks("crcr/gate"),
    "backend's check written": lambda up: up.checks(f"crcr/{GATING}"),
    "job's check written": lambda up: up.checks(f"crcr/{GATING}/CI/build"),
    "run asked for again": lambda up: up.calls("POST", f"/repos/{GATING}/actions/runs/{up.names['again_run']}/*"),
    "result looked up": lambda up: up.fact("jobs WHERE number = 4 AND job_name = 'build' AND verification = 'confirmed'"),
    "command answered": lambda up: up.comments("org/gating failed"),
    "waiver offered": lambda up: up.comments("A waiver holds for the head"),
    "commit verified": lambda up: up.fact("commits WHERE standing = 'base'"),
    "repository inspected": lambda up: up.fact("inspections WHERE inspected_at IS NOT NULL"),
}  # fmt: skip
"""The visible result of each effect: outside the relay, or in the store for an effect that only reads."""


async def build_github(github: GitHub) -> dict[str, Any]:
    """The objects that the rows refer to; their webhooks are dropped."""
    github.faults.webhooks.lose()
    upstream = github.create_repository(UPSTREAM)
    backends = [github.create_repository(name, workflows=[NAMED]) for name in (GATING, REPORTER, NEWCOMER)]
    github.set_permission(UPSTREAM, "maintainer", "maintain")
    base = upstream.head_sha
    decided, sent, doubted, reported, again = [await github.open_pr(UPSTREAM) for _ in range(5)]
    comment = await github.comment_pr(decided, "/crcr status", author="maintainer")
    runs = [await ended_run(github, delivery) for delivery in (DECIDED, REPORTED, AGAIN)]
    await github.merge_group(UPSTREAM, sent.number)
    [group] = github.merge_queue(UPSTREAM)
    return {
        "upstream_id": upstream.id,
        "upstream_installation": github.installation(UPSTREAM).id,
        "gating_id": backends[0].id,
        "reporter_id": backends[1].id,
        "owner_id": backends[0].owner.id,
        "org_installation": github.installation(GATING).id,
        "base": base,
        "decided": decided.head_sha,
        "sent": sent.head_sha,
        "doubted": doubted.head_sha,
        "reported": reported.head_sha,
        "decided_run": str(runs[0]),
        "reported_run": str(runs[1]),
        "again": again.head_sha,
        "again_run": str(runs[2]),
        "comment": comment.id,
        "group": group.head_sha,
        "group_ref": group.head_ref,
    }


async def ended_run(github: GitHub, delivery: str) -> int:
    """A finished run for a delivery, with a failed build."""
    [run] = await github.send_dispatch(GATING, "pull_request", {"delivery_id": delivery})
    for job in run.jobs:
        github.ci.start(run, job)
        github.ci.complete(run, job, "failure" if job.name == "build" else "success")
    return run.id


def forwards(rows: Sequence[tuple[str, dict[str, Any]]]) -> list[bytes]:
    effects = [row for table, row in rows if table == "effects" and row["kind"] == "forward_result"]
    return [row["payload"] for row in effects if row.get("payload")]


@asynccontextmanager
async def upgraded(
    folder: Path, database_location: DatabaseLocation, release: OldRelease, state: str, **more: str
) -> AsyncIterator[Upgraded]:
    """Today's relay on the migrated database of an older release, before its first step."""
    clock, hud = ManualClock(), OtherHud()
    async with GitHub(
        clock=clock, seed=7, base_url="http://127.0.0.1:9", webhook_url=f"{RELAY_URL}/github/webhook"
    ) as github:
        relay = RunningRelay(folder, github, clock, {HOST: hud})
        allowlist = relay.write_allowlist(ALLOWLIST)
        names = await build_github(github)
        names |= {"allowlist": str(allowlist), "allowlist_text": ALLOWLIST, "effects": len(release.effects)}
        rows = release.rows(state, names)
        write_database(database_location, release.revision, rows)
        assert migrate(database_location) == (release.revision, head())
        clock.advance(AFTER_S)
        url = (
            database_location.url
            if isinstance(database_location, PostgresLocation)
            else f"sqlite:///{database_location}"
        )
        await relay.open(settings_for(folder, github, allowlist, CRCR_DATABASE_URL=url, **SETTINGS, **more))
        await relay.services.clickhouse.record_switch(relay.services.upstreams, clock.now())
        relay.write_allowlist(CHANGED_ALLOWLIST)
        try:
            yield Upgraded(relay, hud, names, [json.loads(payload) for payload in forwards(rows)])
        finally:
            await relay.close()
        github.finish()
        assert relay.crashes == []


@pytest.fixture(params=["sqlite", "postgresql"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> DatabaseLocation:
    return tmp_path / "crcr.db" if request.param == "sqlite" else PostgresLocation(new_database(empty=True))


TAKEN_OVER = ("waiting", "claimed, lease over", "claimed, lease running", "parked")
DONE_NEVER = dict.fromkeys(DONE, 0)
DONE_ONCE = dict.fromkeys(DONE, 1)


NOT_YET_RELEASED = {
    EffectKind.READ_ISSUE,
    EffectKind.ADVANCE_BISECTION,
    EffectKind.READ_DEPENDENCY,
    EffectKind.ROUTE_NOTICES,
    EffectKind.SEND_NOTICES,
    EffectKind.WRITE_DYNAMODB,
}
"""Kinds that no older release has queued."""


def test_the_rows_of_the_newest_release_hold_effects_of_every_kind() -> None:
    newest = list(RELEASES.values())[-1]
    assert {row["kind"] for row in newest.effects} == set(EffectKind) - NOT_YET_RELEASED


@pytest.mark.parametrize("state", TAKEN_OVER)
@pytest.mark.parametrize("release", RELEASES.values(), ids=RELEASES)
async def test_every_queued_effect_of_an_older_release_is_done_once(
    tmp_path: Path, location: DatabaseLocation, release: OldRelease, state: str
) -> None:
    async with upgraded(tmp_path, location, release, state) as up:
        done_before, queued = up.done_before(), up.queued()
        if state in {"claimed, lease running", "parked"}:
            await up.relay.drain()
            assert (up.queued(), up.done()) == (queued, DONE_NEVER)
        if state == "parked":
            retry = up.relay.services.acts.retry_parked(
                RepoName(UPSTREAM), ParkedFilter(), who="ann", now=up.relay.clock.now()
            )
            assert await retry == len(queued)
        await up.relay.pass_time(60)
        await up.relay.pass_time(60)

        assert up.done() == DONE_ONCE
        now = up.queued()
        assert [(row["kind"], row["state"]) for row in now] == [(row["kind"], "done") for row in queued]
        assert {row["unsure"] for row in now} == {int(state.startswith("claimed"))}
        assert up.done_before() == done_before
        # A job that today's relay forwards too is still one row in the other HUD.
        jobs = [(row["run_id"], row["job_name"]) for row in up.hud.records.values()]
        assert len(jobs) == len(set(jobs))


@pytest.mark.slow
@pytest.mark.parametrize("release", RELEASES.values(), ids=RELEASES)
async def test_a_result_that_an_older_release_queued_for_clickhouse_is_fed(
    tmp_path: Path, location: DatabaseLocation, release: OldRelease
) -> None:
    url = new_clickhouse()
    async with upgraded(tmp_path, location, release, "waiting", CRCR_CLICKHOUSE_URL=url) as up:
        await up.relay.pass_time(60)
        link = up.relay.services.clickhouse.link
        assert link is not None
        fed = await link.query("SELECT delivery, job_name FROM crcr_jobs FINAL WHERE number = 1")
        assert fed == [{"delivery": DECIDED, "job_name": "build"}]
        assert up.fact(f"unfed WHERE delivery = '{DECIDED}'") == 0
