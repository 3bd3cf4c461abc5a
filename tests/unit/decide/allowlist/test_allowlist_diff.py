"""The differences between two allowlists, as text for people."""

import pytest

from crcr.decide.allowlist.diff import EntryAdded, EntryRemoved, LevelChanged, OptionChanged, diff_allowlists
from crcr.decide.allowlist.entries import Allowlist, AllowlistEntry
from crcr.decide.model import Level, RepoName
from crcr.receive.allowlist_yaml import read_allowlist


def parse(text: str) -> Allowlist:
    allowlist = read_allowlist(text).allowlist
    assert allowlist is not None
    return allowlist


CHANGES = [
    ("L1: []", "L1: [o/r]", ["o/r: added at L1"]),
    ("L3: {npu: {o/r: ann}}", "L1: []", ["o/r: removed from L3 (npu)"]),
    ("L1: [o/r]", "L2: [o/r]", ["o/r: promoted from L1 to L2"]),
    (
        "L4: [o/r: {oncalls: ann, jobs: [a]}]",
        "L2: [o/r: {oncalls: ann, jobs: [a]}]",
        ["o/r: demoted from L4 to L2"],
    ),
    (
        "L2: [o/r: ann]",
        "L3: {npu: {o/r: ann}}",
        ["o/r: promoted from L2 to L3", "o/r: device from default to npu"],
    ),
    ("L3: {npu: {o/r: ann}}", "L3: {xpu: {o/r: ann}}", ["o/r: device from npu to xpu"]),
    ("L2: [o/r]", "L2: [o/r: {job_timeout: 24h}]", ["o/r: job_timeout from default to 1d"]),
    (
        "L2: [o/r: {job_timeout: 90}]",
        "L2: [o/r: {job_timeout: 90m}]",
        ["o/r: job_timeout from 90s to 90m"],
    ),
    ("L2: [o/r]", "L2: [o/r: {drafts: no}]", ["o/r: drafts from true to false"]),
    ("L2: [o/r]", "L2: [o/r: {authors: trusted}]", ["o/r: authors from any to trusted"]),
    ("L2: [o/r: ann]", "L2: [o/r: [ann, bob]]", ["o/r: oncalls from [ann] to [ann, bob]"]),
    (
        "L2: [o/r: {events: [push]}]",
        "L2: [o/r: {events: [push, nightly]}]",
        ["o/r: events from [push] to [nightly, push]"],
    ),
    ("L2: [o/r]", "L2: [o/r: {expect: {'*x*': failure}}]", ["o/r: expect from [] to [*x*: failure]"]),
    ("L2: [b/b, a/a]", "L2: [c/c, a/a]", ["b/b: removed from L2", "c/c: added at L2"]),
]


@pytest.mark.parametrize(("old", "new", "texts"), CHANGES)
def test_each_change_has_a_readable_text(old: str, new: str, texts: list[str]) -> None:
    assert [change.text for change in diff_allowlists(parse(old), parse(new))] == texts


def test_order_comments_and_case_do_not_count_as_changes() -> None:
    assert diff_allowlists(parse("L1: [o/r, p/q]"), parse("# moved\nL1:\n  - P/Q\n  - o/r\n")) == ()


def test_each_kind_of_change_is_a_value_of_its_own_type() -> None:
    name = RepoName("o/r")
    one, two = (
        AllowlistEntry(name=name, level=Level.L1),
        AllowlistEntry(name=name, level=Level.L2, drafts=False),
    )
    assert diff_allowlists(Allowlist(()), Allowlist((one,))) == (EntryAdded(one),)
    assert diff_allowlists(Allowlist((one,)), Allowlist(())) == (EntryRemoved(one),)
    moved = LevelChanged(name, Level.L1, Level.L2)
    changed = OptionChanged(name, "drafts", before=True, after=False)
    assert diff_allowlists(Allowlist((one,)), Allowlist((two,))) == (moved, changed)
