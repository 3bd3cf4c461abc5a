"""GitHub's JSON of pull requests, in full.

A pull request holds two whole repositories: with a third beside it, a webhook body passes 20 KB as it
does on GitHub.
"""

import hashlib

from github_sim.bodies.repositories import account_json, node_id, repository_json
from github_sim.clock import stamp, stamp_or_none
from github_sim.world.records import Account, Json, PullRequest, Repository, Review, association_by_role
from github_sim.world.world import World

_PULL_LINKS = {
    "self": "pulls/{number}",
    "issue": "issues/{number}",
    "comments": "issues/{number}/comments",
    "review_comments": "pulls/{number}/comments",
    "review_comment": "pulls/comments{{/number}}",
    "commits": "pulls/{number}/commits",
}

# What lists of pull requests leave out.
_ONLY_ALONE = frozenset(
    {
        "additions", "changed_files", "comments", "commits", "deletions", "maintainer_can_modify", "mergeable",
        "mergeable_state", "merged", "merged_by", "rebaseable", "review_comments",
    }
)  # fmt: skip


def pull_json(base: str, world: World, pull: PullRequest) -> Json:
    repository = world.repositories[pull.repository_id]
    api = f"{base}/repos/{repository.full_name}"
    site = f"{base}/{repository.full_name}/pull/{pull.number}"
    links = {name: f"{api}/{rest.format(number=pull.number)}" for name, rest in _PULL_LINKS.items()}
    links |= {"html": site, "statuses": f"{api}/statuses/{pull.head_sha}"}
    return {
        "url": links["self"],
        "id": pull.id,
        "node_id": node_id("PR_", pull.id),
        "html_url": site,
        "diff_url": f"{site}.diff",
        "patch_url": f"{site}.patch",
        "issue_url": links["issue"],
        "number": pull.number,
        "state": pull.state,
        "locked": False,
        "title": pull.title,
        "user": account_json(base, pull.author),
        "body": pull.body,
        **_pull_times(pull),
        "labels": [label_json(api, name) for name in pull.labels],
        **_pull_people(),
        "draft": pull.draft,
        "commits_url": links["commits"],
        "review_comments_url": links["review_comments"],
        "review_comment_url": links["review_comment"],
        "comments_url": links["comments"],
        "statuses_url": links["statuses"],
        "head": _side(base, world.repositories[pull.head_repository_id], pull.head_ref, pull.head_sha),
        "base": _side(base, repository, pull.base_ref, pull.base_sha),
        "_links": {name: {"href": url} for name, url in links.items()},
        "author_association": pull.author_association,
        **_pull_numbers(base, world, pull, repository),
    }


def _pull_times(pull: PullRequest) -> Json:
    return {
        "created_at": stamp(pull.created_at),
        "updated_at": stamp(pull.updated_at),
        "closed_at": stamp_or_none(pull.closed_at),
        "merged_at": stamp_or_none(pull.closed_at if pull.merged else None),
        "merge_commit_sha": pull.merge_commit_sha,
    }


def _pull_people() -> Json:
    return {
        "assignee": None,
        "assignees": [],
        "requested_reviewers": [],
        "requested_teams": [],
        "milestone": None,
    }


def _pull_numbers(base: str, world: World, pull: PullRequest, repository: Repository) -> Json:
    files = max(len(pull.files), 1)
    return {
        "auto_merge": None,
        "active_lock_reason": None,
        "merged": pull.merged,
        "mergeable": None if pull.state == "closed" else True,
        "rebaseable": None,
        "mergeable_state": "unknown" if pull.state == "closed" else "clean",
        "merged_by": account_json(base, repository.owner) if pull.merged else None,
        "comments": len(world.comments_on(pull)),
        "review_comments": 0,
        "maintainer_can_modify": pull.head_repository_id != pull.repository_id,
        "commits": pull.commits,
        "additions": 14 * files,
        "deletions": 5 * files,
        "changed_files": files,
    }


def _side(base: str, repository: Repository, ref: str, sha: str) -> Json:
    settings = {
        "allow_squash_merge": True,
        "allow_merge_commit": True,
        "allow_rebase_merge": True,
        "allow_auto_merge": False,
        "delete_branch_on_merge": False,
        "allow_update_branch": False,
        "use_squash_pr_title_as_default": False,
        "squash_merge_commit_message": "COMMIT_MESSAGES",
        "squash_merge_commit_title": "COMMIT_OR_PR_TITLE",
        "merge_commit_message": "PR_TITLE",
        "merge_commit_title": "MERGE_MESSAGE",
    }
    return {
        "label": f"{repository.owner.login}:{ref}",
        "ref": ref,
        "sha": sha,
        "user": account_json(base, repository.owner),
        "repo": {**repository_json(base, repository), **settings},
    }


def simple_pull_json(base: str, world: World, pull: PullRequest) -> Json:
    """A pull request as lists show it."""
    full = pull_json(base, world, pull)
    return {name: value for name, value in full.items() if name not in _ONLY_ALONE}


def review_json(base: str, world: World, pull: PullRequest, review: Review) -> Json:
    repository = world.repositories[pull.repository_id]
    page = f"{base}/{repository.full_name}/pull/{pull.number}#pullrequestreview-{review.id}"
    api = f"{base}/repos/{repository.full_name}/pulls/{pull.number}"
    return {
        "id": review.id,
        "node_id": node_id("PRR_", review.id),
        "user": account_json(base, review.author),
        "body": "",
        "state": review.state,
        "html_url": page,
        "pull_request_url": api,
        "author_association": association_by_role(repository, review.author),
        "_links": {"html": {"href": page}, "pull_request": {"href": api}},
        "submitted_at": stamp(review.submitted_at),
        "commit_id": review.commit_id,
    }


def label_json(api: str, name: str) -> Json:
    digest = hashlib.sha256(name.encode()).hexdigest()
    number = int(digest[:8], 16)
    return {
        "id": number,
        "node_id": node_id("LA_", number),
        "url": f"{api}/labels/{name}",
        "name": name,
        "color": digest[:6],
        "default": False,
        "description": "",
    }


def git_user_json(account: Account) -> Json:
    """The author as git knows it; `username` is in webhooks only."""
    email = f"{account.id}+{account.login}@users.noreply.github.com"
    return {"name": account.login, "email": email, "username": account.login}
