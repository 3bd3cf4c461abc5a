"""REST routes of issues, of comments on pull requests and of reactions to them."""

from datetime import datetime
from typing import TYPE_CHECKING

from github_sim.bodies.comments import REACTIONS, issue_json, plain_issue_json, reaction_json
from github_sim.rest.commits import find_pull
from github_sim.rest.exchange import ApiError, ApiRequest, Reply, Route, paginate, validation_error
from github_sim.webhooks import comments
from github_sim.world.records import Comment

if TYPE_CHECKING:
    from github_sim.simulation import Simulation

MOST_CHARACTERS = 65_536
MOST_TITLE = 256


async def get_issue(sim: "Simulation", request: ApiRequest) -> Reply:
    repository, number = request.repository, request.number("issue_number")
    issue = sim.world.issues.get((repository.id, number))
    if issue is not None:
        return Reply(200, plain_issue_json(sim.base_url, repository, issue))
    return Reply(200, issue_json(sim.base_url, sim.world, find_pull(sim, request, "issue_number")))


async def list_issues(sim: "Simulation", request: ApiRequest) -> Reply:
    """Issues that are no pull requests, newest first; GitHub lists pull requests too."""
    state, since = request.query.get("state", "open"), request.query.get("since")
    own = [issue for (owner, _), issue in sim.world.issues.items() if owner == request.repository.id]
    matching = [issue for issue in own if state in {"all", issue.state}]
    if since is not None:
        matching = [issue for issue in matching if issue.updated_at >= _parse_time(since)]
    page, headers = paginate(sim.base_url, request, sorted(matching, key=lambda issue: -issue.number))
    return Reply(200, [plain_issue_json(sim.base_url, request.repository, issue) for issue in page], headers)


async def create_issue(sim: "Simulation", request: ApiRequest) -> Reply:
    sent = request.json()
    title, body = sent.get("title"), sent.get("body")
    if not isinstance(title, str) or not title.strip():
        raise validation_error("Issue", "title", "title can't be blank")
    if len(title) > MOST_TITLE:
        raise validation_error("Issue", "title", f"title is too long (maximum is {MOST_TITLE} characters)")
    text = body if isinstance(body, str) else None
    issue = await comments.open_issue(
        sim, request.repository, title, comments.app_account(sim), body=text, by_app=True
    )
    return Reply(201, plain_issue_json(sim.base_url, request.repository, issue))


async def update_issue(sim: "Simulation", request: ApiRequest) -> Reply:
    repository, sent = request.repository, request.json()
    issue = sim.world.issues.get((repository.id, request.number("issue_number")))
    if issue is None:
        raise ApiError(404, "Not Found")
    state = sent.get("state", issue.state)
    if state not in {"open", "closed"}:
        raise validation_error("Issue", "state", "state is not included in the list")
    issue.title, issue.body = sent.get("title", issue.title), sent.get("body", issue.body)
    action = "edited" if state == issue.state else "closed" if state == "closed" else "reopened"
    issue.state, issue.closed_at = state, sim.clock.now() if state == "closed" else None
    await comments.send_issue_webhook(sim, issue, action)
    return Reply(200, plain_issue_json(sim.base_url, repository, issue))


async def list_comments(sim: "Simulation", request: ApiRequest) -> Reply:
    matching = sim.world.comments_on(find_pull(sim, request, "issue_number"))
    if (since := request.query.get("since")) is not None:
        matching = [comment for comment in matching if comment.updated_at >= _parse_time(since)]
    page, headers = paginate(sim.base_url, request, matching)
    return Reply(200, [comments.render_comment(sim, comment) for comment in page], headers)


def _parse_time(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ApiError(422, f"Invalid since: {text}", errors=[])
    return moment


def _body(request: ApiRequest) -> str:
    body = request.json().get("body")
    if not isinstance(body, str) or not body.strip():
        raise validation_error("IssueComment", "body", '"body" wasn\'t supplied.')
    if len(body) > MOST_CHARACTERS:
        raise validation_error(
            "IssueComment", "body", f"body is too long (maximum is {MOST_CHARACTERS} characters)"
        )
    return body


async def create_comment(sim: "Simulation", request: ApiRequest) -> Reply:
    pull = find_pull(sim, request, "issue_number")
    comment = await comments.write(sim, pull, _body(request), comments.app_account(sim), "NONE", by_app=True)
    return Reply(201, comments.render_comment(sim, comment))


def _comment(sim: "Simulation", request: ApiRequest) -> Comment:
    comment = sim.world.comments.get(request.number("comment_id"))
    if comment is None or comment.repository_id != request.repository.id:
        raise ApiError(404, "Not Found")
    return comment


async def get_comment(sim: "Simulation", request: ApiRequest) -> Reply:
    return Reply(200, comments.render_comment(sim, _comment(sim, request)))


async def update_comment(sim: "Simulation", request: ApiRequest) -> Reply:
    comment = _comment(sim, request)
    if not comment.by_app:
        raise ApiError(403, "Resource not accessible by integration")
    await comments.edit(sim, comment, _body(request))
    return Reply(200, comments.render_comment(sim, comment))


async def create_reaction(sim: "Simulation", request: ApiRequest) -> Reply:
    content = request.json().get("content")
    if content not in REACTIONS:
        raise validation_error("Reaction", "content", f"content is not included in the list: {REACTIONS}")
    reaction, is_new = comments.react(sim, _comment(sim, request), content, comments.app_account(sim))
    return Reply(201 if is_new else 200, reaction_json(sim.base_url, reaction))


_ISSUES = "/repos/{owner}/{repo}/issues"
_READ, _WRITE = ("issues|pull_requests", "read"), ("issues|pull_requests", "write")
ROUTES = (
    Route("GET", _ISSUES, list_issues, permission=("issues", "read")),
    Route("POST", _ISSUES, create_issue, permission=("issues", "write")),
    Route("GET", f"{_ISSUES}/{{issue_number}}", get_issue, permission=_READ),
    Route("PATCH", f"{_ISSUES}/{{issue_number}}", update_issue, permission=("issues", "write")),
    Route("GET", f"{_ISSUES}/{{issue_number}}/comments", list_comments, permission=_READ),
    Route("POST", f"{_ISSUES}/{{issue_number}}/comments", create_comment, permission=_WRITE),
    Route("GET", f"{_ISSUES}/comments/{{comment_id}}", get_comment, permission=_READ),
    Route("PATCH", f"{_ISSUES}/comments/{{comment_id}}", update_comment, permission=_WRITE),
    Route("POST", f"{_ISSUES}/comments/{{comment_id}}/reactions", create_reaction, permission=_WRITE),
)
