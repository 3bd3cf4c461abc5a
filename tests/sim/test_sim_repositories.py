import base64
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from github_sim.github import GitHub

AppAuth = Callable[..., dict[str, str]]
TokenFor = Callable[..., Awaitable[dict[str, str]]]
BACKEND = "/repos/acme/backend/dispatches"


def dispatch_body(**payload: Any) -> dict[str, Any]:
    return {"event_type": "pull_request", "client_payload": payload}


async def test_a_dispatch_is_recorded_and_starts_the_listening_workflow(
    api: httpx.AsyncClient, token_for: TokenFor, github: GitHub
) -> None:
    auth = await token_for("acme/backend")
    answer = await api.post(BACKEND, json=dispatch_body(delivery_id="guid-1"), headers=auth)
    assert (answer.status_code, answer.content) == (204, b"")
    (dispatch,) = github.dispatches("acme/backend")
    assert (dispatch.delivery_id, dispatch.received_at) == ("guid-1", github.clock.now())
    (run,) = github.runs("acme/backend")
    assert [job.name for job in run.jobs] == ["build (cuda)", "build (cpu)", "lint"]
    assert len(github.calls_to("POST", "*/dispatches")) == 1
    github.finish()


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"event_type": "x" * 101},
        {"event_type": "push", "client_payload": dict.fromkeys("abcdefghijk", 1)},
        {"event_type": "push", "client_payload": []},
        dispatch_body(padding="x" * 65_523),
        dispatch_body(padding="é" * 32_762),
    ],
)
async def test_a_dispatch_over_githubs_limits_is_refused(
    api: httpx.AsyncClient, token_for: TokenFor, github: GitHub, body: dict[str, Any]
) -> None:
    answer = await api.post(BACKEND, json=body, headers=await token_for("acme/backend"))
    assert answer.status_code == 422
    assert github.dispatches() == []


async def test_a_dispatch_just_below_the_limits_is_accepted(
    api: httpx.AsyncClient, token_for: TokenFor
) -> None:
    payload = {**dict.fromkeys("bcdefghij", ""), "a": ""}
    room = 65_535 - len(json.dumps(payload, separators=(",", ":")))
    body = {"event_type": "x" * 100, "client_payload": {**payload, "a": "x" * room}}
    answer = await api.post(BACKEND, json=body, headers=await token_for("acme/backend"))
    assert answer.status_code == 204


async def test_a_repository_without_the_app_is_not_found(
    api: httpx.AsyncClient, token_for: TokenFor, app_auth: AppAuth, github: GitHub
) -> None:
    github.create_repository("acme/bare", installed=False)
    auth = await token_for("acme/backend")
    assert (
        await api.post("/repos/acme/bare/dispatches", json=dispatch_body(), headers=auth)
    ).status_code == 404
    assert (await api.get("/repos/acme/bare/installation", headers=app_auth())).status_code == 404


async def test_a_renamed_repository_redirects_to_its_id(
    api: httpx.AsyncClient, token_for: TokenFor, app_auth: AppAuth, github: GitHub
) -> None:
    number = github.repository("acme/backend").id
    await github.rename_repository("acme/backend", "engine")
    moved = await api.get("/repos/acme/backend/installation", headers=app_auth())
    assert moved.status_code == 301
    assert moved.headers["location"] == f"{github.base_url}/repositories/{number}/installation"
    sent = await api.post(BACKEND, json=dispatch_body(), headers=await token_for("acme/engine"))
    assert sent.status_code == 307
    again = await api.post(
        sent.headers["location"], json=dispatch_body(), headers=await token_for("acme/engine")
    )
    assert again.status_code == 204
    assert len(github.dispatches("acme/engine")) == 1


async def test_contents_are_returned_encoded_raw_and_by_etag(api: httpx.AsyncClient, github: GitHub) -> None:
    path = "/repos/org/upstream/contents/allow/list.yml"
    full = await api.get(path)
    assert base64.b64decode(full.json()["content"]) == b"L1: []\n"
    raw = await api.get(path, headers={"accept": "application/vnd.github.raw+json"})
    assert raw.content == b"L1: []\n"
    unchanged = await api.get(path, headers={"if-none-match": raw.headers["etag"]})
    assert (unchanged.status_code, unchanged.content) == (304, b"")
    github.write_file("org/upstream", "allow/list.yml", "L2: []\n")
    changed = await api.get(path, headers={"if-none-match": raw.headers["etag"]})
    assert changed.status_code == 200


async def test_contents_depend_on_the_ref(api: httpx.AsyncClient, github: GitHub) -> None:
    before = github.repository("org/upstream").head_sha
    github.write_file("org/upstream", "new.txt", "new")
    path = "/repos/org/upstream/contents/new.txt"
    assert (await api.get(path)).status_code == 200
    assert (await api.get(path, params={"ref": before})).status_code == 404
    assert (await api.get(path, params={"ref": "nowhere"})).status_code == 404


async def test_compare_returns_the_relation_of_two_commits(api: httpx.AsyncClient, github: GitHub) -> None:
    pull = await github.open_pr("org/upstream")
    await github.push_to_pr(pull)
    root = "/repos/org/upstream/compare"
    ahead = (await api.get(f"{root}/main...{pull.head_sha}")).json()
    assert (ahead["status"], ahead["ahead_by"]) == ("ahead", 2)
    await github.push("org/upstream")
    assert (await api.get(f"{root}/main...{pull.head_sha}")).json()["status"] == "diverged"
    assert (await api.get(f"{root}/main...main")).json()["status"] == "identical"


async def test_an_unknown_route_makes_finish_fail(api: httpx.AsyncClient, github: GitHub) -> None:
    assert (await api.get("/repos/org/upstream/stargazers")).status_code == 404
    with pytest.raises(AssertionError, match="unknown route GET /repos/org/upstream/stargazers"):
        github.finish()


async def test_the_api_is_also_served_at_the_path_of_enterprise_servers(api: httpx.AsyncClient) -> None:
    assert (await api.get("/api/v3/repos/org/upstream")).json()["full_name"] == "org/upstream"


async def test_a_new_repository_under_an_old_name_has_another_id(github: GitHub) -> None:
    before = github.repository("acme/backend")
    after = github.replace_repository("acme/backend")
    assert after.full_name == before.full_name
    assert after.id != before.id
