"""Every problem of an allowlist with its line; all problems are reported at once."""

import pytest

from crcr.decide.allowlist.check import check_actions, check_allowlist, check_channels
from crcr.decide.allowlist.entries import AllowlistProblem, CheckedAllowlist, decode_text
from crcr.decide.allowlist.tree import MappingNode, ScalarNode, SequenceNode
from crcr.receive.allowlist_yaml import read_allowlist


def problem_lines(checked: CheckedAllowlist, severity: str) -> list[tuple[int, str]]:
    return [(problem.line, problem.message) for problem in checked.problems if problem.severity == severity]


STRUCTURE = [
    ("- o/r\n", 1, "the file must map levels to entries, not be a list"),
    ("just words\n", 1, "the file must map levels to entries, not be text"),
    ("L1: [o/r]\nL5: [o/s]\n", 2, "unknown level 'L5'"),
    ("l2: [o/r]\n", 1, "unknown level 'l2'"),
    ("2: [o/r]\n", 1, "level must be text, not 2"),
    ("L1: [o/r]\nL2: []\nL1: [o/s]\n", 3, "level 'L1' stands twice: lines 1 and 3"),
    ("L1: o/r\n", 1, "L1 must hold a list or a mapping of entries, not text"),
    ("L1:\n  - o/r\n  - repo\n", 3, "'repo' is not a repository's name"),
    ("L1:\n  - o/r/s\n", 2, "'o/r/s' is not a repository's name"),
    ("L1:\n  - ' o/r'\n", 2, "' o/r' is not a repository's name"),
    ("L1:\n  - [o/r]\n", 2, "a repository's name must be text, not a list"),
    ("L1:\n  - yes\n", 2, "a repository's name must be text, not true"),
    ("L1:\n  -\n", 2, "a repository's name must be text, not nothing"),
    ("L1:\n  - o/r\nL2:\n  - O/R\n", 4, "O/R is listed twice: line 2 (L1) and line 4 (L2)"),
    ("L2:\n  o/r:\n  o/r: ann\n", 3, "o/r is listed twice: line 2 (L2) and line 3 (L2)"),
    (
        "L2:\n  - o/r:\n      events: [push]\n      events: [nightly]\n",
        4,
        "option 'events' stands twice: lines 3 and 4",
    ),
    ("L2:\n  - o/r:\n      evnets: [push]\n", 3, "unknown option 'evnets'"),
    ("L2:\n  - o/r:\n      drafts: false\n  - o/s:\n      1: x\n", 5, "option must be text, not 1"),
    ("L2:\n  - o/r:\n    - ann\n    - 7\n", 4, "an on-call must be text, not 7"),
    ("L2:\n  - o/r: 7\n", 2, "on-calls must be text or a list, not 7"),
    ("L2:\n  - o/r: ann, b c\n", 2, "'b c' is not an on-call"),
    (
        "L2:\n  - o/r:\n      events: [push]\n  - o/s:\n    drafts: no\n",
        5,
        "a list item holds one repository, and 'drafts' beside it",
    ),
    ("L2:\n  - o/r: ann\n    o/s: bob\n", 3, "a list item holds one repository, and 'o/s' beside it"),
    ("L3:\n  - o/r: ann\n", 2, "L3 must group its entries by device, not be a list"),
    ("L3:\n  o/r: ann\n", 2, "o/r is under L3 without a device"),
    ("L3:\n  my npu:\n    o/r: ann\n", 2, "'my npu' is not a device name"),
    ("L3:\n  910:\n    o/r: ann\n", 2, "device must be text, not 910"),
    ("L3:\n  npu:\n    o/r: ann\n  NPU:\n    o/s: ann\n", 4, "device 'NPU' stands twice: lines 2 and 4"),
    (f"L3:\n  {'n' * 39}:\n    o/r: ann\n", 2, f"'{'n' * 39}' is not a device name"),
    ("L4:\n  - o/r: {jobs: [a]}\n", 2, "o/r is at L4 and has no on-calls"),
    ("L4:\n  - o/r: {jobs: [a], oncalls: []}\n", 2, "o/r is at L4 and has no on-calls"),
    ('L1:\n  - "o/r\\u202e"\n', 2, "a repository's name holds the hidden character U+202E"),
    ('L2:\n  - o/r: {hardware: "a\\tb"}\n', 2, "hardware holds the hidden character U+0009"),
]


@pytest.mark.parametrize(("text", "line", "message"), STRUCTURE)
def test_a_malformed_file_is_refused_with_the_line(text: str, line: int, message: str) -> None:
    checked = read_allowlist(text)
    assert checked.allowlist is None
    assert (line, message) in problem_lines(checked, "error")


OPTIONS = [
    ("events: [nightyl]", "events: unknown event 'nightyl'"),
    ("events: nightly", "events must be a list, not text"),
    ("events: []", "events is an empty list"),
    ("events: [1]", "an item of events must be text, not 1"),
    ("refs: main", "refs must be a list, not text"),
    ("refs:", "refs must be a list, not nothing"),
    ("refs: ['']", "refs holds ''"),
    ("labels: {a: b}", "labels must be a list, not a mapping"),
    ("paths: [true]", "an item of paths must be text, not true"),
    (f"jobs: [{', '.join('j' * 101)}]", "jobs holds more than 100 items"),
    ("drafts: maybe", "drafts must be true or false, not text"),
    ("may_skip: 1", "may_skip must be true or false, not 1"),
    ("authors: friends", "authors: unknown value 'friends'"),
    ("authors: [any]", "authors must be text, not a list"),
    ("visibility: secret", "visibility: unknown value 'secret'"),
    ("channels: ['https://hooks.example/x']", "channels: 'https://hooks.example/x' is not a channel's name"),
    ("channels: chat", "channels must be a list, not text"),
    ("hardware: 910", "hardware must be text, not 910"),
    ("hardware: ''", "hardware must have 1 to 256 characters"),
    ("job_timeout: 6 hours", "job_timeout: '6 hours' is not a duration"),
    ("job_timeout: 1:30", "job_timeout: '1:30' is not a duration"),
    ("job_timeout: 0100", "job_timeout: '0100' is not a duration"),
    ("job_timeout: yes", "job_timeout: true is not a duration"),
    ("job_timeout: 1.5", "job_timeout: 1.5 is not a duration"),
    ("job_timeout: [6h]", "job_timeout: a list is not a duration"),
    ("job_timeout: 0", "job_timeout must be longer than nothing and at most 30d"),
    ("job_timeout: -5", "job_timeout must be longer than nothing and at most 30d"),
    ("job_timeout: 31d", "job_timeout must be longer than nothing and at most 30d"),
    ("allow_events: ['Workflow Run']", "allow_events: 'Workflow Run' is not an event's name"),
    ("report_refs: [main]", "report_refs: 'main' is not a full ref"),
    ("report_refs: ['refs/pull/7/merge']", "report_refs: 'refs/pull/7/merge' is not a full ref"),
    ("report_refs: ['**']", "report_refs: '**' is not a full ref"),
    ("report_refs: refs/heads/x", "report_refs must be a list, not text"),
    ("expect: [a]", "expect must be a mapping, not a list"),
    ("expect: {'a*': broken}", "expect: unknown outcome 'broken'"),
    ("expect: {'a*': none}", "expect: unknown outcome 'none'"),
    ("oncalls: {a: b}", "oncalls must be text or a list, not a mapping"),
    ("oncalls: ['<script>']", "'<script>' is not an on-call"),
]


@pytest.mark.parametrize(("option", "message"), OPTIONS)
def test_a_wrong_option_is_refused_with_the_line(option: str, message: str) -> None:
    checked = read_allowlist(f"L2:\n  - o/r:\n      {option}\n")
    assert problem_lines(checked, "error") == [(3, message)]


def test_a_gate_timeout_below_the_job_timeout_is_refused() -> None:
    checked = read_allowlist("L2:\n  - o/r:\n      job_timeout: 6h\n      gate_timeout: 5h\n")
    assert problem_lines(checked, "error") == [(4, "gate_timeout is below job_timeout")]


WARNINGS = [
    ("L1: []\n", 1, "the allowlist is empty: nothing will be dispatched"),
    ("L1:\nL2: []\n", 1, "the allowlist is empty: nothing will be dispatched"),
    ("L3:\n  npu:\n    o/r:\n", 3, "o/r is at L3 and has no on-calls"),
    ("L2:\n  - o/r: {allow_events: [pull_request]}\n", 2, "o/r allows pull_request, which lets nothing in"),
    ("L4:\n  - o/r: ann\n", 2, "o/r is at L4 and names no jobs"),
    ("L4:\n  - o/r: {oncalls: [a], jobs: [b], visibility: hidden}\n", 2, "o/r is at L4 and hidden"),
]


@pytest.mark.parametrize(("text", "line", "message"), WARNINGS)
def test_a_warning_is_reported_and_the_allowlist_stays_valid(text: str, line: int, message: str) -> None:
    checked = read_allowlist(text)
    assert checked.allowlist is not None
    assert problem_lines(checked, "warning") == [(line, message)]


@pytest.mark.parametrize("text", ["", "\n\n", "# only\n# comments\n", "---\n", "~\n", "{}\n"])
def test_a_file_without_levels_is_an_error_that_explains_how_to_stop_dispatching(text: str) -> None:
    checked = read_allowlist(text)
    [problem] = checked.problems
    assert (checked.allowlist, problem.line, problem.severity) == (None, 1, "error")
    assert "no level" in problem.message
    assert problem.hint is not None
    assert "`crcr pause`" in problem.hint
    assert "`L1: []`" in problem.hint


NOT_UTF_8 = [
    (b"L1:\n  - org/\xff\xfe\n", 2, "byte 0xff at column 9", "save the file as UTF-8"),
    ("L1:\n  # für\n  - org/b".encode() + b"\xe4", 3, "byte 0xe4 at column 10", "save the file as UTF-8"),
    ("L1: # für ".encode() + b"caf\xe9\n", 1, "byte 0xe9 at column 14", "save the file as UTF-8"),
    ("L1:\n".encode("utf-16"), 1, "byte 0xff at column 1", "the file is UTF-16: save it as UTF-8"),
    (b"L1:\n  - org/a # \xe2\x82", 2, "byte 0xe2 at column 13", "save the file as UTF-8"),
]


@pytest.mark.parametrize(("data", "line", "place", "hint"), NOT_UTF_8)
def test_text_that_is_not_utf_8_is_refused_with_line_and_column(
    data: bytes, line: int, place: str, hint: str
) -> None:
    assert decode_text(data) == AllowlistProblem(line, "error", f"not UTF-8 text: {place}", hint)


def test_fault_50_a_bad_file_reports_all_its_problems_in_order_and_yields_no_allowlist() -> None:
    text = "L9: []\nL1:\n  - good/one\n  - bad\nL2:\n  - o/r: {events: [x, y], authors: z}\nL4:\n  - p/q\n"
    checked = read_allowlist(text)
    assert checked.allowlist is None
    assert [line for line, _ in problem_lines(checked, "error")] == [1, 4, 6, 6, 6, 8]


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("L2:\n  - o/r: {events: [nightyl]}\n", "did you mean nightly?"),
        ("L2:\n  - o/r: {evnets: [nightly]}\n", "did you mean events?"),
        (
            "L2:\n  - o/r:\n    drafts: no\n",
            "indent it below the repository's name",
        ),
        ("L2:\n  - o/r:\n    o/s:\n", "begin a new list item with a dash"),
        ("L1: [o/r]\nL2: [O/R]\n", "o/r and O/R are one repository: GitHub ignores case"),
        ("l2: [o/r]\n", "did you mean L2?"),
        ("L1: [npu]\n", "write owner/name; devices group entries under L3 only"),
        ("L1: [yes]\n", "put it in quotes"),
    ],
)
def test_a_problem_has_a_hint_how_to_fix_it(text: str, hint: str) -> None:
    assert hint in [problem.hint for problem in read_allowlist(text).problems]


def test_long_hostile_names_are_shortened_in_messages() -> None:
    name = ScalarNode(2, "<b>\\" * 100_000)
    nodes = (
        (ScalarNode(1, "L1"), SequenceNode(1, (name,))),
        (name, SequenceNode(2, ())),
    )
    messages = {problem.message for problem in check_allowlist(MappingNode(1, nodes)).problems}
    shown = "'" + r"<b>\\" * 11 + "<b>\\…"
    assert messages == {f"{shown} is not a repository's name", f"unknown level {shown}"}


def test_l4_entries_without_literal_jobs_get_a_warning_unless_actions_is_known_readable() -> None:
    entries = (
        "  - o/literal: {oncalls: [a], jobs: [build]}\n  - o/glob: {oncalls: [a], jobs: ['t*']}\n"
        "  - o/readable: {oncalls: [a], jobs: ['t*']}\n  - o/unknown: {oncalls: [a]}\n"
    )
    allowlist = read_allowlist(f"L4:\n{entries}").allowlist
    assert allowlist is not None
    known = {"o/glob": False, "o/readable": True, "o/literal": False}
    warnings = list(check_actions(allowlist, lambda name: known.get(name.full_name)))
    assert [(warning.line, warning.severity) for warning in warnings] == [(3, "warning"), (5, "warning")]
    assert [warning.hint for warning in warnings] == [
        "name its `jobs` literally, or grant Actions: read",
        "`crcr doctor --relay URL --repo o/unknown` has it looked at; or name its `jobs` literally",
    ]


def test_a_channel_that_the_relay_does_not_have_is_a_warning() -> None:
    checked = read_allowlist("L2:\n  - o/r: {channels: [team-chat, teamchat]}\n")
    assert checked.allowlist is not None
    [warning] = check_channels(checked.allowlist, ["team-chat"])
    assert (warning.severity, warning.line, warning.hint) == ("warning", 2, "did you mean team-chat?")
    assert warning.message == "o/r names the channel 'teamchat', which the relay does not have"
