"""The lists of pull requests and commits over HTTP: from webhooks to rows, JSON, CSV; invalid requests; hidden backends."""

import csv
import io
from pathlib import Path
from typing import Any

from support.running_relay import UPSTREAM, RunningRelay, running_relay

ALLOWLIST = """
L1:
  - org/notified
L2:
  - org/reporter
  - org/hidden: {visibility: hidden}
"""
DOWNSTREAMS = ("org/notified", "org/reporter", "org/hidden")


async def get(relay: RunningRelay, path: str) -> Any:
    answer = await relay.http.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def report(relay: RunningRelay, run: Any, job: str, conclusion: str) -> None:
    job_fields = {"name": "CI", "job_name": job, "run_id": run.id, "run_attempt": 1}
    for status in ("in_progress", "completed"):
        workflow = {**job_fields, "status": status, "conclusion": conclusion}
        body = {"event_type": "push", "delivery_id": run.delivery_id, "workflow": workflow}
        answer = await relay.github.report(run, run.jobs[0], status=status, body=body)
        assert answer.status_code == 200


async def test_a_pull_request_webhook_becomes_a_row_in_page_json_and_csv(tmp_path: Path) -> None:
    async with running_relay(tmp_path, ALLOWLIST, downstreams=DOWNSTREAMS) as relay:
        first = await relay.github.open_pr(UPSTREAM, title="Fuse <b>it</b>")
        await relay.github.open_pr(UPSTREAM, title="Another one")
        await relay.drain()
        for name in ("org/reporter", "org/hidden"):
            run = relay.github.runs(name)[0]
            await relay.github.start_job(run, "build")
            await relay.github.complete_job(run, "build", "failure")
        await relay.drain()
        failing = await get(relay, "/api/v1/pulls?only=failing")
        line = failing["items"][0]
        assert (line["number"], line["state"], line["verdict"] is not None) == (first.number, "open", True)
        assert line["opened_at"] == line["updated_at"]
        assert line["backends"] == [
            {
                "backend": "org/reporter",
                "level": "L2",
                "state": "failed",
                "failed": 1,
                "running": 0,
                "passed": 0,
                "other": 0,
            }
        ]
        listed = await get(relay, "/api/v1/pulls?limit=1")
        rest = await get(relay, f"/api/v1/pulls?limit=1&cursor={listed['next']}")
        assert {page["items"][0]["number"] for page in (listed, rest)} == {1, 2}
        assert rest["next"] is None

        page = (await relay.http.get("/crcr/pulls", headers={"Accept": "text/html"})).text
        assert "Fuse &lt;b&gt;it&lt;/b&gt;" in page
        assert "org/reporter: failed" in page
        assert "org/hidden" not in page + str(listed) + str(failing)
        rows = [*csv.DictReader(io.StringIO((await relay.http.get("/api/v1/pulls.csv")).text))]
        assert [(row["number"], row["backend"], row["backend_state"]) for row in rows] == [
            ("2", "org/reporter", "no report yet"),
            ("1", "org/reporter", "failed"),
        ]


async def test_a_pushed_commit_has_a_row_that_opens_into_jobs(tmp_path: Path) -> None:
    async with running_relay(tmp_path, ALLOWLIST, downstreams=DOWNSTREAMS) as relay:
        assert "not known yet" in (await relay.http.get("/crcr/commits")).text
        await relay.github.push(UPSTREAM, message="Rename it (#1)", commits=2)
        await relay.drain()
        run = relay.github.runs("org/reporter")[0]
        for job, end in (("test (1, 2)", "success"), ("test (2, 2)", "failure"), ("lint", "success")):
            await report(relay, run, job, end)
        await relay.drain()
        tested, before = (await get(relay, "/api/v1/commits"))["items"]
        assert (before["delivery"], before["backends"]) == (None, [])
        assert [(cell["failed"], cell["passed"]) for cell in tested["backends"]] == [(1, 2)]
        folded = (await relay.http.get("/crcr/commits?open=org/hidden,nonsense")).text
        assert "X<i>1/3</i>" in folded
        assert "org/hidden:" not in folded  # only the URL that names it is echoed
        opened = (await relay.http.get("/crcr/commits?open=org/reporter")).text
        assert ">lint<" in opened
        assert "2 shards" in opened
        assert "job=" in opened
        rows = [*csv.DictReader(io.StringIO((await relay.http.get("/api/v1/commits.csv")).text))]
        assert [(row["sha"], row["backend_failed"]) for row in rows] == [
            (tested["sha"], "1"),
            (before["sha"], ""),
        ]


WRONG = (
    "/api/v1/pulls?only=nobody",
    "/api/v1/pulls?state=merged",
    "/api/v1/pulls?sort=title",
    "/api/v1/pulls?cursor=eyJ",
    "/api/v1/pulls?limit=0",
    "/api/v1/pulls.csv?sort=-gates",
    "/api/v1/commits?cursor=WzFd",
)


async def test_invalid_parameters_are_refused_by_the_api_and_ignored_by_the_pages(tmp_path: Path) -> None:
    async with running_relay(tmp_path, ALLOWLIST, downstreams=DOWNSTREAMS) as relay:
        assert {path: (await relay.http.get(path)).status_code for path in WRONG} == dict.fromkeys(WRONG, 400)
        pages = {
            path.replace("/api/v1/", "/crcr/").replace(".csv", "") for path in WRONG if "cursor" not in path
        }
        assert {(await relay.http.get(page)).status_code for page in pages} == {200}
