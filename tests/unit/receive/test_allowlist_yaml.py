"""Reading the allowlist's YAML: lines, limits, aliases, hidden text. No content of a file may raise an exception."""

from dataclasses import replace
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from crcr.decide.allowlist.entries import KNOWN_EVENTS, Allowlist, AllowlistEntry, Authors, Visibility
from crcr.decide.model import Conclusion, Level, RepoName
from crcr.receive.allowlist_yaml import MAX_BYTES, MAX_DEPTH, MAX_NODES, read_allowlist

REFUSED = {
    "a tab": ("L1:\n\t- o/r\n", 2, "not YAML: "),
    "an open bracket": ("L1: [o/r\n", 1, "not YAML: "),
    "a tag that makes objects": ("L1: !!python/object/apply:os.system [ls]\n", 1, "the tag "),
    "a tag on text": ("L1:\n  - !secret o/r\n", 2, "the tag "),
    "two documents": ("L1: [o/r]\n---\nL1: [o/s]\n", 2, "the file holds more than one document"),
    "an alias without an anchor": ("L1:\n  - *none\n", 2, "the alias 'none' has no anchor"),
    "an alias inside itself": ("L1: &a\n  - o/r\n  - *a\n", 3, "the alias 'a' contains itself"),
    "a merge of text": ("L2:\n  o/r:\n    <<: text\n", 3, "<< takes a mapping"),
    "a deep nest": ("[" * (MAX_DEPTH + 1), 1, "the file is nested deeper"),
    "a very deep nest": ("[" * 900_000, 1, "the file is nested deeper"),
    "too many values": ("- a\n" * (MAX_NODES + 1), MAX_NODES, "the file holds more than"),
    "too many bytes": ("#" * (MAX_BYTES + 1), 1, "the file is larger than"),
    "an impossible escape": ('L1: ["\\UFFFFFFFF"]\n', 1, "not YAML: "),
    "a control character": ("L1:\n  - o/r\x07\n", 2, "the line holds the hidden character U+0007"),
    "a lone surrogate": ("L1:\n  - o/r\ud800\n", 2, "the line holds the hidden character U+D800"),
    "a direction mark in a comment": (
        "L1: [o/r]\n# \u202e\n",
        2,
        "the line holds the hidden character U+202E",
    ),
}


@pytest.mark.parametrize(("text", "line", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_unreadable_text_gives_one_problem_with_its_line(text: str, line: int, message: str) -> None:
    checked = read_allowlist(text)
    assert checked.allowlist is None
    (problem,) = checked.problems
    assert (problem.line, problem.severity) == (line, "error")
    assert problem.message.startswith(message)


def test_a_tab_gives_a_hint() -> None:
    (problem,) = read_allowlist("L1:\n\t- o/r\n").problems
    assert problem.hint == "indent with spaces, not with tabs"


def test_a_comment_cannot_hide_an_entry_behind_an_invisible_line_break() -> None:
    for hidden_break in ("\u2028", "\u2029", "\x85", "\r"):
        checked = read_allowlist(f"L1: [o/r]\n# harmless{hidden_break}L4: [evil/repo]\n")
        assert [problem.line for problem in checked.problems] == [2]


def test_nested_aliases_count_at_their_expanded_size() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    (problem,) = read_allowlist("\n".join(lines)).problems
    assert problem.message.startswith("the file holds more than")


def test_anchors_and_merges_equal_their_expanded_text() -> None:
    shared = "L2:\n  - o/r: &all {oncalls: [ann], drafts: no, job_timeout: 1h}\n"
    merged = read_allowlist(f"{shared}  - o/s: {{<<: *all, job_timeout: 2h}}\n  - o/t: *all\n")
    written = read_allowlist(
        f"{shared}  - o/s: {{oncalls: [ann], drafts: no, job_timeout: 2h}}\n"
        "  - o/t: {oncalls: [ann], drafts: no, job_timeout: 1h}\n"
    )
    assert merged.problems == ()
    assert merged.allowlist == written.allowlist


def test_the_first_of_several_merged_mappings_wins() -> None:
    text = (
        "L2:\n  o/r: &a {job_timeout: 1h}\n  o/s: &b {job_timeout: 2h, drafts: no}\n  o/t: {<<: [*a, *b]}\n"
    )
    allowlist = read_allowlist(text).allowlist
    assert allowlist is not None
    entry = allowlist.find(RepoName("o/t"))
    assert entry is not None
    assert (entry.job_timeout_s, entry.drafts) == (3600, False)


def test_a_duplicate_through_an_alias_is_reported_at_the_line_of_the_alias() -> None:
    (problem,) = read_allowlist("L1:\n  - &a o/r\nL2:\n  - *a\n").problems
    assert problem.message == "o/r is listed twice: line 2 (L1) and line 4 (L2)"


@given(st.text())
def test_no_text_raises_an_exception(text: str) -> None:
    checked = read_allowlist(text)
    assert all(problem.line >= 1 for problem in checked.problems)


PIECES = [
    "L1",
    "L2",
    "L3",
    "L4",
    "o/r",
    "npu",
    "events",
    "[",
    "]",
    "{",
    "}",
    ":",
    ": ",
    ", ",
    "\n",
    "\n  ",
    "\n    ",
]
PIECES += [
    "- ",
    "&a ",
    "*a",
    "<<: ",
    "!!str ",
    "!x ",
    '"',
    "'",
    "|",
    ">",
    "~",
    "yes",
    "1e9",
    "0x1f",
    "#",
    "?",
    "%YAML",
]
PIECES += ["\t", "\\", "\ufeff", "\x00", "\u2028", "2026-01-01", "=", "---", "..."]


@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
def test_no_yaml_like_text_raises_an_exception(text: str) -> None:
    lines = text.count("\n") + 1
    assert all(1 <= problem.line <= lines for problem in read_allowlist(text).problems)


@given(st.binary(max_size=200))
def test_no_bytes_raise_an_exception(body: bytes) -> None:
    read_allowlist(body.decode("utf-8", "surrogateescape"))
    read_allowlist(body.decode("latin-1"))


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.dates()
words = st.sampled_from(
    ["L1", "L2", "L3", "L4", "o/r", "p/q", "npu", "events", "expect", "jobs", "oncalls", "push"]
)
trees = st.recursive(
    scalars | words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4),
    max_leaves=20,
)


@given(trees)
def test_no_yaml_structure_raises_an_exception(tree: Any) -> None:
    read_allowlist(yaml.safe_dump(tree, allow_unicode=True))


globs = st.text("abc/*?.-_", min_size=1, max_size=10)
glob_lists = st.none() | st.lists(globs, min_size=1, max_size=3).map(tuple)
events = st.frozensets(st.sampled_from(KNOWN_EVENTS), min_size=1).filter(
    lambda chosen: chosen != {"pull_request"}
)
seconds = st.integers(1, 86_400)
entries = st.builds(
    AllowlistEntry,
    name=st.from_regex(r"[a-z]{1,5}/[a-z0-9]{1,8}", fullmatch=True).map(RepoName),
    level=st.sampled_from(Level),
    oncalls=st.lists(st.from_regex(r"[a-z]{1,8}", fullmatch=True), min_size=1, unique=True).map(tuple),
    hardware=st.none() | st.text("ab 1", min_size=1).map(str.strip).filter(bool),
    events=events,
    refs=glob_lists,
    paths=glob_lists,
    labels=glob_lists,
    drafts=st.booleans(),
    authors=st.sampled_from(Authors),
    jobs=glob_lists,
    may_skip=st.booleans(),
    job_timeout_s=st.none() | seconds,
    gate_timeout_s=st.none() | seconds.map(lambda extra_s: 86_400 + extra_s),
    visibility=st.sampled_from(Visibility),
    expect=st.dictionaries(globs, st.sampled_from(["failure", "skipped"])).map(
        lambda outcomes: tuple((glob, Conclusion(outcome)) for glob, outcome in outcomes.items())
    ),
)


def entry_yaml(entry: AllowlistEntry) -> dict[str, Any]:
    options = {
        "oncalls": list(entry.oncalls),
        "hardware": entry.hardware,
        "events": sorted(entry.events),
        **{
            name: globs and list(globs)
            for name in ("refs", "paths", "labels", "jobs")
            for globs in [getattr(entry, name)]
        },
        "drafts": entry.drafts,
        "authors": str(entry.authors),
        "may_skip": entry.may_skip,
        "job_timeout": entry.job_timeout_s,
        "gate_timeout": entry.gate_timeout_s,
        "visibility": str(entry.visibility),
        "expect": {glob: str(outcome) for glob, outcome in entry.expect},
    }
    return {str(entry.name): {option: value for option, value in options.items() if value is not None}}


@given(st.lists(entries, max_size=4, unique_by=lambda entry: entry.name))
def test_a_written_allowlist_is_read_back_unchanged(chosen: list[AllowlistEntry]) -> None:
    ordered = [
        replace(entry, device="npu" if entry.level is Level.L3 else None)
        for entry in sorted(chosen, key=lambda entry: entry.level)
    ]
    document: dict[str, Any] = {"L1": []}
    for entry in ordered:
        group = document.setdefault(entry.level.name, {"npu": []} if entry.device else [])
        (group["npu"] if entry.device else group).append(entry_yaml(entry))
    assert read_allowlist(yaml.safe_dump(document, sort_keys=False)).allowlist == Allowlist(tuple(ordered))
