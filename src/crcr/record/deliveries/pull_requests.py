"""The table of pull requests, the approvals of their heads, and the deliveries of a head on its base.

A result belongs to a head on a base: the same commit merged elsewhere changes other files. A delivery without a recorded
base was written by a process of an earlier release; its body names the base. Of one head the newest approval counts: after
another base was approved, the earlier base must be approved again.
"""

import json
import zlib
from datetime import datetime

from sqlalchemy import bindparam, select, text

from crcr.decide.dispatch.webhook_body import decompress_payload
from crcr.decide.github.requests_and_answers import ChangedFiles
from crcr.decide.model import KnownPull, RepoName
from crcr.record.schema.checks import approvals
from crcr.record.schema.main_tables import pulls
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement, inserting
from crcr.record.store.times import from_us, from_us_or_none, to_us

_COLUMNS = (
    *("upstream", "number", "head_sha", "previous_sha", "head_at", "updated_at"),
    *("is_open", "draft", "labels", "base_ref", "base_at", "title", "author", "author_association", "merged"),
    *("base_sha", "merge_base", "merge_commit_sha", "opened_at", "downstream_note", "downstream_note_at"),
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
        base_sha=row["base_sha"],
        merge_base=row["merge_base"],
        merge_commit_sha=row["merge_commit_sha"],
        opened_at=from_us_or_none(row["opened_at"]),
        downstream_note=row["downstream_note"],
        downstream_note_at=from_us_or_none(row["downstream_note_at"]),
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
        base_sha=pull.base_sha,
        merge_base=pull.merge_base,
        merge_commit_sha=pull.merge_commit_sha,
        opened_at=to_us(pull.opened_at) if pull.opened_at else None,
        downstream_note=pull.downstream_note,
        downstream_note_at=to_us(pull.downstream_note_at) if pull.downstream_note_at else None,
    )


# The failures of the head that came before GitHub's answer follow it.
_MERGE_BASE = (
    Statement(
        text(
            "UPDATE pulls SET merge_base = :merge_base, stacked_on = :stacked_on"
            " WHERE upstream = :upstream AND (number, head_sha, base_ref) ="
            " (SELECT v.number, v.head_sha, v.base_ref FROM deliveries v WHERE v.guid = :delivery AND v.upstream = :upstream)"
        )
    ),
    Statement(
        text(
            "UPDATE failures SET built_on = :merge_base, built_on_exact = 1 WHERE delivery = :delivery"
            " AND upstream = :upstream AND built_on_exact = 0"
        )
    ),
)


_HEAD_OF = Statement(
    text(
        "SELECT p.number FROM pulls p WHERE p.head_sha = :sha AND p.upstream || '' = :upstream AND p.is_open = 1"
        " AND p.number <> (SELECT v.number FROM deliveries v WHERE v.guid = :delivery AND v.upstream = :upstream)"
    )
)
_MOST_COMMITS = 100


async def note_merge_base(tx: Tx, upstream: RepoName, delivery: str, files: ChangedFiles) -> bool:
    """Record the base branch's commit that the delivery's head was built on, and the pull requests that it contains.

    Return whether failures were recorded before it was known. One of the head's own commits that is the head of
    another pull request makes this one stacked on that.
    """
    if files.merge_base is None:
        return False
    key = {"upstream": upstream.key, "delivery": delivery}
    rows = [row for sha in files.commits[-_MOST_COMMITS:] for row in await tx.all(_HEAD_OF, sha=sha, **key)]
    stacked_on = json.dumps(sorted({row["number"] for row in rows}))
    await tx.run(_MERGE_BASE[0], merge_base=files.merge_base, stacked_on=stacked_on, **key)
    return bool(await tx.run(_MERGE_BASE[1], merge_base=files.merge_base, **key))


async def load_twin_heads(tx: Tx, upstream: RepoName, pull: KnownPull) -> tuple[str, ...]:
    """Earlier heads of the pull request with the same first seven digits as its present one."""
    rows = await tx.all(_OTHER_HEADS, upstream=upstream.key, number=pull.number, head_sha=pull.head_sha)
    return tuple(row["head_sha"] for row in rows)


_INSERT_APPROVAL = inserting(approvals, "head_sha", "upstream", "number", "who", "at", "base_ref")
_APPROVE = Statement(
    _INSERT_APPROVAL.on_conflict_do_update(
        index_elements=["head_sha", "upstream", "number"],
        set_={name: _INSERT_APPROVAL.excluded[name] for name in ("who", "at", "base_ref")},
    )
)
_IS_APPROVED = Statement(
    select(approvals.c.who).where(
        approvals.c.head_sha == bindparam("head_sha"),
        approvals.c.upstream == bindparam("upstream"),
        approvals.c.number == bindparam("number"),
        approvals.c.base_ref == bindparam("base_ref"),
    )
)


async def approve(tx: Tx, upstream: RepoName, pull: KnownPull, *, who: str, now: datetime) -> None:
    """Record that a person with write access allowed downstreams to run the pull request's head on its base."""
    where = {"head_sha": pull.head_sha, "base_ref": pull.base_ref, "number": pull.number}
    await tx.run(_APPROVE, upstream=upstream.key, who=who, at=to_us(now), **where)


async def is_approved(
    tx: Tx, upstream: RepoName, number: int, *, head_sha: str, base_ref: str | None
) -> bool:
    where = {"head_sha": head_sha, "base_ref": base_ref, "number": number}
    return await tx.one(_IS_APPROVED, upstream=upstream.key, **where) is not None


TESTED = "(action IN ('opened', 'reopened', 'synchronize') OR relay_reason IS NOT NULL)"
"""Deliveries that backends test: those of a new head, and the first one that names a new base."""

_OF_HEAD = f"WHERE upstream = :upstream AND number = :number AND head_sha = :head_sha AND {TESTED}"
_NEWEST = Statement(
    text(
        f"SELECT guid, state, received_at FROM deliveries {_OF_HEAD}"  # noqa: S608  our own words
        # A delivery in doubt may have changed the base: until GitHub has answered, no earlier result counts.
        " AND ((state = 'accepted' AND base_ref = :base_ref) OR state = 'in_doubt')"
        " ORDER BY received_at DESC, guid DESC LIMIT 1"
    )
)
_WITHOUT_BASE = Statement(
    text(
        f"SELECT guid, state, received_at, body FROM deliveries {_OF_HEAD}"  # noqa: S608  our own words
        " AND state = 'accepted' AND base_ref IS NULL ORDER BY received_at DESC, guid DESC LIMIT 10"
    )
)
_BASES = Statement(
    text(
        f"SELECT DISTINCT base_ref FROM deliveries {_OF_HEAD}"  # noqa: S608  our own words
        " AND state IN ('accepted', 'in_doubt')"
    )
)
_DISPATCHED = Statement(
    text(
        # From the pull request's few deliveries to their dispatches, never the other way round; and under every name that
        # the repository has had: a rename must not make a tested backend a new one.
        "SELECT DISTINCT coalesce(n.downstream, d.downstream) AS downstream FROM deliveries v CROSS JOIN dispatches d"
        " LEFT JOIN repositories n ON n.repository_id = d.repository_id AND n.upstream = d.upstream"
        " WHERE d.delivery = v.guid AND d.upstream = v.upstream AND v.upstream = :upstream AND v.number = :number"
        " AND v.head_sha = :head_sha AND v.base_ref = :base_ref AND v.event = 'pull_request' AND d.action <> 'closed'"
        " AND (d.sent_at IS NOT NULL OR d.attempted_at IS NOT NULL)"
    )
)


async def find_newest_delivery(
    tx: Tx, upstream: RepoName, number: int, *, head_sha: str, base_ref: str
) -> Row | None:
    """Find the delivery whose dispatches count for this head on this base."""
    key = {"upstream": upstream.key, "number": number, "head_sha": head_sha}
    newest = await tx.one(_NEWEST, base_ref=base_ref, **key)
    if newest is not None:
        return newest
    rows = await tx.all(_WITHOUT_BASE, **key)
    return next((row for row in rows if _base_in(row["body"]) == base_ref), None)


def _base_in(packed: bytes | None) -> str | None:
    """The base branch that a webhook's body names; None when the body is gone or names none."""
    try:
        base = decompress_payload(packed or b"")["pull_request"]["base"]["ref"]
    except (zlib.error, ValueError, KeyError, TypeError):
        return None
    return base if isinstance(base, str) else None


async def lacks_delivery_for_base(tx: Tx, upstream: RepoName, pull: KnownPull) -> bool:
    """Whether deliveries of the pull request's head are recorded, but none on its present base."""
    key = {"upstream": upstream.key, "number": pull.number}
    rows = await tx.all(_BASES, head_sha=pull.head_sha, **key)
    return bool(rows) and all(row["base_ref"] != pull.base_ref for row in rows)


async def dispatched_before(
    tx: Tx, upstream: RepoName, number: int, *, head_sha: str, base_ref: str
) -> frozenset[str]:
    """Keys of downstreams that a dispatch for this head on this base was sent to, or may have reached."""
    key = {"upstream": upstream.key, "number": number}
    rows = await tx.all(_DISPATCHED, head_sha=head_sha, base_ref=base_ref, **key)
    return frozenset(row["downstream"] for row in rows)
