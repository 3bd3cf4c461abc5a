"""A backend's line in the summary: its figures, what was sent to it, and what is wrong with it."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import text

from crcr.decide.allowlist import Entry
from crcr.decide.model import Level, RepoName
from crcr.decide.numbers import ANSWER_WITHIN, is_silent
from crcr.decide.views import BackendSummary, Figures
from crcr.record.database import Row, Tx
from crcr.record.statement import Statement
from crcr.record.times import from_us_or_none, to_us
from crcr.record.views_jobs import figures
from crcr.record.views_listed import Seen

_DISPATCHED = Statement(
    text(
        "SELECT state, count(*) AS number, max(sent_at) AS sent_at FROM dispatches"
        " WHERE upstream = :upstream AND downstream = :downstream AND created_at >= :since AND test = 0"
        " AND state <> 'left_out' GROUP BY state"
    )
)
_LAST_REPORT = Statement(
    text("SELECT max(in_progress_at) AS at FROM jobs WHERE upstream = :upstream AND downstream = :downstream")
)
# Nobody need answer the end of a pull request or the deletion of a branch.
_UNANSWERED = Statement(
    text(
        "SELECT count(*) AS number FROM dispatches WHERE upstream = :upstream AND downstream = :downstream"
        " AND created_at > :since AND sent_at <= :before AND test = 0 AND coalesce(action, '') <> 'closed'"
        " AND coalesce(head_sha, '') <> '0000000000000000000000000000000000000000'"
    )
)
_REPOSITORIES = Statement(
    text("SELECT downstream, suspended_at, alarm FROM repositories WHERE upstream = :upstream")
)
_PARKED = Statement(
    text(
        "SELECT target, count(*) AS number FROM effects WHERE upstream = :upstream AND state = 'parked'"
        " GROUP BY target"
    )
)


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of all backends of an upstream beside their jobs."""

    suspended: frozenset[str]
    alarms: dict[str, str]
    parked: dict[str, int]


async def read_standing(tx: Tx, upstream: RepoName) -> Standing:
    rows = await tx.all(_REPOSITORIES, upstream=upstream.key)
    parked = await tx.all(_PARKED, upstream=upstream.key)
    return Standing(
        frozenset(row["downstream"] for row in rows if row["suspended_at"] is not None),
        {row["downstream"]: row["alarm"] for row in rows if row["alarm"]},
        {row["target"]: row["number"] for row in parked},
    )


@dataclass(frozen=True, slots=True)
class BackendReader:
    """Reads the backends of one upstream over one range, inside one transaction."""

    tx: Tx
    upstream: RepoName
    seen: Seen
    since: datetime
    now: datetime

    async def summary(self, entry: Entry, standing: Standing) -> BackendSummary:
        key = entry.name.key
        if key not in self.seen.public:
            return _by_name_only(entry)
        sent = await self._dispatched(key)
        return BackendSummary(
            name=entry.name,
            level=entry.level,
            device=entry.device,
            oncalls=entry.oncalls,
            hardware=entry.hardware,
            name_only=False,
            figures=await self._figures(entry),
            dispatched=sum(row["number"] for row in sent),
            waiting=sum(row["number"] for row in sent if row["state"] in {"waiting", "held"}),
            parked=standing.parked.get(key, 0),
            last_sent_at=from_us_or_none(max((row["sent_at"] or 0 for row in sent), default=0) or None),
            suspended=key in standing.suspended,
            silent=await self._silent(entry),
            alarm=standing.alarms.get(key),
        )

    async def _figures(self, entry: Entry) -> Figures | None:
        if entry.level < Level.L2:
            return None
        return await figures(self.tx, self.upstream.key, entry.name.key, self.since, self.now)

    async def _dispatched(self, key: str) -> list[Row]:
        return await self.tx.all(
            _DISPATCHED, upstream=self.upstream.key, downstream=key, since=to_us(self.since)
        )

    async def _silent(self, entry: Entry) -> bool:
        where = {"upstream": self.upstream.key, "downstream": entry.name.key}
        last = await self.tx.one(_LAST_REPORT, **where)
        reported = last["at"] if last else None
        since = max(reported or 0, to_us(self.since))
        row = await self.tx.one(_UNANSWERED, since=since, before=to_us(self.now - ANSWER_WITHIN), **where)
        unanswered = row["number"] if row else 0
        return is_silent(entry.level, ever_reported=reported is not None, unanswered=unanswered)


def _by_name_only(entry: Entry) -> BackendSummary:
    return BackendSummary(
        name=entry.name,
        level=entry.level,
        device=None,
        oncalls=(),
        hardware=None,
        name_only=True,
        figures=None,
    )
