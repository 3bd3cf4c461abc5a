import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from github_sim.ci.autoplay import WorkflowAutoplay
from github_sim.github import GitHub, JobSpec, Workflow, WorkflowRun

TokenFor = Callable[..., Awaitable[dict[str, str]]]
NewWebhooks = Callable[[], list[tuple[str, str, str | None]]]
DISPATCHES = "/repos/acme/backend/dispatches"


@pytest.fixture
def new_webhooks(received_requests: list[httpx.Request]) -> NewWebhooks:
    """The App's webhooks since the last call: event, action and job."""

    def since() -> list[tuple[str, str, str | None]]:
        webhooks = []
        for each in received_requests:
            body = json.loads(each.content)
            event = each.headers.get("x-github-event", "callback")
            action = body["action"] if "action" in body else body["workflow"]["status"]
            webhooks.append((event, action, body.get("workflow_job", {}).get("name")))
        received_requests.clear()
        return webhooks

    return since


@pytest.fixture
async def subscribed_github(github: GitHub) -> GitHub:
    repository = github.repository("acme/backend")
    repository.sends_run_webhooks = True
    repository.workflows[:] = [
        Workflow(jobs=[JobSpec("build"), JobSpec("lint")], run_name="CI {delivery_id}")
    ]
    github.ci.callback_url = "http://relay.test/github/callback"
    return github


async def dispatch_run(github: GitHub, api: httpx.AsyncClient, token_for: TokenFor) -> WorkflowRun:
    body: dict[str, Any] = {"event_type": "push", "client_payload": {"delivery_id": "guid-1"}}
    await api.post(DISPATCHES, json=body, headers=await token_for("acme/backend"))
    return github.runs("acme/backend")[-1]


async def test_a_run_sends_webhooks_from_its_dispatch_to_its_end(
    subscribed_github: GitHub, api: httpx.AsyncClient, token_for: TokenFor, new_webhooks: NewWebhooks
) -> None:
    run = await dispatch_run(subscribed_github, api, token_for)
    assert new_webhooks() == [
        ("workflow_run", "requested", None),
        ("workflow_job", "queued", "build"),
        ("workflow_job", "queued", "lint"),
    ]
    await subscribed_github.start_job(run, "build")
    assert new_webhooks() == [
        ("workflow_run", "in_progress", None),
        ("workflow_job", "in_progress", "build"),
        ("callback", "in_progress", None),
    ]
    await subscribed_github.complete_job(run, "build", "timed_out")
    await subscribed_github.start_job(run, "lint")
    new_webhooks()
    await subscribed_github.complete_job(run, "lint", "success")
    assert new_webhooks() == [
        ("callback", "completed", None),
        ("workflow_job", "completed", "lint"),
        ("workflow_run", "completed", None),
    ]
    assert run.conclusion == "timed_out"


async def test_a_webhook_has_the_state_of_its_time(
    subscribed_github: GitHub, received_requests: list[httpx.Request]
) -> None:
    run = subscribed_github.start_run("acme/backend", event="repository_dispatch")
    subscribed_github.ci.start(run, run.job("build"))
    subscribed_github.ci.cancel(run)
    assert received_requests == []
    await subscribed_github.send_queued_webhooks()
    bodies = [json.loads(each.content) for each in received_requests]
    builds = [each["workflow_job"] for each in bodies if each.get("workflow_job", {}).get("name") == "build"]
    assert [(each["status"], each["conclusion"]) for each in builds] == [
        ("queued", None),
        ("in_progress", None),
        ("completed", "cancelled"),
    ]
    assert bodies[-1]["workflow_run"]["conclusion"] == "cancelled"


async def test_a_rerun_sends_webhooks_of_its_new_jobs_only(
    subscribed_github: GitHub, api: httpx.AsyncClient, token_for: TokenFor, new_webhooks: NewWebhooks
) -> None:
    run = await dispatch_run(subscribed_github, api, token_for)
    await subscribed_github.complete_job(run, "build", "success")
    await subscribed_github.complete_job(run, "lint", "failure")
    new_webhooks()
    path = f"/repos/acme/backend/actions/runs/{run.id}/rerun-failed-jobs"
    assert (await api.post(path, headers=await token_for("acme/backend"))).status_code == 201
    assert new_webhooks() == [("workflow_job", "queued", "lint")]
    assert run.status == "queued"
    await subscribed_github.start_job(run, "lint")
    assert new_webhooks()[:2] == [
        ("workflow_run", "in_progress", None),
        ("workflow_job", "in_progress", "lint"),
    ]


async def test_cancelling_by_the_api_sends_a_webhook(
    subscribed_github: GitHub, api: httpx.AsyncClient, token_for: TokenFor, new_webhooks: NewWebhooks
) -> None:
    run = await dispatch_run(subscribed_github, api, token_for)
    new_webhooks()
    await api.post(
        f"/repos/acme/backend/actions/runs/{run.id}/cancel", headers=await token_for("acme/backend")
    )
    assert new_webhooks()[-1] == ("workflow_run", "completed", None)


async def test_other_repositories_send_no_run_webhooks(
    github: GitHub, api: httpx.AsyncClient, token_for: TokenFor, received_requests: list[httpx.Request]
) -> None:
    run = await dispatch_run(github, api, token_for)
    await github.cancel(run)
    await github.send_queued_webhooks()
    assert received_requests == []


async def test_automatic_runs_send_webhooks(
    subscribed_github: GitHub, api: httpx.AsyncClient, token_for: TokenFor, new_webhooks: NewWebhooks
) -> None:
    async def at_once(_seconds: float) -> None:
        return None

    subscribed_github.sleep = at_once
    subscribed_github.repository("acme/backend").workflows[:] = [Workflow(automatic=True)]
    WorkflowAutoplay(subscribed_github)
    await dispatch_run(subscribed_github, api, token_for)
    await asyncio.gather(*subscribed_github._tasks)
    assert {each[:2] for each in new_webhooks()} >= {
        ("workflow_run", "completed"),
        ("workflow_job", "in_progress"),
    }


async def test_the_app_receives_only_the_events_of_its_subscription(
    subscribed_github: GitHub, new_webhooks: NewWebhooks
) -> None:
    installation = subscribed_github.installation("acme/backend")
    installation.events = ("workflow_job",)
    subscribed_github.start_run("acme/backend", event="repository_dispatch")
    await subscribed_github.send_queued_webhooks()
    assert {event for event, _, _ in new_webhooks()} == {"workflow_job"}
    assert await subscribed_github.push("acme/backend") is None


async def test_a_runs_title_contains_the_delivery_id(
    subscribed_github: GitHub, api: httpx.AsyncClient, token_for: TokenFor
) -> None:
    await dispatch_run(subscribed_github, api, token_for)
    (run,) = (await api.get("/repos/acme/backend/actions/runs")).json()["workflow_runs"]
    assert (run["name"], run["display_title"]) == ("CI", "CI guid-1")


async def test_a_run_without_a_name_has_its_event_as_title(
    github: GitHub, api: httpx.AsyncClient, token_for: TokenFor
) -> None:
    assert (await dispatch_run(github, api, token_for)).display_title == "push"


def test_the_app_has_the_permissions_that_a_gate_needs(github: GitHub) -> None:
    granted = github.installation("org/upstream").permissions
    assert granted == {
        "metadata": "read",
        "merge_queues": "read",
        **dict.fromkeys(("actions", "checks", "contents", "issues", "pull_requests", "statuses"), "write"),
    }
