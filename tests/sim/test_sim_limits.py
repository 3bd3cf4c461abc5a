import asyncio
from collections.abc import Awaitable, Callable

import httpx

from github_sim.clock import ManualClock
from github_sim.github import GitHub

TokenFor = Callable[..., Awaitable[dict[str, str]]]
REPO = "/repos/acme/backend"


async def test_the_primary_limit_is_counted_down_and_refilled(
    github: GitHub, api: httpx.AsyncClient, token_for: TokenFor, clock: ManualClock
) -> None:
    github.limits.primary_per_hour = 2
    auth = await token_for("acme/backend")
    left = [(await api.get(REPO, headers=auth)).headers["x-ratelimit-remaining"] for _ in range(2)]
    refused = await api.get(REPO, headers=auth)
    assert left == ["1", "0"]
    assert (refused.status_code, refused.headers["x-ratelimit-remaining"]) == (403, "0")
    assert "retry-after" not in refused.headers
    clock.advance(int(refused.headers["x-ratelimit-reset"]) - clock.now().timestamp())
    fresh = await token_for("acme/backend")
    assert (await api.get(REPO, headers=fresh)).status_code == 200


async def test_each_installation_has_its_own_limit(
    github: GitHub, api: httpx.AsyncClient, token_for: TokenFor
) -> None:
    one, other = await token_for("acme/backend"), await token_for("org/upstream")
    for _ in range(3):
        await api.get(REPO, headers=one)
    answer = await api.get("/repos/org/upstream", headers=other)
    assert answer.headers["x-ratelimit-used"] == "1"


async def test_writes_cost_five_points_a_minute(
    github: GitHub, api: httpx.AsyncClient, token_for: TokenFor, clock: ManualClock
) -> None:
    github.limits.points_per_minute = 10
    auth = await token_for("acme/backend")
    statuses = [
        (await api.post(f"{REPO}/dispatches", json={"event_type": "push"}, headers=auth)).status_code
        for _ in range(3)
    ]
    assert statuses == [204, 204, 403]
    clock.advance(61)
    again = await api.post(f"{REPO}/dispatches", json={"event_type": "push"}, headers=auth)
    assert again.status_code == 204


async def test_the_points_of_a_minute_are_counted_over_all_endpoints(
    github: GitHub, api: httpx.AsyncClient, token_for: TokenFor
) -> None:
    github.limits.points_per_minute = 6
    auth = await token_for("acme/backend")
    assert (await api.get(REPO, headers=auth)).status_code == 200
    dispatch = {"event_type": "push"}
    assert (await api.post(f"{REPO}/dispatches", json=dispatch, headers=auth)).status_code == 204
    assert (await api.get(f"{REPO}/contents/README.md", headers=auth)).status_code == 403


async def test_comments_have_their_own_limit(
    github: GitHub, api: httpx.AsyncClient, token_for: TokenFor, clock: ManualClock
) -> None:
    github.limits.content_per_minute = 1
    pull = await github.open_pr("org/upstream")
    auth = await token_for("org/upstream")

    async def comment() -> int:
        path = f"/repos/org/upstream/issues/{pull.number}/comments"
        return (await api.post(path, json={"body": "Done."}, headers=auth)).status_code

    assert [await comment(), await comment()] == [201, 403]
    clock.advance(61)
    assert await comment() == 201


async def test_spend_hour_leaves_the_given_rest_of_one_installations_hour(
    github: GitHub, api: httpx.AsyncClient, token_for: TokenFor, clock: ManualClock
) -> None:
    auth = await token_for("acme/backend")
    github.spend_hour("acme/backend", leave=1)
    answer = await api.get(REPO, headers=auth)
    named = {name: answer.headers[f"x-ratelimit-{name}"] for name in ("limit", "used", "remaining")}
    assert named == {"limit": "5000", "used": "5000", "remaining": "0"}
    assert (await api.get(REPO, headers=auth)).status_code == 403
    assert (github.hour_left("acme/backend"), github.hour_left("org/upstream")) == (0, 5000)
    clock.advance(3600)
    assert github.hour_left("acme/backend") == 5000


async def test_a_secondary_limit_response_has_retry_after(
    github: GitHub, api: httpx.AsyncClient, token_for: TokenFor
) -> None:
    github.limits.points_per_minute = 0
    auth = await token_for("acme/backend")
    answer = await api.get(REPO, headers=auth)
    assert (answer.status_code, answer.headers["retry-after"]) == (403, "60")
    assert "secondary rate limit" in answer.json()["message"]


async def test_too_many_concurrent_calls_are_refused(
    github: GitHub, api: httpx.AsyncClient, token_for: TokenFor
) -> None:
    github.limits.concurrent = 1
    auth = await token_for("acme/backend")
    github.faults.early_callback()
    entered, leave = asyncio.Event(), asyncio.Event()

    async def slow(request: httpx.Request) -> httpx.Response:
        entered.set()
        await leave.wait()
        return httpx.Response(200)

    github.use_transport(httpx.MockTransport(slow))
    payload = {"event_type": "push", "client_payload": {"relay": {"callback_url": "http://relay.test/cb"}}}
    first = asyncio.create_task(api.post(f"{REPO}/dispatches", json=payload, headers=auth))
    await entered.wait()
    assert (await api.get(REPO, headers=auth)).status_code == 403
    leave.set()
    assert (await first).status_code == 204


async def test_a_304_response_is_free(github: GitHub, api: httpx.AsyncClient, token_for: TokenFor) -> None:
    auth = await token_for("org/upstream")
    path = "/repos/org/upstream/contents/README.md"
    full = await api.get(path, headers=auth)
    free = await api.get(path, headers={**auth, "if-none-match": full.headers["etag"]})
    assert free.headers["x-ratelimit-used"] == full.headers["x-ratelimit-used"]


async def test_a_conditional_read_of_an_unchanged_repository_is_304_and_free(
    github: GitHub, api: httpx.AsyncClient, token_for: TokenFor
) -> None:
    auth, other = await token_for("acme/backend"), await token_for("acme/backend")
    whole = await api.get(REPO, headers=auth)
    known = {"if-none-match": whole.headers["etag"]}
    same = await api.get(REPO, headers={**auth, **known})
    assert (same.status_code, same.content, same.headers["x-ratelimit-used"]) == (304, b"", "1")
    assert (
        await api.get(REPO, headers={**other, **known})
    ).status_code == 200  # an ETag is valid for one token only
    github.repository("acme/backend").description = "changed"
    assert (await api.get(REPO, headers={**auth, **known})).status_code == 200
    assert github.call_counts.for_installation(github.installation("acme/backend").id).calls == 3
