"""REST routes of a repository: itself, its installation, people's permissions, contents, dispatches."""

import base64
import json
from typing import TYPE_CHECKING

from github_sim.bodies.repositories import account_json, full_repository_json, installation_json
from github_sim.rest.exchange import ApiError, Ask, Auth, Reply, Route, invalid
from github_sim.world.git_content import blob_sha
from github_sim.world.records import Commit, Dispatch, Json
from github_sim.world.roles import LEGACY, role_of

if TYPE_CHECKING:
    from github_sim.simulation import Simulation

MOST_TYPE_CHARACTERS = 100
MOST_PAYLOAD_KEYS = 10
MOST_PAYLOAD_BYTES = 65_536
RAW = "application/vnd.github.raw"


async def get_repository(sim: "Simulation", ask: Ask) -> Reply:
    return Reply(200, full_repository_json(sim.base_url, ask.repository))


async def get_installation(sim: "Simulation", ask: Ask) -> Reply:
    found = sim.world.installation_of(ask.repository)
    if found is None:
        raise ApiError(404, "Not Found")
    return Reply(200, installation_json(sim.base_url, sim.app_id, found))


async def get_permission(sim: "Simulation", ask: Ask) -> Reply:
    account = sim.world.accounts.get(ask.params["username"].lower())
    if account is None:
        raise ApiError(404, f"{ask.params['username']} is not a user")
    role = role_of(ask.repository, account)
    user = {**account_json(sim.base_url, account), "role_name": role}
    return Reply(200, {"permission": LEGACY[role], "role_name": role, "user": user})


async def get_contents(sim: "Simulation", ask: Ask) -> Reply:
    commit = _commit(sim, ask, ask.query.get("ref") or ask.repository.default_branch)
    path = ask.params["path"].strip("/")
    if path not in commit.tree:
        return _directory(sim, ask, commit, path)
    content = commit.tree[path]
    sha = blob_sha(content)
    headers = {"etag": f'"{sha}"', "cache-control": "private, max-age=60, s-maxage=60"}
    if ask.headers.get("if-none-match", "").removeprefix("W/") == headers["etag"]:
        return Reply(304, headers=headers)
    if ask.headers.get("accept", "").startswith(RAW):
        return Reply(200, raw=content, headers=headers, media=f"{RAW}; charset=utf-8")
    encoded = base64.encodebytes(content).decode()
    body = {**_entry(sim, ask, path, content), "content": encoded, "encoding": "base64"}
    return Reply(200, body, headers)


def _entry(sim: "Simulation", ask: Ask, path: str, content: bytes) -> Json:
    name, sha = ask.repository.full_name, blob_sha(content)
    api, site = f"{sim.base_url}/repos/{name}", f"{sim.base_url}/{name}"
    ref = ask.query.get("ref") or ask.repository.default_branch
    links = {
        "self": f"{api}/contents/{path}?ref={ref}",
        "git": f"{api}/git/blobs/{sha}",
        "html": f"{site}/blob/{ref}/{path}",
    }
    return {
        "type": "file",
        "size": len(content),
        "name": path.rpartition("/")[2],
        "path": path,
        "sha": sha,
        "url": links["self"],
        "git_url": links["git"],
        "html_url": links["html"],
        "download_url": f"{site}/raw/{ref}/{path}",
        "_links": links,
    }


def _directory(sim: "Simulation", ask: Ask, commit: Commit, path: str) -> Reply:
    inside = {name: content for name, content in commit.tree.items() if name.startswith(f"{path}/")}
    if not inside:
        raise ApiError(404, "Not Found")
    direct = {name: content for name, content in inside.items() if "/" not in name[len(path) + 1 :]}
    return Reply(200, [_entry(sim, ask, name, content) for name, content in direct.items()])


async def create_dispatch(sim: "Simulation", ask: Ask) -> Reply:
    body = ask.json()
    payload = _checked_payload(body)
    sim.world.dispatches.append(
        Dispatch(
            repository_id=ask.repository.id,
            event_type=body["event_type"],
            client_payload=payload,
            received_at=sim.clock.now(),
            installation_id=ask.identity.installation_id if ask.identity else None,
            size_bytes=len(ask.body),
        )
    )
    runs = sim.ci.start_runs(ask.repository, "repository_dispatch", body["event_type"], payload)
    for run in runs:
        if sim.faults.take_early_callback():
            job = run.jobs[0]
            sim.ci.start(run, job)
            report = sim.ci.report_body(run, job, "in_progress")
            await sim.ci.send_report(run, job, report, token=sim.ci.token(run, job))
    await sim.tell_news()
    return Reply(204)


def _checked_payload(body: Json) -> Json:
    event_type, payload = body.get("event_type"), body.get("client_payload", {})
    if not isinstance(event_type, str) or not event_type:
        raise invalid("RepositoryDispatch", "event_type", '"event_type" wasn\'t supplied.')
    if len(event_type) > MOST_TYPE_CHARACTERS:
        raise invalid(
            "RepositoryDispatch", "event_type", "event_type is too long (maximum is 100 characters)"
        )
    if not isinstance(payload, dict):
        raise invalid("RepositoryDispatch", "client_payload", "client_payload is not an object.")
    if len(payload) > MOST_PAYLOAD_KEYS:
        raise invalid(
            "RepositoryDispatch",
            "client_payload",
            "No more than 10 properties are allowed; too many were supplied.",
        )
    if len(json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode()) >= MOST_PAYLOAD_BYTES:
        raise invalid("RepositoryDispatch", "client_payload", "client_payload is too large.")
    return payload


def _commit(sim: "Simulation", ask: Ask, ref: str) -> Commit:
    found = sim.world.resolve(ask.repository, ref)
    if found is None:
        raise ApiError(404, f"No commit found for the ref {ref}")
    return found


_REPO = "/repos/{owner}/{repo}"
_CONTENTS_READ = ("contents", "read")
ROUTES = (
    Route("GET", _REPO, get_repository, permission=("metadata", "read")),
    Route("GET", f"{_REPO}/installation", get_installation, Auth.APP),
    Route("GET", f"{_REPO}/contents/{{path}}", get_contents, permission=_CONTENTS_READ),
    Route("POST", f"{_REPO}/dispatches", create_dispatch, permission=("contents", "write")),
    Route(
        "GET",
        f"{_REPO}/collaborators/{{username}}/permission",
        get_permission,
        permission=("metadata", "read"),
    ),
)
