"""REST routes of a repository: itself, its installation, permissions, contents, refs, dispatches.

`/{owner}/{repo}/info/refs` is the ref advertisement of git's smart HTTP protocol, version 0, which `git ls-remote` reads.
Objects cannot be fetched.
"""

import base64
import json
from typing import TYPE_CHECKING

from github_sim.bodies import webhooks
from github_sim.bodies.commits import git_commit_json
from github_sim.bodies.repositories import account_json, full_repository_json, installation_json, node_id
from github_sim.rest.exchange import ApiError, ApiRequest, Auth, Reply, Route, validation_error
from github_sim.webhooks.comments import app_account
from github_sim.world.git_content import blob_sha
from github_sim.world.records import (
    LEGACY_PERMISSIONS,
    NO_COMMIT,
    GitCommit,
    Json,
    Repository,
    RepositoryDispatch,
    role_of,
)

if TYPE_CHECKING:
    from github_sim.simulation import Simulation

MOST_TYPE_CHARACTERS = 100
MOST_PAYLOAD_KEYS = 10
MOST_PAYLOAD_BYTES = 65_536
RAW = "application/vnd.github.raw"
GIT_SERVICE = "git-upload-pack"
_HEADS = "refs/heads/"


async def get_repository(sim: "Simulation", request: ApiRequest) -> Reply:
    return Reply(200, full_repository_json(sim.base_url, request.repository))


async def get_installation(sim: "Simulation", request: ApiRequest) -> Reply:
    installation = sim.world.installation_of(request.repository)
    if installation is None:
        raise ApiError(404, "Not Found")
    return Reply(200, installation_json(sim.base_url, sim.app_id, installation))


async def get_permission(sim: "Simulation", request: ApiRequest) -> Reply:
    account = sim.world.accounts.get(request.params["username"].lower())
    if account is None:
        raise ApiError(404, f"{request.params['username']} is not a user")
    role = role_of(request.repository, account)
    user = {**account_json(sim.base_url, account), "role_name": role}
    return Reply(200, {"permission": LEGACY_PERMISSIONS[role], "role_name": role, "user": user})


async def get_contents(sim: "Simulation", request: ApiRequest) -> Reply:
    commit = _commit(sim, request, request.query.get("ref") or request.repository.default_branch)
    path = request.params["path"].strip("/")
    if path not in commit.tree:
        return _directory(sim, request, commit, path)
    content = commit.tree[path]
    sha = blob_sha(content)
    headers = {"etag": f'"{sha}"', "cache-control": "private, max-age=60, s-maxage=60"}
    if request.headers.get("if-none-match", "").removeprefix("W/") == headers["etag"]:
        return Reply(304, headers=headers)
    if request.headers.get("accept", "").startswith(RAW):
        return Reply(200, raw=content, headers=headers, media=f"{RAW}; charset=utf-8")
    encoded = base64.encodebytes(content).decode()
    body = {**_entry(sim, request, path, content), "content": encoded, "encoding": "base64"}
    return Reply(200, body, headers)


async def put_contents(sim: "Simulation", request: ApiRequest) -> Reply:
    """Create or replace one file in a commit of its own; `sha` must be that of the replaced file."""
    repository, sent, path = request.repository, request.json(), request.params["path"].strip("/")
    branch = sent.get("branch") or repository.default_branch
    if branch not in repository.branches:
        raise ApiError(404, f"Branch {branch} not found")
    message, content = sent.get("message"), _decode_base64(sent.get("content"))
    if not isinstance(message, str) or not message:
        raise ApiError(422, 'Invalid request.\n\n"message" wasn\'t supplied.')
    before = repository.branches[branch]
    present = repository.commits[before].tree.get(path)
    if present is not None and "sha" not in sent:
        raise ApiError(422, 'Invalid request.\n\n"sha" wasn\'t supplied.')
    if sent.get("sha") != (None if present is None else blob_sha(present)):
        raise ApiError(409, f"{path} does not match {sent.get('sha')}")
    bot = app_account(sim)
    commit = sim.world.commit(repository, message, bot, parent=before, changes={path: content})
    repository.branches[branch] = commit.sha
    for pull in sim.world.pulls.values():
        if (pull.head_repository_id, pull.head_ref, pull.state) == (repository.id, branch, "open"):
            pull.head_sha = commit.sha
    await _send_push(sim, repository, branch, before=before, commits=[commit])
    body = {
        "content": _entry(sim, request, path, content, ref=branch),
        "commit": git_commit_json(sim.base_url, repository, commit),
    }
    return Reply(201 if present is None else 200, body)


def _decode_base64(text: object) -> bytes:
    try:
        return base64.b64decode(text if isinstance(text, str) else "?", validate=True)
    except ValueError:
        raise ApiError(422, "content is not valid Base64") from None


async def _send_push(
    sim: "Simulation", repository: Repository, branch: str, *, before: str, commits: list[GitCommit]
) -> None:
    after, bot = repository.branches[branch], app_account(sim)
    body = webhooks.push(
        sim.base_url,
        repository,
        ref=f"refs/heads/{branch}",
        before=before,
        after=after,
        commits=commits,
        forced=False,
        pusher=bot,
    )
    await sim.emit("push", body, repository, bot)


def _entry(
    sim: "Simulation", request: ApiRequest, path: str, content: bytes, *, ref: str | None = None
) -> Json:
    name, sha = request.repository.full_name, blob_sha(content)
    api, site = f"{sim.base_url}/repos/{name}", f"{sim.base_url}/{name}"
    ref = ref or request.query.get("ref") or request.repository.default_branch
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


def _directory(sim: "Simulation", request: ApiRequest, commit: GitCommit, path: str) -> Reply:
    inside = {name: content for name, content in commit.tree.items() if name.startswith(f"{path}/")}
    if not inside:
        raise ApiError(404, "Not Found")
    direct = {name: content for name, content in inside.items() if "/" not in name[len(path) + 1 :]}
    return Reply(200, [_entry(sim, request, name, content) for name, content in direct.items()])


async def create_dispatch(sim: "Simulation", request: ApiRequest) -> Reply:
    body = request.json()
    payload = _checked_payload(body)
    sim.world.dispatches.append(
        RepositoryDispatch(
            repository_id=request.repository.id,
            event_type=body["event_type"],
            client_payload=payload,
            received_at=sim.clock.now(),
            installation_id=request.caller.installation_id if request.caller else None,
            size_bytes=len(request.body),
        )
    )
    runs = sim.ci.start_runs(request.repository, "repository_dispatch", body["event_type"], payload)
    for run in runs:
        if sim.faults.take_early_callback():
            job = run.jobs[0]
            sim.ci.start(run, job)
            report = sim.ci.report_body(run, job, "in_progress")
            await sim.ci.send_report(run, job, report, token=sim.ci.token(run, job))
    await sim.send_queued_webhooks()
    return Reply(204)


def _checked_payload(body: Json) -> Json:
    event_type, payload = body.get("event_type"), body.get("client_payload", {})
    if not isinstance(event_type, str) or not event_type:
        raise validation_error("RepositoryDispatch", "event_type", '"event_type" wasn\'t supplied.')
    if len(event_type) > MOST_TYPE_CHARACTERS:
        raise validation_error(
            "RepositoryDispatch", "event_type", "event_type is too long (maximum is 100 characters)"
        )
    if not isinstance(payload, dict):
        raise validation_error("RepositoryDispatch", "client_payload", "client_payload is not an object.")
    if len(payload) > MOST_PAYLOAD_KEYS:
        raise validation_error(
            "RepositoryDispatch",
            "client_payload",
            "No more than 10 properties are allowed; too many were supplied.",
        )
    if len(json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode()) >= MOST_PAYLOAD_BYTES:
        raise validation_error("RepositoryDispatch", "client_payload", "client_payload is too large.")
    return payload


def _commit(sim: "Simulation", request: ApiRequest, ref: str) -> GitCommit:
    commit = sim.world.resolve(request.repository, ref)
    if commit is None:
        raise ApiError(404, f"No commit found for the ref {ref}")
    return commit


async def list_matching_refs(sim: "Simulation", request: ApiRequest) -> Reply:
    """All refs with this prefix in one answer, sorted by name; an empty list when there is none."""
    prefix = f"refs/{request.params['ref']}"
    refs = {f"refs/heads/{branch}": sha for branch, sha in request.repository.branches.items()}
    names = sorted(name for name in refs if name.startswith(prefix))
    return Reply(
        200, [_ref_json(sim.base_url, request.repository.full_name, name, refs[name]) for name in names]
    )


async def get_ref(sim: "Simulation", request: ApiRequest) -> Reply:
    """One ref by its whole name; GitHub answers 404 where only longer names begin like it."""
    ref = f"refs/{request.params['ref']}"
    sha = request.repository.branches.get(ref.removeprefix(_HEADS)) if ref.startswith(_HEADS) else None
    if sha is None:
        raise ApiError(404, "Not Found")
    return Reply(200, _ref_json(sim.base_url, request.repository.full_name, ref, sha))


async def create_ref(sim: "Simulation", request: ApiRequest) -> Reply:
    repository, sent = request.repository, request.json()
    ref, sha = sent.get("ref"), sent.get("sha")
    if not isinstance(ref, str) or not ref.startswith(_HEADS) or ref == _HEADS:
        raise ApiError(422, "Reference name is not valid: the simulator has branches only")
    if sha not in repository.commits:
        raise ApiError(422, "Object does not exist")
    branch = ref.removeprefix(_HEADS)
    # Git keeps a branch as a file: one cannot lie below another.
    if any(
        f"{name}/".startswith(f"{branch}/") or branch.startswith(f"{name}/") for name in repository.branches
    ):
        raise ApiError(422, "Reference already exists")
    repository.branches[branch] = sha
    await _send_push(sim, repository, branch, before=NO_COMMIT, commits=[])
    return Reply(201, _ref_json(sim.base_url, repository.full_name, ref, sha))


def _ref_json(base: str, full_name: str, ref: str, sha: str) -> Json:
    api = f"{base}/repos/{full_name}/git"
    return {
        "ref": ref,
        "node_id": node_id(ref, 0),
        "url": f"{api}/{ref}",
        "object": {"type": "commit", "sha": sha, "url": f"{api}/commits/{sha}"},
    }


async def advertise_refs(sim: "Simulation", request: ApiRequest) -> Reply:
    repository = sim.world.find(f"{request.params['owner']}/{request.params['repo'].removesuffix('.git')}")
    if repository is None or repository.private or request.query.get("service") != GIT_SERVICE:
        raise ApiError(404, "Not Found")
    body = _packet_line(f"# service={GIT_SERVICE}\n") + b"0000" + _ref_lines(repository) + b"0000"
    return Reply(200, raw=body, media=f"application/x-{GIT_SERVICE}-advertisement")


def _ref_lines(repository: Repository) -> bytes:
    symref = f"symref=HEAD:refs/heads/{repository.default_branch} agent=crcr-sim"
    refs = {f"refs/heads/{name}": sha for name, sha in sorted(repository.branches.items())}
    first = _packet_line(f"{repository.head_sha} HEAD\0{symref}\n")
    return first + b"".join(_packet_line(f"{sha} {name}\n") for name, sha in refs.items())


def _packet_line(text: str) -> bytes:
    """Git's pkt-line: the length in four hexadecimal digits, then the text."""
    return f"{len(text.encode()) + 4:04x}{text}".encode()


_REPO = "/repos/{owner}/{repo}"
_CONTENTS_READ, _CONTENTS_WRITE = ("contents", "read"), ("contents", "write")
ROUTES = (
    Route("GET", _REPO, get_repository, permission=("metadata", "read")),
    Route("GET", f"{_REPO}/installation", get_installation, Auth.APP),
    Route("GET", f"{_REPO}/contents/{{path}}", get_contents, permission=_CONTENTS_READ),
    Route("PUT", f"{_REPO}/contents/{{path}}", put_contents, permission=_CONTENTS_WRITE),
    Route("POST", f"{_REPO}/dispatches", create_dispatch, permission=_CONTENTS_WRITE),
    Route(
        "GET",
        f"{_REPO}/collaborators/{{username}}/permission",
        get_permission,
        permission=("metadata", "read"),
    ),
    Route("GET", f"{_REPO}/git/matching-refs/{{ref}}", list_matching_refs, permission=_CONTENTS_READ),
    Route("GET", f"{_REPO}/git/ref/{{ref}}", get_ref, permission=_CONTENTS_READ),
    Route("POST", f"{_REPO}/git/refs", create_ref, permission=_CONTENTS_WRITE),
    Route("GET", "/{owner}/{repo}/info/refs", advertise_refs, Auth.OPEN),
)
