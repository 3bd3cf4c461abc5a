"""The list of pull requests: candidates along an index, filters on these, and the cells of the rows that are left.

A filter is applied to at most `MOST_SEARCHED` candidates of one page; if there are more, the page has a cursor to continue
from. The orders by gate and by failures are in no index: they order the newest `MOST_SEARCHED`.
"""

# ruff: noqa: S608 - every name in these statements is our own

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from crcr.decide.checks.gate import HELD_FOR
from crcr.decide.failures.verdict import VerdictKind
from crcr.decide.views.commit import GateShown, PullState
from crcr.decide.views.grids import (
    GATE_ORDER,
    PullFilter,
    PullLine,
    PullList,
    PullListQuery,
    PullScope,
    PullSort,
    describe_wait,
    find_columns,
    pick_worst_verdict,
)
from crcr.record.deliveries.pull_requests import TESTED
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement, ascii_lower
from crcr.record.store.times import from_us, from_us_or_none
from crcr.record.views.commits.pull_and_commit import TESTED_ACTIONS, find_tested_delivery
from crcr.record.views.grids.cells import OF_FAILURE, CommitCells, GridReader, with_lists
from crcr.record.views.paging import bad_cursor
from crcr.record.views.relay.state import newest_change
from crcr.record.views.visibility import VisibleBackends

MOST_SEARCHED = 2_500
_AFTER_ALL = 2**62
_BEFORE_ALL = -(2**62)
_COLUMNS = "upstream, number, head_sha, updated_at, is_open, merged, draft, base_ref, title, author, opened_at, downstream_note"
_SCOPES = {PullScope.OPEN: " AND is_open = 1", PullScope.CLOSED: " AND is_open = 0", PullScope.ALL: ""}
_BY_AUTHOR = " AND lower(author) = :author"
_ORDERS = {
    ("updated", True): (
        " AND updated_at <= :at AND (updated_at < :at OR number < :number)",
        "updated_at DESC, {0}number DESC",
    ),
    ("updated", False): (
        " AND updated_at >= :at AND (updated_at > :at OR number > :number)",
        "updated_at, {0}number",
    ),
    ("number", True): (" AND number < :number", "number DESC"),
    ("number", False): (" AND number > :number", "number"),
}
_TESTED_DELIVERY = (
    "SELECT v.guid FROM deliveries v WHERE v.head_sha = p.head_sha AND v.upstream = p.upstream AND v.number = p.number"
    f" AND v.event = 'pull_request' AND v.state <> 'superseded' AND (v.base_ref IS NULL OR v.base_ref = p.base_ref)"
    f" AND {TESTED.replace('action', 'v.action').replace('relay_reason', 'v.relay_reason')}"
    " ORDER BY v.received_at DESC, v.guid DESC LIMIT 1"
)
_FAILURES = (
    "f.upstream = p.upstream AND f.number = p.number AND f.kind = 'pull_request' AND f.head_sha = p.head_sha"
)
_FAILED_JOBS = (
    f"FROM failures f CROSS JOIN jobs j WHERE {_FAILURES} AND f.downstream IN {{shown}} AND {OF_FAILURE}"
    f" AND f.delivery = ({_TESTED_DELIVERY})"
)
_FAILED_BACKENDS = (
    # Few pull requests have a failure; of these the tested delivery is looked up once, not for each failure.
    f"(CASE WHEN EXISTS (SELECT 1 FROM failures f WHERE {_FAILURES}) THEN (SELECT count(DISTINCT f.downstream)"
    f" FROM (SELECT ({_TESTED_DELIVERY}) AS guid) AS tested CROSS JOIN failures f CROSS JOIN jobs j"
    f" WHERE f.delivery = tested.guid AND {_FAILURES} AND f.downstream IN {{shown}} AND {OF_FAILURE}) ELSE 0 END)"
)
_REASONS = ", ".join(f"'{reason}'" for reason in sorted(HELD_FOR))
_HELD = (
    # `coalesce` keeps the planner from the index of all dispatches that are not superseded.
    "SELECT 1 FROM dispatches d WHERE d.upstream = p.upstream AND d.number = p.number AND d.state = 'held'"
    f" AND d.reason IN ({_REASONS}) AND d.head_sha = p.head_sha"
    " AND coalesce(d.superseded_at, 0) = 0 AND d.downstream IN {shown}"
)
_FILTERS = (
    "(CAST(:words AS TEXT) IS NULL OR lower(p.title) LIKE :words ESCAPE '!' OR lower(p.author) LIKE :words ESCAPE '!'"
    " OR CAST(p.number AS TEXT) LIKE :start ESCAPE '!')"
    f" AND (CAST(:only AS TEXT) <> '{PullFilter.BLOCKED}' OR g.state = '{GateShown.FAILED}')"
    f" AND (CAST(:only AS TEXT) <> '{PullFilter.WAITING}' OR EXISTS ({_HELD}))"
    f" AND (CAST(:only AS TEXT) <> '{PullFilter.FAILING}' OR EXISTS (SELECT 1 {_FAILED_JOBS}))"
    f" AND (CAST(:only AS TEXT) <> '{PullFilter.BREAKING}' OR p.downstream_note IS NOT NULL)"
)
_WITH_GATE = "LEFT JOIN gates g ON g.head_sha = p.head_sha AND g.upstream = p.upstream"


def _write_candidates(scope: PullScope, column: str, *, down: bool, by_author: bool) -> str:
    after, order = _ORDERS[column, down]
    return (
        f"SELECT {_COLUMNS} FROM pulls WHERE upstream = :upstream{_SCOPES[scope]}{_BY_AUTHOR if by_author else ''}"
        f"{after} ORDER BY {order.format('')} LIMIT :searched OFFSET :skipped"
    )


def _write_list(scope: PullScope, column: str, *, down: bool, by_author: bool) -> Statement:
    candidates = _write_candidates(scope, column, down=down, by_author=by_author)
    order = _ORDERS[column, down][1].format("p.")
    return with_lists(
        f"SELECT p.*, g.state AS gate, g.title AS gate_title FROM ({candidates}) AS p {_WITH_GATE}"
        f" WHERE {_FILTERS} ORDER BY p.{order} LIMIT :limit"
    )


_GATE_RANKS = " ".join(f"WHEN '{state}' THEN {rank}" for rank, state in enumerate(GATE_ORDER))
_VALUES = {
    PullSort.GATE: f"CASE g.state {_GATE_RANKS} ELSE {len(GATE_ORDER)} END",
    PullSort.FAILURES: _FAILED_BACKENDS,
}
"""Orders whose value is in no index."""


def _write_valued(scope: PullScope, sort: PullSort, *, down: bool) -> Statement:
    candidates = _write_candidates(scope, "updated", down=True, by_author=False)
    sign, direction = ("<", "DESC") if down else (">", "ASC")
    columns = ", ".join(f"pull.{name}" for name in _COLUMNS.split(", "))
    return with_lists(
        # Not materialized, SQLite would compute a value again wherever it is compared; numbers alone, since all are sorted.
        f"WITH valued AS MATERIALIZED (SELECT p.number, {_VALUES[sort]} AS value FROM ({candidates}) AS p {_WITH_GATE}"
        f" WHERE (CAST(:author AS TEXT) IS NULL OR lower(p.author) = :author) AND {_FILTERS}),"
        " chosen AS MATERIALIZED (SELECT number, value FROM valued"
        f" WHERE value {sign} :value OR (value = :value AND number < :last)"
        f" ORDER BY value {direction}, number DESC LIMIT :limit)"
        f" SELECT {columns}, g.state AS gate, g.title AS gate_title, chosen.value FROM chosen CROSS JOIN pulls pull"
        " LEFT JOIN gates g ON g.head_sha = pull.head_sha AND g.upstream = pull.upstream"
        " WHERE pull.upstream = :upstream AND pull.number = chosen.number"
        f" ORDER BY chosen.value {direction}, pull.number DESC"
    )


_LISTS = {
    (scope, column, down, by_author): _write_list(scope, column, down=down, by_author=by_author)
    for scope in PullScope
    for column, down in _ORDERS
    for by_author in (False, True)
}
_VALUED = {
    (scope, sort, down): _write_valued(scope, sort, down=down)
    for scope in PullScope
    for sort in _VALUES
    for down in (False, True)
}


async def pull_list(tx: Tx, query: PullListQuery, visible: VisibleBackends) -> PullList:
    rows, more = await _CandidateReader(tx, query, visible).read()
    reader = GridReader(tx, query.upstream, visible)
    heads = await reader.read_deliveries({row["head_sha"] for row in rows})
    delivery_of = {row["number"]: _find_delivery(row, heads[row["head_sha"]]) for row in rows}
    deliveries = [delivery for delivery in delivery_of.values() if delivery is not None]
    cells = await reader.read_cells(deliveries)
    verdicts = await reader.read_verdicts(deliveries, [row["head_sha"] for row in rows])
    lines = [
        _line(
            row,
            delivery := delivery_of[row["number"]],
            cells.get(delivery or "", CommitCells()),
            verdict=pick_worst_verdict(verdicts.get(delivery or "", ())),
            shared=any(other["number"] != row["number"] for other in heads[row["head_sha"]]),
        )
        for row in rows
    ]
    levels = {key: entry.level for key, entry in visible.reporting.items()}
    return PullList(
        items=tuple(lines),
        next=more,
        cursor=await newest_change(tx),
        columns=find_columns((line.backends for line in lines), levels),
        has_gate=any(line.gate not in (None, GateShown.NONE) for line in lines),
    )


@dataclass(frozen=True, slots=True)
class _CandidateReader:
    tx: Tx
    query: PullListQuery
    visible: VisibleBackends

    async def read(self) -> tuple[list[Row], tuple[str | int, ...] | None]:
        """The rows of the page, and the cursor of the next one."""
        if self.query.sort in _VALUES:
            return await self._read_valued()
        query, limit = self.query, self.query.limit
        column, down = _order_of(query)
        statement = _LISTS[query.scope, column, down, query.author is not None]
        key = self._filters() | _read_cursor(query, column, down=down)
        if column == "number":
            key.pop("at")
        searched = MOST_SEARCHED if query.is_filtered else limit + 1
        rows = await self.tx.all(statement, **key, searched=searched, skipped=0, limit=limit + 1)
        if len(rows) > limit:
            return rows[:limit], _cursor(rows[limit - 1], column)
        if not query.is_filtered:
            return rows, None
        unfiltered = {**key, "words": None, "only": ""}
        last = await self.tx.one(
            statement, **{**unfiltered, "searched": 1, "skipped": searched - 1, "limit": 1}
        )
        return rows, _cursor(last, column) if last is not None else None

    async def _read_valued(self) -> tuple[list[Row], tuple[str | int, ...] | None]:
        query, limit = self.query, self.query.limit
        rows = await self.tx.all(
            _VALUED[query.scope, query.sort, query.down],
            **{"author": None, **self._filters(), **_read_value_cursor(query)},
            at=_AFTER_ALL,
            number=0,
            searched=MOST_SEARCHED,
            skipped=0,
            limit=limit + 1,
        )
        more = (rows[limit - 1]["value"], rows[limit - 1]["number"]) if len(rows) > limit else None
        return rows[:limit], more

    def _filters(self) -> dict[str, Any]:
        query = self.query
        words = None if query.text is None else ascii_lower(query.text.removeprefix("#"))
        escaped = None if words is None else _escape_pattern(words)
        return {
            "upstream": query.upstream.key,
            "shown": json.dumps(sorted(self.visible.reporting)),
            "only": query.only.value if query.only else "",
            "words": None if escaped is None else f"%{escaped}%",
            "start": None if escaped is None else f"{escaped}%",
            **({"author": ascii_lower(query.author)} if query.author else {}),
        }


def _escape_pattern(words: str) -> str:
    return words.replace("!", "!!").replace("%", "!%").replace("_", "!_")


def _order_of(query: PullListQuery) -> tuple[str, bool]:
    """The column, and whether the highest comes first: a higher number is a younger pull request."""
    if query.sort is PullSort.AGE:
        return "number", not query.down
    return query.sort.value, query.down


def _read_cursor(query: PullListQuery, column: str, *, down: bool) -> dict[str, int]:
    match query.after:
        case None:
            at, number = (_AFTER_ALL, 0) if down else (_BEFORE_ALL, 0)
            return {"at": at, "number": number if column == "updated" else (2**31 - 1 if down else 0)}
        case (int(at), int(number)) if column == "updated" and _is_number(number):
            return {"at": at, "number": number}
        case (int(number),) if column == "number" and _is_number(number):
            return {"at": 0, "number": number}
    raise bad_cursor()


def _read_value_cursor(query: PullListQuery) -> dict[str, int]:
    match query.after:
        case None:
            return {"value": 2**31 - 1 if query.down else -1, "last": 0}
        case (int(value), int(last)) if _is_number(last) and 0 <= value < 2**31:
            return {"value": value, "last": last}
    raise bad_cursor()


def _is_number(number: int) -> bool:
    return 0 <= number < 2**31


def _cursor(row: Row, column: str) -> tuple[str | int, ...]:
    return (row["updated_at"], row["number"]) if column == "updated" else (row["number"],)


def _find_delivery(row: Row, newest_first: Sequence[Row]) -> str | None:
    """The delivery whose backends the page of the pull request shows."""
    tested = [
        delivery
        for delivery in newest_first
        if delivery["number"] == row["number"]
        and delivery["event"] == "pull_request"
        and delivery["base_ref"] in (None, row["base_ref"])
    ]
    return find_tested_delivery(tested, *TESTED_ACTIONS[:3])


def _line(
    row: Row, delivery: str | None, commit: CommitCells, *, verdict: VerdictKind | None, shared: bool
) -> PullLine:
    """`shared`: another pull request has the same head, so that the gate's title may name backends of that one."""
    gate = GateShown(row["gate"]) if row["gate"] else None
    state = PullState.OPEN if row["is_open"] else PullState.MERGED if row["merged"] else PullState.CLOSED
    title = None if commit.is_gate_hidden or shared else row["gate_title"]
    cells = tuple(commit.cells)
    return PullLine(
        number=row["number"],
        title=row["title"],
        author=row["author"],
        draft=bool(row["draft"]),
        state=state,
        opened_at=from_us_or_none(row["opened_at"]),
        updated_at=from_us(row["updated_at"]),
        base_ref=row["base_ref"],
        head_sha=row["head_sha"],
        delivery=delivery,
        gate=gate,
        verdict=verdict,
        waits_for=describe_wait(gate, title, cells, commit.held_for) if state is PullState.OPEN else None,
        backends=cells,
    )
