from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from github_sim.clock import ManualClock
from github_sim.github import AnswerLost, GitHub, Match

TokenFor = Callable[..., Awaitable[dict[str, str]]]
ROOT = "/repos/org/upstream/check-runs"
RUNS = "/repos/acme/backend/actions/runs"
BUTTON = {"label": "l", "description": "d", "identifier": "i"}


@pytest.mark.parametrize(
    "more",
    [
        {"status": "done"},
        {"status": "completed"},
        {"conclusion": "stale"},
        {"output": {"title": "t"}},
        {"output": {"title": "t", "summary": "s" * 65_536}},
        {"output": {"title": "t", "summary": "s", "annotations": [{}] * 51}},
        {"actions": [BUTTON] * 4},
        {"actions": [{**BUTTON, "label": "x" * 21}]},
        {"actions": [{**BUTTON, "description": "x" * 41}]},
        {"actions": [{**BUTTON, "identifier": "x" * 21}]},
        {"head_sha": "f" * 40},
        {"name": ""},
    ],
)
async def test_a_check_over_githubs_limits_is_refused(
    github: GitHub, api: httpx.AsyncClient, token_for: TokenFor, more: dict[str, Any]
) -> None:
    body = {"name": "gate", "head_sha": github.repository("org/upstream").head_sha, **more}
    answer = await api.post(ROOT, json=body, headers=await token_for("org/upstream"))
    assert answer.status_code == 422
    assert github.checks("org/upstream") == []


async def test_a_check_is_created_updated_and_listed(
    github: GitHub, api: httpx.AsyncClient, token_for: TokenFor
) -> None:
    auth = await token_for("org/upstream")
    sha = github.repository("org/upstream").head_sha
    body = {"name": "gate", "head_sha": sha, "status": "in_progress", "external_id": "row-1"}
    made = (await api.post(ROOT, json=body, headers=auth)).json()
    note = {"path": "a", "start_line": 1, "end_line": 1, "annotation_level": "notice", "message": "m"}
    output = {"title": "t", "summary": "s", "annotations": [note] * 50}
    for _ in range(2):
        await api.patch(
            f"{ROOT}/{made['id']}", json={"conclusion": "success", "output": output}, headers=auth
        )
    check_list = (await api.get(f"/repos/org/upstream/commits/{sha}/check-runs", headers=auth)).json()
    assert check_list["total_count"] == 1
    (check,) = check_list["check_runs"]
    assert (check["status"], check["conclusion"], check["external_id"]) == ("completed", "success", "row-1")
    assert check["output"]["annotations_count"] == 100


async def test_a_check_needs_the_permission(api: httpx.AsyncClient, token_for: TokenFor) -> None:
    auth = await token_for("org/upstream", permissions={"checks": "read"})
    assert (await api.post(ROOT, json={}, headers=auth)).status_code == 403


async def test_the_list_has_the_newest_check_of_each_name_unless_all_are_requested(
    github: GitHub, api: httpx.AsyncClient, token_for: TokenFor
) -> None:
    auth = await token_for("org/upstream")
    sha = github.repository("org/upstream").head_sha
    made = [
        (await api.post(ROOT, json={"name": name, "head_sha": sha}, headers=auth)).json()["id"]
        for name in ("gate", "other", "gate")
    ]

    async def listed(**query: str) -> set[int]:
        path = f"/repos/org/upstream/commits/{sha}/check-runs"
        answer = (await api.get(path, params=query)).json()
        assert answer["total_count"] == len(answer["check_runs"])
        return {check["id"] for check in answer["check_runs"]}

    assert await listed() == await listed(filter="latest") == {made[1], made[2]}
    assert await listed(filter="all") == set(made)
    assert await listed(check_name="gate") == {made[2]}
    assert await listed(check_name="gate", filter="all") == {made[0], made[2]}
    assert await listed(app_id=str(github.app_id)) == {made[1], made[2]}
    assert await listed(app_id="1") == set()
    assert await listed(status="completed") == set()


async def test_reopening_a_completed_check_is_ignored_and_fails_the_test(
    github: GitHub, api: httpx.AsyncClient, token_for: TokenFor
) -> None:
    auth = await token_for("org/upstream")
    body = {"name": "gate", "head_sha": github.repository("org/upstream").head_sha, "conclusion": "neutral"}
    made = (await api.post(ROOT, json=body, headers=auth)).json()["id"]
    again = await api.patch(f"{ROOT}/{made}", json={"conclusion": "success"}, headers=auth)
    assert again.json()["conclusion"] == "success"
    github.finish()
    reopened = await api.patch(f"{ROOT}/{made}", json={"status": "in_progress"}, headers=auth)
    assert (reopened.status_code, reopened.json()["status"]) == (200, "completed")
    with pytest.raises(AssertionError, match="reopen the completed check run gate"):
        github.finish()


async def test_a_check_is_created_even_when_its_response_is_lost(
    github: GitHub, api: httpx.AsyncClient, token_for: TokenFor
) -> None:
    auth = await token_for("org/upstream")
    body = {"name": "gate", "head_sha": github.repository("org/upstream").head_sha, "external_id": "row-1"}
    github.faults.lose_answer(on=Match(method="POST", path="*/check-runs"), times=1)
    with pytest.raises(AnswerLost):
        await api.post(ROOT, json=body, headers=auth)
    assert [check.external_id for check in github.checks("org/upstream")] == ["row-1"]
    assert (await api.post(ROOT, json=body, headers=auth)).status_code == 201


async def test_a_run_can_be_rerun_only_when_it_is_completed(
    github: GitHub, api: httpx.AsyncClient, token_for: TokenFor
) -> None:
    auth = await token_for("acme/backend")
    run = github.start_run("acme/backend", event="repository_dispatch")
    assert (await api.post(f"{RUNS}/{run.id}/rerun", headers=auth)).status_code == 403
    assert (await api.post(f"{RUNS}/{run.id}/cancel", headers=auth)).status_code == 202
    assert (await api.post(f"{RUNS}/{run.id}/cancel", headers=auth)).status_code == 409
    assert (await api.post(f"{RUNS}/{run.id}/rerun-failed-jobs", headers=auth)).status_code == 201
    jobs = (await api.get(f"{RUNS}/{run.id}/attempts/2/jobs", headers=auth)).json()["jobs"]
    assert {job["status"] for job in jobs} == {"queued"}
    assert run.attempt == 2


@pytest.mark.parametrize("kind", ["rerun", "rerun-failed-jobs"])
async def test_a_run_older_than_a_month_cannot_be_rerun(
    github: GitHub, api: httpx.AsyncClient, token_for: TokenFor, clock: ManualClock, kind: str
) -> None:
    run = github.start_run("acme/backend", event="repository_dispatch")
    github.ci.cancel(run)
    clock.advance(30 * 86_400)
    assert (
        await api.post(f"{RUNS}/{run.id}/{kind}", headers=await token_for("acme/backend"))
    ).status_code == 201
    github.ci.cancel(run)
    clock.advance(1)
    answer = await api.post(f"{RUNS}/{run.id}/{kind}", headers=await token_for("acme/backend"))
    assert (answer.status_code, answer.json()["message"]) == (
        403,
        "Unable to retry this workflow run because it was created over a month ago",
    )


async def test_a_run_can_be_rerun_fifty_times(
    github: GitHub, api: httpx.AsyncClient, token_for: TokenFor, clock: ManualClock
) -> None:
    run = github.start_run("acme/backend", event="repository_dispatch")
    auth = await token_for("acme/backend")
    statuses = []
    for _ in range(51):
        github.ci.cancel(run)
        statuses.append((await api.post(f"{RUNS}/{run.id}/rerun", headers=auth)).status_code)
    assert statuses == [201] * 50 + [403]


async def test_runs_are_filtered_by_event_and_time(
    github: GitHub, api: httpx.AsyncClient, clock: ManualClock
) -> None:
    github.start_run("acme/backend", event="repository_dispatch")
    clock.advance(3600)
    late = github.start_run("acme/backend", event="repository_dispatch")
    edge = clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
    page = (await api.get(RUNS, params={"event": "repository_dispatch", "created": f">={edge}"})).json()
    assert [run["id"] for run in page["workflow_runs"]] == [late.id]
    assert (await api.get(RUNS, params={"event": "push"})).json()["total_count"] == 0
    everything = (await api.get(RUNS, params={"created": f"2026-01-01..{edge}", "per_page": "1"})).json()
    assert (everything["total_count"], len(everything["workflow_runs"])) == (2, 1)
