"""The advisory locks that keep writes apart, as SQL: one for all writes, one for each lane, one for the live log.

A transaction begins with them in one round trip. They are prepared once on each connection: parsing and planning them
took a third of the server's time for an empty transaction. Why there are locks: docs/adr/0020-postgresql.md.
"""

from collections.abc import Iterable
from zlib import crc32

EXCLUSIVE = 0
"""Not a lane: a unit in this queue runs alone."""
LANES = 1024
LOCKS = 0x63726372
"""The class of our advisory locks; number 0 is shared by all writes, then one for each lane."""
TRY = f"SELECT lane FROM unnest($1::int[]) AS lane WHERE pg_try_advisory_xact_lock({LOCKS}, lane)"  # noqa: S608
# No transaction can still add a change up to this id (see the ADR): none of the running ones began below it. Locks that
# name a change begin with 25448, since other applications may use advisory locks of one number as well.
SETTLED = """
SELECT least(seen.newest, locks.lowest) AS settled, coalesce(locks.lowest < seen.newest, false) AS behind
FROM (SELECT last_value - (CASE WHEN is_called THEN 0 ELSE 1 END) AS newest FROM changes_change_id_seq) AS seen
LEFT JOIN LATERAL (
  SELECT min(((classid::bigint & 65535) << 32) | objid::bigint) AS lowest FROM pg_locks
  WHERE seen.newest IS NOT NULL AND locktype = 'advisory' AND objsubid = 1 AND granted
  AND classid::bigint >> 16 = 25448
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
) AS locks ON true
"""
_MARK_RUNNING = (
    "SELECT pg_advisory_xact_lock_shared((25448::bigint << 48) + last_value"
    " - (CASE WHEN is_called THEN 0 ELSE 1 END)) FROM changes_change_id_seq"
)
PREPARE = "; ".join(
    (
        f"PREPARE crcr_mark AS {_MARK_RUNNING}",  # first: without our tables none is prepared
        f"PREPARE crcr_share AS SELECT pg_advisory_xact_lock_shared({LOCKS}, {EXCLUSIVE})",
        f"PREPARE crcr_exclude AS SELECT pg_advisory_xact_lock({LOCKS}, {EXCLUSIVE})",
        f"PREPARE crcr_lock (int) AS SELECT pg_advisory_xact_lock({LOCKS}, $1)",
        f"PREPARE crcr_try (int[]) AS {TRY}",
    )
)
"""What `begin` needs, once on each connection."""
_PREPARED = (
    "EXECUTE crcr_share",
    "EXECUTE crcr_exclude",
    "EXECUTE crcr_mark",
    "EXECUTE crcr_lock({})",
    "EXECUTE crcr_try({})",
)
_COMPLETE = (
    f"SELECT pg_advisory_xact_lock_shared({LOCKS}, {EXCLUSIVE})",
    f"SELECT pg_advisory_xact_lock({LOCKS}, {EXCLUSIVE})",
    _MARK_RUNNING,
    f"SELECT pg_advisory_xact_lock({LOCKS}, {{}})",
    TRY.replace("$1", "{}"),
)


def lane_number(lane: str | None) -> int:
    """The same in every process; two lanes may share a number, which costs a wait and nothing else."""
    return EXCLUSIVE if lane is None else 1 + crc32(lane.encode()) % LANES


def begin(lanes: Iterable[int], others: Iterable[int], *, prepared: bool = True) -> str:
    """Begin a transaction that waits for the locks of `lanes`, then tries `others`: its status is how many are granted.

    Without `prepared` it is complete in itself, for a session that other clients use between two transactions.
    """
    share, exclude, mark, lock, attempt = _PREPARED if prepared else _COMPLETE
    locks = [lock.format(lane) for lane in lanes if lane != EXCLUSIVE]
    statements = ["BEGIN", share if locks else exclude, *locks, mark]
    if tried := ",".join(map(str, others)):
        statements.append(attempt.format(f"'{{{tried}}}'"))
    return "; ".join(statements)
