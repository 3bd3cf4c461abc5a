"""The demo's traffic against a minimal relay, in virtual time: nothing really sleeps."""

import asyncio
import heapq
import itertools
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import httpx

from crcr.demo.traffic import BLOCKED, LABELLED, NIGHTLY, UPSTREAM, NightlyRuns, demo_world, run_traffic
from crcr.demo.upstream_activity import MOST_OPEN
from crcr.demo.world import BACKENDS, GATING, MAINTAINERS, MOST_COMMANDS_AN_HOUR, NPU_LABEL, OUTSIDERS
from github_sim.clock import ManualClock
from github_sim.github import CheckRun, GitHub
from github_sim.world.records import Json, RepositoryDispatch


class VirtualTime:
    """Sleepers wake in the order of their times; the clock jumps from one to the next."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self._start = self.clock.now()
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    @property
    def passed_s(self) -> float:
        return (self.clock.now() - self._start).total_seconds()

    async def sleep(self, seconds: float) -> None:
        wake: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (self.passed_s + seconds, next(self._order), wake))
        await wake

    async def run_for(self, seconds: float) -> None:
        while self.passed_s < seconds:
            for _ in range(50):
                await asyncio.sleep(0)
            at, _, wake = heapq.heappop(self._waiting)
            self.clock.advance(max(at - self.passed_s, 0))
            if not wake.done():
                wake.set_result(None)


class Relay:
    """Every webhook starts runs of all backends; every seventh report gets a 429."""

    backends = tuple(BACKENDS)

    def __init__(self) -> None:
        self.reports: list[tuple[str, dict[str, Any]]] = []
        self.github: GitHub | None = None
        self._count = itertools.count(1)

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        if request.url.path == "/cb":
            if next(self._count) % 7 == 0:
                return httpx.Response(429, headers={"retry-after": "1"})
            self.reports.append((body["workflow"]["url"], body["workflow"]))
            self.receive_report(body)
            return httpx.Response(200)
        self.receive_event(request.headers["x-github-event"], body)
        if body.get("action", "pushed") in {"pushed", "opened", "synchronize", "closed", "checks_requested"}:
            self.start_runs(body)
        return httpx.Response(202)

    def start_runs(self, body: dict[str, Any]) -> None:
        payload = {"delivery_id": "d", "payload": body, "relay": {"callback_url": "http://relay.test/cb"}}
        assert self.github is not None
        for name in self.backends:
            self.github.ci.start_runs(self.github.repository(name), "repository_dispatch", "x", payload)

    def receive_event(self, event: str, body: dict[str, Any]) -> None:
        """Ignore the event."""

    def receive_report(self, body: dict[str, Any]) -> None:
        """Ignore the report."""


NOVA = "novagpu/tensorium-nova"


class Gatekeeper(Relay):
    """Publishes a gate on heads and merge groups: its only backend's result, unless a maintainer has waived it."""

    backends = GATING

    def __init__(self) -> None:
        super().__init__()
        self.waived: dict[int, str] = {}
        self.commands: list[tuple[str, str]] = []
        self.seen: list[tuple[int, str]] = []
        self.left_queue: list[str] = []
        self.reruns = 0

    def receive_event(self, event: str, body: dict[str, Any]) -> None:
        if event == "issue_comment" and "/crcr" in body["comment"]["body"]:
            self._obey(body["comment"]["user"]["login"], body["comment"]["body"], body["issue"]["number"])
        elif body.get("action") in {"opened", "synchronize", "checks_requested"}:
            number, sha = _subject(body)
            self._show(number, sha, "crcr/gate", None)
        elif event == "merge_group":
            self.left_queue.append(body["reason"])
        self.reruns += body.get("action") == "rerequested"

    def receive_report(self, body: dict[str, Any]) -> None:
        job = body["workflow"]
        if NOVA not in job["url"] or job["job_name"] != "test-ops" or job["status"] != "completed":
            return
        if not {"pull_request", "merge_group"} & body["payload"].keys():
            return
        number, sha = _subject(body["payload"])
        self._show(number, sha, f"crcr/{NOVA}", job["conclusion"])
        self._show(number, sha, "crcr/gate", "success" if number in self.waived else job["conclusion"])

    def _obey(self, login: str, words: str, number: int) -> None:
        self.commands.append((login, words))
        assert self.github is not None
        if "waive" in words and login in MAINTAINERS:
            self.waived[number] = login
            pull = self.github.world.pulls[(self.github.repository(UPSTREAM).id, number)]
            self._show(number, pull.head_sha, "crcr/gate", "success")

    def _show(self, number: int, sha: str, name: str, conclusion: str | None) -> None:
        assert self.github is not None
        status = "completed" if conclusion else "in_progress"
        made = CheckRun(
            self.github.world.next_id("check_run"),
            self.github.repository(UPSTREAM).id,
            sha,
            name=name,
            status=status,
            conclusion=conclusion,
        )
        self.github.world.check_runs[made.id] = made
        if name == "crcr/gate":
            self.seen.append((number, conclusion or status))


def _subject(body: dict[str, Any]) -> tuple[int, str]:
    if group := body.get("merge_group"):
        return int(group["head_ref"].split("/pr-")[1].split("-")[0]), group["head_sha"]
    return body["number"], body["pull_request"]["head"]["sha"]


@asynccontextmanager
async def run_demo(relay: Relay, *, seed: int = 5) -> AsyncIterator[tuple[GitHub, VirtualTime]]:
    """The demo's upstream with its traffic, while the `async with` block runs."""
    time, stop = VirtualTime(), asyncio.Event()
    async with GitHub(
        clock=time.clock,
        webhook_url="http://relay.test/hook",
        transport=httpx.MockTransport(relay),
        sleep=time.sleep,
    ) as github:
        relay.github = github
        demo_world(github)
        traffic = asyncio.create_task(
            run_traffic(github, UPSTREAM, seed=seed, speed=1.0, stop=stop, sleep=time.sleep)
        )
        yield github, time
        stop.set()
        await traffic
        github.finish()


async def test_the_demo_shows_results_of_every_kind_within_a_minute() -> None:
    relay = Relay()
    async with run_demo(relay) as (github, time):
        await time.run_for(20)
        assert any(each["status"] == "completed" for _, each in relay.reports)
        await time.run_for(60)
    assert {each["conclusion"] for _, each in relay.reports} >= {None, "success", "failure"}
    assert any(each.status == 429 for each in github.callback_log)
    assert not any("edge-labs/edge-runtime" in url for url, _ in relay.reports)
    assert {"build (npu910, 3.11)", "build (npu310, 3.12)"} <= {each["job_name"] for _, each in relay.reports}


async def test_the_demo_starts_with_a_label_a_blocking_gate_a_waiver_and_the_queue() -> None:
    relay = Gatekeeper()
    async with run_demo(relay) as (github, time):
        await time.run_for(1)
        upstream_id = github.repository(UPSTREAM).id
        labelled, blocked = (github.world.pulls[(upstream_id, number)] for number in (LABELLED, BLOCKED))
        assert labelled.labels == [NPU_LABEL]
        await time.run_for(20)
        states = [state for number, state in relay.seen if number == BLOCKED]
        assert states[:3] == ["in_progress", "failure", "success"]
        assert relay.waived == {BLOCKED: relay.waived[BLOCKED]}
        question, refused, waived = relay.commands[:3]
        assert question == (blocked.author.login, "What am I waiting for?\n/crcr status")
        assert refused[0] in OUTSIDERS
        assert waived[1].startswith(f"/crcr waive {NOVA} at {blocked.head_sha[:12]} because ")
        await time.run_for(45)
    assert (labelled.merged, blocked.merged) == (True, True)
    assert "merged" in relay.left_queue


async def test_a_long_demo_merges_by_the_rules_and_never_stalls() -> None:
    relay = Gatekeeper()
    async with run_demo(relay, seed=3) as (github, time):
        for minute in range(1, 16):
            await time.run_for(minute * 60)
            waiting = github.merge_queue(UPSTREAM)
            assert all(github.clock.now() - group.created_at < timedelta(minutes=1) for group in waiting)
        pulls = github.world.pulls.values()
        assert 1 < sum(pull.state == "open" for pull in pulls) <= MOST_OPEN
    assert relay.left_queue.count("merged") > 15
    assert "invalidated" in relay.left_queue
    assert relay.reruns
    assert "cancelled" in {each["conclusion"] for _, each in relay.reports}
    # The relay accepts ten commands per hour from a person.
    assert max(Counter(login for login, _ in relay.commands).values()) <= MOST_COMMANDS_AN_HOUR


async def test_old_records_are_dropped(github: GitHub) -> None:
    for _ in range(5):
        await github.push("org/upstream")
        await github.close_pr(await github.open_pr("org/upstream"))
    kept = await github.open_pr("org/upstream")
    github.drop_old_records(2)
    assert len(github.deliveries()) == 2
    assert [pull.number for pull in github.world.pulls.values()] == [4, 5, kept.number]


async def test_after_stop_activity_the_simulator_responds_and_sends_no_webhooks(
    github: GitHub, received_requests: list[httpx.Request]
) -> None:
    await github.push("org/upstream")
    await github.stop_activity()
    delivery = await github.push("org/upstream")
    assert delivery is not None
    assert (len(received_requests), delivery.status_code) == (1, 502)
    github.spawn(asyncio.sleep(3600))
    github.finish()


async def test_a_nightly_reports_to_the_relay_of_the_backends_last_dispatch() -> None:
    received_requests: list[Json] = []

    def record(request: httpx.Request) -> httpx.Response:
        received_requests.append({"url": str(request.url), **json.loads(request.content)})
        return httpx.Response(200, json={"ok": True})

    async with GitHub(seed=1, transport=httpx.MockTransport(record)) as github:
        demo_world(github)
        nights, backend = NightlyRuns(github, UPSTREAM, 1), "quantix/tpu-bridge"
        await nights.one(backend)
        assert received_requests == [], "nobody has told it of a relay yet"
        relay = {"callback_url": "http://relay.test/github/callback", "audience": "relay"}
        repository = github.repository(backend)
        dispatch = RepositoryDispatch(repository.id, "push", {"relay": relay}, github.clock.now(), None, 10)
        github.world.dispatches.append(dispatch)
        for _ in range(8):
            await nights.one(backend)
        assert {each["url"] for each in received_requests} == {relay["callback_url"]}
        assert {each["event_type"] for each in received_requests} == {"nightly"}
        assert {each["workflow"]["status"] for each in received_requests} == {"completed"}
        assert github.repository(UPSTREAM).head_sha in {each["delivery_id"] for each in received_requests}
        assert repository.workflows.count(NIGHTLY) == 1
