"""Fault 57: one comment of backticks, which anybody on GitHub can write, blocks the event loop for 28 seconds."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from support.github.commands import reaction_names, relay_comments
from support.github.gated_upstream import (
    gate_state,
    gated_upstream,
    open_pull,
    run_all,
    write_comment,
)
from support.running_relay import RunningRelay

SIZES = (8_000, 64_000)
"""Characters; GitHub takes 65,536 in a comment."""
MOST_LINES = 200_000
"""Lines of Python to process the largest comment; a quadratic scan over all backticks takes many millions."""
SHAPES = {
    "lines of code": "`a`\n",
    "runs of many lengths": "` `` ``` ```` ````` ",
    "lines of open code": f"{'`a ' * 13}\n",
    "comments and tags": "<!-- --><pre></pre>",
}


@contextmanager
def count_executed_lines() -> Iterator[list[int]]:
    """Count the executed lines of Python; the number is the same on any machine."""
    count = [0]

    def trace(_: FrameType, event: str, __: Any) -> Any:
        count[0] += event == "line"
        if count[0] > 10 * MOST_LINES:
            raise AssertionError("far more steps than a comment may cost")
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield count
    finally:
        sys.settrace(before)


async def _count_lines(relay: RunningRelay, pull: Any, body: str) -> int:
    """Lines executed for the webhook of a comment and all its effects."""
    with count_executed_lines() as count:
        await write_comment(relay, pull, body, author="stranger")
    return count[0]


async def test_fault_57_the_cost_of_a_comment_of_backticks_is_linear_in_its_length(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        await _count_lines(relay, pull, "the first of all\n/crcr status")
        for shape, piece in SHAPES.items():
            small, large = (f"{piece * (size // len(piece))}\n/crcr status" for size in SIZES)
            costs = [await _count_lines(relay, pull, body) for body in (small, large)]

            assert costs[1] < MOST_LINES, shape
            assert costs[1] - costs[0] < 2 * len(large), shape


async def test_fault_57_a_command_after_many_backticks_is_obeyed_and_one_inside_code_is_not(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        await run_all(relay, build="failure")
        code = "`a` ``b`` " * 4 + "\n"
        inside_code = await write_comment(relay, pull, f"`\n{code * 500}/crcr approve\n`")
        after_code = await write_comment(relay, pull, f"{code * 500}\n\n/crcr status")

        assert (reaction_names(inside_code), reaction_names(after_code)) == ([], ["+1"])
        assert len(relay_comments(relay, pull)) == 1
        assert gate_state(relay, pull) == "failure"
