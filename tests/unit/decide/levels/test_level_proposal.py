"""The proposal of levels: entries move in the file's text, and everything else stays as it is."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crcr.decide.levels.criteria import CriterionName, Met
from crcr.decide.levels.proposal import LevelProposal, ProposedMove, move_entry, propose_levels
from crcr.decide.levels.standings import BackendLevel, CriterionView, LevelStanding
from crcr.decide.model import Level, RepoName
from crcr.receive.allowlist_yaml import read_allowlist

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def backend(name: str, level: Level, standing: LevelStanding) -> BackendLevel:
    criterion = CriterionView(
        name=CriterionName.PASS_RATE,
        title="jobs passed",
        target="≥ 90%",
        measured="96% of 400 jobs" if standing.in_order else "70% of 400 jobs",
        value=96.0,
        met=Met.MET if standing.in_order else Met.NOT_MET,
        met_since=NOW,
        leaves="< 85%",
        leave_measured="70% of 200 jobs",
        broken=not standing.in_order,
    )
    return BackendLevel(name=RepoName(name), level=level, standing=standing, criteria=(criterion,))


def propose(text: str, *backends: BackendLevel, **devices: str) -> LevelProposal:
    proposal = propose_levels(
        text,
        backends,
        lambda content: read_allowlist(content).allowlist,
        devices={f"org/{name}": device for name, device in devices.items()},
    )
    assert proposal is not None
    return proposal


PROMOTED = ("org/a", Level.L2, LevelStanding.HOLDS)
DEMOTED = ("org/a", Level.L3, LevelStanding.FAILS)
ALARMED = ("org/a", Level.L4, LevelStanding.RECOVERING)
CASES = {
    "a name in a list": (
        "# top\nL2:\n  - org/b  # stays\n  # about a\n  - org/a  # the note\n\n# below\nL3:\n  npu:\n    org/c: [ada]\n",
        PROMOTED,
        "# top\nL2:\n  - org/b  # stays\n\n# below\nL3:\n  npu:\n    org/c: [ada]\n    # about a\n    org/a: {}  # the note\n",
    ),
    "a mapping over several lines": (
        "L2:\n  - org/a:\n      oncalls: [ada]\n      # slow machines\n      job_timeout: 2h\n  - org/b\n",
        PROMOTED,
        "L2:\n  - org/b\nL3:\n  npu:\n    org/a:\n      oncalls: [ada]\n      # slow machines\n      job_timeout: 2h\n",
    ),
    "a level that does not exist yet, before L4": (
        "L2:\n- org/a: {oncalls: [ada]}\nL4:\n- org/d: {oncalls: [ada], jobs: [t]}\n",
        PROMOTED,
        "L2:\nL3:\n  npu:\n    org/a: {oncalls: [ada]}\nL4:\n- org/d: {oncalls: [ada], jobs: [t]}\n",
    ),
    "out of a device, which then is empty": (
        "L2:\n  - org/b\nL3:\n  npu:\n    org/a: [ada]\n  xpu:\n    org/c: [bob]\n",
        DEMOTED,
        "L2:\n  - org/b\n  - org/a: [ada]\nL3:\n  xpu:\n    org/c: [bob]\n",
    ),
    "from L4 into the device of another": (
        "L3:\n  NPU:   # label\n    - org/c: [bob]\nL4:\n  org/a: {oncalls: [ada], jobs: [t]}\n  org/d: {oncalls: [ada], jobs: [t]}\n",
        ALARMED,
        "L3:\n  NPU:   # label\n    - org/c: [bob]\n    - org/a: {oncalls: [ada], jobs: [t]}\nL4:\n  org/d: {oncalls: [ada], jobs: [t]}\n",
    ),
    "a file with Windows line ends and no last line end": (
        "L2:\r\n  - org/a\r\n  - org/b",
        PROMOTED,
        "L2:\r\n  - org/b\r\nL3:\r\n  npu:\r\n    org/a: {}",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_an_entry_moves_and_every_other_line_stays_unchanged(case: str) -> None:
    before, standing, after = CASES[case]
    proposal = propose(before, backend(*standing), a="NPU" if standing is ALARMED else "npu")
    assert proposal.text == after
    assert proposal.moves[0].edited


@pytest.mark.parametrize(
    "text",
    [
        "L2: [org/a, org/b]\n",
        "{L2: [org/a]}\n",
        "L2: &both\n  - org/a\n  - org/b\nL3: {npu: {org/c: [ada]}}\n",
        "L2:\n  - ? org/a\n    : {oncalls: [ada]}\nL3: {}\n",
    ],
)
def test_an_unsupported_form_is_left_to_be_edited_by_hand(text: str) -> None:
    proposal = propose(text, backend(*PROMOTED), a="npu")
    assert (proposal.text, proposal.diff) == (text, "")
    assert not proposal.moves[0].edited
    assert "by hand" in proposal.body


def test_the_pull_request_lists_the_evidence_and_equal_moves_share_a_branch_name() -> None:
    text = "L2:\n  - org/a\n  - org/b\nL3:\n  npu:\n    org/c: [ada]\n"
    both = (backend(*PROMOTED), backend("org/c", Level.L3, LevelStanding.FAILS))
    proposal, reordered = propose(text, *both), propose(text, *reversed(both))
    assert proposal.title == "Levels by evidence: 2 backends move"
    assert "### org/a: L2 → L3" in proposal.body
    assert "jobs passed ≥ 90%: 96% of 400 jobs, met since 2026-03-01" in proposal.body
    assert "jobs passed < 85%: 70% of 200 jobs" in proposal.body
    assert "-    org/c: [ada]" in proposal.diff
    assert proposal.branch == reordered.branch != propose(text, both[0]).branch
    staying = backend("org/b", Level.L2, LevelStanding.FAILS)
    assert propose_levels(text, [staying], lambda content: read_allowlist(content).allowlist) is None


def test_the_branch_name_changes_only_with_the_text_a_device_or_the_time_of_a_level() -> None:
    text = "L2:\n  - org/a\n  - org/b\n"
    one, two = (replace(backend(name, *PROMOTED[1:]), level_since=NOW) for name in ("org/a", "org/b"))
    proposal = propose(text, one, two, a="npu", b="npu")
    later = replace(one, criteria=(replace(one.criteria[0], measured="97% of 410 jobs"),))
    assert propose(text, two, later, a="npu", b="npu").branch == proposal.branch
    others = (
        propose(text, one, two, a="npu", b="gpu"),
        propose(f"# new\n{text}", one, two, a="npu", b="npu"),
        propose(text, one, replace(two, level_since=NOW.replace(year=2027)), a="npu", b="npu"),
    )
    assert len({proposal.branch, *(other.branch for other in others)}) == 4


@pytest.mark.parametrize("visibility", ["hidden", "name"])
def test_figures_that_are_not_public_are_left_out_of_the_pull_request(visibility: str) -> None:
    proposal = propose(f"L2:\n  - org/a: {{visibility: {visibility}}}\n  - org/b\n", backend(*PROMOTED))
    assert "96%" not in proposal.body
    assert "its figures are not public" in proposal.body
    assert "96%" in proposal.moves[0].evidence[0]  # for the operator's terminal


def test_a_file_with_many_entries_is_edited_in_linear_time() -> None:
    devices = "".join(f"  d{number}:\n    org/n{number}: [ada]\n" for number in range(8_000))
    text = f"L2:\n  - org/a\nL3:\n{devices}"
    allowlist = read_allowlist(text).allowlist
    assert allowlist is not None
    entry = allowlist.find(RepoName("org/a"))
    assert entry is not None
    move = ProposedMove(backend=entry.name, before=Level.L2, after=Level.L3, device="d7999")
    edited = move_entry(text, entry, move)
    assert edited is not None
    assert edited.endswith("    org/n7999: [ada]\n    org/a: {}\n")


@given(st.text(alphabet="L23:- orga/b{}[]#\n\"'&*", max_size=80))
def test_no_text_makes_the_edit_fail_or_change_another_entry(text: str) -> None:
    text = f"L2:\n  - org/a\n{text}"
    before = read_allowlist(text).allowlist
    proposal = propose_levels(
        text,
        [backend(*PROMOTED)],
        lambda content: read_allowlist(content).allowlist,
        devices={"org/a": "npu"},
    )
    assert proposal is not None
    after = read_allowlist(proposal.text).allowlist
    if before is None or before.find(RepoName("org/a")) is None:
        assert proposal.text == text
    else:
        assert after is not None
        assert {entry.name: entry for entry in after.entries if entry.name.key != "org/a"} == {
            entry.name: entry for entry in before.entries if entry.name.key != "org/a"
        }
