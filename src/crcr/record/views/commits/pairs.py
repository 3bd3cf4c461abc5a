"""The pairs of a pull request and of a backend, with what the backend reported for both pull requests together.

A pair of a backend that the reader may not see looks like one that is on no allowlist.
"""

from dataclasses import replace

from sqlalchemy import text

from crcr.decide.model import RepoName
from crcr.decide.pairs.depends_on import PullReference
from crcr.decide.pairs.pair import DependencyState, Refusal
from crcr.decide.views.commit import PairView, describe_pair
from crcr.record.deliveries.pull_requests import find_newest_delivery
from crcr.record.store.database import Row
from crcr.record.store.statement import Statement
from crcr.record.views.commits.commit_backends import CommitReader
from crcr.record.views.visibility import VisibleBackends

_MOST_OF_BACKEND = 20
_COLUMNS = (
    "q.number, q.downstream, q.dependency, q.name, q.state, q.refusal, q.head_sha, q.approved_by, q.requested_by,"
    " q.delivery, q.plain, q.tested_sha, q.round, q.tested_round, p.title, p.head_sha AS pull_head, p.base_ref"
    " FROM pairs q JOIN pulls p ON p.upstream = q.upstream AND p.number = q.number WHERE q.upstream = :upstream"
)
_OF_PULL = Statement(
    text(
        f"SELECT {_COLUMNS} AND q.number = :number"
        " ORDER BY q.in_text DESC, q.place, q.created_at, q.downstream, q.dependency"
    )
)
_OF_BACKEND = Statement(
    text(
        f"SELECT {_COLUMNS} AND q.downstream = :downstream AND p.is_open = 1"
        " ORDER BY q.number DESC, q.dependency DESC LIMIT :most"
    )
)


async def read_pairs_of_pull(reader: CommitReader, number: int, delivery: str | None) -> tuple[PairView, ...]:
    """`delivery` is the one whose plain results the page shows."""
    rows = await reader.tx.all(_OF_PULL, upstream=reader.upstream.key, number=number)
    return tuple([await _with_result(reader, row, delivery) for row in rows])


async def _with_result(reader: CommitReader, row: Row, delivery: str | None) -> PairView:
    view = _pair_view(row, reader.visible)
    tested = (row["plain"], row["tested_sha"], row["tested_round"])
    if row["delivery"] is None or tested != (delivery, row["head_sha"], row["round"]) or not _counts(view):
        return view
    backends = await reader.backends(row["delivery"])
    result = next(iter(backends), None)
    status = result.state if result else None
    sentence = describe_pair(_reference(row), view.state, view.refusal, status)
    return replace(view, result=result, status=status, sentence=sentence)


async def read_pairs_of_backend(reader: CommitReader, downstream: RepoName) -> tuple[PairView, ...]:
    """The pairs of open pull requests with this backend, the newest first."""
    if downstream.key not in reader.visible.public:
        return ()
    where = {"upstream": reader.upstream.key, "downstream": downstream.key, "most": _MOST_OF_BACKEND}
    pairs = []
    for row in await reader.tx.all(_OF_BACKEND, **where):
        head = {"head_sha": row["pull_head"], "base_ref": row["base_ref"]}
        plain = await find_newest_delivery(reader.tx, reader.upstream, row["number"], **head)
        pairs.append(await _with_result(reader, row, plain["guid"] if plain is not None else None))
    return tuple(pairs)


def _counts(view: PairView) -> bool:
    return view.state is DependencyState.OPEN and view.refusal is None


def _reference(row: Row) -> PullReference:
    return PullReference(RepoName(row["name"]), row["dependency"])


def _pair_view(row: Row, visible: VisibleBackends) -> PairView:
    is_shown = row["downstream"] in visible.public
    state = DependencyState(row["state"]) if is_shown else DependencyState.UNREAD
    refusal = Refusal(row["refusal"]) if row["refusal"] else None
    refusal = refusal if is_shown else Refusal.NOT_LISTED
    counts = is_shown and state is DependencyState.OPEN and refusal is None
    return PairView(
        number=row["number"],
        title=row["title"],
        backend=RepoName(row["name"]),
        dependency=row["dependency"],
        state=state,
        refusal=refusal,
        sentence=describe_pair(_reference(row), state, refusal, None),
        head_sha=row["head_sha"] if counts else None,
        approved_by=row["approved_by"] if counts else None,
        requested_by=row["requested_by"],
    )
