"""Installations of the App, kept up to date by its own webhooks; applying one twice changes nothing.

A deleted installation clears only the rows that name it, so a late `deleted` cannot undo a newer `created`.
"""

from datetime import datetime

from sqlalchemy import text

from crcr.decide.dispatch.plan import AcceptedDelivery, AlreadyProcessed, ReceivedDelivery
from crcr.decide.events import (
    InstallationEvent,
    InstallationRepositoriesEvent,
    InstalledRepository,
    RepositoryEvent,
)
from crcr.decide.model import DeliveryState, RepoName
from crcr.decide.notices.notice import NoticeEvent, NoticeKind, SetupItem
from crcr.record.deliveries.webhooks import is_new_body
from crcr.record.notices.threads import queue_notice
from crcr.record.outbox.effects import add_effects
from crcr.record.repositories.default_branches import compare_default_branch
from crcr.record.repositories.downstreams import identify_effect
from crcr.record.store.database import Database, Row, Tx
from crcr.record.store.statement import Statement

_SET_INSTALLATION = Statement(
    text(
        "UPDATE repositories SET installation_id = :installation_id, reads_actions = coalesce(:reads_actions, reads_actions)"
        " WHERE downstream = :downstream AND (repository_id IS NULL OR repository_id = :repository_id)"
    )
)
_INSTALLED = Statement(
    text(
        "SELECT upstream, downstream FROM repositories WHERE installation_id = :installation_id ORDER BY upstream, downstream"
    )
)
_LISTED = Statement(text("SELECT upstream, downstream FROM repositories WHERE downstream = :downstream"))
_SET_READS_ACTIONS = Statement(
    text("UPDATE repositories SET reads_actions = :reads_actions WHERE installation_id = :installation_id")
)
_CLEAR_INSTALLATION = Statement(
    text("UPDATE repositories SET installation_id = NULL WHERE installation_id = :installation_id")
)
_CLEAR_INSTALLATION_OF_ONE = Statement(
    text(
        "UPDATE repositories SET installation_id = NULL"
        " WHERE installation_id = :installation_id AND downstream = :downstream"
    )
)
_SET_MOVED_ALARM = Statement(
    text(
        "UPDATE repositories SET alarm = :alarm WHERE repository_id = :repository_id AND downstream <> :new_name"
    )
)
_CLEAR_MOVED_ALARM = Statement(
    text(
        "UPDATE repositories SET alarm = NULL WHERE repository_id = :repository_id AND downstream = :new_name"
        " AND alarm LIKE 'moved to %'"
    )
)
_UNCONFIRMED = Statement(
    text(
        "SELECT upstream FROM repositories WHERE downstream = :downstream AND confirmed = 0 AND NOT EXISTS ("
        " SELECT 1 FROM effects e WHERE e.upstream = repositories.upstream AND e.target = repositories.downstream"
        " AND e.lane = 'identity' AND e.state IN ('waiting', 'claimed'))"
    )
)
_SET_UPSTREAM_INSTALLATION = Statement(
    text(
        "UPDATE upstreams SET installation_id = :installation_id WHERE upstream = :name"
        " AND (repository_id IS NULL OR repository_id = :repository_id)"
    )
)


class Installations:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def record_event(
        self,
        receipt: ReceivedDelivery,
        event: InstallationEvent | InstallationRepositoriesEvent | RepositoryEvent,
    ) -> AcceptedDelivery | AlreadyProcessed:
        async def unit(tx: Tx) -> AcceptedDelivery | AlreadyProcessed:
            if not await is_new_body(tx, receipt, event):
                return AlreadyProcessed()
            await self._record_event(tx, event, receipt.received_at)
            return AcceptedDelivery(0, DeliveryState.ACCEPTED)

        return await self._database.write(unit)

    async def _record_event(
        self,
        tx: Tx,
        event: InstallationEvent | InstallationRepositoriesEvent | RepositoryEvent,
        now: datetime,
    ) -> None:
        if isinstance(event, RepositoryEvent):
            repository = {"repository_id": event.repository_id, "new_name": event.new_name.key}
            await tx.run(_SET_MOVED_ALARM, alarm=f"moved to {event.new_name}", **repository)
            await tx.run(_CLEAR_MOVED_ALARM, **repository)
            await compare_default_branch(tx, event, now)
            await self._identify(tx, event.new_name, now)
        elif isinstance(event, InstallationRepositoriesEvent):
            await self._record_installed(tx, event, event.added, now)
            for removed in event.removed:
                await self._tell_removed(
                    tx, event.installation_id, now, "it was removed from the App's repositories", removed.name
                )
                await tx.run(
                    _CLEAR_INSTALLATION_OF_ONE,
                    installation_id=event.installation_id,
                    downstream=removed.name.key,
                )
        elif event.action in {"deleted", "suspend"}:
            how = "uninstalled" if event.action == "deleted" else "suspended"
            await self._tell_removed(tx, event.installation_id, now, f"the App was {how}")
            await tx.run(_CLEAR_INSTALLATION, installation_id=event.installation_id)
        else:
            await self._record_installed(tx, event, event.repositories, now)

    async def _record_installed(
        self,
        tx: Tx,
        event: InstallationEvent | InstallationRepositoriesEvent,
        added: tuple[InstalledRepository, ...],
        now: datetime,
    ) -> None:
        installation_id = event.installation_id
        reads_actions = None if event.reads_actions is None else int(event.reads_actions)
        if reads_actions is not None:
            await tx.run(_SET_READS_ACTIONS, reads_actions=reads_actions, installation_id=installation_id)
        for repository in added:
            ids = {"installation_id": installation_id, "repository_id": repository.repository_id}
            await tx.run(
                _SET_INSTALLATION, downstream=repository.name.key, reads_actions=reads_actions, **ids
            )
            await tx.run(_SET_UPSTREAM_INSTALLATION, name=repository.name.key, **ids)
            for row in await tx.all(_LISTED, downstream=repository.name.key):
                again = _setup_notice(row, NoticeKind.SETUP_REPAIRED, "the App is installed")
                await queue_notice(tx, again, now)
            await self._identify(tx, repository.name, now)

    async def _tell_removed(
        self, tx: Tx, installation_id: int, now: datetime, text: str, name: RepoName | None = None
    ) -> None:
        """Tell about the backends that this installation was of; with `name` only about that one."""
        for row in await tx.all(_INSTALLED, installation_id=installation_id):
            if name is None or row["downstream"] == name.key:
                summary = f"{text}: dispatches cannot be sent"
                await queue_notice(tx, _setup_notice(row, NoticeKind.SETUP_BROKEN, summary), now)

    async def _identify(self, tx: Tx, name: RepoName, now: datetime) -> None:
        """Queue the identification of a listed name that could not be looked up before the App was installed."""
        for row in await tx.all(_UNCONFIRMED, downstream=name.key):
            await add_effects(tx, [identify_effect(RepoName(row["upstream"]), name.key, now)])


def _setup_notice(row: Row, kind: NoticeKind, summary: str) -> NoticeEvent:
    backend = RepoName(row["downstream"])
    return NoticeEvent(
        kind=kind,
        upstream=RepoName(row["upstream"]),
        backend=backend,
        item=SetupItem.APP.value,
        summary=summary,
        path=f"/crcr/{backend}",
    )
