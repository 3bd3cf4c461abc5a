import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from github_sim.github import JWKS_PATH, AnswerLost, GitHub, Match

TokenFor = Callable[..., Awaitable[dict[str, str]]]
REPO = "/repos/acme/backend"
DISPATCHES = Match(method="POST", path="*/dispatches")
DISPATCH: dict[str, Any] = {"event_type": "push", "client_payload": {"delivery_id": "d"}}


@pytest.mark.parametrize("status", [500, 502, 503, 404])
async def test_an_answer_fault_refuses_without_acting_and_ends_after_its_times(
    github: GitHub, api: httpx.AsyncClient, token_for: TokenFor, status: int
) -> None:
    auth = await token_for("acme/backend")
    github.faults.answer(status, on=DISPATCHES, times=2)
    statuses = [
        (await api.post(f"{REPO}/dispatches", json=DISPATCH, headers=auth)).status_code for _ in range(3)
    ]
    assert statuses == [status, status, 204]
    assert len(github.dispatches("acme/backend")) == 1


async def test_a_fault_may_apply_to_one_repository(
    github: GitHub, api: httpx.AsyncClient, token_for: TokenFor
) -> None:
    github.faults.answer(502, on=Match(repository="Acme/Backend"))
    assert (await api.get(REPO)).status_code == 502
    assert (await api.get("/repos/org/upstream")).status_code == 200


@pytest.mark.parametrize(("status", "wait"), [(403, 30), (429, 30), (403, None), (429, None)])
async def test_a_secondary_limit_has_retry_after_only_when_requested(
    github: GitHub, api: httpx.AsyncClient, status: int, wait: int | None
) -> None:
    github.faults.secondary_limit(status=status, retry_after_s=wait, times=1)
    answer = await api.get(REPO)
    assert (answer.status_code, answer.headers.get("retry-after")) == (status, wait and str(wait))


async def test_the_primary_limit_can_be_exhausted(github: GitHub, api: httpx.AsyncClient) -> None:
    github.faults.primary_limit(reset_in_s=120, times=1)
    answer = await api.get(REPO)
    reset = int(answer.headers["x-ratelimit-reset"]) - int(github.clock.now().timestamp())
    assert (answer.status_code, answer.headers["x-ratelimit-remaining"], reset) == (403, "0", 120)


async def test_a_lost_response_leaves_the_action_done(
    github: GitHub, api: httpx.AsyncClient, token_for: TokenFor
) -> None:
    auth = await token_for("acme/backend")
    github.faults.lose_answer(on=DISPATCHES, times=1)
    with pytest.raises(AnswerLost):
        await api.post(f"{REPO}/dispatches", json=DISPATCH, headers=auth)
    assert len(github.dispatches("acme/backend")) == 1
    assert github.calls[-1].status == 0


async def test_a_lost_request_has_no_effect(
    github: GitHub, api: httpx.AsyncClient, token_for: TokenFor
) -> None:
    auth = await token_for("acme/backend")
    github.faults.lose_request(on=DISPATCHES, times=1)
    with pytest.raises(httpx.ReadTimeout):
        await api.post(f"{REPO}/dispatches", json=DISPATCH, headers=auth)
    assert github.dispatches("acme/backend") == []


@pytest.mark.parametrize("acts_first", [False, True])
async def test_a_call_hangs_until_released(
    github: GitHub, api: httpx.AsyncClient, token_for: TokenFor, acts_first: bool
) -> None:
    auth = await token_for("acme/backend")
    gate = github.faults.hang(on=DISPATCHES, times=1, after_acting=acts_first)
    call = asyncio.create_task(api.post(f"{REPO}/dispatches", json=DISPATCH, headers=auth))
    await gate.reached.wait()
    assert len(github.dispatches("acme/backend")) == int(acts_first)
    gate.release()
    assert (await call).status_code == 204
    assert len(github.dispatches("acme/backend")) == 1


async def test_latency_awaits_the_injected_sleep(received_requests: list[httpx.Request]) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async with GitHub(sleep=sleep) as github:
        github.create_repository("org/upstream")
        github.faults.latency(2.5)
        github.faults.answer(500, times=1)
        transport = httpx.ASGITransport(github.app)
        async with httpx.AsyncClient(transport=transport, base_url=github.base_url) as api:
            assert (await api.get("/repos/org/upstream")).status_code == 500
            assert (await api.get("/repos/org/upstream")).status_code == 200
    assert slept == [2.5, 2.5]


async def test_a_malformed_body_is_not_json(github: GitHub, api: httpx.AsyncClient) -> None:
    github.faults.malformed(times=1)
    answer = await api.get(REPO)
    with pytest.raises(ValueError, match=r"Unterminated|Expecting"):
        answer.json()


async def test_the_jwks_endpoint_can_be_down(github: GitHub, api: httpx.AsyncClient) -> None:
    github.faults.jwks(500, times=1)
    assert (await api.get(github.jwks_url)).status_code == 500
    assert (await api.get(github.jwks_url)).status_code == 200
    gate = github.faults.hang(on=Match(path=JWKS_PATH), times=1)
    call = asyncio.create_task(api.get(github.jwks_url))
    await gate.reached.wait()
    gate.release()
    assert (await call).status_code == 200


async def test_a_webhook_is_sent_twice_under_one_guid(
    github: GitHub, received_requests: list[httpx.Request]
) -> None:
    github.faults.webhooks.duplicate()
    await github.push("org/upstream")
    await github.push("org/upstream")
    guids = [each.headers["x-github-delivery"] for each in received_requests]
    assert len(guids) == 3
    assert guids[0] == guids[1] != guids[2]


async def test_held_webhooks_are_sent_late_and_in_another_order(
    github: GitHub, received_requests: list[httpx.Request]
) -> None:
    held = github.faults.webhooks.hold()
    pull = await github.open_pr("org/upstream")
    await github.push_to_pr(pull)
    assert received_requests == []
    github.faults.webhooks.remove(held)
    await github.release_webhooks(order=[1, 0])
    assert [json.loads(each.content)["action"] for each in received_requests] == ["synchronize", "opened"]


async def test_a_lost_webhook_is_logged_as_failed_and_can_be_redelivered(
    github: GitHub, received_requests: list[httpx.Request]
) -> None:
    github.faults.webhooks.lose(event="push", times=1)
    lost = await github.push("org/upstream")
    assert received_requests == []
    assert lost is not None
    assert (lost.ok, lost.status_code) == (False, 502)
    again = await github.redeliver(lost.guid)
    assert again.ok
    assert received_requests[0].headers["x-github-delivery"] == lost.guid


async def test_an_early_callback_is_sent_before_the_response_to_the_dispatch(
    github: GitHub, api: httpx.AsyncClient, token_for: TokenFor, received_requests: list[httpx.Request]
) -> None:
    auth = await token_for("acme/backend")
    github.faults.early_callback()
    payload = {
        **DISPATCH,
        "client_payload": {"delivery_id": "d", "relay": {"callback_url": "http://relay.test/cb"}},
    }
    gate = github.faults.hang(on=DISPATCHES, after_acting=True)
    call = asyncio.create_task(api.post(f"{REPO}/dispatches", json=payload, headers=auth))
    await gate.reached.wait()
    assert json.loads(received_requests[0].content)["workflow"]["status"] == "in_progress"
    gate.release()
    assert (await call).status_code == 204


async def test_clear_removes_all_faults(github: GitHub, api: httpx.AsyncClient) -> None:
    github.faults.answer(500)
    github.faults.webhooks.lose()
    github.faults.clear()
    assert (await api.get(REPO)).status_code == 200
    sent = await github.push("org/upstream")
    assert sent is not None
    assert sent.ok
