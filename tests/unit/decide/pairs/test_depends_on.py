"""`Depends-On` lines: the pull requests that a text names, found in linear time."""

from time import process_time

import pytest

from crcr.decide.model import RepoName
from crcr.decide.pairs.depends_on import MOST_RECORDED, PullReference, find_cycle, find_dependencies

GITHUB = "https://github.com"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("Depends-On: org/x#3", ["org/x#3"]),
        ("text\r\ndepends-on:org/x#3 , org/y#4\r\nmore", ["org/x#3", "org/y#4"]),
        ("Depends-On: https://github.com/Org/X/pull/3/files#diff", ["Org/X#3"]),
        ("Depends-On: org/x#3\nDepends-On: ORG/X#3, https://github.com/org/x/pull/3", ["org/x#3"]),
        ("Depends-On: org/x#3 (the fix), org/y#4", ["org/x#3"]),
        (
            "It needs:\n- Depends-On: org/x#3.\n* depends-on: https://github.com/org/y/pull/4.",
            ["org/x#3", "org/y#4"],
        ),
        ("- > Depends-On: org/x#3", []),
        ("-     Depends-On: org/x#3", []),
        ("- `Depends-On: org/x#3`", []),
        ("Depends-On: https://elsewhere.example/org/x/pull/3", []),
        ("Depends-On: https://github.com/org/x/issues/3", []),
        ("Depends-On: org/x#0, org/x#", []),
        ("Depends-On: ../x#3", []),
        ("It depends-on: org/x#3", []),
        ("> Depends-On: org/x#3", []),
        ("`Depends-On: org/x#3`", []),
        ("    Depends-On: org/x#3", []),
        ("```\nDepends-On: org/x#3\n```", []),
        ("<!--\nDepends-On: org/x#3\n-->", []),
        ("<blockquote>\n\nDepends-On: org/x#3\n\n</blockquote>", []),
        ("Depends-On: " + "x" * 10_000 + "/y#1", []),
        ("", []),
    ],
)
def test_only_lines_that_readers_see_name_pull_requests(text: str, named: list[str]) -> None:
    assert [str(reference) for reference in find_dependencies(text, GITHUB)] == named


def test_the_number_of_references_and_the_time_are_bounded() -> None:
    many = "\n".join(f"Depends-On: org/x#{number}" for number in range(1, 2000))
    assert len(find_dependencies(many)) == MOST_RECORDED
    started = process_time()
    for hostile in ("Depends-On: " + "a/" * 32_000, "depends-on:" * 5_900, "Depends-On: a/b#1," * 3_600):
        find_dependencies(hostile)
    assert process_time() - started < 1


def ref(text: str) -> PullReference:
    name, _, number = text.partition("#")
    return PullReference(RepoName(f"o/{name}"), int(number))


@pytest.mark.parametrize(
    ("edges", "cycle"),
    [
        ({"u#1": ["d#1"]}, []),
        ({"u#1": ["d#1"], "d#1": ["e#1", "e#2"], "e#1": ["f#1"], "e#2": ["f#1"]}, []),
        ({"u#1": ["d#1"], "d#1": ["u#1"]}, ["o/u#1", "o/d#1"]),
        ({"u#1": ["d#1"], "d#1": ["D#1"]}, ["o/d#1"]),
        ({"u#1": ["d#1"], "d#1": ["e#1"], "e#1": ["u#2"], "u#2": ["d#1"]}, ["o/d#1", "o/e#1", "o/u#2"]),
        ({"u#2": ["u#2"], "u#1": ["d#1"]}, []),
    ],
)
def test_a_cycle_that_a_pull_request_leads_to_is_found(edges: dict[str, list[str]], cycle: list[str]) -> None:
    known = {ref(name).key: tuple(map(ref, following)) for name, following in edges.items()}
    assert [str(reference) for reference in find_cycle(ref("u#1"), known)] == cycle
