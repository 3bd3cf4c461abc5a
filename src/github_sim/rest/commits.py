"""REST routes of commits, comparisons and pull requests with their files."""

from typing import TYPE_CHECKING

from github_sim.bodies.commits import changed_files_json, commit_json, comparison_json, git_commit_json
from github_sim.bodies.pull_requests import pull_json, simple_pull_json
from github_sim.rest.exchange import ApiError, Ask, Reply, Route, page_of
from github_sim.world.git_content import differences
from github_sim.world.records import Commit, Json, PullRequest, Repository
from github_sim.world.world import ancestors, pull_changes

if TYPE_CHECKING:
    from github_sim.simulation import Simulation

MOST_FILES_OF_PULL = 3_000
MOST_FILES_OF_COMPARISON = 300
MOST_COMMITS_OF_COMPARISON = 250


def pull_of(sim: "Simulation", ask: Ask, parameter: str = "pull_number") -> PullRequest:
    found = sim.world.pulls.get((ask.repository.id, ask.number(parameter)))
    if found is None:
        raise ApiError(404, "Not Found")
    return found


async def get_pull(sim: "Simulation", ask: Ask) -> Reply:
    return Reply(200, pull_json(sim.base_url, sim.world, pull_of(sim, ask)))


async def list_pull_files(sim: "Simulation", ask: Ask) -> Reply:
    pull = pull_of(sim, ask)
    started, changes = pull_changes(ask.repository, pull)
    shown, headers = page_of(sim.base_url, ask, list(changes.items())[:MOST_FILES_OF_PULL])
    listed = changed_files_json(sim.base_url, ask.repository, pull.head_sha, started, dict(shown))
    return Reply(200, listed, headers)


def _commit(sim: "Simulation", ask: Ask, ref: str) -> Commit:
    found = sim.world.resolve(ask.repository, ref)
    if found is None:
        raise ApiError(404, f"No commit found for the ref {ref}")
    return found


def _named(sim: "Simulation", ask: Ask, parameter: str) -> Commit:
    ref = ask.params[parameter]
    found = sim.world.resolve(ask.repository, ref)
    if found is None:
        raise ApiError(422, f"No commit found for SHA: {ref}", errors=[])
    return found


async def get_commit(sim: "Simulation", ask: Ask) -> Reply:
    return Reply(200, commit_json(sim.base_url, ask.repository, _named(sim, ask, "ref")))


async def get_git_commit(sim: "Simulation", ask: Ask) -> Reply:
    found = ask.repository.commits.get(ask.params["commit_sha"])
    if found is None:
        raise ApiError(404, "Not Found")
    return Reply(200, git_commit_json(sim.base_url, ask.repository, found))


async def list_pulls_of_commit(sim: "Simulation", ask: Ask) -> Reply:
    """Who brought a commit in; while it is not on the default branch, whose branch has it."""
    sha = _named(sim, ask, "commit_sha").sha
    landed = sha in ancestors(ask.repository, ask.repository.head_sha)
    found = [
        pull
        for pull in sim.world.pulls.values()
        if pull.repository_id == ask.repository.id
        and (pull.merged or (pull.state == "open" and not landed))
        and _brings(ask.repository, pull, sha)
    ]
    shown, headers = page_of(sim.base_url, ask, found)
    return Reply(200, [simple_pull_json(sim.base_url, sim.world, pull) for pull in shown], headers)


def _brings(repository: Repository, pull: PullRequest, sha: str) -> bool:
    own = set(ancestors(repository, pull.head_sha)) - set(ancestors(repository, pull.base_sha))
    return sha in own or sha == pull.merge_commit_sha


async def compare(sim: "Simulation", ask: Ask) -> Reply:
    old_ref, dots, new_ref = ask.params["basehead"].partition("...")
    if not dots:
        raise ApiError(404, "Not Found")
    old, new = _commit(sim, ask, old_ref), _commit(sim, ask, new_ref.rpartition(":")[2])
    below, above = ancestors(ask.repository, old.sha), ancestors(ask.repository, new.sha)
    missing, gained = _without(below, above), _without(above, below)
    meeting = next(iter(_without(above, gained)), None)
    if meeting is None:
        raise ApiError(404, "No common ancestor between the two commits")
    sides = old, ask.repository.commits[meeting], new
    body = comparison_json(sim.base_url, ask.repository, sides, (len(gained), len(missing)))
    shown, headers = _page(sim, ask, list(reversed(gained)))
    body["commits"] = [
        commit_json(sim.base_url, ask.repository, ask.repository.commits[sha]) for sha in shown
    ]
    body["files"] = _files(sim, ask, sides) if ask.query.get("page", "1") == "1" else []
    return Reply(200, body, headers)


def _without(shas: list[str], others: list[str]) -> list[str]:
    left_out = set(others)
    return [sha for sha in shas if sha not in left_out]


def _page(sim: "Simulation", ask: Ask, found: list[str]) -> tuple[list[str], dict[str, str]]:
    """Without any word about pages: the newest, as many as GitHub gives at once."""
    if not ask.query.keys() & {"page", "per_page"}:
        return found[-MOST_COMMITS_OF_COMPARISON:], {}
    return page_of(sim.base_url, ask, found)


def _files(sim: "Simulation", ask: Ask, sides: tuple[Commit, Commit, Commit]) -> list[Json]:
    _, common, new = sides
    changes = list(differences(common.tree, new.tree).items())[:MOST_FILES_OF_COMPARISON]
    return changed_files_json(sim.base_url, ask.repository, new.sha, common.tree, dict(changes))


_REPO = "/repos/{owner}/{repo}"
_CONTENTS, _PULLS = ("contents", "read"), ("pull_requests", "read")
ROUTES = (
    Route("GET", f"{_REPO}/pulls/{{pull_number}}/files", list_pull_files, permission=_PULLS),
    Route("GET", f"{_REPO}/pulls/{{pull_number}}", get_pull, permission=_PULLS),
    Route("GET", f"{_REPO}/commits/{{ref}}", get_commit, permission=_CONTENTS),
    Route("GET", f"{_REPO}/commits/{{commit_sha}}/pulls", list_pulls_of_commit, permission=_PULLS),
    Route("GET", f"{_REPO}/git/commits/{{commit_sha}}", get_git_commit, permission=_CONTENTS),
    Route("GET", f"{_REPO}/compare/{{basehead}}", compare, permission=_CONTENTS),
)
