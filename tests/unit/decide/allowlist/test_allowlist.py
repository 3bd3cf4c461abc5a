"""Every form of an allowlist entry, and every option with its parsed value."""

from typing import Any

import pytest

from crcr.decide.allowlist.entries import (
    Allowlist,
    AllowlistEntry,
    AllowlistProblem,
    Authors,
    CheckedAllowlist,
    Visibility,
)
from crcr.decide.model import Conclusion, Level, RepoName
from crcr.receive.allowlist_yaml import read_allowlist
from support.paths import ROOT

PUBLIC_FILE = ROOT / "tests" / "data" / "pytorch-allowlist.yml"


def read_only_entry(text: str) -> AllowlistEntry:
    checked = read_allowlist(text)
    assert checked.allowlist is not None, checked.problems
    (entry,) = checked.allowlist.entries
    return entry


def test_the_public_file_is_read_without_a_problem() -> None:
    checked = read_allowlist(PUBLIC_FILE.read_text(encoding="utf-8"))
    assert checked.problems == ()
    assert checked.allowlist is not None
    counts = {level.name: len(entries) for level, entries in checked.allowlist.by_level()}
    assert counts == {"L1": 5, "L2": 4, "L3": 1, "L4": 0}
    probe = checked.allowlist.find(RepoName("pytorch/crcr-test"))
    assert probe is not None
    assert (probe.device, probe.oncalls[0], len(probe.oncalls), probe.line) == ("crcr-test", "atalman", 6, 18)


FORMS = {
    "a name in a list": ("L1:\n  - o/r\n", Level.L1, None, ()),
    "a name with nothing after its colon": ("L1:\n  - o/r:\n", Level.L1, None, ()),
    "a name as a key": ("L2:\n  o/r:\n", Level.L2, None, ()),
    "on-calls as text": (
        "L2:\n  - o/r: ann, '@bob' , ann\n".replace("'", ""),
        Level.L2,
        None,
        ("ann", "bob"),
    ),
    "one on-call as text": ("L2:\n  o/r: ann\n", Level.L2, None, ("ann",)),
    "on-calls as a list": ('L2:\n  - o/r: [ann, "@bob"]\n', Level.L2, None, ("ann", "bob")),
    "on-calls as an option": (
        "L2:\n  - o/r: {oncalls: [ann, org/team]}\n",
        Level.L2,
        None,
        ("ann", "org/team"),
    ),
    "on-calls as text in an option": (
        "L2:\n  - o/r: {oncalls: 'ann, @bob'}\n",
        Level.L2,
        None,
        ("ann", "bob"),
    ),
    "a device with a mapping": ("L3:\n  npu:\n    o/r: [ann]\n", Level.L3, "npu", ("ann",)),
    "a device with a list": ("L3:\n  npu:\n    - o/r: ann\n", Level.L3, "npu", ("ann",)),
    "a gate": ("L4:\n  - o/r: {oncalls: ann, jobs: [build]}\n", Level.L4, None, ("ann",)),
    "an empty level beside it": ("L1:\nL2: [o/r]\nL3:\nL4: []\n", Level.L2, None, ()),
    "a byte order mark and CRLF": ("\ufeffL1:\r\n  - o/r\r\n", Level.L1, None, ()),
}


@pytest.mark.parametrize(("text", "level", "device", "oncalls"), FORMS.values(), ids=FORMS.keys())
def test_an_entry_is_read_in_each_form(
    text: str, level: Level, device: str | None, oncalls: tuple[str, ...]
) -> None:
    entry = read_only_entry(text)
    assert (str(entry.name), entry.level, entry.device, entry.oncalls) == ("o/r", level, device, oncalls)


OPTIONS: list[tuple[str, str, Any]] = [
    ("hardware: 8 x Ascend 910B", "hardware", "8 x Ascend 910B"),
    ("events: [nightly]", "events", {"nightly"}),
    ("events: [pull_request]", "events", {"pull_request", "push"}),
    ("events: [pull_request, nightly]", "events", {"pull_request", "nightly"}),
    ("events: [push, merge_group, periodic]", "events", {"push", "merge_group", "periodic"}),
    ("drafts: true", "events", {"pull_request", "push", "nightly", "periodic"}),
    ("refs: [main, 'release/*']", "refs", ("main", "release/*")),
    ("paths: ['aten/**']", "paths", ("aten/**",)),
    ("labels: [ciflow/x]", "labels", ("ciflow/x",)),
    ("drafts: no", "drafts", False),
    ("authors: any", "authors", Authors.ANY),
    ("authors: trusted", "authors", Authors.TRUSTED),
    ("authors: approved", "authors", Authors.APPROVED),
    ("jobs: [build, 'test (*)']", "jobs", ("build", "test (*)")),
    ("may_skip: true", "may_skip", True),
    ("job_timeout: 90s", "job_timeout_s", 90),
    ("job_timeout: 30m", "job_timeout_s", 1800),
    ("job_timeout: 6h", "job_timeout_s", 21600),
    ("job_timeout: 30d", "job_timeout_s", 2592000),
    ("job_timeout: 3600", "job_timeout_s", 3600),
    ("gate_timeout: 2d", "gate_timeout_s", 172800),
    ("{job_timeout: 6h, gate_timeout: 6h}", "gate_timeout_s", 21600),
    ("allow_events: [workflow_run]", "allow_events", {"workflow_run"}),
    (
        "report_refs: [refs/heads/nightly, 'refs/tags/v*']",
        "report_refs",
        ("refs/heads/nightly", "refs/tags/v*"),
    ),
    ("visibility: public", "visibility", Visibility.PUBLIC),
    ("visibility: name", "visibility", Visibility.NAME),
    ("visibility: hidden", "visibility", Visibility.HIDDEN),
    ("channels: [team-chat, issues, issues]", "channels", ("team-chat", "issues")),
    ("expect: {'*xfail*': failure}", "expect", (("*xfail*", Conclusion.FAILURE),)),
    (
        "expect: {'A*': failure, 'a*': timed_out}",
        "expect",
        (("A*", Conclusion.FAILURE), ("a*", Conclusion.TIMED_OUT)),
    ),
]


@pytest.mark.parametrize(("option", "field", "value"), OPTIONS)
def test_an_option_is_parsed_into_its_value(option: str, field: str, value: Any) -> None:
    options = option if option.startswith("{") else f"{{{option}}}"
    assert getattr(read_only_entry(f"L2:\n  - o/r: {options}\n"), field) == value


def test_an_entry_without_options_has_no_filters() -> None:
    entry = read_only_entry("L2: [o/r]")
    assert entry == AllowlistEntry(name=RepoName("o/r"), level=Level.L2)
    assert (entry.refs, entry.paths, entry.labels, entry.jobs) == (None, None, None, None)
    assert (entry.drafts, entry.may_skip, entry.authors) == (True, False, Authors.ANY)


def test_fault_20_a_repository_is_found_case_insensitively() -> None:
    checked = read_allowlist("L2: [ascend/pytorch]")
    assert checked.allowlist is not None
    entry = checked.allowlist.find(RepoName("Ascend/PyTorch"))
    assert entry is not None
    assert str(entry.name) == "ascend/pytorch"
    assert checked.allowlist.find(RepoName("ascend/other")) is None


def test_moving_an_entry_to_another_line_does_not_change_the_allowlist() -> None:
    assert read_allowlist("L1: [o/r]").allowlist == read_allowlist("\n# a comment\nL1:\n- o/r").allowlist


def test_an_allowlist_cannot_hold_a_repository_twice() -> None:
    entries = tuple(AllowlistEntry(name=RepoName(name), level=Level.L1) for name in ("o/r", "O/R"))
    with pytest.raises(ValueError, match="twice"):
        Allowlist(entries)


def test_fault_53_a_result_cannot_hold_both_an_error_and_an_allowlist() -> None:
    with pytest.raises(ValueError, match="exactly"):
        CheckedAllowlist(Allowlist(()), (AllowlistProblem(1, "error", "bad"),))
    with pytest.raises(ValueError, match="exactly"):
        CheckedAllowlist(None, (AllowlistProblem(1, "warning", "odd"),))


def test_no_entry_takes_an_unknown_event_or_by_default_merge_group() -> None:
    checked = read_allowlist("L1: [o/r]")
    assert checked.allowlist is not None
    assert [str(entry.name) for entry in checked.allowlist.taking("push")] == ["o/r"]
    assert checked.allowlist.taking("merge_group") == checked.allowlist.taking("unheard_of") == ()
