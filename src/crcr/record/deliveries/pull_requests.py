"""Pull requests in their table."""

import json

from sqlalchemy import bindparam, select, text

from crcr.decide.model import KnownPull, RepoName
from crcr.record.schema.core import pulls
from crcr.record.store.database import Tx
from crcr.record.store.statement import Statement, inserting
from crcr.record.store.times import from_us, from_us_or_none, to_us

_COLUMNS = (
    *("upstream", "number", "head_sha", "previous_sha", "head_at", "updated_at"),
    *("is_open", "draft", "labels", "base_ref", "base_at", "title", "author", "author_association", "merged"),
)
_LOAD = Statement(
    select(pulls).where(pulls.c.upstream == bindparam("upstream"), pulls.c.number == bindparam("number"))
)
_OTHER_HEADS = Statement(
    text(
        "SELECT DISTINCT head_sha FROM deliveries WHERE upstream = :upstream AND number = :number"
        " AND head_sha <> :head_sha AND substr(head_sha, 1, 7) = substr(:head_sha, 1, 7)"
    )
)
_INSERT = inserting(pulls, *_COLUMNS)
_SAVE = Statement(
    _INSERT.on_conflict_do_update(
        index_elements=["upstream", "number"], set_={name: _INSERT.excluded[name] for name in _COLUMNS[2:]}
    )
)


async def load_pull(tx: Tx, upstream: RepoName, number: int) -> KnownPull | None:
    row = await tx.one(_LOAD, upstream=upstream.key, number=number)
    if row is None:
        return None
    return KnownPull(
        number=row["number"],
        head_sha=row["head_sha"],
        previous_sha=row["previous_sha"],
        head_at=from_us_or_none(row["head_at"]),
        updated_at=from_us(row["updated_at"]),
        is_open=bool(row["is_open"]),
        draft=bool(row["draft"]),
        labels=tuple(json.loads(row["labels"])),
        base_ref=row["base_ref"],
        title=row["title"],
        author=row["author"],
        author_association=row["author_association"],
        merged=bool(row["merged"]),
        base_at=from_us_or_none(row["base_at"]),
    )


async def save_pull(tx: Tx, upstream: RepoName, pull: KnownPull) -> None:
    await tx.run(
        _SAVE,
        upstream=upstream.key,
        number=pull.number,
        head_sha=pull.head_sha,
        previous_sha=pull.previous_sha,
        head_at=to_us(pull.head_at) if pull.head_at else None,
        updated_at=to_us(pull.updated_at),
        is_open=int(pull.is_open),
        draft=int(pull.draft),
        labels=json.dumps(pull.labels),
        base_ref=pull.base_ref,
        title=pull.title,
        author=pull.author,
        author_association=pull.author_association,
        merged=int(pull.merged),
        base_at=to_us(pull.base_at) if pull.base_at else None,
    )


async def load_twin_heads(tx: Tx, upstream: RepoName, pull: KnownPull) -> tuple[str, ...]:
    """Other heads of the pull request whose first seven digits are those of its present one."""
    rows = await tx.all(_OTHER_HEADS, upstream=upstream.key, number=pull.number, head_sha=pull.head_sha)
    return tuple(row["head_sha"] for row in rows)
