"""The state of a backend at a commit, the commits between two green ones, and the newest common commit."""

import random

import pytest

from crcr.decide.allowlist.entries import AllowlistEntry
from crcr.decide.compatibility import (
    CommonCommit,
    CompatQuery,
    CompatState,
    GreenMatch,
    NewestResult,
    accept_commits,
    choose_backends,
    find_common,
    judge_commit,
)
from crcr.decide.github.commit_origin import is_version_tag, newest_releases
from crcr.decide.model import Level, RepoName
from crcr.errors import BadRequest

_LETTERS = {
    "G": CompatState.GREEN,
    "F": CompatState.FAILED,
    "R": CompatState.RUNNING,
    "I": CompatState.INCONCLUSIVE,
    ".": None,
}


def states(letters: str) -> list[CompatState | None]:
    return [_LETTERS[letter] for letter in letters]


@pytest.mark.parametrize(
    ("results", "state"),
    [
        ("", None),
        ("success", CompatState.GREEN),
        ("success other", CompatState.GREEN),
        ("other", CompatState.INCONCLUSIVE),
        ("success cancelled", CompatState.INCONCLUSIVE),
        ("success running", CompatState.RUNNING),
        ("success running failure", CompatState.FAILED),
    ],
)
def test_a_backend_is_green_when_a_job_succeeded_and_none_failed_runs_or_was_cancelled(
    results: str, state: CompatState | None
) -> None:
    assert judge_commit({NewestResult(word) for word in results.split()}) is state


@pytest.mark.parametrize(
    ("letters", "exact", "between"),
    [
        # newest first; + accepted, - not, ? depends on older commits
        ("G", "+", "+"),
        (".G", "-+", "-+"),
        ("G.", "+-", "+?"),
        ("G..G", "+--+", "++++"),
        ("G.F.G", "+---+", "+---+"),
        ("GI.G", "+--+", "++++"),
        ("G.R.G", "+---+", "++-++"),
        ("F.G.G", "--+-+", "--+++"),
        ("R.G", "--+", "--+"),
    ],
)
def test_a_commit_is_accepted_between_two_green_ones_without_a_failure_in_between(
    letters: str, exact: str, between: str
) -> None:
    signs = {True: "+", False: "-", None: "?"}
    assert "".join(signs[accepted] for accepted in accept_commits(states(letters), GreenMatch.EXACT)) == exact
    assert (
        "".join(signs[accepted] for accepted in accept_commits(states(letters), GreenMatch.BETWEEN))
        == between
    )


@pytest.mark.parametrize(
    ("backends", "match", "expected"),
    [
        (["FG", "GG"], GreenMatch.EXACT, CommonCommit(1, is_settled=True)),
        (["FG", "GF"], GreenMatch.EXACT, CommonCommit(None, is_settled=False)),
        (["G.G.", ".G.G"], GreenMatch.EXACT, CommonCommit(None, is_settled=False)),
        (["G.G.", ".G.G"], GreenMatch.BETWEEN, CommonCommit(1, is_settled=True)),
        (["G...", ".G.."], GreenMatch.BETWEEN, CommonCommit(None, is_settled=False)),
        # The first commit may still turn out to lie between two green ones.
        (["G.G", ".GG"], GreenMatch.BETWEEN, CommonCommit(1, is_settled=True)),
        (["GG.G", "G.G."], GreenMatch.EXACT, CommonCommit(0, is_settled=True)),
        ([], GreenMatch.BETWEEN, CommonCommit(None, is_settled=True)),
    ],
)
def test_the_newest_common_commit_is_settled_once_no_newer_one_can_follow(
    backends: list[str], match: GreenMatch, expected: CommonCommit
) -> None:
    assert find_common([states(letters) for letters in backends], match) == expected


def test_a_settled_answer_never_changes_with_older_commits_and_an_exact_one_is_never_newer() -> None:
    generator = random.Random(5)
    for _ in range(2_000):
        lines = [
            "".join(generator.choices("GF.RI", (5, 1, 4, 1, 1), k=12)) for _ in range(generator.randint(1, 3))
        ]
        for match in GreenMatch:
            whole = find_common([states(line) for line in lines], match)
            for length in range(12):
                part = find_common([states(line[:length]) for line in lines], match)
                assert not part.is_settled or part.index == whole.index
        exact, between = (find_common([states(line) for line in lines], match).index for match in GreenMatch)
        assert exact is None or (between is not None and between <= exact)


ENTRIES = (
    AllowlistEntry(name=RepoName("a/two"), level=Level.L2, hardware="NPU 910B"),
    AllowlistEntry(name=RepoName("b/three"), level=Level.L3, device="npu"),
    AllowlistEntry(name=RepoName("c/four"), level=Level.L4, hardware="GPU"),
)


@pytest.mark.parametrize(
    ("chosen", "names"),
    [
        ({}, "c/four b/three"),
        ({"level": Level.L2}, "c/four b/three a/two"),
        ({"level": Level.L4}, "c/four"),
        ({"hardware": "npu"}, "b/three a/two"),
        ({"hardware": "npu", "level": Level.L3}, "b/three"),
        ({"backends": (RepoName("A/Two"),)}, "a/two"),
        ({"hardware": "abacus"}, ""),
    ],
)
def test_backends_are_chosen_by_level_name_and_hardware(chosen: dict[str, object], names: str) -> None:
    query = CompatQuery(upstream=RepoName("up/stream"), **chosen)  # type: ignore[arg-type]
    assert " ".join(str(entry.name) for entry in choose_backends(ENTRIES, query)) == names


@pytest.mark.parametrize(
    "chosen",
    [
        {"backends": (RepoName("hidden/one"),)},
        {"backends": (RepoName("a/two"), RepoName("no/such"))},
        {"backends": (RepoName("a/two"),), "level": Level.L3},
        {"backends": (RepoName("c/four"),), "hardware": "npu"},
    ],
)
def test_a_named_backend_is_never_left_out_silently(chosen: dict[str, object]) -> None:
    query = CompatQuery(upstream=RepoName("up/stream"), **chosen)  # type: ignore[arg-type]
    with pytest.raises(BadRequest):
        choose_backends(ENTRIES, query)


def test_tags_are_ordered_by_version_and_tags_of_ci_systems_are_excluded() -> None:
    tags = ["v2.9.0-rc1", "v2.10.0", "v2.9.0", "v2.9.1", "v2.9", "ciflow/trunk/12345", "nightly"]
    versions = [tag for tag in tags if is_version_tag(tag)]
    assert newest_releases(versions) == ["v2.10.0", "v2.9.1", "v2.9.0", "v2.9.0-rc1", "v2.9"]
    assert not is_version_tag("1" * 100_000)
