"""Requests for changed files, comparisons, trees and pull requests, and incomplete lists."""

import json
from base64 import b64decode

import pytest

from crcr.decide.github.requests_and_answers import ChangedFiles, Comparison, FileLocation, Target
from crcr.decide.model import RepoName
from crcr.errors import OutsideRefused, OutsideUnsure
from crcr.github.api import branches, commits
from crcr.github.api.request_response import MAX_LIST_BYTES, Response, find_next_link, with_page

REPO = RepoName("Org/Up")
TARGET = Target(REPO, 9, 5)
MORE = {
    "link": '<https://api.github.test/x?page=2>; rel="next", <https://api.github.test/x?page=9>; rel="last"'
}


def page(body: object, *, more: bool = False, cut: bool = False) -> Response:
    return Response(200, MORE if more else {}, json.dumps(body).encode(), cut)


def files(count: int, start: int = 0) -> list[dict[str, str]]:
    return [{"filename": f"f{number}", "patch": "@@"} for number in range(start, start + count)]


def compared(commits: int, total: int, changed: list[dict[str, str]] | None) -> dict[str, object]:
    listed = [{"sha": f"{number:040}"} for number in range(commits)]
    return {"total_commits": total, "commits": listed} | ({} if changed is None else {"files": changed})


def test_every_call_has_its_path() -> None:
    requests = [
        commits.list_pull_files(REPO, 7),
        commits.compare(REPO, "main", "topic/a&b#1"),
        commits.read_commit_tree(REPO, "abc/../d"),
        commits.list_commit_pulls(REPO, "abc?x"),
    ]
    assert [(request.method, request.path) for request in requests] == [
        ("GET", "/repos/Org/Up/pulls/7/files?per_page=100"),
        ("GET", "/repos/Org/Up/compare/main...topic%2Fa%26b%231?per_page=100"),
        ("GET", "/repos/Org/Up/git/commits/abc%2F..%2Fd"),
        ("GET", "/repos/Org/Up/commits/abc%3Fx/pulls?per_page=100"),
    ]
    assert requests[0].most_bytes == MAX_LIST_BYTES


def test_page_numbers_are_added_to_the_path() -> None:
    request = commits.list_pull_files(REPO, 7)
    assert with_page(request, 1) is request
    assert with_page(request, 3).path == "/repos/Org/Up/pulls/7/files?per_page=100&page=3"


LINKS: list[tuple[str, str | None]] = [
    ("", None),
    ('<https://a/x?page=1>; rel="prev", <https://a/x?page=3>; rel="next"', "https://a/x?page=3"),
    ('<https://a/x?page=3>; rel="next"; title="a, b"', "https://a/x?page=3"),
    ("<https://a/x>; rel=next", "https://a/x"),
    ('<https://a/x>; rel="last"', None),
    ('<https://a/x>; rel="nextish"', None),
    ('<https://a/x?rel="next">; rel="last"', None),
    ("nonsense <", None),
    ("<" * 50_000, None),
]


@pytest.mark.parametrize(("header", "address"), LINKS)
def test_the_next_page_is_read_from_the_link_header(header: str, address: str | None) -> None:
    assert find_next_link(Response(200, {"link": header}, b"")) == address


@pytest.mark.parametrize(
    ("base", "head"),
    [
        ("a...b", "c"),
        ("a", "b..c"),
        ("a", "fork:main"),
        ("a", "b c"),
        ("a", "b\n"),
        ("", "a"),
        ("a", "."),
        ("..", "a"),
    ],
)
def test_a_comparison_of_invalid_ref_names_is_refused(base: str, head: str) -> None:
    with pytest.raises(OutsideRefused):
        commits.compare(REPO, base, head)


@pytest.mark.parametrize("sha", ["", ".", ".."])
def test_a_sha_that_would_change_the_path_is_refused(sha: str) -> None:
    for request in (commits.read_commit_tree, commits.list_commit_pulls):
        with pytest.raises(OutsideRefused):
            request(REPO, sha)


def test_a_renamed_file_counts_under_both_names() -> None:
    renamed = {"filename": "new", "previous_filename": "old", "status": "renamed"}
    changed_files = commits.parse_changed_files(
        [page([*files(1), renamed], more=True), page([renamed, *files(1, 1)])]
    )
    assert changed_files == ChangedFiles(("f0", "old", "new", "f1"), complete=True)


def test_a_file_list_of_githubs_maximum_length_is_incomplete() -> None:
    whole = [page(files(100, start)) for start in range(0, 2900, 100)]
    assert commits.parse_changed_files([*whole, page(files(99, 2900))]).complete
    assert not commits.parse_changed_files([*whole, page(files(100, 2900))]).complete


def test_a_file_list_with_an_unread_or_too_large_page_is_incomplete() -> None:
    assert not commits.parse_changed_files([page(files(2), more=True)]).complete
    cut = commits.parse_changed_files([page(files(2), more=True), page([], cut=True)])
    assert cut == ChangedFiles(("f0", "f1"), complete=False)


def test_the_pages_of_a_comparison_are_joined() -> None:
    first, second = compared(2, 3, files(2)), compared(1, 3, None)
    comparison = commits.parse_comparison([page(first, more=True), page(second)])
    shas = (f"{0:040}", f"{1:040}", f"{0:040}")
    assert comparison == Comparison(shas, ChangedFiles(("f0", "f1"), complete=True), complete=True)


@pytest.mark.parametrize(
    ("pages", "all_files", "all_commits"),
    [
        ([page(compared(1, 1, files(299)))], True, True),
        ([page(compared(1, 1, files(300)))], False, True),
        ([page(compared(1, 2, files(1)))], True, False),
        ([page(compared(1, 1, None))], False, True),
        ([page(compared(1, 2, files(1)), more=True), page({}, cut=True)], True, False),
        ([page({}, cut=True)], False, False),
        ([page(compared(0, 0, []))], True, True),
    ],
)
def test_a_comparison_reports_incomplete_files_and_commits(
    pages: list[Response], all_files: bool, all_commits: bool
) -> None:
    comparison = commits.parse_comparison(pages)
    assert (comparison.files.complete, comparison.complete) == (all_files, all_commits)


def pull(number: int, state: str, id: int, name: str) -> dict[str, object]:
    return {"number": number, "state": state, "base": {"repo": {"id": id, "full_name": name}}}


def test_only_open_pull_requests_into_the_same_repository_are_listed() -> None:
    listed = page(
        [pull(1, "open", 9, "old/name"), pull(2, "closed", 9, "Org/Up"), pull(3, "open", 8, "org/up")]
    )
    assert commits.parse_open_pulls(listed, TARGET) == (1,)
    assert commits.parse_open_pulls(listed, Target(REPO, None, 5)) == (3,)


def test_the_tree_sha_of_a_commit_is_parsed() -> None:
    assert commits.parse_tree_sha(page({"sha": "a", "tree": {"sha": "b", "url": ""}})) == "b"


@pytest.mark.parametrize("body", [None, {}, [{}], [1], {"tree": 1}, {"commits": [], "total_commits": "1"}])
def test_an_unreadable_response_raises_outside_unsure(body: object) -> None:
    answer = page(body)
    with pytest.raises(OutsideUnsure):
        commits.parse_changed_files([answer])
    with pytest.raises(OutsideUnsure):
        commits.parse_comparison([answer])
    with pytest.raises(OutsideUnsure):
        commits.parse_tree_sha(answer)
    with pytest.raises(OutsideUnsure):
        commits.parse_open_pulls(answer, TARGET)


def test_a_file_write_names_its_branch_and_the_blob_that_it_replaces() -> None:
    read = branches.parse_file_version(Response(200, {}, "L1: []\r\n# é\n".encode()))
    assert read.text == "L1: []\r\n# é\n"
    assert branches.parse_file_version(Response(200, {}, b"hello\n")).sha == (
        "ce013625030ba8dba906f756967f9e9ca394464a"  # git hash-object
    )
    file = FileLocation(REPO, "crcr/b", "a b/é.yml")
    request = branches.write_file(file, read.text, replaces=read.sha, message="m")
    assert request.path == "/repos/Org/Up/contents/a%20b/%C3%A9.yml"
    sent = json.loads(request.body or b"")
    assert b64decode(sent["content"]).decode() == read.text
    assert (sent["branch"], sent["sha"]) == ("crcr/b", read.sha)
    with pytest.raises(OutsideRefused):
        branches.write_file(FileLocation(REPO, "b", "../x"), "", replaces="", message="m")
    with pytest.raises(OutsideRefused):
        branches.read_branch(REPO, "a/../../x")


def test_the_newest_pull_request_of_a_branch_in_this_repository_is_found() -> None:
    def pull(number: int, head: str = "b", base: str = "main", source: str | None = "Org/Up") -> object:
        repo = {"repo": None if source is None else {"full_name": source}}
        return {
            "number": number,
            "head": {"ref": head, **repo},
            "base": {"ref": base, "repo": {"full_name": "Org/Up"}},
        }

    others = [pull(9, head="c"), pull(8, base="dev"), pull(7, source="Org/Fork"), pull(6, source=None)]
    assert branches.find_pull_of_branch(page([*others, pull(3), pull(4)]), "b", "main") == 4
    assert branches.find_pull_of_branch(page(others), "b", "main") is None
