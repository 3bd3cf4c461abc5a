"""The deliveries of a pull request's head on its base, and the downstreams that were dispatched for it before.

A result belongs to a head on a base: the same commit merged elsewhere changes other files. A delivery without a
recorded base was written by a process of an earlier release while this one was started; its body names the base.
"""

import zlib

from sqlalchemy import text

from crcr.decide.dispatch.webhook_body import decompress_payload
from crcr.decide.model import KnownPull, RepoName
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement

TESTED = "(action IN ('opened', 'reopened', 'synchronize') OR relay_reason IS NOT NULL)"
"""Deliveries that backends test: those of a new head, and the first one that names a new base."""

_OF_HEAD = f"WHERE upstream = :upstream AND number = :number AND head_sha = :head_sha AND {TESTED}"
_NEWEST = Statement(
    text(
        f"SELECT guid, state, received_at FROM deliveries {_OF_HEAD}"  # noqa: S608  our own words
        # What is in doubt may have changed the base: until GitHub has answered, no earlier result counts.
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


async def newest_delivery(
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
