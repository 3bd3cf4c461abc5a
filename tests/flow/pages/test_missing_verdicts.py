"""A backend that did not report: the page says whether it is silent for all pull requests, or only for this one."""

from pathlib import Path
from typing import Any

import pytest

from github_sim.github import PullRequest
from support.github.gated_upstream import GATING, gated_upstream, newest_run, open_pull, run_all, start_jobs
from support.running_relay import UPSTREAM, RunningRelay

HOUR = 3600.0
LISTED = f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: [build, test, deploy]}}\n"


@pytest.fixture(autouse=True, params=["sqlite", "postgresql"])
def _store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRCR_TEST_STORE", request.param)


async def backend_verdict(relay: RunningRelay, pull: PullRequest) -> dict[str, Any] | None:
    answer = await relay.http.get(f"/api/v1/pulls/{pull.number}", params={"upstream": UPSTREAM})
    [backend] = answer.json()["backends"]
    verdict: dict[str, Any] | None = backend["verdict"]
    return verdict


async def pull_page(relay: RunningRelay, pull: PullRequest) -> str:
    return (await relay.http.get(f"/crcr/pr/{pull.number}", params={"upstream": UPSTREAM})).text


async def test_a_backend_that_reports_for_other_pull_requests_is_missing_only_for_this_one(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, LISTED, downstreams=(GATING,)) as relay:
        unreported = await open_pull(relay, files=["src/a.py"])
        assert await backend_verdict(relay, unreported) is None
        relay.clock.advance(2 * HOUR)
        await open_pull(relay, files=["src/b.py"])
        await run_all(relay)

        verdict = await backend_verdict(relay, unreported)
        assert verdict is not None
        assert (verdict["kind"], verdict["confidence"], verdict["by"]) == ("missing", "high", "rules")
        assert "Only here: it has reported for others since, last at 01 Jan 02:00 UTC." in verdict["sentence"]
        assert "Only here: it has reported for others since" in await pull_page(relay, unreported)


async def test_a_backend_that_reports_for_no_pull_request_is_silent_for_everybody(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, LISTED, downstreams=(GATING,)) as relay:
        await open_pull(relay, files=["src/a.py"])
        await run_all(relay)
        for name in "bcd":
            relay.clock.advance(60)
            pull = await open_pull(relay, files=[f"src/{name}.py"])
        relay.clock.advance(2 * HOUR)

        verdict = await backend_verdict(relay, pull)
        assert verdict is not None
        assert verdict["sentence"].endswith("It is silent for everybody: no report since 01 Jan 00:00 UTC.")


async def test_an_expected_job_without_a_report_is_missing_after_the_gates_deadline(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, LISTED, downstreams=(GATING,)) as relay:
        pull = await open_pull(relay)
        await run_all(relay)
        assert await backend_verdict(relay, pull) is None
        relay.clock.advance(9 * HOUR)

        verdict = await backend_verdict(relay, pull)
        assert verdict is not None
        assert verdict["sentence"].startswith("Expected and never reported: deploy.")
        assert "Expected and never reported: deploy." in await pull_page(relay, pull)


async def test_a_backend_with_a_running_job_is_not_missing(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, LISTED, downstreams=(GATING,)) as relay:
        pull = await open_pull(relay)
        await start_jobs(relay, newest_run(relay), "build")
        relay.clock.advance(2 * HOUR)
        assert await backend_verdict(relay, pull) is None
