"""Latency of the grids with 2,000 open pull requests: rendered for each request while callbacks arrive, and from the cache.

The store is made for this: each pull request has one head that was dispatched to every backend, and every twentieth has a job
that failed; some are drafts, some are held for an approval. The base branch has as many tested commits as a page shows.
"""

import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvloop

from bench.pages.page_latency import COLD_MS, Page, describe_times, measure_page
from bench.pages.reporter import Reporter
from bench.relay_process.processes import run_relay
from bench.relay_process.relay_setup import UPSTREAM, RelaySetup, Row
from crcr.record.migrations.run import migrate

PULLS, BACKENDS, JOBS = 2_000, 24, 5
_COMMITS = 60
_MINUTE_US = 60_000_000
_BODY = b"x" * 6_000
_REPORT = b"{}" + b" " * 600
_FAILED_EVERY, _DRAFT_EVERY, _APPROVAL_EVERY = 20, 10, 15
_PATHS = (
    ("pull requests", "/crcr/pulls"),
    ("pull requests, blocked", "/crcr/pulls?only=blocked"),
    ("pull requests, failing", "/crcr/pulls?only=failing"),
    ("pull requests, waiting for people", "/crcr/pulls?only=waiting"),
    ("pull requests, of an author", "/crcr/pulls?author=author7"),
    ("pull requests, a text that none has", "/crcr/pulls?q=nowhere&state=all"),
    ("pull requests, by gate", "/crcr/pulls?sort=gate"),
    ("pull requests, by failures", "/crcr/pulls?sort=-failures"),
    ("pull requests as JSON", "/api/v1/pulls"),
    ("commits", "/crcr/commits"),
    ("commits, two backends open", "/crcr/commits?open=owner0/backend0,owner9/backend9"),
)


@dataclass(frozen=True, slots=True)
class PullStore:
    """How many of what the store gets; the backends are `owner0/backend0` and so on."""

    pulls: int = PULLS
    backends: int = BACKENDS
    jobs: int = JOBS
    """Of each backend at each commit."""
    tested: int = PULLS
    """How many of the newest pull requests were dispatched."""

    def level(self, index: int) -> int:
        return 4 if index < 2 else 3 if index < 5 else 2

    def allowlist(self) -> str:
        entries = {4: "", 3: "", 2: ""}
        for index in range(self.backends):
            name = f"owner{index}/backend{index}"
            level = self.level(index)
            entries[level] += {
                4: f"  {name}:\n    oncalls: [ada]\n    jobs: [job 0]\n",
                3: f"  device{index}:\n    {name}: [ada]\n",
                2: f"  - {name}\n",
            }[level]
        return "".join(f"L{level}:\n{lines}" for level, lines in entries.items() if lines)

    def fill(self, path: Path, now_us: int) -> None:
        migrate(path)
        with sqlite3.connect(path) as connection:
            writer = _Writer(connection, self, now_us)
            writer.write_upstream()
            for number in range(1, self.pulls + 1):
                writer.write_pull(number)
            for position in range(1, _COMMITS + 1):
                writer.write_commit(position)
        connection.close()


@dataclass(frozen=True, slots=True)
class _Writer:
    connection: sqlite3.Connection
    store: PullStore
    now_us: int

    def write_upstream(self) -> None:
        row = {"upstream": UPSTREAM, "name": UPSTREAM, "created_at": 0, "default_branch": "main"}
        self._add("upstreams", [row])

    def write_pull(self, number: int) -> None:
        sha, at = f"{number:040x}", self.now_us - (self.store.pulls - number) * _MINUTE_US
        held = (
            "draft" if number % _DRAFT_EVERY == 0 else "approval" if number % _APPROVAL_EVERY == 0 else None
        )
        failed = number % _FAILED_EVERY == 1 and held is None
        pull = {
            "upstream": UPSTREAM,
            "number": number,
            "head_sha": sha,
            "head_at": at,
            "updated_at": at,
            "is_open": 1,
            "draft": int(held == "draft"),
            "labels": "[]",
            "base_ref": "main",
            "title": f"Change {number} of the kernels",
            "author": f"author{number % 40}",
            "opened_at": at,
        }
        self._add("pulls", [pull])
        state = "failed" if failed else "pending" if held else "passed"
        gate = {"head_sha": sha, "upstream": UPSTREAM, "state": state, "title": "a title", "judged_at": at}
        self._add("gates", [gate])
        if number > self.store.pulls - self.store.tested:
            self._write_event(f"pull-{number}", sha, at, number=number, held=held, failed=failed)

    def write_commit(self, position: int) -> None:
        sha, at = f"{position + 2**40:040x}", self.now_us - (_COMMITS - position) * _MINUTE_US
        place = {"upstream": UPSTREAM, "ref": "main", "position": position, "pushed_at": at}
        self._add("base_commits", [{"sha": sha, **place, "title": f"Commit {position} (#{position})"}])
        counts = {"passed": 150, "failed": position % 7 == 0, "running": 0, "changed_at": at}
        self._add("in_tree_commits", [{"sha": sha, "upstream": UPSTREAM, **counts}])
        self._write_event(f"push-{position}", sha, at, number=None, held=None, failed=position % 9 == 0)

    def _write_event(
        self, guid: str, sha: str, at: int, *, number: int | None, held: str | None, failed: bool
    ) -> None:
        event = "pull_request" if number else "push"
        action = "opened" if number else None
        shared = {"upstream": UPSTREAM, "event": event, "action": action, "number": number, "head_sha": sha}
        delivery = {"guid": guid, "state": "accepted", "source": "webhook", "received_at": at, "body": _BODY}
        base = {"base_ref": "main" if number else None, "body_bytes": 9_000}
        self._add("deliveries", [{**shared, **delivery, **base}])
        backends = range(self.store.backends)
        sent = {"delivery": guid, "state": "held" if held else "sent", "reason": held, "created_at": at}
        self._add(
            "dispatches",
            [
                {**shared, **sent, "downstream": _name(index), "level": self.store.level(index), "lane": guid}
                for index in backends
            ],
        )
        if not held:
            self._write_jobs(guid, sha, at, shared, failing=frozenset({0, 7} if failed else ()))

    def _write_jobs(
        self, guid: str, sha: str, at: int, shared: Mapping[str, object], *, failing: frozenset[int]
    ) -> None:
        keys = {
            "upstream": UPSTREAM,
            "delivery": guid,
            "workflow": "ci.yml",
            "attempt": 1,
            "run_id": sha[-12:],
        }
        about = {name: shared[name] for name in ("event", "number", "head_sha")}
        jobs = []
        for index in range(self.store.backends):
            for job in range(self.store.jobs):
                result = "failure" if index in failing and job == 0 else "success"
                jobs.append(
                    {
                        **keys,
                        **about,
                        "downstream": _name(index),
                        "job_name": f"job {job}",
                        "reported_name": f"job {job}",
                        "state": "completed",
                        "conclusion": result,
                        "ended_as": result,
                        "level": self.store.level(index),
                        "workflow_name": "CI",
                        "in_progress_at": at,
                        "completed_at": at,
                        "silent_at": at,
                        "execution_s": 60.0,
                        "trusted": "{}",
                        "untrusted": _REPORT,
                    }
                )
        self._add("jobs", jobs)
        failures = [
            {
                **keys,
                **about,
                "downstream": _name(index),
                "job_name": "job 0",
                "kind": about["event"],
                "at": at,
                "ended": "failure",
                "rules": 1,
                "verdict": "new",
                "confidence": "high",
                "sentence": "new here",
                "judged_at": at,
                "sample": "Error: it failed",
            }
            for index in sorted(failing)
            if index < self.store.backends
        ]
        self._add("failures", failures)

    def _add(self, table: str, rows: Sequence[Mapping[str, object]]) -> None:
        if not rows:
            return
        names = ", ".join(rows[0])
        values = ", ".join(f":{name}" for name in rows[0])
        self.connection.executemany(f"INSERT INTO {table} ({names}) VALUES ({values})", rows)  # noqa: S608  ours


def _name(index: int) -> str:
    return f"owner{index}/backend{index}"


def measure_pulls(folder: Path) -> Iterator[Row]:
    run_folder = folder / "pulls"
    run_folder.mkdir(parents=True)
    store, database = PullStore(), run_folder / "pulls.db"
    began = time.perf_counter()
    store.fill(database, int(time.time() * 1e6))
    jobs = store.pulls * store.backends * store.jobs
    made = f"{store.pulls:,} open, {store.backends} backends, about {jobs:,} jobs in {time.perf_counter() - began:.0f} s"
    yield "pull requests made", made, "", True
    setup = RelaySetup(run_folder, store.backends, database=database, allowlist=store.allowlist())
    with run_relay(setup):
        setup.wait_for("/crcr")
        for name, path in _PATHS:
            page = Page(name, (path,), COLD_MS)
            yield from describe_times(page, uvloop.run(measure_page(setup, Reporter(setup, _name(9)), page)))
