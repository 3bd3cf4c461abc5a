"""The order of each branch's commits, what their push says about them, and the commits of version tags, written with each push."""

import json
from datetime import datetime

from sqlalchemy import text

from crcr.decide.events import PushedCommit, PushEvent
from crcr.decide.failures.history import Push, order_pushes
from crcr.decide.github.commit_origin import is_version_tag
from crcr.record.schema.failures import base_commits
from crcr.record.store.database import Tx
from crcr.record.store.statement import Statement, inserting
from crcr.record.store.times import to_us

_BRANCH, _TAG = "refs/heads/", "refs/tags/"
_LONGEST_REF = 1_000
"""In bytes: PostgreSQL's indexes hold no longer ones, and Git has no such branches."""
_MOST_COMMITS = 500
"""Of one push: the last ones. Its other commits have no position, as if their push had been missed."""
_MOST_PATHS = 50
_MOST_PATH_CHARACTERS = 4_000
"""Of one commit: its first files, as far as they fit."""
_MOST_ORDERED = 2_000
"""How many commits are put in order when a push arrives out of order."""
_NEWEST = Statement(
    text(
        "SELECT sha, position, EXISTS (SELECT 1 FROM base_commits p WHERE p.sha = :after AND p.upstream = :upstream"
        " AND p.ref = :ref) AS is_placed FROM base_commits WHERE upstream = :upstream AND ref = :ref"
        " ORDER BY position DESC LIMIT 1"
    )
)
_RECENT = Statement(
    text(
        "SELECT sha, position, before, pushed_at FROM base_commits WHERE upstream = :upstream AND ref = :ref"
        " ORDER BY position DESC LIMIT :most"
    )
)
_MOVE = Statement(
    text(
        "UPDATE base_commits SET position = :position WHERE sha = :sha AND upstream = :upstream AND ref = :ref"
    )
)
_PLACE = Statement(
    inserting(
        base_commits,
        *("sha", "upstream", "ref", "position", "before", "pushed_at"),
        *("title", "number", "reverts", "paths", "path_count"),
    ).on_conflict_do_nothing()
)
# A push that arrives late must not move a tag back.
_SET_TAG = Statement(
    text(
        "INSERT INTO upstream_tags (upstream, name, sha, object_sha, pushed_at) VALUES (:upstream, :name, :sha, :object_sha, :at)"
        " ON CONFLICT (upstream, name) DO UPDATE SET sha = excluded.sha, object_sha = excluded.object_sha,"
        " pushed_at = excluded.pushed_at WHERE excluded.pushed_at >= upstream_tags.pushed_at"
    )
)
_DROP_TAG = Statement(
    text("DELETE FROM upstream_tags WHERE upstream = :upstream AND name = :name AND pushed_at <= :at")
)


async def note_pushed_commits(tx: Tx, event: PushEvent, now: datetime) -> None:
    """Give the commits of a push to a branch their positions; a branch's commits keep their order whatever arrives when."""
    if event.ref.startswith(_TAG):
        await _note_tag(tx, event, event.pushed_at or now)
    if event.deleted or not event.ref.startswith(_BRANCH) or len(event.ref.encode()) > _LONGEST_REF:
        return
    branch = {"upstream": event.upstream.key, "ref": event.ref.removeprefix(_BRANCH)}
    newest = await tx.one(_NEWEST, after=event.after, **branch)
    if newest is not None and newest["is_placed"]:
        return
    described = {commit.sha: commit for commit in event.commits}
    shas = tuple(dict.fromkeys((*described, event.after)))[-_MOST_COMMITS:]
    first = (newest["position"] if newest else 0) + 1
    await tx.many(
        _PLACE,
        [
            {
                "sha": sha,
                "position": first + index,
                "before": event.before,
                "pushed_at": to_us(now),
                **branch,
                **_describe(described.get(sha)),
            }
            for index, sha in enumerate(shas)
        ],
    )
    if newest is not None and newest["sha"] != event.before:
        await _put_in_order(tx, branch)


async def _note_tag(tx: Tx, event: PushEvent, at: datetime) -> None:
    name = event.ref.removeprefix(_TAG)
    if not is_version_tag(name) or len(event.ref.encode()) > _LONGEST_REF:
        return
    tag = {"upstream": event.upstream.key, "name": name, "at": to_us(at)}
    if event.deleted:
        await tx.run(_DROP_TAG, **tag)
    else:
        await tx.run(_SET_TAG, sha=event.head_commit or event.after, object_sha=event.after, **tag)


def _describe(commit: PushedCommit | None) -> dict[str, object]:
    if commit is None:
        return dict.fromkeys(("title", "number", "reverts", "paths", "path_count"))
    return {
        "title": commit.title,
        "number": commit.number,
        "reverts": commit.reverts,
        "paths": json.dumps(_first_paths(commit.paths)),
        "path_count": len(commit.paths),
    }


def _first_paths(paths: tuple[str, ...]) -> list[str]:
    kept, characters = [], 0
    for path in paths[:_MOST_PATHS]:
        characters += len(path)
        if characters > _MOST_PATH_CHARACTERS:
            break
        kept.append(path)
    return kept


async def _put_in_order(tx: Tx, branch: dict[str, str]) -> None:
    """A push arrived before one that it follows, or after one that was missed: order the branch's newest commits again."""
    rows = list(reversed(await tx.all(_RECENT, most=_MOST_ORDERED, **branch)))
    commits: dict[str, list[str]] = {}
    arrived_at: dict[str, int] = {}
    for row in rows:
        commits.setdefault(row["before"], []).append(row["sha"])
        arrived_at.setdefault(row["before"], row["pushed_at"])
    arrived = sorted(commits, key=lambda before: arrived_at[before])
    pushes = order_pushes([Push(before, tuple(commits[before])) for before in arrived])
    ordered = [sha for push in pushes for sha in push.commits]
    positions = {row["sha"]: row["position"] for row in rows}
    moves = [
        {"sha": sha, "position": position, **branch}
        for sha, position in zip(ordered, sorted(positions.values()), strict=True)
        if positions[sha] != position
    ]
    await tx.many(_MOVE, moves)
