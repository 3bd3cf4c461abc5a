import httpx
import pytest

from github_sim.github import GitHub
from github_sim.world.git_content import blob_sha, tree_sha

ROOT = "/repos/org/upstream"


async def read_tree_sha(api: httpx.AsyncClient, sha: str) -> str:
    return str((await api.get(f"{ROOT}/git/commits/{sha}")).json()["tree"]["sha"])


def test_hashes_equal_those_of_git() -> None:
    assert blob_sha(b"hello\n") == "ce013625030ba8dba906f756967f9e9ca394464a"
    assert tree_sha({}) == "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
    files = {"a.txt": b"hello\n", "a/b/c.txt": b"deep\n", "a-b": b"x\n"}
    assert tree_sha(files) == "8ca9b084da67d45d2df2f56e8d178cedd82f50d3"


async def test_equal_content_has_an_equal_tree_and_different_content_a_different_one(
    github: GitHub, api: httpx.AsyncClient
) -> None:
    pull = await github.open_pr("org/upstream", files={"a.py": "one"})
    first, second = pull.head_sha, (await github.push_to_pr(pull, files={"a.py": "two"})).head_sha
    third = (await github.push_to_pr(pull, files={"a.py": "one"})).head_sha
    trees = [await read_tree_sha(api, sha) for sha in (first, second, third)]
    assert trees[0] == trees[2] != trees[1]
    assert (await api.get(f"{ROOT}/commits/{third}")).json()["commit"]["tree"]["sha"] == trees[0]
    assert (await api.get(f"{ROOT}/git/commits/main")).status_code == 404


async def test_the_files_of_a_pull_request_are_derived_from_its_content(
    github: GitHub, api: httpx.AsyncClient
) -> None:
    pull = await github.open_pr("org/upstream", files={"new.py": "a\nb\n", "README.md": "changed"})
    await github.push_to_pr(pull, files={"allow/list.yml": None})
    await github.push("org/upstream", files={"elsewhere.py": "x"})
    changed_files = {each["filename"]: each for each in (await api.get(f"{ROOT}/pulls/1/files")).json()}
    assert {name: each["status"] for name, each in changed_files.items()} == {
        "README.md": "modified",
        "allow/list.yml": "removed",
        "new.py": "added",
    }
    assert (changed_files["new.py"]["additions"], changed_files["new.py"]["deletions"]) == (2, 0)
    assert changed_files["new.py"]["patch"] == "@@ -0,0 +1,2 @@\n+a\n+b"
    assert pull.files == ("README.md", "allow/list.yml", "new.py")


async def test_a_push_without_files_changes_existing_ones(github: GitHub, api: httpx.AsyncClient) -> None:
    pull = await github.open_pr("org/upstream", files={"a.py": "a", "README.md": None})
    before = await read_tree_sha(api, pull.head_sha)
    await github.push_to_pr(pull)
    assert await read_tree_sha(api, pull.head_sha) != before
    tree = github.repository("org/upstream").commits[pull.head_sha].tree
    assert "README.md" not in tree


async def test_the_files_of_a_pull_request_are_paged_up_to_githubs_maximum(
    github: GitHub, api: httpx.AsyncClient
) -> None:
    await github.open_pr("org/upstream", files=[f"src/{number:04}.py" for number in range(3_001)])
    path = f"{ROOT}/pulls/1/files"
    first = await api.get(path, params={"per_page": 500})
    assert len(first.json()) == 100
    last = await api.get(path, params={"per_page": 100, "page": 30})
    assert (last.json()[-1]["filename"], "next" in last.links) == ("src/2999.py", False)


async def test_merging_keeps_concurrent_changes_of_others(github: GitHub) -> None:
    pull = await github.open_pr("org/upstream", files={"mine.py": "m", "allow/list.yml": None})
    github.write_file("org/upstream", "README.md", "newer")
    await github.close_pr(pull, merged=True)
    repository = github.repository("org/upstream")
    assert dict(repository.commits[repository.head_sha].tree) == {"README.md": b"newer", "mine.py": b"m"}


async def test_compare_lists_commits_and_files_since_the_merge_base(
    github: GitHub, api: httpx.AsyncClient
) -> None:
    pull = await github.open_pr("org/upstream", files=["a.py"])
    await github.push_to_pr(pull, message="Second", files=["b.py"])
    await github.push("org/upstream", files={"elsewhere.py": "x"})
    comparison = (await api.get(f"{ROOT}/compare/main...{pull.head_sha}")).json()
    assert [each["filename"] for each in comparison["files"]] == ["a.py", "b.py"]
    assert [each["commit"]["message"] for each in comparison["commits"]] == [pull.title, "Second"]
    assert (comparison["status"], comparison["ahead_by"], comparison["behind_by"]) == ("diverged", 2, 1)
    assert comparison["merge_base_commit"]["sha"] == pull.base_sha


async def test_compare_pages_commits_and_lists_files_on_the_first_page_only(
    github: GitHub, api: httpx.AsyncClient
) -> None:
    before = github.repository("org/upstream").head_sha
    await github.push("org/upstream", commits=251, files={f"{number}.py": "x" for number in range(301)})
    path = f"{ROOT}/compare/{before}...main"
    whole = (await api.get(path)).json()
    tip = github.repository("org/upstream").head_sha
    assert (len(whole["commits"]), whole["commits"][-1]["sha"], len(whole["files"])) == (250, tip, 300)
    assert whole["total_commits"] == 251
    first = await api.get(path, params={"per_page": 100})
    second = await api.get(first.links["next"]["url"])
    third = await api.get(second.links["next"]["url"])
    assert [len(each.json()["commits"]) for each in (first, second, third)] == [100, 100, 51]
    assert [len(each.json()["files"]) for each in (first, second, third)] == [300, 0, 0]
    assert "next" not in third.links


async def test_pull_requests_are_found_by_their_commits(github: GitHub, api: httpx.AsyncClient) -> None:
    pull = await github.open_pr("org/upstream")
    first = pull.head_sha
    await github.push_to_pr(pull)
    other = await github.open_pr("org/upstream", head=pull.head_ref + "-b")

    async def find_pulls(sha: str) -> list[int]:
        return [each["number"] for each in (await api.get(f"{ROOT}/commits/{sha}/pulls")).json()]

    assert await find_pulls(first) == await find_pulls(pull.head_sha) == [pull.number]
    assert await find_pulls(other.head_sha) == [other.number]
    assert await find_pulls(github.repository("org/upstream").head_sha) == []
    await github.close_pr(other)
    assert await find_pulls(other.head_sha) == []
    await github.close_pr(pull, merged=True)
    assert await find_pulls(str(pull.merge_commit_sha)) == [pull.number]
    assert (await api.get(f"{ROOT}/commits/{'e' * 40}/pulls")).status_code == 422


@pytest.mark.parametrize("basehead", ["main", "main...none", "none...main"])
async def test_a_comparison_with_an_unknown_ref_is_not_found(api: httpx.AsyncClient, basehead: str) -> None:
    assert (await api.get(f"{ROOT}/compare/{basehead}")).status_code == 404


async def test_branches_are_listed_by_the_prefix_of_their_names(
    github: GitHub, api: httpx.AsyncClient
) -> None:
    for branch in ("release/2.1", "release/2.0", "release-notes"):
        await github.push("org/upstream", ref=f"refs/heads/{branch}")

    async def list_branches(prefix: str) -> list[str]:
        answer = await api.get(f"{ROOT}/git/matching-refs/heads/{prefix}")
        return [each["ref"].removeprefix("refs/heads/") for each in answer.json()]

    assert await list_branches("release/") == ["release-notes", "release/2.0", "release/2.1"]
    assert await list_branches("release/2.1") == ["release/2.1"]
    assert await list_branches("none") == []
