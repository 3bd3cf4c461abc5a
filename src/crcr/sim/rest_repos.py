"""REST routes of a repository: itself, its installation, contents, dispatches, pulls, commits, compare."""

import base64
import hashlib
import json
from typing import TYPE_CHECKING

from crcr.sim.exchange import ApiError, Ask, Auth, Reply, Route, invalid
from crcr.sim.paging import page_of
from crcr.sim.records import Commit, Dispatch, Json, PullRequest
from crcr.sim.shapes import full_repository_json, installation_json
from crcr.sim.shapes_pulls import changed_file_json, commit_json, comparison_json, pull_json

if TYPE_CHECKING:
    from crcr.sim.simulation import Simulation

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


def blob_sha(content: bytes) -> str:
    """Git's own hash of a file."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


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


def _pull(sim: "Simulation", ask: Ask) -> PullRequest:
    found = sim.world.pulls.get((ask.repository.id, ask.number("pull_number")))
    if found is None:
        raise ApiError(404, "Not Found")
    return found


async def get_pull(sim: "Simulation", ask: Ask) -> Reply:
    return Reply(200, pull_json(sim.base_url, sim.world, _pull(sim, ask)))


async def list_pull_files(sim: "Simulation", ask: Ask) -> Reply:
    pull = _pull(sim, ask)
    shown, headers = page_of(sim.base_url, ask, list(pull.files))
    listed = [changed_file_json(sim.base_url, pull, ask.repository, path) for path in shown]
    return Reply(200, listed, headers)


def _commit(sim: "Simulation", ask: Ask, ref: str) -> Commit:
    found = sim.world.resolve(ask.repository, ref)
    if found is None:
        raise ApiError(404, f"No commit found for the ref {ref}")
    return found


async def get_commit(sim: "Simulation", ask: Ask) -> Reply:
    found = sim.world.resolve(ask.repository, ask.params["ref"])
    if found is None:
        raise ApiError(422, f"No commit found for SHA: {ask.params['ref']}", errors=[])
    return Reply(200, commit_json(sim.base_url, ask.repository, found))


async def compare(sim: "Simulation", ask: Ask) -> Reply:
    old, dots, new = ask.params["basehead"].partition("...")
    if not dots:
        raise ApiError(404, "Not Found")
    sides = _commit(sim, ask, old), _commit(sim, ask, new.rpartition(":")[2])
    return Reply(200, comparison_json(sim.base_url, ask.repository, *sides))


_REPO = "/repos/{owner}/{repo}"
_CONTENTS_READ = ("contents", "read")
ROUTES = (
    Route("GET", _REPO, get_repository, permission=("metadata", "read")),
    Route("GET", f"{_REPO}/installation", get_installation, Auth.APP),
    Route("GET", f"{_REPO}/contents/{{path}}", get_contents, permission=_CONTENTS_READ),
    Route("POST", f"{_REPO}/dispatches", create_dispatch, permission=("contents", "write")),
    Route(
        "GET", f"{_REPO}/pulls/{{pull_number}}/files", list_pull_files, permission=("pull_requests", "read")
    ),
    Route("GET", f"{_REPO}/pulls/{{pull_number}}", get_pull, permission=("pull_requests", "read")),
    Route("GET", f"{_REPO}/commits/{{ref}}", get_commit, permission=_CONTENTS_READ),
    Route("GET", f"{_REPO}/compare/{{basehead}}", compare, permission=_CONTENTS_READ),
)
