"""Cached pages of the whole relay: random facts and times; each response is compared with a fresh rendering."""

import random
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx
import pytest

from crcr.record.views.relay.state import newest_change
from crcr.show.cache.rendered_page import MAX_AGE_S
from crcr.wiring.web_app import build_app
from github_sim.github import PullRequest
from support.running_relay import RELAY_URL, UPSTREAM, RunningRelay, running_relay
from support.sign_in import ADMIN, TOKENS

REPORTING, GATING, HIDDEN = "org/reporting", "org/gating", "secretcorp/hush"
LISTED = (
    f"L2:\n  - {REPORTING}\n  - {HIDDEN}: {{visibility: hidden}}\n"
    f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: [build, test]}}\n"
)
SEEDS = range(3)
STEPS = 30


def fresh_client(relay: RunningRelay) -> httpx.AsyncClient:
    """A client of the same relay without a page cache."""
    app = build_app(replace(relay.services, pages_kept_for_s=0), work=False)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=RELAY_URL)


@dataclass
class World:
    relay: RunningRelay
    draw: random.Random
    pulls: list[PullRequest] = field(default_factory=list)

    def addresses(self) -> list[str]:
        pull = self.draw.choice(self.pulls)
        return [
            *("/crcr", "/crcr?range=24h", "/crcr?fragment=main", "/crcr/metrics", "/api/v1/summary"),
            *("/crcr/failures", "/crcr/levels"),
            *(f"/crcr/{GATING}", f"/badge/{GATING}.svg", f"/api/v1/backends/{REPORTING}"),
            *(f"/crcr/pr/{pull.number}", f"/crcr/commit/{pull.head_sha}", f"/api/v1/pulls/{pull.number}"),
            f"/crcr/{HIDDEN}",
        ]

    async def change_something(self) -> None:
        github = self.relay.github
        act = self.draw.choice(
            ("open", "push", "close", "job", "job", "job", "job", "waive", "drain", "time", "time")
        )
        if act == "open" or not self.pulls:
            self.pulls.append(await github.open_pr(UPSTREAM))
        elif act == "push":
            await github.push_to_pr(self.draw.choice(self.pulls))
        elif act == "close":
            await github.close_pr(self.draw.choice(self.pulls))
        elif act == "waive":
            comment = f"/crcr waive {GATING} reason: flaky for {self.draw.choice((1, 30))}h"
            await github.comment_pr(self.draw.choice(self.pulls), comment)
        elif act == "job":
            await self._report()
        elif act == "time":
            self.relay.clock.advance(self.draw.choice((1.0, 59.0, 3_600.0, 7 * 3_600.0, 3 * 86_400.0)))
        if self.draw.random() < 0.7:
            await self.relay.drain()

    async def _report(self) -> None:
        github = self.relay.github
        runs = [run for name in (REPORTING, GATING, HIDDEN) for run in github.runs(name)]
        if not runs:
            return
        run, name = self.draw.choice(runs[-6:]), self.draw.choice(("build", "test"))
        job = run.job(name)
        if job.status == "queued":
            await github.start_job(run, name)
        elif job.status == "in_progress":
            await github.complete_job(run, name, self.draw.choice(("success", "failure")))


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_cached_page_equals_a_fresh_rendering(tmp_path: Path, seed: int) -> None:
    """A request that names a change gets a page of that change or a later one; all others get the newest."""
    downstreams = (REPORTING, GATING, HIDDEN)
    async with (
        running_relay(tmp_path, LISTED, downstreams=downstreams) as relay,
        fresh_client(relay) as fresh,
    ):
        relay.github.set_permission(UPSTREAM, "maintainer", "maintain")
        world = World(relay, random.Random(seed))
        renderings: dict[str, list[tuple[int, bytes]]] = defaultdict(list)
        cached_count = 0
        for _ in range(STEPS):
            before = await relay.services.database.read(newest_change)
            await world.change_something()
            newest = await relay.services.database.read(newest_change)
            if newest == before:
                relay.clock.advance(
                    MAX_AGE_S
                )  # some facts are not in the change log, such as a comment's arrival
            for path in world.draw.sample(world.addresses(), 4):
                rendered = await fresh.get(path)
                answers = [await relay.http.get(path) for _ in range(2)]
                assert {(answer.status_code, answer.content) for answer in answers} == {
                    (rendered.status_code, rendered.content)
                }, path
                cached_count += "s-maxage" in answers[-1].headers.get("cache-control", "")
                renderings[path].append((newest, rendered.content))
                version = world.draw.randint(0, newest)
                older = await relay.http.get(f"{path}{'&' if '?' in path else '?'}v={version}")
                assert older.content in {body for at, body in renderings[path] if at >= version}, path
        assert cached_count > STEPS


class SharedCache:
    """An HTTP cache between readers and relay, keyed by URL and by the headers that `Vary` names."""

    def __init__(self, relay: RunningRelay) -> None:
        self._http = relay.http
        self._kept: dict[tuple[str, tuple[tuple[str, str], ...]], httpx.Response] = {}
        self._vary: dict[str, list[str]] = {}
        self.hits = 0

    async def get(self, path: str, headers: Mapping[str, str]) -> httpx.Response:
        key = (path, tuple((name, headers.get(name, "")) for name in self._vary.get(path, [])))
        if path in self._vary and key in self._kept:
            self.hits += 1
            return self._kept[key]
        answer = await self._http.get(path, headers=dict(headers))
        control = answer.headers.get("cache-control", "")
        if "public" in control and "no-store" not in control and "private" not in control:
            names = [
                name.strip().lower() for name in answer.headers.get("vary", "").split(",") if name.strip()
            ]
            self._vary[path] = [name for name in names if name != "accept-encoding"]
            self._kept[path, tuple((name, headers.get(name, "")) for name in self._vary[path])] = answer
        return answer


async def test_hidden_backends_do_not_leak_to_strangers_through_a_shared_cache(tmp_path: Path) -> None:
    downstreams = (REPORTING, GATING, HIDDEN)
    async with running_relay(tmp_path, LISTED, downstreams=downstreams, **TOKENS) as relay:
        pull = await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        shared, draw = SharedCache(relay), random.Random(1)
        pages = ("/crcr", "/api/v1/summary", f"/crcr/pr/{pull.number}", "/crcr/metrics", "/api/v1/allowlist")
        for _ in range(80):
            admin = draw.random() < 0.5
            headers = {"authorization": f"Bearer {ADMIN}"} if admin else {}
            path = draw.choice(pages)
            answer = await shared.get(path, headers)
            if admin:
                assert answer.headers["cache-control"] == "private, no-store"
            assert ("secretcorp" in answer.text) == admin, (path, admin)
        assert shared.hits > 10
        with_cookie = await relay.http.get("/crcr", headers={"cookie": "theme=dark"})
        assert with_cookie.headers["cache-control"] == "private, no-store"
        assert "cdn-cache-control" not in with_cookie.headers
