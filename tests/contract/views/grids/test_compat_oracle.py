"""The compatibility matrix agrees with an oracle that judges random histories row by row, on both stores."""

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from sqlalchemy import insert, select

from crcr.decide.compatibility import CompatQuery, CompatState, GreenMatch, GroupKind, LatestGreen
from crcr.decide.events import PushEvent
from crcr.decide.model import Level, RepoName
from crcr.errors import BadRequest
from crcr.record.failures.base_commits import note_pushed_commits
from crcr.record.schema import failures, joining, main_tables
from support.data.store_rows import UPSTREAM, StoreRows, open_store_rows

ALLOWLIST = """
L2:
  - b/zero
  - b/one: {hardware: "NPU 910B"}
  - b/two
  - b/three
  - s/secret: {visibility: hidden}
L3:
  npu:
    b/four: [ada]
    b/five: [ada]
    b/six: [ada]
L4:
  - b/seven: {oncalls: [bob], jobs: [build]}
"""
BACKENDS = ("b/zero", "b/one", "b/two", "b/three", "b/four", "b/five", "b/six", "b/seven", "s/secret")
OUTCOMES = ("success", "failure", "cancelled", "skipped", "timed_out", None)
PLAIN = {"upstream": UPSTREAM.key}


@pytest.fixture(params=[False, True], ids=["sqlite", "postgresql"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StoreRows]:
    async with open_store_rows(tmp_path, on_postgresql=request.param) as rows:
        rows.allowlist(ALLOWLIST)
        yield rows


def sha_of(number: int) -> str:
    return f"{number * 7919 % 65_521:040x}"


class History:
    """A branch with random pushes, merge groups, nightlies, re-runs, superseded and missing runs."""

    def __init__(self, store: StoreRows, seed: int, commits: int, green: float) -> None:
        self.store, self.chance, self.green = store, Random(seed), green
        self.rows: dict[Any, list[dict[str, Any]]] = {}
        for number in range(1, commits + 1):
            self._add_commit(number)
        store.base_commit(sha_of(0), 0)
        with store.engine.begin() as connection:
            for table, rows in self.rows.items():
                for start in range(0, len(rows), 100):
                    connection.execute(insert(table).values(rows[start : start + 100]))
        store.sum_up()

    def _add(self, table: Any, **row: Any) -> None:
        self.rows.setdefault(table, []).append({**PLAIN, **row})

    def _add_commit(self, number: int) -> None:
        # Commits of the last day may have open runs.
        sha, at = sha_of(number), self.store.ago(minutes=2_000 - 20 * number)
        # Pushes arrive in any order: only positions order the commits.
        self._add(
            failures.base_commits,
            sha=sha,
            ref="main",
            position=number,
            pushed_at=at + self.chance.randrange(10**9),
        )
        if self.chance.random() < 0.2:
            return
        for event in ("push", "merge_group", "push", "pull_request", "crcr_test"):
            if self.chance.random() < {"push": 0.7, "merge_group": 0.4}.get(event, 0.1):
                self._add_delivery(event, sha, at)
        if self.chance.random() < 0.3:
            self._add(joining.commits, sha=sha, standing="base", branch="main", seen_at=at, ask_at=at)
            for backend in BACKENDS:
                for _ in range(self.chance.choice((0, 0, 1, 2))):
                    self._add_run(sha, backend, "nightly", sha, at)

    def _add_delivery(self, event: str, sha: str, at: int) -> None:
        guid = f"d-{self.chance.getrandbits(40):x}"
        facts = {"event": event, "state": "accepted", "source": "webhook", "head_sha": sha, "body_bytes": 1}
        self._add(main_tables.deliveries, guid=guid, received_at=at + self.chance.randrange(10**9), **facts)
        for backend in BACKENDS:
            if self.chance.random() < 0.8:
                self._add_run(guid, backend, event, sha, at)

    def _add_run(self, delivery: str, backend: str, event: str, sha: str, at: int) -> None:
        chance = self.chance
        run_id, superseded = str(chance.getrandbits(40)), int(delivery != sha and chance.random() < 0.1)
        began, is_good = at + chance.randrange(10**9), chance.random() < self.green
        if delivery != sha:
            self._add_github_run(delivery, backend, event, run_id, superseded, at)
        for name in ("build", "test")[: chance.choice((1, 2, 2))]:
            for attempt in range(1, chance.choice((2, 2, 2, 3, 4))):
                chances = (95, 1, 1, 4, 1, 1) if is_good else (6, 4, 1, 2, 1, 1)
                conclusion = chance.choices(OUTCOMES, chances)[0]
                expected = chance.choice((None,) * 12 + ("failure",))
                self._add(
                    main_tables.jobs,
                    delivery=delivery,
                    downstream=backend,
                    workflow="ci.yml",
                    run_id=run_id,
                    attempt=attempt,
                    job_name=name,
                    reported_name=name,
                    level=2,
                    event=event,
                    state="completed" if conclusion else "in_progress",
                    conclusion=conclusion,
                    expected=expected,
                    superseded=superseded,
                    head_sha=sha,
                    workflow_name="CI",
                    in_progress_at=began + attempt,
                    silent_at=0,
                    trusted="{}",
                    untrusted=b"",
                )

    def _add_github_run(
        self, delivery: str, backend: str, event: str, run_id: str, superseded: int, at: int
    ) -> None:
        """Add the dispatch and GitHub's state of its run."""
        chance, of_run = self.chance, {"delivery": delivery, "downstream": backend}
        self._add(
            main_tables.dispatches,
            level=chance.choice((2, 3, 4, 4)),
            state="sent",
            event=event,
            lane="x",
            created_at=at,
            reads_actions=chance.choice((1, 1, 1, 0, None)),
            **of_run,
        )
        self._add(
            main_tables.runs,
            run_id=run_id,
            workflow="ci.yml",
            workflow_name="CI",
            issuer=chance.choice(("github", "github", "gitlab")),
            superseded=superseded,
            first_seen_at=at,
            attempt=2,
            over_attempt=chance.choice((2,) * 20 + (1, None)),
            **of_run,
        )


@dataclass
class Oracle:
    """Plain Python over plain rows: it shares only the names of the states with the relay."""

    jobs: dict[tuple[str, str], list[Any]]
    """By delivery and backend."""
    deliveries: dict[str, list[Any]]
    """By commit."""
    shas: list[str]
    """The commits' SHAs, newest first."""
    open_runs: set[tuple[str, str]]
    """Pairs of delivery (of the last day) and backend whose run GitHub has not reported as finished."""

    @classmethod
    def over(cls, store: StoreRows) -> "Oracle":
        def read(table: Any) -> list[Any]:
            with store.engine.begin() as connection:
                return [row._mapping for row in connection.execute(select(table)).all()]

        jobs: dict[tuple[str, str], list[Any]] = {}
        for job in read(main_tables.jobs):
            jobs.setdefault((job["delivery"], job["downstream"]), []).append(job)
        deliveries: dict[str, list[Any]] = {}
        for delivery in read(main_tables.deliveries):
            deliveries.setdefault(delivery["head_sha"], []).append(delivery)
        commits = sorted(read(failures.base_commits), key=lambda row: -row["position"])
        observable = {
            (row["delivery"], row["downstream"])
            for row in read(main_tables.dispatches)
            if row["level"] >= 3 and row["reads_actions"] == 1
        }
        recent = {
            row["guid"] for row in read(main_tables.deliveries) if row["received_at"] >= store.ago(days=1)
        }
        open_runs = {
            (run["delivery"], run["downstream"])
            for run in read(main_tables.runs)
            if run["issuer"] == "github"
            and not run["superseded"]
            and (run["over_attempt"] or 0) < run["attempt"]
        }
        recent_open_runs = {key for key in open_runs & observable if key[0] in recent}
        return cls(jobs, deliveries, [row["sha"] for row in commits], recent_open_runs)

    def state(self, sha: str, backend: str) -> str | None:
        ages = {
            row["guid"]: (row["received_at"], row["guid"])
            for row in self.deliveries.get(sha, ())
            if row["event"] in ("push", "merge_group")
        }
        results: dict[Any, list[Any]] = {}
        for delivery in (*ages, sha):
            for job in self.jobs.get((delivery, backend), ()):
                if not job["superseded"]:
                    key = (delivery == sha, job["workflow"], job["job_name"])
                    results.setdefault(key, []).append(job)
        outcomes = set()
        is_reported = any(not is_night for is_night, *_ in results)
        if is_reported and any((delivery, backend) in self.open_runs for delivery in ages):
            outcomes.add("open")
        for (is_night, *_), rows in results.items():
            if is_night:
                run = max(rows, key=lambda row: row["in_progress_at"])
            else:
                run = max(rows, key=lambda row: ages[row["delivery"]])
            counted = [row for row in rows if row["delivery"] == run["delivery"]]
            if is_night:
                counted = [row for row in counted if row["run_id"] == run["run_id"]]
            for run_id in {row["run_id"] for row in counted}:
                last = max(
                    (row for row in counted if row["run_id"] == run_id), key=lambda row: row["attempt"]
                )
                outcomes.add(self.outcome_of(last))
        for outcome, state in (
            ("bad", "failed"),
            ("open", "running"),
            ("cancelled", "inconclusive"),
            ("good", "green"),
        ):
            if outcome in outcomes:
                return state
        return "inconclusive" if outcomes else None

    @staticmethod
    def outcome_of(job: Any) -> str:
        if job["state"] == "in_progress":
            return "open"
        if job["expected"] is not None:
            return "good" if job["conclusion"] == job["expected"] else "bad"
        return {"success": "good", "cancelled": "cancelled", "skipped": "skipped"}.get(
            job["conclusion"], "bad"
        )

    def accepts(self, states: list[str | None], index: int, match: GreenMatch) -> bool:
        if states[index] == "green":
            return True
        if match is GreenMatch.EXACT or states[index] in ("failed", "running"):
            return False
        before = next((state for state in states[index:] if state in ("green", "failed")), None)
        after = next((state for state in reversed(states[:index]) if state in ("green", "failed")), None)
        return before == after == "green"

    def latest(self, backends: Iterable[str], match: GreenMatch) -> str | None:
        lines = [[self.state(sha, backend) for sha in self.shas] for backend in backends]
        for index, sha in enumerate(self.shas):
            if all(self.accepts(line, index, match) for line in lines):
                return sha
        return None


CHOICES: tuple[dict[str, Any], ...] = (
    {},
    {"level": Level.L4},
    {"level": Level.L2},
    {"hardware": "910b"},
    {"backends": (RepoName("b/zero"), RepoName("B/Seven"))},
    {"backends": (RepoName("b/one"), RepoName("b/two"), RepoName("b/three"))},
)


@pytest.mark.parametrize(("seed", "commits", "green"), [(1, 60, 0.93), (2, 70, 0.1)])
async def test_the_newest_common_green_commits_and_all_cells_match_the_oracle(
    store: StoreRows, seed: int, commits: int, green: float
) -> None:
    History(store, seed, commits, green)
    oracle, now = Oracle.over(store), store.clock.now()
    matches = 0
    for choice in CHOICES:
        query = CompatQuery(upstream=UPSTREAM, commits=200, **choice)
        view = await store.views.compat(query, now)
        keys = [backend.name.key for backend in view.backends]
        for match, latest in ((GreenMatch.EXACT, view.exact), (GreenMatch.BETWEEN, view.between)):
            latest_view = await store.views.latest_green(
                CompatQuery(upstream=UPSTREAM, match=match, **choice),
                now,
            )
            assert latest_view == latest
            assert _sha(latest_view) == oracle.latest(keys, match), (choice, match)
            matches += latest_view is not None
            if latest_view is not None:
                states = [oracle.state(latest_view.commit.sha, key) for key in keys]
                assert [name.key for name in latest_view.between] == [
                    key for key, state in zip(keys, states, strict=True) if state != "green"
                ]
                assert latest_view.commit.newer_commits == oracle.shas.index(latest_view.commit.sha)
        for backend in view.backends:
            last_green = backend.last_green.sha if backend.last_green else None
            assert last_green == oracle.latest([backend.name.key], GreenMatch.EXACT)
        for group in view.groups:
            assert group.commits
            for commit in group.commits:
                for cell in commit.cells:
                    assert cell.state == oracle.state(commit.sha, cell.backend.key)
    assert matches  # otherwise only empty results were compared


def _sha(latest: LatestGreen | None) -> str | None:
    return latest.commit.sha if latest else None


async def test_a_late_push_does_not_move_a_tag_back_and_annotated_tags_resolve_to_commits(
    store: StoreRows,
) -> None:
    async def push(after: str, commit: str | None, minutes: int, *, deleted: bool = False) -> None:
        at = store.clock.now() + timedelta(minutes=minutes)
        event = PushEvent(
            upstream=UPSTREAM,
            repository_id=1,
            ref="refs/tags/v1.0",
            before="0" * 40,
            after=after,
            deleted=deleted,
            changed_paths=frozenset(),
            installation_id=None,
            pushed_at=at,
            head_commit=commit,
        )
        await store.database.write(lambda tx: note_pushed_commits(tx, event, store.clock.now()))

    def tags() -> list[Any]:
        with store.engine.begin() as connection:
            return [tuple(row)[1:4] for row in connection.execute(select(failures.upstream_tags)).all()]

    await push("b" * 40, None, 2)
    await push("a" * 40, "c" * 40, 1)
    assert tags() == [("v1.0", "b" * 40, "b" * 40)]
    await push("a" * 40, "c" * 40, 3)
    await push("0" * 40, None, 2, deleted=True)
    assert tags() == [("v1.0", "c" * 40, "a" * 40)]
    await push("0" * 40, None, 3, deleted=True)
    assert tags() == []


async def test_hidden_backends_are_unknown_to_the_public_and_selectable_by_administrators(
    store: StoreRows,
) -> None:
    History(store, 4, 6, 1.0)
    secret = CompatQuery(upstream=UPSTREAM, backends=(RepoName("s/secret"),))
    unknown = CompatQuery(upstream=UPSTREAM, backends=(RepoName("s/unlisted"),))
    refusals = []
    for query in (secret, unknown):
        with pytest.raises(BadRequest) as refused:
            await store.views.latest_green(query, store.clock.now())
        refusals.append(str(refused.value).replace(str(query.backends[0]), "X"))
    assert refusals[0] == refusals[1]
    public = await store.views.compat(CompatQuery(upstream=UPSTREAM, level=Level.L2), store.clock.now())
    assert "s/secret" not in {backend.name.key for backend in public.backends}
    admins = await store.views.for_admins().compat(secret, store.clock.now())
    assert [backend.name.key for backend in admins.backends] == ["s/secret"]


async def test_release_branches_and_version_tags_have_their_own_columns(store: StoreRows) -> None:
    store.base_commit(sha_of(1), 1)
    store.base_commit(sha_of(2), 1, ref="release/2.9")
    store.base_commit(sha_of(3), 1, ref="release/2.10")
    store.base_commit(sha_of(1), 1, ref="feature/x")
    tag = {**PLAIN, "pushed_at": store.ago(hours=1)}
    store.add(failures.upstream_tags, {**tag, "name": "v2.10.0", "sha": sha_of(3), "object_sha": "e" * 40})
    for sha in (sha_of(1), sha_of(2), sha_of(3), "e" * 40):
        guid = store.delivery(number=None, head_sha=sha, ref="refs/heads/any")
        conclusion = "failure" if sha == "e" * 40 else "success"
        store.job(guid, conclusion, downstream="b/seven", event="push", number=None, head_sha=sha)
    store.sum_up()
    query = CompatQuery(upstream=UPSTREAM, level=Level.L4, branch=None)
    with store.engine.begin() as connection:
        connection.execute(main_tables.upstreams.update().values(default_branch="main"))
    view = await store.views.compat(query, store.clock.now())
    columns = [(group.kind, group.name, [commit.sha for commit in group.commits]) for group in view.groups]
    assert columns == [
        (GroupKind.BRANCH, "main", [sha_of(1)]),
        (GroupKind.RELEASE, "release/2.10", [sha_of(3)]),
        (GroupKind.RELEASE, "release/2.9", [sha_of(2)]),
        (GroupKind.TAGS, "tags", [sha_of(3)]),
    ]
    [tagged] = view.groups[-1].commits
    # A result reported for the tag object counts for its commit in the tags column, not in the branch's column.
    assert (tagged.label, tagged.cells[0].state) == ("v2.10.0", CompatState.FAILED)
    assert view.groups[1].commits[0].cells[0].state is CompatState.GREEN
