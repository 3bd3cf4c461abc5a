"""Findings about the relay's ClickHouse: whether it answers, its schema, how far it is behind. Read-only."""

from collections.abc import Iterator
from datetime import datetime

from crcr.errors import OutsideFault, OutsideHeld, StoreUnavailable
from crcr.join.findings.finding import SetupFinding, ok, problem, unknown, warning
from crcr.record.clickhouse.connection import INSERT_TIMEOUT_S, PAGE_TIMEOUT_S, ClickHouseLink
from crcr.record.clickhouse.feeder import mark
from crcr.record.clickhouse.tables import JOBS, VERSION, kept_days, schema_version
from crcr.record.schema.statistics import FeedMark
from crcr.record.store.database import Tx
from crcr.record.store.signals import Signals
from crcr.record.views.relay.metrics import history_lag
from crcr.settings import Settings
from crcr.settings.readers.single_values import LOOPBACK
from crcr.wiring.clickhouse import clickhouse_link
from crcr.wiring.database import open_database

_LATE_S = 60.0
_BACKFILL = "run `crcr history backfill`; until then pages read the main store"


async def history_findings(settings: Settings, now: datetime, *, store: bool) -> tuple[SetupFinding, ...]:
    """`store`: whether the main store can be queried."""
    link = clickhouse_link(settings)
    if link is None:
        return (ok("clickhouse", "ClickHouse is not used; history comes from the database."),)
    try:
        findings = await _server_findings(link, settings)
    except OutsideHeld:
        findings = (_in_use(settings),)
    except OutsideFault as fault:
        hint = "check CRCR_CLICKHOUSE_URL and the server; meanwhile pages read the main store, and nothing is lost"
        findings = (problem("clickhouse", f"{fault.detail}.", hint),)
    finally:
        await link.close()
    return (
        *findings,
        *_encryption_findings(settings),
        *(await _feed_findings(settings, now) if store else ()),
    )


def _in_use(settings: Settings) -> SetupFinding:
    """Normal while the relay runs and owns the folder."""
    display_name = settings.clickhouse_url.display_name if settings.clickhouse_url else ""
    used = "is in use by another process (probably the relay)"
    return unknown("clickhouse", f"{display_name} {used}; not checked.")


async def _server_findings(link: ClickHouseLink, settings: Settings) -> tuple[SetupFinding, ...]:
    display_name = settings.clickhouse_url.display_name if settings.clickhouse_url else ""
    # Loading chDB takes long on a slow machine.
    within_s = INSERT_TIMEOUT_S if display_name.startswith("chdb:") else PAGE_TIMEOUT_S
    version = (await link.query_slowly("SELECT version() AS version", within_s))[0]["version"]
    answers = ok("clickhouse", f"ClickHouse {version} at {display_name} answers.")
    schema = await schema_version(link)
    if schema == 0:
        return answers, warning(
            "clickhouse_schema", "It has no crcr tables yet.", "the first worker creates them"
        )
    if schema > VERSION:
        hint = "a newer release created them: use that release, or another database"
        return answers, problem(
            "clickhouse_schema", f"Its schema is {schema}, this release's {VERSION}.", hint
        )
    days = await kept_days(link, JOBS)
    retention = f"kept for {days} days" if days else "kept forever"
    if days != settings.clickhouse_keep_days:
        hint = "a worker that starts with the setting applies it"
        return answers, warning(
            "clickhouse_schema",
            f"Results are {retention}, which differs from CRCR_CLICKHOUSE_KEEP_DAYS.",
            hint,
        )
    return answers, ok(
        "clickhouse_schema", f"Its tables have this release's schema ({schema}); results are {retention}."
    )


def _encryption_findings(settings: Settings) -> Iterator[SetupFinding]:
    url = settings.clickhouse_url
    if url is None or url.encrypted or not url.display_name.startswith("clickhouse://"):
        return
    host = url.display_name.removeprefix("clickhouse://").partition("/")[0].rpartition(":")[0]
    if host and host not in LOOPBACK:
        yield warning(
            "clickhouse_tls",
            f"The connection to {url.display_name} is not encrypted.",
            "use clickhouses:// unless the network in between is private",
        )


async def _feed_findings(settings: Settings, now: datetime) -> tuple[SetupFinding, ...]:
    async def unit(tx: Tx) -> tuple[bool, bool, list[tuple[str, int, float]]]:
        lags = [
            (str(upstream.name), *(await history_lag(tx, upstream.name.key, now)))
            for upstream in settings.upstreams
        ]
        is_fed, is_whole = [await mark(tx, name) is not None for name in (FeedMark.SINCE, FeedMark.WHOLE)]
        return is_fed, is_whole, [(name, number, lag_s or 0.0) for name, number, lag_s in lags]

    database = open_database(settings, Signals())
    try:
        is_fed, is_whole, lags = await database.read(unit)
    except StoreUnavailable:
        return ()  # reported by the store's own findings
    finally:
        await database.close()
    if not is_fed:
        return (
            warning(
                "clickhouse_fed", "No worker has fed it yet.", "start a worker with CRCR_CLICKHOUSE_URL set"
            ),
        )
    whole = (
        () if is_whole else (warning("clickhouse_fed", "It does not hold the complete history.", _BACKFILL),)
    )
    return (*whole, *(_lag(*lag) for lag in lags))


def _lag(upstream: str, number: int, lag_s: float) -> SetupFinding:
    queued = f"{upstream}: {number:,} rows waiting to be fed"
    if lag_s > _LATE_S:
        hint = "check that a worker is running and ClickHouse accepts inserts; `crcr effects list` shows the last error"
        return warning("clickhouse_lag", f"{queued}, {lag_s:,.0f} s behind.", hint)
    return ok("clickhouse_lag", f"{queued}.")
