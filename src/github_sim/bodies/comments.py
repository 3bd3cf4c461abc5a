"""GitHub's JSON of comments, their reactions, and of the issue that every pull request also is."""

from github_sim.bodies.pull_requests import label_json
from github_sim.bodies.repositories import account_json, node_id
from github_sim.clock import stamp, stamp_or_none
from github_sim.world.records import Comment, Issue, Json, PullRequest, Reaction, Repository
from github_sim.world.world import World

REACTIONS = ("+1", "-1", "laugh", "confused", "heart", "hooray", "rocket", "eyes")


def comment_json(base: str, repository: Repository, comment: Comment, app: Json | None) -> Json:
    """`app` is the App when it wrote the comment."""
    api = f"{base}/repos/{repository.full_name}/issues"
    url = f"{api}/comments/{comment.id}"
    return {
        "url": url,
        "html_url": f"{base}/{repository.full_name}/pull/{comment.number}#issuecomment-{comment.id}",
        "issue_url": f"{api}/{comment.number}",
        "id": comment.id,
        "node_id": node_id("IC_", comment.id),
        "user": account_json(base, comment.author),
        "created_at": stamp(comment.created_at),
        "updated_at": stamp(comment.updated_at),
        "author_association": comment.author_association,
        "body": comment.body,
        "reactions": _rollup(url, comment.reactions),
        "performed_via_github_app": app,
    }


def _rollup(url: str, reactions: list[Reaction]) -> Json:
    contents = [reaction.content for reaction in reactions]
    counts = {content: contents.count(content) for content in REACTIONS}
    return {"url": f"{url}/reactions", "total_count": len(contents), **counts}


def reaction_json(base: str, reaction: Reaction) -> Json:
    return {
        "id": reaction.id,
        "node_id": node_id("REA_", reaction.id),
        "user": account_json(base, reaction.user),
        "content": reaction.content,
        "created_at": stamp(reaction.created_at),
    }


def issue_json(base: str, world: World, pull: PullRequest) -> Json:
    """A pull request as the issue that comments belong to: it has the key `pull_request`."""
    repository = world.repositories[pull.repository_id]
    api = f"{base}/repos/{repository.full_name}"
    url = f"{api}/issues/{pull.number}"
    return {
        "url": url,
        "repository_url": api,
        "labels_url": f"{url}/labels{{/name}}",
        "comments_url": f"{url}/comments",
        "events_url": f"{url}/events",
        "html_url": f"{base}/{repository.full_name}/pull/{pull.number}",
        "id": pull.id + 1,
        "node_id": node_id("PR_", pull.id),
        "number": pull.number,
        "title": pull.title,
        "user": account_json(base, pull.author),
        "labels": [label_json(api, name) for name in pull.labels],
        "state": pull.state,
        "locked": False,
        "assignee": None,
        "assignees": [],
        "milestone": None,
        "comments": len(world.comments_on(pull)),
        "created_at": stamp(pull.created_at),
        "updated_at": stamp(pull.updated_at),
        "closed_at": stamp_or_none(pull.closed_at),
        "author_association": pull.author_association,
        "active_lock_reason": None,
        "draft": pull.draft,
        "pull_request": _pull_links(base, repository, pull),
        "body": pull.body,
        "reactions": _rollup(url, []),
        "timeline_url": f"{url}/timeline",
        "performed_via_github_app": None,
        "state_reason": None,
    }


def plain_issue_json(base: str, repository: Repository, issue: Issue) -> Json:
    """An issue that is no pull request."""
    api = f"{base}/repos/{repository.full_name}"
    url = f"{api}/issues/{issue.number}"
    closed = issue.state == "closed"
    return {
        "url": url,
        "repository_url": api,
        "labels_url": f"{url}/labels{{/name}}",
        "comments_url": f"{url}/comments",
        "events_url": f"{url}/events",
        "html_url": f"{base}/{repository.full_name}/issues/{issue.number}",
        "id": issue.id,
        "node_id": node_id("I_", issue.id),
        "number": issue.number,
        "title": issue.title,
        "user": account_json(base, issue.author),
        "labels": [],
        "state": issue.state,
        "locked": False,
        "assignee": None,
        "assignees": [],
        "milestone": None,
        "comments": 0,
        "created_at": stamp(issue.created_at),
        "updated_at": stamp(issue.updated_at),
        "closed_at": stamp_or_none(issue.closed_at),
        "author_association": "NONE",
        "active_lock_reason": None,
        "body": issue.body,
        "reactions": _rollup(url, []),
        "timeline_url": f"{url}/timeline",
        "performed_via_github_app": None,
        "state_reason": "completed" if closed else None,
    }


def _pull_links(base: str, repository: Repository, pull: PullRequest) -> Json:
    site = f"{base}/{repository.full_name}/pull/{pull.number}"
    return {
        "url": f"{base}/repos/{repository.full_name}/pulls/{pull.number}",
        "html_url": site,
        "diff_url": f"{site}.diff",
        "patch_url": f"{site}.patch",
        "merged_at": stamp_or_none(pull.closed_at if pull.merged else None),
    }
