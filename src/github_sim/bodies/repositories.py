"""GitHub's JSON of accounts, repositories, installations and the App, in full: with all their links.

Used by REST answers and webhook bodies alike. `base` is the simulator's address, for the API and the site.
"""

import base64
import functools

from github_sim.clock import stamp, stamp_or_none
from github_sim.world.records import APP_EVENTS, Account, Installation, Json, OtherApp, Repository
from github_sim.world.world import World

APP_NAME = "Cross-Repository CI Relay (simulated)"
APP_SLUG = "crcr-simulated"

_ACCOUNT_LINKS = {
    "followers_url": "followers",
    "following_url": "following{/other_user}",
    "gists_url": "gists{/gist_id}",
    "starred_url": "starred{/owner}{/repo}",
    "subscriptions_url": "subscriptions",
    "organizations_url": "orgs",
    "repos_url": "repos",
    "events_url": "events{/privacy}",
    "received_events_url": "received_events",
}
_REPOSITORY_LINKS = {
    "forks_url": "forks",
    "keys_url": "keys{/key_id}",
    "collaborators_url": "collaborators{/collaborator}",
    "teams_url": "teams",
    "hooks_url": "hooks",
    "issue_events_url": "issues/events{/number}",
    "events_url": "events",
    "assignees_url": "assignees{/user}",
    "branches_url": "branches{/branch}",
    "tags_url": "tags",
    "blobs_url": "git/blobs{/sha}",
    "git_tags_url": "git/tags{/sha}",
    "git_refs_url": "git/refs{/sha}",
    "trees_url": "git/trees{/sha}",
    "statuses_url": "statuses/{sha}",
    "languages_url": "languages",
    "stargazers_url": "stargazers",
    "contributors_url": "contributors",
    "subscribers_url": "subscribers",
    "subscription_url": "subscription",
    "commits_url": "commits{/sha}",
    "git_commits_url": "git/commits{/sha}",
    "comments_url": "comments{/number}",
    "issue_comment_url": "issues/comments{/number}",
    "contents_url": "contents/{+path}",
    "compare_url": "compare/{base}...{head}",
    "merges_url": "merges",
    "archive_url": "{archive_format}{/ref}",
    "downloads_url": "downloads",
    "issues_url": "issues{/number}",
    "pulls_url": "pulls{/number}",
    "milestones_url": "milestones{/number}",
    "notifications_url": "notifications{?since,all,participating}",
    "labels_url": "labels{/name}",
    "releases_url": "releases{/id}",
    "deployments_url": "deployments",
}
_REPOSITORY_FACTS: Json = {
    "size": 184_211,
    "stargazers_count": 812,
    "watchers_count": 812,
    "watchers": 812,
    "language": "Python",
    "has_issues": True,
    "has_projects": True,
    "has_downloads": True,
    "has_wiki": True,
    "has_pages": False,
    "has_discussions": False,
    "forks_count": 214,
    "forks": 214,
    "mirror_url": None,
    "archived": False,
    "disabled": False,
    "open_issues_count": 96,
    "open_issues": 96,
    "license": None,
    "allow_forking": True,
    "is_template": False,
    "web_commit_signoff_required": False,
    "topics": [],
}


@functools.lru_cache(maxsize=4096)
def node_id(kind: str, number: int) -> str:
    return base64.urlsafe_b64encode(f"{kind}{number}".encode()).decode().rstrip("=")


def account_json(base: str, account: Account) -> Json:
    url = f"{base}/users/{account.login}"
    return {
        "login": account.login,
        "id": account.id,
        "node_id": node_id("U_", account.id),
        "avatar_url": f"{base}/avatars/u/{account.id}?v=4",
        "gravatar_id": "",
        "url": url,
        "html_url": f"{base}/{account.login}",
        **{name: f"{url}/{rest}" for name, rest in _ACCOUNT_LINKS.items()},
        "type": account.type,
        "user_view_type": "public",
        "site_admin": False,
    }


def repository_json(base: str, repository: Repository) -> Json:
    name = repository.full_name
    url = f"{base}/repos/{name}"
    return {
        "id": repository.id,
        "node_id": node_id("R_", repository.id),
        "name": repository.name,
        "full_name": name,
        "private": repository.private,
        "owner": account_json(base, repository.owner),
        "html_url": f"{base}/{name}",
        "description": repository.description or None,
        "fork": repository.parent_id is not None,
        "url": url,
        **{link: f"{url}/{rest}" for link, rest in _REPOSITORY_LINKS.items()},
        **_repository_addresses(base, repository),
        **_REPOSITORY_FACTS,
        "visibility": "private" if repository.private else "public",
        "default_branch": repository.default_branch,
    }


def _repository_addresses(base: str, repository: Repository) -> Json:
    site = f"{base}/{repository.full_name}"
    host = base.partition("://")[2]
    return {
        "created_at": stamp(repository.created_at),
        "updated_at": stamp(repository.updated_at),
        "pushed_at": stamp(repository.updated_at),
        "git_url": f"git://{host}/{repository.full_name}.git",
        "ssh_url": f"git@{host}:{repository.full_name}.git",
        "clone_url": f"{site}.git",
        "svn_url": site,
        "homepage": None,
    }


def full_repository_json(base: str, repository: Repository) -> Json:
    """What `GET /repos/{owner}/{repo}` adds to a repository."""
    more = {"network_count": 214, "subscribers_count": 57, "temp_clone_token": None}
    return {**repository_json(base, repository), **more}


def short_repository_json(repository: Repository) -> Json:
    """The five fields that installation events carry."""
    return {
        "id": repository.id,
        "node_id": node_id("R_", repository.id),
        "name": repository.name,
        "full_name": repository.full_name,
        "private": repository.private,
    }


def installation_json(base: str, app_id: int, installation: Installation) -> Json:
    number = installation.id
    return {
        "id": number,
        "client_id": client_id(app_id),
        "account": account_json(base, installation.account),
        "repository_selection": "selected",
        "access_tokens_url": f"{base}/app/installations/{number}/access_tokens",
        "repositories_url": f"{base}/installation/repositories",
        "html_url": f"{base}/settings/installations/{number}",
        "app_id": app_id,
        "app_slug": APP_SLUG,
        "target_id": installation.account.id,
        "target_type": installation.account.type,
        "permissions": dict(installation.permissions),
        "events": list(installation.events),
        "created_at": stamp(installation.created_at),
        "updated_at": stamp(installation.updated_at),
        "single_file_name": None,
        "has_multiple_single_files": False,
        "single_file_paths": [],
        "suspended_by": None,
        "suspended_at": stamp_or_none(installation.suspended_at),
    }


def app_json(
    base: str, world: World, app_id: int, permissions: dict[str, str], events: tuple[str, ...] = APP_EVENTS
) -> Json:
    owner = world.account("crcr-operators", "Organization")
    created_at = stamp(world.now())
    return {
        "id": app_id,
        "client_id": client_id(app_id),
        "slug": APP_SLUG,
        "node_id": node_id("A_", app_id),
        "owner": account_json(base, owner),
        "name": APP_NAME,
        "description": "Relays upstream events to downstream repositories.",
        "external_url": base,
        "html_url": f"{base}/apps/{APP_SLUG}",
        "created_at": created_at,
        "updated_at": created_at,
        "permissions": dict(permissions),
        "events": list(events),
        "installations_count": len(world.installations),
    }


def other_app_json(base: str, world: World, app: OtherApp) -> Json:
    return {
        **app_json(base, world, app.id, {"checks": "write", "metadata": "read"}),
        "slug": app.slug,
        "name": app.name,
        "html_url": f"{base}/apps/{app.slug}",
        "events": ["push"],
    }


def client_id(app_id: int) -> str:
    return f"Iv23li{app_id:x}CrcrSim"
