import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from github_sim.github import GitHub, MergeBlocked, MergeGroup, MergeState, PullRequest

TokenFor = Callable[..., Awaitable[dict[str, str]]]
Gate = Callable[..., Awaitable[None]]
ROOT = "/repos/org/upstream"


@pytest.fixture
async def gate(github: GitHub, api: httpx.AsyncClient, token_for: TokenFor) -> Gate:
    """Require crcr/gate; return a function that sets it on a commit, always by a new check."""
    github.require_checks("org/upstream", ["crcr/gate"])
    auth = await token_for("org/upstream")

    async def set_on(sha: str, conclusion: str | None = "success", name: str = "crcr/gate") -> None:
        body: dict[str, Any] = {"name": name, "head_sha": sha, "status": "in_progress"}
        if conclusion is not None:
            body |= {"status": "completed", "conclusion": conclusion}
        assert (await api.post(f"{ROOT}/check-runs", json=body, headers=auth)).status_code == 201

    return set_on


def received_events(received_requests: list[httpx.Request]) -> list[tuple[str, str | None, str | None]]:
    bodies = [(each.headers["x-github-event"], json.loads(each.content)) for each in received_requests]
    return [(event, body.get("action"), body.get("reason")) for event, body in bodies]


async def test_a_missing_required_check_blocks_with_the_state_expected(github: GitHub, gate: Gate) -> None:
    pull = await github.open_pr("org/upstream")
    assert github.merge_state(pull) == MergeState(mergeable=False, blocked_by=("crcr/gate: expected",))
    await gate(pull.head_sha, name="other")
    with pytest.raises(MergeBlocked, match="crcr/gate: expected"):
        await github.merge_pr(pull)
    assert pull.state == "open"


@pytest.mark.parametrize("conclusion", ["success", "neutral", "skipped"])
async def test_a_passing_check_allows_the_merge(github: GitHub, gate: Gate, conclusion: str) -> None:
    pull = await github.open_pr("org/upstream")
    await gate(pull.head_sha, conclusion)
    assert github.merge_state(pull) == MergeState(mergeable=True)
    await github.merge_pr(pull)
    assert (pull.state, pull.merged) == ("closed", True)
    assert github.merge_state(pull).blocked_by == ("merged",)


@pytest.mark.parametrize("conclusion", ["failure", "cancelled", "timed_out", "action_required", None])
async def test_the_newest_check_counts(github: GitHub, gate: Gate, conclusion: str | None) -> None:
    pull = await github.open_pr("org/upstream")
    await gate(pull.head_sha, "success")
    await gate(pull.head_sha, conclusion)
    state = "failure" if conclusion else "pending"
    assert github.merge_state(pull).blocked_by == (f"crcr/gate: {state}",)
    await gate(pull.head_sha, "success")
    assert github.merge_state(pull).mergeable


async def test_a_new_head_needs_its_own_check(github: GitHub, gate: Gate) -> None:
    pull = await github.open_pr("org/upstream")
    await gate(pull.head_sha)
    await github.push_to_pr(pull)
    assert github.merge_state(pull).blocked_by == ("crcr/gate: expected",)


async def test_only_the_default_branch_requires_checks_and_drafts_never_merge(
    github: GitHub, gate: Gate
) -> None:
    await github.push("org/upstream", ref="refs/heads/release", created=True)
    pull = await github.open_pr("org/upstream", base="release")
    assert github.merge_state(pull).mergeable
    await github.convert_to_draft(pull)
    assert github.merge_state(pull).blocked_by == ("draft",)


async def test_the_latest_check_of_each_name_is_found(github: GitHub, gate: Gate) -> None:
    pull = await github.open_pr("org/upstream")
    await gate(pull.head_sha, "failure")
    await gate(pull.head_sha, "success")
    await gate(pull.head_sha, None, name="crcr/acme/backend")
    latest = github.latest_checks("org/upstream", pull.head_sha)
    assert {name: check.conclusion for name, check in latest.items()} == {
        "crcr/gate": "success",
        "crcr/acme/backend": None,
    }


async def test_a_group_has_the_tree_of_an_up_to_date_pull_request(
    github: GitHub, received_requests: list[httpx.Request]
) -> None:
    pull = await github.open_pr("org/upstream")
    group = await github.enqueue(pull)
    repository = github.repository("org/upstream")
    head, own = repository.commits[group.head_sha], repository.commits[pull.head_sha]
    assert head.sha != own.sha
    assert head.tree_sha == own.tree_sha
    body = json.loads(received_requests[-1].content)
    assert body["action"] == "checks_requested"
    base = repository.head_sha
    assert body["merge_group"]["head_sha"] == head.sha
    assert body["merge_group"]["base_sha"] == base
    assert body["merge_group"]["base_ref"] == "refs/heads/main"
    assert body["merge_group"]["head_ref"] == f"refs/heads/gh-readonly-queue/main/pr-1-{base}"
    assert body["merge_group"]["head_commit"]["tree_id"] == own.tree_sha


async def test_a_group_has_a_different_tree_after_the_base_moved(github: GitHub) -> None:
    pull = await github.open_pr("org/upstream", files={"a.py": "a"})
    github.write_file("org/upstream", "b.py", "b")
    group = await github.enqueue(pull)
    commits = github.repository("org/upstream").commits
    assert commits[group.head_sha].tree_sha != commits[pull.head_sha].tree_sha
    assert {"a.py", "b.py"} <= set(commits[group.head_sha].tree)


async def enqueue_two_groups(github: GitHub) -> tuple[list[PullRequest], list[MergeGroup]]:
    pulls = [await github.open_pr("org/upstream", files={name: "x"}) for name in ("a.py", "b.py")]
    return pulls, [await github.enqueue(pull) for pull in pulls]


async def test_a_group_is_based_on_the_group_ahead(github: GitHub, api: httpx.AsyncClient) -> None:
    pulls, (first, second) = await enqueue_two_groups(github)
    assert second.base_sha == first.head_sha
    tree = github.repository("org/upstream").commits[second.head_sha].tree
    assert {"a.py", "b.py"} <= set(tree)
    comparison = (await api.get(f"{ROOT}/compare/{second.base_sha}...{second.head_sha}")).json()
    assert [each["sha"] for each in comparison["commits"]] == [pulls[1].head_sha, second.head_sha]


async def test_a_passing_group_is_merged_and_sends_webhooks(
    github: GitHub, gate: Gate, received_requests: list[httpx.Request]
) -> None:
    pull = await github.open_pr("org/upstream")
    group = await github.enqueue(pull)
    await github.settle_queue("org/upstream")
    assert (group.state, pull.state) == ("queued", "open")
    await gate(group.head_sha)
    received_requests.clear()
    await github.settle_queue("org/upstream")
    assert received_events(received_requests) == [
        ("merge_group", "destroyed", "merged"),
        ("pull_request", "closed", None),
        ("push", None, None),
    ]
    push = json.loads(received_requests[-1].content)
    assert (push["ref"], push["before"], push["after"]) == ("refs/heads/main", pull.base_sha, group.head_sha)
    assert (group.state, pull.merged, pull.merge_commit_sha) == ("merged", True, group.head_sha)
    assert github.repository("org/upstream").head_sha == group.head_sha
    assert github.merge_queue("org/upstream") == []


async def test_groups_are_merged_in_order(github: GitHub, gate: Gate) -> None:
    pulls, (first, second) = await enqueue_two_groups(github)
    await gate(second.head_sha)
    await github.settle_queue("org/upstream")
    assert [pull.merged for pull in pulls] == [False, False]
    await gate(first.head_sha)
    await github.settle_queue("org/upstream")
    assert [pull.merged for pull in pulls] == [True, True]
    assert github.repository("org/upstream").head_sha == second.head_sha


async def test_a_failing_group_is_removed_and_those_behind_are_recreated(
    github: GitHub, gate: Gate, received_requests: list[httpx.Request]
) -> None:
    pulls, (first, second) = await enqueue_two_groups(github)
    await gate(first.head_sha, "failure")
    received_requests.clear()
    await github.settle_queue("org/upstream")
    assert received_events(received_requests) == [
        ("merge_group", "destroyed", "invalidated"),
        ("merge_group", "destroyed", "invalidated"),
        ("merge_group", "checks_requested", None),
    ]
    assert (first.state, second.state, pulls[0].state) == ("invalidated", "invalidated", "open")
    (again,) = github.merge_queue("org/upstream")
    assert (again.number, again.base_sha) == (pulls[1].number, pulls[0].base_sha)
    assert "a.py" not in github.repository("org/upstream").commits[again.head_sha].tree


async def test_a_group_can_be_dequeued(github: GitHub, received_requests: list[httpx.Request]) -> None:
    pull = await github.open_pr("org/upstream")
    group = await github.enqueue(pull)
    await github.dequeue(group)
    assert received_events(received_requests)[-1] == ("merge_group", "destroyed", "dequeued")
    assert (group.state, pull.state, github.merge_queue("org/upstream")) == ("dequeued", "open", [])
    assert group.head_ref.removeprefix("refs/heads/") not in github.repository("org/upstream").branches
    again = await github.enqueue(pull)
    assert again.head_sha != group.head_sha


async def test_a_push_dequeues_a_pull_request_and_a_moved_base_recreates_the_group(
    github: GitHub, gate: Gate
) -> None:
    pulls, groups = await enqueue_two_groups(github)
    for group in groups:
        await gate(group.head_sha)
    await github.push_to_pr(pulls[0])
    await github.settle_queue("org/upstream")
    assert (groups[0].state, pulls[0].state) == ("dequeued", "open")
    (again,) = github.merge_queue("org/upstream")
    await gate(again.head_sha)
    await github.push("org/upstream", files={"new.py": "n"})
    await github.settle_queue("org/upstream")
    assert (again.state, pulls[1].merged) == ("invalidated", False)
    assert github.merge_queue("org/upstream")[0].base_sha == github.repository("org/upstream").head_sha


async def test_an_unmergeable_pull_request_is_not_queued(github: GitHub) -> None:
    pull = await github.open_pr("org/upstream", draft=True)
    with pytest.raises(MergeBlocked, match="draft"):
        await github.enqueue(pull)
    await github.ready_for_review(pull)
    await github.enqueue(pull)
    with pytest.raises(MergeBlocked, match="already queued"):
        await github.enqueue(pull)
    other = await github.open_pr("org/upstream")
    with pytest.raises(LookupError, match="not in the merge queue"):
        await github.merge_group("org/upstream", other.number, action="destroyed")


async def test_pushes_of_the_queues_branches_are_sent_on_request(
    github: GitHub, received_requests: list[httpx.Request]
) -> None:
    github.queue_pushes = True
    pull = await github.open_pr("org/upstream")
    group = await github.enqueue(pull)
    await github.dequeue(group)
    pushes = [
        json.loads(each.content) for each in received_requests if each.headers["x-github-event"] == "push"
    ]
    assert [(each["ref"], each["created"], each["deleted"]) for each in pushes] == [
        (group.head_ref, True, False),
        (group.head_ref, False, True),
    ]


async def test_old_checks_and_comments_of_closed_pull_requests_are_dropped(
    github: GitHub, gate: Gate
) -> None:
    pulls = [await github.open_pr("org/upstream") for _ in range(2)]
    for pull in pulls:
        for _ in range(2):
            await gate(pull.head_sha)
            await github.comment_pr(pull, "words")
    await github.close_pr(pulls[0])
    github.drop_old_records(1)
    kept = [len(github.checks("org/upstream", pull.head_sha)) for pull in pulls]
    assert (kept, [len(github.comments(pull)) for pull in pulls]) == ([1, 2], [1, 2])
