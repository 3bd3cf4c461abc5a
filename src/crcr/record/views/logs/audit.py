"""The audit log for pages: every administrative act and every alarm, newest or oldest first.

Readers who are not administrators see only acts that name no repository except the upstream and public backends; any text
that looks like another repository's name hides the whole act. Sign-ins, and the reasons that operators gave, are for
administrators only.
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

# The address of a repository, or of an issue and the like in it; the text behind it is searched separately.
_ADDRESS = re.compile(
    r"https?://[^/\s]+/([\w.-]+/[\w.-]+)(?:/(?:issues|pull|commit|discussions|actions/runs)/\w+)?(?:[#?][\w=&.-]*)?"
)
# Only at the start of a word: otherwise a long word without a slash would be tried from each of its letters.
_NAME = re.compile(r"(?<![A-Za-z0-9_.-])[A-Za-z0-9_.-]++/[A-Za-z0-9_.-]++")
_CHECK = "crcr/"
_SIGN_IN = "sign_"
_MOST_SEARCHED = 4_000
"""At most so many acts are read for one page: each is read whole, to find the names in it."""
_FOR_ADMINS = frozenset({"ids"})
"""Details for administrators only: the numbers of effects."""
_BY_OPERATORS = frozenset({"pause", "unpause", "suspend", "resume"})
"""Acts whose `reason` is a note among operators; that of a waiver was given in public."""


async def audit_page(tx: Tx, query: AuditQuery, visible: VisibleBackends, *, everything: bool) -> AuditPage:
    statement, start = (_UP, _OLDEST) if query.oldest_first else (_DOWN, _NEWEST)

    async def read(after: Key, limit: int) -> list[Row]:
        at, last = after
        return await tx.all(statement, upstream=query.upstream.key, at=at, id=last, limit=limit)

    keep = _make_filter(query, visible, everything=everything)
    rows, more = await read_matching(
        read, _cursor_start(query.after or start), query.limit, make_key=_key, keep=keep, most=_MOST_SEARCHED
    )
    return AuditPage(
        tuple(_view(row, everything=everything) for row in rows), more, cursor=await newest_change(tx)
    )


def _make_filter(query: AuditQuery, visible: VisibleBackends, *, everything: bool) -> Callable[[Row], bool]:
    actor, act = (query.who or "").casefold(), _as_words(query.act or "")
    public = frozenset(visible.public) | {query.upstream.key}

    def keep(row: Row) -> bool:
        return (
            actor in row["who"].casefold()
            and act in _as_words(row["act"])
            and (everything or _is_public(row, public))
        )

    return keep


def _as_words(act: str) -> str:
    """The act as pages write it, with a space before each word: so `pause` does not match `unpause`."""
    return f" {act.casefold().replace('_', ' ')}" if act else ""


def _is_public(row: Row, public: frozenset[str]) -> bool:
    if row["act"].startswith(_SIGN_IN):
        return False
    texts = (row["who"], _subject(row), *_collect_texts(_visible_detail(row, everything=False)))
    return all(name in public for value in texts for name in _find_repository_names(value))


def _subject(row: Row) -> str:
    """The subject; of a check's name only the backend, because the rest is chosen by that backend."""
    if row["act"] != "rerun" or not row["subject"].startswith(_CHECK):
        return str(row["subject"])
    parts = row["subject"].removeprefix(_CHECK).split("/")
    return "/".join(parts[:2]) if len(parts) > 1 else ""


def _find_repository_names(value: str) -> list[str]:
    """Every part of a text that may be the name of a repository, in lower case."""
    without_addresses = _ADDRESS.sub(lambda match: f" {match[1].removesuffix('.git')} ", value)
    return [match.strip(".").lower() for match in _NAME.findall(without_addresses)]


def _collect_texts(value: Any) -> list[str]:
    match value:
        case str():
            return [value]
        case dict():
            return [text for key, inner in value.items() for text in (key, *_collect_texts(inner))]
        case list():
            return [text for inner in value for text in _collect_texts(inner)]
    return []


def _cursor_start(after: Key) -> Key:
    match after:
        case (int(at), int(audit_id)):
            return at, audit_id
    raise bad_cursor()


def _key(row: Row) -> Key:
    return row["at"], row["audit_id"]


def _visible_detail(row: Row, *, everything: bool) -> dict[str, Any]:
    detail: dict[str, Any] = json.loads(row["detail"])
    if everything:
        return detail
    hidden = _FOR_ADMINS | {"reason"} if row["act"] in _BY_OPERATORS else _FOR_ADMINS
    return {key: value for key, value in detail.items() if key not in hidden}


def _view(row: Row, *, everything: bool) -> AuditView:
    detail = _visible_detail(row, everything=everything)
    return AuditView(
        audit_id=row["audit_id"],
        at=from_us(row["at"]),
        who=row["who"],
        act=row["act"],
        subject=row["subject"],
        detail={key: _format_value(value) for key, value in detail.items() if value is not None},
    )


def _format_value(value: Any) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case list():
            return ", ".join(map(_format_value, value))
        case str():
            return value
    return json.dumps(value)
