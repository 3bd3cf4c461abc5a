"""The compatibility matrix over HTTP: from webhooks and callbacks to the pinned SHA; invalid requests; hidden backends."""

import csv
import io
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from github_sim.github import JobSpec, Workflow
from support.running_relay import UPSTREAM, RunningRelay, running_relay

ALLOWLIST = """
L1:
  - org/notified
L2:
  - org/one: {hardware: "NPU 910B"}
  - org/hidden: {visibility: hidden}
L3:
  npu:
    org/two: [ada]
"""
DOWNSTREAMS = ("org/notified", "org/one", "org/hidden", "org/two")
LATEST = "/api/v1/compat/latest-green"


@asynccontextmanager
async def compat_relay(folder: Path) -> AsyncIterator[RunningRelay]:
    async with running_relay(folder, ALLOWLIST, downstreams=DOWNSTREAMS) as relay:
        for name in DOWNSTREAMS:
            relay.github.repository(name).workflows = [Workflow(jobs=(JobSpec("build"),))]
        yield relay


async def push(relay: RunningRelay, conclusions: dict[str, str | None], **more: Any) -> str:
    """Push, and end the job of each backend with its conclusion; None only starts it. Return the commit."""
    run_counts = {name: len(relay.github.runs(name)) for name in conclusions}
    await relay.github.push(UPSTREAM, **more)
    await relay.drain()
    for name, conclusion in conclusions.items():
        run = relay.github.runs(name)[run_counts[name]]
        await relay.github.start_job(run, "build")
        if conclusion is not None:
            await relay.github.complete_job(run, "build", conclusion)
    await relay.pass_time(60)  # the relay polls GitHub for the end of the runs
    branch = more.get("ref", "refs/heads/main").removeprefix("refs/heads/")
    return str(relay.github.repository(UPSTREAM).branches.get(branch, ""))


async def test_latest_green_returns_the_newest_commit_where_all_named_backends_are_green(
    tmp_path: Path,
) -> None:
    async with compat_relay(tmp_path) as relay:
        http, latest_of_both = relay.http, f"{LATEST}?backends=org/one,ORG/two&format=text"
        assert [(await http.get(latest_of_both)).status_code, (await http.get(latest_of_both)).content] == [
            404,
            b"",
        ]
        good = await push(relay, {"org/one": "success", "org/two": "success"})
        pinned = await http.get(latest_of_both)
        assert (pinned.text, pinned.headers["content-type"]) == (f"{good}\n", "text/plain; charset=utf-8")
        unchanged = await http.get(latest_of_both, headers={"If-None-Match": pinned.headers["etag"]})
        assert unchanged.status_code == 304
        await push(relay, {"org/one": "failure", "org/two": "success"})
        newest = await push(relay, {"org/one": "success", "org/two": None})
        assert (await http.get(latest_of_both)).text == f"{good}\n"
        assert (await http.get(f"{LATEST}?backends=org/one&format=text")).text == f"{newest}\n"

        latest = (await http.get(f"{LATEST}?level=L2")).json()
        assert (latest["sha"], latest["match"], latest["between"]) == (good, "exact", [])
        assert latest["backends"] == ["org/two", "org/one"]
        assert latest["commit"]["newer_commits"] == 2
        matrix = (await http.get("/api/v1/compat?level=L2")).json()
        states = [[cell["state"] for cell in commit["cells"]] for commit in matrix["groups"][0]["commits"]]
        assert states == [["running", "green"], ["green", "failed"], ["green", "green"]]
        rows = [*csv.DictReader(io.StringIO((await http.get("/api/v1/compat.csv?level=L2")).text))]
        assert [(row["backend"], row["state"], row["is_green"]) for row in rows[:2]] == [
            ("org/two", "running", "false"),
            ("org/one", "green", "false"),
        ]
        page = (await http.get("/crcr/compat?level=L2", headers={"Accept": "text/html"})).text
        assert f'last green <a class="sha" href="/crcr/commit/{newest}">' in page
        [together] = re.findall(r'<tr id="compat-all".*?</tr>', page, re.DOTALL)
        assert re.findall(r">(.)</a>", together) == ["?", "X", "O"]
        assert good[:8] in (await http.get("/badge/compat.svg?level=L2")).text


async def test_a_run_with_pending_jobs_is_not_green(tmp_path: Path) -> None:
    async with compat_relay(tmp_path) as relay:
        relay.github.repository("org/two").workflows = [Workflow(jobs=(JobSpec("build"), JobSpec("test")))]
        sha = await push(relay, {"org/two": "success"})
        latest = f"{LATEST}?backends=org/two&format=text"
        assert (await relay.http.get(latest)).status_code == 404
        [run] = relay.github.runs("org/two")
        await relay.github.start_job(run, "test")
        await relay.github.complete_job(run, "test", "success")
        await relay.pass_time(60)
        assert (await relay.http.get(latest)).text == f"{sha}\n"


async def test_a_commit_between_two_green_ones_is_accepted_only_with_match_between(
    tmp_path: Path,
) -> None:
    async with compat_relay(tmp_path) as relay:
        await push(relay, {"org/one": "success"})
        between = await push(relay, {"org/two": "success"})
        await push(relay, {"org/one": "success"})
        assert (await relay.http.get(f"{LATEST}?level=L2")).status_code == 404
        latest = (await relay.http.get(f"{LATEST}?level=L2&match=between")).json()
        assert (latest["sha"], latest["match"], latest["between"]) == (between, "between", ["org/one"])
        assert "· between" in (await relay.http.get("/badge/compat.svg?level=L2&match=between")).text


async def test_a_version_tag_has_a_column_until_it_is_deleted(tmp_path: Path) -> None:
    async with compat_relay(tmp_path) as relay:
        sha = await push(relay, {"org/two": "success"})
        tag = {"ref": "refs/tags/v2.1.0", "commits": 0}
        await push(relay, {"org/two": "success"}, created=True, **tag)
        await push(relay, {}, created=True, ref="refs/tags/ciflow/trunk/7", commits=0)
        await push(relay, {"org/two": "failure"}, message="<script>=1()")
        groups = (await relay.http.get("/api/v1/compat")).json()["groups"]
        [tagged] = next(group for group in groups if group["kind"] == "tags")["commits"]
        assert (tagged["label"], tagged["sha"], tagged["is_green"]) == ("v2.1.0", sha, True)
        await push(relay, {}, created=True, ref='refs/tags/v3.0"><script>', commits=0)
        page = (await relay.http.get("/crcr/compat", headers={"Accept": "text/html"})).text
        assert ("v3.0" in page, "<script>" in page) == (True, False)
        lines = (await relay.http.get("/api/v1/compat.csv")).text
        assert "<script>=1()" in lines
        await push(relay, {}, deleted=True, ref='refs/tags/v3.0"><script>', commits=0)
        await push(relay, {}, deleted=True, **tag)
        groups = (await relay.http.get("/api/v1/compat")).json()["groups"]
        assert [group["kind"] for group in groups] == ["branch"]


async def test_invalid_parameters_are_refused_and_a_hidden_backend_looks_unknown(tmp_path: Path) -> None:
    async with compat_relay(tmp_path) as relay:
        await push(relay, {"org/one": "success", "org/two": "success", "org/hidden": "failure"})
        refusals = {}
        for name in ("org/hidden", "org/nobody", "org/notified"):
            answer = await relay.http.get(f"{LATEST}?backends=org/one,{name}&format=text")
            assert answer.status_code == 400
            body = answer.json()["error"]
            refusals[name] = (body["code"], body["detail"].replace(name, "X"), body["hint"])
            badge = await relay.http.get(f"/badge/compat.svg?backends={name}")
            assert (badge.status_code, "unknown" in badge.text) == (400, True)
            page = await relay.http.get(f"/crcr/compat?backends={name}", headers={"Accept": "text/html"})
            assert (page.status_code, "aria-invalid" in page.text) == (200, True)
        assert len(set(refusals.values())) == 1
        names = ",".join(f"a/b{number}" for number in range(51))
        for query in (
            *("level=L1", "level=x", "match=near", "format=xml", "backends=nonsense", "backends=a/b%00"),
            *(
                "hardware=%07",
                "branch=%ff",
                f"backends={names}",
                f"backends={'a' * 9_000}",
                "backends=org/two&level=L4",
            ),
        ):
            assert (await relay.http.get(f"{LATEST}?{query}")).status_code == 400, query
        for query in ("hardware=abacus", "branch=nowhere", "level=L4"):
            assert (await relay.http.get(f"{LATEST}?{query}")).json()["error"]["code"] == "not_found"
        everything = [
            (await relay.http.get(path)).text
            for path in ("/api/v1/compat?level=L2", "/api/v1/compat.csv?level=L2", "/crcr/compat?level=L2")
        ]
        assert "org/hidden" not in "".join(everything)
        # A failing hidden backend does not exclude the commit for readers who cannot see that backend.
        assert (await relay.http.get(f"{LATEST}?level=L2")).status_code == 200
