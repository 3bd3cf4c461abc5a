"""Builds the ClickHouse history from the settings: connection, feeder, and queries.

Without `CRCR_CLICKHOUSE_URL` only the switch in the store is set to off.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import structlog

from crcr.decide.model import RepoName
from crcr.decide.outbox.effect import ClaimedEffect
from crcr.deliver.handlers.feed_clickhouse import FeedHistory
from crcr.deliver.worker import Handler
from crcr.ports import Clock
from crcr.record.clickhouse.connection import ClickHouseLink, ClickHouseLocation
from crcr.record.clickhouse.feeder import ClickHouseFeeder, FeedQueue
from crcr.record.clickhouse.history import ClickHouseHistory, HistoryReader
from crcr.record.store.database import Database
from crcr.settings import Settings
from crcr.wiring.secret_rotation import SecretRotation

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ClickHouse:
    database: Database
    feeding: FeedQueue
    link: ClickHouseLink | None = None
    feeder: ClickHouseFeeder | None = None

    def history(self) -> HistoryReader:
        """Return the history source for this process's pages."""
        return HistoryReader(self.database, ClickHouseHistory(self.link) if self.link else None)

    def handler(self, clock: Clock) -> Handler:
        return FeedHistory(self.feeder, clock) if self.feeder else _drop_effect

    async def record_switch(self, upstreams: Sequence[RepoName], now: datetime) -> None:
        """Record in the store whether history is fed, as the settings say."""
        if self.link is None:
            if await self.feeding.turn_off():
                log.warning("history_turned_off", setting="CRCR_CLICKHOUSE_URL")
        else:
            await self.feeding.turn_on([upstream.key for upstream in upstreams], now)

    async def close(self) -> None:
        if self.link is not None:
            await self.link.close()


def open_clickhouse(
    settings: Settings, database: Database, secrets: SecretRotation | None = None
) -> ClickHouse:
    feeding, link = FeedQueue(database), clickhouse_link(settings)
    if link is None:
        return ClickHouse(database, feeding)
    if secrets is not None and not settings.uses_chdb:
        secrets.follow(lambda new: link.relocate(_location(new)))
    return ClickHouse(database, feeding, link, ClickHouseFeeder(feeding, link, settings.clickhouse_keep_days))


def clickhouse_link(settings: Settings) -> ClickHouseLink | None:
    return ClickHouseLink(_location(settings)) if settings.clickhouse_url else None


def _location(settings: Settings) -> ClickHouseLocation:
    url = settings.clickhouse_url
    return ClickHouseLocation(url.get_secret_value() if url else "", settings.clickhouse_ca)


async def _drop_effect(_: ClaimedEffect) -> bool:
    """Drop an effect that was queued before feeding was turned off."""
    return False
