"""Small refreshes: the response for a live page, completed with the parts that it already shows, is the whole page."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import httpx

from github_sim.github import PullRequest
from support.github.gated_upstream import open_pull, write_comment
from support.running_relay import UPSTREAM, RunningRelay, running_relay
from support.sign_in import ADMIN, TOKENS

LISTED = """
L2:
  - aaa/open
  - bbb/open
  - secretcorp/hush: {visibility: hidden, hardware: hushware}
L4:
  - ccc/gates: {oncalls: [carol], jobs: [build]}
  - secretcorp/gates: {visibility: hidden, oncalls: [eve], jobs: [build]}
"""
WITH_ANOTHER = LISTED.replace("L4:", "  - ddd/late\nL4:")
ALL = ("aaa/open", "bbb/open", "ccc/gates", "ddd/late", "secretcorp/hush", "secretcorp/gates")
PAGES = (
    *("/crcr", "/crcr?sort=-last", "/crcr?range=24h&q=open", "/crcr/pr/1", "/crcr/aaa/open"),
    *("/crcr/metrics", "/crcr/deliveries"),
)
SECRET = re.compile("secretcorp|hushware")
AS_ADMIN = {"authorization": f"Bearer {ADMIN}"}
PART = re.compile(r'<(\w+)[^>]* data-part="([\w-]{6})">.*?</\1>', re.DOTALL)
STUB = re.compile(r'<template data-same="([0-9 -]+)"></template>')


def part_indexes(ranges: str) -> list[int]:
    pairs = [(ids.partition("-")[0], ids.rpartition("-")[2]) for ids in ranges.split()]
    return [index for first, last in pairs for index in range(int(first), int(last) + 1)]


def fill_stubs(answer: str, parts: Sequence[str]) -> str:
    return STUB.sub(lambda stub: "".join(parts[index] for index in part_indexes(stub[1])), answer)


def main_element(page: str) -> str:
    return page.partition('<main id="main" tabindex="-1">')[2].partition("</main>")[0]


def without_line_breaks(html: str) -> str:
    return re.sub(r"\s*\n\s*", "", html)


@dataclass
class LiveReader:
    relay: RunningRelay
    headers: dict[str, str] = field(default_factory=dict)
    shown: dict[str, str] = field(default_factory=dict)
    whole_bytes: int = 0
    sent_bytes: int = 0

    async def get(self, path: str, **query: str) -> httpx.Response:
        address = httpx.URL(path).copy_merge_params(query)
        return await self.relay.http.get(address, headers={"accept": "text/html", **self.headers})

    async def refresh(self, path: str) -> str:
        """Refresh the page as a live one does, from the parts shown last; return the response text."""
        before = self.shown[path] = self.shown.get(path) or (await self.get(path)).text
        parts = list(PART.finditer(before))
        known_parts = "".join(part[2] for part in parts)
        answer = await self.get(path, fragment="parts", have=known_parts)
        assert answer.status_code == 200
        main, _, outside = fill_stubs(answer.text, [part[0] for part in parts]).partition(
            "<template data-outside"
        )
        self.shown[path] = (await self.get(path)).text
        assert without_line_breaks(main) == without_line_breaks(main_element(self.shown[path]))
        self.sent_bytes, self.whole_bytes = (
            self.sent_bytes + len(answer.text),
            self.whole_bytes + len(main + outside),
        )
        return answer.text


async def change_something(relay: RunningRelay, pull: PullRequest, random: Random) -> None:
    match random.choices(("job", "open", "push", "waive", "list", "wait"), (10, 1, 1, 1, 1, 2))[0]:
        case "job":
            run = random.choice([run for name in ALL for run in relay.github.runs(name)[-3:]])
            job = run.jobs[0]
            if job.status == "queued":
                await relay.github.start_job(run, job.name)
            else:
                await relay.github.complete_job(run, job.name, random.choice(["success", "failure"]))
        case "open":
            await relay.github.open_pr(UPSTREAM, title=f"More {random.random()}")
        case "push":
            await relay.github.push_to_pr(pull)
        case "waive":
            await write_comment(relay, pull, "/crcr waive ccc/gates because known")
        case "list":
            relay.write_allowlist(random.choice([LISTED, WITH_ANOTHER]))
            await relay.refresh()
        case "wait":
            await relay.pass_time(random.choice([20, 4_000, 50_000]))
    await relay.drain()


async def test_a_page_completed_from_parts_equals_the_whole_page_after_any_change(tmp_path: Path) -> None:
    random = Random(17)
    async with running_relay(tmp_path, LISTED, downstreams=ALL, **TOKENS) as relay:
        relay.github.set_permission(UPSTREAM, "maintainer", "maintain")
        pull = await open_pull(relay, title="one")
        readers = (LiveReader(relay), LiveReader(relay), LiveReader(relay, AS_ADMIN))
        for _ in range(60):
            await change_something(relay, pull, random)
            for path in random.sample(PAGES, 2):
                reader = random.choice(readers)
                sent = await reader.refresh(path)
                assert reader.headers or not SECRET.search(sent)
        assert SECRET.search(readers[2].shown["/crcr"])
        # Pages of four backends: most of what they hold, such as the relay's facts, changes with every event.
        sent, whole = (sum(getattr(one, name) for one in readers) for name in ("sent_bytes", "whole_bytes"))
        assert sent < 0.55 * whole
