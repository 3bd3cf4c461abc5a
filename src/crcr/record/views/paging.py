"""Filtered pages of a long list along its index: a bounded scan, with a cursor to continue.

A rare or hidden row would otherwise be searched for through years of rows. After `LOOKED_THROUGH` rows a page ends early,
with the cursor to continue from. The cursor may be the key of a row that was filtered out: a list whose keys hold more than
times and numbers must not read rows that its reader may not see.
"""

from collections.abc import Awaitable, Callable

from crcr.errors import BadRequest
from crcr.record.store.database import Row

Key = tuple[str | int, ...]
Read = Callable[[Key, int], Awaitable[list[Row]]]
"""Read rows after a key, at most so many, in the list's order."""

LOOKED_THROUGH = 10_000
_STEP = 1_000


async def read_matching(
    read: Read,
    start: Key,
    limit: int,
    *,
    make_key: Callable[[Row], Key],
    keep: Callable[[Row], bool],
    most: int = LOOKED_THROUGH,
) -> tuple[list[Row], Key | None]:
    """Return up to `limit` rows that pass the filter, and the cursor to continue from if there may be more."""
    kept: list[Row] = []
    at, looked, step = start, 0, limit + 1
    while True:
        rows = await read(at, step)
        for row in rows:
            if keep(row):
                if len(kept) == limit:
                    return kept, make_key(kept[-1]) if kept else start
                kept.append(row)
            at = make_key(row)
        looked += len(rows)
        if len(rows) < step:
            return kept, None
        if looked >= most:
            return kept, at
        step = min(_STEP, most)


def bad_cursor() -> BadRequest:
    return BadRequest("the cursor is not one of ours", hint="pass on `next` of the page before, unchanged")
