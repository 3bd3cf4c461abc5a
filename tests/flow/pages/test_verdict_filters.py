"""Verdicts in lists, exports and the panel of a job, and the filters by them."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from support.github.gated_upstream import GATING, gated_upstream, write_comment
from support.github.verdict_history import BROKEN, JUDGED, OTHER, fail_pull, push_base
from support.running_relay import UPSTREAM, RunningRelay

KINDS = ("new", "pre-existing", "flaky", "infrastructure", "missing", "unknown")


@pytest.fixture(autouse=True, params=["sqlite", "postgresql"])
def _store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRCR_TEST_STORE", request.param)


async def get(relay: RunningRelay, path: str, **params: Any) -> Any:
    return await relay.http.get(path, params={"upstream": UPSTREAM, **params})


async def create_judged_pulls(relay: RunningRelay) -> tuple[int, int]:
    """One pull request with a pre-existing failure, and one with a new one."""
    for tests in ((), (), (), (BROKEN,), (BROKEN,)):
        await push_base(relay, *tests)
    old = await fail_pull(relay, BROKEN)
    new = await fail_pull(relay, OTHER, author="ben", files=("src/b.py",))
    return old.number, new.number


async def test_jobs_are_listed_and_exported_by_verdict(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, JUDGED, downstreams=(GATING,)) as relay:
        old, new = await create_judged_pulls(relay)
        jobs_by_kind = {
            kind: (await get(relay, "/api/v1/jobs", verdict=kind)).json()["jobs"] for kind in KINDS
        }
        pulls = {
            kind: [job["number"] for job in jobs if job["number"]] for kind, jobs in jobs_by_kind.items()
        }

        assert pulls == {**{kind: [] for kind in KINDS}, "new": [new], "pre-existing": [old]}
        [job] = [job for job in jobs_by_kind["pre-existing"] if job["number"] == old]
        assert (job["verdict"]["confidence"], job["verdict"]["by"]) == ("high", "rules")
        assert job["verdict"]["evidence"][0]["url"].startswith("/crcr/commit/")
        listed = (await get(relay, "/api/v1/jobs", limit=100)).json()["jobs"]
        assert {
            job["number"]: (job["verdict"] or {}).get("kind") for job in listed if job["job_name"] == "test"
        } == {
            None: None,
            old: None,
            new: None,
        }
        exported = csv.DictReader(io.StringIO((await get(relay, "/api/v1/jobs.csv")).text))
        lines = {(line["number"], line["job_name"]): line for line in exported}
        assert lines[str(new), "build"]["verdict_kind"] == "new"
        assert lines[str(new), "build"]["verdict_sentence"].startswith("The base passed")
        assert lines[str(new), "test"]["verdict_kind"] == ""


async def test_jobs_filtered_by_verdict_are_paginated(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, JUDGED, downstreams=(GATING,)) as relay:
        await create_judged_pulls(relay)
        for author in ("ann", "cid", "dan"):
            await fail_pull(relay, BROKEN, author=author, files=(f"src/{author}.py",))
        all_jobs = (await get(relay, "/api/v1/jobs", verdict="pre-existing", limit=50)).json()["jobs"]
        assert len(all_jobs) > 3
        collected: list[dict[str, Any]] = []
        cursor: dict[str, str] = {}
        while True:
            page = (await get(relay, "/api/v1/jobs", verdict="pre-existing", limit=2, **cursor)).json()
            collected += page["jobs"]
            if page["next"] is None:
                break
            cursor = {"cursor": page["next"]}

        assert [job["token"] for job in collected] == [job["token"] for job in all_jobs]


async def test_an_unknown_verdict_is_a_bad_request(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, JUDGED, downstreams=(GATING,)) as relay:
        for path in ("jobs", "jobs.csv", f"backends/{GATING}", f"backends/{GATING}.csv"):
            assert (await get(relay, f"/api/v1/{path}", verdict="old")).status_code == 400
        page = await get(relay, f"/crcr/{GATING}", verdict="old")
        assert page.status_code == 200  # a page ignores what it does not understand


async def test_a_backends_events_are_filtered_by_the_verdict_of_a_job(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, JUDGED, downstreams=(GATING,)) as relay:
        old, new = await create_judged_pulls(relay)
        numbers_by_kind = {}
        for kind in KINDS:
            answer = (await get(relay, f"/api/v1/backends/{GATING}", verdict=kind)).json()
            numbers_by_kind[kind] = [row["number"] for row in answer["rows"]]

        assert numbers_by_kind == {**{kind: [] for kind in KINDS}, "new": [new], "pre-existing": [old]}
        page = (await get(relay, f"/crcr/{GATING}", verdict="new")).text
        assert '<option value="new" selected>new</option>' in page
        assert f"#{new}" in page
        assert "Clear the filters" in page


async def test_the_panel_of_a_job_shows_the_verdict_and_its_evidence(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, JUDGED, downstreams=(GATING,)) as relay:
        await create_judged_pulls(relay)
        [job] = [
            job
            for job in (await get(relay, "/api/v1/jobs", verdict="pre-existing")).json()["jobs"]
            if job["number"]
        ]
        panel = (await get(relay, f"/crcr/{GATING}", fragment="panel", job=job["token"])).text
        detail = (await get(relay, f"/api/v1/backends/{GATING}/jobs/{job['token']}")).json()

        assert "The base failed alike 2 times in a row" in panel
        assert f'href="{job["verdict"]["evidence"][0]["url"]}"' in panel.replace("&#39;", "'")
        assert detail["job"]["verdict"] == job["verdict"]
        pull = relay.github.world.pulls[relay.github.repository(UPSTREAM).id, job["number"]]
        await write_comment(relay, pull, f"/crcr verdict {GATING} build is new because I did it")
        panel = (await get(relay, f"/crcr/{GATING}", fragment="panel", job=job["token"])).text
        assert "maintainer says: I did it" in panel
