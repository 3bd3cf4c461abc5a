"""REST routes of commits, comparisons and pull requests with their files."""

from typing import TYPE_CHECKING

from github_sim.bodies import webhooks
from github_sim.bodies.commits import changed_files_json, commit_json, comparison_json, git_commit_json
from github_sim.bodies.pull_requests import pull_json, review_json, simple_pull_json
from github_sim.rest.exchange import ApiError, ApiRequest, Reply, Route, paginate, validation_error
from github_sim.webhooks.comments import app_account
from github_sim.world.git_content import diff_trees
from github_sim.world.records import GitCommit, Json, PullRequest, Repository
from github_sim.world.world import ancestors, pull_changes

if TYPE_CHECKING:
    from github_sim.simulation import Simulation

MOST_FILES_OF_PULL = 3_000
MOST_FILES_OF_COMPARISON = 300
MOST_COMMITS_OF_COMPARISON = 250
MOST_TITLE = 256


def find_pull(sim: "Simulation", request: ApiRequest, parameter: str = "pull_number") -> PullRequest:
    pull = sim.world.pulls.get((request.repository.id, request.number(parameter)))
    if pull is None:
        raise ApiError(404, "Not Found")
    return pull


async def get_pull(sim: "Simulation", request: ApiRequest) -> Reply:
    return Reply(200, pull_json(sim.base_url, sim.world, find_pull(sim, request)))


async def list_pulls(sim: "Simulation", request: ApiRequest) -> Reply:
    """By state, base and `owner:branch` of the head, newest first."""
    state, head, base = (
        request.query.get("state", "open"),
        request.query.get("head"),
        request.query.get("base"),
    )
    pulls = [
        pull
        for pull in sim.world.pulls.values()
        if pull.repository_id == request.repository.id
        and state in {"all", pull.state}
        and base in {None, pull.base_ref}
        and head in {None, _head_label(sim, pull)}
    ]
    page, headers = paginate(sim.base_url, request, sorted(pulls, key=lambda pull: -pull.number))
    return Reply(200, [simple_pull_json(sim.base_url, sim.world, pull) for pull in page], headers)


def _head_label(sim: "Simulation", pull: PullRequest) -> str:
    return f"{sim.world.repositories[pull.head_repository_id].owner.login}:{pull.head_ref}"


async def create_pull(sim: "Simulation", request: ApiRequest) -> Reply:
    """From a branch of the same repository; one head and base have one open pull request."""
    repository, sent = request.repository, request.json()
    title, head, base = sent.get("title"), str(sent.get("head")), str(sent.get("base"))
    for name, ref in (("head", head), ("base", base)):
        if ref not in repository.branches:
            raise validation_error("PullRequest", name, f"{name} is invalid")
    if not isinstance(title, str) or not title.strip() or len(title) > MOST_TITLE:
        raise validation_error(
            "PullRequest", "title", f"title is blank or longer than {MOST_TITLE} characters"
        )
    head_sha, base_sha = repository.branches[head], repository.branches[base]
    own = set(ancestors(repository, head_sha)) - set(ancestors(repository, base_sha))
    if not own:
        raise validation_error("PullRequest", "head", f"No commits between {base} and {head}")
    if any(
        (pull.repository_id, pull.head_repository_id, pull.head_ref, pull.base_ref, pull.state)
        == (repository.id, repository.id, head, base, "open")
        for pull in sim.world.pulls.values()
    ):
        label = f"{repository.owner.login}:{head}"
        raise validation_error("PullRequest", "head", f"A pull request already exists for {label}.")
    bot, now = app_account(sim), sim.clock.now()
    pull = PullRequest(
        id=sim.world.next_id("pull_request"),
        number=repository.next_number,
        repository_id=repository.id,
        title=title,
        body=sent.get("body"),
        author=bot,
        author_association="NONE",
        head_repository_id=repository.id,
        head_ref=head,
        head_sha=head_sha,
        base_ref=base,
        base_sha=base_sha,
        created_at=now,
        updated_at=now,
        draft=bool(sent.get("draft")),
        commits=len(own),
    )
    repository.next_number += 1
    pull.files = tuple(pull_changes(repository, pull)[1])
    sim.world.pulls[(repository.id, pull.number)] = pull
    opened = webhooks.pull_request(sim.base_url, sim.world, pull, "opened", None)
    pull.last_delivery = await sim.emit("pull_request", opened, repository, bot)
    return Reply(201, pull_json(sim.base_url, sim.world, pull))


async def list_reviews(sim: "Simulation", request: ApiRequest) -> Reply:
    """In chronological order, as on GitHub."""
    pull = find_pull(sim, request)
    page, headers = paginate(sim.base_url, request, pull.reviews)
    return Reply(200, [review_json(sim.base_url, sim.world, pull, review) for review in page], headers)


async def list_pull_files(sim: "Simulation", request: ApiRequest) -> Reply:
    pull = find_pull(sim, request)
    started, changes = pull_changes(request.repository, pull)
    page, headers = paginate(sim.base_url, request, list(changes.items())[:MOST_FILES_OF_PULL])
    files = changed_files_json(sim.base_url, request.repository, pull.head_sha, started, dict(page))
    return Reply(200, files, headers)


def _commit(sim: "Simulation", request: ApiRequest, ref: str) -> GitCommit:
    commit = sim.world.resolve(request.repository, ref)
    if commit is None:
        raise ApiError(404, f"No commit found for the ref {ref}")
    return commit


def _resolve_parameter(sim: "Simulation", request: ApiRequest, parameter: str) -> GitCommit:
    ref = request.params[parameter]
    commit = sim.world.resolve(request.repository, ref)
    if commit is None:
        raise ApiError(422, f"No commit found for SHA: {ref}", errors=[])
    return commit


async def get_commit(sim: "Simulation", request: ApiRequest) -> Reply:
    return Reply(200, commit_json(sim.base_url, request.repository, _resolve_parameter(sim, request, "ref")))


async def get_git_commit(sim: "Simulation", request: ApiRequest) -> Reply:
    commit = request.repository.commits.get(request.params["commit_sha"])
    if commit is None:
        raise ApiError(404, "Not Found")
    return Reply(200, git_commit_json(sim.base_url, request.repository, commit))


async def list_pulls_of_commit(sim: "Simulation", request: ApiRequest) -> Reply:
    """List the pull requests that merged a commit; while it is not on the default branch, those whose branch has it."""
    sha = _resolve_parameter(sim, request, "commit_sha").sha
    landed = sha in ancestors(request.repository, request.repository.head_sha)
    pulls = [
        pull
        for pull in sim.world.pulls.values()
        if pull.repository_id == request.repository.id
        and (pull.merged or (pull.state == "open" and not landed))
        and _brings(request.repository, pull, sha)
    ]
    page, headers = paginate(sim.base_url, request, pulls)
    return Reply(200, [simple_pull_json(sim.base_url, sim.world, pull) for pull in page], headers)


def _brings(repository: Repository, pull: PullRequest, sha: str) -> bool:
    own = set(ancestors(repository, pull.head_sha)) - set(ancestors(repository, pull.base_sha))
    return sha in own or sha == pull.merge_commit_sha


async def compare(sim: "Simulation", request: ApiRequest) -> Reply:
    old_ref, dots, new_ref = request.params["basehead"].partition("...")
    if not dots:
        raise ApiError(404, "Not Found")
    old, new = _commit(sim, request, old_ref), _commit(sim, request, new_ref.rpartition(":")[2])
    below, above = ancestors(request.repository, old.sha), ancestors(request.repository, new.sha)
    missing, gained = _exclude(below, above), _exclude(above, below)
    meeting = next(iter(_exclude(above, gained)), None)
    if meeting is None:
        raise ApiError(404, "No common ancestor between the two commits")
    sides = old, request.repository.commits[meeting], new
    body = comparison_json(sim.base_url, request.repository, sides, (len(gained), len(missing)))
    page, headers = _select_page(sim, request, list(reversed(gained)))
    body["commits"] = [
        commit_json(sim.base_url, request.repository, request.repository.commits[sha]) for sha in page
    ]
    body["files"] = _files(sim, request, sides) if request.query.get("page", "1") == "1" else []
    return Reply(200, body, headers)


def _exclude(shas: list[str], others: list[str]) -> list[str]:
    left_out = set(others)
    return [sha for sha in shas if sha not in left_out]


def _select_page(sim: "Simulation", request: ApiRequest, shas: list[str]) -> tuple[list[str], dict[str, str]]:
    """Without paging parameters: the newest, as many as GitHub returns at once."""
    if not request.query.keys() & {"page", "per_page"}:
        return shas[-MOST_COMMITS_OF_COMPARISON:], {}
    return paginate(sim.base_url, request, shas)


def _files(
    sim: "Simulation", request: ApiRequest, sides: tuple[GitCommit, GitCommit, GitCommit]
) -> list[Json]:
    _, common, new = sides
    changes = list(diff_trees(common.tree, new.tree).items())[:MOST_FILES_OF_COMPARISON]
    return changed_files_json(sim.base_url, request.repository, new.sha, common.tree, dict(changes))


_REPO = "/repos/{owner}/{repo}"
_CONTENTS, _PULLS = ("contents", "read"), ("pull_requests", "read")
ROUTES = (
    Route("GET", f"{_REPO}/pulls", list_pulls, permission=_PULLS),
    Route("POST", f"{_REPO}/pulls", create_pull, permission=("pull_requests", "write")),
    Route("GET", f"{_REPO}/pulls/{{pull_number}}/files", list_pull_files, permission=_PULLS),
    Route("GET", f"{_REPO}/pulls/{{pull_number}}/reviews", list_reviews, permission=_PULLS),
    Route("GET", f"{_REPO}/pulls/{{pull_number}}", get_pull, permission=_PULLS),
    Route("GET", f"{_REPO}/commits/{{ref}}", get_commit, permission=_CONTENTS),
    Route("GET", f"{_REPO}/commits/{{commit_sha}}/pulls", list_pulls_of_commit, permission=_PULLS),
    Route("GET", f"{_REPO}/git/commits/{{commit_sha}}", get_git_commit, permission=_CONTENTS),
    Route("GET", f"{_REPO}/compare/{{basehead}}", compare, permission=_CONTENTS),
)
