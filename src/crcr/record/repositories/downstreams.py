"""The table of downstream repositories: immutable id, installation, suspension, and the history of their levels.

A binding made from GitHub's own answer is confirmed; one made at a first callback is not. Neither is ever
overwritten by a caller: a changed id is refused, and only `rebind` by an operator accepts it.
"""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import bindparam, select, text

from crcr.decide.allowlist.entries import Allowlist
from crcr.decide.github.repository_setup import InstallationFacts
from crcr.decide.github.requests_and_answers import RepositoryFacts
from crcr.decide.model import Binding, EffectKind, Level, RepoName
from crcr.decide.views.backend import LevelChange
from crcr.errors import NotFound
from crcr.record.change_and_audit_log import note_act, note_change
from crcr.record.checks.refresh import CheckRefresher
from crcr.record.outbox.effects import add_effects, effect_row
from crcr.record.schema.main_tables import repositories
from crcr.record.schema.statistics import levels
from crcr.record.store.database import Database, Tx
from crcr.record.store.statement import Statement, inserting
from crcr.record.store.times import from_us, to_us

IDENTITY_LANE = "identity"

_DOWNSTREAM = Statement(
    select(repositories).where(
        repositories.c.upstream == bindparam("upstream"), repositories.c.downstream == bindparam("downstream")
    )
)
_ALL = Statement(select(repositories).where(repositories.c.upstream == bindparam("upstream")))
_UPSTREAM = Statement(
    text("SELECT name, repository_id, installation_id FROM upstreams WHERE upstream = :upstream")
)
_SUSPENDED = Statement(
    text("SELECT downstream FROM repositories WHERE upstream = :upstream AND suspended_at IS NOT NULL")
)
_LIST = Statement(
    inserting(repositories, "upstream", "downstream", "name").on_conflict_do_update(
        index_elements=["upstream", "downstream"], set_={"name": bindparam("name")}
    )
)
_ENSURE = Statement(inserting(repositories, "upstream", "downstream", "name").on_conflict_do_nothing())
_BIND = Statement(
    text(
        "UPDATE repositories SET repository_id = :repository_id, owner_id = :owner_id, confirmed = :confirmed, bound_at = :at"
        " WHERE upstream = :upstream AND downstream = :downstream"
        " AND (repository_id IS NULL OR (repository_id = :repository_id AND confirmed < :confirmed))"
    )
)
# The newest name of an id is the present one, even when the clock stood still or went back.
_BOUND_LAST = Statement(
    text(
        "SELECT max(bound_at) AS at FROM repositories WHERE repository_id = :repository_id AND upstream = :upstream"
        " AND downstream <> :downstream AND confirmed = 1"
    )
)
_REBIND = Statement(
    text(
        "UPDATE repositories SET repository_id = :repository_id, owner_id = NULL, confirmed = 1, bound_at = :at,"
        " installation_id = NULL, default_branch = NULL, alarm = NULL WHERE upstream = :upstream AND downstream = :downstream"
    )
)
_REBIND_UPSTREAM = Statement(
    text(
        "UPDATE upstreams SET repository_id = :repository_id, installation_id = NULL WHERE upstream = :upstream"
    )
)
_ALARM = Statement(
    text("UPDATE repositories SET alarm = :alarm WHERE upstream = :upstream AND downstream = :downstream")
)
_SUSPEND = Statement(
    text("UPDATE repositories SET suspended_at = :at WHERE upstream = :upstream AND downstream = :downstream")
)
_SET_INSTALLATION = Statement(
    text(
        "UPDATE repositories SET installation_id = :installation_id WHERE upstream = :upstream AND downstream = :downstream"
    )
)
_READS_ACTIONS = Statement(
    text(
        "UPDATE repositories SET reads_actions = :reads_actions WHERE upstream = :upstream AND downstream = :downstream"
    )
)
_SET_DEFAULT_BRANCH = Statement(
    text(
        "UPDATE repositories SET default_branch = :default_branch"
        " WHERE upstream = :upstream AND downstream = :downstream"
    )
)
_CANCEL_QUEUE = Statement(
    text(
        "UPDATE effects SET state = 'cancelled', finished_at = :at, last_error = :reason"
        " WHERE upstream = :upstream AND target = :downstream"
        " AND state IN ('waiting', 'claimed') AND state = 'waiting' AND kind = 'send_dispatch'"
    )
)
_CANCEL_DISPATCHES = Statement(
    text(
        "UPDATE dispatches SET state = 'cancelled', reason = :reason"
        " WHERE upstream = :upstream AND downstream = :downstream AND state IN ('held', 'waiting')"
    )
)
# Not for merge groups: they do not live long enough to wait for a rename check.
_HOLD_FOR_RENAME = Statement(
    text(
        "UPDATE dispatches SET state = 'held', reason = 'rename' WHERE upstream = :upstream AND downstream = :downstream"
        " AND state = 'waiting' AND level = 4 AND number IS NOT NULL"
    )
)
_CANCEL_WAITING = Statement(
    text(
        "UPDATE dispatches SET state = 'cancelled', reason = :reason"
        " WHERE upstream = :upstream AND downstream = :downstream AND state = 'waiting'"
    )
)
_UNCONFIRM = Statement(
    text("UPDATE repositories SET confirmed = 0 WHERE upstream = :upstream AND downstream = :downstream")
)
_QUEUED_TARGETS = Statement(
    text(
        "SELECT DISTINCT target FROM effects"
        " WHERE upstream = :upstream AND kind = 'send_dispatch' AND state IN ('waiting', 'claimed')"
    )
)
_BEING_IDENTIFIED = Statement(
    text(
        "SELECT target FROM effects WHERE upstream = :upstream AND lane = 'identity' AND state IN ('waiting', 'claimed')"
    )
)


@dataclass(frozen=True, slots=True)
class DownstreamTarget:
    name: str
    binding: Binding | None
    installation_id: int | None
    suspended: bool
    default_branch: str | None = None


class Downstreams:
    def __init__(self, database: Database, refresher: CheckRefresher) -> None:
        self._database = database
        self._refresher = refresher

    async def find(self, tx: Tx, upstream: RepoName, downstream: RepoName) -> DownstreamTarget | None:
        row = await tx.one(_DOWNSTREAM, upstream=upstream.key, downstream=downstream.key)
        if row is None:
            return None
        bound = row["repository_id"]
        binding = None if bound is None else Binding(bound, row["owner_id"], bool(row["confirmed"]))
        suspended = row["suspended_at"] is not None
        return DownstreamTarget(
            row["name"], binding, row["installation_id"], suspended, row["default_branch"]
        )

    async def read_downstream(self, upstream: RepoName, downstream: RepoName) -> DownstreamTarget | None:
        return await self._database.quick_read(lambda tx: self.find(tx, upstream, downstream))

    async def read_upstream(self, upstream: RepoName) -> tuple[RepoName, int | None, int | None]:
        """The upstream's written name, its repository id and its installation id, None where unknown."""
        row = await self._database.quick_read(lambda tx: tx.one(_UPSTREAM, upstream=upstream.key))
        if row is None:
            return upstream, None, None
        return RepoName(row["name"]), row["repository_id"], row["installation_id"]

    async def read_suspended(self, tx: Tx, upstream: RepoName) -> frozenset[str]:
        return frozenset(row["downstream"] for row in await tx.all(_SUSPENDED, upstream=upstream.key))

    async def apply_allowlist(self, tx: Tx, upstream: RepoName, allowlist: Allowlist, now: datetime) -> None:
        """Apply a new allowlist: identify added repositories, and cancel the queues of removed ones.

        The recorded levels are still those of the previous version.
        """
        listed = {entry.name.key: entry.name.full_name for entry in allowlist.entries}
        await tx.many(
            _LIST, ({"upstream": upstream.key, "downstream": k, "name": n} for k, n in listed.items())
        )
        before = await read_levels(tx, upstream)
        gating = {entry.name.key for entry in allowlist.gating}
        # A name may belong to another repository than when it was last identified.
        added = [
            key for key in listed if before.get(key) is None or (key in gating and before[key] != Level.L4)
        ]
        await tx.many(_UNCONFIRM, ({"upstream": upstream.key, "downstream": key} for key in added))
        rows = await tx.all(_ALL, upstream=upstream.key)
        busy = {row["target"] for row in await tx.all(_BEING_IDENTIFIED, upstream=upstream.key)}
        unread = {r["downstream"] for r in rows if r["downstream"] in listed and not r["confirmed"]}
        incomplete = [r["downstream"] for r in rows if not r["confirmed"] or r["default_branch"] is None]
        to_identify = [key for key in incomplete if key in listed and key not in busy]
        await add_effects(tx, (identify_effect(upstream, key, now) for key in to_identify))
        present = {r["repository_id"] for r in rows if r["downstream"] in listed and r["confirmed"]}
        known = {r["downstream"] for r in rows if r["repository_id"] in present - {None}}
        renamed = bool(gating & unread)
        for row in await tx.all(_QUEUED_TARGETS, upstream=upstream.key):
            target = row["target"]
            if target in listed or target in known:
                continue
            if renamed and before.get(target) == Level.L4:
                await tx.run(_HOLD_FOR_RENAME, upstream=upstream.key, downstream=target)
                await self._cancel_queue(tx, upstream, target, "checking for a rename", now)
                await tx.run(
                    _CANCEL_WAITING, upstream=upstream.key, downstream=target, reason="left the allowlist"
                )
            else:
                await self._end_queue(tx, upstream, target, "left the allowlist", now)

    async def bind(
        self, tx: Tx, upstream: RepoName, downstream: RepoName, binding: Binding, now: datetime
    ) -> bool:
        """Bind a name without an id to this one, or confirm the id that it has; True when that changed the row."""
        await tx.run(_ENSURE, upstream=upstream.key, downstream=downstream.key, name=downstream.full_name)
        at = to_us(now)
        if binding.confirmed:
            at = await _after_other_names(tx, upstream, downstream, binding.repository_id, at)
        changed = await tx.run(
            _BIND,
            upstream=upstream.key,
            downstream=downstream.key,
            repository_id=binding.repository_id,
            owner_id=binding.owner_id,
            confirmed=int(binding.confirmed),
            at=at,
        )
        return bool(changed)

    async def identify(
        self,
        upstream: RepoName,
        downstream: RepoName,
        facts: RepositoryFacts,
        installation: InstallationFacts,
        now: datetime,
    ) -> bool:
        """Record GitHub's facts about a repository; False, with an alarm, when its id is not the bound one."""

        async def unit(tx: Tx) -> bool:
            binding = Binding(facts.repository_id, facts.owner_id, confirmed=True)
            changed = await self.bind(tx, upstream, downstream, binding, now)
            known = await self.find(tx, upstream, downstream)
            if known and known.binding and known.binding.repository_id != facts.repository_id:
                await self.alarm(tx, upstream, downstream, "identity_changed", now)
                return False
            await tx.run(
                _SET_INSTALLATION,
                upstream=upstream.key,
                downstream=downstream.key,
                installation_id=installation.installation_id,
            )
            await self.note_rights(tx, upstream, downstream, installation)
            if changed and (await read_levels(tx, upstream)).get(downstream.key) == Level.L4:
                # A removed backend may be this repository under its new name: dispatches may be held for that.
                await self._refresher.refresh_all_heads(tx, upstream, now, has_checks=False)
            if facts.default_branch is not None:
                await tx.run(
                    _SET_DEFAULT_BRANCH,
                    upstream=upstream.key,
                    downstream=downstream.key,
                    default_branch=facts.default_branch,
                )
            return True

        return await self._database.write(unit)

    async def note_rights(
        self, tx: Tx, upstream: RepoName, downstream: RepoName, installation: InstallationFacts
    ) -> None:
        await tx.run(
            _READS_ACTIONS,
            upstream=upstream.key,
            downstream=downstream.key,
            reads_actions=int(installation.reads_actions),
        )

    async def set_installation(
        self, upstream: RepoName, downstream: RepoName, installation_id: int | None
    ) -> None:
        await self._database.write(
            lambda tx: tx.run(
                _SET_INSTALLATION,
                upstream=upstream.key,
                downstream=downstream.key,
                installation_id=installation_id,
            )
        )

    async def alarm(
        self, tx: Tx, upstream: RepoName, downstream: RepoName, reason: str, now: datetime
    ) -> None:
        await tx.run(_ALARM, upstream=upstream.key, downstream=downstream.key, alarm=reason)
        await note_act(
            tx, upstream, who="relay", act="alarm", subject=downstream.full_name, now=now, reason=reason
        )

    async def suspend(
        self,
        upstream: RepoName,
        downstream: RepoName,
        *,
        who: str,
        now: datetime,
        lift: bool = False,
        reason: str | None = None,
    ) -> None:
        """Suspend a downstream at once and cancel its queue; with `lift`, end the suspension."""

        async def unit(tx: Tx) -> None:
            await tx.run(_ENSURE, upstream=upstream.key, downstream=downstream.key, name=downstream.full_name)
            await tx.run(
                _SUSPEND, upstream=upstream.key, downstream=downstream.key, at=None if lift else to_us(now)
            )
            if not lift:
                await self._end_queue(tx, upstream, downstream.key, "suspended", now)
            act = "resume" if lift else "suspend"
            await note_act(
                tx, upstream, who=who, act=act, subject=downstream.full_name, now=now, reason=reason
            )
            await note_change(tx, upstream, "backend", downstream=downstream.key, now=now)
            await self._refresher.refresh_all_heads(tx, upstream, now, has_checks=False)

        await self._database.write(unit)

    async def rebind(
        self, upstream: RepoName, downstream: RepoName, repository_id: int, *, who: str, now: datetime
    ) -> None:
        async def unit(tx: Tx) -> None:
            old = await self.find(tx, upstream, downstream)
            if downstream == upstream:
                await tx.run(_REBIND_UPSTREAM, upstream=upstream.key, repository_id=repository_id)
            elif old is None:
                raise NotFound(f"{downstream} is not known to {upstream}")
            before = old.binding.repository_id if old and old.binding else None
            await tx.run(
                _REBIND,
                upstream=upstream.key,
                downstream=downstream.key,
                repository_id=repository_id,
                at=await _after_other_names(tx, upstream, downstream, repository_id, to_us(now)),
            )
            await note_act(
                tx,
                upstream,
                who=who,
                act="rebind",
                subject=downstream.full_name,
                now=now,
                before=before,
                after=repository_id,
            )
            # The repository may be a removed backend under its new name.
            await self._refresher.refresh_all_heads(tx, upstream, now, has_checks=False)

        await self._database.write(unit)

    async def _end_queue(
        self, tx: Tx, upstream: RepoName, downstream: str, reason: str, now: datetime
    ) -> None:
        await self._cancel_queue(tx, upstream, downstream, reason, now)
        await tx.run(_CANCEL_DISPATCHES, upstream=upstream.key, downstream=downstream, reason=reason)

    async def _cancel_queue(
        self, tx: Tx, upstream: RepoName, downstream: str, reason: str, now: datetime
    ) -> None:
        await tx.run(
            _CANCEL_QUEUE, upstream=upstream.key, downstream=downstream, reason=reason, at=to_us(now)
        )


async def _after_other_names(
    tx: Tx, upstream: RepoName, downstream: RepoName, repository_id: int, at: int
) -> int:
    """The time of a binding: later than that of every other name of the same repository."""
    where = {"upstream": upstream.key, "downstream": downstream.key}
    last = await tx.one(_BOUND_LAST, repository_id=repository_id, **where)
    return at if last is None or last["at"] is None else max(at, last["at"] + 1)


def identify_effect(upstream: RepoName, downstream_key: str, now: datetime) -> dict[str, object]:
    return effect_row(
        upstream, EffectKind.IDENTIFY_REPOSITORY, target=downstream_key, lane=IDENTITY_LANE, now=now
    )


# Levels: one row for each change that a version of the allowlist made.
_LEVELS_NOW = Statement(
    text(
        "SELECT l.downstream, l.level FROM levels l WHERE l.upstream = :upstream AND l.version ="
        " (SELECT max(n.version) FROM levels n WHERE n.upstream = l.upstream AND n.downstream = l.downstream)"
    )
)
_ADD_LEVEL = Statement(
    inserting(levels, "upstream", "downstream", "version", "level", "at").on_conflict_do_nothing()
)
_LEVEL_HISTORY = Statement(
    text(
        "SELECT version, level, at FROM levels WHERE upstream = :upstream AND downstream = :downstream"
        " ORDER BY version DESC LIMIT :most"
    )
)
_MOST_CHANGES = 20


async def read_levels(tx: Tx, upstream: RepoName) -> dict[str, int | None]:
    """The level of each downstream in the newest applied version; None for removed ones."""
    return {row["downstream"]: row["level"] for row in await tx.all(_LEVELS_NOW, upstream=upstream.key)}


async def record_levels(
    tx: Tx, upstream: RepoName, allowlist: Allowlist, version: int, now: datetime
) -> None:
    """Record the downstreams whose level changed."""
    before = await read_levels(tx, upstream)
    listed = {entry.name.key: int(entry.level) for entry in allowlist.entries}
    removed = dict.fromkeys(key for key, level in before.items() if level is not None and key not in listed)
    changed = {key: level for key, level in listed.items() if before.get(key) != level} | removed
    at = {"upstream": upstream.key, "version": version, "at": to_us(now)}
    if changed:
        await tx.many(
            _ADD_LEVEL, [{**at, "downstream": key, "level": level} for key, level in changed.items()]
        )


async def read_level_history(tx: Tx, upstream: RepoName, downstream: RepoName) -> tuple[LevelChange, ...]:
    """The changes, newest first."""
    rows = await tx.all(_LEVEL_HISTORY, upstream=upstream.key, downstream=downstream.key, most=_MOST_CHANGES)
    return tuple(
        LevelChange(from_us(row["at"]), None if row["level"] is None else Level(row["level"]), row["version"])
        for row in rows
    )
