"""Nightly results on the pages, in JSON, CSV and badges: with the standing of their commit, on their own backend's page."""

import csv
import io
import re
from html import escape, unescape
from pathlib import Path
from typing import Any

import pytest

from support.downstream.callbacks import BACKEND
from support.downstream.self_reports import nightly_run, relay_with_backend, send_self_report, upstream_head
from support.running_relay import UPSTREAM, RunningRelay

UNKNOWN_COMMIT = "5" * 40
NIGHTLY_PAGE = f"/crcr/{BACKEND}?kind=nightly"
BADGE = f"/api/v1/badges/{BACKEND}?kind=nightly"


def visible_text(html: str) -> str:
    """The visible text of a page, without tooltips."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).split())


async def api(relay: RunningRelay, path: str) -> Any:
    return (await relay.http.get(path)).raise_for_status().json()


async def fork_commit(relay: RunningRelay) -> str:
    return (await relay.github.open_pr(UPSTREAM, fork=True)).head_sha


async def test_fault_46_the_backends_page_lists_each_nightly_with_the_standing_of_its_commit(
    tmp_path: Path,
) -> None:
    async with relay_with_backend(tmp_path) as relay:
        fork = await fork_commit(relay)
        for commit in (upstream_head(relay), fork, UNKNOWN_COMMIT, None):
            relay.clock.advance(60)
            await send_self_report(relay, nightly_run(relay), commit=commit)
            await relay.drain()
        relay.clock.advance(60)
        await send_self_report(relay, nightly_run(relay), commit="7" * 40)

        rows = (await api(relay, f"/api/v1/backends/{BACKEND}?kind=nightly"))["rows"]
        assert [(row["head_sha"], row["place"]["standing"], row["place"]["branch"]) for row in rows] == [
            ("7" * 40, "unchecked", None),
            (None, "unknown", None),
            (UNKNOWN_COMMIT, "unknown", None),
            (fork, "elsewhere", None),
            (upstream_head(relay), "base", "main"),
        ]
        page = visible_text((await relay.http.get(NIGHTLY_PAGE)).text)
        assert page.count("commit unknown") == 2
        assert "being checked" in page
        assert "not in the upstream's history" in page

        lines = list(
            csv.DictReader(
                io.StringIO((await relay.http.get(f"/api/v1/backends/{BACKEND}.csv?kind=nightly")).text)
            )
        )
        assert [(line["commit_standing"], line["commit_branch"]) for line in lines] == [
            ("unchecked", ""),
            ("unknown", ""),
            ("unknown", ""),
            ("elsewhere", ""),
            ("base", "main"),
        ]


@pytest.mark.parametrize(
    ("commit", "shown_text"), [("head", "main"), (UNKNOWN_COMMIT, "commit unknown"), (None, "commit unknown")]
)
async def test_job_details_show_the_standing_of_the_nightlys_commit(
    tmp_path: Path, commit: str | None, shown_text: str
) -> None:
    async with relay_with_backend(tmp_path) as relay:
        await send_self_report(
            relay, nightly_run(relay), commit=upstream_head(relay) if commit == "head" else commit
        )
        await relay.drain()
        [row] = (await api(relay, f"/api/v1/backends/{BACKEND}?kind=nightly"))["rows"]
        token = next(cell["token"] for cell in row["cells"] if cell)
        detail = await api(relay, f"/api/v1/backends/{BACKEND}/jobs/{token}")
        assert detail["place"] == row["place"]
        panel = await relay.http.get(f"{NIGHTLY_PAGE}&job={token}&fragment=panel")
        assert shown_text in visible_text(panel.text)


async def test_a_dispatched_job_has_no_commit_standing(tmp_path: Path) -> None:
    async with relay_with_backend(tmp_path) as relay:
        await relay.github.push(UPSTREAM)
        await relay.drain()
        run = relay.github.runs(BACKEND)[0]
        await relay.github.start_job(run, "build")
        [row] = (await api(relay, f"/api/v1/backends/{BACKEND}?kind=push"))["rows"]
        assert row["place"] is None
        assert (await api(relay, f"/api/v1/commits/{upstream_head(relay)}"))["place"] is None


async def test_the_commit_page_names_the_branch_that_contains_the_commit(tmp_path: Path) -> None:
    async with relay_with_backend(tmp_path) as relay:
        await relay.github.push(UPSTREAM, ref="refs/heads/release/2.1")
        sha = relay.github.repository(UPSTREAM).branches["release/2.1"]
        await send_self_report(relay, nightly_run(relay), conclusion="failure", commit=sha)
        await relay.drain()
        page = visible_text((await relay.http.get(f"/crcr/commit/{sha}")).text)
        assert "in the history of release/2.1" in page
        backends = (await api(relay, f"/api/v1/commits/{sha}"))["backends"]
        assert {(backend["event"], backend["state"]) for backend in backends} >= {("nightly", "failed")}


async def test_fault_24_a_nightly_badge_counts_only_commits_of_the_base_history(tmp_path: Path) -> None:
    async with relay_with_backend(tmp_path) as relay:
        assert (await api(relay, BADGE))["state"] is None
        await send_self_report(relay, nightly_run(relay), conclusion="success", commit=UNKNOWN_COMMIT)
        await send_self_report(relay, nightly_run(relay), conclusion="success")
        await relay.drain()
        assert (await api(relay, BADGE))["state"] is None, "no green for a commit that is none"
        await send_self_report(relay, nightly_run(relay), conclusion="failure", commit=upstream_head(relay))
        await relay.drain()
        assert (await api(relay, BADGE))["state"] == "failure"
        relay.clock.advance(60)
        await send_self_report(
            relay, nightly_run(relay), conclusion="success", commit=await fork_commit(relay)
        )
        await relay.drain()
        assert (await api(relay, BADGE))["state"] == "failure"
        relay.clock.advance(60)
        run = nightly_run(relay)
        await send_self_report(
            relay, run, "build", "success", commit=upstream_head(relay), event_type="periodic"
        )
        await relay.drain()
        assert (await api(relay, BADGE))["state"] == "success"
        await send_self_report(
            relay, run, "test", "failure", commit=upstream_head(relay), event_type="periodic"
        )
        assert (await api(relay, BADGE))["state"] == "failure", "one failed job fails the night"


async def test_fault_41_all_nightlies_count_in_the_backends_own_nightly_numbers_and_only_there(
    tmp_path: Path,
) -> None:
    async with relay_with_backend(tmp_path) as relay:
        for commit in (upstream_head(relay), UNKNOWN_COMMIT, None):
            await send_self_report(relay, nightly_run(relay), conclusion="success", commit=commit)
        await send_self_report(
            relay, nightly_run(relay), conclusion="failure", commit=await fork_commit(relay)
        )
        await relay.drain()
        backend = (await api(relay, f"/api/v1/backends/{BACKEND}?kind=nightly"))["backend"]["figures"][
            "tally"
        ]
        [listed] = (await api(relay, "/api/v1/summary?kind=nightly"))["backends"]
        assert (backend["success"], backend["failure"]) == (3, 1)
        assert listed["figures"]["tally"] == backend
        assert (await api(relay, BADGE))["tally"] == backend
        for kind in ("pull_request", "push"):
            [other] = (await api(relay, f"/api/v1/summary?kind={kind}"))["backends"]
            assert other["figures"]["tally"]["decided"] == 0


async def test_self_reports_do_not_appear_among_deliveries(tmp_path: Path) -> None:
    async with relay_with_backend(tmp_path) as relay:
        await send_self_report(relay, nightly_run(relay), commit=upstream_head(relay))
        await relay.drain()
        assert (await api(relay, "/api/v1/deliveries"))["deliveries"] == []
        assert (await relay.http.get(f"/api/v1/deliveries/{upstream_head(relay)}")).status_code == 404


async def test_hostile_text_of_a_self_report_is_escaped(tmp_path: Path) -> None:
    async with relay_with_backend(tmp_path) as relay:
        hostile = "<script>alert(1)</script>"
        answer = await send_self_report(
            relay,
            nightly_run(relay),
            commit=hostile,
            job_name=hostile,
            payload={"repository": {"full_name": hostile}},
        )
        assert answer.status_code == 200
        for path in (NIGHTLY_PAGE, "/crcr?kind=nightly"):
            assert hostile not in (await relay.http.get(path)).text
        assert escape(hostile) in (await relay.http.get(NIGHTLY_PAGE)).text
