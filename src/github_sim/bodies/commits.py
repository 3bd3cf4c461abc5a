"""GitHub's JSON of commits, comparisons and changed files, in full."""

from github_sim.bodies.pull_requests import git_user_json
from github_sim.bodies.repositories import account_json, node_id
from github_sim.clock import stamp
from github_sim.world.git_content import Changes, Tree, blob_sha
from github_sim.world.records import GitCommit, Json, Repository

UNSIGNED = {
    "verified": False, "reason": "unsigned", "signature": None, "payload": None, "verified_at": None,
}  # fmt: skip


def commit_json(base: str, repository: Repository, commit: GitCommit) -> Json:
    api = f"{base}/repos/{repository.full_name}"
    person = account_json(base, commit.author)
    author = _dated_author(commit)
    return {
        "url": f"{api}/commits/{commit.sha}",
        "sha": commit.sha,
        "node_id": node_id(commit.sha, 0),
        "html_url": f"{base}/{repository.full_name}/commit/{commit.sha}",
        "comments_url": f"{api}/commits/{commit.sha}/comments",
        "commit": {
            "url": f"{api}/git/commits/{commit.sha}",
            "author": author,
            "committer": author,
            "message": commit.message,
            "comment_count": 0,
            "tree": _tree_json(api, commit),
        },
        "author": person,
        "committer": person,
        "parents": _parents_json(base, repository, commit, "commits"),
    }


def git_commit_json(base: str, repository: Repository, commit: GitCommit) -> Json:
    """The commit as the git database has it."""
    api = f"{base}/repos/{repository.full_name}"
    author = _dated_author(commit)
    return {
        "sha": commit.sha,
        "node_id": node_id(commit.sha, 0),
        "url": f"{api}/git/commits/{commit.sha}",
        "html_url": f"{base}/{repository.full_name}/commit/{commit.sha}",
        "author": author,
        "committer": author,
        "tree": _tree_json(api, commit),
        "message": commit.message,
        "parents": _parents_json(base, repository, commit, "git/commits"),
        "verification": UNSIGNED,
    }


def _dated_author(commit: GitCommit) -> Json:
    author = {**git_user_json(commit.author), "date": stamp(commit.committed_at)}
    del author["username"]
    return author


def _tree_json(api: str, commit: GitCommit) -> Json:
    return {"sha": commit.tree_sha, "url": f"{api}/git/trees/{commit.tree_sha}"}


def _parents_json(base: str, repository: Repository, commit: GitCommit, kind: str) -> list[Json]:
    api, site = f"{base}/repos/{repository.full_name}/{kind}", f"{base}/{repository.full_name}/commit"
    return [{"sha": sha, "url": f"{api}/{sha}", "html_url": f"{site}/{sha}"} for sha in commit.parents]


def comparison_json(
    base: str, repository: Repository, sides: tuple[GitCommit, GitCommit, GitCommit], counts: tuple[int, int]
) -> Json:
    """A comparison without its lists; `sides` are the old, the common and the new commit."""
    old, common, new = sides
    ahead, behind = counts
    span = f"{repository.full_name}/compare/{old.sha}...{new.sha}"
    return {
        "url": f"{base}/repos/{span}",
        "html_url": f"{base}/{span}",
        "permalink_url": f"{base}/{span}",
        "diff_url": f"{base}/{span}.diff",
        "patch_url": f"{base}/{span}.patch",
        "base_commit": commit_json(base, repository, old),
        "merge_base_commit": commit_json(base, repository, common),
        "status": _comparison_status(ahead, behind),
        "ahead_by": ahead,
        "behind_by": behind,
        "total_commits": ahead,
    }


def _comparison_status(ahead: int, behind: int) -> str:
    if ahead and behind:
        return "diverged"
    if ahead:
        return "ahead"
    return "behind" if behind else "identical"


def changed_files_json(
    base: str, repository: Repository, head_sha: str, old: Tree, changes: Changes
) -> list[Json]:
    return [
        {**_change(path, old.get(path), new), **_file_links(base, repository, head_sha, path)}
        for path, new in changes.items()
    ]


def _file_links(base: str, repository: Repository, head_sha: str, path: str) -> Json:
    site = f"{base}/{repository.full_name}"
    return {
        "blob_url": f"{site}/blob/{head_sha}/{path}",
        "raw_url": f"{site}/raw/{head_sha}/{path}",
        "contents_url": f"{base}/repos/{repository.full_name}/contents/{path}?ref={head_sha}",
    }


def _change(path: str, old: bytes | None, new: bytes | None) -> Json:
    removed, added = (old or b"").splitlines(), (new or b"").splitlines()
    status = "added" if old is None else "removed" if new is None else "modified"
    return {
        "sha": blob_sha(new if new is not None else old or b""),
        "filename": path,
        "status": status,
        "additions": len(added),
        "deletions": len(removed),
        "changes": len(added) + len(removed),
        "patch": _patch(removed, added),
    }


def _patch(removed: list[bytes], added: list[bytes]) -> str:
    """The whole file replaced, which is a true patch though not the shortest."""
    lines = [*(b"-" + line for line in removed), *(b"+" + line for line in added)]
    body = b"\n".join(lines).decode(errors="replace")
    return f"@@ -{min(1, len(removed))},{len(removed)} +{min(1, len(added))},{len(added)} @@\n{body}"
