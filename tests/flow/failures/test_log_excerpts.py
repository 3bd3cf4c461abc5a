"""Log excerpts through the whole relay: masked before storage, escaped on pages, grouped, and never part of a verdict."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from support.downstream.callbacks import BACKEND, post_report, workflow_with_jobs
from support.running_relay import UPSTREAM, RunningRelay, running_relay

OPEN, HUSHED = "zzz/open", "secretcorp/hush"
LISTED = f"L2:\n  - {BACKEND}: {{paths: ['**']}}\n  - {OPEN}: {{paths: ['**']}}\n  - {HUSHED}: {{visibility: hidden}}\n"
SECRET = "ghp_abcdefghijklmnopqrstuvwxyz0123456789"
ERROR = "ld.lld: error: undefined symbol: aten_foo <b>&amp; 0x7f3"
EXCERPT = {
    "first_error": ERROR,
    "tail": f"\x1b[31mlinking\x1b[0m\nfetched with {SECRET}\n<script>alert(1)</script>\n{ERROR}",
}


@pytest.fixture
async def relay(tmp_path: Path) -> AsyncIterator[RunningRelay]:
    names = (BACKEND, OPEN, HUSHED)
    async with running_relay(tmp_path, LISTED, downstreams=names) as running:
        for name in names:
            running.github.repository(name).workflows = list(workflow_with_jobs("test"))
        yield running


async def fail_in_log(
    relay: RunningRelay, name: str = BACKEND, excerpt: object = EXCERPT, **more: Any
) -> None:
    """Fail the newest run of the backend without failed tests, with this log."""
    run = relay.github.runs(name)[-1]
    result = {
        "conclusion": "failure",
        "failed_tests": None,
        "test_results": None,
        "log_excerpt": excerpt,
        **more,
    }
    for status, fields in (("in_progress", {}), ("completed", result)):
        answer = await post_report(relay, run, "test", status, **fields)
        assert answer.status_code == 200, answer.text
    await relay.drain()
    relay.clock.advance(60)


async def open_pull_number(relay: RunningRelay) -> int:
    pull = await relay.github.open_pr(UPSTREAM)
    await relay.drain()
    return int(pull.number)


async def test_an_excerpt_is_masked_before_it_is_stored_and_escaped_on_pages(relay: RunningRelay) -> None:
    number = await open_pull_number(relay)
    await fail_in_log(relay)
    (job,) = relay.jobs(BACKEND)
    assert SECRET not in job["log_excerpt"] + job["untrusted"].decode()
    assert b"fetched with ***" in job["untrusted"]
    shown = (await relay.http.get(f"/api/v1/pulls/{number}")).json()["backends"][0]["jobs"][0]
    assert shown["first_error"] == ERROR
    detail = (await relay.http.get(f"/api/v1/backends/{BACKEND}/jobs/{shown['token']}")).json()
    assert detail["log_excerpt"]["tail"].splitlines() == [
        "linking",
        "fetched with ***",
        "<script>alert(1)</script>",
        ERROR,
    ]
    panel = (await relay.http.get(f"/crcr/{BACKEND}?job={shown['token']}")).text
    pull_page = (await relay.http.get(f"/crcr/pr/{number}")).text
    assert "fetched with ***" in panel
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in panel
    for page in (panel, pull_page):
        assert "undefined symbol: aten_foo &lt;b&gt;&amp;amp;" in page
        assert "<script>alert" not in page


async def test_the_excerpt_of_a_job_that_passed_is_not_stored(relay: RunningRelay) -> None:
    await open_pull_number(relay)
    await fail_in_log(relay, conclusion="success")
    (job,) = relay.jobs(BACKEND)
    assert (job["log_excerpt"], b"log_excerpt" in job["untrusted"]) == (None, False)


@pytest.mark.parametrize("excerpt", ["text", [1], {"tail": 7}, {"first_error": {"a": 1}}, {}])
async def test_a_malformed_excerpt_is_dropped_and_the_result_is_stored(
    relay: RunningRelay, excerpt: object
) -> None:
    await open_pull_number(relay)
    await fail_in_log(relay, excerpt=excerpt)
    (job,) = relay.jobs(BACKEND)
    assert (job["conclusion"], job["log_excerpt"]) == ("failure", None)


async def test_jobs_without_failed_tests_are_grouped_by_their_first_error(relay: RunningRelay) -> None:
    number = await open_pull_number(relay)
    other = {"first_error": ERROR.replace("0x7f3", "0x9")}
    await fail_in_log(relay)
    await fail_in_log(relay, OPEN, other)
    await fail_in_log(relay, HUSHED, other)
    (group,) = (await relay.http.get("/api/v1/failures")).json()["items"]
    assert sorted(group["backends"]) == sorted([BACKEND, OPEN])
    assert (group["count"], group["sample"].partition(" 0x")[0]) == (2, ERROR.partition(" 0x")[0])
    page = (await relay.http.get(f"/crcr/failures/{group['fingerprint']}")).text
    assert OPEN in page
    assert "secretcorp" not in page
    (listed,) = (await relay.http.get(f"/api/v1/pulls/{number}")).json()["groups"]
    assert listed["fingerprint"] == group["fingerprint"]


async def test_a_generic_error_line_makes_no_group(relay: RunningRelay) -> None:
    await open_pull_number(relay)
    await fail_in_log(relay, excerpt={"first_error": "Error: Process completed with exit code 1."})
    assert (await relay.http.get("/api/v1/failures")).json()["items"] == []


async def test_verdicts_do_not_depend_on_the_log(relay: RunningRelay) -> None:
    """One backend sends its log and one does not: base and head fail alike, and both get the same verdict."""
    for fails in (False, False, False, True, True):
        await relay.github.push(UPSTREAM)
        await relay.drain()
        await end_both(relay, fails=fails)
    number = await open_pull_number(relay)
    await end_both(relay, fails=True)
    backends = (await relay.http.get(f"/api/v1/pulls/{number}")).json()["backends"]
    verdicts = [job["verdict"] for backend in backends for job in backend["jobs"]]
    assert len(verdicts) == 2
    assert len({(verdict["kind"], verdict["confidence"], verdict["sentence"]) for verdict in verdicts}) == 1
    assert verdicts[0]["confidence"] != "high"
    rows = relay.rows("SELECT downstream, fingerprint, fingerprints, log_fingerprint FROM failures")
    assert {(row["fingerprint"], row["fingerprints"]) for row in rows} == {(None, None)}
    assert {row["downstream"] for row in rows if row["log_fingerprint"]} == {OPEN}


async def end_both(relay: RunningRelay, *, fails: bool) -> None:
    for name, excerpt in ((BACKEND, None), (OPEN, EXCERPT)):
        await fail_in_log(relay, name, excerpt, **({} if fails else {"conclusion": "success"}))
