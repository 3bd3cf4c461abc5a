"""The origin of a commit, by its message."""

import pytest

from crcr.decide.culprits.commit_message import CommitOrigin, is_revert, named_pulls, read_origin

SHA = "9b1c2d3e4f5061728394a5b6c7d8e9f001122334"


@pytest.mark.parametrize(
    ("message", "number"),
    [
        ("Fuse it (#123)", 123),
        ("Fuse it (#123)  \n\nlong text (#99)", 123),
        ("Merge pull request #12 from ada/fuse\n\nFuse it (#3)", 12),
        ('Revert "Fuse it (#123)" (#456)', 456),
        ('Revert "Fuse it (#123)"', None),
        ("Fuse (#123) it", None),
        ("Fuse it #123", None),
        ("Fuse it (#0)", None),
        ("Fuse it (#12345678901)", None),
        ("", None),
        ("\n\n", None),
    ],
)
def test_the_merged_pull_request_is_read_from_the_message(message: str, number: int | None) -> None:
    assert read_origin(message).number == number


@pytest.mark.parametrize(
    ("message", "reverts"),
    [
        (f'Revert "Fuse it (#123)"\n\nThis reverts commit {SHA}.', SHA),
        (f'Revert "Fuse it"\n\nIt broke NPU.\n\nThis reverts commit {SHA}. Reverted by @ada', SHA),
        (f"This reverts commit {SHA}", None),
        ("Undo\n\nThis reverts commit 9b1c2d3.", None),
    ],
)
def test_the_reverted_commit_is_read_from_the_message(message: str, reverts: str | None) -> None:
    assert read_origin(message).reverts == reverts


def test_a_title_is_one_line_and_truncated() -> None:
    assert read_origin("Fuse it\r\n\r\nmore") == CommitOrigin("Fuse it")
    assert read_origin("x" * 5_000 + " (#12)") == CommitOrigin("x" * 200, 12)


def test_a_title_may_name_several_pull_requests() -> None:
    assert named_pulls('Reland "Fuse it (#12)" (#34)') == {12, 34}
    assert is_revert('Revert "Fuse it (#12)" (#34)')
    assert not is_revert('Reland "Fuse it (#12)"')
