"""The simulator against GitHub's published OpenAPI description: routes, statuses, bodies, webhooks.

One fixture calls every route; each exchange is then compared with the description. The description is an npm package that is
installed for tests only; without it these tests fail and say how to get it.
"""

import functools
import json
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from github_sim.github import CheckRun, GitHub, PullRequest
from github_sim.rest.app import ROUTES
from github_sim.rest.app_manifest import ManifestCode
from github_sim.rest.exchange import Auth
from github_sim.world.records import Json
from support.paths import ROOT

HINT = "npm install --no-package-lock --no-save --prefix .cache/npm @octokit/openapi@23.0.2"
# GitHub may answer with these statuses on any route; the description lists them only on some.
ANYWHERE = {301, 304, 307, 401, 403, 404, 422}

# Schemas that replace wrong ones of the description. The list of installations requires each account to be a user and an enterprise
# at once (`allOf`); the single installation is correct. A conflict of a written file must match exactly one of two bodies
# (`oneOf`), and every body of the first kind is also one of the second.
INSTEAD: dict[tuple[str, int], Json] = {
    ("/app/installations", 200): {"type": "array", "items": {"$ref": "#/components/schemas/installation"}},
    ("/repos/{owner}/{repo}/contents/{path}", 409): {"$ref": "#/components/schemas/basic-error"},
}

AppAuth = Callable[..., dict[str, str]]
TokenFor = Callable[..., Awaitable[dict[str, str]]]


@functools.cache
def description() -> Json:
    home = Path(os.environ.get("CRCR_NPM_DIR", ROOT / ".cache/npm/node_modules"))
    file = home / "@octokit/openapi/generated/api.github.com.json"
    if not file.exists():
        pytest.fail(f"GitHub's OpenAPI description is missing at {file}; install it by: {HINT}")
    document: Json = json.loads(file.read_bytes())
    return document


def deref(node: Json) -> Json:
    while "$ref" in node:
        target: Any = description()
        for step in node["$ref"].removeprefix("#/").split("/"):
            target = target[step]
        node = target
    return node


def plain(node: Any) -> Any:
    """An OpenAPI 3.0 schema as JSON Schema: `nullable` becomes a type."""
    if isinstance(node, list):
        return [plain(each) for each in node]
    if not isinstance(node, dict):
        return node
    made = {
        key: plain(value) for key, value in node.items() if key not in {"example", "examples", "nullable"}
    }
    if node.get("nullable") is not True:
        return made
    return {"anyOf": [made, {"type": "null"}]}


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"].rpartition("/")[2]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


@functools.cache
def component(name: str) -> Any:
    return plain(description()["components"]["schemas"][name])


def closed(schema: Json) -> Json:
    """The schema with only the components that it references."""
    made = plain(schema)
    needed: dict[str, Any] = {}
    waiting = list(references(made))
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed[name] = component(name)
            waiting.extend(references(needed[name]))
    return {"allOf": [made], "components": {"schemas": needed}}


def problems(schema: Json, value: object) -> list[str]:
    errors = jsonschema.Draft4Validator(closed(schema)).iter_errors(value)
    return [
        f"{error.json_path}: {jsonschema.exceptions.best_match([error]).message[:200]}" for error in errors
    ]


def operation(method: str, template: str) -> Json | None:
    described: Json | None = description()["paths"].get(template, {}).get(method.lower())
    return described


def response_problems(template: str, answer: httpx.Response) -> list[str]:
    described = operation(answer.request.method, template)
    if described is None:
        return ["not in the description"]
    described_response = described["responses"].get(str(answer.status_code))
    if described_response is None and answer.status_code in ANYWHERE:
        return problems({"$ref": "#/components/schemas/basic-error"}, answer.json())
    if described_response is None:
        return [f"status {answer.status_code} is not described"]
    content = deref(described_response).get("content", {}).get("application/json")
    if content is None:
        return [] if not answer.content or answer.status_code >= 300 else ["a body where none is described"]
    if "raw" in answer.headers["content-type"]:
        return []
    return problems(INSTEAD.get((template, answer.status_code), content["schema"]), answer.json())


def request_problems(template: str, request: httpx.Request) -> list[str]:
    described = (operation(request.method, template) or {}).get("requestBody")
    if described is None or not request.content:
        return []
    return problems(deref(described)["content"]["application/json"]["schema"], json.loads(request.content))


@pytest.fixture
async def all_responses(
    github: GitHub, api: httpx.AsyncClient, app_auth: AppAuth, token_for: TokenFor
) -> list[httpx.Response]:
    """Call every route, with valid requests and the usual invalid ones."""
    seen: list[httpx.Response] = []

    async def send(method: str, path: str, headers: dict[str, str], **more: Any) -> httpx.Response:
        seen.append(await api.request(method, path, headers=headers, **more))
        return seen[-1]

    pull = await github.open_pr("org/upstream", labels=["bug"], fork=True)
    await _call_app_routes(github, send, app_auth())
    await _call_repository_routes(github, send, await token_for("org/upstream"), pull.head_sha)
    await _call_pull_routes(github, send, await token_for("org/upstream"), pull)
    await _call_proposal_routes(github, send, await token_for("org/upstream"))
    down = await token_for("acme/backend")
    payload = {"event_type": "pull_request", "client_payload": {"delivery_id": "d"}}
    await send("POST", "/repos/acme/backend/dispatches", down, json=payload)
    await send("POST", "/repos/acme/nothing/dispatches", down, json=payload)
    await _call_actions_routes(github, send, down)
    await github.rename_repository("org/upstream", "renamed")
    await send("GET", "/repos/org/upstream/installation", app_auth())
    await send("GET", "/repos/org/upstream", down)
    return seen


Send = Callable[..., Awaitable[httpx.Response]]


async def _call_app_routes(github: GitHub, send: Send, auth: dict[str, str]) -> None:
    number = github.installation("org/upstream").id
    logged = github.deliveries()[0].id
    for path in (
        "/app",
        "/app/hook/config",
        "/app/installations",
        f"/app/installations/{number}",
        "/app/hook/deliveries",
    ):
        await send("GET", path, auth)
    await send("GET", f"/app/hook/deliveries/{logged}", auth)
    await send("POST", f"/app/hook/deliveries/{logged}/attempts", auth)
    await send("GET", "/repos/org/upstream/installation", auth)
    await send("GET", "/app/installations/1", auth)
    await _call_manifest_routes(github, send)
    body = {"repository_ids": [github.repository("org/upstream").id], "permissions": {"contents": "read"}}
    await send("POST", f"/app/installations/{number}/access_tokens", auth, json=body)
    await send("POST", f"/app/installations/{number}/access_tokens", auth, json={"repository_ids": [1]})


async def _call_manifest_routes(github: GitHub, send: Send) -> None:
    """The conversion of a manifest's code, which needs no authentication."""
    addresses = {"url": "https://relay.test", "redirect_url": "https://relay.test/created"}
    hook = {"hook_attributes": {"url": "https://relay.test/hook"}}
    permissions = {
        "default_permissions": dict(github.app_permissions),
        "default_events": list(github.app_events),
    }
    manifest = {"name": "relay", **addresses, **hook, **permissions}
    github.manifest_codes["code"] = ManifestCode(manifest, github.clock.now())
    await send("POST", "/app-manifests/code/conversions", {})
    await send("POST", "/app-manifests/code/conversions", {})


async def _call_repository_routes(github: GitHub, send: Send, token: dict[str, str], head: str) -> None:
    root = "/repos/org/upstream"
    for path in (
        "", "/contents/allow/list.yml", "/contents/allow", "/contents/none", "/pulls/1", "/pulls/1/files", "/pulls/1/reviews", "/pulls/9",
        "/git/matching-refs/heads/m", "/git/matching-refs/heads/none", f"/commits/{head}", "/commits/none", f"/compare/main...{head}", f"/compare/{head}...main",
    ):  # fmt: skip
        await send("GET", f"{root}{path}", token)
    await send("GET", "/installation/repositories", token)
    output = {"title": "t", "summary": "s"}
    check = {"name": "crcr/gate", "head_sha": head, "status": "in_progress", "output": output}
    made = await send("POST", f"{root}/check-runs", token, json=check)
    one = f"{root}/check-runs/{made.json()['id']}"
    await send("PATCH", one, token, json={"conclusion": "success", "completed_at": "2026-08-03T09:00:00Z"})
    await send("GET", one, token)
    await send("GET", f"{root}/commits/{head}/check-runs", token)


async def _call_proposal_routes(github: GitHub, send: Send, token: dict[str, str]) -> None:
    """A branch, a file on it, and a pull request from it; each also when it exists already."""
    root, branch = "/repos/org/upstream", "bot/proposal"
    new_ref = {"ref": f"refs/heads/{branch}", "sha": github.repository("org/upstream").head_sha}
    await send("GET", f"{root}/git/ref/heads/{branch}", token)
    for sent in (new_ref, new_ref, {**new_ref, "ref": "refs/heads/bot"}, {**new_ref, "sha": "0" * 40}):
        await send("POST", f"{root}/git/refs", token, json=sent)
    await send("GET", f"{root}/git/ref/heads/{branch}", token)
    offer = {"title": "Move", "body": "Why.", "head": branch, "base": "main"}
    await send("POST", f"{root}/pulls", token, json=offer)  # no commit yet
    read = await send("GET", f"{root}/contents/allow/list.yml?ref={branch}", token)
    file = {"message": "Move", "content": "TDI6IFtdCg==", "branch": branch, "sha": read.json()["sha"]}
    for sent in (file, file, {**file, "content": "?"}, {**file, "branch": "none"}):
        await send("PUT", f"{root}/contents/allow/list.yml", token, json=sent)
    del file["sha"]
    for path in ("new.yml", "allow/list.yml"):
        await send("PUT", f"{root}/contents/{path}", token, json=file)
    for sent in (offer, offer, {**offer, "head": "none"}, {**offer, "title": ""}):
        await send("POST", f"{root}/pulls", token, json=sent)
    for query in (f"?head=org:{branch}&state=all", "?base=main", "?head=org:none"):
        await send("GET", f"{root}/pulls{query}", token)


async def _call_pull_routes(github: GitHub, send: Send, token: dict[str, str], pull: PullRequest) -> None:
    root = "/repos/org/upstream"
    github.set_permission("org/upstream", "maintainer", "maintain")
    comment = await github.comment_pr(pull, "Looks good", author="maintainer")
    issue = await github.close_issue(await github.open_issue("org/upstream"))
    for number in (1, issue.number, 999):
        await send("GET", f"{root}/issues/{number}", token)
    written = await send("POST", f"{root}/issues", token, json={"title": "Red", "body": "Since noon."})
    await send("POST", f"{root}/issues", token, json={"title": ""})
    change = {"title": "Green", "state": "closed", "state_reason": "completed"}
    for number in (written.json()["number"], 999):
        await send("PATCH", f"{root}/issues/{number}", token, json=change)
    await send("GET", f"{root}/issues?state=all&since=2020-01-01T00:00:00Z", token)
    own = await send("POST", f"{root}/issues/1/comments", token, json={"body": "Noted."})
    await send("POST", f"{root}/issues/9/comments", token, json={"body": "Noted."})
    one = f"{root}/issues/comments/{own.json()['id']}"
    await send("PATCH", one, token, json={"body": "Noted, twice."})
    for path in (
        "/issues/1/comments", f"/git/commits/{pull.head_sha}", "/git/commits/none", "/collaborators/nobody/permission",
        "/collaborators/maintainer/permission", f"/commits/{pull.head_sha}/pulls", "/compare/main...main?page=2",
    ):  # fmt: skip
        await send("GET", f"{root}{path}", token)
    await send("GET", one, token)
    for content in ("eyes", "eyes", "tea"):
        await send("POST", f"{root}/issues/comments/{comment.id}/reactions", token, json={"content": content})


async def _call_actions_routes(github: GitHub, send: Send, token: dict[str, str]) -> None:
    run = github.runs("acme/backend")[0]
    root = f"/repos/acme/backend/actions/runs/{run.id}"
    await send("POST", f"{root}/rerun", token)
    await send("POST", f"{root}/cancel", token)
    await send("POST", f"{root}/cancel", token)
    await send("POST", f"{root}/rerun", token)
    github.ci.cancel(run)
    await send("POST", f"{root}/rerun-failed-jobs", token)
    for path in (root, f"{root}/jobs", f"{root}/attempts/1/jobs", f"{root}/attempts/9/jobs"):
        await send("GET", path, token)
    await send("GET", "/repos/acme/backend/actions/workflows", token)
    await send("GET", "/repos/acme/backend/actions/runs?event=repository_dispatch&per_page=1", token)
    await send("GET", f"/repos/acme/backend/actions/jobs/{run.jobs[0].id}", token)


def described_routes() -> set[tuple[str, str]]:
    return {(route.method, route.template) for route in ROUTES if route.auth is not Auth.OPEN}


def test_every_route_is_in_githubs_description() -> None:
    missing = {pair for pair in described_routes() if operation(*pair) is None}
    assert missing == set()


async def test_every_response_matches_the_description(
    github: GitHub, all_responses: list[httpx.Response]
) -> None:
    by_path = {(call.method, call.path): call.route for call in github.calls}
    wrong: list[str] = []
    for answer in all_responses:
        request = answer.request
        template = by_path[request.method, request.url.path] or ""
        mismatches = response_problems(template, answer)
        mismatches += request_problems(template, request) if answer.is_success else []
        wrong += [f"{request.method} {request.url.path} {answer.status_code} {each}" for each in mismatches]
    assert wrong == []


async def test_the_calls_cover_every_route_with_success(
    github: GitHub, all_responses: list[httpx.Response]
) -> None:
    done = {(call.method, call.route) for call in github.calls if 200 <= call.status < 300}
    assert described_routes() - done == set()
    github.finish()


async def test_every_webhook_matches_the_description(github: GitHub) -> None:
    await _make_every_webhook(github)
    wrong: list[str] = []
    kinds: set[str] = set()
    for sent in github.deliveries():
        name = "-".join(["webhook", sent.event, *([sent.action] if sent.action else [])]).replace("_", "-")
        kinds.add(name)
        mismatches = problems(description()["components"]["schemas"][name], json.loads(sent.payload))
        wrong += [f"{name} {each}" for each in mismatches]
    assert wrong == []
    assert len(kinds) >= 30


async def _make_check_webhooks(github: GitHub) -> None:
    repository = github.repository("org/upstream")
    button = {"label": "Waive", "description": "Accept this failure", "identifier": "waive"}
    check = CheckRun(
        1, repository.id, repository.head_sha, "crcr/gate", "completed", "failure", actions=[button]
    )
    check.started_at = check.completed_at = "2026-08-03T09:00:00Z"
    github.world.check_runs[check.id] = check
    await github.rerequest_check(check)
    await github.press_button(check, "waive")
    await github.rerequest_suite("org/upstream", repository.head_sha)
    in_tree = await github.start_ci_check("org/upstream", repository.head_sha, "lint")
    await github.end_ci_check(in_tree, "failure")
    await github.announce_check(check, "completed")
    for state in ("pending", "success"):
        await github.set_status(
            "org/upstream", repository.head_sha, "ci/circleci", state, "https://ci.test/1"
        )
    run = github.start_run("acme/backend", event="repository_dispatch")
    await github.send_run_webhook(run, "requested")
    await github.send_job_webhook(run, "lint")
    github.ci.start(run, run.job("lint"))
    await github.send_run_webhook(run, "in_progress")
    await github.send_job_webhook(run, "lint")
    github.ci.cancel(run)
    await github.send_run_webhook(run, "completed")
    await github.send_job_webhook(run, "lint")


async def _make_every_webhook(github: GitHub) -> None:
    await github.ping()
    pull = await github.open_pr("org/upstream", fork=True, labels=["a"])
    await github.push_to_pr(pull)
    await github.label_pr(pull, "b")
    await github.unlabel_pr(pull, "b")
    await github.convert_to_draft(pull)
    await github.ready_for_review(pull)
    await github.edit_pr(pull, title="Another", base="main")
    comment = await github.comment_pr(pull, "/crcr status", author="someone")
    await github.edit_comment(comment, "never mind")
    await github.delete_comment(comment)
    await github.merge_group("org/upstream", pull.number)
    await github.merge_group("org/upstream", pull.number, action="destroyed", reason="merged")
    await github.close_pr(pull, merged=True)
    await github.reopen_pr(pull)
    await github.push("org/upstream", commits=3)
    await github.push("org/upstream", ref="refs/heads/old", created=True)
    await github.push("org/upstream", ref="refs/heads/old", deleted=True)
    github.create_repository("org/second", installed=False)
    github.create_repository("new/one", installed=False)
    await github.install("org/second")
    await github.install("new/one")
    await github.suspend_installation("new/one")
    await github.unsuspend_installation("new/one")
    await github.rename_repository("new/one", "two")
    await _make_check_webhooks(github)
    await github.uninstall("org/second")
    await github.transfer_repository("new/two", "org")
    await github.uninstall("org/two", whole_account=True)
