"""Requests for branches, ancestry and commits, and the meaning of the responses."""

import json

import httpx
import pytest

from crcr.decide.github.requests_and_answers import Target, Urgency
from crcr.decide.model import RepoName
from crcr.errors import OutsideLimited, OutsideRefused, OutsideUnsure
from crcr.github.api import commits
from crcr.github.api.request_response import Response
from crcr.github.client import GitHubClient
from support.github.fake_github import FakeGitHub

REPO = RepoName("Org/Up")
TARGET = Target(REPO, 9, 5)
SHA = "a" * 40
COMPARED = f"/repos/Org/Up/compare/main...{SHA}"
COMMIT = f"/repos/Org/Up/git/commits/{SHA}"


def page(body: object) -> Response:
    return Response(200, {}, json.dumps(body).encode(), cut=False)


def test_every_call_has_its_path_and_the_lowest_urgency() -> None:
    requests = [
        commits.read_repository(REPO),
        commits.list_matching_branches(REPO, "release/"),
        commits.compare_ancestry(REPO, "release/2.1", SHA),
        commits.read_commit(REPO, SHA),
    ]
    assert [request.path for request in requests] == [
        "/repos/Org/Up",
        "/repos/Org/Up/git/matching-refs/heads/release",
        f"/repos/Org/Up/compare/release%2F2.1...{SHA}?per_page=1&page=2",
        f"/repos/Org/Up/git/commits/{SHA}",
    ]
    assert {(request.method, request.urgency, request.writes) for request in requests} == {
        ("GET", Urgency.DETAILS, False)
    }


@pytest.mark.parametrize("branch", ["a..b", "a:b", "a b", "a^", "a~1", "a\\b", "a\nb"])
def test_a_comparison_with_an_invalid_branch_name_is_refused(branch: str) -> None:
    with pytest.raises(OutsideRefused):
        commits.compare_ancestry(REPO, branch, SHA)


@pytest.mark.parametrize(
    ("status", "is_ancestor"),
    [("behind", True), ("identical", True), ("ahead", False), ("diverged", False), ("something new", False)],
)
def test_only_behind_and_identical_mean_ancestor(status: str, is_ancestor: bool) -> None:
    assert commits.is_ancestor(page({"status": status, "ahead_by": 0})) is is_ancestor


def test_branches_are_filtered_by_the_requested_prefix() -> None:
    refs = [{"ref": f"refs/heads/{name}"} for name in ("release-notes", "release/2.0", "release/x")]
    assert commits.parse_branches(page(refs), "release/") == ("release/2.0", "release/x")


@pytest.mark.parametrize("body", [{}, [], {"status": 3}, "behind"])
def test_an_unreadable_comparison_raises_outside_unsure(body: object) -> None:
    with pytest.raises(OutsideUnsure):
        commits.is_ancestor(page(body))


@pytest.mark.parametrize("status", [404, 422])
async def test_a_404_or_422_means_that_the_commit_is_absent(
    server: FakeGitHub, github: GitHubClient, status: int
) -> None:
    server.will(COMPARED, httpx.Response(status, json={"message": "Not Found"}))
    server.will(COMMIT, httpx.Response(status, json={"message": "Not Found"}))
    assert not await github.commits.is_on_branch(TARGET, "main", SHA)
    assert not await github.commits.exists(TARGET, SHA)


@pytest.mark.parametrize(
    ("status", "fault"),
    [(403, OutsideRefused), (409, OutsideRefused), (500, OutsideUnsure), (429, OutsideLimited)],
)
async def test_any_other_error_status_raises_an_error(
    server: FakeGitHub, github: GitHubClient, status: int, fault: type[Exception]
) -> None:
    server.will(COMPARED, httpx.Response(status, json={"message": "No"}))
    server.will(COMMIT, httpx.Response(status, json={"message": "No"}))
    with pytest.raises(fault):
        await github.commits.is_on_branch(TARGET, "main", SHA)
    with pytest.raises(fault):
        await github.commits.exists(TARGET, SHA)
