"""The audit log for pages: every act by hand and every alarm, newest or oldest first.

Everybody but administrators sees only acts that name no repository but the upstream and public backends; what
looks like the name of another one hides the whole act. Who tried to sign in, and what operators gave as their
reason, is for administrators too.
"""

import json
import re
from collections.abc import Callable
from typing import Any

from sqlalchemy import text

from crcr.decide.views.logs import AuditPage, AuditQuery, AuditView
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us
from crcr.record.views.paging import Key, bad_cursor, read_matching
from crcr.record.views.relay.state import newest_change
from crcr.record.views.visibility import VisibleBackends

_NEWEST: Key = (2**62, 2**62)
_OLDEST: Key = (-1, -1)
_ACT = "SELECT audit_id, at, who, act, subject, detail FROM audit WHERE upstream = :upstream"

_DOWN = Statement(
    text(
        f"{_ACT} AND at <= :at AND (at < :at OR audit_id < :id) ORDER BY at DESC, audit_id DESC LIMIT :limit"
    )
)
_UP = Statement(
    text(f"{_ACT} AND at >= :at AND (at > :at OR audit_id > :id) ORDER BY at, audit_id LIMIT :limit")
)

# The address of a repository, or of an issue and the like in it; what stands behind is read on its own.
_ADDRESS = re.compile(
    r"https?://[^/\s]+/([\w.-]+/[\w.-]+)(?:/(?:issues|pull|commit|discussions|actions/runs)/\w+)?(?:[#?][\w=&.-]*)?"
)
# From where a word begins only, or a long word without a slash would be tried from each of its letters.
_NAME = re.compile(r"(?<![A-Za-z0-9_.-])[A-Za-z0-9_.-]++/[A-Za-z0-9_.-]++")
_CHECK = "crcr/"
_SIGN_IN = "sign_"
_LOOKED_THROUGH = 4_000
"""Acts are read whole, to see whom they name."""
_FOR_ADMINS = frozenset({"ids"})
"""Details that say nothing to anybody else: the numbers of effects."""
_BY_OPERATORS = frozenset({"pause", "unpause", "suspend", "resume"})
"""Acts whose `reason` is a note among operators; that of a waiver was given in public."""


async def audit_page(tx: Tx, query: AuditQuery, visible: VisibleBackends, *, everything: bool) -> AuditPage:
    statement, start = (_UP, _OLDEST) if query.oldest_first else (_DOWN, _NEWEST)

    async def read(after: Key, limit: int) -> list[Row]:
        at, last = after
        return await tx.all(statement, upstream=query.upstream.key, at=at, id=last, limit=limit)

    keep = _keeper(query, visible, everything=everything)
    rows, more = await read_matching(
        read, _place(query.after or start), query.limit, key_of=_key, keep=keep, most=_LOOKED_THROUGH
    )
    return AuditPage(
        tuple(_view(row, everything=everything) for row in rows), more, cursor=await newest_change(tx)
    )


def _keeper(query: AuditQuery, visible: VisibleBackends, *, everything: bool) -> Callable[[Row], bool]:
    who, act = (query.who or "").casefold(), _spaced(query.act or "")
    public = frozenset(visible.public) | {query.upstream.key}

    def keep(row: Row) -> bool:
        return (
            who in row["who"].casefold()
            and act in _spaced(row["act"])
            and (everything or _is_public(row, public))
        )

    return keep


def _spaced(act: str) -> str:
    """As the pages write it, after a space: where a word begins. So `pause` does not find `unpause`."""
    return f" {act.casefold().replace('_', ' ')}" if act else ""


def _is_public(row: Row, public: frozenset[str]) -> bool:
    if row["act"].startswith(_SIGN_IN):
        return False
    texts = (row["who"], _subject(row), *_texts(_detail(row, everything=False)))
    return all(name in public for written in texts for name in _named(written))


def _subject(row: Row) -> str:
    """Of a check's name only the backend: the rest is that backend's own words."""
    if row["act"] != "rerun" or not row["subject"].startswith(_CHECK):
        return str(row["subject"])
    parts = row["subject"].removeprefix(_CHECK).split("/")
    return "/".join(parts[:2]) if len(parts) > 1 else ""


def _named(written: str) -> list[str]:
    """All that may be names of repositories, in lower case."""
    plain = _ADDRESS.sub(lambda found: f" {found[1].removesuffix('.git')} ", written)
    return [found.strip(".").lower() for found in _NAME.findall(plain)]


def _texts(value: Any) -> list[str]:
    match value:
        case str():
            return [value]
        case dict():
            return [text for key, inner in value.items() for text in (key, *_texts(inner))]
        case list():
            return [text for inner in value for text in _texts(inner)]
    return []


def _place(after: Key) -> Key:
    match after:
        case (int(at), int(audit_id)):
            return at, audit_id
    raise bad_cursor()


def _key(row: Row) -> Key:
    return row["at"], row["audit_id"]


def _detail(row: Row, *, everything: bool) -> dict[str, Any]:
    detail: dict[str, Any] = json.loads(row["detail"])
    if everything:
        return detail
    kept_back = _FOR_ADMINS | {"reason"} if row["act"] in _BY_OPERATORS else _FOR_ADMINS
    return {key: value for key, value in detail.items() if key not in kept_back}


def _view(row: Row, *, everything: bool) -> AuditView:
    told = _detail(row, everything=everything)
    return AuditView(
        audit_id=row["audit_id"],
        at=from_us(row["at"]),
        who=row["who"],
        act=row["act"],
        subject=row["subject"],
        detail={key: _written(value) for key, value in told.items() if value is not None},
    )


def _written(value: Any) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case list():
            return ", ".join(map(_written, value))
        case str():
            return value
    return json.dumps(value)
