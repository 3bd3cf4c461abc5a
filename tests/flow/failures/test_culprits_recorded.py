"""Culprits through the whole relay: webhooks give commits and authors, results give the commit range that broke."""

import csv
import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from flow.failures.test_verdicts_recorded import BROKEN, open_pull, push, run_ends, upstream
from github_sim.bodies import webhooks
from github_sim.github import PullRequest
from support.downstream.callbacks import BACKEND, workflow_with_jobs
from support.running_relay import UPSTREAM, RunningRelay, running_relay

LISTED = f"L2:\n  - {BACKEND}: {{paths: ['**']}}\n"


@pytest.fixture
async def relay(tmp_path: Path) -> AsyncIterator[RunningRelay]:
    async with running_relay(tmp_path, LISTED, downstreams=(BACKEND,)) as running:
        running.github.repository(BACKEND).workflows = list(workflow_with_jobs("test"))
        yield running


async def land(relay: RunningRelay, pull: PullRequest, message: str | None) -> None:
    """Merge the pull request; the backend tests the push."""
    before = upstream(relay).head_sha
    await relay.github.close_pr(pull, merged=True)
    await relay.drain()
    after = upstream(relay).head_sha
    body = webhooks.push(
        relay.github.base_url,
        upstream(relay),
        ref="refs/heads/main",
        before=before,
        after=after,
        commits=[upstream(relay).commits[after]],
        forced=False,
        pusher=pull.author,
    )
    await relay.github.emit("push", body, upstream(relay), pull.author)
    await relay.drain()
    if message != "untested":
        await run_ends(relay, relay.github.runs(BACKEND)[-1], message)


async def read_culprits(relay: RunningRelay, query: str = "") -> list[dict[str, Any]]:
    answer = await relay.http.get(f"/api/v1/culprits{query}")
    assert answer.status_code == 200, answer.text
    return list(answer.json())


async def test_a_pull_request_merged_while_failing_is_the_first_candidate(relay: RunningRelay) -> None:
    await push(relay, None, None)
    good = upstream(relay).head_sha
    innocent, guilty = await open_pull(relay, None), await open_pull(relay, BROKEN)
    await land(relay, guilty, "untested")
    await land(relay, innocent, BROKEN)
    (breakage,) = await read_culprits(relay)
    assert (breakage["backend"], breakage["job"], breakage["bisection"]) == (BACKEND, "test", None)
    assert breakage["range"] == {"good": good, "bad": upstream(relay).head_sha, "commits": 2}
    first, second = breakage["candidates"]
    assert (first["number"], first["sha"]) == (guilty.number, guilty.merge_commit_sha)
    assert first["reasons"][0] == f"#{guilty.number} was merged while this failed on it"
    assert second["number"] == innocent.number
    assert first["score"] > 0.9


async def test_title_number_revert_and_paths_of_a_pushed_commit_are_recorded(relay: RunningRelay) -> None:
    reverted = upstream(relay).head_sha
    files = {f"src/{number}.py": "new" for number in range(60)}
    message = f'Revert "Fuse it (#1)" (#2)\n\nThis reverts commit {reverted}.'
    await relay.github.push(UPSTREAM, message=message, files=files)
    (row,) = relay.rows("SELECT title, number, reverts, paths, path_count FROM base_commits")
    assert (row["title"], row["number"], row["reverts"]) == ('Revert "Fuse it (#1)" (#2)', 2, reverted)
    assert (row["paths"].count("src/"), row["path_count"]) == (50, 60)


async def test_the_merge_commit_of_a_pull_request_is_recorded_when_it_is_merged(
    relay: RunningRelay,
) -> None:
    merged, closed = await open_pull(relay, None), await open_pull(relay, None)
    await relay.github.close_pr(merged, merged=True)
    await relay.github.close_pr(closed)
    rows = relay.rows("SELECT number, merge_commit_sha FROM pulls ORDER BY number")
    assert [(row["number"], row["merge_commit_sha"]) for row in rows] == [
        (merged.number, merged.merge_commit_sha),
        (closed.number, None),
    ]


async def test_pages_show_the_most_likely_culprits(relay: RunningRelay) -> None:
    await push(relay, None, None)
    guilty = await open_pull(relay, BROKEN)
    await land(relay, guilty, BROKEN)
    (row,) = relay.rows("SELECT DISTINCT fingerprint FROM failures")
    pushes = f"/crcr/{BACKEND}?kind=push"
    for path in (f"/crcr/failures/{row['fingerprint']}", pushes):
        page = (await relay.http.get(path)).text
        assert "Broken by" in page
        assert f"#{guilty.number} was merged while this failed on it" in page
    await push(relay, None)
    assert "Broken by" not in (await relay.http.get(pushes)).text


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("?backend=nobody", 400),
        ("?backend=a/b/c", 400),
        ("?job=%00", 400),
        ("?limit=0", 400),
        ("?limit=201", 400),
        ("?backend=un/listed", 404),
        (f"?backend={BACKEND}&job=none", 200),
    ],
)
async def test_invalid_parameters_are_refused(relay: RunningRelay, query: str, status: int) -> None:
    assert (await relay.http.get(f"/api/v1/culprits{query}")).status_code == status


async def test_the_csv_has_a_line_for_each_candidate(relay: RunningRelay) -> None:
    await push(relay, None)
    innocent, guilty = await open_pull(relay, None), await open_pull(relay, BROKEN)
    await land(relay, innocent, "untested")
    await land(relay, guilty, BROKEN)
    answer = await relay.http.get("/api/v1/culprits.csv")
    lines = list(csv.DictReader(io.StringIO(answer.text, newline="")))
    assert [(line["job"], line["place"], line["number"]) for line in lines] == [
        ("test", "1", str(guilty.number)),
        ("test", "2", str(innocent.number)),
    ]
    assert lines[0]["reasons"].startswith(f"#{guilty.number} was merged while this failed on it")
