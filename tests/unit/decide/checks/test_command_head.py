"""The head that a command refers to, by the sha that it names or by GitHub's times."""

from datetime import UTC, datetime, timedelta

import pytest

from crcr.decide.commands.answers import KnownHead, refuse_head
from crcr.decide.commands.grammar import (
    ApproveCommand,
    Command,
    RetryCommand,
    StatusCommand,
    UnwaiveCommand,
    WaiveCommand,
)
from crcr.decide.model import RepoName

NPU = RepoName("org/npu")
PUSHED_AT = datetime(2026, 1, 1, 12, tzinfo=UTC)
SHA = "1a2b3c4d5e6f" + "0" * 28
TWIN = "1a2b3c4d" + "f" * 32
HEAD = KnownHead(sha=SHA, moved_at=PUSHED_AT)


def _refusal(command: Command, seconds: float, head: KnownHead = HEAD) -> str | None:
    return refuse_head(command, head, PUSHED_AT + timedelta(seconds=seconds))


HEAD_BOUND = (
    WaiveCommand(NPU, None, None, "x"),
    WaiveCommand(NPU, "a", timedelta(days=3), "x"),
    ApproveCommand(),
)


@pytest.mark.parametrize("command", HEAD_BOUND)
@pytest.mark.parametrize(
    ("seconds", "accepted"), [(-60, False), (0, False), (59, False), (60, True), (9_999, True)]
)
def test_a_command_without_a_sha_is_accepted_from_a_minute_after_the_push(
    command: Command, seconds: float, accepted: bool
) -> None:
    assert (_refusal(command, seconds) is None) == accepted


@pytest.mark.parametrize("command", [UnwaiveCommand(NPU, None), RetryCommand(None), StatusCommand()])
def test_commands_that_cannot_open_the_gate_need_not_name_the_head(command: Command) -> None:
    assert _refusal(command, -60) is None


@pytest.mark.parametrize("digits", [7, 12, 40])
@pytest.mark.parametrize("seconds", [-60, 0, 9_999])
def test_a_command_is_accepted_at_once_with_the_head_sha_and_never_with_another_sha(
    digits: int, seconds: float
) -> None:
    for named, accepted in ((SHA[:digits], True), (("f" * 40)[:digits], False)):
        for command in (
            WaiveCommand(NPU, None, None, "x", named),
            RetryCommand(NPU, named),
            ApproveCommand(named),
        ):
            assert (_refusal(command, seconds) is None) == accepted


@pytest.mark.parametrize(("seconds", "accepted"), [(-60, False), (0, False), (59, False), (60, True)])
def test_a_command_with_the_head_sha_is_accepted_from_a_minute_after_a_change_of_base(
    seconds: float, accepted: bool
) -> None:
    head = KnownHead(sha=SHA, moved_at=PUSHED_AT, base_ref="main", base_at=PUSHED_AT)
    for command in (WaiveCommand(NPU, None, None, "x", SHA[:12]), ApproveCommand(SHA[:12]), ApproveCommand()):
        refusal = _refusal(command, seconds, head)
        assert (refusal is None) == accepted
        assert accepted or "the base of this pull request" in str(refusal)
    assert _refusal(RetryCommand(NPU, SHA[:12]), seconds, head) is None


def test_a_sha_prefix_shared_with_an_earlier_head_is_refused_as_ambiguous() -> None:
    head = KnownHead(sha=SHA, moved_at=PUSHED_AT, earlier=(TWIN, SHA))
    assert "more than one head" in (_refusal(ApproveCommand("1a2b3c4d"), 9_999, head) or "")
    assert _refusal(ApproveCommand("1a2b3c4d5"), 9_999, head) is None
    close = KnownHead(sha=SHA, moved_at=PUSHED_AT, earlier=(SHA[:20] + "f" * 20,))
    assert f"`/crcr approve at {SHA}`" in (_refusal(ApproveCommand(SHA[:12]), 0, close) or "")


@pytest.mark.parametrize(
    ("command", "suggestion"),
    [
        (ApproveCommand(), f"`/crcr approve at {SHA[:12]}`"),
        (ApproveCommand("f" * 7), f"`/crcr approve at {SHA[:12]}`"),
        (RetryCommand(NPU, "f" * 7), f"`/crcr retry org/npu at {SHA[:12]}`"),
        (
            WaiveCommand(NPU, "a", timedelta(days=3), "y" * 500),
            f"`/crcr waive org/npu:a until 3d at {SHA[:12]} because {'y' * 500}`",
        ),
    ],
)
def test_a_refusal_contains_the_complete_command_to_paste(command: Command, suggestion: str) -> None:
    assert suggestion in (_refusal(command, 1) or "")
