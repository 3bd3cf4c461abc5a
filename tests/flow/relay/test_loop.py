"""The whole loop once: a pull request is opened, dispatched to a downstream, reported back and recorded."""

from pathlib import Path

from support.running_relay import UPSTREAM, running_relay

ALLOWLIST = """
L1:
  - org/notified
L2:
  - Org/Reporter
"""


async def test_a_pull_request_is_dispatched_and_its_result_is_recorded(tmp_path: Path) -> None:
    async with running_relay(tmp_path, ALLOWLIST, downstreams=("org/notified", "org/reporter")) as relay:
        pr = await relay.github.open_pr(UPSTREAM, title="Add an operator")
        await relay.pass_time(1)
        run = relay.github.runs("org/reporter")[0]
        relay.clock.advance(30)
        started = await relay.github.start_job(run, "build")
        relay.clock.advance(60)
        finished = await relay.github.complete_job(run, "build", "success")

        assert (started.status_code, finished.status_code) == (200, 200)
        assert finished.json() == {"ok": True, "status": "completed", "repeat": False}
        [job] = relay.jobs()
        assert (job["downstream"], job["state"], job["conclusion"]) == (
            "org/reporter",
            "completed",
            "success",
        )
        assert (job["head_sha"], job["number"]) == (pr.head_sha, pr.number)
        assert (job["queue_s"], job["execution_s"]) == (30.0, 60.0)


async def test_an_l1_downstream_is_notified_and_its_reports_are_ignored_with_a_hint(tmp_path: Path) -> None:
    async with running_relay(tmp_path, ALLOWLIST, downstreams=("org/notified", "org/reporter")) as relay:
        await relay.github.open_pr(UPSTREAM, title="Add an operator")
        await relay.drain()
        answer = await relay.github.start_job(relay.github.runs("org/notified")[0], "build")

        assert answer.status_code == 202
        assert answer.json()["status"] == "ignored"
        assert relay.jobs() == []
