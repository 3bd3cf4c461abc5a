"""Bisections started and stopped by administrators, through the API and the buttons of the pages; everybody sees them."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.downstream.callbacks import BACKEND, workflow_with_jobs
from support.failures.bisection import BISECTED, BrokenBase, broken_base
from support.running_relay import RunningRelay, running_relay
from support.sign_in import ADMIN, READER, TOKENS, audit_log, forms, visitor

ORDER = {"backend": BACKEND, "job": "test"}
LIST = "/api/v1/bisections"


@pytest.fixture
async def relay(tmp_path: Path) -> AsyncIterator[RunningRelay]:
    async with running_relay(tmp_path, BISECTED, downstreams=(BACKEND,), **TOKENS) as running:
        running.github.repository(BACKEND).workflows = list(workflow_with_jobs("test"))
        yield running


@pytest.fixture
async def base(relay: RunningRelay) -> BrokenBase:
    return await broken_base(relay, commits=8, culprit=5)


async def send_request(
    relay: RunningRelay, method: str, path: str = LIST, body: Any = None, **more: Any
) -> httpx.Response:
    token = more.pop("token", ADMIN)
    headers = {"authorization": f"Bearer {token}"} if token else {}
    return await relay.http.request(method, path, json=body, headers={**headers, **more})


def error_code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, str(answer.json()["error"]["code"])


async def test_a_bisection_started_by_the_api_finds_the_commit(relay: RunningRelay, base: BrokenBase) -> None:
    answer = await send_request(relay, "POST", body=ORDER)
    assert answer.status_code == 201, answer.text
    started = answer.json()
    number = started["bisection"]["id"]
    assert (started["bisection"]["state"], started["bisection"]["who"]) == ("running", "ann")
    assert [commit["sha"] for commit in started["commits"]] == base.commits
    assert [(run["sha"], run["result"]) for run in started["runs"]] == [(base.commits[-1], None)]
    await relay.drain()
    await base.finish(number)
    ended = (await relay.http.get(f"{LIST}/{number}")).json()
    assert ended["bisection"]["culprit"]["sha"] == base.commits[5]
    (culprits,) = (await relay.http.get("/api/v1/culprits")).json()
    assert culprits["bisection"] == number
    assert ("ann", "bisect", f"{BACKEND}: test") in audit_log(relay)
    page = (await relay.http.get(f"/crcr/commit/{base.commits[5]}", headers={"accept": "text/html"})).text
    assert f"Bisection {number}</a> found that this commit broke" in page


async def test_a_bisection_order_sets_range_and_budget(relay: RunningRelay, base: BrokenBase) -> None:
    order = {**ORDER, "good": base.commits[2][:8].upper(), "bad": base.commits[7], "runs": 5, "hours": 2}
    started = (await send_request(relay, "POST", body=order)).json()["bisection"]
    assert (started["good"], started["bad"], started["commits"]) == (base.commits[2], base.commits[7], 5)
    assert started["most_runs"] == 5


async def test_a_stopped_bisection_sends_no_further_run(relay: RunningRelay, base: BrokenBase) -> None:
    number = await base.start()
    answer = await send_request(relay, "DELETE", f"{LIST}/{number}")
    assert answer.status_code == 200
    stopped = answer.json()["bisection"]
    assert (stopped["state"], stopped["outcome"], stopped["reason"]) == (
        "finished",
        "stopped",
        "stopped by ann",
    )
    assert error_code(await send_request(relay, "DELETE", f"{LIST}/{number}")) == (409, "not_possible")
    assert error_code(await send_request(relay, "DELETE", f"{LIST}/{number + 1}")) == (404, "not_found")
    await base.answer()
    assert len(base.runs(number)) == 1


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"backend": "org/unlisted"}, (404, "not_found")),
        ({"backend": "nobody"}, (400, "bad_request")),
        ({"job": "lint"}, (404, "not_found")),
        ({"job": ""}, (400, "bad_request")),
        ({"job": None}, (400, "bad_request")),
        ({"runs": 2}, (400, "bad_request")),
        ({"runs": 101}, (400, "bad_request")),
        ({"hours": 0}, (400, "bad_request")),
        ({"hours": 169}, (400, "bad_request")),
        ({"good": "xyz"}, (400, "bad_request")),
        ({"good": "0123456789"}, (404, "not_found")),
        ({"colour": "red"}, (400, "bad_request")),
    ],
)
async def test_invalid_bisection_orders_are_refused(
    relay: RunningRelay, base: BrokenBase, changes: dict[str, Any], expected: tuple[int, str]
) -> None:
    assert error_code(await send_request(relay, "POST", body={**ORDER, **changes})) == expected
    assert (await relay.http.get(LIST)).json()["items"] == []


async def test_a_job_can_have_only_one_running_bisection(relay: RunningRelay, base: BrokenBase) -> None:
    number = await base.start()
    answer = await send_request(relay, "POST", body=ORDER)
    assert error_code(answer) == (409, "not_possible")
    assert f"bisection {number}" in answer.json()["error"]["detail"]


async def test_a_backend_that_does_not_allow_it_is_not_bisected(
    relay: RunningRelay, base: BrokenBase
) -> None:
    relay.write_allowlist(f"L2:\n  - {BACKEND}\n")
    await relay.refresh()
    answer = await send_request(relay, "POST", body=ORDER)
    assert error_code(answer) == (409, "not_possible")
    assert "bisect: manual" in answer.json()["error"]["hint"]
    async with visitor(relay) as me:
        await me.sign_in(ADMIN)
        assert "/crcr/admin/bisect" not in (await me.get(f"/crcr/{BACKEND}?kind=push")).text


@pytest.mark.parametrize(
    ("token", "expected"), [(None, (401, "not_signed_in")), (READER, (403, "not_admin"))]
)
async def test_only_administrators_can_start_and_stop_a_bisection(
    relay: RunningRelay, base: BrokenBase, token: str | None, expected: tuple[int, str]
) -> None:
    number = await base.start()
    for method, path in (("POST", LIST), ("DELETE", f"{LIST}/{number}")):
        assert error_code(await send_request(relay, method, path, ORDER, token=token)) == expected
    assert base.row(number)["state"] == "running"
    assert (await send_request(relay, "GET", f"{LIST}/{number}", token=token)).status_code == 200


async def test_a_session_cookie_cannot_start_a_bisection_through_the_api(
    relay: RunningRelay, base: BrokenBase
) -> None:
    async with visitor(relay) as me:
        await me.sign_in(ADMIN)
        cookie = f"crcr_session={me.http.cookies['crcr_session']}"
    assert error_code(await send_request(relay, "POST", body=ORDER, token=None, cookie=cookie)) == (
        401,
        "not_signed_in",
    )


async def test_without_admin_tokens_the_api_cannot_start_or_stop_a_bisection(tmp_path: Path) -> None:
    async with running_relay(tmp_path, BISECTED, downstreams=(BACKEND,)) as relay:
        assert (await send_request(relay, "POST", body=ORDER)).status_code == 404
        assert (await send_request(relay, "DELETE", f"{LIST}/1")).status_code == 404
        assert (await relay.http.get(LIST)).json() == {"items": [], "next": None}


async def test_the_buttons_start_and_stop_a_bisection(relay: RunningRelay, base: BrokenBase) -> None:
    async with visitor(relay) as me:
        path = f"/crcr/{BACKEND}?kind=push"
        assert "/crcr/admin/bisect" not in (await me.get(path)).text
        await me.sign_in(ADMIN)
        (button,) = [form for form in forms((await me.get(path)).text) if form[""] == "/crcr/admin/bisect"]
        answer = await me.send(button.pop(""), button)
        assert answer.status_code == 303, answer.text
        page_after = (await me.get(answer.headers["location"])).text
        assert "Bisection 1 has begun." in page_after
        assert "bisection 1</a>" in page_after
        assert "/crcr/admin/bisect" not in page_after
        page = (await me.get("/crcr/bisections/1")).text
        (stop,) = [form for form in forms(page) if form[""] == "/crcr/admin/stop_bisection"]
        answer = await me.send(stop.pop(""), stop)
        assert "Bisection 1 is stopped." in (await me.get(answer.headers["location"])).text
    assert base.row(1)["reason"] == "stopped by ann"
    commit_titles = base.row(1)["commits"]
    assert all(sha in commit_titles for sha in base.commits)


async def test_cached_pages_show_each_step(relay: RunningRelay, base: BrokenBase) -> None:
    number = await base.start()
    run_counts = []
    for _ in range(3):
        run_counts.append((await relay.http.get(f"/crcr/bisections/{number}")).text.count('data-key="run-'))
        run_counts.append(len((await relay.http.get(f"{LIST}/{number}")).json()["runs"]))
        await base.answer()
    assert run_counts == [1, 1, 2, 2, 3, 3]
