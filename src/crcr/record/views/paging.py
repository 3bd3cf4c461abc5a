"""Walking a long list along its index while keeping only some of it: bounded, and resumed where it stopped.

What is rare, or hidden, would otherwise be looked for through years of rows. After `LOOKED_THROUGH` rows a page
ends early, with the place to go on from. That place may be a row that was not kept: a list whose keys hold more
than times and numbers must not read what its reader may not see.
"""

from collections.abc import Awaitable, Callable

from crcr.errors import BadRequest
from crcr.record.store.database import Row

Key = tuple[str | int, ...]
Read = Callable[[Key, int], Awaitable[list[Row]]]
"""Rows behind a key, at most so many, in the list's order."""

LOOKED_THROUGH = 10_000
_STEP = 1_000


async def read_matching(
    read: Read,
    start: Key,
    limit: int,
    *,
    key_of: Callable[[Row], Key],
    keep: Callable[[Row], bool],
    most: int = LOOKED_THROUGH,
) -> tuple[list[Row], Key | None]:
    """Return up to `limit` rows that are kept, and from where to go on if there is, or may be, more."""
    kept: list[Row] = []
    at, looked, step = start, 0, limit + 1
    while True:
        rows = await read(at, step)
        for row in rows:
            if keep(row):
                if len(kept) == limit:
                    return kept, key_of(kept[-1]) if kept else start
                kept.append(row)
            at = key_of(row)
        looked += len(rows)
        if len(rows) < step:
            return kept, None
        if looked >= most:
            return kept, at
        step = min(_STEP, most)


def bad_cursor() -> BadRequest:
    return BadRequest("the cursor is not one of ours", hint="pass on `next` of the page before, unchanged")
